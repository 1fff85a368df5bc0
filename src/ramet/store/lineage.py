"""Who was forked from what, kept in a database so that it is known after daemons and sandboxes have gone.

    $XDG_DATA_HOME/ramet/lineage.db    SQLite, in WAL mode

It is an index and nothing more: snapshots are what their files say, and running sandboxes are core's. So a
database that is lost, or cannot be read, is made anew from those, and what is lost is the past: the ancestors
that have ended. Several daemons may share it; of sandboxes that live each knows its own, by `place`.

It is opened for each transaction and closed after: a daemon that has nothing to write holds no file of it,
and notices at once when somebody took it away.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ramet.errors import SnapshotError
from ramet.store.places import check

if TYPE_CHECKING:
    import sqlite3

    from ramet.store.models import SnapshotInfo

NAME = "lineage.db"
VERSION = 1
BUSY_S = 5.0
PAST_MAX = 5000
"""Ended sandboxes that are kept though nothing living descends from them."""
PRUNE_AT = 1000
"""How many more than that there may be before the oldest are forgotten."""
_SCHEMA = """
CREATE TABLE sandboxes (
  id TEXT PRIMARY KEY, place TEXT NOT NULL, name TEXT, parent TEXT, snapshot INTEGER, command TEXT,
  created REAL NOT NULL, ended REAL, how TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE snapshots (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL, sandbox TEXT, parent TEXT, template TEXT,
  created REAL NOT NULL, removed REAL, UNIQUE (name, created)
) STRICT;
CREATE INDEX living ON sandboxes (place) WHERE ended IS NULL;
CREATE INDEX past ON sandboxes (ended) WHERE ended IS NOT NULL;
"""
# As sqlite3.h numbers them; upper bits tell more.
_CORRUPT, _NOT_A_DATABASE = 11, 26
# What a tree needs: all that lives, the snapshots there are, and the ancestors of both.
_KEPT = """
WITH RECURSIVE kept (id) AS (
  SELECT id FROM sandboxes WHERE ended IS NULL
  UNION SELECT sandbox FROM snapshots WHERE removed IS NULL AND sandbox IS NOT NULL
  UNION SELECT found.id FROM kept JOIN sandboxes AS below ON below.id = kept.id
    LEFT JOIN snapshots AS made ON made.number = below.snapshot
    JOIN sandboxes AS found ON found.id IN (below.parent, made.sandbox)
)
"""


class Born(NamedTuple):
    """A sandbox that lives. `snapshot` is the name of what it was forked from."""

    id: str
    name: str | None
    parent: str | None
    snapshot: str | None
    command: str
    created: float


class Ended(NamedTuple):
    """A sandbox that has ended, and how."""

    id: str
    ended: float
    how: str


class Kept(NamedTuple):
    """A snapshot that is on disk. `parent` is the name of what it builds upon, `template` its template's."""

    name: str
    created: float
    sandbox: str | None
    parent: str | None
    template: str | None


class Removed(NamedTuple):
    """A snapshot that was taken away."""

    name: str
    at: float


Change = Born | Ended | Kept | Removed


class Lineage:
    """The database. Every method blocks on the disk: call them in a thread."""

    def __init__(self, directory: str, place: str) -> None:
        """`directory` is the store's, `place` names the daemon whose sandboxes are told of."""
        self._path = f"{directory}/{NAME}"
        self._directory = directory
        self._place = place
        self._began = time.time()
        self._known: int | None = None
        """Which database it was that was compared last."""
        self._turn = threading.Lock()
        self._base: sqlite3.Connection | None = None
        self._looks: tuple[int, ...] | None = None

    def write(
        self, changes: Iterable[Change], living: Iterable[Born], saved: Callable[[], Iterable[SnapshotInfo]]
    ) -> str | None:
        """Note what happened. Why it had to be made anew, if it had to.

        `living`, and what `saved` gives, are what it is compared with at the first time, and made of when it
        is new.
        Raises SnapshotError when it cannot be written.
        """
        with self._translated():
            import sqlite3

            try:
                return self._transact(changes, living, saved)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._put_aside()
                self._transact(changes, living, saved)
                return f"it could not be read: {error}"

    def read(self, *, ended: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """(sandboxes, snapshots) of all trees in which something lives or is kept, or of all with `ended`.

        Raises SnapshotError.
        """
        with self._translated(), self._opened() as base:
            sandboxes = base.execute(  # nothing from outside is in the text
                f"{_KEPT} SELECT id, name, parent, snapshot, command, created, ended, how, place = ? AS own"  # noqa: S608
                " FROM sandboxes WHERE ? OR id IN kept ORDER BY created",
                (self._place, ended),
            )
            told = [dict(row) for row in sandboxes]
            snapshots = base.execute(
                f"{_KEPT} SELECT number, name, sandbox, parent, template, created, removed FROM snapshots"  # noqa: S608
                " WHERE ? OR removed IS NULL OR number IN (SELECT snapshot FROM sandboxes WHERE id IN kept)"
                " ORDER BY created",
                (ended,),
            )
            return told, [dict(row) for row in snapshots]

    def find(self, key: str) -> dict[str, Any] | None:
        """What is known of the sandbox of this id or name, of this daemon's. Raises SnapshotError."""
        with self._translated(), self._opened() as base:
            found = base.execute(
                "SELECT id, name, ended, how FROM sandboxes WHERE place = ? AND (id = ? OR name = ?)"
                " ORDER BY id = ? DESC, created DESC LIMIT 1",
                (self._place, key, key, key),
            ).fetchone()
            return None if found is None else dict(found)

    def _transact(
        self, changes: Iterable[Change], living: Iterable[Born], saved: Callable[[], Iterable[SnapshotInfo]]
    ) -> str | None:
        lost = None
        with self._opened() as base:
            known = base.execute("PRAGMA application_id").fetchone()[0]
            if self._known != known:
                snapshots = list(saved())
                new = base.execute("SELECT 1 FROM sandboxes UNION SELECT 1 FROM snapshots LIMIT 1").fetchone()
                # What was kept since this daemon began may be there before the first that is written of it.
                older = any(info.created < self._began for info in snapshots)
                if new is None and (older or self._known is not None):
                    lost = "it was gone"
                self._compare(base, list(living), snapshots)
            for change in changes:
                self._apply(base, change)
            self._prune(base)
        self._known = known
        return lost

    def _apply(self, base: sqlite3.Connection, change: Change) -> None:
        match change:
            case Born():
                self._born(base, change)
            case Ended():
                self._ended(base, change)
            case Kept():
                self._kept(base, change)
            case Removed():
                self._removed(base, change)

    def _compare(self, base: sqlite3.Connection, living: list[Born], saved: list[SnapshotInfo]) -> None:
        """Have it say what is so: of snapshots by their files, of this daemon's sandboxes by itself."""
        now = time.time()
        found = base.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _damaged(found)
        for info in saved:
            if info.damage is None:
                self._kept(base, kept_of(info))
        here = {info.name for info in saved}
        for number, name in base.execute(
            "SELECT number, name FROM snapshots WHERE removed IS NULL"
        ).fetchall():
            if name not in here:
                base.execute("UPDATE snapshots SET removed = ? WHERE number = ?", (now, number))
        for born in living:
            self._born(base, born)
        alive = {born.id for born in living}
        rows = base.execute("SELECT id FROM sandboxes WHERE ended IS NULL AND place = ?", (self._place,))
        for (sandbox,) in rows.fetchall():
            if sandbox not in alive:
                self._ended(base, Ended(sandbox, now, "lost with its daemon"))

    def _born(self, base: sqlite3.Connection, born: Born) -> None:
        number = base.execute(
            "SELECT number FROM snapshots WHERE name = ? AND created <= ? ORDER BY created DESC LIMIT 1",
            (born.snapshot, born.created),
        ).fetchone()
        base.execute(
            "INSERT INTO sandboxes VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL)"
            " ON CONFLICT (id) DO UPDATE SET ended = NULL, how = NULL, place = excluded.place",
            (born.id, self._place, born.name, born.parent, number and number[0], born.command, born.created),
        )

    def _ended(self, base: sqlite3.Connection, ended: Ended) -> None:
        base.execute(
            "UPDATE sandboxes SET ended = ?, how = ? WHERE id = ?", (ended.ended, ended.how, ended.id)
        )

    def _kept(self, base: sqlite3.Connection, kept: Kept) -> None:
        base.execute(
            "INSERT INTO snapshots (name, created, sandbox, parent, template) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (name, created) DO UPDATE SET removed = NULL",
            (kept.name, kept.created, kept.sandbox, kept.parent, kept.template),
        )

    def _removed(self, base: sqlite3.Connection, removed: Removed) -> None:
        base.execute(
            "UPDATE snapshots SET removed = ? WHERE name = ? AND removed IS NULL", (removed.at, removed.name)
        )

    def _prune(self, base: sqlite3.Connection) -> None:
        count = base.execute("SELECT count(*) FROM sandboxes WHERE ended IS NOT NULL").fetchone()[0]
        if count <= PAST_MAX + PRUNE_AT:
            return
        base.execute(
            f"{_KEPT} DELETE FROM sandboxes WHERE ended IS NOT NULL AND id NOT IN kept AND id NOT IN"  # noqa: S608
            " (SELECT id FROM sandboxes WHERE ended IS NOT NULL ORDER BY ended DESC LIMIT ?)",
            (PAST_MAX,),
        )
        base.execute(
            "DELETE FROM snapshots WHERE removed IS NOT NULL AND number NOT IN"
            " (SELECT snapshot FROM sandboxes WHERE snapshot IS NOT NULL)"
        )

    def close(self) -> None:
        """Let go of the file."""
        with self._turn:
            self._let_go()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """The database in one transaction, made if need be. Raises sqlite3.Error, OSError, SnapshotError."""
        with self._turn:
            try:
                base = self._connection()
                base.execute("BEGIN IMMEDIATE")
                self._prepare(base)
                yield base
                base.execute("COMMIT")
            except BaseException:
                self._let_go()
                raise

    def _connection(self) -> sqlite3.Connection:
        """The one that is kept: to close the last one copies all that was written, and awaits the disk."""
        import sqlite3

        if self._base is not None and self._looks != _looks_of(self._path):
            self._let_go()  # another file, or one that others have changed
        if self._base is None:
            for name in (os.path.dirname(self._directory) or ".", self._directory):
                os.makedirs(name, 0o700, exist_ok=True)
            check(self._directory)
            made = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.close(made)
            # Threads take turns.
            base = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._base = base
            base.row_factory = sqlite3.Row
            base.execute("PRAGMA journal_mode = WAL")
            # A power cut takes the last transactions, not the rest.
            base.execute("PRAGMA synchronous = NORMAL")
            base.execute("PRAGMA trusted_schema = OFF")
            self._looks = _looks_of(self._path)
        return self._base

    def _prepare(self, base: sqlite3.Connection) -> None:
        version = base.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in _SCHEMA.split(";")[:-1]:
                base.execute(statement)
            base.execute(f"PRAGMA user_version = {VERSION}")
            # One that takes its place may have its inode's number again.
            base.execute(f"PRAGMA application_id = {secrets.randbits(31)}")
        elif version != VERSION:
            text = f"the lineage in {self._path} is of version {version}, and this is {VERSION}"
            raise SnapshotError("lineage_unusable", text)

    def _let_go(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            base.close()

    def _put_aside(self) -> None:
        """What cannot be read is kept under another name, for who wants to look."""
        self.close()
        os.replace(self._path, f"{self._path}.damaged")
        for end in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path + end)
        self._known = None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            import sqlite3
        except ImportError:
            text = "the lineage cannot be kept: this Python has no sqlite3"
            raise SnapshotError("lineage_unusable", text) from None
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: text that is none
            text = f"the lineage cannot be kept in {self._path}: {error}"
            raise SnapshotError("lineage_unusable", text) from None


def _looks_of(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _damaged(how: str) -> sqlite3.DatabaseError:
    import sqlite3

    error = sqlite3.DatabaseError(how)
    error.sqlite_errorcode = _CORRUPT
    return error


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {_CORRUPT, _NOT_A_DATABASE}


def kept_of(info: SnapshotInfo) -> Kept:
    """A snapshot on disk, for the database."""
    kept: Mapping[str, Any] = info.metadata
    notes = kept.get("notes") or {}
    template = notes.get("template")
    name = template.get("name") if isinstance(template, dict) else None
    return Kept(
        info.name,
        kept.get("created", info.created),
        kept.get("parent") or None,
        info.parent and info.parent.name,
        name.encode("utf-8", "replace").decode() if isinstance(name, str) else None,
    )
