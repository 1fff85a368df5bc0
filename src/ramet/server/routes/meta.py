"""The server itself: whether it is well, which it is, what it counts, and its end."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import PlainTextResponse

from ramet._version import __version__
from ramet.errors import RametError
from ramet.server.guard import Guard
from ramet.server.routes.common import ERRORS, Admin, Asker, How, Json, Who
from ramet.server.tenants import Tenants

router = APIRouter(responses=ERRORS, tags=["server"])
COMPATIBLE = "0.5.3"
"""The version of forkd whose clients were tried."""


@router.get("/healthz")
@router.get("/healthz/", include_in_schema=False)
async def healthz() -> Response:
    """Whether the server answers. It needs no token."""
    return Json({"ok": True})


@router.get("/version")
async def version() -> Response:
    """Which server this is."""
    return Json({"version": __version__, "api": "v1", "forkd": COMPATIBLE})


@router.get("/v1/me")
async def me(who: Who, tenant: Asker) -> Response:
    """Whose token this is, and what it allows."""
    quota = {name: getattr(who.quota, name) for name in who.quota.__slots__}
    return Json({"tenant": who.tenant, "token": who.token, "scope": who.scope, "quota": quota,
                 "streams": tenant.streams})  # fmt: skip


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, _who: Admin, how: How) -> Response:
    """For Prometheus: what all tenants have, and how requests went."""
    tenants: Tenants = request.app.state.tenants
    living = snapshots = 0
    rows: list[tuple[str, str, list[tuple[str, float]]]] = []
    for tenant in tenants.all():
        try:
            living += len(await tenant.all())
            snapshots += len(await tenant.snapshots())
        except RametError:
            rows.append(("ramet_tenant_up", "gauge", [(f'{{tenant="{tenant.name}"}}', 0)]))
    guard: Guard = request.app.state.guard
    counts = guard.counts
    active = sum(one.branching for one in tenants.all())
    rows += [
        ("forkd_snapshots_total", "gauge", [("", snapshots)]),
        ("forkd_sandboxes_active", "gauge", [("", living)]),
        ("forkd_branches_in_flight", "gauge", [("", active)]),
        ("forkd_branch_concurrency_cap", "gauge", [("", how.branches)]),
        ("forkd_build_info", "gauge", [(f'{{version="{__version__}"}}', 1)]),
        ("ramet_requests_active", "gauge", [("", counts.active)]),
        ("ramet_streams_active", "gauge", [("", sum(one.streams for one in tenants.all()))]),
        ("ramet_tenants", "gauge", [("", len(tenants.all()))]),
        ("ramet_draining", "gauge", [("", int(tenants.draining))]),
        ("ramet_audit_lost_total", "counter", [("", guard.audit.lost)]),
        ("ramet_requests_total", "counter", [
            (f'{{method="{method}",status="{status}"}}', number)
            for (method, status), number in sorted(counts.requests.items())
        ]),
        ("ramet_request_seconds_total", "counter", [
            (f'{{method="{method}"}}', seconds) for method, seconds in sorted(counts.seconds.items())
        ]),
    ]  # fmt: skip
    lines = []
    for name, kind, samples in rows:
        lines.append(f"# TYPE {name} {kind}")
        lines += [f"{name}{labels} {value:g}" for labels, value in samples]
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


@router.post("/v1/drain")
async def drain(
    request: Request,
    _who: Admin,
    deadline: Annotated[float, Query(ge=0, le=86400, description="Seconds.")] = 300.0,
) -> Response:
    """Take no more sandboxes, wait until those of all tenants have ended, and end what is left then."""
    tenants: Tenants = request.app.state.tenants
    tenants.draining = True
    loop = asyncio.get_running_loop()
    until = loop.time() + deadline
    while (left := await _living(tenants)) and loop.time() < until:  # noqa: ASYNC110  their ends are no events here
        await asyncio.sleep(min(1.0, max(until - loop.time(), 0.0)))
    for tenant in await tenants.standing():
        await tenant.shut_down()
    if tenants.public is not None:
        await tenants.public.shut_down()
    return Json({"ended": left})


async def _living(tenants: Tenants) -> int:
    return sum([len(await tenant.all()) for tenant in await tenants.standing()])
