"""Which servers are asked by calls that name none: those of `ramet.connect`, else of RAMET_URL."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ramet.client._remote import Remote

_connected: list[Remote] = []
_told: dict[tuple[str, str, str], tuple[Remote, ...]] = {}


def chosen() -> tuple[Remote, ...]:
    """The servers; none: the user's own daemon is asked. Raises InvalidRequest for what RAMET_URL says."""
    if _connected:
        return tuple(_connected)
    urls = os.environ.get("RAMET_URL")
    if not urls:
        return ()
    said = (urls, os.environ.get("RAMET_TOKEN", ""), os.environ.get("RAMET_CA", ""))
    if said not in _told:
        from ramet.client._remote import Remote

        _told[said] = tuple([Remote(url, said[1] or None, ca=said[2] or None) for url in urls.split()])
    return _told[said]


def choose(servers: Sequence[Remote]) -> None:
    """Have these asked; none: what the environment says."""
    _connected[:] = servers


def forgo(servers: Sequence[Remote]) -> None:
    """Have them not asked any more, if they are."""
    if _connected == [*servers]:
        choose(())
