"""The table of operations as a tunnel serves it: what each needs, what it may take, and what it is refused.

What counts for the paths of REST counts here, operation by operation: scopes, quotas, rate, drain and audit.
A client never names a path of this machine: what would be one is refused by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from ramet.client._async import templates
from ramet.client._start import interpreter
from ramet.errors import InvalidRequest, RametError
from ramet.models.snapshots import BUILT_IN, SnapshotList
from ramet.server.faults import Refused
from ramet.server.public import read_only, tag_of
from ramet.server.routes.sandboxes import check_room
from ramet.server.settings import Settings
from ramet.server.tenants import OWN, Tenant, user_metadata
from ramet.server.tokens import Identity

SCOPES = {
    "ping": "read", "sandbox.list": "read", "events": "read", "lineage": "read", "snapshot.list": "read",
    "sandbox.commands": "read",
    "run": "run", "sandbox.create": "run", "sandbox.fork": "run", "sandbox.snapshot": "run",
    "sandbox.kill": "run", "sandbox.attach": "run", "sandbox.begin": "run", "sandbox.rollback": "run",
    "sandbox.promote": "run",
    "snapshot.compact": "run", "snapshot.remove": "run", "template.build": "run",
    "server.load": "read",
    "doctor": "admin", "status": "admin",
}  # fmt: skip
"""What a token needs. A lane that ``sandbox.commands`` gives takes only what reads, without `run`."""
REFUSED = {
    "lane": "plans for core name the host",
    "sandbox.lane": "plans for core name the host",
    "shutdown": "the daemon is the server's",
    "hand_over": "the daemon is the server's",
    "snapshot.import": "stores are directories of the host",
    "snapshot.pack": "a pack is a file of the host",
    "snapshot.unpack": "a pack is a file of the host",
}
"""Operations that a server has for nobody, and why."""
_TEMPLATE_FIELDS = frozenset(
    ("name", "from", "pip", "files", "env", "warm", "kernel", "warm_children")
)  # fmt: skip


class Gate:
    """What one client may ask, whose token was found to be good."""

    def __init__(
        self, tenant: Tenant, identity: Identity, settings: Settings, bound_rate: Callable[[], None]
    ) -> None:
        """`bound_rate` raises Refused for a tenant that asks too often."""
        self.tenant = tenant
        self.identity = identity
        self.settings = settings
        self.bound_rate = bound_rate

    def check(self, operation: str) -> None:
        """Raises RametError unless it may be asked at all."""
        self.bound_rate()
        if operation in REFUSED:
            raise InvalidRequest(
                "not_remote", f"a server has no {operation}: {REFUSED[operation]}", field="op"
            )
        needed = SCOPES.get(operation)
        if needed is None:
            raise InvalidRequest("unknown_operation", f"there is no operation {operation!r:.80}", field="op")
        self.need(needed)

    def need(self, scope: str) -> None:
        """Raises Refused for a token without that scope."""
        if not self.identity.may(scope):
            raise Refused(403, "forbidden", f"this token has not the scope {scope}")

    @contextlib.asynccontextmanager
    async def asked(self, operation: str, args: dict[str, Any]) -> AsyncIterator[dict[str, Any] | None]:
        """Room for an operation while it is under way; what this end answers itself, or None.

        `args` become what the tenant's daemon is asked.
        """
        tenant = self.tenant
        async with contextlib.AsyncExitStack() as using:
            if operation in {"run", "sandbox.create", "sandbox.fork", "template.build"}:
                check_room(tenant)
            if operation in {"run", "sandbox.create", "sandbox.fork"}:
                await using.enter_async_context(tenant.making(self.identity, _count(operation, args)))
            if operation in {"sandbox.snapshot", "template.build"}:
                name = args.get("name")
                kept = tenant.keeping(self.identity, name if isinstance(name, str) else "")
                await using.enter_async_context(kept)
            if operation == "sandbox.snapshot":
                using.enter_context(tenant.branch_of(self.settings.branches))
            answer = await self._prepared(operation, args)
            yield answer

    async def _prepared(self, operation: str, args: dict[str, Any]) -> dict[str, Any] | None:
        if operation == "run":
            _at_home(args)
        elif operation == "sandbox.create":
            self._create(args)
        elif operation == "sandbox.fork":
            await self._fork(args)
        elif operation in {"sandbox.attach", "sandbox.rollback", "sandbox.promote"}:
            self._give_way(args.get("sandbox"))
        elif operation == "template.build":
            return await self._build(args)
        elif operation == "sandbox.snapshot":
            await self._check_free(args.get("name"))
        elif operation == "snapshot.list":
            return {"ok": SnapshotList(await self.tenant.seen()).to_wire()}
        elif operation in {"snapshot.remove", "snapshot.compact"}:
            name = args.get("name")
            if isinstance(name, str) and await self.tenant.is_public(name):
                raise read_only(name)
        elif operation == "server.load":
            living = len(await self.tenant.told())
            room = self.identity.quota.sandboxes - living
            return {"ok": {"sandboxes": living, "room": 0 if self.tenant.draining() else max(0, room)}}
        return None

    def _create(self, args: dict[str, Any]) -> None:
        run = args.get("run")
        if isinstance(run, dict):
            _at_home(run)
        if args.get("tools"):
            raise _elsewhere("tools")
        args["metadata"] = user_metadata(args.get("metadata"))
        self._bound_life(args)

    async def _fork(self, args: dict[str, Any]) -> None:
        fresh, snapshot = args.pop("fresh", False) is True, args.get("snapshot")
        for child in args.get("children") or ():
            if isinstance(child, dict) and child.get("metadata"):
                user_metadata(child["metadata"])
        if isinstance(snapshot, str):
            args["snapshot"] = await self.tenant.source(snapshot)
            if snapshot in BUILT_IN:
                args["snapshot"] = await templates.ensure(snapshot, self.tenant.client, fresh=fresh)
        self._bound_life(args)

    async def _check_free(self, name: object) -> None:
        if isinstance(name, str):
            await self.tenant.check_free(name, "name")

    def _bound_life(self, args: dict[str, Any]) -> None:
        if args.get("detach") is True and args.get("ttl") is None:
            args["ttl"] = self.settings.ttl

    def _give_way(self, sandbox: object) -> None:
        """Whoever attaches has the kernel that this server would keep at hand."""
        for box in self.tenant.at_hand(sandbox):
            if not box.turn.locked():
                box.let_go()

    async def _build(self, args: dict[str, Any]) -> dict[str, Any]:
        if unknown := args.keys() - _TEMPLATE_FIELDS:
            raise InvalidRequest.of(min(unknown), "is not known to this version", code="unknown_option")
        # A requirement may be a path of the host, or an address that only the host reaches.
        if args.get("pip") and not self.identity.may("admin"):
            text = "packages are fetched by the host: this needs the scope admin"
            raise Refused(403, "forbidden", text, field="pip")
        await self._check_free(args.get("name"))
        if isinstance(args.get("from"), str):
            args["from"] = await self.tenant.source(args["from"])
        given = {("from_" if name == "from" else name): value for name, value in args.items()}
        async with self.tenant.making(self.identity, 1):
            built = await templates.build(given.pop("name", None), client=self.tenant.client, **given)
        return {"ok": built.snapshot.to_wire()}

    def heard(self, operation: str, answer: dict[str, Any]) -> None:
        """What the daemon answered is about to be told."""
        told = answer.get("ok")
        if (
            operation in {"sandbox.kill", "sandbox.promote"}
            and isinstance(told, dict)
            and isinstance(told.get("id"), str)
        ):
            self.tenant.forget(told["id"])
        for one in told.get("sandboxes", ()) if isinstance(told, dict) else ():
            without_own(one)
        if isinstance(told, dict):
            without_own(told)


def without_own(info: Any) -> None:
    """Take out of what is told of a sandbox what is the server's."""
    if isinstance(info, dict) and isinstance(info.get("snapshot"), str):
        info["snapshot"] = tag_of(info["snapshot"])
    metadata = info.get("metadata") if isinstance(info, dict) else None
    if isinstance(metadata, dict):
        info["metadata"] = {name: value for name, value in metadata.items() if not name.startswith(OWN)}


def _count(operation: str, args: dict[str, Any]) -> int:
    children = args.get("children") if operation == "sandbox.fork" else None
    return len(children) if isinstance(children, list) else 1


def _at_home(run: dict[str, Any]) -> None:
    """The interpreter shown is this machine's; no other directory of it is named from elsewhere."""
    if run.get("root") is not None:
        raise _elsewhere("root")
    if "fault" in run:
        raise InvalidRequest.of("fault", "is only for a daemon under test")
    own = interpreter()
    run.pop("python", None)
    if own is not None:
        run["python"] = own.to_wire()


def _elsewhere(field: str) -> RametError:
    return InvalidRequest.of(
        field, "names a directory of the machine that runs the sandbox, which is another one",
        code="not_remote", hint="workspace= and files.upload() bring files along",
    )  # fmt: skip
