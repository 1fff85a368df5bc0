"""What Ramet is measured beside: bubblewrap, and a process without any isolation as the floor.

Two ways to start the peer. `collect` is what a Python program writes to get what `ramet.run` gives: output
and exit code. `spawn` is the cheapest that there is: posix_spawn (a vfork), no pipes, an empty environment.
Ramet is called as users call it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._measure import timed

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp"}
SHELL_TRUE = ("/bin/sh", "-c", "true")


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """Command lines of the program `path`."""

    path: str

    @classmethod
    def find(cls) -> Bubblewrap | None:
        """None where it is not installed."""
        path = shutil.which("bwrap")
        return cls(path) if path else None

    def plain(
        self, command: Sequence[str], *, show: Sequence[str] = (), die_with_parent: bool = False
    ) -> list[str]:
        """The least that isolates: every namespace, /usr and `show` read-only, /proc, /dev and a /tmp."""
        return [self.path, *self._view(show), *(["--die-with-parent"] * die_with_parent), "--", *command]

    def strict(self, command: Sequence[str], program: int, *, show: Sequence[str] = ()) -> list[str]:
        """What comes closest to a sandbox of Ramet.

        In addition to `plain`: its seccomp filter, read from the descriptor `program`, no capability, uid 0,
        a session and a host name of its own, a home.
        """
        more = ["--die-with-parent", "--new-session", "--hostname", "ramet", "--cap-drop", "ALL"]
        more += ["--uid", "0", "--gid", "0", "--tmpfs", "/home", "--seccomp", str(program)]
        return [self.path, *self._view(show), *more, "--", *command]

    def _view(self, show: Sequence[str]) -> list[str]:
        words = ["--unshare-all", "--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            # As on this host: where /lib is no symlink into /usr, it is a directory of its own.
            if os.path.islink(f"/{name}"):
                words += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif os.path.isdir(f"/{name}"):
                words += ["--ro-bind", f"/{name}", f"/{name}"]
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for path in show:
            words += ["--ro-bind", path, path]  # after /tmp, which would cover what lies below it
        return words


def collect(argv: Sequence[str], *, keep: Sequence[int] = ()) -> bytes:
    """Run it by `subprocess`, which collects its output; what it wrote to standard output."""
    done = subprocess.run(argv, capture_output=True, check=True, pass_fds=keep)
    return done.stdout


def spawn(argv: Sequence[str]) -> None:
    """Start it and wait for its end, which must be 0. Its output is that of this process."""
    pid = os.posix_spawn(argv[0], list(argv), ENVIRONMENT)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{argv[0]} ended with wait status {status}: {list(argv)}")


def spawn_many(argv: Sequence[str], count: int, at_once: int) -> None:
    """Start it `count` times, never more than `at_once` at a time; every end must be 0."""
    running, started, failed = 0, 0, 0
    while started < count or running:
        while started < count and running < at_once:
            os.posix_spawn(argv[0], list(argv), ENVIRONMENT)
            started += 1
            running += 1
        _, status = os.wait()
        running -= 1
        failed += status != 0
    if failed:
        raise RuntimeError(f"{failed} of {count} failed: {list(argv)}")


def spawn_until(argv: Sequence[str], seconds: float) -> float:
    """Start it, kill it after `seconds`, wait for its end; the milliseconds from start to end.

    Waits on a descriptor of the process (pidfd), which is as exact as a program outside can be.
    """

    def limited() -> None:
        pid = os.posix_spawn(argv[0], list(argv), ENVIRONMENT)
        descriptor = os.pidfd_open(pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(descriptor, selectors.EVENT_READ)
                if not selector.select(seconds):
                    below = _children(pid)
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    selector.select()
                    _end(below)
        finally:
            os.close(descriptor)
        os.waitpid(pid, 0)

    return timed(limited)


def _children(pid: int) -> list[int]:
    """A descriptor of each of its children.

    One that has not asked yet to die with its parent (prctl(2), PR_SET_PDEATHSIG) would outlive it.
    """
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                found.append(os.pidfd_open(int(child)))
    return found


def _end(processes: list[int]) -> None:
    for descriptor in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


def filter_file(program: bytes) -> int:
    """A descriptor that children inherit, with a seccomp program in it. The caller closes it."""
    with tempfile.TemporaryFile() as file:
        file.write(program)
        file.flush()
        descriptor = os.dup(file.fileno())
    os.set_inheritable(descriptor, True)  # noqa: FBT003
    return descriptor


def rewound(descriptor: int, call: Callable[[], object]) -> Callable[[], None]:
    """`call`, with the file at its beginning: bubblewrap reads the program from where the file stands."""

    def once() -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        call()

    return once


def interpreter() -> tuple[str, list[str]]:
    """The Python that runs this, and the directories that a sandbox must show for it to start."""
    prefixes = [os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.prefix)]
    outside = [prefix for prefix in dict.fromkeys(prefixes) if prefix != "/usr"]
    return os.path.abspath(sys.executable), outside
