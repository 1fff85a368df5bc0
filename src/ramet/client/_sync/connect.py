# Generated from _async/connect.py by scripts/unasync.py. Do not edit.
"""Servers in place of the user's daemon."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ramet.client._chosen import choose
from ramet.client._remote import Remote
from ramet.client._sync.api import of_server, spread
from ramet.client._sync.client import Client
from ramet.errors import InvalidRequest


def connect(
    url: str | Sequence[str] | None = None,
    token: str | None = None,
    *,
    ca: str | None = None,
    select: bool = True,
) -> Client:
    """A client of a server, which every call that names no client asks from now on.

    Nothing is connected before the first request. What is made with it ends with this process, or when the
    server has heard nothing of it for a minute, unless it is detached. Closing the client, or leaving it as a
    context, ends the connection, and calls ask the user's own daemon again.

    Args:
        url: ``https://HOST:PORT``, ``http://…`` or ``unix:///PATH``; by default RAMET_URL. Several: new
            sandboxes go where there is most room, and everything about one goes where that is.
        token: by default RAMET_TOKEN.
        ca: a file of certificates to trust instead of the system's; by default RAMET_CA.
        select: false: only calls with ``client=`` ask it.

    Raises InvalidRequest: an argument is wrong; `field` names it.
    """
    given = os.environ.get("RAMET_URL", "").split() if url is None else url
    urls = [given] if isinstance(given, str) else list(given)
    if not urls:
        raise InvalidRequest.of("url", "is neither given nor in RAMET_URL")
    if token is None:
        token = os.environ.get("RAMET_TOKEN") or None
    if ca is None:
        ca = os.environ.get("RAMET_CA") or None
    servers = [Remote(one, token, ca=ca) for one in urls]
    if select:
        choose(servers)
    return of_server(servers[0]) if len(servers) == 1 else spread(servers)
