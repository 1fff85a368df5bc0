"""Sandboxes: made, forked, listed, ended; and what runs in them to its end."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from ramet.client._async import sandbox as sandboxes
from ramet.client._async.sandbox import AsyncSandbox
from ramet.errors import ForkError, InvalidRequest, RametError
from ramet.models.executions import Execution
from ramet.models.names import check_name
from ramet.models.sandboxes import SandboxInfo
from ramet.server import schemas, shown
from ramet.server.faults import Refused, body_of
from ramet.server.public import tag_of
from ramet.server.routes.asked import (
    check_heeded,
    check_spawn,
    checked_root,
    children_of,
    memory_of,
    names_of,
)
from ramet.server.routes.common import ERRORS, Asker, How, Json, Key, Who, heard, text_of
from ramet.server.settings import Settings
from ramet.server.tenants import (
    ASKED,
    KEY,
    NETNS,
    TAG,
    Tenant,
    key_taken,
    noted_env,
    replace_env,
    user_metadata,
)
from ramet.server.tokens import Identity

router = APIRouter(prefix="/v1", responses=ERRORS, tags=["sandboxes"])
FOREVER = ["sh", "-c", "while :; do sleep 86400; done"]


@router.get("/sandboxes", response_model=list[schemas.SandboxInfo])
async def list_sandboxes(
    tenant: Asker,
    limit: Annotated[int | None, Query(ge=1, le=1000, description="At most so many.")] = None,
    after: Annotated[
        str | None,
        Query(description="Those made after this one: the header X-Next-After of the page before, or an id."),
    ] = None,
    ended: Annotated[bool, Query(description="Also those that ended in the last minutes.")] = False,
    parent: str | None = None,
    name: str | None = None,
) -> Response:
    """Those that live, the oldest first."""
    found = await tenant.told(ended=ended, parent=parent, name=name)
    headers = {"x-total-count": str(len(found))}
    if after is not None or limit is not None:
        found.sort(key=_place_of)
    if after is not None:
        place = _said(after) or await _found_again(tenant, after)
        found = [one for one in found if _place_of(one) > place]
    if limit is not None and len(found) > limit:
        found = found[:limit]
        headers["x-next-after"] = "{!r}~{}".format(*_place_of(found[-1]))
    return Response(shown.page(tenant, found), headers=headers, media_type="application/json")


def _place_of(told: Mapping[str, Any]) -> tuple[float, str]:
    """Where it is in the list. A page goes on from there also when that one has ended."""
    return told["created"], told["id"]


def _said(after: str) -> tuple[float, str] | None:
    """The place that a page before told. Raises InvalidRequest."""
    created, between, number = after.partition("~")
    if not between:
        return None
    try:
        made = float(created)
    except ValueError:
        made = math.nan
    if not math.isfinite(made):
        raise InvalidRequest.of("after", f"{after!r:.80} is nothing that a page told")
    return made, number


async def _found_again(tenant: Tenant, number: str) -> tuple[float, str]:
    """The place of a sandbox that lives or has ended lately. Raises InvalidRequest."""
    known = await tenant.told(ended=True)
    found = next((one for one in known if one["id"] == number), None)
    if found is None:
        text = f"{number!r:.80} is no sandbox that is known"
        raise InvalidRequest.of("after", text, hint="go on from the X-Next-After of the page before")
    return _place_of(found)


@router.post("/sandboxes", status_code=201, response_model=list[schemas.SandboxInfo])
async def spawn(body: schemas.SpawnRequest, tenant: Asker, who: Who, how: How, key: Key) -> Response:
    """Fork a snapshot or template `n` times, all or none; or make a fresh one with `command` or `kernel`."""

    async def work() -> list[dict[str, Any]]:
        made = await asked.made_before(tenant)
        # A server that was killed while it made them has left some of them out.
        if left := {number: one for number, one in enumerate(children) if number not in made}:
            check_room(tenant)
            if body.keep_on:
                await tenant.check_snapshots(who)
            async with tenant.making(who, len(left)):
                made |= await _spawn(body, left, tenant, who, how, asked)
        return [shown.sandbox(tenant, one) for _, one in sorted(made.items())]

    children = check_spawn(body)
    asked = _Asked(key, "spawn" + text_of(body.model_dump()))
    told = await tenant.once(key, asked.text, work)
    return Json(told, 201)


def check_room(tenant: Tenant) -> None:
    """Raises Refused where no more sandboxes are taken."""
    if tenant.draining():
        raise Refused(503, "draining", "this server takes no more sandboxes", retry_after=30)


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """A request for sandboxes, and its key if it may come twice."""

    key: str | None
    text: str

    async def made_before(self, tenant: Tenant) -> dict[int, SandboxInfo]:
        """What a server before this one made for it, by number. Raises Refused if it was another request."""
        made: dict[int, SandboxInfo] = {}
        if self.key is None:
            return made
        for one in await tenant.all(metadata={KEY: _digest(self.key)}):
            asked, _, number = one.metadata.get(ASKED, "").partition(".")
            if asked != _digest(self.text):
                raise key_taken()
            made[int(number)] = one
        return made

    def noted(self, number: int, tag: str, netns: str | None) -> dict[str, str]:
        """What the server notes of the child of this number."""
        noted = {TAG: tag}
        if self.key is not None:
            noted |= {KEY: _digest(self.key), ASKED: f"{_digest(self.text)}.{number}"}
        if netns is not None:
            noted[NETNS] = netns
        return noted


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


async def _spawn(
    body: schemas.SpawnRequest,
    children: Mapping[int, schemas.ChildRequest],
    tenant: Tenant,
    who: Identity,
    how: Settings,
    asked: _Asked,
) -> dict[int, SandboxInfo]:
    ttl = how.ttl if body.ttl is None else body.ttl
    if body.snapshot_tag is None:
        return {0: await _fresh(body, children[0], tenant, who, how, asked.noted(0, "", None), ttl)}
    each = children.values()
    tag = check_name(body.snapshot_tag, "snapshot_tag")
    source = await tenant.source(tag)
    try:
        made = await sandboxes.fork(
            snapshot=source,
            n=len(children),
            env=[one.env for one in each],
            seed=[one.seed for one in each],
            limits=[memory_of(one.limits, body.memory_limit_mib) for one in each],
            metadata=[
                user_metadata(one.metadata)
                | asked.noted(number, tag, f"ramet-child-{number + 1}" if body.per_child_netns else None)
                | replace_env(one.env)
                for number, one in children.items()
            ],
            names=names_of([*each]),
            timeout=body.timeout,
            detach=True,
            ttl=ttl,
            keep_on=body.keep_on,
            client=tenant.client,
        )
    except ForkError as error:
        await _end_all(tenant, error.sandboxes)
        raise
    return {number: tenant.take(one) for number, one in zip(children, made, strict=True)}


async def _end_all(tenant: Tenant, made: Sequence[AsyncSandbox]) -> None:
    for one in made:
        await one.kill()
        one.let_go()
        tenant.forget(one.id)


async def _fresh(
    body: schemas.SpawnRequest,
    own: schemas.ChildRequest,
    tenant: Tenant,
    who: Identity,
    how: Settings,
    noted: dict[str, str],
    ttl: float,
) -> SandboxInfo:
    sandbox = AsyncSandbox(
        command=body.command,
        kernel=body.kernel,
        env=own.env,
        seed=own.seed,
        cwd=body.cwd,
        root=checked_root(body.root, who, how),
        tools=[checked_root(path, who, how, "tools") or "" for path in body.tools],
        user=body.user,
        limits=memory_of(own.limits, body.memory_limit_mib),
        timeout=body.timeout,
        name=own.name,
        metadata=user_metadata(own.metadata) | noted | replace_env(own.env),
        detach=True,
        ttl=ttl,
        keep_on=body.keep_on,
        client=tenant.client,
    )
    return tenant.take(await sandbox.start())


@router.get("/sandboxes/{sandbox_id}", response_model=schemas.SandboxInfo)
async def get_sandbox(
    sandbox_id: str,
    tenant: Asker,
    ended: Annotated[bool, Query(description="Also when it ended in the last minutes.")] = False,
) -> Response:
    """One sandbox, by id or name."""
    return Json(shown.sandbox(tenant, await tenant.find(sandbox_id, ended=ended)))


@router.delete("/sandboxes/{sandbox_id}", status_code=204)
async def kill_sandbox(sandbox_id: str, tenant: Asker) -> Response:
    """End it, and answer when no process of it is left."""
    await tenant.kill(sandbox_id)
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox_id}/fork", status_code=201, response_model=schemas.ForkResult)
async def fork(
    sandbox_id: str, body: schemas.ForkRequest, tenant: Asker, who: Who, how: How, key: Key
) -> Response:
    """Fork it as it runs. All children are of one instant; what befell single ones is told by number."""

    async def work() -> dict[str, Any]:
        if before := await asked.made_before(tenant):
            made = {number: shown.sandbox(tenant, one) for number, one in before.items()}
            return _told(made, dict.fromkeys(set(range(len(children))) - made.keys(), _unfinished()))
        check_room(tenant)
        if body.keep_on:
            await tenant.check_snapshots(who)
        async with tenant.making(who, len(children)):
            return await _fork(sandbox_id, body, children, tenant, how, asked)

    check_heeded(body)
    children = children_of(body)
    asked = _Asked(key, f"fork {sandbox_id} {text_of(body.model_dump())}")
    told = await tenant.once(key, asked.text, work)
    return Json(told, 201)


async def _fork(
    sandbox_id: str,
    body: schemas.ForkRequest,
    children: Sequence[schemas.ChildRequest],
    tenant: Tenant,
    how: Settings,
    asked: _Asked,
) -> dict[str, Any]:
    parent = await tenant.find(sandbox_id)
    tag = parent.metadata.get(TAG) or tag_of(parent.snapshot or "")
    inherited = noted_env(parent)
    tenant.let_fork(parent)
    errors: dict[int, RametError] = {}
    made: Sequence[AsyncSandbox]
    try:
        made = await sandboxes.fork(
            sandbox=parent.id,
            n=len(children),
            env=[one.env for one in children],
            seed=[one.seed for one in children],
            limits=[one.limits for one in children],
            metadata=[
                user_metadata(one.metadata)
                | asked.noted(number, tag, parent.metadata.get(NETNS))
                | replace_env(inherited | (one.env or {}))
                for number, one in enumerate(children)
            ],
            names=names_of(children),
            timeout=body.timeout,
            detach=True,
            ttl=how.ttl if body.ttl is None else body.ttl,
            keep_on=body.keep_on,
            on_unsupported=body.on_unsupported,
            on_error="keep",
            client=tenant.client,
        )
    except ForkError as error:
        made, errors = error.sandboxes, error.errors
        if body.on_error == "end" or not made:
            await _end_all(tenant, made)
            raise
    numbers = [number for number in range(len(children)) if number not in errors]
    living = [shown.sandbox(tenant, tenant.take(one)) for one in made]
    return _told(dict(zip(numbers, living, strict=True)), errors)


def _told(made: Mapping[int, dict[str, Any]], errors: Mapping[int, RametError]) -> dict[str, Any]:
    """What became of each child of a fork."""
    rows: list[dict[str, Any]] = [{"number": number, "sandbox": one} for number, one in made.items()]
    rows += [{"number": number, "error": body_of(error)} for number, error in errors.items()]
    rows.sort(key=lambda row: row["number"])
    return {"children": rows, "pause_ms": next((one["pause_ms"] for one in made.values()), None)}


def _unfinished() -> RametError:
    return RametError("unfinished", "the server ended while it was made", hint="fork again, with another key")


# --- what runs in it --------------------------------------------------------------------------------------


@router.post("/sandboxes/{sandbox_id}/exec", response_model=schemas.ExecResult)
async def execute(sandbox_id: str, body: schemas.ExecRequest, tenant: Asker, request: Request) -> Response:
    """Run a command to its end. When its time is up, or the client goes, every process of it is killed."""
    if not body.args:
        raise InvalidRequest.of("args", "is empty", code="empty_command")
    commands = await tenant.commands(sandbox_id)
    # 0 is no time at all for forkd too; a millisecond is the least that core counts.
    async with tenant.kept(sandbox_id):
        running = commands.run(
            body.args,
            timeout=max(body.timeout_secs, 0.001),
            env=body.env,
            cwd=body.cwd,
            user=body.user,
            stdin=body.stdin,
        )
        result = await heard(request, running)
    return Json({**result.to_dict(), "timed_out": result.timed_out})


@router.post("/sandboxes/{sandbox_id}/eval", response_model=schemas.EvalResult)
async def evaluate(sandbox_id: str, body: schemas.EvalRequest, tenant: Asker) -> Response:
    """Have the kernel run code. State is kept; an error of the code is no error of this call."""
    done = await _code(tenant, sandbox_id, body.code, body.timeout_secs)
    error = None if done.error is None else f"{done.error.name}: {done.error.value}"
    if error is None and not done.ok:
        error = f"the code ended: {done.reason}"
    return Json(
        {
            "result": done.text if done.ok else None,
            "error": error,
            "exit_code": 0 if done.ok else (done.exit_code or 1),
            "stdout": done.stdout,
            "stderr": done.stderr,
            "traceback": None if done.error is None else "\n".join(done.error.traceback),
            "reason": done.reason,
        }
    )


@router.post("/sandboxes/{sandbox_id}/code")
async def run_code(sandbox_id: str, body: schemas.CodeRequest, tenant: Asker) -> Response:
    """As eval, with all that the code showed."""
    done = await _code(tenant, sandbox_id, body.code, body.timeout, body.context, body.stdin)
    return Json(done.to_dict())


async def _code(
    tenant: Tenant,
    sandbox_id: str,
    code: str,
    timeout: float | None,
    context: str | None = None,
    stdin: str | None = None,
) -> Execution:
    async with tenant.kernel(sandbox_id) as sandbox:
        return await sandbox.run_code(code, timeout=timeout, context=context, stdin=stdin)


@router.post("/sandboxes/{sandbox_id}/interrupt", status_code=204)
async def interrupt(sandbox_id: str, tenant: Asker) -> Response:
    """Interrupt what its kernel runs, as Ctrl-C does. The state is kept."""
    held = (await tenant.known(sandbox_id)).held
    if held is not None:
        held.interrupt()
    return Response(status_code=204)


_VERSION = "getattr(__import__('sys').modules.get('numpy'), '__version__', None)"


@router.post("/sandboxes/{sandbox_id}/ping", response_model=schemas.PingResult)
async def ping(sandbox_id: str, tenant: Asker) -> Response:
    """Whether it answers: its init, and its kernel where it has one that is not at work."""
    info = await tenant.find(sandbox_id)
    await (await tenant.commands(info.id)).list()
    version = None
    ready = info.kernel is None
    if info.kernel is not None and not tenant.box(info.id).turn.locked():
        code = _VERSION if info.kernel.name == "python" else ""
        done = await _code(tenant, info.id, code, 10.0)
        ready = done.ok
        version = done.text.strip("'") if done.text and done.text != "None" else None
    return Json(
        {
            "pong": True,
            "numpy_version": version,
            "pid": info.pid,
            "agent_lang": info.kernel.name if info.kernel else "none",
            "warmup_ready": ready,
        }
    )


@router.get("/sandboxes/{sandbox_id}/metrics")
async def metrics(sandbox_id: str, tenant: Asker) -> Response:
    """What it uses at the moment."""
    return Json((await (await tenant.files(sandbox_id)).usage()).to_dict())


@router.post("/run", response_model=schemas.ExecResult)
async def run(body: schemas.RunRequest, tenant: Asker, who: Who, how: How, request: Request) -> Response:
    """Run one command in a sandbox that is made for it and gone after it, or when the client goes."""
    check_room(tenant)
    async with tenant.making(who, 1):
        running = tenant.client.run(
            body.command,
            timeout=body.timeout,
            stdin=body.stdin,
            env=body.env,
            cwd=body.cwd,
            root=checked_root(body.root, who, how),
            limits=body.limits,
        )
        result = await heard(request, running)
    return Json({**result.to_dict(), "timed_out": result.timed_out})
