"""Roots as bytes, to be made again after a reboot exactly as they were, with the /etc of their day."""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import Any

from ramet.engine.root import Bind, Dir, Entry, File, RootSpec, Symlink

VERSION = 1


def encode_recipe(spec: RootSpec) -> bytes:
    """The recipe of `spec`. One recipe has one encoding."""
    data = {
        "version": VERSION,
        "entries": [_encoded(entry) for entry in spec.entries],
        "binds": [[str(bind.source), bind.target, bind.read_only, bind.recursive] for bind in spec.binds],
        "layers": [str(layer) for layer in spec.layers],
        "writable": spec.writable,
        "identity": spec.identity,
        "search_path": spec.search_path,
        "home": spec.home,
        "python": spec.python,
        "environment": spec.environment,
        "notes": spec.notes,
    }
    return json.dumps(data, separators=(",", ":")).encode()


def decode_recipe(data: bytes) -> RootSpec:
    """The root that `encode_recipe` was given. Raises ValueError."""
    try:
        found: dict[str, Any] = json.loads(data)
        if found["version"] != VERSION:
            raise ValueError(f"the recipe has version {found['version']}, this version reads {VERSION}")
        return RootSpec(
            entries=tuple([_decoded(row) for row in found["entries"]]),
            binds=tuple([Bind(Path(row[0]), str(row[1]), *map(bool, row[2:4])) for row in found["binds"]]),
            layers=tuple([Path(layer) for layer in found["layers"]]),
            writable=bool(found["writable"]),
            identity=str(found["identity"]),
            search_path=tuple([str(path) for path in found["search_path"]]),
            home=str(found["home"]),
            python=found["python"],
            environment=tuple([(str(name), str(value)) for name, value in found["environment"]]),
            notes=tuple([str(note) for note in found["notes"]]),
        )
    except (KeyError, TypeError, IndexError, RecursionError, binascii.Error) as error:
        raise ValueError(f"the recipe is malformed: {error!r}") from None


def _encoded(entry: Entry) -> list[Any]:
    match entry:
        case Dir():
            return ["d", entry.path, entry.mode]
        case Symlink():
            return ["l", entry.path, entry.target]
        case File():
            return ["f", entry.path, entry.mode, base64.b64encode(entry.content).decode()]


def _decoded(row: list[Any]) -> Entry:
    match row:
        case ["d", str(path), int(mode)]:
            return Dir(path, mode)
        case ["l", str(path), str(target)]:
            return Symlink(path, target)
        case ["f", str(path), int(mode), str(content)]:
            return File(path, mode, base64.b64decode(content, validate=True))
        case _:
            raise ValueError("an entry of the recipe is of no known kind")
