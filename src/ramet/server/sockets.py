"""The sockets that a server listens at."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

from ramet.errors import InvalidRequest
from ramet.server.settings import Settings

BACKLOG = 1024


@contextlib.contextmanager
def listeners(settings: Settings) -> Iterator[list[socket.socket]]:
    """What to listen at. Raises InvalidRequest for an address that cannot be had."""
    with contextlib.ExitStack() as using:
        found: list[socket.socket] = []
        if settings.host is not None:
            try:
                family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
                address = (settings.host, settings.port)
                listener = socket.create_server(address, family=family, backlog=BACKLOG)
            except OSError as error:
                text = f"{settings.host}:{settings.port}: {error.strerror or error}"
                raise InvalidRequest.of("host", text) from None
            found.append(using.enter_context(listener))
        if settings.socket is not None:
            found.append(using.enter_context(unix_listener(settings.socket, "socket")))
        yield found


@contextlib.contextmanager
def unix_listener(path: str, option: str) -> Iterator[socket.socket]:
    """A socket with the mode 0600, gone afterwards. Raises InvalidRequest naming `option`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        _remove_stale(path, option)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        except OSError as error:
            raise InvalidRequest.of(option, f"{path}: {error.strerror or error}") from None
        finally:
            os.umask(before)
        made = os.lstat(path)
        try:
            listener.listen(BACKLOG)
            yield listener
        finally:
            with contextlib.suppress(OSError):
                now = os.lstat(path)
                if (now.st_dev, now.st_ino) == (made.st_dev, made.st_ino):
                    os.unlink(path)


def _remove_stale(path: str, option: str) -> None:
    """Take away what a server left that was killed; nothing else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise InvalidRequest.of(option, f"{path} is there, and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    except OSError as error:
        raise InvalidRequest.of(option, f"{path}: {error.strerror or error}") from None
    raise InvalidRequest.of(option, f"another server listens at {path}")
