"""Commands by the names that users of forkd know: spawn, eval, rmi, snapshot-info, snapshot-compact."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from ramet.cli import _errors
from ramet.cli._arguments import (
    HUGE,
    JSON,
    LIVE_FORK,
    MEMORY_MIB,
    OWN_NETWORK,
    check_number,
    memory_mib,
)
from ramet.cli._each import each
from ramet.cli._results import tell_made
from ramet.cli._target import CHILD, TARGET, ask, check, exit_code_of
from ramet.errors import InvalidRequest
from ramet.models.snapshots import BUILT_IN

if TYPE_CHECKING:
    from ramet.models.executions import Execution
    from ramet.models.snapshots import Snapshot

TAG = typer.Option(None, "--tag", metavar="NAME", help="A snapshot or template.")
TIMED_OUT = 124


def spawn(
    tag: str | None = TAG,
    *,
    n: str = typer.Option("1", "-n", metavar="N", help="How many."),
    memory: str | None = MEMORY_MIB,
    own_network: bool = OWN_NETWORK,
    prewarm: bool = typer.Option(
        False, "--prewarm", help="With the snapshot's memory in RAM already, as every fork has it anyway."
    ),
    live_fork: bool = LIVE_FORK,
    huge: bool = HUGE,
    ttl: str | None = typer.Option(None, "--ttl", metavar="SECONDS", help="As of ramet fork."),
    as_json: bool = JSON,
) -> int:
    """Fork a snapshot or template, and print the ids of the children."""
    del own_network, prewarm, live_fork, huge  # there is no other way
    if tag is None:
        raise InvalidRequest.of("tag", "is missing: which snapshot to fork")
    return _fork(tag, n, limits=memory_mib(memory), ttl=ttl, as_json=as_json)


def _fork(tag: str, n: str, *, limits: dict[str, Any] | None, ttl: str | None, as_json: bool) -> int:
    """Fork a snapshot or template, and print the ids of the children."""
    check_number(n)
    from ramet.client import fork as fork_it

    with fork_it(snapshot=tag, n=int(n), limits=limits, detach=True, ttl=ttl) as made:  # type: ignore[arg-type]
        tell_made([one.info for one in made], as_json=as_json)
    return 0


def eval_(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name."),
    code: str | None = typer.Argument(
        None, metavar="CODE", help="What to run; - reads it from standard input."
    ),
    *,
    timeout: str | None = typer.Option(
        None,
        "--timeout",
        "--timeout-secs",
        metavar="SECONDS",
        help="Time until it is interrupted. Default: none.",
    ),
    target: str | None = TARGET,
    child: str | None = CHILD,
    as_json: bool = typer.Option(False, "--json", help="Print the result as one JSON object."),
) -> int:
    """Run code in the kernel of a detached sandbox, which keeps its state from one call to the next.

    The value of the last line is printed. The exit code is 0, 1 after an error of the code, 124 when its time
    was up.
    """
    if target is not None and code is None:  # the one word is no sandbox's
        sandbox, code = None, sandbox
    check(target, child, sandbox)
    for field, value in (("sandbox", sandbox or target), ("code", code)):
        if value is None:
            raise InvalidRequest.of(field, "is missing")
    from ramet.cli._streams import writer
    from ramet.client import Sandbox
    from ramet.models.limits import parse_seconds

    options: dict[str, Any] = {} if as_json else {"on_stdout": writer(1), "on_stderr": writer(2)}
    if timeout is not None:
        options["timeout"] = float(parse_seconds(timeout, "timeout"))
    text = sys.stdin.read() if code == "-" else code or ""
    if target is not None:
        return _eval_at(target, text, options.get("timeout", 30.0), as_json=as_json)
    with Sandbox.connect(sandbox or "") as held:
        done = held.run_code(text, **options)
    if as_json:
        print(json.dumps(done.to_dict()))
    else:
        _tell(done)
    return 0 if done.ok else TIMED_OUT if done.reason == "timeout" else 1


def _eval_at(target: str, code: str, timeout: float, *, as_json: bool) -> int:
    answer = ask(target, {"action": "eval", "code": code}, timeout)
    if as_json:
        print(json.dumps(answer))
    elif answer.get("error"):
        print(answer.get("traceback") or answer["error"], file=sys.stderr)
    elif answer.get("result") is not None:
        print(answer["result"])
    return exit_code_of(answer)


def _tell(done: Execution) -> None:
    if done.text is not None:
        print(done.text)
    if done.error is not None:
        print(str(done.error).rstrip(), file=sys.stderr)
    elif not done.ok:
        _errors.say(f"the code ended: {done.reason}")


def rmi(
    tags: list[str] | None = typer.Argument(None, metavar="NAME...", help="Snapshots or templates."),
    *,
    cascade: bool = typer.Option(False, "--cascade", help="And those that build upon them."),
    force: bool = typer.Option(False, "--force", help="Have those that build upon them stand alone first."),
    as_json: bool = JSON,
) -> int:
    """Forget snapshots and templates; what was forked from them goes on."""
    if not tags:
        raise InvalidRequest.of("snapshot", "is missing: which one to forget")
    if cascade and force:
        raise InvalidRequest.of("cascade", "removes what --force would keep")
    removed: list[Snapshot] = []
    failed = each(tags, lambda tag: _remove(tag, removed, cascade=cascade, force=force))
    if as_json:
        print(json.dumps({"snapshots": [one.to_dict() for one in removed]}))
    if failed is not None:
        raise failed
    return 0


def _remove(tag: str, removed: list[Snapshot], *, cascade: bool, force: bool) -> None:
    from ramet.client import snapshots

    found = snapshots.get(tag)
    if cascade or force:
        for one in snapshots.all_kept():
            if one.parent != found.name:
                continue
            if cascade:
                _remove(one.name, removed, cascade=True, force=False)
            else:
                snapshots.compact(one)
    removed.append(snapshots.remove(found))


def snapshot_info(
    tag: str | None = typer.Argument(None, metavar="NAME", help="A snapshot or template."),
    as_json: bool = JSON,
) -> int:
    """Tell all of one snapshot."""
    if tag is None:
        raise InvalidRequest.of("snapshot", "is missing: which one")
    from ramet.cli.render import age, pairs, size
    from ramet.client import snapshots

    found = snapshots.get(tag)
    if as_json:
        print(json.dumps(found.to_wire()))
        return 0
    pairs(
        {
            "name": found.name,
            "sandbox": found.sandbox,
            "age": age(time.time() - found.created),
            "builds upon": found.parent or "nothing",
            "memory": size(found.memory_bytes),
            "files": size(found.file_bytes),
            "on disk": size(found.disk_bytes),
            "processes": str(found.processes),
            "stood still": f"{found.pause_ms:.1f} ms",
            "damage": found.damage or "none",
        }
    )
    return 0


def snapshot_compact(
    source: str | None = typer.Option(None, "--from", metavar="NAME", help="A snapshot or template."),
    target: str | None = typer.Option(None, "--to", metavar="NAME", help="The same name: it keeps its own."),
    as_json: bool = JSON,
) -> int:
    """Have a snapshot build upon no other, so that its ancestors can be removed."""
    if source is None:
        raise InvalidRequest.of("from", "is missing: which snapshot")
    if target not in {None, source}:
        text = "a snapshot is made to stand alone in its place, and gets no other name"
        raise InvalidRequest.of(
            "to", text, hint=f"leave --to away, or fork {source} and keep that as {target}"
        )
    from ramet.cli.render import size
    from ramet.client import snapshots

    before = snapshots.get(source)
    found = snapshots.compact(before)
    if as_json:
        print(json.dumps(found.to_wire()))
    else:
        print(f"{found.name}: {size(before.disk_bytes)} on disk before, {size(found.disk_bytes)} now")
    return 0


def bench(tag: str, n: str) -> dict[str, float]:
    """Milliseconds of a sandbox's life: forked, a command, a snapshot, forks of that, the end of all."""
    from ramet.client import fork, snapshots

    if not n.isdecimal() or not int(n):
        raise InvalidRequest.of("n", f"{n!r:.40} is not a number of children")
    if tag not in BUILT_IN:  # those are built where they are not
        tag = snapshots.get(tag).name
    name = f"bench-{time.time_ns():x}"
    rows: dict[str, float] = {}
    began = last = time.perf_counter()

    def lap(row: str) -> None:
        nonlocal last
        now = time.perf_counter()
        rows[row], last = (now - last) * 1e3, now

    # What is built or read from disk for the first one is no fork's.
    with fork(snapshot=tag):
        rows["ready"] = (time.perf_counter() - began) * 1e3
    began = last = time.perf_counter()
    with fork(snapshot=tag) as first:
        lap("spawn")
        first[0].commands.run("echo hello", check=True)
        lap("exec")
        taken = first[0].snapshot(name)
        lap("branch")
        rows["pause"] = taken.pause_ms
        try:
            with fork(snapshot=name, n=int(n)):
                lap("fanout")
            lap("cleanup")
        finally:
            snapshots.remove(name)
    rows["total"] = (time.perf_counter() - began) * 1e3
    return rows
