"""Sandboxes: made, forked, listed, ended; and what runs in them to its end."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from ramet.client._async import sandbox as sandboxes
from ramet.client._async.sandbox import AsyncSandbox
from ramet.errors import ForkError, InvalidRequest, RametError
from ramet.models.executions import Execution
from ramet.models.sandboxes import FORK_MAX, SandboxInfo
from ramet.server import schemas, shown
from ramet.server.faults import Refused, body_of
from ramet.server.routes.common import ERRORS, Asker, How, Json, Key, Who, text_of
from ramet.server.settings import Settings
from ramet.server.tenants import (
    KEY,
    NETNS,
    TAG,
    Tenant,
    noted_env,
    replace_env,
    user_metadata,
)
from ramet.server.tokens import Identity

router = APIRouter(prefix="/v1", responses=ERRORS, tags=["sandboxes"])
MIB = 1 << 20
FOREVER = ["sh", "-c", "while :; do sleep 86400; done"]


@router.get("/sandboxes", response_model=list[schemas.SandboxInfo])
async def list_sandboxes(
    tenant: Asker,
    limit: Annotated[int | None, Query(ge=1, le=1000, description="At most so many.")] = None,
    after: Annotated[
        str | None, Query(description="Those after this id: the last of the page before.")
    ] = None,
    ended: Annotated[bool, Query(description="Also those that ended in the last minutes.")] = False,
    parent: str | None = None,
    name: str | None = None,
) -> Response:
    """Those that live, the oldest first."""
    found = await tenant.told(ended=ended, parent=parent, name=name)
    headers = {"x-total-count": str(len(found))}
    if after is not None:
        place = next((at for at, one in enumerate(found) if one["id"] == after), None)
        if place is None:
            raise InvalidRequest.of("after", f"{after!r:.80} is no sandbox of this list any more")
        found = found[place + 1 :]
    if limit is not None and len(found) > limit:
        found = found[:limit]
        headers["x-next-after"] = found[-1]["id"]
    return Response(shown.page(tenant, found), headers=headers, media_type="application/json")


@router.post("/sandboxes", status_code=201, response_model=list[schemas.SandboxInfo])
async def spawn(body: schemas.SpawnRequest, tenant: Asker, who: Who, how: How, key: Key) -> Response:
    """Fork a snapshot or template `n` times, all or none; or start a `command` in a fresh sandbox."""

    async def work() -> list[dict[str, Any]]:
        made = await _made_before(tenant, key)
        if not made:
            check_room(tenant)
            async with tenant.making(who, body.n):
                made = await _spawn(body, tenant, who, how, key)
        return [shown.sandbox(tenant, one) for one in made]

    _check_spawn(body)
    told = await tenant.once(key, "spawn" + text_of(body.model_dump()), work)
    return Json(told, 201)


def check_room(tenant: Tenant) -> None:
    """Raises Refused where no more sandboxes are taken."""
    if tenant.draining():
        raise Refused(503, "draining", "this server takes no more sandboxes", retry_after=30)


def _check_spawn(body: schemas.SpawnRequest) -> None:
    if not 1 <= body.n <= FORK_MAX:
        text = f"{body.n} is no number of sandboxes: from 1 to {FORK_MAX}"
        raise InvalidRequest.of("n", text, code="out_of_range")
    if (body.snapshot_tag is None) == (body.command is None):
        raise Refused(422, "missing", "snapshot_tag: missing", field="snapshot_tag")
    fresh = {"root": body.root, "cwd": body.cwd}
    if body.snapshot_tag is not None:
        for field, value in fresh.items():
            if value is not None:
                raise InvalidRequest.of(field, "is the snapshot's own, and no fork has another")
        return
    if body.seed is not None:
        raise InvalidRequest.of("seed", "is for forks of a kernel")
    if body.n > 1:
        raise InvalidRequest.of("n", "is for forks of a snapshot: a command has a sandbox of its own")


async def _made_before(tenant: Tenant, key: str | None) -> Sequence[SandboxInfo]:
    """What a server before this one made for the same key."""
    if key is None:
        return ()
    return await tenant.all(metadata={KEY: _digest(key)})


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _own(key: str | None, tag: str, netns: str | None) -> dict[str, str]:
    noted = {TAG: tag}
    if key is not None:
        noted[KEY] = _digest(key)
    if netns is not None:
        noted[NETNS] = netns
    return noted


def memory_of(limits: Mapping[str, Any] | None, mib: int | None) -> dict[str, Any] | None:
    """The limits asked for, `memory_limit_mib` among them. Raises InvalidRequest."""
    if mib is None:
        return None if limits is None else dict(limits)
    if limits is not None and "memory" in limits:
        raise InvalidRequest.of("memory_limit_mib", "and limits.memory say the same: give one of them")
    return {**(limits or {}), "memory": mib * MIB}


async def _spawn(
    body: schemas.SpawnRequest, tenant: Tenant, who: Identity, how: Settings, key: str | None
) -> list[SandboxInfo]:
    metadata = user_metadata(body.metadata)
    limits = memory_of(body.limits, body.memory_limit_mib)
    ttl = how.ttl if body.ttl is None else body.ttl
    if body.command is not None:
        return [await _fresh(body, tenant, who, how, metadata | _own(key, "", None), limits, ttl)]
    tag = tenant.check_there(body.snapshot_tag or "")
    noted = metadata | _own(key, tag, None) | replace_env(body.env)
    each: list[Mapping[str, str] | None] = [
        noted | ({NETNS: f"ramet-child-{number}"} if body.per_child_netns else {})
        for number in range(1, body.n + 1)
    ]
    seed = body.seed
    seeds: list[int | None] = [None if seed is None else seed + number for number in range(body.n)]
    try:
        made = await sandboxes.fork(
            snapshot=tag,
            n=body.n,
            env=body.env,
            seed=seeds,
            limits=limits,
            metadata=each,
            names=body.names,
            timeout=body.timeout,
            detach=True,
            ttl=ttl,
            client=tenant.client,
        )
    except ForkError as error:
        await _end_all(tenant, error.sandboxes)
        raise
    return [tenant.take(one) for one in made]


async def _end_all(tenant: Tenant, made: Sequence[AsyncSandbox]) -> None:
    for one in made:
        await one.kill()
        one.let_go()
        tenant.forget(one.id)


async def _fresh(
    body: schemas.SpawnRequest,
    tenant: Tenant,
    who: Identity,
    how: Settings,
    metadata: dict[str, str],
    limits: dict[str, Any] | None,
    ttl: float,
) -> SandboxInfo:
    sandbox = AsyncSandbox(
        command=body.command,
        env=body.env,
        cwd=body.cwd,
        root=checked_root(body.root, who, how),
        limits=limits,
        timeout=body.timeout,
        name=None if body.names is None else one_name(body.names),
        metadata=metadata | replace_env(body.env),
        detach=True,
        ttl=ttl,
        client=tenant.client,
    )
    return tenant.take(await sandbox.start())


def one_name(names: Sequence[str]) -> str:
    """The name of one sandbox. Raises InvalidRequest."""
    if len(names) != 1:
        raise InvalidRequest.of("names", f"has {len(names)} items for 1 sandbox")
    return names[0]


def checked_root(root: str | None, who: Identity, how: Settings) -> str | None:
    """A directory of the host that this one may name. Raises Refused, InvalidRequest."""
    import os

    if root is None:
        return None
    if not who.may("admin"):
        raise Refused(403, "forbidden", "to name a directory of the host needs the scope admin", field="root")
    real = os.path.realpath(root)
    if not any(real == one or real.startswith(f"{one}/") for one in how.roots):
        raise Refused(
            403, "forbidden", f"root: {root!r:.200} is below none of the directories of --allow-root",
            field="root",
        )  # fmt: skip
    return real


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
        before = await _made_before(tenant, key)
        if before:
            rows = [{"number": n, "sandbox": shown.sandbox(tenant, one)} for n, one in enumerate(before)]
            return {"children": rows, "pause_ms": before[0].pause_ms}
        check_room(tenant)
        async with tenant.making(who, len(children)):
            return await _fork(sandbox_id, body, children, tenant, how, key)

    children = _children(body)
    told = await tenant.once(key, f"fork {sandbox_id} {text_of(body.model_dump())}", work)
    return Json(told, 201)


def _children(body: schemas.ForkRequest) -> list[schemas.ChildRequest]:
    if body.n is not None and body.children is not None:
        raise InvalidRequest.of("n", "and children say the same: give one of them")
    if body.children is not None:
        children = body.children
    else:
        if not 1 <= (n := 1 if body.n is None else body.n) <= FORK_MAX:
            raise InvalidRequest.of("n", f"{n} is not from 1 to {FORK_MAX}", code="out_of_range")
        children = [schemas.ChildRequest()] * n
    if not 1 <= len(children) <= FORK_MAX:
        raise InvalidRequest.of("children", f"are not 1 to {FORK_MAX}", code="out_of_range")
    return children


async def _fork(
    sandbox_id: str,
    body: schemas.ForkRequest,
    children: Sequence[schemas.ChildRequest],
    tenant: Tenant,
    how: Settings,
    key: str | None,
) -> dict[str, Any]:
    parent = await tenant.find(sandbox_id)
    tag = parent.metadata.get(TAG) or parent.snapshot or ""
    inherited = noted_env(parent)
    names = [one.name for one in children]
    if any(names) and not all(names):
        raise InvalidRequest.of("children", "have a name all of them, or none")
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
                | _own(key, tag, parent.metadata.get(NETNS))
                | replace_env(inherited | (one.env or {}))
                for one in children
            ],
            names=[name for name in names if name] or None,
            timeout=body.timeout,
            detach=True,
            ttl=how.ttl if body.ttl is None else body.ttl,
            on_unsupported=body.on_unsupported,
            on_error="keep",
            client=tenant.client,
        )
    except ForkError as error:
        made, errors = error.sandboxes, error.errors
        if body.on_error == "end" or not made:
            await _end_all(tenant, made)
            raise
    living = iter([tenant.take(one) for one in made])
    rows: list[dict[str, Any]] = []
    for number in range(len(children)):
        if number in errors:
            rows.append({"number": number, "error": body_of(errors[number])})
        else:
            rows.append({"number": number, "sandbox": shown.sandbox(tenant, next(living))})
    pause = next((row["sandbox"]["pause_ms"] for row in rows if "sandbox" in row), None)
    return {"children": rows, "pause_ms": pause}


# --- what runs in it --------------------------------------------------------------------------------------


@router.post("/sandboxes/{sandbox_id}/exec", response_model=schemas.ExecResult)
async def execute(sandbox_id: str, body: schemas.ExecRequest, tenant: Asker) -> Response:
    """Run a command to its end. When its time is up every process of it is killed, and that is told."""
    if not body.args:
        raise InvalidRequest.of("args", "is empty", code="empty_command")
    commands = await tenant.commands(sandbox_id)
    # 0 is no time at all for forkd too; a millisecond is the least that core counts.
    async with tenant.kept(sandbox_id):
        result = await commands.run(
            body.args,
            timeout=max(body.timeout_secs, 0.001),
            env=body.env,
            cwd=body.cwd,
            user=body.user,
            stdin=body.stdin,
        )
    return Json({**result.to_dict(), "timed_out": result.timed_out})


@router.post("/sandboxes/{sandbox_id}/eval", response_model=schemas.EvalResult)
async def evaluate(sandbox_id: str, body: schemas.EvalRequest, tenant: Asker) -> Response:
    """Have the kernel run code. State is kept; an error of the code is no error of this call."""
    done = await _code(tenant, sandbox_id, body.code, body.timeout_secs, None)
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
    return Json((await _code(tenant, sandbox_id, body.code, body.timeout, body.context)).to_dict())


async def _code(
    tenant: Tenant, sandbox_id: str, code: str, timeout: float | None, context: str | None
) -> Execution:
    async with tenant.kernel(sandbox_id) as sandbox:
        return await sandbox.run_code(code, timeout=timeout, context=context)


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
        done = await _code(tenant, info.id, code, 10.0, None)
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
async def run(body: schemas.RunRequest, tenant: Asker, who: Who) -> Response:
    """Run one command in a sandbox that is made for it and gone after it."""
    check_room(tenant)
    async with tenant.making(who, 1):
        result = await tenant.client.run(
            body.command,
            timeout=body.timeout,
            stdin=body.stdin,
            env=body.env,
            cwd=body.cwd,
            limits=body.limits,
        )
    return Json({**result.to_dict(), "timed_out": result.timed_out})
