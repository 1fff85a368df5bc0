"""Commands by the names that users of forkd know: spawn, eval, rmi, snapshot-info, snapshot-compact."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from ramet.cli import _errors
from ramet.cli._each import each
from ramet.cli.commands.sandbox import JSON, fork_tag
from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from ramet.models.executions import Execution
    from ramet.models.sandboxes import Snapshot

TAG = typer.Option(None, "--tag", metavar="NAME", help="A snapshot or template.")
TIMED_OUT = 124


def spawn(
    tag: str | None = TAG,
    *,
    n: str = typer.Option("1", "-n", metavar="N", help="How many."),
    memory: str | None = typer.Option(
        None,
        "--memory-limit-mib",
        metavar="MIB",
        help="Memory of each, where it differs from the snapshot's.",
    ),
    own_network: bool = typer.Option(
        False, "--per-child-netns", help="A network of its own for each, as every sandbox has anyway."
    ),
    prewarm: bool = typer.Option(
        False, "--prewarm", help="With the snapshot's memory in RAM already, as every fork has it anyway."
    ),
    live_fork: bool = typer.Option(
        False, "--live-fork", help="To be forked as it runs later, as every sandbox can anyway."
    ),
    huge: bool = typer.Option(
        False,
        "--hugepages",
        help="With huge pages where the kernel makes them, as every fork anyway.",
    ),
    ttl: str | None = typer.Option(None, "--ttl", metavar="SECONDS", help="As of ramet fork."),
    as_json: bool = JSON,
) -> int:
    """Fork a snapshot or template, and print the ids of the children."""
    del own_network, prewarm, live_fork, huge  # there is no other way
    if tag is None:
        raise InvalidRequest.of("tag", "is missing: which snapshot to fork")
    limits = None if memory is None else {"memory": f"{memory}M"}
    return fork_tag(tag, n, limits=limits, ttl=ttl, as_json=as_json)


def eval_(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name."),
    code: str | None = typer.Argument(
        None, metavar="CODE", help="What to run; - reads it from standard input."
    ),
    *,
    timeout: str | None = typer.Option(
        None, "--timeout", metavar="SECONDS", help="Time until it is interrupted. Default: none."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as one JSON object."),
) -> int:
    """Run code in the kernel of a detached sandbox, which keeps its state from one call to the next.

    The value of the last line is printed. The exit code is 0, 1 after an error of the code, 124 when its time
    was up.
    """
    for field, value in (("sandbox", sandbox), ("code", code)):
        if value is None:
            raise InvalidRequest.of(field, "is missing")
    from ramet.cli._streams import writer
    from ramet.client import Sandbox
    from ramet.models.limits import parse_seconds

    options: dict[str, Any] = {} if as_json else {"on_stdout": writer(1), "on_stderr": writer(2)}
    if timeout is not None:
        options["timeout"] = float(parse_seconds(timeout, "timeout"))
    text = sys.stdin.read() if code == "-" else code or ""
    with Sandbox.connect(sandbox or "") as held:
        done = held.run_code(text, **options)
    if as_json:
        print(json.dumps(done.to_dict()))
    else:
        _tell(done)
    return 0 if done.ok else TIMED_OUT if done.reason == "timeout" else 1


def _tell(done: Execution) -> None:
    if done.text is not None:
        print(done.text)
    if done.error is not None:
        print("".join(done.error.traceback).rstrip() or str(done.error), file=sys.stderr)
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
    kept = snapshots.get(tag).name
    name = f"bench-{time.time_ns():x}"
    rows: dict[str, float] = {}
    began = last = time.perf_counter()

    def lap(row: str) -> None:
        nonlocal last
        now = time.perf_counter()
        rows[row], last = (now - last) * 1e3, now

    with fork(snapshot=kept) as first:
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
