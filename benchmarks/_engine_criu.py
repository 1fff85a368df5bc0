"""Beside CRIU: the same program frozen, written, and running again, by each in turn.

CRIU needs root of the host, and has neither a sandbox to place the process in nor one to give it back to: it
dumps it where it stands, which ends it, and restores it there. What it cannot do on this machine is told by
the figure's note.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks._engine import MIB, Clock, Failed, Guest, Place
from benchmarks._engine_latency import contest
from benchmarks._engine_settings import Outcome, Settings
from benchmarks._measure import Figure, Series, timed

TIMES, VERSION = 10.0, 4
PATIENCE_S = 30
WAITS = """
import mmap, os, sys, time
area = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block = os.urandom(1 << 20)
for start in range(0, len(area), len(block)):
    area[start : start + len(block)] = block[: len(area) - start]
open(sys.argv[2], "w").close()
while True:
    time.sleep(1000)
"""
"""A file tells that it has its memory: ends of pipes outside CRIU does not dump."""


def measure(settings: Settings, place: Place) -> Outcome:
    """A live fork to its first answer, against dump and restore until the process runs."""
    name, what = (
        "beside_criu",
        "dump and restore by CRIU against a live fork to its first answer, general way",
    )
    reason = refusal()
    if reason:
        return Outcome(figures=[Figure(name, what, "x", None, TIMES, at_least=True, note=reason)])
    ours, theirs = Series("live fork, general way", "ms"), Series("CRIU, dump and restore", "ms")
    source = place.source()
    source.ask(f"grow({settings.small * MIB} - memory()['Anonymous'])")
    try:
        with _process(settings.small * MIB) as process:
            pairs = [(ours, partial(_fork, place, source)), (theirs, process.dump_and_restore)]
            contest(pairs, settings.rounds, Clock(settings.seconds), settings.settle_s)
    finally:
        place.core.end(source)
    note = f"{_version()}; {len(theirs.samples)} rounds"
    figure = Figure(name, what, "x", theirs.p50 / ours.p50, TIMES, at_least=True, note=note)
    return Outcome(figures=[figure], series=[ours, theirs])


def refusal() -> str:
    """Why CRIU is not measured; empty when it can be."""
    if os.geteuid() != 0:
        return "CRIU needs root"
    if shutil.which("criu") is None:
        return "criu is not installed"
    version = _version()
    number = re.search(r"(\d+)\.", version)
    if number is None or int(number[1]) < VERSION:
        return f"CRIU {VERSION} is asked for, this is {version or 'of no known version'}"
    checked = _criu("check")
    return f"criu check: {_last(checked.stderr)}" if checked.returncode else ""


def _version() -> str:
    return _criu("--version").stdout.partition("\n")[0].removeprefix("Version: ").strip()


def _criu(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["criu", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no word"])[-1]


def _fork(place: Place, source: Guest) -> float:
    made: list[Guest] = []

    def call() -> None:
        snapshot = place.core.snapshot(source)
        child, answer = place.core.fork(snapshot, "6 * 7")
        made.append(child)
        place.core.drop(snapshot)
        if answer != 42:
            raise Failed(f"a child says {answer}")

    took = timed(call)
    place.core.end(*made)
    return took


class _Process:
    """One that is dumped, which ends it, and restored under its number, over and over."""

    def __init__(self, directory: Path, size: int) -> None:
        ready = directory / "ready"
        self._images = directory / "images"
        self._images.mkdir()
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WAITS, str(size), str(ready)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        end = time.monotonic() + PATIENCE_S
        while not ready.exists():
            if self._child.poll() is not None or time.monotonic() > end:
                self.end()
                raise Failed("the process that CRIU is to dump does not come up")
            time.sleep(0.01)

    def _do(self, *words: str) -> float:
        begun = time.perf_counter()
        done = _criu(*words, "--images-dir", str(self._images))
        if done.returncode:
            raise Failed(f"criu {words[0]}: {_last(done.stderr)}")
        return (time.perf_counter() - begun) * 1e3

    def dump_and_restore(self) -> float:
        """Milliseconds of both, until it runs again."""
        for old in self._images.iterdir():
            old.unlink()
        took = self._do("dump", "--tree", str(self._child.pid))
        # Its number must be free; from the second round on it is whoever's child takes in orphans.
        self._child.poll()
        return took + self._do("restore", "--restore-detached")

    def end(self) -> None:
        """End it, whoever's child it is."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGKILL)
        self._child.poll()


@contextmanager
def _process(size: int) -> Iterator[_Process]:
    with tempfile.TemporaryDirectory(prefix="ramet-criu-", dir="/tmp") as directory:
        process = _Process(Path(directory), size)
        try:
            yield process
        finally:
            process.end()
