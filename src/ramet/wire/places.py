"""The runtime directory: where client and daemon of one user meet, and what makes it safe.

It is ``$RAMET_RUNTIME_DIR``, else ``ramet`` in ``$XDG_RUNTIME_DIR`` when that is the user's own, else
``/tmp/ramet-UID``. It must be a real directory of this user with mode 0700: what another user can write could
make a client speak to somebody else's daemon, so anything else is refused, and never repaired.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

from ramet.errors import DaemonError

if TYPE_CHECKING:
    from collections.abc import Mapping

DAEMON_SOCKET = "daemon.sock"
CORE_SOCKET = "core.sock"
LOCK = "daemon.lock"
START_LOCK = "start.lock"
LOG = "daemon.log"

_UCRED = struct.Struct("3i")
# sun_path has 108 bytes with its NUL.
_PATH_MAX = 107


def runtime_path(environment: Mapping[str, str] = os.environ, uid: int | None = None) -> str:
    """The path of the runtime directory of `uid`, by default this process's. It need not exist."""
    uid = os.geteuid() if uid is None else uid
    if named := environment.get("RAMET_RUNTIME_DIR"):
        return os.path.abspath(named)
    shared = environment.get("XDG_RUNTIME_DIR")
    # After `su` the variable may name the runtime directory of the user before.
    if shared and os.path.isabs(shared):
        try:
            if os.stat(shared).st_uid == uid:
                return os.path.join(shared, "ramet")
        except OSError:
            pass
    return f"/tmp/ramet-{uid}"  # noqa: S108


def make_runtime(path: str) -> int:
    """As `open_runtime`, but makes the directory when it does not exist."""
    while True:
        try:
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)  # whatever the umask
        except FileExistsError:
            pass
        except OSError as error:
            raise _refused(path, f"cannot be made: {error.strerror}") from None
        descriptor = open_runtime(path)
        # A daemon that ended may have removed it in between.
        if descriptor is not None:
            return descriptor


def open_runtime(path: str) -> int | None:
    """A descriptor of the runtime directory, checked; None when it does not exist.

    Raises:
        DaemonError: code ``runtime_dir``: it is a link, no directory, of another user, or open to others.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(path, f"is not a directory that can be used: {error.strerror}") from None
    fault = fault_of(os.fstat(descriptor), os.geteuid())
    if fault:
        os.close(descriptor)
        raise _refused(path, fault)
    return descriptor


def fault_of(status: os.stat_result, uid: int) -> str | None:
    """Why the directory cannot be the runtime directory of `uid`."""
    if not stat.S_ISDIR(status.st_mode):
        return "is no directory, or a link to one"
    if status.st_uid != uid:
        return f"belongs to uid {status.st_uid}"
    if status.st_mode & 0o777 != 0o700:
        return f"has mode {stat.S_IMODE(status.st_mode):04o} instead of 0700"
    return None


def is_named(descriptor: int, name: str, directory: int) -> bool:
    """Whether the open file still has its name: a holder before us may have removed it."""
    try:
        named = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _refused(path: str, fault: str) -> DaemonError:
    return DaemonError(
        "runtime_dir",
        f"the runtime directory {path} {fault}",
        hint="chmod 700 it if it is yours, or have RAMET_RUNTIME_DIR name a directory of your own, mode 0700",
    )


def socket_path(directory: int, path: str, name: str) -> str:
    """An address for the socket `name`: through the directory's descriptor where its path is too long."""
    plain = f"{path}/{name}"
    return plain if len(os.fsencode(plain)) <= _PATH_MAX else f"/proc/self/fd/{directory}/{name}"


def peer(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end, as the kernel noted them at connect or listen."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def connect(path: str, name: str = DAEMON_SOCKET) -> socket.socket | None:
    """A connection to the socket `name` in the runtime directory `path`; None when nobody listens there.

    Raises:
        DaemonError: code ``runtime_dir``, or ``peer``: another user listens there.
    """
    directory = open_runtime(path)
    if directory is None:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.connect(socket_path(directory, path, name))
        _, uid = peer(sock)
        if uid != os.geteuid():
            raise DaemonError("peer", f"{path}/{name} is served by uid {uid}")
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock
