"""A kernel outside of any sandbox, driven over a socket pair as the engine drives it."""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

from ramet import kernels

LIMIT_S = 10


class Driven:
    """One running kernel. What it writes is gathered; `run` gives the `done` event of a cell."""

    def __init__(self, name, program=None, env=None):
        self.kernel = kernels.get(name)
        kind = socket.SOCK_SEQPACKET if self.kernel.channel == "packets" else socket.SOCK_STREAM
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
        self.socket.settimeout(LIMIT_S)
        argv = list(self.kernel.argv)
        if program is not None:
            argv[0] = program
        # Descriptor 3 is made by a shell: the tests' own process may have anything there.
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec 3<&{theirs.fileno()} {theirs.fileno()}<&-; exec "$@"', "-", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, "RAMET_CHANNEL": "3", **(env or {})},
        )
        theirs.close()
        self.decoder = kernels.Decoder(self.kernel.channel)
        self.events = []
        self.output = {"out": b"", "err": b""}
        self.grown = threading.Condition()
        self.readers = [
            threading.Thread(target=self._gather, args=(stream, name), daemon=True)
            for stream, name in ((self.process.stdout, "out"), (self.process.stderr, "err"))
        ]
        for reader in self.readers:
            reader.start()
        self.ready = None
        self.results = []
        self.write(self.kernel.opening())

    def __enter__(self):
        try:
            self.ready = self.event()
            assert self.ready["event"] == "ready"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.socket.close()
        try:
            self.process.wait(LIMIT_S)
        finally:
            # What the code has left in the group goes too, also where the kernel has ended.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for reader in self.readers:
                reader.join(LIMIT_S)
            self.process.stdout.close()
            self.process.stderr.close()

    def _gather(self, stream, name):
        while select.select([stream], [], []):
            with self.grown:  # who has this finds what was written either in the pipe or here
                data = os.read(stream.fileno(), 1 << 16)
                self.output[name] += data
                self.grown.notify_all()
            if not data:
                return

    def write(self, chunks):
        for chunk in chunks:
            self.socket.sendall(chunk)

    def send(self, **message):
        self.write(self.kernel.request(message))

    def event(self):
        """The next event."""
        while not self.events:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError("the kernel has closed its channel")
            self.events += self.decoder.feed(data)
        return self.events.pop(0)

    def until(self, kind):
        """The next event of that kind; those before it are kept in `results`."""
        self.results = []
        while (event := self.event())["event"] != kind:
            self.results.append(event)
        return event

    def start(self, code, context=None, name="1"):
        self.send(op="run", id=name, code=code, context=context)

    def run(self, code, context=None, name="1"):
        """Run a cell to its end."""
        self.start(code, context, name)
        done = self.until("done")
        assert done["id"] == name
        return done

    def text(self, code, context=None):
        """The text of a cell that must succeed."""
        done = self.run(code, context)
        assert done["reason"] == "ok", done
        return done["text"]

    def written(self, name, mark=None):
        """What was written so far, all of it up to `mark` if there is one; it is forgotten."""
        with self.grown:
            if mark is None:
                assert self.grown.wait_for(lambda: not self._unread(name), LIMIT_S)
            else:
                assert self.grown.wait_for(lambda: mark in self.output[name], LIMIT_S), self.output[name]
            data, self.output[name] = self.output[name], b""
        return data.decode()

    def _unread(self, name):
        """How much of what was written is in the pipe still."""
        stream = self.process.stdout if name == "out" else self.process.stderr
        return struct.unpack("i", fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))[0]

    def fork(self, epoch=1, seed=None, **fields):
        """Tell of a fork, and give the answer."""
        message = {
            "op": "forked",
            "epoch": epoch,
            "sandbox": "sb",
            "hostname": "host",
            "seed": seed,
            "env": {},
        }
        self.write(self.kernel.fresh({**message, **fields}))
        return self.until("forked")

    def interrupt(self):
        """Send SIGINT as the sandbox's init does."""
        if self.kernel.interrupt == "group":
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            os.kill(self.process.pid, signal.SIGINT)

    def interrupted(self, code, mark="begun"):
        """The end of a cell that is interrupted once it has written `mark`, and not before."""
        self.start(code)
        self.written("out", mark.encode())
        self.interrupt()
        return self.until("done")


def with_module(name):
    """An interpreter that has the module, or None: that of the tests, or the one it was made from."""
    base = Path(sys.base_prefix) / "bin/python3"
    for program in (sys.executable, str(base)):
        if (
            subprocess.run([program, "-c", f"import {name}"], capture_output=True, check=False).returncode
            == 0
        ):
            return program
    return None


def interpreters():
    """One interpreter of each minor version that this machine has."""
    found = {f"3.{sys.version_info.minor}": sys.executable}
    for minor in range(9, 15):
        places = [
            shutil.which(f"python3.{minor}"),
            *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"),
        ]
        for place in filter(None, places):
            answer = subprocess.run(
                [place, "-c", "import sys; print(sys.version_info[1])"],
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.stdout.strip() == str(minor):
                found.setdefault(f"3.{minor}", str(place))
    return found
