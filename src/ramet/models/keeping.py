"""What of a sandbox is kept before a limit ends it: `keep_on`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.errors import InvalidRequest
from ramet.models.limits import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

KEEPABLE = ("timeout", "oom")
KEEP_S = 8.0
"""How much later than it would a sandbox ends at most, for what is kept of it."""


def kept_name(sandbox: str) -> str:
    """The name of the snapshot that is kept of the sandbox with this id."""
    return f"kept-{sandbox}"


def check_keep_on(value: object, timeouts: Iterable[float | None]) -> tuple[str, ...]:
    """`value` as the ends that a snapshot is to be taken before, of sandboxes with these timeouts.

    Raises InvalidRequest naming ``keep_on``.
    """
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise InvalidRequest.of("keep_on", f"{shown(value)} is not a list: give ['timeout', 'oom']")
    for one in value:
        if one not in KEEPABLE:
            raise InvalidRequest.of("keep_on", f"{shown(one)} is no end to keep on: give 'timeout' or 'oom'")
    if "timeout" in value and None in timeouts:
        raise InvalidRequest.of("keep_on", "'timeout': this sandbox has no timeout to end by")
    return tuple(dict.fromkeys(value))
