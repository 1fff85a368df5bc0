"""A list that is asked for again and again: who has one is told of what has changed since.

To tell of a thousand sandboxes takes some 50 ms, of which a list that is asked for a second later has no
need.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from ramet.models.sandboxes import SandboxInfo, SandboxList


class Listing:
    """What was told of each that lives, and in which list first."""

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(8)
        """Another daemon counts anew."""
        self._serial = 0
        self._rows: dict[str, tuple[SandboxInfo, int]] = {}

    def since(self, infos: Iterable[SandboxInfo], mark: str) -> SandboxList:
        """Those of `infos` that are not as in the list of `mark`; all where there was no such list.

        What is told of a sandbox is the same object for as long as nothing has changed.
        """
        self._serial += 1
        before, self._rows = self._rows, {}
        for info in infos:
            row = before.get(info.id)
            self._rows[info.id] = (info, self._serial) if row is None or row[0] is not info else row
        epoch, _, number = mark.partition("-")
        last = int(number) if epoch == self._epoch and number.isdecimal() else 0
        changed = [info for info, serial in self._rows.values() if serial > last]
        return SandboxList(tuple(changed), tuple(self._rows), f"{self._epoch}-{self._serial}")
