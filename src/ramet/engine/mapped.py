"""The files of the host that the processes of a snapshot have mapped, as core's description tells."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator, Sequence

from ramet.engine.root import RootSpec
from ramet.native.frames import FrameError, decode

# Twins of core/src/image.h: enum image_tag, struct image_mapping, enum image_backing.
TAG_MAPPING = 5
MAPPING = struct.Struct("<QQQIIII")
BACKING_FILE, BACKING_SHARED_FILE = 1, 3


def mapped_paths(description: bytes) -> list[str]:
    """Paths inside the sandbox, each once, sorted. Raises FrameError for what is no description."""
    found = set()
    for tag, value in decode(description):
        if tag != TAG_MAPPING:
            continue
        if len(value) < MAPPING.size:
            raise FrameError("a mapping is cut off")
        if MAPPING.unpack_from(value)[4] in {BACKING_FILE, BACKING_SHARED_FILE}:
            found.add(os.fsdecode(value[MAPPING.size :]))
    return sorted(found)


def host_files(paths: Sequence[str], spec: RootSpec, uppers: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """(path inside, path on the host) of those files that are the host's.

    Those of writable layers are part of the snapshot, those of the skeleton part of the recipe.
    """
    found = []
    for path in paths:
        bind = next((one for one in _innermost(spec) if is_below(path, one[0])), None)
        if bind is not None:
            found.append((path, bind[1] + path[len(bind[0]) :]))
        elif not any(_is_file(f"upper{path}", upper) for upper in uppers):
            found += [(path, source) for source in _in_layers(path, spec)]
    return tuple(found)


def _innermost(spec: RootSpec) -> Iterator[tuple[str, str]]:
    """(target, source) of binds, the most deeply nested first."""
    yield from sorted([(bind.target, str(bind.source)) for bind in spec.binds], key=lambda one: -len(one[0]))


def is_below(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _in_layers(path: str, spec: RootSpec) -> list[str]:
    names = (f"{layer}{path}" for layer in spec.layers)
    return [name for name in names if _is_file(name, None)][:1]


def _is_file(name: str, directory: int | None) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False
