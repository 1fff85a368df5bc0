"""`ramet.Forkbox`: the call of PyPI's ``forkbox``, in a sandbox of its own; with a socket, by a server."""

from __future__ import annotations

import dataclasses
import json
import socket
from typing import Any

from ramet.errors import InvalidRequest, RametError

TIMEOUT_MS = 3000
SPARE_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool
    duration_us: int

    @property
    def duration_ms(self) -> float:
        """The same in milliseconds."""
        return self.duration_us / 1000

    @property
    def ok(self) -> bool:
        """Whether it exited with 0 and in time."""
        return self.exit_code == 0 and not self.timed_out


class Forkbox:
    """For programs that were written for Forkbox."""

    @staticmethod
    def run(
        cmd: str,
        timeout_ms: int = TIMEOUT_MS,
        allow_network: bool = False,  # noqa: FBT001, FBT002  the signature is theirs
        socket_path: str | None = None,
    ) -> SandboxResult:
        """Run a shell's line in a sandbox of its own.

        Without `socket_path` nothing but the user's own daemon is needed, which is started on demand; with it
        a server is asked that was started with ``ramet serve --forkbox-socket PATH``.

        Raises InvalidRequest when an argument is wrong, ConnectionError when nobody listens at `socket_path`,
        and what `ramet.run` raises.
        """
        if allow_network:
            raise InvalidRequest.of(
                "allow_network", "no network can be given to a command", code="unsupported"
            )
        if type(timeout_ms) is not int or timeout_ms < 1:
            raise InvalidRequest.of("timeout_ms", f"{timeout_ms!r:.40} is no number from 1 on")
        if socket_path is not None:
            return _ask(cmd, timeout_ms, socket_path)
        from ramet.client._sync.api import run

        done = run(cmd, timeout=timeout_ms / 1000)
        return SandboxResult(
            done.exit_code, done.stdout, done.stderr, done.timed_out, round(done.duration_ms * 1000)
        )


def _ask(cmd: str, timeout_ms: int, path: str) -> SandboxResult:
    request = {"cmd": cmd, "timeout_ms": timeout_ms, "allow_network": False}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(timeout_ms / 1000 + SPARE_S)
        try:
            asking.connect(path)
            asking.sendall(json.dumps(request).encode() + b"\n")
            line = asking.makefile("rb").readline()
        except OSError as error:
            raise ConnectionError(f"nobody answers at {path}: {error.strerror or error}") from None
    if not line:
        raise ConnectionError(f"the server at {path} ended without an answer")
    told: dict[str, Any] = json.loads(line)
    if "error" in told:
        raise RametError(str(told.get("code", "refused")), str(told["error"]))
    return SandboxResult(**{field.name: told[field.name] for field in dataclasses.fields(SandboxResult)})
