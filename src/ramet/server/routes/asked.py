"""What requests for sandboxes may say: what goes together, what each child has, what no server can heed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ramet.errors import InvalidRequest
from ramet.models.forks import FORK_MAX, per_child
from ramet.server import schemas
from ramet.server.faults import Refused
from ramet.server.settings import Settings
from ramet.server.tokens import Identity

Asked: TypeAlias = schemas.SpawnRequest | schemas.ForkRequest
MIB = 1 << 20
_CALLERS: Mapping[str, tuple[object, str, str | None]] = {
    "detach": (True, "a server has no process that a sandbox could end with", "give a ttl, or end it"),
    "workspace": (
        None,
        "is a directory of the caller's, which the server does not see",
        "write its files when the sandbox stands",
    ),
    "python": (None, "is the server's, and no request has another", None),
    "from_venv": (False, "is the caller's, which the server does not see", "name the packages in pip"),
}
"""What the library takes and a server cannot: the value that asks for nothing, why, and what to do."""
_EACH = ("names", "env", "seed", "limits", "metadata")
_TAKEN = ("cwd", "root", "tools", "user")


def check_heeded(body: schemas.Asked) -> None:
    """That nothing is asked for that only the caller's own machine has. Raises InvalidRequest."""
    for field, (nothing, text, hint) in _CALLERS.items():
        if getattr(body, field, nothing) != nothing:
            raise InvalidRequest.of(field, text, code="unsupported", hint=hint)


def check_spawn(body: schemas.SpawnRequest) -> list[schemas.ChildRequest]:
    """What each sandbox has of its own. Raises InvalidRequest, Refused."""
    check_heeded(body)
    children = children_of(body)
    sources = [one for one in (body.snapshot_tag, body.command, body.kernel) if one is not None]
    if len(sources) != 1:
        text = "missing" if not sources else "a sandbox has a snapshot, a command, or a kernel"
        raise Refused(422, "missing", f"snapshot_tag: {text}", field="snapshot_tag")
    if body.snapshot_tag is not None:
        for field in _TAKEN:
            if getattr(body, field):
                raise InvalidRequest.of(field, "is the snapshot's own, and no fork has another")
    elif len(children) > 1:
        field = "n" if body.children is None else "children"
        raise InvalidRequest.of(field, "is for forks of a snapshot: a fresh sandbox is made alone")
    return children


def children_of(body: Asked) -> list[schemas.ChildRequest]:
    """What each child has of its own. Raises InvalidRequest."""
    if body.children is None:
        n = _in_bounds(1 if body.n is None else body.n, "n")
        return [
            schemas.ChildRequest(
                name=name, env=body.env, seed=body.seed, limits=body.limits, metadata=body.metadata
            )
            for name in per_child(body.names, n, "names")
        ]
    for field in ("n", *_EACH):
        if field in body.model_fields_set and getattr(body, field) is not None:
            raise InvalidRequest.of(field, "and children say the same: give one of them")
    _in_bounds(len(body.children), "children")
    named = [one.name is not None for one in body.children]
    if any(named) and not all(named):
        raise InvalidRequest.of("children", "have a name all of them, or none")
    return body.children


def _in_bounds(n: int, field: str) -> int:
    if not 1 <= n <= FORK_MAX:
        text = f"{n} is no number of sandboxes: from 1 to {FORK_MAX}"
        raise InvalidRequest.of(field, text, code="out_of_range")
    return n


def names_of(children: Sequence[schemas.ChildRequest]) -> list[str] | None:
    """The names of all, or None where they have none."""
    return [one.name for one in children if one.name is not None] or None


def memory_of(limits: Mapping[str, Any] | None, mib: int | None) -> dict[str, Any] | None:
    """The limits asked for, `memory_limit_mib` among them. Raises InvalidRequest."""
    if mib is None:
        return None if limits is None else dict(limits)
    if limits is not None and "memory" in limits:
        raise InvalidRequest.of("memory_limit_mib", "and limits.memory say the same: give one of them")
    return {**(limits or {}), "memory": mib * MIB}


def checked_root(root: str | None, who: Identity, how: Settings, field: str = "root") -> str | None:
    """A directory of the host that this one may name. Raises Refused, InvalidRequest."""
    if root is None:
        return None
    if not who.may("admin"):
        raise Refused(403, "forbidden", "to name a directory of the host needs the scope admin", field=field)
    real = os.path.realpath(root)
    if not any(real == one or real.startswith(f"{one}/") for one in how.roots):
        raise Refused(
            403, "forbidden", f"{field}: {root!r:.200} is below none of the directories of --allow-root",
            field=field,
        )  # fmt: skip
    return real
