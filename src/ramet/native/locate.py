"""Finds ramet-core, the C program. `PATH` is never searched: what stands there is somebody else's.

The order: `RAMET_CORE`, for tests of another build; the copy at a fixed system path, if it is the packaged
program byte for byte; the packaged program. The system copy comes first because AppArmor, where it restricts
user namespaces, allows them to a program by its path, and a profile may name only a path that nobody but root
can write, never one in somebody's home.
"""

import filecmp
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ramet.errors import DaemonStartError

__all__ = ["PACKAGED_PROGRAM", "SYSTEM_PROGRAM", "build_of", "find_program", "system_copy_fault"]

OVERRIDE = "RAMET_CORE"
PACKAGED_PROGRAM = Path(__file__).resolve().parent.parent / "_native" / "ramet-core"
SYSTEM_PROGRAM = Path("/usr/local/libexec/ramet/ramet-core")


def find_program(
    environment: Mapping[str, str] = os.environ,
    *,
    packaged: Path = PACKAGED_PROGRAM,
    system: Path = SYSTEM_PROGRAM,
) -> Path:
    """The path of the core to start.

    Raises:
        DaemonStartError: code `core_missing`, when there is none or `RAMET_CORE` does not name a program.
    """
    if named := environment.get(OVERRIDE):
        if not os.path.isabs(named) or not is_program(Path(named)):
            raise DaemonStartError(
                "core_missing",
                f"{OVERRIDE}={named} is not the absolute path of a program",
                hint=f"unset {OVERRIDE}, or name a built ramet-core; a daemon keeps what it was started with "
                "until ramet daemon stop",
            )
        return Path(named)
    if system_copy_fault(packaged=packaged, system=system) is None:
        return system
    if is_program(packaged):
        return packaged
    raise DaemonStartError(
        "core_missing",
        f"{packaged} is missing: this installation has no ramet-core",
        hint="from a clone: make build; else: pip install --force-reinstall ramet",
    )


def system_copy_fault(*, packaged: Path = PACKAGED_PROGRAM, system: Path = SYSTEM_PROGRAM) -> str | None:
    """Why the copy at the system path is not used; None if it is."""
    try:
        status = system.stat()
    except OSError:
        return f"{system} does not exist"
    if not is_program(system):
        return f"{system} is not a program"
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{system} can be written by others than root"
    if is_program(packaged) and not filecmp.cmp(packaged, system, shallow=False):
        return f"{system} is of another version than {packaged}"
    return None


def build_of(path: Path) -> str:
    """What tells this program from others. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def is_program(path: Path) -> bool:
    """Whether `path` is a regular file that the caller may execute."""
    return path.is_file() and os.access(path, os.X_OK)
