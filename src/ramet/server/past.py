"""Forks that come through a tunnel and go past the tenant's daemon: over the server's lanes to core.

The client never sees a lane: it says what it would say to the daemon, and is told what that would tell.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ramet.client._async.client import FORK_PATIENCE_S
from ramet.client._forks import CoreLine
from ramet.errors import RametError
from ramet.models.forks import ForkReport, ForkRequest
from ramet.tunnel.conversations import SessionMessages
from ramet.wire import messages

if TYPE_CHECKING:
    from ramet.client._forks import Forking
    from ramet.client._held import Held
    from ramet.models.sandboxes import SandboxInfo
    from ramet.server.tenants import Tenant
    from ramet.tunnel.channels import Group, Item, Tunnel


class PastFork:
    """What core made of a fork, and what is left of it for the daemon."""

    def __init__(self, request: ForkRequest, forking: Forking | None) -> None:
        self.held: dict[int, Held] = {} if forking is None else forking.held
        self.left = list(range(len(request.children))) if forking is None else sorted(forking.refused)
        """The numbers of those that the daemon is asked for, which counts anew."""
        self._errors = {} if forking is None else forking.errors

    def left_of(self, args: dict[str, Any]) -> dict[str, Any]:
        """What the daemon is asked."""
        return {**args, "children": [args["children"][number] for number in self.left]}

    def report(self, told: dict[str, Any] | None) -> dict[str, Any]:
        """The report of all; `told`: the daemon's, of what it was asked for."""
        errors = {number: error.to_wire() for number, error in self._errors.items()}
        if told is None:
            return ForkReport(errors=tuple(sorted(errors.items()))).to_wire()
        errors |= {self.left[number]: error for number, error in told["errors"]}
        return {**told, "errors": sorted(errors.items())}

    def end(self) -> None:
        """Nobody hears of them."""
        for held in self.held.values():
            held.ask_end()
            held.close()
        self.held.clear()


async def fork(tenant: Tenant, args: dict[str, Any]) -> PastFork:
    """Have core make what it can of the request `args`. Raises RametError for one that makes no sense."""
    request = ForkRequest.from_wire(args)
    forking: Forking | None = None
    if request.snapshot is not None:
        forking = await tenant.client.fork_past_daemon(request, FORK_PATIENCE_S, plain=False)
    else:
        source = None
        # Why not is the daemon's to say.
        with contextlib.suppress(RametError):
            source = tenant.let_fork(await tenant.find(request.sandbox or ""))
        if source is not None:
            forking = await tenant.client.fork_live_past_daemon(request, source, FORK_PATIENCE_S, plain=False)
    return PastFork(request, forking)


class CoreSession(SessionMessages):
    """The hold on a sandbox that core made past the daemon, in the words of the daemon's sessions."""

    def __init__(self, tunnel: Tunnel, number: int, descriptor: int, group: Group, info: SandboxInfo) -> None:
        self._info = info
        super().__init__(tunnel, number, descriptor, group)

    def take(self) -> tuple[bytes, list[int]] | None:
        """What core says of it."""
        assert self.sock is not None  # noqa: S101  it was readable
        heard = CoreLine.hear(self.sock, self._info)
        if heard is None:
            return None
        told = {"signalled": True} if heard.end is None else {"ended": heard.to_wire()}
        return messages.encoded(told), []

    def give(self, item: Item) -> None:
        """Ask core."""
        assert self.sock is not None  # noqa: S101  it was attached
        message = messages.decoded(item.body)
        number = message.get("number")
        if message["op"] == "kill":
            CoreLine.ask_end(self.sock)
        elif type(number) is int and 1 <= number <= 64:
            CoreLine.ask_signal(self.sock, self._info, number)
