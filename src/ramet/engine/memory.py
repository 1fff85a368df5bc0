"""How much memory this machine has left."""

from __future__ import annotations

import contextlib


def available() -> tuple[int, int]:
    """Bytes that can be had without swapping, as the kernel estimates them, and all there are; 0, 0 unknown.

    proc_meminfo(5), ``MemAvailable`` and ``MemTotal``.
    """
    found = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as table:
        for line in table:
            name, _, rest = line.partition(":")
            if name in {"MemTotal", "MemAvailable"}:
                found[name] = int(rest.split()[0]) * 1024
    return (found["MemAvailable"], found["MemTotal"]) if len(found) == 2 else (0, 0)
