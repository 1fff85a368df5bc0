"""Which servers are asked by calls that name none: those of `ramet.connect`, else of RAMET_URL."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ramet.client._remote import Remote

_connected: tuple[Remote, ...] = ()
_told: tuple[tuple[str, str, str], tuple[Remote, ...]] | None = None


def chosen() -> tuple[Remote, ...]:
    """The servers; none: the user's own daemon is asked. Raises InvalidRequest for what RAMET_URL says."""
    global _told
    if _connected:
        return _connected
    urls = os.environ.get("RAMET_URL")
    if not urls:
        return ()
    said = (urls, os.environ.get("RAMET_TOKEN", ""), os.environ.get("RAMET_CA", ""))
    if _told is None or _told[0] != said:
        from ramet.client._remote import Remote

        servers = tuple([Remote(url, said[1] or None, ca=said[2] or None) for url in urls.split()])
        _told = said, servers
    return _told[1]


def choose(servers: Sequence[Remote]) -> None:
    """Have these asked; none: what the environment says."""
    global _connected
    _connected = tuple(servers)


def forgo(servers: Sequence[Remote]) -> None:
    """Have them not asked any more, if they are."""
    if _connected == tuple(servers):
        choose(())
