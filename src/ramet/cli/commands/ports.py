"""`ramet sandbox forward`: servers in sandboxes that stay."""

from __future__ import annotations

import json
import signal
import threading

import typer

from ramet.errors import InvalidRequest


def forward(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name."),
    port: str | None = typer.Argument(None, metavar="PORT", help="The port in the sandbox."),
    *,
    local: str = typer.Option(
        "0", "--local", metavar="PORT", help="The port here. Default: any that is free."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Listen on a port of this machine and pass connections on into a sandbox, until interrupted."""
    if sandbox is None:
        raise InvalidRequest.of("sandbox", "is missing: which one")
    if port is None:
        raise InvalidRequest.of("port", "is missing: which one of the sandbox")
    from ramet.client import Commands, Ports

    with Ports(Commands(sandbox)).forward(_number(port, "port"), local=_number(local, "local")) as passing:
        host, number = passing.address
        print(json.dumps({"host": host, "port": number}) if as_json else f"{host}:{number}", flush=True)
        _until_told()
    return 0


def _number(text: str, field: str) -> int:
    if not text.isdecimal() or len(text) > 5:
        raise InvalidRequest.of(field, f"{text!r:.40} is no port")
    return int(text)


def _until_told() -> None:
    """Return at SIGINT, SIGTERM or SIGHUP, so that what is open is closed."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: told.set())
    told.wait()
