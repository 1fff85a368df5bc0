"""`ramet exec|eval|ping --target`: forkd's guest protocol, as its own commands of these names speak it.

One line of JSON goes to an address, and one comes back. Whoever answers there is believed: the protocol has
no authentication.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import typer

from ramet.errors import InvalidRequest, RametError

if TYPE_CHECKING:
    from socket import socket

ANSWER_MAX = 64 << 20
CONNECT_S = 10.0
SLACK_S = 5.0
DEFAULT = "10.42.0.2:8888"
"""Where forkd's programs look: an address of a network that forkd makes, and Ramet does not."""

TARGET = typer.Option(
    None,
    "--target",
    metavar="HOST:PORT",
    help="Instead of a sandbox: who speaks forkd's guest protocol there.",
)
CHILD = typer.Option(
    None, "--child", metavar="NETNS", help="Refused: sandboxes have no named networks, but ids."
)


def check(target: str | None, child: str | None, sandbox: str | None) -> None:
    """Raise InvalidRequest for what does not go together."""
    if child is not None:
        text = "names a network of forkd's, and no sandbox has one"
        raise InvalidRequest.of("child", text, hint="give the sandbox, or --target HOST:PORT")
    if target is not None and sandbox is not None:
        raise InvalidRequest.of("target", "takes the place of a sandbox")


def address_of(text: str, field: str) -> tuple[str, int]:
    """Host and port. Raises InvalidRequest naming `field`."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, None if parts.path else parts.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise InvalidRequest.of(field, f"{text!r:.80} is not as 127.0.0.1:8888")
    return host, port


def default_target() -> str:
    """Where forkd's programs look."""
    return os.environ.get("FORKD_TARGET") or DEFAULT


def ask(target: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
    """The answer to one request. Raises RametError."""
    import socket

    address = address_of(target, "target")
    try:
        with socket.create_connection(address, CONNECT_S) as sock:
            sock.settimeout(timeout + SLACK_S)
            sock.sendall(json.dumps(request).encode() + b"\n")
            answer = _line(sock)
    except TimeoutError:
        raise RametError("not_connected", f"{target} has not answered in time") from None
    except OSError as error:
        text = f"{target} cannot be reached: {error.strerror or error}"
        hint = "ramet fork --tag NAME --settle-secs SECONDS opens such a port"
        raise RametError("not_connected", text, errno=error.errno, hint=hint) from None
    try:
        told = json.loads(answer)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise RametError("not_connected", f"{target} does not speak forkd's guest protocol")
    return told


def _line(sock: socket) -> bytes:
    found = bytearray()
    while not found.endswith(b"\n") and len(found) <= ANSWER_MAX:
        piece = sock.recv(1 << 16)
        if not piece:
            break
        found += piece
    return bytes(found)


def exit_code_of(answer: dict[str, Any]) -> int:
    """What it says of the end; 125 when it says nothing of the kind."""
    code = answer.get("exit_code")
    return code & 0xFF if type(code) is int else 125
