"""`ramet bench`: the benchmarks of the checkout that this installation is of."""

from __future__ import annotations

import json
import os
from pathlib import Path

import typer

from ramet.cli._progress import working
from ramet.client._chosen import chosen
from ramet.errors import InvalidRequest

CHECKOUT = Path(__file__).resolve().parents[4]


def bench(
    *,
    engine: bool = typer.Option(False, "--engine", help="The fork engine instead of single runs."),
    json_file: str = typer.Option(None, "--json", metavar="FILE", help="Where the numbers go."),
    plot: str = typer.Option(
        None, "--plot", metavar="FILE", help="With --engine: a picture, .svg or, where a converter is, .png."
    ),
    rounds: str = typer.Option(None, "--rounds", metavar="N", help="With --engine: rounds of each contest."),
    quick: bool = typer.Option(False, "--quick", help="Less of everything."),
    tag: str | None = typer.Option(
        None, "--tag", metavar="NAME", help="One walk through the life of forks of this snapshot instead."
    ),
    n: str | None = typer.Option(
        None, "-n", "--n", metavar="N", help="With --tag: how many forks. Default: 5."
    ),
    own_network: str | None = typer.Option(
        None, "--per-child-netns", metavar="true", help="With --tag: as every fork has anyway."
    ),
) -> int:
    """Measure what Ramet promises on this machine, and show each number beside its bound.

    Runs are measured beside bubblewrap, the engine beside os.fork. Those benchmarks are part of the source.
    Of an installed package, one walk through the life of forks of the template python is measured instead.
    """
    if own_network not in {None, "true"}:
        raise InvalidRequest.of("per-child-netns", f"{own_network!r:.20}: no two sandboxes share a network")
    if tag is None and not any((engine, plot, rounds, quick)) and not _of_source():
        tag = "python"
    if tag is not None:
        for option, value in (("engine", engine), ("plot", plot), ("rounds", rounds), ("quick", quick)):
            if value:
                raise InvalidRequest.of(option, "is not for --tag")
        return _walk(tag, "5" if n is None else n, json_file)
    if chosen():
        raise InvalidRequest("not_remote", "these measure this machine: with a server there is --tag NAME")
    if n is not None:
        raise InvalidRequest.of("n", "belongs to --tag")
    import subprocess
    import sys

    words = _words(engine=engine, json_file=json_file, plot=plot, rounds=rounds, quick=quick)
    module = "benchmarks.engine" if engine else "benchmarks"
    if not _of_source():
        raise InvalidRequest(
            "not_found",
            f"this installation has no benchmarks: {CHECKOUT / 'benchmarks'} does not exist",
            hint="they are in the directory benchmarks of Ramet's source: python -m benchmarks, "
            "python -m benchmarks.engine; ramet bench alone measures forks of the template python",
        )
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.call([sys.executable, "-P", "-m", module, *words], env=environment)


def _of_source() -> bool:
    return (CHECKOUT / "benchmarks" / "engine.py").is_file()


def _walk(tag: str, n: str, json_file: str | None) -> int:
    from ramet.cli.commands.forkd import bench as walk
    from ramet.cli.render import pairs

    with working(f"forking {tag}"):
        rows = walk(tag, n)
    if json_file is not None:
        Path(json_file).write_text(json.dumps(rows) + "\n")
    pairs({row: f"{spent:.1f} ms" for row, spent in rows.items()})
    return 0


def _words(
    *, engine: bool, json_file: str | None, plot: str | None, rounds: str | None, quick: bool
) -> list[str]:
    """The arguments of the benchmarks' own program. Raises InvalidRequest."""
    words = []
    for option, value in (("--plot", plot), ("--rounds", rounds)):
        if value is not None and not engine:
            raise InvalidRequest.of(option, "belongs to --engine")
    if rounds is not None and not (rounds.isascii() and rounds.isdecimal() and int(rounds)):
        raise InvalidRequest.of("--rounds", f"{rounds[:80]!r} is not a number above 0")
    if plot is not None and Path(plot).suffix not in {".svg", ".png"}:
        raise InvalidRequest.of("--plot", f"{plot[:80]!r} ends neither with .svg nor with .png")
    if quick:
        words += ["--scale", "quick"]
    for option, value in (("--json", json_file), ("--plot", plot), ("--rounds", rounds)):
        if value is not None:
            words += [option, value]
    return words
