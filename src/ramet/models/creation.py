"""What a sandbox that stays is made of."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

from ramet.errors import InvalidRequest
from ramet.models.checks import (
    check_metadata,
    check_sandbox,
    checked_timeout,
    checked_ttl,
    flag,
    given,
    only,
    smaller,
)
from ramet.models.keeping import check_keep_on
from ramet.models.limits import Limits, shown
from ramet.models.names import check_name, check_text
from ramet.models.runs import RunRequest
from ramet.models.sandboxes import KernelRef
from ramet.models.users import ROOT, parse_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ramet.models.runs import Python, Text

WORKSPACE = "/workspace"
"""Where a directory of the host is copied to when a sandbox is made."""
HOME_MAX = 1024


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
        timeout = smaller(
            checked_timeout(timeout), run.limits.wall if asked.get("wall") is not None else None
        )
        return cls(
            run,
            named,
            checked_timeout(timeout),
            flag(detach, "detach"),
            checked_ttl(ttl, detach=detach),
            kernel,
            check_metadata(metadata),
            tools=_tools(tools, run.root),
            keep_on=check_keep_on(keep_on, [timeout]),
            user=parse_user(user),
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        data: dict[str, Any] = {"run": self.run.to_wire()}
        return data | given(
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
        asked, timeout = RunRequest.from_wire(run), checked_timeout(data.get("timeout"))
        return cls(
            asked,
            None if name is None else check_name(check_text(name, "name")),
            timeout,
            detach,
            checked_ttl(data.get("ttl"), detach=detach),
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
