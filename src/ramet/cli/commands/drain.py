"""`ramet drain`: empty a server that runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import typer

from ramet.errors import InvalidRequest, RametError

if TYPE_CHECKING:
    from http.client import HTTPConnection

URL = "http://127.0.0.1:8889"
PATIENCE_S = 120.0
"""What a server may take beyond the deadline: it ends what is left then."""
DEADLINE_MAX_S = 86400


def drain(
    *,
    deadline: str = typer.Option("300", "--deadline", metavar="SECONDS", help="After which all are ended."),
    url: str | None = typer.Option(
        None, "--url", metavar="URL", help=f"The server; else $RAMET_URL, else {URL}."
    ),
    socket: str | None = typer.Option(None, "--socket", metavar="PATH", help="Its unix socket, instead."),
    token_file: str | None = typer.Option(
        None, "--token-file", metavar="FILE", help="A token with the scope admin; else $RAMET_TOKEN."
    ),
    tls_ca: str | None = typer.Option(
        None, "--tls-ca", metavar="FILE", help="Who vouches for its certificate, PEM."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Have a server take no more sandboxes, wait until all have ended, and end what is left at the deadline.

    It serves what there is until then, and goes on running afterwards.
    """
    from ramet.models.limits import parse_seconds

    seconds = float(parse_seconds(deadline, "deadline"))
    for field, value in (("--url", url), ("--tls-ca", tls_ca)):
        if socket is not None and value is not None:
            raise InvalidRequest.of(field, "is of no use with --socket")
    if seconds > DEADLINE_MAX_S:
        text = f"{deadline} is more than {DEADLINE_MAX_S} seconds"
        raise InvalidRequest.of("--deadline", text, code="out_of_range")
    where = url or os.environ.get("RAMET_URL") or URL
    asking = _connection(where, socket, tls_ca, seconds + PATIENCE_S)
    told = _asked(asking, f"/v1/drain?deadline={seconds:g}", _token(token_file), socket or where)
    if as_json:
        print(json.dumps(told))
    else:
        left = told.get("ended", 0)
        print(f"the server is empty: {left or 'no'} sandbox{'' if left == 1 else 'es'} ended at the deadline")
    return 0


def _token(path: str | None) -> str | None:
    if path is None:
        return os.environ.get("RAMET_TOKEN") or None
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidRequest.of("--token-file", f"{path}: {why}") from None
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise InvalidRequest.of("--token-file", f"{path} is not one line with a token")
    return token


def _connection(url: str, socket: str | None, tls_ca: str | None, timeout: float) -> HTTPConnection:
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1 or parts.path.strip("/"):
        raise InvalidRequest.of("--url", f"{url!r:.200} is not as http://HOST:PORT or https://HOST:PORT")
    if socket is not None:
        return _over_unix(socket, timeout)
    if parts.scheme == "http":
        if tls_ca is not None:
            raise InvalidRequest.of("--tls-ca", f"is for https, and the server is {url}")
        return HTTPConnection(parts.hostname, port, timeout=timeout)
    import ssl

    try:
        context = ssl.create_default_context(cafile=tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest.of("--tls-ca", f"{tls_ca}: {error.strerror or error}") from None
    return HTTPSConnection(parts.hostname, port, timeout=timeout, context=context)


def _over_unix(path: str, timeout: float) -> HTTPConnection:
    import socket
    from http.client import HTTPConnection

    class Unix(HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(timeout)
            self.sock.connect(path)

    return Unix("localhost", timeout=timeout)


def _asked(asking: HTTPConnection, path: str, token: str | None, where: str) -> dict[str, Any]:
    """The server's answer. Raises RametError."""
    from http.client import HTTPException

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        asking.request("POST", path, headers=headers)
        answer = asking.getresponse()
        told = json.loads(answer.read())
        if not isinstance(told, dict):
            raise ValueError("no object of JSON")  # noqa: TRY004  told as what is no JSON
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise RametError(
            "server_unreachable", f"{where}: {why}", hint="is a server of Ramet listening there?"
        ) from None
    finally:
        asking.close()
    if answer.status != 200:
        raise RametError.from_wire({"message": told.get("error", f"status {answer.status}"), **told})
    return told
