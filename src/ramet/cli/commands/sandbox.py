"""`ramet sandbox create|ls|kill` and `ramet fork`: sandboxes that outlive the command that made them."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from ramet.cli._arguments import (
    HUGE,
    JSON,
    KEEP_ON,
    LIVE_FORK,
    MEMORY_MIB,
    METADATA,
    ON_UNSUPPORTED,
    OWN_NETWORK,
    TIMEOUT,
    TTL,
    check_number,
    command_of,
    limit_option,
    memory_mib,
    variable,
)
from ramet.cli._command import LITERAL
from ramet.cli._each import each
from ramet.cli._progress import working
from ramet.cli._results import tell_made
from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ramet.models.sandboxes import SandboxInfo


def create(
    ctx: typer.Context,
    command: list[str] | None = typer.Argument(
        None, metavar="COMMAND", help="A shell line, or a program's words."
    ),
    *,
    name: str | None = typer.Option(None, metavar="NAME", help="A name to call it by, besides its id."),
    ttl: str | None = TTL,
    timeout: str | None = TIMEOUT,
    keep_on: list[str] = KEEP_ON,
    metadata: list[str] = METADATA,
    env: list[str] = typer.Option(
        [],
        "--env",
        "-e",
        metavar="NAME=VALUE",
        help="A variable for the command; NAME alone takes the value that it has here. May be repeated.",
    ),
    cwd: str | None = typer.Option(None, metavar="PATH", help="Directory inside the sandbox to start in."),
    root: str | None = typer.Option(None, metavar="DIRECTORY", help="A directory of this host to use as /."),
    user: str | None = typer.Option(
        None, "--user", "-u", metavar="UID[:GID]", help="Whose the command is, and later ones. Default: root."
    ),
    workspace: str | None = typer.Option(
        None, metavar="DIRECTORY", help="A directory of this host to copy to /workspace, and to start in."
    ),
    tools: list[str] = typer.Option(
        [],
        metavar="DIRECTORY",
        help="A directory of this host to show inside, read-only, at its own path. May be repeated.",
    ),
    memory: str | None = limit_option("memory"),
    cpus: str | None = limit_option("cpus"),
    pids: str | None = limit_option("processes"),
    disk: str | None = limit_option("disk"),
    inodes: str | None = limit_option("inodes"),
    shm: str | None = limit_option("shm"),
    io: str | None = limit_option("io"),
    open_files: str | None = limit_option("open_files"),
    file_size: str | None = limit_option("file_size"),
    address_space: str | None = limit_option("address_space"),
    cpu_seconds: str | None = limit_option("cpu_seconds"),
    idle: str | None = limit_option("idle"),
    as_json: bool = JSON,
) -> int:
    """Start a command in a sandbox that stays, and print the sandbox's id.

    The command is read as by ramet run. What it writes ramet logs shows, and its standard input stays
    open and empty. The sandbox ends with its command, when it is killed, or when nobody asked for
    it in the time of --ttl.
    """
    limits = {
        "memory": memory,
        "cpus": cpus,
        "processes": pids,
        "disk": disk,
        "inodes": inodes,
        "shm": shm,
        "io": io,
        "open_files": open_files,
        "file_size": file_size,
        "address_space": address_space,
        "cpu_seconds": cpu_seconds,
        "idle": idle,
    }
    arguments: dict[str, Any] = {
        "command": command_of(command or [], literal=ctx.meta.get(LITERAL) is True),
        "env": dict(variable(text) for text in env),
        "limits": {limit: value for limit, value in limits.items() if value is not None},
        "timeout": timeout,
        "keep_on": keep_on,
        "cwd": cwd,
        "root": root,
        "user": user,
        "workspace": workspace,
        "tools": tools,
        "name": name,
        "ttl": ttl,
        "metadata": _noted(metadata),
    }
    from ramet.client import Sandbox

    with working(None if workspace is None else f"copying {workspace}"):
        held = Sandbox(**arguments, detach=True)
    with held as made:
        tell_made([made.info], as_json=as_json)
    return 0


def fork(
    source: str | None = typer.Argument(
        None, metavar="SANDBOX", help="The sandbox to fork, by its id or name."
    ),
    *,
    snapshot: str | None = typer.Option(
        None, "--snapshot", "--tag", metavar="NAME", help="Fork this snapshot or template, not a sandbox."
    ),
    n: str = typer.Option("1", "-n", metavar="N", help="How many."),
    name: str | None = typer.Option(None, metavar="NAME", help="A name for the one child."),
    on_unsupported: str = ON_UNSUPPORTED,
    ttl: str | None = TTL,
    timeout: str | None = TIMEOUT,
    keep_on: list[str] = KEEP_ON,
    metadata: list[str] = METADATA,
    settle: str | None = typer.Option(
        None,
        "--settle-secs",
        metavar="SECONDS",
        help="Of a snapshot: stay so long, with forkd's guest protocol at $FORKD_TARGET.",
    ),
    keep_workdir: bool = typer.Option(
        False,
        "--keep-workdir",
        help="With --settle-secs: copy the children's working directories to $TMPDIR before they end.",
    ),
    memory: str | None = MEMORY_MIB,
    own_network: bool = OWN_NETWORK,
    live_fork: bool = LIVE_FORK,
    huge: bool = HUGE,
    as_json: bool = JSON,
) -> int:
    """Fork a running sandbox, or a snapshot, and print the ids of the children.

    Each goes on where the source stood, with its memory and files. When one of several cannot be made, none
    is kept.
    """
    del own_network, live_fork, huge  # there is no other way
    if source is None and snapshot is None:
        raise InvalidRequest.of("sandbox", "is missing: which one to fork")
    check_number(n)
    limits = memory_mib(memory)
    if settle is not None:
        return _settle(source, snapshot, n, settle, {
            "name": name, "ttl": ttl, "timeout": timeout, "keep-on": keep_on, "metadata": metadata,
            "json": as_json,
        }, limits=limits, keep=keep_workdir)  # fmt: skip
    if keep_workdir:
        raise InvalidRequest.of("keep-workdir", "belongs to --settle-secs: else the children live on")
    if name is not None and n != "1":
        raise InvalidRequest.of("name", f"is for one child, not for {n}")
    arguments: dict[str, Any] = {
        "timeout": timeout, "ttl": ttl, "names": None if name is None else [name], "limits": limits,
    }  # fmt: skip
    from ramet.client import fork as fork_it
    from ramet.models.checks import check_on_unsupported

    arguments |= {"keep_on": keep_on, "metadata": _noted(metadata)}
    arguments["on_unsupported"] = check_on_unsupported(on_unsupported)
    with fork_it(sandbox=source, snapshot=snapshot, n=int(n), detach=True, **arguments) as made:
        tell_made([one.info for one in made], as_json=as_json)
        for what in made[0].info.dropped:
            print(f"ramet: left out: {what}", file=sys.stderr)
    return 0


def _noted(texts: list[str]) -> dict[str, str] | None:
    """The metadata of --metadata; None where there is none. Raises InvalidRequest."""
    noted: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest.of("metadata", f"{text!r:.80} is not KEY=VALUE")
        noted[key] = value
    return noted or None


def _settle(
    source: str | None, tag: str | None, n: str, seconds: str, others: dict[str, Any], **options: Any
) -> int:
    if source is not None or tag is None:
        raise InvalidRequest.of("settle-secs", "is for forks of a snapshot: give --tag")
    for option, value in others.items():
        if value:
            raise InvalidRequest.of(
                option, "is of no use with --settle-secs: the children end with this program"
            )
    from ramet.cli._guest import stand
    from ramet.models.limits import parse_seconds

    return stand(tag, int(n), float(parse_seconds(seconds, "settle-secs")), **options)


def ls(
    ended: bool = typer.Option(
        False, "--all", help="Also those that ended in the last minutes; with --tree all that are known of."
    ),
    as_tree: bool = typer.Option(
        False, "--tree", help="Draw who was forked from what, with ancestors that have ended, and snapshots."
    ),
    filters: list[str] = typer.Option(
        [],
        "--filter",
        metavar="KEY=VALUE",
        help="Only those with this name, parent, snapshot, or metadata. May be repeated.",
    ),
    as_json: bool = JSON,
) -> int:
    """List the sandboxes that stay."""
    from ramet.client import sandboxes

    found = sandboxes.list(ended=ended, **_filters(filters))
    if as_tree:
        return _draw(found, ended=ended, filters=_filters(filters), as_json=as_json)
    if as_json:
        print(json.dumps({"sandboxes": [one.to_dict() for one in found]}))
    elif found:
        from ramet.cli.render import table

        table(("ID", "NAME", "PARENT", "AGE", "STATUS", "COMMAND"), [_row(one) for one in found])
    return 0


def kill(
    names: list[str] | None = typer.Argument(None, metavar="SANDBOX...", help="Ids or names."),
    everything: bool = typer.Option(False, "--all", help="All that stay."),
    tag: str | None = typer.Option(None, "--tag", metavar="NAME", help="All forks of this snapshot."),
    as_json: bool = JSON,
) -> int:
    """End sandboxes, and return when they have ended."""
    if bool(names) + everything + (tag is not None) != 1:
        raise InvalidRequest.of(
            "sandbox", "is missing: which one to end" if not names else "or --all, or --tag"
        )
    from ramet.client import sandboxes, snapshots

    if everything:
        names = [one.id for one in sandboxes.list()]
    elif tag is not None:
        names = [one.id for one in sandboxes.list(snapshot=snapshots.get(tag).name)]
    ended: list[SandboxInfo] = []
    failed = each(names or (), lambda name: ended.append(sandboxes.kill(name)))
    if as_json:
        print(json.dumps({"sandboxes": [one.to_dict() for one in ended]}))
    if failed is not None:
        raise failed
    return 0


def stats(
    name: str | None = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name."),
    as_json: bool = JSON,
) -> int:
    """Show what a sandbox uses at the moment."""
    if name is None:
        raise InvalidRequest.of("sandbox", "is missing: which one")
    from ramet.cli.render import pairs, size
    from ramet.client import Commands, Files

    found = Files(Commands(name)).usage()
    if as_json:
        print(json.dumps(found.to_dict()))
        return 0
    shm = f"{size(found.shm_bytes)} of {size(found.shm_limit)}{', full' * found.shm_full}"
    files = f"{found.shm_files} of {found.shm_files_limit}"
    pairs(
        {
            "processor": f"{(found.user_ms + found.system_ms) / 1e3:.2f} s",
            "memory": f"{size(found.memory_bytes)}, of which {size(found.shared_bytes)} are shared",
            "processes": f"{found.processes}, with {found.threads} threads",
            "disk": f"{size(found.disk_bytes)} of {size(found.disk_limit)}{', full' * found.disk_full}",
            "files": f"{found.files} of {found.files_limit}",
            **({"/dev/shm": f"{shm}; files: {files}"} if found.shm_limit else {}),  # noqa: S108  a label
        }
    )
    return 0


def _filters(texts: list[str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest.of("filter", f"{text!r:.80} is not KEY=VALUE")
        if key in {"name", "parent", "snapshot"}:
            chosen[key] = value
        else:
            metadata[key.removeprefix("metadata.")] = value
    return {**chosen, "metadata": metadata}


def _draw(found: Sequence[SandboxInfo], *, ended: bool, filters: dict[str, Any], as_json: bool) -> int:
    from ramet.cli.tree import draw
    from ramet.client import sandboxes

    tree = sandboxes.lineage(ended=ended, **filters)
    if as_json:
        told = {"sandboxes": [one.to_dict() for one in found], **tree.to_wire()}
        print(json.dumps(told))
        return 0
    chosen = {one.id for one in found}
    if not any(filters.values()):
        # Of other daemons that share the store only what something here comes from.
        chosen |= {node.key for node in tree.nodes if node.kind == "snapshot" and node.ended is None}
        chosen |= {node.key for node in tree.nodes if ended and node.kind != "template" and node.own}
    for line in draw(tree.of(chosen).nodes):
        print(line)
    if tree.note is not None:
        print(f"ramet: {tree.note}", file=sys.stderr)
    return 0


def _row(one: SandboxInfo) -> tuple[str, ...]:
    from ramet.cli.render import age

    # How a kernel is started is nothing that anybody has written.
    command = f"({one.kernel.name} kernel)" if one.kernel else " ".join(one.command).replace("\n", " ")
    state = one.how_it_ended() or ("running" if one.detached else "running, owned")
    return one.id, one.name or "", one.parent or "", age(time.time() - one.created), state, f"{command:.60}"
