"""What an image says of itself, and the hash that says what is in it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Self

from ramet.store.blocks import FORMAT_NAME, PAGE, Malformed, digest
from ramet.store.machine import Machine
from ramet.store.models import ParentRef
from ramet.store.pages import PageHashes

LAYERS_MAX = 60
"""As core's roots."""
_HASH = re.compile(r"[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """A writable layer: `inherited` is its number among the parent's, None when it is in this image.

    `fingerprint` is a hash of its files but for their contents, `hash` that of its stream.
    """

    fingerprint: str
    hash: str
    inherited: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """One image. Times are in ns since the epoch, sizes in bytes. `base` is the hash of the root's recipe."""

    name: str
    kind: str
    created_ns: int
    machine: Machine
    root: str
    filter_hash: str
    page_bytes: int
    base: str
    inherits_base: bool
    layers: tuple[Layer, ...]
    metadata: Mapping[str, Any]
    parent: ParentRef | None = None
    content: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "page": PAGE,
            "machine": self.machine.to_json(),
            "layers": [[layer.fingerprint, layer.hash, layer.inherited] for layer in self.layers],
            "parent": self.parent,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises Malformed."""
        if data.keys() != _KEYS:
            raise Malformed(f"it has other parts than it should: {', '.join(sorted(data.keys() ^ _KEYS))}")
        for name, kind in _PLAIN.items():
            if type(data[name]) is not kind or (kind is int and not 0 <= data[name] < 1 << 62):
                raise Malformed(f"{name} is of no value")
        if data["page"] != PAGE:
            raise Malformed("pages are of another size")
        for name in ("base", "content"):
            _hash(data[name])
        return cls(
            **{name: data[name] for name in _PLAIN},
            machine=Machine.from_json(data["machine"]),
            layers=_layers(data["layers"]),
            parent=_parent(data["parent"]),
        )

    def content_of(self, description: str, files: str, pages: PageHashes) -> str:
        """The hash of all that a load gives back, which does not depend on how it is stored.

        The first two are hashes of sections, `pages` the hashes of the pages.
        """
        parts = [
            FORMAT_NAME,
            self.page_bytes,
            pages.digest().hex(),
            description,
            files,
            self.base,
            [layer.hash for layer in self.layers],
            self.machine.to_json(),
            self.root,
            self.filter_hash,
        ]
        return digest(json.dumps(parts, separators=(",", ":"), sort_keys=True).encode()).hex()


_PLAIN: dict[str, type] = {
    "name": str,
    "kind": str,
    "created_ns": int,
    "root": str,
    "filter_hash": str,
    "page_bytes": int,
    "base": str,
    "inherits_base": bool,
    "metadata": dict,
    "content": str,
}
_KEYS = {*_PLAIN, "page", "machine", "layers", "parent", "sections"}


def _hash(text: object) -> str:
    if not isinstance(text, str) or not _HASH.fullmatch(text):
        raise Malformed("a hash is none")
    return text


def _layers(rows: object) -> tuple[Layer, ...]:
    if not isinstance(rows, list) or len(rows) > LAYERS_MAX:
        raise Malformed("the writable layers are not described")
    layers = []
    for row in rows:
        match row:
            case [fingerprint, stream, None | int() as inherited] if type(inherited) is not bool:
                layers.append(Layer(_hash(fingerprint), _hash(stream), inherited))
            case _:
                raise Malformed("a writable layer is not described")
    return tuple(layers)


def _parent(data: object) -> ParentRef | None:
    match data:
        case None:
            return None
        case [str(name), content]:
            return ParentRef(name, _hash(content))
        case _:
            raise Malformed("the parent is not described")
