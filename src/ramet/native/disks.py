"""The disks of this machine, for the limit on what is read from them."""

from __future__ import annotations

import contextlib
from pathlib import Path

MOST = 64
"""Core takes no more."""


def disks(root: str = "") -> tuple[str, ...]:
    """``MAJOR:MINOR`` of each block device that has a size, and is neither memory nor another disk's file.

    What stands on others (RAID, encryption) counts by itself, as its own requests are what waits. `root` is
    for tests.
    """
    found = []
    for device in sorted(Path(f"{root}/sys/block").glob("*")):
        if device.name.startswith(("loop", "ram", "zram")):
            continue
        with contextlib.suppress(OSError, ValueError):
            if int((device / "size").read_text()):
                found.append((device / "dev").read_text().strip())
    return tuple(found[:MOST])
