"""Files of a sandbox that stands, from outside.

A server that core forks for the conversation looks paths up below the sandbox's root and opens regular files;
their content is read and written here, through descriptors that it passes. What guests do to the tree
meanwhile can make a call fail, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import io
import os
import posixpath
import select
import socket
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from os import PathLike
from typing import IO, Any, Literal

from ramet.client._async import content
from ramet.client._async.client import PATIENCE_S
from ramet.client._async.commands import AsyncCommands
from ramet.client._async.commits import AsyncConflicts, check_on_conflict
from ramet.client._async.differences import AsyncComparison
from ramet.client._async.streams import deadline_of, remaining
from ramet.client._backends._async import in_thread, poll
from ramet.client._exchange import Stale
from ramet.client._files import (
    Ask,
    FileLink,
    Raw,
    Side,
    events_of,
    file_of,
    git_mode,
    git_patch,
    processes_of,
    status_of,
    unless_gone,
)
from ramet.client._streams import check_output
from ramet.client._trees import Landing, local_tree, new_local, open_local, pieces, writing_local
from ramet.errors import CommitConflict, DaemonLost, FileError, InvalidRequest, WaitTimeout
from ramet.models.creation import WORKSPACE
from ramet.models.differences import Difference, Process
from ramet.models.files import (
    RENEWED,
    Change,
    FileEvent,
    FileInfo,
    OnConflict,
    check_mode,
    check_mtime,
    check_owner,
    check_path,
    check_target,
)
from ramet.models.sandboxes import Metrics
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.frames import u64

Path = str | PathLike[str]
Raws = list[Raw]
Frames = list[frames.Frame]
IDLE_MAX = 4
# A copy of gigabytes in one request takes long; the server says nothing before its end.
COPY_PATIENCE_S = 3600.0
TRIES = 3


class AsyncFiles:
    """The files of one sandbox. Relative paths begin at its home."""

    def __init__(self, commands: AsyncCommands) -> None:
        self._commands = commands
        self._idle: list[FileLink] = []

    # --- content ------------------------------------------------------------------------------------------

    async def read(self, path: Path, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """A file's content as text.

        Raises FileError, here and below: its `code` says what is wrong with the file (``not_found``,
        ``is_a_directory``, ``not_regular``, …).
        """
        check_output(encoding, {})
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def read_bytes(self, path: Path) -> bytes:
        """A file's content."""
        with await self.open(path) as file:
            return await content.read_all(file)

    async def stream(self, path: Path, *, size: int = content.CHUNK) -> AsyncIterator[bytes]:
        """A file's content in pieces of `size` bytes, whatever its length."""
        if type(size) is not int or size < 1:
            raise InvalidRequest.of("size", f"{size!r:.40} is no number of bytes")
        with await self.open(path) as file:
            while piece := await content.read(file, size):
                yield piece

    async def open(self, path: Path, mode: str = "rb", *, permissions: int = 0o644) -> io.RawIOBase:
        """The file itself, opened here: ``rb``, ``wb``, ``ab``, ``xb``, or with ``+`` for both.

        Its methods block. It stays what it is when the sandbox ends.
        """
        flags = _flags(mode)
        ask = Ask(p.FILE_OPEN, await self._path(path), flags, mode=check_mode(permissions, "permissions"))
        _, fds = await self._ask(ask)
        kind = "r+" if flags & p.FILE_READ and flags & p.FILE_WRITE else "w" if flags & p.FILE_WRITE else "r"
        return file_of(fds[0], kind, append=bool(flags & p.FILE_APPEND))

    async def write(
        self,
        path: Path,
        data: str | bytes | IO[Any] | Iterable[bytes],
        *,
        append: bool = False,
        mode: int | None = None,
        encoding: str = "utf-8",
    ) -> FileInfo:
        """Write a file, in directories that are made where they are missing; what is told of it then.

        `data` is text, bytes, an open file, or pieces of bytes, whatever their number. `mode` are the
        permissions of a new file, 0o644 by default.

        A file that is there stays the same one, with its owner, permissions and other names, and is written
        in place: who reads it meanwhile may see some of both contents. Where the disk has no room for text or
        bytes, the former content is kept; of an open file or pieces, whose length is not known before, what
        was written until then is in its place.
        """
        flags = p.FILE_WRITE | p.FILE_CREATE | p.FILE_PARENTS
        full = await self._path(path)
        given = pieces(data, encoding)
        if append:
            flags |= p.FILE_APPEND
        elif not isinstance(given, bytes):
            flags |= p.FILE_TRUNCATE
        ask = Ask(p.FILE_OPEN, full, flags, mode=check_mode(mode))
        frame, fds = await self._ask(ask)
        with file_of(fds[0], "w", append=append) as file:
            if isinstance(given, bytes):
                former = 0 if append else ask.infos([frame])[0].info.size
                await content.replace(file, given, former, full)
            else:
                # What is read from elsewhere may block.
                waits = hasattr(data, "read")
                while piece := await in_thread(lambda: next(given, b"")) if waits else next(given, b""):
                    await content.write(file, piece, full)
            # Ids are those inside, which the descriptor does not tell here.
            size, mtime = await content.blocking(lambda: status_of(file), 0, file)
            return dataclasses.replace(ask.infos([frame])[0].info, size=size, mtime=mtime)

    # --- names --------------------------------------------------------------------------------------------

    async def stat(self, path: Path, *, follow: bool = True) -> FileInfo:
        """What is known of a file; with ``follow=False`` of a link itself."""
        flags = 0 if follow else p.FILE_AS_NAMED
        return (await self.infos(Ask(p.FILE_STAT, await self._path(path), flags)))[0].info

    async def exists(self, path: Path) -> bool:
        """Whether there is something under this path. A link that leads nowhere is nothing."""
        try:
            await self.stat(path)
        except FileError as error:
            if error.code in {"not_found", "not_a_directory", "loop"}:
                return False
            raise
        return True

    async def list(self, path: Path = ".", *, depth: int = 1) -> tuple[FileInfo, ...]:
        """What is in a directory, by name; `depth` levels of it, 0 for all. Links are not followed."""
        if type(depth) is not int or not 0 <= depth <= 256:
            raise InvalidRequest.of("depth", f"{depth!r:.40} is no number of levels")
        found = await self.infos(Ask(p.FILE_LIST, await self._path(path), depth=depth))
        return tuple(sorted([one.info for one in found], key=lambda info: info.path))

    async def glob(self, pattern: str) -> tuple[FileInfo, ...]:
        """The files whose paths fit ``*``, ``?``, ``[…]`` within a name, and ``**`` for any directories."""
        full = await self._path(pattern)
        parts = [part for part in full.split("/") if part]
        fixed = 0
        while fixed < len(parts) and not any(letter in parts[fixed] for letter in "*?["):
            fixed += 1
        if fixed == len(parts):
            return (await self.stat(full, follow=False),) if await self.exists(full) else ()
        base, wanted = "/" + "/".join(parts[:fixed]), parts[fixed:]
        try:
            found = await self.list(base, depth=0 if "**" in wanted else len(wanted))
        except FileError as error:
            if error.code in {"not_found", "not_a_directory"}:
                return ()
            raise
        skip = len(base.rstrip("/")) + 1
        return tuple([one for one in found if _fits(one.path[skip:].split("/"), wanted)])

    async def make_dir(self, path: Path, *, parents: bool = True, mode: int = 0o755) -> None:
        """Make a directory. With `parents`, also those above it, and it may be there already.

        `mode` are the permissions of a new one; those above it get 0o755.
        """
        flags = p.FILE_PARENTS if parents else 0
        await self._ask(Ask(p.FILE_MAKE_DIR, await self._path(path), flags, mode=check_mode(mode)))

    async def rename(self, path: Path, to: Path, *, replace: bool = True) -> None:
        """Give a file or directory another name or place."""
        flags = p.FILE_PARENTS | (p.FILE_REPLACE if replace else 0)
        ask = Ask(p.FILE_RENAME, await self._path(path), flags, other=await self._path(to))
        await self._ask(ask, COPY_PATIENCE_S)

    async def copy(self, path: Path, to: Path, *, recursive: bool = False, replace: bool = False) -> None:
        """Copy a file, or with `recursive` a directory, inside the sandbox."""
        flags = p.FILE_PARENTS | (p.FILE_REPLACE if replace else 0) | (p.FILE_RECURSIVE if recursive else 0)
        ask = Ask(p.FILE_COPY, await self._path(path), flags, other=await self._path(to))
        await self._ask(ask, COPY_PATIENCE_S)

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        """Remove a file, an empty directory, or with `recursive` a directory with all that is in it."""
        ask = Ask(p.FILE_REMOVE, await self._path(path), p.FILE_RECURSIVE if recursive else 0)
        await self._ask(ask, COPY_PATIENCE_S)

    async def symlink(self, path: Path, target: str, *, replace: bool = False) -> None:
        """Make a link that says `target`; with `replace` in the place of a file or link."""
        flags = p.FILE_PARENTS | (p.FILE_REPLACE if replace else 0)
        said = check_target(target)
        await self._ask(Ask(p.FILE_LINK, await self._path(path), flags, other=said))

    async def link(self, path: Path, to: Path, *, replace: bool = False) -> None:
        """Give a file another name, `to`: a hard link; with `replace` in the place of another file."""
        flags = p.FILE_HARD | p.FILE_PARENTS | (p.FILE_REPLACE if replace else 0)
        await self._ask(Ask(p.FILE_LINK, await self._path(to), flags, other=await self._path(path)))

    async def set(
        self,
        path: Path,
        *,
        mode: int | None = None,
        owner: tuple[int, int] | None = None,
        mtime: float | None = None,
    ) -> FileInfo:
        """Change permissions, owner (uid and gid), or the time of the last change."""
        full = await self._path(path)
        ask = Ask(
            p.FILE_SET, full, mode=check_mode(mode), owner=check_owner(owner), mtime_ns=check_mtime(mtime)
        )
        await self._ask(ask)
        return await self.stat(full)

    # --- to and from the host -----------------------------------------------------------------------------

    async def upload(self, local: Path, path: Path) -> int:
        """Copy a file or directory of the host into the sandbox, to this path; how many files."""
        full, count = await self._path(path), 0
        for one in local_tree(os.fspath(local)):
            inside = f"{full}/{one.name}" if one.name else full
            if one.kind == "directory":
                await self.make_dir(inside, mode=one.mode)
                continue
            count += 1
            if one.kind == "link":
                await self.symlink(inside, one.target or "", replace=True)
            else:
                with open_local(one.path) as file:
                    await self.write(inside, file, mode=one.mode)
        return count

    def download_tar(self, path: Path = ".") -> AsyncIterator[bytes]:
        """A file, or a directory and what is in it, as pieces of a tar stream, however much that is.

        Of a directory names begin below it. Links come as links; fifos, sockets and devices are left out, and
        so is what has gone meanwhile. Raises FileError, code ``changed``, when a file gets shorter while it
        is read.
        """
        from ramet.client._async import archives

        check_path(path, "/")
        return archives.packed(self, path)

    async def upload_tar(self, data: bytes | IO[bytes] | Iterable[bytes], path: Path = ".") -> int:
        """Unpack a tar stream, compressed or not, in a directory, which is made if need be; how many files.

        What is there under the same names is written over. Permissions and times are taken over, owners are
        not. Raises InvalidRequest naming ``data`` when it is no tar stream or is cut off (code ``not_tar``),
        or has a device, a fifo, or a name with ``..`` in it (``not_unpackable``); what came before that is
        there then.
        """
        from ramet.client._async import archives

        return await archives.unpacked(self, await self._path(path), data)

    async def download(self, path: Path, local: Path) -> int:
        """Copy a file or a directory out of the sandbox; how many files. `local` must not exist.

        Links come as links; fifos, sockets and devices are left out. Nothing is written but below `local`,
        whatever guests do meanwhile.
        """
        full = await self._path(path)
        info = await self.stat(full)
        target = os.fspath(local)
        with writing_local(target):
            return await self._landed(full, info, target)

    async def _landed(self, full: str, info: FileInfo, target: str) -> int:
        if not info.is_dir:
            with await self.open(full) as file, new_local(target, info.mode) as out:
                await content.copy(file, out)
            return 1
        found = await self.infos(Ask(p.FILE_LIST, full))
        count = 0
        with Landing(target) as landing:
            for one in sorted(found, key=lambda one: one.name):
                if one.info.is_dir:
                    landing.make_dir(one.name, one.info.mode)
                elif one.info.kind == "link":
                    landing.make_link(one.name, one.info.target or "")
                    count += 1
                elif one.info.kind == "file":
                    with (
                        await self.open(one.info.path) as file,
                        landing.make_file(one.name, one.info.mode) as out,
                    ):
                        await content.copy(file, out)
                    count += 1
        return count

    async def export(self, local: Path, path: Path | None = None) -> int:
        """As `AsyncSandbox.export`."""
        base = path or (WORKSPACE if await self.exists(WORKSPACE) else ".")
        return await self.download(base, local)

    # --- what changed -------------------------------------------------------------------------------------

    async def diff(self) -> tuple[Change, ...]:
        """The files that are otherwise than when the sandbox was made, or forked, by path.

        Of a directory that is new everything in it is told; of one that was deleted the directory alone.
        /etc/machine-id, hostname and hosts, which no two sandboxes share, are left out.
        """
        written = await self.infos(Ask(p.FILE_LIST, "/", tree=p.TREE_WRITTEN))
        changes: dict[str, Change] = {}
        for one in written:
            if one.info.path in RENEWED:
                continue
            was = await self._was(one.info.path)
            if one.whiteout:
                if was is not None:
                    changes[one.info.path] = Change(one.info.path, "deleted", None, was)
                continue
            if one.opaque and was is not None:
                await self._hidden(one, changes)
            kind = await self._kind_of_change(one.info, was)
            if kind is not None:
                changes[one.info.path] = Change(one.info.path, kind, one.info, was)
        return tuple([changes[path] for path in sorted(changes)])

    async def compare(self, other: AsyncFiles) -> Difference:
        """As `AsyncSandbox.diff` with another sandbox."""
        return await AsyncComparison(self, other).difference()

    async def patch(self, path: Path = "/") -> bytes:
        """What changed below `path`, as a patch that ``git apply`` takes; without directories and owners."""
        base = (await self.absolute(path)).rstrip("/")
        parts = []
        for change in await self.diff():
            if not change.path.startswith(f"{base}/"):
                continue
            before = await self._side(change.was, p.TREE_ORIGIN)
            after = await self._side(change.now, p.TREE_SANDBOX)
            if before is not None or after is not None:
                parts.append(git_patch(change.path[len(base) + 1 :], before, after, _blob))
        return b"".join(parts)

    async def commit_to(self, other: AsyncFiles, *, on_conflict: OnConflict = "refuse") -> tuple[Change, ...]:
        """As `AsyncSandbox.commit_to`."""
        check_on_conflict(on_conflict)
        changes = await self.diff()
        if on_conflict != "overwrite":
            meant = AsyncConflicts(self, other)
            found = {change.path: await meant.of(change) for change in changes}
            both = sorted({path for paths in found.values() for path in paths})
            if both and on_conflict == "refuse":
                raise CommitConflict.of_paths(both)
            changes = tuple([change for change in changes if not found[change.path]])
        done = []
        for change in changes:
            now = change.now
            there = await AsyncConflicts.look(other, change.path, p.TREE_SANDBOX)
            # What is of another kind is in the way: through a link what it leads to would be written.
            if there is not None and (now is None or there.kind != now.kind):
                with unless_gone():
                    await other.remove(change.path, recursive=True)
            if now is not None and not await self._commit_one(now, other):
                continue
            done.append(change)
        return tuple(done)

    async def _commit_one(self, now: FileInfo, other: AsyncFiles) -> bool:
        if now.kind == "directory":
            await other.make_dir(now.path)
        elif now.kind == "link":
            await other.symlink(now.path, now.target or "", replace=True)
            return True
        elif now.kind == "file":
            with (
                await self._opened(now.path, p.TREE_SANDBOX) as file,
                await other.open(now.path, "wb") as out,
            ):
                await content.copy(file, out)
        else:
            return False
        await other.set(now.path, mode=now.mode, owner=(now.uid, now.gid))
        return True

    async def _hidden(self, directory: Raw, changes: dict[str, Change]) -> None:
        """A directory that took the place of another: what that held and this does not is deleted."""
        here = {one.name for one in await self.infos(Ask(p.FILE_LIST, directory.info.path, depth=1))}
        for old in await self.infos(Ask(p.FILE_LIST, directory.info.path, depth=1, tree=p.TREE_ORIGIN)):
            if old.name not in here:
                changes[old.info.path] = Change(old.info.path, "deleted", None, old.info)

    async def _was(self, path: str) -> FileInfo | None:
        try:
            return (await self.infos(Ask(p.FILE_STAT, path, p.FILE_AS_NAMED, tree=p.TREE_ORIGIN)))[0].info
        except FileError as error:
            if error.code in {"not_found", "not_a_directory"}:
                return None
            raise

    async def _kind_of_change(
        self, now: FileInfo, was: FileInfo | None
    ) -> Literal["added", "modified"] | None:
        if was is None:
            return "added"
        if (now.kind, now.mode, now.uid, now.gid, now.target) != (
            was.kind,
            was.mode,
            was.uid,
            was.gid,
            was.target,
        ):
            return "modified"
        if now.is_dir or now.kind != "file":
            return None
        if now.size != was.size:
            return "modified"
        return None if await self._same_content(now.path) else "modified"

    async def _same_content(self, path: str) -> bool:
        try:
            with (
                await self._opened(path, p.TREE_WRITTEN) as one,
                await self._opened(path, p.TREE_ORIGIN) as other,
            ):
                return await content.same(one, other)
        except FileError as error:
            if error.code == "not_found":  # it went meanwhile
                return False
            raise

    async def has_content_of(self, path: str, tree: int, other: AsyncFiles) -> bool:
        """Whether the file at `path` has here, in `tree`, what it has in another sandbox."""
        with await self._opened(path, tree) as one, await other._opened(path, p.TREE_SANDBOX) as two:
            return await content.same(one, two)

    async def _opened(self, path: str, tree: int) -> io.RawIOBase:
        _, fds = await self._ask(Ask(p.FILE_OPEN, path, p.FILE_READ | p.FILE_AS_NAMED, tree=tree))
        return file_of(fds[0], "r")

    async def _side(self, info: FileInfo | None, tree: int) -> Side | None:
        if info is None or info.kind not in {"file", "link"}:
            return None
        if info.kind == "link":
            return Side(git_mode(info), os.fsencode(info.target or ""))
        with await self._opened(info.path, tree) as file:
            return Side(git_mode(info), await content.read_all(file))

    # --- what happens -------------------------------------------------------------------------------------

    def watch(
        self, path: Path = ".", *, recursive: bool = True, timeout: float | None = None
    ) -> AsyncIterator[FileEvent]:
        """What happens in a directory, and with `recursive` below it, from the first `next` on.

        What stands in a directory that has come is told as ``created``, however soon it was put there. Who
        reads so slowly that events are lost is told ``overflow`` in their place, and what follows that.

        Raises WaitTimeout when nothing happens for `timeout` seconds; SandboxEnded when the sandbox ends.
        """
        check_path(path, "/")
        return self._watched(path, recursive=recursive, timeout=timeout)

    async def _watched(
        self, path: Path, *, recursive: bool, timeout: float | None
    ) -> AsyncIterator[FileEvent]:
        full = await self._path(path)
        link = await self._link()
        places: dict[int, str] = {}
        fd = -1
        try:
            fd = await self._watch_one(link, full, places)
            if recursive:
                dirs = [one.path for one in await self.list(full) if one.is_dir]
                await self._watch_below(link, dirs, places)
            told: set[str] = set()
            with select.epoll() as poller:
                poller.register(fd, select.EPOLLIN)
                poller.register(link.sock, select.EPOLLIN)
                while True:
                    deadline = deadline_of(timeout)
                    events = await poll(poller, remaining(deadline))
                    if not events and deadline is not None and not remaining(deadline):
                        raise WaitTimeout("wait_timeout", f"nothing happened in {full} in this time")
                    if any(number == link.number for number, _ in events):
                        await self._server_gone(link)
                    for event in _read_events(fd, places):
                        if event.kind == "created" and event.path in told:
                            told.discard(event.path)
                            continue
                        if recursive and event.kind == "overflow":
                            # Directories that came meanwhile have not been watched.
                            await self._watch_below(link, [full], places)
                        inside: tuple[FileInfo, ...] = ()
                        if recursive and event.is_dir and event.kind in {"created", "moved_to"}:
                            # Before it is told: what its reader does there then is heard.
                            inside = await self._watch_below(link, [event.path], places)
                        yield event
                        told.discard(event.path)
                        for one in inside:
                            if event.kind == "created" and one.path not in told:
                                told.add(one.path)
                                yield FileEvent("created", one.path, one.is_dir)
        finally:
            if fd >= 0:
                os.close(fd)
            link.close()

    async def _watch_one(self, link: FileLink, path: str, places: dict[int, str]) -> int:
        """Watch a directory; the inotify descriptor where this is the first."""
        ask = Ask(p.FILE_WATCH, path)
        frame = (await self._answers(link, ask, PATIENCE_S))[0]
        places[frames.attributes(frame.payload).u32(p.TAG_COMMAND)] = path
        return frame.fds[0] if frame.fds else -1

    async def _watch_below(
        self, link: FileLink, directories: Iterable[str], places: dict[int, str]
    ) -> tuple[FileInfo, ...]:
        """Watch directories and all below them; what is there.

        Each is looked into when it is watched: what comes later is told by events, and what is in both is
        the caller's to see.
        """
        found: tuple[FileInfo, ...] = ()
        left = [*directories]
        while left:
            here = left.pop()
            # It may have gone, or become something else, meanwhile. That no more can be watched is an error.
            with unless_gone():
                await self._watch_one(link, here, places)
                inside = await self.list(here)
                found += inside
                left += [one.path for one in inside if one.is_dir]
        return found

    async def usage(self) -> Metrics:
        """As `AsyncSandbox.metrics`."""
        frame, _ = await self._ask(Ask(p.FILE_USAGE, "/"))
        found = frames.attributes(frame.payload)
        return Metrics(
            user_ms=found.u64(p.TAG_USER_NS) / 1e6,
            system_ms=found.u64(p.TAG_SYSTEM_NS) / 1e6,
            memory_bytes=found.u64(p.TAG_MEMORY_BYTES),
            processes=found.u32(p.TAG_PROCESS_COUNT),
            threads=found.u32(p.TAG_THREAD_COUNT),
            disk_bytes=found.u64(p.TAG_FILE_BYTES),
            disk_limit=found.u64(p.TAG_DISK_BYTES),
            files=found.u64(p.TAG_FILE_COUNT),
            files_limit=found.u64(p.TAG_DISK_INODES),
            shared_bytes=found.u64(p.TAG_SHARED_BYTES),
            shm_bytes=found.u64(p.TAG_SHM_PEAK),
            shm_limit=found.u64(p.TAG_SHM_BYTES),
            shm_files=found.u64(p.TAG_SHM_FILE_COUNT),
            shm_files_limit=found.u64(p.TAG_SHM_INODES),
        )

    async def processes(self) -> tuple[Process, ...]:
        """As `AsyncSandbox.processes`."""
        return processes_of(await self._whole(Ask(p.FILE_PROCESSES, "/")))

    async def base(self) -> tuple[str, int]:
        """The core that has the sandbox, and which root is below all snapshots there; not for users."""
        frame, _ = await self._ask(Ask(p.FILE_BASE, "/"))
        core = (await self._commands.known()).core_id
        return core, frames.attributes(frame.payload).u64(p.TAG_BASE)

    # --- the way to the server ----------------------------------------------------------------------------

    async def absolute(self, path: Path) -> str:
        """`path` as it is told of files: from the root on, and without ``.`` and ``..``."""
        return "/" + posixpath.normpath(await self._path(path)).lstrip("/")

    async def _path(self, path: Path) -> str:
        return check_path(path, (await self._commands.known()).home)

    async def infos(self, ask: Ask, patience: float = PATIENCE_S) -> Raws:
        """What the file server tells; not for users."""
        return ask.infos(await self._whole(ask, patience))

    async def _whole(self, ask: Ask, patience: float = PATIENCE_S) -> Frames:
        """An answer in any number of parts."""
        for _ in range(TRIES):
            link = await self._link()
            try:
                return await self._answers(link, ask, patience)
            except Stale:
                continue
            finally:
                self._give_back(link)
        raise DaemonLost("core_lost", "the sandbox's file server ends whenever it is asked")

    async def _ask(self, ask: Ask, patience: float = PATIENCE_S) -> tuple[frames.Frame, Sequence[int]]:
        """The one answer; its descriptors are the caller's."""
        for _ in range(TRIES):
            link = await self._link()
            try:
                (frame,) = await self._answers(link, ask, patience)
                return frame, frame.fds
            except Stale:
                continue
            finally:
                self._give_back(link)
        raise DaemonLost("core_lost", "the sandbox's file server ends whenever it is asked")

    async def _answers(self, link: FileLink, ask: Ask, patience: float) -> Frames:
        link.send(ask.kind, ask.payload())
        deadline = time.monotonic() + patience
        found: Frames = []
        # No answer is there at once: to look first would be a system call for nothing.
        await self._commands.wait_link(link, deadline)
        while link.busy:
            try:
                frame = link.receive()
            except EOFError:
                link.close()
                await self._server_gone(link)
                raise AssertionError from None
            if frame is None:
                await self._commands.wait_link(link, deadline)
            elif frame.kind == p.ERROR:
                raise ask.refusal(frame)
            else:
                found.append(frame)
        return found

    async def _server_gone(self, link: FileLink) -> None:
        """Raise the cause: core ends a file server with its sandbox."""
        link.close()
        raise await self._commands.why_gone(DaemonLost("core_lost", "the sandbox's file server has ended"))

    async def _link(self) -> FileLink:
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if link.is_alive():
                return link
            link.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                await self._commands.ask_core(
                    p.FILES, lambda lane: u64(p.TAG_SANDBOX, lane.number), fds=[theirs.fileno()]
                )
        except BaseException:
            ours.close()
            raise
        return FileLink(ours)

    def _give_back(self, link: FileLink) -> None:
        if link.busy or link.poller.closed or len(self._idle) >= IDLE_MAX:
            link.close()
        else:
            self._idle.append(link)

    def close(self) -> None:
        """End the conversation; the next call begins another."""
        while self._idle:
            self._idle.pop().close()


def _flags(mode: str) -> int:
    known: dict[str, int] = {
        "r": p.FILE_READ,
        "w": p.FILE_WRITE | p.FILE_CREATE | p.FILE_TRUNCATE | p.FILE_PARENTS,
        "a": p.FILE_WRITE | p.FILE_CREATE | p.FILE_APPEND | p.FILE_PARENTS,
        "x": p.FILE_WRITE | p.FILE_CREATE | p.FILE_EXCLUSIVE | p.FILE_PARENTS,
    }
    letters = str(mode).replace("b", "", 1)
    both = p.FILE_READ | p.FILE_WRITE if letters.endswith("+") else 0
    base = letters.removesuffix("+")
    if base not in known or "b" not in mode:
        raise InvalidRequest.of("mode", f"{mode!r:.20} is none of rb, wb, ab, xb, with or without +")
    return known[base] | both


def _fits(names: list[str], wanted: list[str]) -> bool:
    if not wanted:
        return not names
    if wanted[0] == "**":
        return any(_fits(names[at:], wanted[1:]) for at in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], wanted[0]) and _fits(names[1:], wanted[1:])


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _read_events(fd: int, places: dict[int, str]) -> list[FileEvent]:
    with contextlib.suppress(BlockingIOError):
        return list(events_of(os.read(fd, 1 << 16), places))
    return []
