"""Facts without which a number means nothing: the machine, its load, the versions of what was measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
QUIET_SHARE = 0.1
GOVERNORS = (
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "/sys/devices/system/cpu/cpuidle/current_governor",
)


def facts() -> dict[str, Any]:
    """The machine. What it does not tell is null."""
    info = _read("/proc/cpuinfo")
    return {
        "cpu": _match(r"^model name\s*: (.+)$", info),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "hypervisor": bool(re.search(r"^flags\s*:.*\bhypervisor\b", info, re.MULTILINE)),
        "frequency_governor": _read(GOVERNORS[0]).strip() or None,
        "idle_governor": _read(GOVERNORS[1]).strip() or None,
        "memory_mib": _kib("MemTotal") // 1024,
        "kernel": platform.release(),
        "system": _match(r'^PRETTY_NAME="?([^"\n]+)', _read("/etc/os-release")),
        "uid": os.geteuid(),
    }


def versions(bubblewrap: str | None) -> dict[str, Any]:
    """What was measured with what. `bubblewrap` is its program."""
    from ramet._version import __version__

    dirty = bool(_output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"))
    return {
        "ramet": __version__,
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "uncommitted_changes": dirty,
        "python": platform.python_version(),
        "bubblewrap": _output(bubblewrap, "--version") if bubblewrap else None,
    }


def load() -> list[float]:
    """The load averages of 1, 5 and 15 minutes."""
    return [round(number, 2) for number in os.getloadavg()]


def busy_share(seconds: float = 0.5) -> float:
    """The share of all processor time, 0 to 1, that is used while this process sleeps for so long."""
    before = _ticks()
    time.sleep(seconds)
    total, idle = (after - earlier for after, earlier in zip(_ticks(), before, strict=True))
    return 1 - idle / total if total else 0.0


def wait_for_quiet(patience_s: float) -> float:
    """Wait at most so long until nothing else runs here; the share of the processors that others use then."""
    end = time.monotonic() + patience_s
    while True:
        # Three looks: programs that take turns leave gaps.
        share = max(busy_share() for _ in range(3))
        if share <= QUIET_SHARE or time.monotonic() >= end:
            return share


def available_kib() -> int:
    """What the kernel could give to programs without swapping: free pages, and caches that it can drop."""
    return _kib("MemAvailable")


def _ticks() -> tuple[int, int]:
    """All clock ticks of all processors since the machine started, and the idle ones of them."""
    numbers = [int(word) for word in _read("/proc/stat").split("\n", 1)[0].split()[1:9]]
    return sum(numbers), numbers[3] + numbers[4]


def _kib(name: str) -> int:
    return int(_match(rf"^{name}:\s+(\d+) kB", _read("/proc/meminfo")) or 0)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _match(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else None


def _output(*words: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
