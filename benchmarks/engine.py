"""Measures the fork engine at core's own socket: ``python -m benchmarks.engine [--quick] [--plot FILE.svg]``.

Beside it, in the same rounds, `os.fork` of the same program without any isolation. A core of its own is
started and ended. The exit code is 0 whatever was found, with ``--strict`` 1 when a promise is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import (
    _engine_criu,
    _engine_files,
    _engine_latency,
    _engine_many,
    _engine_pause,
    _engine_trees,
    _machine,
    _plot,
)
from benchmarks._engine import Failed, Place, place
from benchmarks._engine_settings import SCALES, Outcome, Settings

SCHEMA = 1
DEFAULT_FILE = _machine.ROOT / "build" / "bench-engine.json"
Measurement = Callable[[Settings, Place], Outcome]
MEASUREMENTS: Mapping[str, Measurement] = {
    "spawn": _engine_latency.measure_spawn,
    "sizes": _engine_latency.measure_sizes,
    "growth": _engine_latency.measure_growth,
    "at-once": _engine_latency.measure_at_once,
    "pause": _engine_pause.measure,
    "files": _engine_files.measure,
    "trees": _engine_trees.measure,
    "fiftieth": _engine_many.measure_fiftieth,
    "chain": _engine_many.measure_chain,
    "siblings": _engine_many.measure_siblings,
    "stored": _engine_many.measure_stored,
    "criu": _engine_criu.measure,
}


@contextlib.contextmanager
def packages(*, numpy: bool) -> Iterator[Path | None]:
    """A directory with NumPy for this interpreter: its own, else one that pip fills. None without any."""
    if not numpy:
        yield None
        return
    spec = importlib.util.find_spec("numpy")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent.parent
        return
    with tempfile.TemporaryDirectory(prefix="ramet-bench-", dir="/tmp") as top:
        directory = Path(top, "packages")
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        words += ["--no-deps", "--only-binary=:all:", "--target", str(directory), "numpy"]
        say("NumPy is not installed; pip fetches it into a temporary directory ...")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"without NumPy: {done.stderr.strip().splitlines()[-1:]}")
        yield None if done.returncode else directory


def measure(names: list[str], settings: Settings, *, raw: bool = False) -> dict[str, Any]:
    """Take the named measurements; what they found as JSON."""
    started, start = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic()
    load_before = _machine.load()
    figures: list[dict[str, Any]] = []
    series: dict[str, Any] = {}
    points: list[dict[str, Any]] = []
    with packages(numpy=settings.numpy) as directory, place(directory, settings.pool) as where:
        settings = replace(settings, numpy=directory is not None)
        for name in names:
            say(f"{name} ...")
            load, begun = _machine.load(), time.monotonic()
            try:
                outcome = MEASUREMENTS[name](settings, where)
            except Failed as error:
                raise Failed(f"{name}: {error}") from error
            figures += [figure.to_json() | {"load": load[0]} for figure in outcome.figures]
            series |= {one.name: one.to_json(raw=raw) for one in outcome.series}
            points += [asdict(point) for point in outcome.points]
            say(f"{name}: {time.monotonic() - begun:.0f} s")
    return {
        "schema": SCHEMA,
        "started": started,
        "seconds": round(time.monotonic() - start, 1),
        "machine": _machine.facts() | {"huge_pages": _huge_pages()},
        "versions": _machine.versions(None),
        "settings": asdict(settings),
        "load_before": load_before,
        "load_after": _machine.load(),
        "figures": figures,
        "series": series,
        "points": points,
    }


def _huge_pages() -> str | None:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return None
    return text.partition("[")[2].partition("]")[0] or None


def say(text: str) -> None:
    """Progress goes to standard error, where it does not mix with the table."""
    print(text, file=sys.stderr, flush=True)


def show(found: Mapping[str, Any]) -> None:
    """What was found, for people."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    machine, versions = found["machine"], found["versions"]
    commit = (versions["commit"] or "no commit")[:12] + ", changed" * versions["uncommitted_changes"]
    out = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
    out.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_mib']} MiB, Linux {machine['kernel']},"
        f" uid {machine['uid']}, huge pages: {machine['huge_pages']}\n"
        f"ramet {versions['ramet']} ({commit}), Python {versions['python']}; {found['seconds']:g} s,"
        f" load {found['load_before'][0]} before, {found['load_after'][0]} after\n"
    )
    rows = Table.grid(padding=(0, 2), pad_edge=False)
    rows.add_column(header="measured")
    for name in ("n", "min", "p50", "p90", "p99"):
        rows.add_column(header=name, justify="right", no_wrap=True)
    rows.show_header = True
    for name, one in found["series"].items():
        if one["n"]:
            numbers = [f"{one[key]:.3g}" for key in ("min", "p50", "p90", "p99")]
            rows.add_row(f"{name} ({one['unit']})", str(one["n"]), *numbers)
    out.print(rows)
    out.print()
    rows = Table.grid(padding=(0, 2), pad_edge=False)
    rows.add_column(header="promise")
    for name in ("found", "bound"):
        rows.add_column(header=name, justify="right", no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    rows.show_header = True
    colours = {"reached": "green", "missed": "bold red", "not measured": "yellow"}
    for figure in found["figures"]:
        value = "-" if figure["value"] is None else f"{figure['value']:.3g} {figure['unit']}"
        bound = f"{figure['relation']} {figure['bound']:g}"
        verdict = Text(figure["verdict"], colours[figure["verdict"]])
        rows.add_row(figure["what"], value, bound, verdict, figure.get("note", ""))
    out.print(rows)


def draw(found: Mapping[str, Any]) -> str:
    """The points as a picture."""
    lines: dict[str, _plot.Line] = {}
    for point in found["points"]:
        line = lines.setdefault(point["line"], _plot.Line(point["line"], dashed="os.fork" in point["line"]))
        line.points.append((point["mib"], point["ms"]))
    machine = found["machine"]
    about = f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}"
    about += f", load {found['load_before'][0]}"
    axes = ("anonymous memory of the source, MiB", "ms, p50")
    return _plot.picture("From the call to the child's answer", about, axes, list(lines.values()))


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=(__doc__ or "").split(":")[0]
    )
    add = parser.add_argument
    add("--scale", choices=SCALES, default="full", help="how much is measured (default: full)")
    add("--quick", action="store_const", const="quick", dest="scale", help="the same as --scale quick")
    add("--rounds", type=int, metavar="N", help="rounds of each contest")
    add("--only", metavar="NAMES", help=f"some of {','.join(MEASUREMENTS)}")
    add("--json", type=Path, default=DEFAULT_FILE, metavar="FILE", help="where the numbers go")
    add("--plot", type=Path, metavar="FILE", help="a picture, .svg or .png")
    add("--raw", action="store_true", help="every sample goes into the numbers too")
    add("--strict", action="store_true", help="fail when a promise is missed")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(MEASUREMENTS)
    if unknown := set(names) - MEASUREMENTS.keys():
        parser.error(f"--only: {', '.join(sorted(unknown))} is not one of {','.join(MEASUREMENTS)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds: at least 1")
    if options.plot is not None and (refused := _plot.refusal(options.plot)):
        parser.error(f"--plot: {refused}")
    if options.plot is not None and "sizes" not in names:
        parser.error("--plot: the picture is of sizes, which --only leaves out")
    settings = SCALES[options.scale]
    if options.rounds is not None:
        settings = replace(settings, rounds=options.rounds)
    try:
        found = measure(names, settings, raw=options.raw)
    except Failed as error:
        sys.exit(f"{parser.prog}: {error}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    say(f"written to {options.json}")
    if options.plot is not None:
        _plot.write(options.plot, draw(found))
        say(f"drawn to {options.plot}")
    if options.strict and any(figure["verdict"] == "missed" for figure in found["figures"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
