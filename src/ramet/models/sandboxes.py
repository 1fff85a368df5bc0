"""Sandboxes that stay, their forks and their snapshots: what is asked for, and what is told of them.

As in `operations`, requests check themselves on both sides. What a child of a fork has from its parent cannot
be asked for: its memory, environment, directory and root are the parent's. Of limits that are resource limits
of a process it can have less than its parent, not more.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, TypeVar

from ramet.errors import InvalidRequest
from ramet.models.keeping import check_keep_on
from ramet.models.limits import (
    BY_NAME,
    Limits,
    enforced_by,
    parse_limit,
    parse_seconds,
    shown,
    unsupported_limit,
)
from ramet.models.names import check_name, check_text
from ramet.models.operations import Python, RunEnd, RunRequest
from ramet.models.results import limit_of
from ramet.models.users import ROOT, parse_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ramet.models.operations import Text

    T = TypeVar("T")
    PerChild: TypeAlias = T | list[T] | tuple[T, ...]

OnUnsupported = Literal["refuse", "drop"]
"""What becomes of what a fork cannot carry."""
FORK_MAX = 1000
"""Most children of one call."""
TTL_S = 300.0
"""How long a detached sandbox lives that nobody is attached to and nobody asks for anything."""
TTL_MAX_S = 7 * 86400.0
CHANNELS = ("packets", "lines")
"""Kinds of channels: messages that are read whole (SOCK_SEQPACKET), or lines (SOCK_STREAM)."""
WORKSPACE = "/workspace"
"""Where a directory of the host is copied to when a sandbox is made."""
HOME_MAX = 1024
METADATA_MAX = 16384
"""Most bytes of what is noted of a sandbox, as JSON in ASCII."""
SNAPSHOT_METADATA_MAX = 4 << 20
"""As `METADATA_MAX`, of a snapshot: a template has its recipe and its log there."""
PAUSED = "paused"
"""What of a snapshot's metadata says that its sandbox was paused: the name that it had."""
BUILT_IN = {"python": "python", "bash": "bash", "node": "node", "base": "bash"}
"""Names of templates that are made on their first use, and the kernels in them."""


def _ttl(value: object, *, detach: bool) -> float | None:
    if not detach:
        if value is not None:
            raise InvalidRequest.of("ttl", "is for detached sandboxes; this one ends with its owner")
        return None
    if value is None:
        return TTL_S
    seconds = parse_seconds(value, "ttl")
    if not 1 <= seconds <= TTL_MAX_S:
        text = f"{shown(value)} is out of range: from 1 to {TTL_MAX_S:g} seconds"
        raise InvalidRequest.of("ttl", text, code="out_of_range")
    return float(seconds)


def _timeout(value: object) -> float | None:
    return None if value is None else float(parse_limit(BY_NAME["wall"], value, "timeout"))


def _smaller(one: float | None, other: float | None) -> float | None:
    return min([float(value) for value in (one, other) if value is not None], default=None)


def flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest.of(field, f"{shown(value)} is neither true nor false")
    return value


def only(data: Mapping[str, Any], known: Iterable[str]) -> None:
    if unknown := data.keys() - set(known):
        raise InvalidRequest.of(min(unknown), "is not known to this version", code="unknown_option")


def check_sandbox(value: object, field: str = "sandbox") -> str:
    """`value` as an id or a name of a sandbox. Raises InvalidRequest naming `field`."""
    return check_name(check_text(value, field), field)


class KernelRef(NamedTuple):
    """That a sandbox's command is a kernel: its name, and the kind of channel."""

    name: str
    channel: str

    @classmethod
    def from_wire(cls, data: object) -> Self | None:
        """From JSON. Raises InvalidRequest naming ``kernel``."""
        if data is None:
            return None
        if not isinstance(data, (list, tuple)) or len(data) != 2 or data[1] not in CHANNELS:
            raise InvalidRequest.of("kernel", f"must be a name and one of {', '.join(CHANNELS)}")
        return cls(check_name(check_text(data[0], "kernel"), "kernel"), data[1])


@dataclasses.dataclass(frozen=True, slots=True)
class CreateRequest:
    """A sandbox for one command, which stays until the command ends. Made by `of` or `from_wire`.

    `run` holds the command and where it runs; its limit ``wall`` does not count, `timeout` does: seconds
    until everything in the sandbox is killed, None for never. `ttl` is None unless the sandbox is detached.
    With `kernel` the command gets a channel. `held`: it stands, and its command waits for ``sandbox.begin``.
    `tools` are directories of the host that are shown inside. `keep_on` names the ends before which a
    snapshot is taken. `user` is whose the command is, and later ones where nobody says otherwise.
    """

    run: RunRequest
    name: str | None = None
    timeout: float | None = None
    detach: bool = False
    ttl: float | None = None
    kernel: KernelRef | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    held: bool = False
    tools: tuple[str, ...] = ()
    keep_on: tuple[str, ...] = ()
    user: tuple[int, int] = ROOT

    @classmethod
    def of(
        cls,
        command: str | Sequence[Text],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Text | None = None,
        root: Text | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        timeout: float | None = None,
        python: Python | None = None,
        name: str | None = None,
        detach: bool = False,
        ttl: float | None = None,
        kernel: KernelRef | None = None,
        metadata: Mapping[str, str] | None = None,
        tools: Sequence[Text] = (),
        keep_on: Sequence[str] = (),
        user: int | str | None = None,
    ) -> Self:
        """The request for `command`. Raises InvalidRequest naming the argument at fault."""
        run = RunRequest.of(command, env=env, cwd=cwd, root=root, limits=limits, python=python)
        named = None if name is None else check_name(check_text(name, "name"))
        asked: Mapping[str, Any] = run.limits.asked() if isinstance(limits, Limits) else limits or {}
        timeout = _smaller(_timeout(timeout), run.limits.wall if asked.get("wall") is not None else None)
        return cls(
            run,
            named,
            _timeout(timeout),
            flag(detach, "detach"),
            _ttl(ttl, detach=detach),
            kernel,
            check_metadata(metadata),
            tools=_tools(tools, run.root),
            keep_on=check_keep_on(keep_on, [timeout]),
            user=parse_user(user),
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        data: dict[str, Any] = {"run": self.run.to_wire()}
        return data | _given(
            name=self.name,
            timeout=self.timeout,
            detach=self.detach or None,
            ttl=self.ttl,
            kernel=self.kernel,
            metadata=self.metadata or None,
            held=self.held or None,
            tools=self.tools or None,
            keep_on=self.keep_on or None,
            user=None if self.user == ROOT else f"{self.user[0]}:{self.user[1]}",
        )

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON, checked anew. Raises InvalidRequest naming the field at fault."""
        only(data, [field.name for field in dataclasses.fields(cls)])
        run = data.get("run")
        if not isinstance(run, dict) or "streams" in run or "fault" in run:
            raise InvalidRequest.of("run", "must be an object that describes a command")
        name, detach = data.get("name"), flag(data.get("detach", False), "detach")
        asked, timeout = RunRequest.from_wire(run), _timeout(data.get("timeout"))
        return cls(
            asked,
            None if name is None else check_name(check_text(name, "name")),
            timeout,
            detach,
            _ttl(data.get("ttl"), detach=detach),
            KernelRef.from_wire(data.get("kernel")),
            check_metadata(data.get("metadata")),
            flag(data.get("held", False), "held"),
            _tools(data.get("tools", ()), asked.root),
            check_keep_on(data.get("keep_on", ()), [timeout]),
            parse_user(data.get("user")),
        )


TOOLS_MAX = 16


def _tools(value: object, root: str | None) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest.of("tools", "must be a list of directories")
    paths = tuple([check_text(path, "tools") for path in value])
    if len(paths) > TOOLS_MAX:
        raise InvalidRequest.of("tools", f"are more than {TOOLS_MAX}", code="out_of_range")
    for path in paths:
        if not path.startswith("/"):
            raise InvalidRequest.of("tools", f"{path[:80]!r} is not an absolute path", code="not_absolute")
    if paths and root is not None:
        raise InvalidRequest.of("tools", "are for the default root: a root of yours has its own")
    return paths


def _given(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class Child:
    """What one child of a fork has of its own. `limits` are those that it has otherwise than its parent."""

    name: str | None = None
    limits: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout: float | None = None

    @classmethod
    def of(cls, name: object, limits: object, metadata: object, timeout: object) -> Self:
        """A checked one. Raises InvalidRequest."""
        changed = _fork_limits(limits)
        wall = changed.pop("wall", None)
        return cls(
            None if name is None else check_name(check_text(name, "name")),
            changed,
            check_metadata(metadata),
            _smaller(_timeout(timeout), wall),
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        return _given(
            name=self.name,
            limits=self.limits or None,
            metadata=self.metadata or None,
            timeout=self.timeout,
        )

    @classmethod
    def from_wire(cls, data: object) -> Self:
        """From JSON, checked anew. Raises InvalidRequest."""
        if not isinstance(data, Mapping):
            raise InvalidRequest.of("children", "must be a list of objects")
        only(data, ("name", "limits", "metadata", "timeout"))
        return cls.of(data.get("name"), data.get("limits"), data.get("metadata"), data.get("timeout"))


@dataclasses.dataclass(frozen=True, slots=True)
class ForkRequest:
    """A sandbox for each child, forked from the running sandbox `sandbox` or the snapshot `snapshot`."""

    sandbox: str | None = None
    snapshot: str | None = None
    children: tuple[Child, ...] = (Child(),)
    detach: bool = False
    ttl: float | None = None
    on_unsupported: OnUnsupported = "refuse"
    keep_on: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        sandbox: str | None = None,
        snapshot: str | None = None,
        n: int = 1,
        limits: PerChild[Mapping[str, Any] | None] = None,
        timeout: float | None = None,
        names: Sequence[str] | None = None,
        metadata: PerChild[Mapping[str, str] | None] = None,
        detach: bool = False,
        ttl: float | None = None,
        on_unsupported: object = "refuse",
        keep_on: Sequence[str] = (),
    ) -> Self:
        """The checked request for `n` children, with lists of `n` where they differ.

        Raises InvalidRequest naming the argument at fault.
        """
        if (sandbox is None) == (snapshot is None):
            raise InvalidRequest.of("sandbox", "a fork is of one sandbox or of one snapshot")
        if type(n) is not int or not 1 <= n <= FORK_MAX:
            text = f"{shown(n)} is no number of children: from 1 to {FORK_MAX}"
            raise InvalidRequest.of("n", text, code="out_of_range")
        rows = zip(
            per_child(names, n, "names"),
            per_child(limits, n, "limits"),
            per_child(metadata, n, "metadata"),
            strict=True,
        )
        children = tuple([Child.of(*row, timeout) for row in rows])
        _check_different([child.name for child in children if child.name is not None])
        return cls(
            None if sandbox is None else check_sandbox(sandbox),
            None if snapshot is None else check_name(check_text(snapshot, "snapshot"), "snapshot"),
            children,
            flag(detach, "detach"),
            _ttl(ttl, detach=detach),
            check_on_unsupported(on_unsupported, taken=snapshot is not None),
            check_keep_on(keep_on, [child.timeout for child in children]),
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        return _given(
            on_unsupported=None if self.on_unsupported == "refuse" else self.on_unsupported,
            sandbox=self.sandbox,
            snapshot=self.snapshot,
            children=[child.to_wire() for child in self.children],
            detach=self.detach or None,
            ttl=self.ttl,
            keep_on=self.keep_on or None,
        )

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON, checked anew. Raises InvalidRequest naming the field at fault."""
        only(data, [field.name for field in dataclasses.fields(cls)])
        children = data.get("children")
        if not isinstance(children, list):
            raise InvalidRequest.of("children", "must be a list of objects")
        checked = cls.of(
            sandbox=data.get("sandbox"),
            snapshot=data.get("snapshot"),
            n=len(children),
            detach=data.get("detach", False),
            ttl=data.get("ttl"),
            on_unsupported=data.get("on_unsupported", "refuse"),
        )
        made = tuple([Child.from_wire(child) for child in children])
        _check_different([child.name for child in made if child.name is not None])
        kept = check_keep_on(data.get("keep_on", ()), [child.timeout for child in made])
        return dataclasses.replace(checked, children=made, keep_on=kept)


@functools.lru_cache(maxsize=64)
def fork_of(snapshot: str) -> ForkRequest:
    """The request for one child of `snapshot` that has nothing of its own. Raises InvalidRequest."""
    return ForkRequest.of(snapshot=snapshot)


@dataclasses.dataclass(frozen=True, slots=True)
class ForkLaneRequest:
    """What a client needs to have core fork the snapshot, or the running sandbox, past the daemon.

    `limits` are those that the children have otherwise than the snapshot; `socket` asks for a lane, a
    connection to core.
    """

    snapshot: str | None = None
    limits: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    socket: bool = True
    sandbox: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        source = _given(snapshot=self.snapshot, sandbox=self.sandbox)
        return source | {"limits": dict(self.limits), "socket": self.socket}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming the field at fault."""
        only(data, ("snapshot", "limits", "socket", "sandbox"))
        limits = _fork_limits(data.get("limits"))
        if "wall" in limits:
            raise InvalidRequest.of("limits.wall", "is each child's own, not what all have in common")
        name, sandbox = data.get("snapshot"), data.get("sandbox")
        if (name is None) == (sandbox is None) or (sandbox is not None and limits):
            raise InvalidRequest.of("sandbox", "a lane is for one snapshot, or for one sandbox as it is")
        return cls(
            None if name is None else check_name(check_text(name, "snapshot"), "snapshot"),
            limits,
            flag(data.get("socket", True), "socket"),
            None if sandbox is None else check_sandbox(sandbox),
        )


def check_on_unsupported(value: object, *, taken: bool = False) -> OnUnsupported:
    """What is to become of what cannot be carried. Raises InvalidRequest naming ``on_unsupported``."""
    if value == "refuse":
        return "refuse"
    if value != "drop":
        raise InvalidRequest.of("on_unsupported", f"{shown(value)} is neither 'refuse' nor 'drop'")
    if taken:
        raise InvalidRequest.of("on_unsupported", "is for what runs: a snapshot has been taken already")
    return "drop"


def per_child(value: Any, n: int, field: str) -> list[Any]:
    """`value` for each of `n` children: the items of a list of `n`, or the same for all.

    Raises InvalidRequest naming `field`.
    """
    if not isinstance(value, (list, tuple)):
        if field == "names" and value is not None:
            raise InvalidRequest.of(field, f"must be a list of {n}")
        return [value] * n
    if len(value) != n:
        raise InvalidRequest.of(field, f"has {len(value)} items for {n} children")
    return list(value)


def _check_different(names: Sequence[str]) -> None:
    if len({*names}) < len(names):
        raise InvalidRequest.of("names", "one is given twice", code="name_taken")


def check_metadata(value: object) -> dict[str, str]:
    """`value` as what a user notes of a sandbox. Raises InvalidRequest naming ``metadata``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest.of("metadata", f"must be a mapping of text to text, not {type(value).__name__}")
    found = {check_text(name, "metadata"): check_text(text, "metadata") for name, text in value.items()}
    _check_metadata_size(found, METADATA_MAX)
    return found


def _check_metadata_size(found: Mapping[str, Any], most: int) -> None:
    # As it is kept, in core's record of a sandbox and in a snapshot's header: JSON in ASCII.
    try:
        size = len(json.dumps(found))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest.of("metadata", f"cannot be told as JSON: {error}") from None
    if size > most:
        text = f"takes more than {most} bytes as JSON in ASCII"
        raise InvalidRequest.of("metadata", text, code="too_long")


def _fork_limits(limits: object) -> dict[str, int | float]:
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        kind = type(limits).__name__
        raise InvalidRequest.of("limits", f"must be a mapping of what differs from the parent's, not {kind}")
    parsed = {}
    for name, value in limits.items():
        if not isinstance(name, str):
            raise InvalidRequest.of("limits", f"{name!r} is not the name of a limit")
        if name not in BY_NAME:
            raise unsupported_limit(name)
        parsed[name] = parse_limit(BY_NAME[name], value, f"limits.{name}")
    return parsed


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Keep the state of `sandbox` under `name`.

    Without `wait` the answer comes as soon as the state is taken; it is written to disk after that.
    """

    sandbox: str
    name: str
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    on_unsupported: OnUnsupported = "refuse"
    wait: bool = True

    @classmethod
    def of(
        cls,
        sandbox: str,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        on_unsupported: object = "refuse",
        *,
        wait: object = True,
    ) -> Self:
        """The checked request. Raises InvalidRequest."""
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidRequest.of("metadata", "must be a mapping")
        noted = dict(metadata or {})
        _check_metadata_size(noted, SNAPSHOT_METADATA_MAX)
        named = check_name(check_text(name, "name"))
        if named in BUILT_IN:
            raise InvalidRequest.of("name", f"{named!r} is a built-in template", code="name_taken")
        unsupported = check_on_unsupported(on_unsupported)
        return cls(check_sandbox(sandbox), named, noted, unsupported, flag(wait, "wait"))

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {**dataclasses.asdict(self), "metadata": dict(self.metadata)}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, ("sandbox", "name", "metadata", "on_unsupported", "wait"))
        return cls.of(
            data.get("sandbox", ""),
            data.get("name", ""),
            data.get("metadata"),
            data.get("on_unsupported", "refuse"),
            wait=data.get("wait", True),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxRequest:
    """One sandbox, by id or name."""

    sandbox: str

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"sandbox": self.sandbox}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, ("sandbox",))
        return cls(check_sandbox(data.get("sandbox", "")))


@dataclasses.dataclass(frozen=True, slots=True)
class BeginRequest:
    """Let the command of `sandbox` begin that was held; `home` is where further commands begin."""

    sandbox: str
    home: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, ("sandbox", "home"))
        home = data.get("home")
        if home is not None:
            home = check_text(home, "home")
            if not home.startswith("/") or len(home) > HOME_MAX:
                raise InvalidRequest.of("home", f"{shown(home)} is no absolute path", code="not_absolute")
        return cls(check_sandbox(data.get("sandbox", "")), home)


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotName:
    """One snapshot."""

    name: str

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming ``snapshot``."""
        only(data, ("name",))
        return cls(check_name(check_text(data.get("name", ""), "snapshot"), "snapshot"))


@dataclasses.dataclass(frozen=True, slots=True)
class ImportRequest:
    """Have the snapshot `name` of the store `store`, a directory of this user's.

    Without `named` it is the very file, which takes no room and has to build upon nothing; else a copy under
    that name, which builds upon nothing.
    """

    name: str
    store: str
    named: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming the field at fault."""
        only(data, ("name", "store", "named"))
        store, named = check_text(data.get("store", ""), "store"), data.get("named")
        if not store.startswith("/"):
            raise InvalidRequest.of("store", f"{store[:80]!r} is not an absolute path", code="not_absolute")
        return cls(
            check_name(check_text(data.get("name", ""), "snapshot"), "snapshot"),
            store,
            None if named is None else check_name(check_text(named, "named"), "named"),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RollbackRequest:
    """Have `sandbox` be again as it is in `snapshot`."""

    sandbox: str
    snapshot: str

    @classmethod
    def of(cls, sandbox: object, snapshot: object) -> Self:
        """A checked one. Raises InvalidRequest."""
        return cls(check_sandbox(sandbox), check_name(check_text(snapshot, "snapshot"), "snapshot"))

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, ("sandbox", "snapshot"))
        return cls.of(data.get("sandbox", ""), data.get("snapshot", ""))


@dataclasses.dataclass(frozen=True, slots=True)
class PromoteRequest:
    """Have `sandbox` take the place of `over`, which it was forked from; None: of the one it is a fork of."""

    sandbox: str
    over: str | None = None

    @classmethod
    def of(cls, sandbox: object, over: object = None) -> Self:
        """A checked one. Raises InvalidRequest."""
        return cls(check_sandbox(sandbox), None if over is None else check_sandbox(over, "over"))

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, ("sandbox", "over"))
        return cls.of(data.get("sandbox", ""), data.get("over"))


@dataclasses.dataclass(frozen=True, slots=True)
class ListRequest:
    """Which sandboxes to list: those that live, or `ended` ones as well, that fit all that is given.

    `since` is the mark of a list of all that live, and asks for what has changed since then; "" asks for all
    and a mark. `sandbox` is the id or name of one, `parent` an id or name, `snapshot` the name that they were
    forked from, `metadata` what must be noted.
    """

    ended: bool = False
    name: str | None = None
    parent: str | None = None
    snapshot: str | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sandbox: str | None = None
    since: str | None = None

    @classmethod
    def of(
        cls,
        *,
        ended: bool = False,
        name: str | None = None,
        parent: str | None = None,
        snapshot: str | None = None,
        metadata: Mapping[str, str] | None = None,
        sandbox: str | None = None,
        since: str | None = None,
    ) -> Self:
        """The checked request. Raises InvalidRequest."""
        made = cls(
            flag(ended, "ended"),
            None if name is None else check_sandbox(name, "name"),
            None if parent is None else check_sandbox(parent, "parent"),
            None if snapshot is None else check_sandbox(snapshot, "snapshot"),
            check_metadata(metadata),
            None if sandbox is None else check_sandbox(sandbox),
            None if since is None else check_text(since, "since"),
        )
        if made.since is not None and (made.ended or made.chooses):
            raise InvalidRequest.of("since", "is for a list of all that live")
        return made

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        return _given(
            ended=self.ended or None,
            name=self.name,
            parent=self.parent,
            snapshot=self.snapshot,
            metadata=self.metadata or None,
            sandbox=self.sandbox,
            since=self.since,
        )

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, [field.name for field in dataclasses.fields(cls)])
        return cls.of(**data)

    @property
    def chooses(self) -> bool:
        """Whether only some are meant of those that live, or have ended."""
        return bool(self.name or self.parent or self.snapshot or self.metadata or self.sandbox)

    def fits(self, info: SandboxInfo, parent: str | None) -> bool:
        """Whether a sandbox is meant; `parent` is the id of the one that was named."""
        return (
            self.name in {None, info.name}
            # An unknown one has no id, and neither has what was not forked a parent.
            and (self.parent is None or (info.parent is not None and info.parent in {parent, self.parent}))
            and self.snapshot in {None, info.snapshot}
            and self.sandbox in {None, info.id, info.name}
            and all(info.metadata.get(name) == value for name, value in self.metadata.items())
        )


# --- what is told -----------------------------------------------------------------------------------------


class ForkWay(NamedTuple):
    """How the memory of one process came into a snapshot, or a live fork.

    `pid` and `name` are as inside. `way` is ``twin``: no page was copied, as the process had a parked twin;
    ``frozen``: a copy-on-write copy of it was made in the pause, and read after that; ``copied``: it was so
    small that its pages were copied in the pause. `why` there was no twin: ``no_twin``: the sandbox comes
    from no fork, or its twin was lost; ``exec``: the process has called exec since; ``unforked``: it has
    memory that it keeps from its forks; ``failed``: the twin could not be forked; ``has_parent``: it is not
    the sandbox's first process. `copied_bytes` of its memory were copied. Of more than 128 processes the
    first 128 are told of.
    """

    pid: int
    name: str
    way: str
    why: str | None = None
    copied_bytes: int = 0

    @classmethod
    def parse(cls, lines: str) -> tuple[Self, ...]:
        """From what core tells: a line for each."""
        # Not splitlines(): names are the guest's, and may hold what that takes for an end.
        return tuple([cls._of_line(line) for line in lines.split("\n") if line])

    @classmethod
    def _of_line(cls, line: str) -> Self:
        pid, way, why, copied, name = line.split(" ", 4)
        return cls(int(pid), name, way, None if why == "-" else why, int(copied))

    @classmethod
    def from_wire(cls, data: Iterable[Sequence[Any]]) -> tuple[Self, ...]:
        """From JSON."""
        return tuple([cls(*one) for one in data])


def hostname_of(name: str | None, sandbox: str) -> str:
    """What a sandbox is called inside: by its name, else by its id."""
    return name or f"ramet-{sandbox[:8]}"


def how_it_ended(end: RunEnd | None, note: str | None, kept: str | None, kept_error: str | None) -> str:
    """An end in a few words; nothing while it lives. The rest is as in `SandboxInfo`."""
    if end is None:
        return ""
    if end.reason == "exit":
        return f"exit code {end.exit_code}" + (f", limit {end.reached}" if end.reached else "")
    if end.reason == "timeout":
        state = "" if kept is None else f", its state is kept as {kept}"
        return f"its time was up{state}" + ("" if kept_error is None else f", to keep it: {kept_error}")
    if end.reason == "idle":
        return "nothing in it ran for too long"
    if limit := limit_of(end.reason, end.reached):
        return f"its limit of {limit} was exceeded"
    return end.signal or f"{end.reason}: {note or 'nobody said why'}"


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One sandbox.

    `pid` is that of its command, inside; `created` and `ended` are seconds since the epoch. `parent` is the
    id of the sandbox that it was forked from, `snapshot` the name of the snapshot, where there was one.
    `setup_ms` counts from the request's arrival in core to the moment when the command ran. `pause_ms` tells
    how long the parent stood still for the fork, `by_twin` whether that copied no page of its first
    process's memory; both are None for what was not forked from a running sandbox. `ways` tells of each of
    the first 128 processes how its memory came along. `dropped` is what of its ancestors could not be carried
    and was left out, as was asked: "pid 57 python: fd 9 is a netlink socket".
    `single_uid` is true when only one user id exists
    inside. `end` is how it ended, `note` who ended it, where the command did not. `kernel` tells of one that
    runs code; `epoch` counts the forks from its first ancestor on; `metadata` is what its maker noted of it.
    `limits` are those that differ from the defaults; `cgroups` says which core has for them.
    `keep_on` are the ends before which a snapshot is taken; `kept` is the name of the one that was taken, and
    `kept_error` why there is none, or what is wrong with it.
    """

    id: str
    name: str | None
    status: Literal["running", "ended"]
    pid: int
    command: tuple[str, ...]
    created: float
    parent: str | None = None
    snapshot: str | None = None
    detached: bool = False
    ttl: float | None = None
    single_uid: bool = True
    setup_ms: float = 0.0
    pause_ms: float | None = None
    by_twin: bool | None = None
    ways: tuple[ForkWay, ...] = ()
    dropped: tuple[str, ...] = ()
    ended: float | None = None
    end: RunEnd | None = None
    note: str | None = None
    kernel: KernelRef | None = None
    epoch: int = 0
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cgroups: str = ""
    keep_on: tuple[str, ...] = ()
    kept: str | None = None
    kept_error: str | None = None

    @property
    def enforced_by(self) -> Mapping[str, str]:
        """What enforces each limit."""
        return enforced_by(self.cgroups)

    def with_own(self, own: Mapping[str, Any]) -> Self:
        """As dataclasses.replace(), which takes twice as long, for each child that is made."""
        return type(self)(
            *[own.get(name, value) for name, value in zip(_INFO_FIELDS, _values(self), strict=True)]
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {field: getattr(self, field) for field in _INFO_FIELDS}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        end = data.get("end")
        more = {
            "command": tuple(data["command"]),
            "ways": ForkWay.from_wire(data.get("ways", ())),
            "dropped": tuple(data.get("dropped", ())),
            "keep_on": tuple(data.get("keep_on", ())),
            "end": None if end is None else RunEnd._make(end),
            "kernel": KernelRef.from_wire(data.get("kernel")),
        }
        return cls(**{**data, **more})

    @property
    def hostname(self) -> str:
        """What it is called inside."""
        return hostname_of(self.name, self.id)

    def how_it_ended(self) -> str:
        """The end in a few words; nothing while it lives."""
        return how_it_ended(self.end, self.note, self.kept, self.kept_error)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object for people, with the end by its names."""
        return {
            **self.to_wire(),
            "ways": [way._asdict() for way in self.ways],
            "enforced_by": dict(self.enforced_by),
            "end": None if self.end is None else self.end._asdict(),
        }


_INFO_FIELDS = tuple(field.name for field in dataclasses.fields(SandboxInfo))
_values = operator.attrgetter(*_INFO_FIELDS)


@dataclasses.dataclass(frozen=True, slots=True)
class Metrics:
    """What a sandbox uses at the moment.

    Times are of its processes, those that ended too. `memory_bytes` is the sum of what is resident of each:
    pages that processes share count for each of them. `shared_bytes` of it others have as well: the snapshot
    that it was forked from, its other forks, whoever runs the same programs. `disk_bytes` of `disk_limit` are
    written to its files, which are `files` of `files_limit` files and directories; the like with `shm_` are
    those of a /dev/shm with a size of its own (the limit ``shm``), else 0: then they are among the others.
    """

    user_ms: float
    system_ms: float
    memory_bytes: int
    processes: int
    threads: int
    disk_bytes: int
    disk_limit: int
    files: int = 0
    files_limit: int = 0
    shared_bytes: int = 0
    shm_bytes: int = 0
    shm_limit: int = 0
    shm_files: int = 0
    shm_files_limit: int = 0

    @property
    def disk_full(self) -> bool:
        """Whether nothing more can be written, or no file be made: ``ENOSPC`` inside."""
        return self.disk_bytes >= self.disk_limit or 0 < self.files_limit <= self.files

    @property
    def shm_full(self) -> bool:
        """The same of a /dev/shm with a size of its own; of any other `disk_full` tells."""
        full = self.shm_bytes >= self.shm_limit or 0 < self.shm_files_limit <= self.shm_files
        return self.shm_limit > 0 and full

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**dataclasses.asdict(self), "disk_full": self.disk_full, "shm_full": self.shm_full}


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a sandbox at one instant, kept under a name.

    `memory_bytes` and `file_bytes` are what is kept of memory and of written files; `pause_ms` is how long
    the sandbox stood still, `capture_ms` how long it took to write down, `stem_ms` to be ready to be forked;
    `by_twin` says that no page of its first process's memory had to be copied for it, `ways` how the memory
    of each of the first 128 processes came along; `dropped` what was left out, as was asked. `kernel` is that
    of the sandbox, `metadata` what was noted of the snapshot.
    `sandbox` is the id of the one it was taken of, `created` seconds since the epoch. `durable` says whether
    it survives the end of the daemon; then `disk_bytes` is what it takes on disk by itself, and `parent` the
    snapshot that it builds upon. `damage` says what is wrong with one that cannot be read. `status` is
    ``writing`` until it is on disk, then ``ready``, or for some minutes ``failed`` for the reason `damage`.
    """

    name: str
    sandbox: str
    created: float
    pause_ms: float
    memory_bytes: int
    file_bytes: int
    processes: int = 1
    capture_ms: float = 0.0
    stem_ms: float = 0.0
    by_twin: bool = False
    ways: tuple[ForkWay, ...] = ()
    dropped: tuple[str, ...] = ()
    kernel: KernelRef | None = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    durable: bool = False
    disk_bytes: int = 0
    parent: str | None = None
    damage: str | None = None
    status: Literal["ready", "writing", "failed"] = "ready"

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object for people."""
        return {**self.to_wire(), "ways": [way._asdict() for way in self.ways]}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        more = {
            "kernel": KernelRef.from_wire(data.get("kernel")),
            "ways": ForkWay.from_wire(data.get("ways", ())),
            "dropped": tuple(data.get("dropped", ())),
        }
        return cls(**{**data, **more})


@dataclasses.dataclass(frozen=True, slots=True)
class ForkReport:
    """What a fork cost, and which children were not made: their number and the error as JSON.

    The first four are None for a fork of a snapshot, which is taken already.
    """

    pause_ms: float | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = None
    by_twin: bool | None = None
    errors: tuple[tuple[int, dict[str, Any]], ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**{**data, "errors": tuple([(number, error) for number, error in data["errors"]])})


@dataclasses.dataclass(frozen=True, slots=True)
class ForkLaneInfo:
    """What the plans of all children of a snapshot have in common, and which core understands it.

    `encoded` is base64 of attributes of core/PROTOCOL.md, SNAPSHOT first, `number` the snapshot's there; of
    a running sandbox there is none yet. `info` is what is told of a child, or of that sandbox, `record` what
    core is to keep of it; both without what is the child's own. `ahead` says whether children are forked
    ahead, and may be claimed; `told`, whether their kernels know by then whose life they live.
    """

    core_id: str
    number: int
    encoded: str
    info: SandboxInfo
    record: Mapping[str, Any]
    ahead: bool
    told: bool

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "info": self.info.to_wire()}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**{**data, "info": SandboxInfo.from_wire(data["info"])})


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxList:
    """Sandboxes, the oldest first.

    To a request with a mark those that have changed since then, with the `ids` of all, and the next `mark`.
    """

    sandboxes: tuple[SandboxInfo, ...]
    ids: tuple[str, ...] | None = None
    mark: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        told = {"sandboxes": [one.to_wire() for one in self.sandboxes]}
        return told | _given(ids=self.ids, mark=self.mark)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        ids = data.get("ids")
        told = tuple([SandboxInfo.from_wire(one) for one in data["sandboxes"]])
        return cls(told, None if ids is None else tuple(ids), data.get("mark"))


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotList:
    """Snapshots by name."""

    snapshots: tuple[Snapshot, ...]

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"snapshots": [one.to_wire() for one in self.snapshots]}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(tuple([Snapshot.from_wire(one) for one in data["snapshots"]]))
