"""Code through the SDK: a fork of a warm template until its first answer, a round trip, a live fork, many.

Beside it `os.fork` of an interpreter with the same modules until its child has answered, which isolates
nothing, and an interpreter that bubblewrap starts.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import ramet
from benchmarks import _peers
from benchmarks._bare import BareForks
from benchmarks._interpreter import Interpreter
from benchmarks._measure import Action, Figure, Series, alternate, difference, ratio, timed
from benchmarks._memory import settled_kib
from benchmarks._peers import Bubblewrap, collect
from benchmarks._settings import Outcome, Settings

PLAIN, AHEAD = "bench-plain", "bench-ahead"


def _warm() -> str:
    """What the template and the interpreter beside it have imported alike."""
    return "import numpy" if importlib.util.find_spec("numpy") is not None else "import json"


@contextmanager
def _template(name: str, **options: int) -> Iterator[str]:
    ramet.templates.build(name, warm=_warm(), **options)
    try:
        yield name
    finally:
        ramet.templates.remove(name)


def _answer(sandbox: ramet.Sandbox) -> None:
    text = sandbox.run_code("6 * 7").text
    if text != "42":
        raise RuntimeError(f"6 * 7 gave {text!r}")


def _first_answer(template: str) -> Action:
    def once() -> float:
        begin = time.perf_counter()
        sandbox = ramet.Sandbox(template)
        _answer(sandbox)
        took = (time.perf_counter() - begin) * 1e3
        sandbox.close()
        return took

    return once


def measure_code(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """Create to first answer, forked ahead or not, and what of that is the SDK's; a round trip; a live fork.

    A fork is over when the child has answered.
    """
    created, ahead = Series("create to first answer", "ms"), Series("forked ahead, to first answer", "ms")
    live, forked = Series("live fork to the child's answer", "ms"), Series("os.fork to result", "ms")
    whole, bare = Series("create to first answer, beside", "ms"), Series("the same without the SDK", "ms")
    trip, peer = Series("run_code, round trip", "ms"), Series("python3 -c, bubblewrap", "ms")
    with ExitStack() as using:
        for name, options in ((PLAIN, {}), (AHEAD, {"warm_children": 4})):
            using.enter_context(_template(name, **options))
        parent = using.enter_context(ramet.Sandbox(PLAIN))
        forks = using.enter_context(BareForks(PLAIN))
        interpreter = using.enter_context(Interpreter(_warm()))

        def fork() -> float:
            begin = time.perf_counter()
            child = parent.fork()
            _answer(child)
            took = (time.perf_counter() - begin) * 1e3
            child.close()
            return took

        contenders: list[tuple[Series, Action]] = [
            (created, _first_answer(PLAIN)),
            (forked, interpreter.fork_until_answered),
            (ahead, _first_answer(AHEAD)),
            (live, fork),
        ]
        if bubblewrap is not None:
            program, prefixes = _peers.interpreter()
            words = bubblewrap.plain([program, "-c", "print(6 * 7)"], show=prefixes)
            contenders.append((peer, lambda: timed(lambda: collect(words))))
        alternate(contenders, settings.code_rounds, settle_s=0.004)
        # Both come after one of the SDK: what that leaves behind is on the bill of both.
        before = Series("", "ms")
        pair: list[tuple[Series, Action]] = [
            (before, _first_answer(PLAIN)),
            (whole, _first_answer(PLAIN)),
            (before, _first_answer(PLAIN)),
            (bare, lambda: forks.first_answer("6 * 7", b'"42"')),
        ]
        alternate(pair, settings.code_rounds, settle_s=0.004)
        alternate([(trip, lambda: timed(lambda: _answer(parent)))], settings.code_rounds)
    figures = [
        Figure("code_first_answer_p50", "create to first answer, p50", "ms", created.p50, 1.5),
        Figure("code_first_answer_ratio", "  share of os.fork's", "x", ratio(created, forked), 1.0),
        Figure("code_added", "  added by the SDK, p50", "ms", difference(whole, bare), 0.3),
        Figure("code_ahead_p50", "forked ahead, to first answer, p50", "ms", ahead.p50, 0.5),
        Figure("code_trip_p50", "run_code, round trip, p50", "ms", trip.p50, 0.15),
        Figure("code_live_p50", "live fork to the child's answer, p50", "ms", live.p50, 6.0),
    ]
    return Outcome(
        figures, [one for one in (created, whole, bare, ahead, live, forked, trip, peer) if one.samples]
    )


def measure_alive(settings: Settings, _: Bubblewrap | None) -> Outcome:
    """Many children of one template alive together, each of which has answered; and what each costs."""
    answered, cost = Series("alive together, each answered", "s"), Series("one of them, all in", "MiB")
    with _template(PLAIN):
        for _pass in range(settings.passes):
            before, begin = settled_kib(), time.perf_counter()
            sandboxes = [ramet.Sandbox(PLAIN) for _ in range(settings.alive)]
            for sandbox in sandboxes:
                _answer(sandbox)
            answered.samples.append(time.perf_counter() - begin)
            cost.samples.append((before - settled_kib()) / 1024 / settings.alive)
            for sandbox in sandboxes:
                sandbox.ask_end()
            for sandbox in sandboxes:
                sandbox.close()
    scale = settings.alive / 1000
    figures = [
        Figure("alive_s", f"{settings.alive} alive together, each answered", "s", answered.p50, 2.5 * scale),
        Figure("alive_mib", "  each of them, all in", "MiB", cost.p50, 2.0),
    ]
    return Outcome(figures, [answered, cost])


def measure_rate(settings: Settings, _: Bubblewrap | None) -> Outcome:
    """Create, evaluate, kill, one after the other, refill and teardown inside the clock."""
    rate = Series("create, evaluate, kill", "1/s")
    with _template(PLAIN):
        begin = time.perf_counter()
        for _number in range(settings.evaluations):
            with ramet.Sandbox(PLAIN) as sandbox:
                _answer(sandbox)
        rate.samples.append(settings.evaluations / (time.perf_counter() - begin))
    figure = Figure("code_rate", "create, evaluate, kill per second", "1/s", rate.p50, 500.0, at_least=True)
    return Outcome([figure], [rate])
