"""Sandboxes that stay: a command in a living one, files in and out, and what many cost that do nothing."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import ramet
from benchmarks._measure import Action, Figure, Series, alternate, timed
from benchmarks._memory import settled_kib
from benchmarks._peers import Bubblewrap
from benchmarks._settings import Outcome, Settings

IDLE = ["sleep", "100000"]
MEGABYTE = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")


def _ran(commands: ramet.Commands, command: str | list[str]) -> Action:
    def once() -> float:
        return timed(lambda: commands.run(command, check=True))

    return once


def measure_command(settings: Settings, _: Bubblewrap | None) -> Outcome:
    """`commands.run("true")`, from call to result, by the shell and without; beside it a plain child."""
    line, words = Series('commands.run("true")', "ms"), Series('commands.run(["true"])', "ms")
    plain = Series("sh -c true, not isolated", "ms")

    def spawn() -> float:
        begin = time.perf_counter()
        pid = os.posix_spawn("/bin/sh", ["/bin/sh", "-c", "true"], os.environ)
        os.waitpid(pid, 0)
        return (time.perf_counter() - begin) * 1e3

    with ramet.Sandbox(command=IDLE) as sandbox:
        commands = sandbox.commands
        contenders = [(line, _ran(commands, "true")), (words, _ran(commands, ["true"])), (plain, spawn)]
        alternate(contenders, settings.true_rounds)
    figure = Figure("command_p50", 'commands.run("true"), p50', "ms", line.p50, 1.2)
    return Outcome([figure], [line, words, plain])


def measure_files(settings: Settings, _: Bubblewrap | None) -> Outcome:
    """A large file read out through one buffer, and files of 1 MB written in, each in one call."""
    read, written = Series("a large file read out", "GB/s"), Series("files of 1 MB written", "1/s")
    size, data = settings.file_mib << 20, os.urandom(MEGABYTE)
    room = size + settings.files * MEGABYTE + (64 << 20)
    limits = {"disk": room, "file_size": room}
    buffer = memoryview(bytearray(1 << 20))
    with ramet.Sandbox(command=IDLE, limits=limits) as sandbox:
        line = f"head -c {size} /dev/urandom > /tmp/large"
        sandbox.commands.run(line, check=True)
        for _pass in range(settings.passes):
            begin, got = time.perf_counter(), 0
            with sandbox.files.open("/tmp/large") as file:
                while count := file.readinto(buffer):
                    got += count
            if got != size:
                raise RuntimeError(f"{got} of {size} bytes were read")
            read.samples.append(got / 1e9 / (time.perf_counter() - begin))
            begin = time.perf_counter()
            for number in range(settings.files):
                sandbox.files.write(f"/tmp/many/{number}", data)
            written.samples.append(settings.files / (time.perf_counter() - begin))
            sandbox.files.remove("/tmp/many", recursive=True)
    figures = [
        Figure("file_read_rate", f"{settings.file_mib} MiB read out", "GB/s", read.p50, 1.0, at_least=True),
        Figure(
            "file_write_rate", "files of 1 MB written per second", "1/s", written.p50, 1000.0, at_least=True
        ),
    ]
    return Outcome(figures, [read, written])


def _processor_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        row = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(row[11]) + int(row[12])
    return ticks / TICKS


def measure_idle(settings: Settings, _: Bubblewrap | None) -> Outcome:
    """Many sandboxes in which nothing happens: time of daemon and core, and memory of all, for each."""
    busy, cost = Series("daemon and core beside idle sandboxes", "%"), Series("idle sandbox, all in", "MiB")
    status = ramet.status()
    core = status.core
    if core is None:
        raise RuntimeError("the daemon has no core")
    pids = [status.pid, core.pid]
    for _pass in range(settings.memory_passes):
        with ExitStack() as using:
            before = settled_kib()
            for _number in range(settings.idle):
                using.enter_context(ramet.Sandbox(command=IDLE))
            cost.samples.append((before - settled_kib()) / 1024 / settings.idle)
            begin, spent = time.perf_counter(), _processor_s(pids)
            time.sleep(settings.idle_s)
            share = (_processor_s(pids) - spent) / (time.perf_counter() - begin)
            busy.samples.append(100 * share)
    figures = [
        Figure("idle_processor", f"{settings.idle} idle sandboxes: daemon and core", "%", busy.p50, 1.0),
        Figure("idle_mib", "  each of them, all in", "MiB", cost.p50, 2.0),
    ]
    return Outcome(figures, [busy, cost])
