"""Which server a command asks: forkd's options `--daemon-url` and `--daemon-token`, else RAMET_URL."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

import typer
import typer.main

from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ramet.client import Client

__all__ = ["asked", "known", "options"]


def _options(
    daemon_url: str | None = typer.Option(
        None,
        "--daemon-url",
        metavar="URL",
        help="The server to ask. Default: $RAMET_URL, else this machine's daemon.",
    ),
    daemon_token: str | None = typer.Option(
        None, "--daemon-token", metavar="TOKEN", help="The token for it. Default: $RAMET_TOKEN."
    ),
) -> None:
    """As typer has them: its own classes are made in its own way."""


@functools.cache
def options() -> tuple[Any, ...]:
    """The two options, for the parser."""
    app = typer.Typer(add_completion=False)
    app.command()(_options)
    return tuple(typer.main.get_command(app).params)


@contextlib.contextmanager
def asked(params: Mapping[str, Any]) -> Iterator[None]:
    """Calls that name no client ask the server of these options. Raises InvalidRequest."""
    url, token = params.get("daemon_url"), params.get("daemon_token")
    if url is None and token is None:
        yield
        return
    if url is None and not os.environ.get("RAMET_URL"):
        raise InvalidRequest.of(
            "daemon_token", "is for a server, and neither --daemon-url nor RAMET_URL names one"
        )
    from ramet.client import connect

    with connect(url if url is None else url.split() or "", token):
        yield


def known() -> Client:
    """A client of the servers that were chosen; else of this machine's daemon, which it does not start."""
    from ramet.client import Client
    from ramet.client._chosen import chosen
    from ramet.client._sync.api import current

    return current() if chosen() else Client(start=False)
