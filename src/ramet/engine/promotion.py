"""One sandbox in the place of another that it was forked from: under its id, with its name.

Core gives each of the two the other's number, and both their new records, in one step. So whenever somebody
dies the id is one living sandbox's, and the other's record says that it was replaced: a daemon that finds
such a one ends it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from ramet.errors import InvalidRequest, RametError
from ramet.native import _protocol as p
from ramet.native.frames import raw, u64

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from ramet.engine.records import Origin
    from ramet.engine.standing import Sandbox


def check_place(sandbox: Sandbox, over: Sandbox, found: Callable[[str | None], Sandbox | None]) -> None:
    """Refuse what cannot take the place. `found` gives one by its id. Raises InvalidRequest, RametError."""
    if not _descends(sandbox, over, found):
        raise InvalidRequest.of(
            "over", f"the sandbox {sandbox.label} was not forked from {over.label}", code="not_descendant",
            hint="only a fork, or a fork of one, takes a sandbox's place",
        )  # fmt: skip
    if over.ttl is not None and sandbox.ttl is None:
        raise InvalidRequest.of(
            "sandbox", f"the sandbox {sandbox.label} ends with its owner, and {over.label} does not",
            code="not_detached", hint="fork with detach=True",
        )  # fmt: skip
    for one in (sandbox, over):
        doing = _busy_with(one)
        if doing is not None:
            raise RametError("busy", f"the sandbox {one.label} {doing}")
        if one.capturing.locked():
            raise RametError("capturing", f"a snapshot of the sandbox {one.label} is being taken")


def _descends(sandbox: Sandbox, over: Sandbox, found: Callable[[str | None], Sandbox | None]) -> bool:
    seen = {sandbox.id}
    above = sandbox.origin.parent
    while above is not None and above not in seen:
        if above == over.id:
            return True
        seen.add(above)
        one = found(above)
        above = None if one is None else one.origin.parent
    return False


def _busy_with(sandbox: Sandbox) -> str | None:
    if sandbox.ending or sandbox.writing:
        return "is ending"
    if sandbox.first is not None:
        return "has not begun yet"
    return None


async def swap(sandbox: Sandbox, over: Sandbox, living: MutableMapping[int, Sandbox]) -> None:
    """Have `sandbox` be under the number of `over`, with its name, and that be under its own.

    Raises RametError, and then nothing was changed.
    """
    core = sandbox.core
    ttl = sandbox.ttl if over.ttl is None else over.ttl
    name = over.name or sandbox.name
    origin = _in_place(sandbox.origin, over.origin)
    replaced = over.id
    record = _record(sandbox, origin, name=name, ttl=ttl)
    payload = u64(p.TAG_SANDBOX, sandbox.number) + raw(p.TAG_RECORD, record)
    record = _record(over, over.origin, name=None, replaced=replaced)
    payload += u64(p.TAG_SANDBOX, over.number) + raw(p.TAG_RECORD, record)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # In the turn in which the answer is read: what core tells behind it is told under the new numbers.
    def answered(answer: object) -> None:
        numbers = (sandbox.number, over.number)
        if isinstance(answer, RametError):
            for one, number in zip((sandbox, over), numbers, strict=True):
                one.moved(number)
        else:
            sandbox.name, sandbox.ttl, sandbox.origin = name, ttl, origin
            over.name, over.replaced = None, replaced
            for one, number in zip((over, sandbox), numbers, strict=True):
                living[number] = one
                one.moved(number)
        if not done.done():
            if isinstance(answer, RametError):
                done.set_exception(answer)
            else:
                done.set_result(None)

    sandbox.moves()
    over.moves()
    core.connection.call(p.SWAP, payload, [], answered)
    await done


def _in_place(own: Origin, of: Origin) -> Origin:
    """Where a sandbox comes from that is in the place of another, so that no id is its own ancestor."""
    return dataclasses.replace(own, parent=of.parent, snapshot=of.snapshot, metadata=of.metadata)


def _record(sandbox: Sandbox, origin: Origin, **told: Any) -> bytes:
    data = {**sandbox.told(), "origin": dataclasses.asdict(origin), **told}
    return json.dumps(data, separators=(",", ":")).encode()
