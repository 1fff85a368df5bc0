"""One command at a time: from the call to the result."""

from __future__ import annotations

import os
import sys

import ramet
from benchmarks import _peers
from benchmarks._measure import Action, Figure, Series, alternate, ratio, timed
from benchmarks._peers import SHELL_TRUE, Bubblewrap, collect, spawn
from benchmarks._settings import Outcome, Settings
from ramet.seccomp import default_filter

PRINT = ("-c", "print(1)")


def run_true() -> None:
    """``ramet.run("true")`` as a user writes it."""
    result = ramet.run("true")
    if result.exit_code != 0:
        raise RuntimeError(f"true: {result}")


def measure_true(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """`ramet.run("true")`: next to nothing but isolation. A line for the shell, as the peer's."""
    ours, floor = Series("true, ramet", "ms"), Series("true, no isolation, posix_spawn", "ms")
    peer = Series("true, bubblewrap, subprocess.run", "ms")
    strict = Series("true, bubblewrap with filter and capabilities", "ms")
    spawned = Series("true, bubblewrap, posix_spawn", "ms")
    contenders: list[tuple[Series, Action]] = [(ours, lambda: timed(run_true))]
    program = _peers.filter_file(default_filter())
    try:
        if bubblewrap is not None:
            words = bubblewrap.plain(SHELL_TRUE)
            more = bubblewrap.strict(SHELL_TRUE, program, show=_peers.interpreter()[1])
            once = _peers.rewound(program, lambda: collect(more, keep=[program]))
            contenders.append((peer, lambda: timed(lambda: collect(words))))
            contenders.append((strict, lambda: timed(once)))
            contenders.append((spawned, lambda: timed(lambda: spawn(words))))
        contenders.append((floor, lambda: timed(lambda: spawn(SHELL_TRUE))))
        alternate(contenders, settings.true_rounds, warm_up=10, settle_s=settings.settle_s)
    finally:
        os.close(program)
    figures = [
        Figure("true_p50", 'ramet.run("true"), p50', "ms", ours.p50, 2.0),
        Figure("true_ratio", "  share of bubblewrap by subprocess.run", "x", ratio(ours, peer), 0.4),
        Figure(
            "true_ratio_strict", "  share of it with filter and capabilities", "x", ratio(ours, strict), None
        ),
        Figure(
            "true_ratio_spawned", "  share of it by posix_spawn, no output", "x", ratio(ours, spawned), None
        ),
    ]
    return Outcome(figures, [one for one in (ours, peer, strict, spawned, floor) if one.samples])


def measure_python(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """`python3 -c 'print(1)'`: the same interpreter for both, shown to bubblewrap under its own paths."""
    ours, floor = Series("print(1), ramet", "ms"), Series("print(1), no isolation, subprocess.run", "ms")
    peer = Series("print(1), bubblewrap, subprocess.run", "ms")
    program, prefixes = _peers.interpreter()

    def run_print() -> None:
        _check(ramet.run(["python3", *PRINT]).stdout_bytes)

    contenders: list[tuple[Series, Action]] = [(ours, lambda: timed(run_print))]
    if bubblewrap is not None:
        words = bubblewrap.plain([program, *PRINT], show=prefixes)
        contenders.append((peer, lambda: timed(lambda: _check(collect(words)))))
    contenders.append((floor, lambda: timed(lambda: _check(collect([program, *PRINT])))))
    alternate(contenders, settings.python_rounds, settle_s=settings.settle_s)
    share = Figure(
        "python_ratio", "python3 -c 'print(1)', share of bubblewrap's", "x", ratio(ours, peer), 0.8
    )
    return Outcome([share], [series for series in (ours, peer, floor) if series.samples])


def _check(output: bytes) -> None:
    if output != b"1\n":
        raise RuntimeError(f"print(1) wrote {output!r}")


def measure_import(settings: Settings, _: Bubblewrap | None) -> Outcome:
    """What `import ramet` adds to the start of an interpreter; and, beside it, what the first use adds."""
    bare, imported = Series("python start", "ms"), Series("import ramet, with python start", "ms")
    used = Series("import ramet.run, with python start", "ms")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def starting(code: str) -> Action:
        argv = [sys.executable, "-c", code]

        def start() -> None:
            pid = os.posix_spawn(argv[0], argv, environment)
            if os.waitpid(pid, 0)[1]:
                raise RuntimeError(f"{argv} failed")

        return lambda: timed(start)

    alternate(
        [
            (bare, starting("pass")),
            (imported, starting("import ramet")),
            (used, starting("from ramet import run")),
        ],
        settings.import_rounds,
    )
    series = [
        _minus(one, bare, name) for one, name in ((imported, "import ramet"), (used, "import ramet.run"))
    ]
    figure = Figure("import_p50", "import ramet, p50", "ms", series[0].p50, 60.0)
    return Outcome([figure], [bare, *series])


def _minus(series: Series, other: Series, name: str) -> Series:
    pairs = zip(series.samples, other.samples, strict=True)
    return Series(name, series.unit, [one - without for one, without in pairs])
