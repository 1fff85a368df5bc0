"""The store: a directory for every snapshot, which is there whole or not at all.

    $XDG_DATA_HOME/ramet/
      lock                 held (flock) while names are added, replaced or taken away, for microseconds
      snapshots/NAME/image
      tmp/                 what is being written, loaded or removed; each directory is locked by who uses it

A snapshot is written in tmp, synced, and renamed; a rename cannot be seen half done, nor replace a directory
that is not empty. So a writer that is killed leaves at most a directory in tmp, whose lock died with it and
which the next store removes. Several daemons may share a store.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ramet.errors import InvalidRequest, RametError, SnapshotDamaged, SnapshotError
from ramet.models.names import check_name
from ramet.store import machine
from ramet.store.access import remove_tree
from ramet.store.blocks import Malformed, pwrite_all
from ramet.store.container import Container, Stream
from ramet.store.files import Identifier
from ramet.store.ids import IdMap
from ramet.store.image import DEPTH_MAX, Image, info_of, open_container, read_header
from ramet.store.loadable import Loadable
from ramet.store.models import Base, Exported, LoadedBase, ParentRef, SnapshotInfo
from ramet.store.places import IMAGE, LOCK, SCRATCH, SNAPSHOTS, data_path, make_store
from ramet.store.saving import Draft, write_flat, write_image
from ramet.store.trees import TreeError
from ramet.store.unpacker import Unpacker

if TYPE_CHECKING:
    from types import TracebackType

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Work(NamedTuple):
    """A directory of one's own below tmp."""

    name: str
    fd: int


class Store:
    """All snapshots of one user. Every method blocks on the disk: call them in a thread."""

    def __init__(self, root: str | None = None) -> None:
        """`root` is the directory, by default that of the environment; it is made when it does not exist.

        Raises SnapshotError, code ``store_unusable``.
        """
        self.root = os.path.abspath(root or data_path())
        self._root = make_store(self.root)
        self._snapshots = self._open(SNAPSHOTS)
        self._scratch = self._open(SCRATCH)
        self._identifier = Identifier()
        self.sweep()

    def close(self) -> None:
        """Close the directory; snapshots that were loaded stay loaded."""
        for name in ("_root", "_snapshots", "_scratch"):
            fd = getattr(self, name)
            setattr(self, name, -1)
            if fd >= 0:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, name: str) -> int:
        return os.open(name, _DIRECTORY, dir_fd=self._root)

    # --- looking ------------------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """The names of all, sorted."""
        return tuple(sorted(_names(self._snapshots)))

    def list(self) -> tuple[SnapshotInfo, ...]:
        """All of them, by name. One that cannot be read is there too, with what is wrong in `damage`."""
        found = []
        for name in self.names():
            try:
                found.append(self._info(name))
            except FileNotFoundError:  # removed meanwhile
                continue
            except RametError as error:
                found.append(SnapshotInfo(name, damage=error.message))
        return tuple(found)

    def info(self, name: str) -> SnapshotInfo:
        """One of them. Raises InvalidRequest, SnapshotDamaged, SnapshotUnusable."""
        try:
            return self._info(check_name(name, "snapshot"))
        except FileNotFoundError:
            raise self._unknown(name) from None

    def _info(self, name: str) -> SnapshotInfo:
        try:
            container = open_container(self._snapshots, name)
        except FileNotFoundError:
            # Raises it anew for a snapshot that is not there.
            os.stat(name, dir_fd=self._snapshots, follow_symlinks=False)
            text = f"the snapshot {name!r} is damaged: its file {IMAGE} is missing"
            raise SnapshotDamaged("snapshot_damaged", text, snapshot=name) from None
        with contextlib.closing(container):
            return info_of(container, read_header(container))

    def base(self, name: str) -> LoadedBase:
        """What its layers lie on. Raises InvalidRequest, SnapshotDamaged, SnapshotUnusable."""
        with self._opened(name) as image:
            return image.base()

    def verify(self, name: str) -> SnapshotInfo:
        """Read every byte of it and of what it builds upon.

        Raises InvalidRequest, SnapshotDamaged naming the place, SnapshotUnusable.
        """
        with self._opened(name) as image:
            image.verify()
            return info_of(image.container, image.header)

    def dependents(self, name: str) -> tuple[str, ...]:
        """The names of those that build upon it directly."""
        children = [info for info in self.list() if info.parent is not None and info.parent.name == name]
        return tuple([info.name for info in children])

    def _unknown(self, name: str) -> InvalidRequest:
        near = difflib.get_close_matches(name, self.names(), n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else None
        text = f"there is no snapshot {name!r}"
        return InvalidRequest.of("snapshot", text, code="unknown_snapshot", hint=hint)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[Image]:
        """Raises InvalidRequest, SnapshotDamaged, SnapshotUnusable."""
        check_name(name, "snapshot")
        with self._telling("read", name):
            try:
                image = Image(self._snapshots, name)
            except FileNotFoundError:
                raise self._unknown(name) from None
            with contextlib.closing(image):
                yield image

    # --- saving -------------------------------------------------------------------------------------------

    def save(
        self,
        name: str,
        exported: Exported,
        *,
        base: Base,
        filter_hash: str,
        parent: ParentRef | None = None,
        kind: str = "snapshot",
        ids: IdMap | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SnapshotInfo:
        """Have a snapshot on disk, for good, when this returns.

        With `parent`, what it was forked from, only what differs is written. A parent that is gone, is
        another snapshot by now or builds upon too many is done without. `kind` is "snapshot" or "template":
        both share the names. `ids` are those of the core that exported it.

        Raises:
            InvalidRequest: the name is none, or taken.
            SnapshotError: it could not be written; nothing is left of it.
        """
        self._refuse_taken(check_name(name))
        with self._telling("saved", name), self._parent(parent) as image, self._working() as work:
            draft = Draft(
                name=name,
                kind=kind,
                exported=exported,
                base=base,
                files=self._identifier.identify(base.files),
                filter_hash=filter_hash,
                parent=image,
                ids=ids or IdMap.identity(),
                metadata=metadata or {},
            )
            self._write(work.fd, lambda fd: write_image(fd, draft))
            with self._locked():
                self._refuse_taken(name)
                if image is not None:
                    self._refuse_replaced(image)
                self._put(work, name)
        return self.info(name)

    def _put(self, work: Work, name: str) -> None:
        os.rename(work.name, name, src_dir_fd=self._scratch, dst_dir_fd=self._snapshots)
        os.fsync(self._snapshots)

    def _write(self, directory: int, write: Callable[[int], object]) -> None:
        """Write a synced image file in `directory`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(IMAGE, flags, 0o600, dir_fd=directory)
        try:
            write(fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.fsync(directory)

    @contextlib.contextmanager
    def _telling(self, done: str, name: str) -> Iterator[None]:
        """What the disk or a file of a layer refuses becomes a SnapshotError."""
        try:
            yield
        except OSError as error:
            what = f"{error.filename} {error.strerror}" if isinstance(error, TreeError) else error.strerror
            raise SnapshotError(
                f"snapshot_not_{done}",
                f"the snapshot {name!r} cannot be {done}: {what} ({self.root})",
                snapshot=name,
                errno=error.errno,
            ) from None

    @contextlib.contextmanager
    def _parent(self, ref: ParentRef | None) -> Iterator[Image | None]:
        if ref is None:
            yield None
            return
        try:
            image = Image(self._snapshots, ref.name)
        except (FileNotFoundError, RametError):
            # A damaged parent must not take its children along.
            yield None
            return
        with contextlib.closing(image):
            fits = image.header.content == ref.content and image.depth < DEPTH_MAX
            yield image if fits else None

    def _refuse_taken(self, name: str) -> None:
        if name in _names(self._snapshots):
            raise InvalidRequest.of(
                "name",
                f"there is a snapshot or template {name!r} already",
                code="name_taken",
                hint="take another name, or remove that one",
            )

    def _refuse_replaced(self, parent: Image) -> None:
        """Under the lock: a parent that was removed meanwhile must not be named by its child."""
        try:
            here = self._info(parent.header.name).content == parent.header.content
        except (FileNotFoundError, RametError):
            here = False
        if not here:
            raise SnapshotError(
                "snapshot_not_saved",
                f"{parent.header.name!r}, which it was forked from, was removed meanwhile",
                snapshot=parent.header.name,
                hint="try again",
            )

    # --- loading ------------------------------------------------------------------------------------------

    def load(self, name: str, *, ids: IdMap | None = None) -> Loadable:
        """What core needs to have it again. `ids` are those of that core.

        Raises:
            InvalidRequest: there is none of this name.
            SnapshotDamaged: the disk gives back other bytes than were written.
            SnapshotUnusable: this kernel, processor, or the host's files are not those that it needs.
        """
        with self._opened(name) as image, self._telling("loaded", name):
            image.header.machine.refuse_others(machine.here(), name)
            base = image.base()
            self._identifier.refuse_changed(base.files, name)
            with contextlib.ExitStack() as undo:
                loaded = Loadable(info_of(image.container, image.header), base)
                undo.callback(loaded.close)
                loaded.description = _memory_file(image.description())
                loaded.pages = image.restore_pages()
                work = loaded.cleanup.enter_context(self._working())
                for number in range(len(image.header.layers)):
                    loaded.uppers.append(self._unpack(work.fd, image, number, ids or IdMap.identity()))
                undo.pop_all()
        return loaded

    def _unpack(self, work: int, image: Image, number: int, ids: IdMap) -> int:
        holder, section = image.layer(number)
        for made in (str(number), "links"):
            os.mkdir(made, 0o700, dir_fd=work)
        fd, links = (os.open(made, _DIRECTORY, dir_fd=work) for made in (str(number), "links"))
        try:
            with holder.container.naming(f"layer {number}"):
                Unpacker(Stream(holder.container, section), ids).unpack(fd, links)
        except BaseException:
            os.close(fd)
            raise
        finally:
            os.close(links)
            remove_tree(work, "links")
        return fd

    # --- removing -----------------------------------------------------------------------------------------

    def remove(self, name: str) -> SnapshotInfo:
        """Take it away; also one that is damaged.

        Raises InvalidRequest when there is none, SnapshotError (``snapshot_in_use``) naming those that build
        upon it.
        """
        check_name(name, "snapshot")
        with self._locked():
            try:
                info = self._info(name)
            except FileNotFoundError:
                raise self._unknown(name) from None
            except RametError as error:
                info = SnapshotInfo(name, damage=error.message)
            if others := self.dependents(name):
                raise SnapshotError(
                    "snapshot_in_use",
                    f"the snapshot {name!r} cannot be removed: {', '.join(map(repr, others))} build upon it",
                    snapshot=name,
                    hint="remove those first",
                )
            doomed = _random()
            os.rename(name, doomed, src_dir_fd=self._snapshots, dst_dir_fd=self._scratch)
            os.fsync(self._snapshots)
        remove_tree(self._scratch, doomed)
        return info

    def flatten(self, name: str) -> SnapshotInfo:
        """Have it build upon nothing. Those that build upon it do not notice: its content stays the same.

        Raises InvalidRequest, SnapshotDamaged, SnapshotUnusable, SnapshotError.
        """
        with self._opened(name) as image:
            if image.parent is None:
                return info_of(image.container, image.header)
            with self._telling("saved", name), self._working() as work:
                self._write(work.fd, lambda fd: write_flat(fd, image))
                with self._locked():
                    self._refuse_replaced(image)
                    flat, old = f"{work.name}/{IMAGE}", f"{name}/{IMAGE}"
                    os.rename(flat, old, src_dir_fd=self._scratch, dst_dir_fd=self._snapshots)
                    self._sync(name)
        return self.info(name)

    def _sync(self, name: str) -> None:
        fd = os.open(name, _DIRECTORY, dir_fd=self._snapshots)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # --- of another store ---------------------------------------------------------------------------------

    def copy(self, name: str, source: Store, named: str) -> SnapshotInfo:
        """Have what is `name` in another store under the name `named`; the copy builds upon nothing.

        Raises InvalidRequest, SnapshotDamaged, SnapshotUnusable, SnapshotError.
        """
        self._refuse_taken(check_name(named))
        with source._opened(name) as image, self._telling("saved", named), self._working() as work:
            self._write(work.fd, lambda fd: write_flat(fd, image, named))
            with self._locked():
                self._refuse_taken(named)
                self._put(work, named)
        return self.info(named)

    def link(self, name: str, source: Store) -> SnapshotInfo:
        """Have the file of another store: no byte is copied, and it stays when it is removed there.

        No image is ever written again where it is, so whoever has it as a parent can rely on it. Raises
        InvalidRequest, SnapshotError for one that builds upon others, or lies on another file system.
        """
        with source._opened(name) as image:
            if image.parent is not None:
                text = f"{name!r} builds upon {image.parent.header.name!r}, which would be missing"
                raise SnapshotError("snapshot_not_saved", text, snapshot=name, hint="copy it")
        with self._telling("saved", name), self._working() as work:
            try:
                os.link(
                    f"{name}/{IMAGE}", f"{work.name}/{IMAGE}", src_dir_fd=source._snapshots,
                    dst_dir_fd=self._scratch, follow_symlinks=False,
                )  # fmt: skip
            except FileNotFoundError:
                raise source._unknown(name) from None
            os.fsync(work.fd)
            with self._locked():
                self._refuse_taken(name)
                self._put(work, name)
        return self.info(name)

    # --- as one file ---------------------------------------------------------------------------------------

    def pack(self, name: str, path: str) -> SnapshotInfo:
        """Have all of one in the new file `path`, or nothing there.

        Raises InvalidRequest, SnapshotDamaged, SnapshotUnusable, SnapshotError.
        """
        with self._opened(name) as image, self._telling("packed", name):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_flat(fd, image)
                os.fsync(fd)
            except BaseException:
                os.unlink(path)
                raise
            finally:
                os.close(fd)
            return info_of(image.container, image.header)

    def unpack(self, path: str, named: str | None = None) -> SnapshotInfo:
        """Have what is in the file `path` under the name `named`, or its own. Every byte is checked.

        Raises InvalidRequest, SnapshotDamaged, SnapshotUnusable, SnapshotError.
        """
        with _packed(path, self._snapshots) as image:
            name = check_name(named or image.header.name)
            self._refuse_taken(name)
            with self._telling("saved", name), self._working() as work:
                self._write(work.fd, lambda fd: write_flat(fd, image, name))
                with self._locked():
                    self._refuse_taken(name)
                    self._put(work, name)
        return self.info(name)

    # --- work in progress ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among all that add, replace and take away names."""
        fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._root)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _working(self) -> Iterator[Work]:
        """A directory of one's own, locked for as long as its owner lives, and removed."""
        name = _random()
        with self._locked():  # or `sweep` could come between the two
            os.mkdir(name, 0o700, dir_fd=self._scratch)
            fd = os.open(name, _DIRECTORY, dir_fd=self._scratch)
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield Work(name, fd)
        finally:
            # Its new name, if it was moved, is not here.
            remove_tree(self._scratch, name)
            os.close(fd)

    def sweep(self) -> None:
        """Remove what is left of those that were killed."""
        with self._locked():
            for name in _names(self._scratch):
                if self._abandoned(name):
                    remove_tree(self._scratch, name)

    def _abandoned(self, name: str) -> bool:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._scratch)
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True


def _names(directory: int) -> list[str]:
    """What is in one of the store's directories.

    It is opened anew: descriptors that are copies share one place in the listing (open(2)), and of two
    threads that list over the same one each would miss names.
    """
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _packed(path: str, snapshots: int) -> Iterator[Image]:
    """What `Store.pack` wrote. Raises SnapshotDamaged, SnapshotUnusable, SnapshotError, InvalidRequest."""
    try:
        # Of a fifo nobody writes to, an open would wait for one who does.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidRequest.of("path", f"{path[:200]!r} cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidRequest.of("path", f"{path[:200]!r} is no file")
    container = Container(fd, os.path.basename(path)[:64])
    with contextlib.ExitStack() as using:
        using.callback(container.close)
        name = container.header.get("name")
        with container.naming("header"):
            if container.header.get("parent") is not None:
                raise Malformed("it builds upon another, which a pack does not")
            if not isinstance(name, str):
                raise Malformed("it has no name")
        container.label = check_name(name, "name")
        using.pop_all()
        image = Image(snapshots, name, container=container)
    with contextlib.closing(image):
        yield image


def _random() -> str:
    return secrets.token_hex(8)


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("ramet-image", os.MFD_CLOEXEC)
    try:
        pwrite_all(fd, data, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd
