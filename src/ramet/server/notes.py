"""What a tenant has in files: written as a whole beside the old one, and put in its place."""

from __future__ import annotations

import json
import os
from typing import Any

from ramet.errors import RametError


def read(path: str, absent: Any) -> Any:
    """What is noted; `absent` where nothing is. Raises RametError when it is not what was written."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return absent
    except (OSError, ValueError) as error:
        raise unusable(f"{os.path.basename(path)} cannot be read: {error}") from None


def write(path: str, data: Any) -> None:
    """Have it on disk. Raises RametError; then nothing has changed."""
    beside = f"{path}.new"
    try:
        with open(beside, "w", encoding="utf-8", opener=_private) as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)
    except OSError as error:
        raise unusable(f"{os.path.basename(path)} cannot be written: {error.strerror}") from None


def unusable(text: str) -> RametError:
    """The error for a file of the server's that is not as it has to be."""
    return RametError(
        "notes_unusable", text, hint="the server's directory needs room, and nobody else's hand"
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
