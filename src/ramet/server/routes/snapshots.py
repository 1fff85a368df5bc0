"""Snapshots: taken of running sandboxes, listed with what builds upon them, removed."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from ramet.client._async import sandbox as sandboxes
from ramet.client._async import snapshots as all_snapshots
from ramet.client._async import templates as all_templates
from ramet.client._async.client import FORK_PATIENCE_S
from ramet.client._async.sandbox import AsyncSandbox
from ramet.errors import InvalidRequest, RametError
from ramet.models.names import check_name
from ramet.models.snapshots import BUILT_IN, Snapshot
from ramet.models.snapshots import SnapshotRequest as Taking
from ramet.models.templates import KEY as TEMPLATE
from ramet.server import schemas, shown
from ramet.server.public import read_only, tag_of
from ramet.server.routes.asked import checked_root
from ramet.server.routes.common import ERRORS, Admin, Asker, How, Json, Key, Who, text_of
from ramet.server.routes.sandboxes import FOREVER, check_room
from ramet.server.settings import Settings
from ramet.server.tenants import TAG, Tenant
from ramet.server.tokens import Identity

router = APIRouter(prefix="/v1", responses=ERRORS, tags=["snapshots"])
BOOT_WAIT_MAX_S = 60
WRITING: dict[int | str, dict[str, Any]] = {
    202: {"model": schemas.SnapshotInfo, "description": "It is taken, and being written"}
}


@router.get("/snapshots", response_model=list[schemas.SnapshotInfo], response_model_exclude_none=True)
async def list_snapshots(
    tenant: Asker,
    limit: Annotated[int | None, Query(ge=1, le=1000, description="At most so many.")] = None,
    after: Annotated[
        str | None, Query(description="Those after this tag: the header X-Next-After of the page before.")
    ] = None,
) -> Response:
    """All of them, and the templates, by their tags."""
    own = {one.name for one in await tenant.snapshots()}
    rows = {
        shown.tag_of_snapshot(one): shown.snapshot(one, public=one.name not in own)
        for one in await tenant.seen()
    }
    for tag in BUILT_IN:
        rows.setdefault(tag, shown.unbuilt(tag))
    tags = [tag for tag in sorted(rows) if after is None or tag > after]
    headers = {"x-total-count": str(len(rows))}
    if limit is not None and len(tags) > limit:
        tags = tags[:limit]
        headers["x-next-after"] = tags[-1]
    return Json([rows[tag] for tag in tags], headers=headers)


@router.post(
    "/snapshots", status_code=201, response_model=schemas.SnapshotInfo, response_model_exclude_none=True
)
async def create_snapshot(body: schemas.SnapshotRequest, tenant: Asker, who: Admin, how: How) -> Response:
    """A snapshot of a fresh sandbox whose root is a directory of the host."""
    name = check_name(body.tag, "tag")
    if body.tap is not None:
        raise InvalidRequest.of(
            "tap", "there is no network device to give: sandboxes have a network of their own"
        )
    if not 0 <= body.boot_wait_secs <= BOOT_WAIT_MAX_S:
        text = f"{body.boot_wait_secs} is not from 0 to {BOOT_WAIT_MAX_S}"
        raise InvalidRequest.of("boot_wait_secs", text, code="out_of_range")
    await tenant.check_free(name)
    root = _checked_machine(body, who, how)
    if any(one.name == name for one in await tenant.snapshots()) or name in BUILT_IN:
        raise InvalidRequest.of("tag", f"there is a snapshot {name!r} already")
    check_room(tenant)
    async with tenant.keeping(who, name), tenant.making(who, 1):
        sandbox = AsyncSandbox(command=body.command or FOREVER, root=root, client=tenant.client)
        async with sandbox:
            await asyncio.sleep(body.boot_wait_secs if body.command is not None else 0)
            taken = await sandbox.snapshot(name)
    return Json(shown.snapshot(taken), 201)


def _checked_machine(body: schemas.SnapshotRequest, who: Identity, how: Settings) -> str:
    """The directory that is to be the root. Raises InvalidRequest, Refused."""
    root = checked_root(body.rootfs, who, how, "rootfs")
    checked_root(body.kernel, who, how, "kernel")
    if not os.path.exists(body.kernel):
        raise InvalidRequest.of("kernel", f"{body.kernel!r:.200} does not exist")
    if root is None or not os.path.isdir(root):
        raise InvalidRequest.of(
            "rootfs", f"{body.rootfs!r:.200} is no directory", hint="unpack an image of a disk into one"
        )
    return root


@router.delete("/snapshots/{tag}", status_code=204)
async def delete_snapshot(
    tag: str,
    tenant: Asker,
    cascade: Annotated[bool, Query(description="Also those that build upon it.")] = False,
    force: Annotated[
        bool,
        Query(
            description="Though others build upon it: they keep what they need. Not for a built-in template."
        ),
    ] = False,
) -> Response:
    """Forget it. What was forked from it goes on."""
    check_name(tag, "tag")
    if cascade and force:
        raise InvalidRequest.of("cascade", "and force exclude each other")
    found = await tenant.snapshots()
    own = [one.name for one in found if tag in {one.name, shown.tag_of_snapshot(one)}]
    if not own and tag not in BUILT_IN:
        if await tenant.is_public(tag):
            raise read_only(tag)
        raise InvalidRequest.of("tag", f"there is no snapshot {tag!r}", code="unknown_snapshot")
    upon = dependents(own, (await tenant.chains()).values(), {one.name for one in found})
    # A built-in template would be found again by its next use, hidden or not.
    if upon and not (cascade or (force and tag not in BUILT_IN)):
        text = f"{', '.join(upon)} build{'s' if len(upon) == 1 else ''} upon {tag}"
        raise InvalidRequest.of("tag", text, code="has_dependents", hint="cascade=true removes them too")
    for name in reversed(upon) if cascade else ():
        await tenant.remove_snapshot(name)
    if tag in BUILT_IN:
        await all_templates.remove(tag, client=tenant.client)
        tenant.client.templates.pop(tag, None)
    else:
        await tenant.remove_snapshot(tag, force=force)
    return Response(status_code=204)


def dependents(own: Sequence[str], chains: Collection[Snapshot], seen: Collection[str]) -> list[str]:
    """Those of `seen` that build upon `own`, each after what it builds upon, also by others of `chains`."""
    chosen = [*own]
    for name in chosen:
        chosen.extend(one.name for one in chains if one.parent == name and one.name not in chosen)
    return [name for name in chosen[len(own) :] if name in seen]


@router.get("/snapshots/{tag}/info", response_model=schemas.SnapshotDetail, response_model_exclude_none=True)
async def snapshot_info(tag: str, tenant: Asker) -> Response:
    """What it takes, and what it builds upon."""
    found = {one.name: one for one in await tenant.seen()}
    chosen = _chosen(tag, found)
    chains = await tenant.chains()
    ancestors: list[str] = []
    at = chosen.parent
    while at is not None and tag_of(at) not in ancestors:
        ancestors.insert(0, tag_of(at))
        at = chains[at].parent if at in chains else None
    told: dict[str, Any] = {
        "tag": tag,
        "dir": shown.directory_of(chosen.name),
        "created_at_unix": int(chosen.created),
        "memory_logical_bytes": chosen.memory_bytes,
        "memory_physical_bytes": chosen.disk_bytes,
        "vmstate_bytes": 0,
        "chain_depth": len(ancestors),
        "ancestors": ancestors,
        "dependents": dependents([chosen.name], chains.values(), found),
    }
    if chosen.parent is not None:
        told["parent_tag"] = tag_of(chosen.parent)
    return Json(told)


def _chosen(tag: str, found: Mapping[str, Snapshot]) -> Snapshot:
    """The one that is forked by this tag. Raises InvalidRequest."""
    chosen = found.get(check_name(tag, "tag"))
    if chosen is None:
        chosen = next((one for one in found.values() if shown.tag_of_snapshot(one) == tag), None)
    if chosen is None:
        raise InvalidRequest.of("tag", f"there is no snapshot {tag!r}", code="unknown_snapshot")
    return chosen


@router.post(
    "/snapshots/{tag}/compact", response_model=schemas.SnapshotInfo, response_model_exclude_none=True
)
async def compact(
    tag: str, tenant: Asker, who: Who, how: How, body: schemas.CompactRequest | None = None
) -> Response:
    """Have it build upon nothing, so that its ancestors can be removed. What is in it stays the same.

    With `to` it stays as it is, and what a fork of it is right after its start is kept under that tag, which
    builds upon nothing.
    """
    chosen = _chosen(tag, {one.name: one for one in await tenant.seen()})
    to = None if body is None else body.to
    if to is None:
        if await tenant.is_public(chosen.name):
            raise read_only(tag)
        done = await all_snapshots.compact(chosen, client=tenant.client)
        await tenant.reap_removed()
        return Json(shown.snapshot(done))
    if to == tag:
        raise InvalidRequest.of("to", "is the same tag: leave it away to have the snapshot itself changed")
    await _copy(tenant, who, how, chosen, to)
    try:
        done = await all_snapshots.compact(to, client=tenant.client)
    except RametError:
        await all_snapshots.remove(to, client=tenant.client)
        raise
    return Json({**shown.snapshot(done), "branched_from": f"compact:{tag}"})


async def _copy(tenant: Tenant, who: Identity, how: Settings, source: Snapshot, to: str) -> None:
    taken = {name for one in await tenant.snapshots() for name in (one.name, shown.tag_of_snapshot(one))}
    if check_name(to, "to") in taken | set(BUILT_IN):
        raise InvalidRequest.of("to", f"there is a snapshot {to!r} already", code="name_taken")
    await tenant.check_free(to, "to")
    check_room(tenant)
    async with tenant.keeping(who, to), tenant.making(who, 1):
        (forked,) = await sandboxes.fork(snapshot=await tenant.source(source.name), client=tenant.client)
        async with forked:
            with tenant.branch_of(how.branches):
                await forked.snapshot(to)


# --- branches ---------------------------------------------------------------------------------------------


@router.post(
    "/sandboxes/{sandbox_id}/branch",
    status_code=201,
    response_model=schemas.SnapshotInfo,
    response_model_exclude_none=True,
    responses=WRITING,
)
async def branch(
    sandbox_id: str, body: schemas.BranchRequest, tenant: Asker, who: Who, how: How, key: Key
) -> Response:
    """Keep the state of a running sandbox under a tag; it runs on. The state is of this call's time.

    With `wait` false the answer is 202 as soon as the state is taken, and the snapshot is ``ready`` when it
    is on disk. Only what differs from the snapshot that the sandbox was forked from is written in any mode.
    """
    mode = _mode(body)
    info = await tenant.find(sandbox_id)
    _check_parent(body, mode, info.metadata.get(TAG) or tag_of(info.snapshot or ""))
    if body.metadata is not None and TEMPLATE in body.metadata:
        raise InvalidRequest.of("metadata", f"{TEMPLATE!r} is for templates")
    tag = body.tag or f"branch-{info.id}-{int(time.time())}-{secrets.token_hex(2)}"
    request = Taking.of(info.id, check_name(tag, "tag"), body.metadata, body.on_unsupported, wait=body.wait)

    async def work() -> tuple[int, dict[str, Any]]:
        await tenant.check_free(tag)
        async with tenant.keeping(who, tag):
            with tenant.branch_of(how.branches):
                began = time.monotonic()
                taken = Snapshot.from_wire(
                    await tenant.client.ask("sandbox.snapshot", request.to_wire(), patience=FORK_PATIENCE_S)
                )
                took_ms = (time.monotonic() - began) * 1e3
        tenant.branches[info.id] = tenant.branches.get(info.id, 0) + 1
        told = shown.snapshot(taken)
        if mode == "diff" or body.measure_diff:
            written = taken.disk_bytes or taken.memory_bytes + taken.file_bytes
            told |= {
                "diff_ms": round(took_ms),
                "diff_physical_bytes": written,
                "diff_logical_bytes": taken.memory_bytes,
            }
        return (202 if taken.status == "writing" else 201), told

    status, told = await tenant.once(key, f"branch {sandbox_id} {text_of(body.model_dump())}", work)
    return Json(told, status)


def _mode(body: schemas.BranchRequest) -> str:
    legacy = [name for name, on in (("diff", body.diff), ("live", body.live)) if on]
    if body.mode is not None and (legacy or body.measure_diff):
        raise InvalidRequest.of("mode", f"and {(legacy or ['measure_diff'])[0]} exclude each other")
    if len(legacy) + body.measure_diff > 1:
        raise InvalidRequest.of("diff", "measure_diff, diff and live exclude each other")
    mode = body.mode or (legacy[0] if legacy else "full")
    if not body.wait and mode != "live":
        raise InvalidRequest.of("wait", "false is for the mode live")
    return mode


def _check_parent(body: schemas.BranchRequest, mode: str, forked_from: str | None) -> None:
    if body.parent_tag is None:
        return
    if mode != "diff":
        raise InvalidRequest.of("parent_tag", "is for the mode diff")
    if check_name(body.parent_tag, "parent_tag") != forked_from:
        raise InvalidRequest.of("parent_tag", f"the sandbox was forked from {forked_from!r}")


@router.post("/sandboxes/{sandbox_id}/rollback", response_model=schemas.SandboxInfo)
async def rollback(sandbox_id: str, body: schemas.RollbackRequest, tenant: Asker) -> Response:
    """Have it be again as it was in a snapshot, under the id, name, limits, metadata and ttl that it has.

    What runs in it is ended first; while its kernel runs code the answer is 409.
    """
    box = await tenant.known(sandbox_id)
    chosen = _chosen(body.snapshot_tag, {one.name: one for one in await tenant.seen()})
    source = await tenant.source(chosen.name)
    return Json(shown.sandbox(tenant, await tenant.rollback(box.id, source)))


@router.post("/sandboxes/{sandbox_id}/promote", response_model=schemas.SandboxInfo)
async def promote(sandbox_id: str, tenant: Asker, body: schemas.PromoteRequest | None = None) -> Response:
    """Have a fork take the place of the sandbox that it was forked from: its id, name, metadata and ttl.

    That one ends. While one of them is being forked, or its kernel runs code, the answer is 409.
    """
    over = None if body is None else body.over
    return Json(shown.sandbox(tenant, await tenant.promote(sandbox_id, over)))
