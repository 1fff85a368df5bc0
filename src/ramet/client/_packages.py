"""What a template takes from the host: packages, and files, as one tar stream."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from typing import TYPE_CHECKING

from ramet.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SITE = "site-packages"
_CACHE = "__pycache__"
_SKIPPED = (_CACHE, "pip", "ramet")


def download(requirements: Sequence[str], log: Callable[[str], object]) -> tempfile.TemporaryDirectory[str]:
    """Wheels of `requirements`, unpacked into a directory of the caller's. Blocks.

    Wheels alone: nothing of a package runs on the host. Raises TemplateError with pip's words.
    """
    directory = tempfile.TemporaryDirectory(prefix="ramet-packages-")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    words += ["--only-binary", ":all:", "--no-compile", "--target", directory.name, "--", *requirements]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    log(done.stdout + done.stderr)
    if done.returncode:
        directory.cleanup()
        text = f"pip could not install {', '.join(requirements)}:\n{done.stderr}"
        raise TemplateError("pip_failed", text, field="pip", log=done.stdout + done.stderr)
    return directory


def own_packages() -> str:
    """Where the packages of this program's environment are."""
    return sysconfig.get_path("purelib")


def fingerprint(directory: str) -> str:
    """Of the names, sizes and times of all that `pack` would take of `directory`. Blocks."""
    found = hashlib.sha256(directory.encode(errors="surrogateescape"))
    pending = [f"{directory}/{name}" for name in reversed(_names(directory))]
    while pending:
        path = pending.pop()
        status = os.lstat(path)
        told = (path, status.st_mode, status.st_size, status.st_mtime_ns)
        if stat.S_ISDIR(status.st_mode):
            # Its own time changes with caches, which are not taken.
            told = (path, status.st_mode, 0, 0)
            names = sorted(os.listdir(path), reverse=True)
            pending += [f"{path}/{name}" for name in names if name != _CACHE]
        found.update(repr(told).encode(errors="surrogateescape"))
    return found.hexdigest()


def _names(directory: str) -> list[str]:
    return [name for name in sorted(os.listdir(directory)) if name.split("-")[0] not in _SKIPPED]


def pack(directories: Sequence[str], files: Mapping[str, bytes], home: str) -> bytes:
    """A tar of the content of `directories`, below the home's packages, and of `files` at their paths."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for directory in directories:
            for name in _names(directory):
                tar.add(f"{directory}/{name}", f"{home.lstrip('/')}/{SITE}/{name}", filter=_plain)
        for path, data in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """As the sandbox's own: without owners of the host, and without caches of byte code."""
    # A file of two names is kept once, and linked.
    kept = member.isfile() or member.isdir() or member.issym() or member.islnk()
    if _CACHE in member.name or not kept:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
