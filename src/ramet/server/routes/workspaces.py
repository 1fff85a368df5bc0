"""Workspaces: made, put away, taken out again with the options they were made with, removed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import Any

from fastapi import APIRouter, Response

from ramet.client._async import sandbox as sandboxes
from ramet.errors import InvalidRequest, RametError
from ramet.models.checks import TTL_MAX_S
from ramet.models.names import check_name
from ramet.models.sandboxes import SandboxInfo
from ramet.models.snapshots import SnapshotRequest as Taking
from ramet.server import schemas
from ramet.server.routes.asked import memory_of
from ramet.server.routes.common import ERRORS, Asker, How, Json, Who
from ramet.server.routes.sandboxes import check_room
from ramet.server.tenants import NETNS, TAG, Tenant, new_id, replace_env, user_metadata
from ramet.server.tokens import Identity
from ramet.server.workspaces import Workspace

router = APIRouter(prefix="/v1/workspaces", responses=ERRORS, tags=["workspaces"])


def _told(one: Workspace) -> dict[str, Any]:
    told = dataclasses.asdict(one)
    del told["options"]
    return {name: value for name, value in told.items() if value is not None}


def _now(one: Workspace, living: set[str]) -> Workspace:
    """As it is: one whose sandbox has ended by itself is stale."""
    if one.status == "running" and one.live_sandbox_id not in living:
        return dataclasses.replace(one, status="stale", live_sandbox_id=None)
    return one


async def _living(tenant: Tenant) -> set[str]:
    return {one.id for one in await tenant.all()}


def _turn(tenant: Tenant, name: str) -> asyncio.Lock:
    return tenant.turns.setdefault(check_name(name), asyncio.Lock())


@router.get("", response_model=list[schemas.WorkspaceInfo], response_model_exclude_none=True)
async def list_workspaces(tenant: Asker) -> Response:
    """All of them."""
    living = await _living(tenant)
    return Json([_told(_now(one, living)) for one in tenant.workspaces.all().values()])


@router.post("", status_code=201, response_model=schemas.WorkspaceInfo, response_model_exclude_none=True)
async def create_workspace(body: schemas.WorkspaceRequest, tenant: Asker, who: Who) -> Response:
    """A sandbox under a name. It lives until it is put away or removed."""
    async with _turn(tenant, body.name):
        if body.name in tenant.workspaces.all():
            raise InvalidRequest.of("name", f"there is a workspace {body.name!r}", code="name_taken")
        options = {
            "limits": memory_of(body.limits, body.memory_limit_mib),
            "env": body.env,
            "metadata": user_metadata(body.metadata),
            "per_child_netns": body.per_child_netns,
        }
        info = await _start(tenant, who, body.snapshot_tag, body.name, options)
        now = int(time.time())
        made = Workspace(
            new_id("ws"), body.name, body.snapshot_tag, "running", now, now, live_sandbox_id=info.id,
            options=options,
        )  # fmt: skip
        try:
            tenant.workspaces.put(made)
        except BaseException:
            await tenant.kill(info.id)
            raise
    return Json(_told(made), 201)


async def _start(tenant: Tenant, who: Identity, tag: str, name: str, options: dict[str, Any]) -> SandboxInfo:
    noted = {**options["metadata"], TAG: tag, **replace_env(options["env"])}
    if options["per_child_netns"]:
        noted[NETNS] = f"ramet-{name}"
    check_room(tenant)
    async with tenant.making(who, 1):
        made = await sandboxes.fork(
            snapshot=await tenant.source(check_name(tag, "snapshot_tag")),
            env=options["env"],
            limits=options["limits"],
            metadata=noted,
            detach=True,
            ttl=TTL_MAX_S,
            client=tenant.client,
        )
    return tenant.take(made[0])


@router.get("/{name}", response_model=schemas.WorkspaceInfo, response_model_exclude_none=True)
async def get_workspace(name: str, tenant: Asker) -> Response:
    """One of them."""
    return Json(_told(_now(tenant.workspaces.get(check_name(name)), await _living(tenant))))


@router.delete("/{name}", status_code=204)
async def delete_workspace(name: str, tenant: Asker) -> Response:
    """End its sandbox and forget its state; what it was made of stays."""
    tenant.workspaces.get(check_name(name))
    async with _turn(tenant, name):
        one = _now(tenant.workspaces.get(name), await _living(tenant))
        if one.live_sandbox_id is not None:
            with contextlib.suppress(RametError):
                await tenant.kill(one.live_sandbox_id)
        await _forget_state(tenant, one)
        tenant.workspaces.remove(name)
    return Response(status_code=204)


async def _forget_state(tenant: Tenant, one: Workspace) -> None:
    if one.current_state_tag is None:
        return
    try:
        await tenant.remove_snapshot(one.current_state_tag, force=True)
    except InvalidRequest as error:
        if error.code != "unknown_snapshot":
            raise


@router.post("/{name}/suspend", response_model=schemas.WorkspaceInfo, response_model_exclude_none=True)
async def suspend(name: str, _body: schemas.SuspendRequest, tenant: Asker, who: Who, how: How) -> Response:
    """Keep its state and end its sandbox."""
    tenant.workspaces.get(check_name(name))
    async with _turn(tenant, name):
        one = _now(tenant.workspaces.get(name), await _living(tenant))
        if one.live_sandbox_id is None:
            raise InvalidRequest.of("name", f"the workspace {name!r} is {one.status}", code="not_running")
        tag = f"ws-{name}-state"[:51] + f"-{int(time.time() * 1000) % 10**10:x}"
        # The new state takes the place of the old one.
        async with tenant.keeping(who, one.current_state_tag or tag):
            with tenant.branch_of(how.branches):
                request = Taking.of(one.live_sandbox_id, tag)
                await tenant.client.ask("sandbox.snapshot", request.to_wire(), patience=120.0)
        after = dataclasses.replace(
            one, status="suspended", current_state_tag=tag, live_sandbox_id=None,
            last_active_unix=int(time.time()),
        )  # fmt: skip
        # In this order: a server that is killed in between leaves a state too many, and never one too few.
        tenant.workspaces.put(after)
        await tenant.kill(one.live_sandbox_id)
        await _forget_state(tenant, one)
    return Json(_told(after))


@router.post("/{name}/resume", response_model=schemas.WorkspaceInfo, response_model_exclude_none=True)
async def resume(name: str, tenant: Asker, who: Who) -> Response:
    """Go on from its state, or for one that is stale from what it was made of, with the options it had."""
    tenant.workspaces.get(check_name(name))
    async with _turn(tenant, name):
        one = _now(tenant.workspaces.get(name), await _living(tenant))
        if one.live_sandbox_id is not None:
            raise InvalidRequest.of("name", f"the workspace {name!r} runs already", code="already_running")
        tag = one.current_state_tag or one.source_snapshot_tag
        info = await _start(tenant, who, tag, name, one.options)
        after = dataclasses.replace(
            one, status="running", live_sandbox_id=info.id, last_active_unix=int(time.time())
        )
        try:
            tenant.workspaces.put(after)
        except BaseException:
            await tenant.kill(info.id)
            raise
    return Json(_told(after))
