"""forkd's guest protocol: opened for a sandbox, and what it answers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from ramet.errors import InvalidRequest
from ramet.models.executions import Execution
from ramet.models.results import CommandResult
from ramet.models.sandboxes import SandboxInfo
from ramet.server.guests import Guest
from ramet.server.routes.common import ERRORS, Admin, Asker, Json
from ramet.server.tenants import Tenant

router = APIRouter(prefix="/v1", responses=ERRORS, tags=["guests"])


@router.post("/sandboxes/{sandbox_id}/guest", status_code=201)
async def open_guest(sandbox_id: str, tenant: Asker, _who: Admin) -> Response:
    """Speak forkd's guest protocol for it at a port of the server's loopback, which asks for no token."""
    info = await tenant.find(sandbox_id)
    if info.id not in tenant.guests:
        tenant.guests.add(info.id, await Guest.open(_Agent(tenant, info.id)))
    return Json({"guest_addr": tenant.guests.address(info.id)}, 201)


@router.delete("/sandboxes/{sandbox_id}/guest", status_code=204)
async def close_guest(sandbox_id: str, tenant: Asker) -> Response:
    """Stop that."""
    if not tenant.guests.close((await tenant.known(sandbox_id)).id):
        raise InvalidRequest.of("sandbox", "has no guest port", code="not_found")
    return Response(status_code=204)


class _Agent:
    """A tenant's sandbox, as the guest protocol has it."""

    def __init__(self, tenant: Tenant, sandbox: str) -> None:
        self._tenant = tenant
        self._sandbox = sandbox

    async def info(self) -> SandboxInfo:
        return await self._tenant.find(self._sandbox)

    async def run(self, args: list[Any], timeout: float) -> CommandResult:
        async with self._tenant.kept(self._sandbox):
            return await (await self._tenant.commands(self._sandbox)).run(args, timeout=timeout)

    async def code(self, code: str) -> Execution:
        async with self._tenant.kernel(self._sandbox) as held:
            return await held.run_code(code)
