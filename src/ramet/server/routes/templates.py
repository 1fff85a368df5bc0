"""Templates: built, listed, removed, and made public for all tenants."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter, Request, Response

from ramet.client._async import templates as all_templates
from ramet.errors import InvalidRequest, SnapshotError
from ramet.models.names import check_name, near
from ramet.models.snapshots import BUILT_IN
from ramet.models.templates import Template
from ramet.server import schemas, shown
from ramet.server.faults import Refused
from ramet.server.public import read_only, tag_of
from ramet.server.routes.asked import check_heeded
from ramet.server.routes.common import ERRORS, Admin, Asker, Json, Who, heard
from ramet.server.routes.sandboxes import check_room
from ramet.server.tenants import Tenant, Tenants

router = APIRouter(prefix="/v1/templates", responses=ERRORS, tags=["templates"])


async def _templates(tenant: Tenant) -> list[tuple[Template, bool]]:
    """All that may be forked, and whether each is a public one."""
    own = {one.name for one in await tenant.snapshots()}
    found = [(Template.from_snapshot(one), one.name not in own) for one in await tenant.seen()]
    return [(one, public) for one, public in found if one is not None]


async def _get(tenant: Tenant, name: str) -> tuple[Template, bool]:
    """Raises InvalidRequest."""
    known = await _templates(tenant)
    for one, public in known:
        if check_name(name) in {one.name, one.snapshot.name}:
            return one, public
    hint = near(name, [one.name for one, _ in known] + [*BUILT_IN])
    raise InvalidRequest.of("template", f"there is no template {name!r}", code="not_found", hint=hint)


@router.get("")
async def list_templates(tenant: Asker) -> Response:
    """Those that are built, and those that are public."""
    return Json([_told(one, public=public) for one, public in await _templates(tenant)])


@router.post("", status_code=201)
async def build_template(
    body: schemas.TemplateRequest, tenant: Asker, who: Who, request: Request
) -> Response:
    """Build one, or find it built of the same inputs; answer when it is there."""
    check_heeded(body)
    await tenant.check_free(body.name, "name")
    if body.pip and not who.may("admin"):
        # A requirement may be a path of the host, or an address that only the host reaches.
        raise Refused(
            403, "forbidden", "packages are fetched by the host: this needs the scope admin", field="pip"
        )
    check_room(tenant)
    async with tenant.keeping(who, body.name), tenant.making(who, 1):
        building = all_templates.build(
            body.name,
            None if body.from_ is None else await tenant.source(check_name(body.from_, "from_")),
            pip=body.pip,
            files=body.files,
            env=body.env,
            warm=body.warm,
            kernel=body.kernel,
            warm_children=body.warm_children,
            client=tenant.client,
        )
        built = await heard(request, building)
    return Json(_told(built), 201)


@router.get("/{name}")
async def get_template(name: str, tenant: Asker) -> Response:
    """One of them."""
    one, public = await _get(tenant, name)
    return Json(_told(one, public=public))


@router.delete("/{name}", status_code=204)
async def remove_template(name: str, tenant: Asker) -> Response:
    """Forget it."""
    one, public = await _get(tenant, name)
    if public:
        raise read_only(name)
    await all_templates.remove(one.snapshot.name, client=tenant.client)
    tenant.client.templates.pop(name, None)
    return Response(status_code=204)


@router.put("/{name}/public")
async def publish(name: str, request: Request, tenant: Asker, _who: Admin) -> Response:
    """Have every tenant see it, as it is now, and fork it; nobody but an administrator changes it.

    On disk it is there once, for all. One that is public under this name already is replaced: what was forked
    of that one goes on.
    """
    tenants: Tenants = request.app.state.tenants
    one, public = await _get(tenant, name)
    if tenants.public is None or public:
        text = "this server has one tenant" if tenants.public is None else f"{name!r} is public already"
        raise Refused(409, "unsupported", text, field="name")
    made = await tenants.public.publish(one, tenant.store)
    await _reap(tenants)
    return Json(_told(dataclasses.replace(one, snapshot=dataclasses.replace(made, name=name)), public=True))


@router.delete("/{name}/public", status_code=204)
async def withdraw(name: str, request: Request, _who: Admin) -> Response:
    """Have it be public no more. What was forked of it goes on."""
    tenants: Tenants = request.app.state.tenants
    if tenants.public is None:
        raise InvalidRequest.of("name", f"there is no public template {name!r}", code="not_found")
    await tenants.public.withdraw(check_name(name))
    await _reap(tenants)
    return Response(status_code=204)


async def _reap(tenants: Tenants) -> None:
    """Take the links away that nothing builds upon."""
    for tenant in await tenants.standing():
        if tenant.made:
            continue  # one may just have been linked to be forked
        try:
            await tenant.reap_removed()
        except SnapshotError as error:
            # Something was kept upon it meanwhile: the next that is removed there takes it along.
            if error.code != "snapshot_in_use":
                raise


def _told(one: Template, *, public: bool = False) -> dict[str, Any]:
    source = one.source and tag_of(one.source)
    return {**one.to_dict(), "source": source, "snapshot": shown.snapshot(one.snapshot, public=public),
            "public": public}  # fmt: skip
