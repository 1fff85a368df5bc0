"""forkd's guest protocol: opened for a sandbox, and what it answers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from ramet.errors import InvalidRequest
from ramet.server.guests import Guest
from ramet.server.routes.common import ERRORS, Admin, Asker, Json
from ramet.server.tenants import Tenant

router = APIRouter(prefix="/v1", responses=ERRORS, tags=["guests"])


@router.post("/sandboxes/{sandbox_id}/guest", status_code=201)
async def open_guest(sandbox_id: str, tenant: Asker, _who: Admin) -> Response:
    """Speak forkd's guest protocol for it at a port of the server's loopback, which asks for no token."""
    info = await tenant.find(sandbox_id)
    if info.id not in tenant.guests:

        async def answer(request: dict[str, Any]) -> dict[str, Any]:
            return await answered(tenant, info.id, request)

        guest = await Guest.open(answer)
        if (before := tenant.guests.setdefault(info.id, guest)) is not guest:
            guest.close()
            guest = before
    return Json({"guest_addr": tenant.guest_address(info.id)}, 201)


@router.delete("/sandboxes/{sandbox_id}/guest", status_code=204)
async def close_guest(sandbox_id: str, tenant: Asker) -> Response:
    """Stop that."""
    guest = tenant.guests.pop(sandbox_id, None)
    if guest is None:
        raise InvalidRequest.of("sandbox", "has no guest port", code="not_found")
    guest.close()
    return Response(status_code=204)


async def answered(tenant: Tenant, sandbox: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one line. Raises RametError."""
    action = request.get("action")
    if action == "ping":
        info = await tenant.find(sandbox)
        kernel = info.kernel and info.kernel.name
        return {
            "pong": True, "numpy_version": None, "pid": info.pid, "agent_lang": kernel or "none",
            "warmup_ready": kernel is not None,
        }  # fmt: skip
    if action == "exec":
        args, timeout = request.get("args"), request.get("timeout", 30)
        if not isinstance(args, list) or not args:
            raise InvalidRequest.of("args", "must be a list of words")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise InvalidRequest.of("timeout", "must be a number of seconds")
        result = await (await tenant.commands(sandbox)).run(args, timeout=timeout)
        told: dict[str, Any] = {
            "stdout": result.stdout, "stderr": result.stderr, "exit_code": result.exit_code,
        }  # fmt: skip
        return told | ({"error": "the command ran out of time"} if result.timed_out else {})
    if action == "eval":
        code = request.get("code")
        if not isinstance(code, str):
            raise InvalidRequest.of("code", "must be text")
        async with tenant.kernel(sandbox) as held:
            done = await held.run_code(code)
        if done.ok:
            return {"result": done.text, "exit_code": 0}
        lines = "\n".join(done.error.traceback) if done.error else ""
        error = f"{done.error.name}: {done.error.value}" if done.error else f"the code ended: {done.reason}"
        return {"error": error, "traceback": lines, "exit_code": 1}
    raise InvalidRequest.of("action", f"{action!r:.40} is none of ping, exec, eval")
