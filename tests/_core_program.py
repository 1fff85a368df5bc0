"""Core programs for tests, which a daemon can start as RAMET_CORE.

`another_build` makes one that does what core does, `write_program` one of Python. That serves as FakeCore
does, also on core.sock after its daemon has died, until the grace period is over.
"""

import argparse
import os
import select
import shutil
import socket
import sys
from pathlib import Path

import ramet
from _fake_core import FakeCore
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.locate import find_program


def another_build(directory: Path) -> Path:
    """Core, and yet another program: only what nobody reads is otherwise. All may enter the directory."""
    directory.chmod(0o755)
    program = directory / "ramet-core"
    shutil.copy2(find_program(), program)
    with program.open("ab") as file:
        file.write(b"of another build")
    return program


def write_program(path: Path) -> Path:
    """An executable file at `path` that is such a core."""
    here = Path(__file__).resolve().parent
    package = Path(ramet.__file__).resolve().parent.parent
    path.write_text(
        f"#!{sys.executable}\n"
        f"import sys\nsys.path[:0] = [{str(here)!r}, {str(package)!r}]\n"
        "from _core_program import main\nmain()\n"
    )
    path.chmod(0o755)
    return path


class Program(FakeCore):
    """One conversation at a time; in between it listens for as long as the grace period."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._begin(socket.socket(fileno=options.control))
        self._listener = socket.socket(fileno=options.listen)
        self._grace = options.grace_ms / 1000
        self.on[p.HELLO] = lambda core, frame: core.send(p.OK, frame.request, describe(options.build))

    def serve(self) -> None:
        """Until asked to end, or alone for too long."""
        while True:
            self._serve(self.sock)
            if p.SHUTDOWN in self.kinds() or not select.select([self._listener], [], [], self._grace)[0]:
                return
            self.sock.close()
            self.sock, _ = self._listener.accept()


def describe(build: str) -> bytes:
    """READY's payload. The id is the pid, so that a test knows a core again."""
    program = frames.text(p.TAG_PROGRAM, f"0+{build}")
    return frames.u32(p.TAG_VERSION, p.PROTOCOL_VERSION) + frames.u64(p.TAG_CORE_ID, os.getpid()) + program


def main() -> None:
    """The program: detaches as core does, and serves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    for name in (
        "control",
        "listen",
        "runtime-dir",
        "log",
        "hold",
        "grace-ms",
        "pool",
        "snapshot-memory",
        "snapshot-ms",
        "spill",
    ):
        parser.add_argument(f"--{name}", type=int)
    for name in ("uid-map", "gid-map", "newidmap", "build"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    if os.fork():
        os._exit(0)
    program = Program(options)
    program.send(p.READY, 0, describe(options.build))
    program.serve()
