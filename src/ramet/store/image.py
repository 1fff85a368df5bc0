"""An open image together with those it builds upon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ramet.errors import SnapshotDamaged
from ramet.store.blocks import PAGE, Malformed, count_blocks, split
from ramet.store.container import Container, SectionWriter, Stream, read_json
from ramet.store.files import FILES_MAX, MappedFile
from ramet.store.header import Header, Layer
from ramet.store.models import LoadedBase, ParentRef, SnapshotInfo
from ramet.store.pages import OWN, PARENT, WINDOW, ExtentList, PageHashes, PageIndex, copy_out
from ramet.store.places import IMAGE
from ramet.store.trees import Records

DEPTH_MAX = 32
"""Most images that one builds upon: each is a file to open and an index to look through."""
DESCRIPTION_MAX = 16 << 20
"""As core's RAMET_PAYLOAD_MAX."""
RECIPE_MAX = 64 << 20
INDEX_MAX = 1 << 30


def open_container(snapshots: int, name: str) -> Container:
    """The container of the snapshot `name`. Raises FileNotFoundError, SnapshotDamaged, SnapshotUnusable."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(f"{name}/{IMAGE}", flags, dir_fd=snapshots)
    except OSError as error:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise FileNotFoundError(error.errno, error.strerror, name) from None
        raise SnapshotDamaged(
            "snapshot_damaged", f"the snapshot {name!r} cannot be opened: {error.strerror}", snapshot=name
        ) from None
    return Container(fd, name)


def read_header(container: Container) -> Header:
    """What the image says of itself. Raises SnapshotDamaged."""
    with container.naming("header"):
        header = Header.from_json(container.header)
        if header.name != container.label:
            raise Malformed(f"it says that it is the snapshot {header.name!r}")
    return header


def info_of(container: Container, header: Header) -> SnapshotInfo:
    """What users are told of it."""
    pages = container.sections.get("pages")
    return SnapshotInfo(
        name=header.name,
        kind=header.kind,
        created=header.created_ns / 1e9,
        content=header.content,
        parent=header.parent,
        memory_bytes=header.page_bytes,
        page_bytes=pages.length if pages else 0,
        stored_bytes=container.size,
        layers=len(header.layers),
        kernel=header.machine.kernel,
        root=header.root,
        filter_hash=header.filter_hash,
        metadata=header.metadata,
    )


class Image:
    """A container whose index, and whose parents, are what its content hash says."""

    def __init__(
        self, snapshots: int, name: str, *, left: int = DEPTH_MAX, container: Container | None = None
    ) -> None:
        """`left`: how many it may build upon; `container`: its own, where that is elsewhere, which it takes.

        Raises FileNotFoundError, SnapshotDamaged, SnapshotUnusable.
        """
        self.container = open_container(snapshots, name) if container is None else container
        self.parent: Image | None = None
        self.index = PageIndex([])
        self.hashes = PageHashes()
        """The hash of every page."""
        try:
            self.header = read_header(self.container)
            self.parent = self._open_parent(snapshots, left)
            self._read_index()
            self._check_sections()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close its files."""
        self.container.close()
        if self.parent is not None:
            self.parent.close()

    @property
    def depth(self) -> int:
        """How many it builds upon."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def ref(self) -> ParentRef:
        """What another that builds upon it says of it."""
        return ParentRef(self.header.name, self.header.content)

    def _open_parent(self, snapshots: int, left: int) -> Image | None:
        ref = self.header.parent
        if ref is None:
            return None
        with self.container.naming("parent"):
            if not left:
                raise Malformed("it builds upon more snapshots than any may")
            try:
                parent = Image(snapshots, ref.name, left=left - 1)
            except FileNotFoundError:
                raise Malformed(f"the snapshot {ref.name!r}, which it builds upon, is missing") from None
        if parent.header.content != ref.content:
            parent.close()
            with self.container.naming("parent"):
                raise Malformed(f"the snapshot {ref.name!r}, which it builds upon, is not what it was")
        return parent

    def _read_index(self) -> None:
        container, header = self.container, self.header
        extents = container.read("extents", INDEX_MAX)
        parent = self.parent.index.count if self.parent else 0
        with container.naming("extents"):
            pages = container.section("pages")
            if pages.block != PAGE or pages.length % PAGE:
                raise Malformed("pages are of another size")
            count = count_blocks(header.page_bytes, PAGE)
            self.index = PageIndex.decode(extents, count=count, own=pages.blocks, parent=parent)
        with container.naming("pages"):
            own = container.table("pages")
        self.hashes = self.index.hashes(own, self.parent.hashes if self.parent else PageHashes())

    def _check_sections(self) -> None:
        container, header = self.container, self.header
        with container.naming("header"):
            found = header.content_of(
                container.section("description").hash, container.section("files").hash, self.hashes
            )
            if found != header.content:
                raise Malformed("the hash of its content differs")
            for number, layer in enumerate(header.layers):
                if self._stored_layer(number, layer).hash != layer.hash:
                    raise Malformed(f"layer {number} is another")
            base = (
                container.section("base").hash if not header.inherits_base else self._inherited().header.base
            )
            if base != header.base:
                raise Malformed("the root's recipe is another")

    def _inherited(self) -> Image:
        if self.parent is None:
            raise Malformed("it builds upon a parent and has none")
        return self.parent

    def _stored_layer(self, number: int, layer: Layer) -> Any:
        if layer.inherited is None:
            return self.container.section(f"layer-{number}")
        layers = self._inherited().header.layers
        if not 0 <= layer.inherited < len(layers):
            raise Malformed(f"layer {number} is not among the parent's")
        return layers[layer.inherited]

    # --- content ------------------------------------------------------------------------------------------

    def description(self) -> bytes:
        """Core's description. Raises SnapshotDamaged."""
        return self.container.read("description", DESCRIPTION_MAX)

    def base(self) -> LoadedBase:
        """What the layers lie on. Raises SnapshotDamaged."""
        holder = self
        while holder.header.inherits_base and holder.parent is not None:
            holder = holder.parent
        recipe = holder.container.read("base", RECIPE_MAX)
        return LoadedBase(self.header.root, recipe, self.files())

    def files(self) -> tuple[MappedFile, ...]:
        """The host's files that processes have mapped. Raises SnapshotDamaged."""
        data = self.container.read("files")
        with self.container.naming("files"):
            rows = read_json(data, "the list").get("files")
            if not isinstance(rows, list) or len(rows) > FILES_MAX:
                raise Malformed("they are not listed")
            return tuple([MappedFile.from_json(row) for row in rows])

    def layer(self, number: int) -> tuple[Image, str]:
        """The image that has the writable layer `number`, and the name of its section there."""
        holder, inherited = self, self.header.layers[number].inherited
        while inherited is not None and holder.parent is not None:
            holder, number = holder.parent, inherited
            inherited = holder.header.layers[number].inherited
        return holder, f"layer-{number}"

    def locate(self, first: int, count: int, at: int = 0) -> Iterator[tuple[int, Image, int, int]]:
        """(page, image, block there, count) of what is not zero; `at` is the number of the first page."""
        for kind, length, start in self.index.find(first, count):
            if kind == PARENT and self.parent is not None:
                yield from self.parent.locate(start, length, at)
            elif kind == OWN:
                yield at, self, start, length
            at += length

    def restore_pages(self) -> int:
        """The page file, as a memory file, which is the caller's. Raises SnapshotDamaged."""
        size = self.header.page_bytes
        fd = os.memfd_create("ramet-pages", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            with memoryview(bytearray(WINDOW * PAGE)) as view:
                for at, holder, start, length in self.locate(0, self.index.count):
                    with holder.container.naming("pages"):
                        for done in range(0, length, WINDOW):
                            window = view[: min(WINDOW, length - done) * PAGE]
                            holder.container.read_blocks("pages", start + done, window)
                            copy_out(window, fd, at + done, size)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def copy_pages(self, out: SectionWriter) -> PageIndex:
        """Write every page that is not zero; an index that needs no parent. Raises SnapshotDamaged."""
        extents = ExtentList()
        at = 0
        last: tuple[Image, int] | None = None
        for page, holder, start, length in self.locate(0, self.index.count):
            extents.add_zeros(page - at)
            if length == 1 and last == (holder, start):
                extents.add(OWN, out.blocks - 1)
            else:
                with holder.container.naming("pages"):
                    holder.copy_blocks(out, extents, start, length)
            last = holder, start + length - 1
            at = page + length
        extents.add_zeros(self.index.count - at)
        return PageIndex(extents.close())

    def copy_blocks(self, out: SectionWriter, extents: ExtentList, start: int, length: int) -> None:
        table = self.container.table("pages")
        with memoryview(bytearray(min(WINDOW, length) * PAGE)) as view:
            for first in range(start, start + length, WINDOW):
                count = min(WINDOW, start + length - first)
                window = view[: count * PAGE]
                self.container.read_blocks("pages", first, window)
                extents.add(OWN, out.blocks, count)
                out.put_blocks([window], split(table, first, count))

    def verify(self) -> None:
        """Read every byte, its parents' too. Raises SnapshotDamaged."""
        self.description()
        self.base()
        container = self.container
        with container.naming("pages"):
            for _ in container.chunks("pages"):
                pass
        for number, layer in enumerate(self.header.layers):
            if layer.inherited is None:
                with container.naming(f"layer {number}"):
                    Records(Stream(container, f"layer-{number}")).check()
        if self.parent is not None:
            self.parent.verify()
