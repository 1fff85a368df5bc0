"""Measures every promise beside bubblewrap: ``python -m benchmarks [--scale quick] [--only true,limit]``.

A daemon of its own is started and ended; the one you use is left alone. The exit code is 0 whatever was
found, with ``--strict`` 1 when a promise is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import _code, _deadline, _latency, _limits, _machine, _memory, _standing, _throughput
from benchmarks._peers import Bubblewrap
from benchmarks._settings import SCALES, Outcome, Settings

SCHEMA = 1
DEFAULT_FILE = _machine.ROOT / "build" / "bench.json"
Measurement = Callable[[Settings, Bubblewrap | None], Outcome]
MEASUREMENTS: Mapping[str, Measurement] = {
    "true": _latency.measure_true,
    "python": _latency.measure_python,
    "runs": _throughput.measure,
    "limit": _deadline.measure,
    "memory": _memory.measure,
    "import": _latency.measure_import,
    "code": _code.measure_code,
    "alive": _code.measure_alive,
    "rate": _code.measure_rate,
    "command": _standing.measure_command,
    "files": _standing.measure_files,
    "idle": _standing.measure_idle,
    "limits": _limits.measure_cost,
    "exactness": _limits.measure_exactness,
    "hogs": _limits.measure_hogs,
    "limited": _limits.measure_many,
    "quotas": _limits.measure_quotas,
}


@contextlib.contextmanager
def own_daemon() -> Iterator[None]:
    """Have a daemon in a directory of our own, and none afterwards."""
    from ramet.client import shutdown
    from ramet.errors import DaemonLost

    names = ("RAMET_RUNTIME_DIR", "XDG_DATA_HOME")
    before = {name: os.environ.get(name) for name in names}
    # Hundreds of sandboxes at once have five descriptors each.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        tempfile.TemporaryDirectory(prefix="ramet-bench-", dir="/tmp") as directory,
        tempfile.TemporaryDirectory(prefix="ramet-bench-") as data,
    ):
        os.environ |= dict(zip(names, (directory, data), strict=True))
        try:
            yield
        finally:
            with contextlib.suppress(DaemonLost):
                shutdown()
            _wait_until_empty(Path(directory))
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _wait_until_empty(directory: Path) -> None:
    """The daemon removes its files last of all."""
    end = time.monotonic() + 10
    while any(directory.iterdir()) and time.monotonic() < end:
        time.sleep(0.01)


def measure(
    names: list[str], settings: Settings, *, raw: bool = False, patience_s: float = 0.0
) -> dict[str, Any]:
    """Take the named measurements; what they found as JSON.

    Before each, wait up to `patience_s` for others to leave the machine alone.
    """
    bubblewrap = Bubblewrap.find()
    started, start = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic()
    load_before = _machine.load()
    figures: list[dict[str, Any]] = []
    series: dict[str, Any] = {}
    with own_daemon():
        for name in names:
            say(f"{name} ...")
            around = {
                "busy_before": round(_machine.wait_for_quiet(patience_s), 2),
                "load": _machine.load()[0],
            }
            outcome = MEASUREMENTS[name](settings, bubblewrap)
            figures += [figure.to_json() | around for figure in outcome.figures]
            series |= {one.name: one.to_json(raw=raw) for one in outcome.series}
    return {
        "schema": SCHEMA,
        "started": started,
        "seconds": round(time.monotonic() - start, 1),
        "machine": _machine.facts(),
        "versions": _machine.versions(bubblewrap.path if bubblewrap else None),
        "settings": asdict(settings),
        "load_before": load_before,
        "load_after": _machine.load(),
        "figures": figures,
        "series": series,
    }


def say(text: str) -> None:
    """Progress goes to standard error, where it does not mix with the table."""
    print(text, file=sys.stderr, flush=True)


def table(found: Mapping[str, Any]) -> str:
    """What was found, for people."""
    machine, versions = found["machine"], found["versions"]
    commit = (versions["commit"] or "no commit")[:12] + ", changed" * versions["uncommitted_changes"]
    processor = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_mib']} MiB"
    peer = versions["bubblewrap"] or "no bubblewrap"
    lines = [
        f"{processor}, Linux {machine['kernel']}, uid {machine['uid']}",
        f"ramet {versions['ramet']} ({commit}), {peer}, Python {versions['python']}",
        f"load {found['load_before'][0]} before, {found['load_after'][0]} after",
        "",
        f"{'':52}{'n':>6}{'min':>10}{'p50':>10}{'p90':>10}{'p99':>10}",
    ]
    for name, one in found["series"].items():
        label = f"{name} ({one['unit']})"
        if one["n"]:
            numbers = "".join(f"{one[key]:>10.4g}" for key in ("min", "p50", "p90", "p99"))
            lines.append(f"{label:52}{one['n']:>6}{numbers}")
    lines += ["", f"{'promise':52}{'found':>12}{'bound':>12}"]
    for figure in found["figures"]:
        value = "-" if figure["value"] is None else f"{figure['value']:.4g}"
        bound = "" if figure["bound"] is None else f"{figure['relation']} {figure['bound']:g}"
        label = f"{figure['what']} ({figure['unit']})" if figure["unit"] else figure["what"]
        lines.append(f"{label:52}{value:>12}{bound:>12}   {figure['verdict']}")
    return "\n".join(lines)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split(":")[0])
    parser.add_argument(
        "--scale", choices=SCALES, default="full", help="how much is measured (default: full)"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"some of {','.join(MEASUREMENTS)}")
    parser.add_argument(
        "--json", type=Path, default=DEFAULT_FILE, metavar="FILE", help="where the numbers go"
    )
    parser.add_argument("--raw", action="store_true", help="every sample goes there too")
    parser.add_argument(
        "--patience", type=float, default=0.0, metavar="S", help="wait so long for a quiet machine, each time"
    )
    parser.add_argument("--strict", action="store_true", help="fail when a promise is missed")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(MEASUREMENTS)
    if unknown := set(names) - MEASUREMENTS.keys():
        parser.error(f"--only: {', '.join(sorted(unknown))} is not one of {','.join(MEASUREMENTS)}")
    found = measure(names, SCALES[options.scale], raw=options.raw, patience_s=options.patience)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    say(f"written to {options.json}")
    if options.strict and any(figure["verdict"] == "missed" for figure in found["figures"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
