"""Writing an image: of what core exported, or of an image that is to stand by itself."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ramet.errors import InvalidRequest
from ramet.store import machine
from ramet.store.blocks import PAGE, pread_exactly
from ramet.store.container import SectionWriter, Stream, Writer, content_hash
from ramet.store.files import MappedFile
from ramet.store.header import LAYERS_MAX, Header, Layer
from ramet.store.ids import IdMap
from ramet.store.image import DESCRIPTION_MAX, Image
from ramet.store.models import Base, Exported
from ramet.store.packer import Packer
from ramet.store.pages import PageHashes, PageWriter


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A snapshot that is to be written. `parent` is open, and stays the caller's."""

    name: str
    kind: str
    exported: Exported
    base: Base
    files: tuple[MappedFile, ...]
    filter_hash: str
    parent: Image | None
    ids: IdMap
    metadata: Mapping[str, Any]


def write_image(fd: int, draft: Draft) -> Header:
    """Write `draft` into the empty file `fd`.

    Raises OSError, TreeError where a file of a layer cannot be read, InvalidRequest.
    """
    writer = Writer(fd)
    exported, parent = draft.exported, draft.parent
    if len(exported.uppers) > LAYERS_MAX:
        raise InvalidRequest.of("uppers", f"are {len(exported.uppers)}; an image holds {LAYERS_MAX}")
    # First, because the kernel can write it to the disk while the rest is being worked out.
    size = os.fstat(exported.pages).st_size
    pages = writer.section("pages", block=PAGE, align=PAGE)
    index = PageWriter(pages, parent.hashes if parent else None).write(exported.pages, size)
    pages.close()
    writer.add("extents", index.encode())
    description = writer.add("description", _whole(exported.description))
    files = writer.add("files", json.dumps({"files": [file.to_json() for file in draft.files]}).encode())
    base, inherits_base = _write_base(writer, draft.base.recipe, parent)
    header = Header(
        name=draft.name,
        kind=draft.kind,
        created_ns=time.time_ns(),
        machine=machine.here(),
        root=draft.base.identity,
        filter_hash=draft.filter_hash,
        page_bytes=size,
        base=base,
        inherits_base=inherits_base,
        layers=tuple(_write_layers(writer, exported.uppers, draft)),
        metadata=draft.metadata,
        parent=None if parent is None else parent.ref,
    )
    hashes = index.hashes(pages.table, parent.hashes if parent else PageHashes())
    return _finish(writer, header, description.hash, files.hash, hashes)


def _finish(writer: Writer, header: Header, description: str, files: str, pages: PageHashes) -> Header:
    header = dataclasses.replace(header, content=header.content_of(description, files, pages))
    writer.finish(header.to_json())
    return header


def _whole(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    if size > DESCRIPTION_MAX:
        raise InvalidRequest.of("description", f"has {size} bytes; core reads {DESCRIPTION_MAX}")
    return pread_exactly(fd, size, 0)


def _write_base(writer: Writer, recipe: bytes, parent: Image | None) -> tuple[str, bool]:
    """The recipe's hash, and whether the parent has it."""
    if parent is not None and parent.header.base == content_hash(recipe):
        return parent.header.base, True
    return writer.add("base", recipe).hash, False


def _write_layers(writer: Writer, uppers: Sequence[int], draft: Draft) -> list[Layer]:
    """Each writable layer, by itself or as one of the parent's.

    What was forked has its parent's layers below its own, unless core has merged them. So those are compared
    that lie equally far from the bottom, upwards until two differ, by their files' names, sizes, owners and
    times. Contents need no comparison there: layers below the topmost cannot be written. Elsewhere they
    would, since a guest can give two files one time; so no other layers are looked at. One that core has
    merged has a name in it that no other has.
    """
    fingerprints = _inherited(uppers, draft)
    known = draft.parent.header.layers if draft.parent else ()
    layers = []
    for number, upper in enumerate(uppers):
        if number in fingerprints:
            below = number - (len(uppers) - len(known))
            layers.append(Layer(fingerprints[number], known[below].hash, below))
            continue
        section = writer.section(f"layer-{number}")
        fingerprint = Packer(draft.ids, section.write).pack(upper)
        layers.append(Layer(fingerprint, section.close().hash))
    return layers


def _inherited(uppers: Sequence[int], draft: Draft) -> dict[int, str]:
    """The fingerprints of those that are the parent's, by their number here."""
    known = draft.parent.header.layers if draft.parent else ()
    newer = len(uppers) - len(known)
    found: dict[int, str] = {}
    for number in range(len(uppers) - 1, newer - 1, -1) if newer > 0 else ():
        fingerprint = Packer(draft.ids, None).pack(uppers[number])
        if fingerprint != known[number - newer].fingerprint:
            break
        found[number] = fingerprint
    return found


# --- without a parent -------------------------------------------------------------------------------------


def write_flat(fd: int, image: Image, name: str | None = None) -> Header:
    """Write `image` into the empty file `fd` as one that builds upon nothing, with another `name` if given.

    Raises OSError, SnapshotDamaged.
    """
    writer = Writer(fd)
    pages = writer.section("pages", block=PAGE, align=PAGE)
    index = image.copy_pages(pages)
    pages.close()
    writer.add("extents", index.encode())
    description = writer.add("description", image.description())
    files = writer.add("files", image.container.read("files"))
    writer.add("base", image.base().recipe)
    layers = []
    for number, layer in enumerate(image.header.layers):
        _copy_layer(writer.section(f"layer-{number}"), *image.layer(number))
        layers.append(dataclasses.replace(layer, inherited=None))
    header = dataclasses.replace(
        image.header,
        name=name or image.header.name,
        inherits_base=False,
        layers=tuple(layers),
        parent=None,
    )
    return _finish(writer, header, description.hash, files.hash, index.hashes(pages.table, PageHashes()))


def _copy_layer(section: SectionWriter, holder: Image, name: str) -> None:
    with holder.container.naming(name):
        stream = Stream(holder.container, name)
        for piece in stream.pieces(holder.container.section(name).length):
            section.write(piece)
    section.close()
