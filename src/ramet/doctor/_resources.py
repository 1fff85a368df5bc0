"""Room: memory for sandboxes, whose writable layers are in RAM, and disk for what is kept."""

import os

from ramet.doctor._host import Host
from ramet.doctor._model import Check, Status, warned

__all__ = ["check_disk", "check_memory"]

_MIB = 1 << 20
_MEMORY = (128 * _MIB, 1024 * _MIB)
_DISK = (64 * _MIB, 1024 * _MIB)


def check_memory(host: Host) -> Check:
    name = "memory"
    for line in (host.text("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            free = int(value.split()[0]) * 1024
            return Check(name, _judge(free, _MEMORY), f"{_size(free)} available{_wish(free, _MEMORY)}")
    return warned(name, "/proc/meminfo does not say what is available")


def check_disk(host: Host) -> Check:
    name = "disk"
    home = host.environment.get("HOME", "/")
    data = host.environment.get("XDG_DATA_HOME") or os.path.join(home, ".local/share")
    found = host.free_bytes(os.path.join(data, "ramet"))
    if found is None:
        return warned(name, f"{data} cannot be looked at")
    where, free = found
    return Check(name, _judge(free, _DISK), f"{_size(free)} free at {where}{_wish(free, _DISK)}")


def _judge(free: int, bounds: tuple[int, int]) -> Status:
    return "fail" if free < bounds[0] else "warn" if free < bounds[1] else "pass"


def _wish(free: int, bounds: tuple[int, int]) -> str:
    return f"; {_size(bounds[1])} or more are advised" if free < bounds[1] else ""


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / _MIB:.0f} MiB"
