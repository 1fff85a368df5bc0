"""What a template takes from the host: packages, and files, as one tar stream."""

from __future__ import annotations

import io
import os
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
_SKIPPED = ("__pycache__", "pip", "ramet")


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
        raise TemplateError("pip_failed", f"pip could not install {', '.join(requirements)}:\n{done.stderr}")
    return directory


def own_packages() -> str:
    """Where the packages of this program's environment are."""
    return sysconfig.get_path("purelib")


def pack(directories: Sequence[str], files: Mapping[str, bytes], home: str) -> bytes:
    """A tar of the content of `directories`, below the home's packages, and of `files` at their paths."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for directory in directories:
            for name in sorted(os.listdir(directory)):
                if name.split("-")[0] not in _SKIPPED:
                    tar.add(f"{directory}/{name}", f"{home.lstrip('/')}/{SITE}/{name}", filter=_plain)
        for path, data in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """As the sandbox's own: without owners of the host, and without caches of byte code."""
    if "__pycache__" in member.name or not (member.isfile() or member.isdir() or member.issym()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
