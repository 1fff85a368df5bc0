"""`ramet daemon start|stop|status` and `ramet status`."""

from __future__ import annotations

import dataclasses
import json
import os
import select
from typing import TYPE_CHECKING, Any

import typer

from ramet.cli._server import known
from ramet.errors import DaemonError, DaemonLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from ramet.client import Client
    from ramet.models.status import DaemonStatus

ABSENT = 3
"""Exit code of `status` when nothing runs, as service managers have it."""
_STOP_PATIENCE_S = 20.0
_JSON = typer.Option(False, "--json", help="Print one JSON object.")


def start(as_json: bool = _JSON) -> int:
    """Start the daemon, if it is not running yet."""
    from ramet.client import Client

    # RAMET_URL is not heeded here: a server's daemons are its own.
    with Client() as client:
        pong = client.ping()
    _tell(
        {"running": True, **pong.to_wire()},
        f"the daemon runs: version {pong.version}, pid {pong.pid}",
        as_json,
    )
    return 0


def stop(as_json: bool = _JSON) -> int:
    """End the daemon, and with it every sandbox; return when all of it is gone."""
    from ramet.client import Client

    try:
        with Client(start=False) as client:
            pong = client.shutdown()
    except DaemonLost as error:
        if error.code != "daemon_absent":
            raise
        _tell({"stopped": False}, "no daemon is running", as_json)
        return 0
    _await_end(pong.pid)
    _tell({"stopped": True, "pid": pong.pid}, f"the daemon ended: pid {pong.pid}", as_json)
    return 0


def upgrade(as_json: bool = _JSON) -> int:
    """Have a daemon of this version take over from the one that runs, with the sandboxes that are detached.

    A core of another version goes on beside a new one until the last of its sandboxes has ended.
    """
    from ramet.client import Client, ping

    before = None
    with Client(start=False) as client:
        try:
            before = client.hand_over()
        except DaemonLost as error:
            if error.code != "daemon_absent":
                raise
    if before is not None:
        _await_end(before.pid)
    pong = ping()
    _tell(
        {"upgraded": before is not None, **pong.to_wire()},
        f"the daemon runs: version {pong.version}, pid {pong.pid}",
        as_json,
    )
    return 0


def status(as_json: bool = _JSON) -> int:
    """Show the daemon and its core, without starting them. The exit code is 3 when none is running.

    With a server it shows the server's, to tokens with the scope admin.
    """
    return _status(known, as_json)


def own_status(as_json: bool = _JSON) -> int:
    """Show the daemon of this machine as ramet status does, whatever server is asked otherwise."""
    from ramet.client import Client

    return _status(lambda: Client(start=False), as_json)


def _status(client_of: Callable[[], Client], as_json: bool) -> int:
    try:
        with client_of() as client:
            found = client.status()
    except DaemonLost as error:
        if error.code != "daemon_absent":
            raise
        _tell({"running": False}, "no daemon is running; the next run starts one", as_json)
        return ABSENT
    if as_json:
        print(json.dumps({"running": True, **dataclasses.asdict(found)}))
    else:
        from ramet.cli.render import pairs

        pairs(_described(found))
    return 0


def _described(found: DaemonStatus) -> dict[str, object]:
    rows: dict[str, object] = {
        "daemon": f"version {found.version}, pid {found.pid}, up for {found.uptime_s:.0f} s",
        "directory": found.runtime_dir,
        "connections": f"{found.connections}, of which {found.active} with a run",
    }
    core = found.core
    if core is None:
        rows["core"] = "not started yet"
        return rows
    ids = "one user id in sandboxes" if core.ids == "single" else "a range of user ids in sandboxes"
    rows["core"] = f"version {core.program}, pid {core.pid}, {ids}"
    rows["pool"] = f"{core.pool_ready} of {core.pool_size} entries ready"
    rows["sandboxes"] = f"{core.sandboxes} alive, {core.runs} ended"
    rows["roots"] = core.roots
    if found.older:
        rows["older cores"] = ", ".join(
            f"version {one.program}, pid {one.pid}, {one.sandboxes} alive" for one in found.older
        )
    rows["snapshots"] = f"{core.snapshot_memory >> 20} MiB in memory"
    if core.snapshot_budget:
        rows["snapshots"] = f"{core.snapshot_memory >> 20} of {core.snapshot_budget >> 20} MiB in memory"
    return rows


def _tell(data: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(data) if as_json else text)


def _await_end(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([handle], [], [], _STOP_PATIENCE_S)[0]:
            raise DaemonError("daemon_stays", f"the daemon, pid {pid}, did not end in {_STOP_PATIENCE_S:g} s")
    finally:
        os.close(handle)
