"""Lanes: what a client needs to have core run commands without the daemon in between.

A daemon that slept takes longer to wake up than core to run `true`; so a client that runs more than one
command gets a connection of its own to core, and the beginning of its plans, which is all that the daemon
would add to a request. Core takes runs over it, which end when it closes, and forks of snapshots, each of
which brings a session of its own; the daemon hears of those.
"""

from __future__ import annotations

import base64
import math
import socket
from typing import TYPE_CHECKING

from ramet._descriptors import close_all
from ramet.errors import RametError
from ramet.models.runs import LaneInfo
from ramet.native import _protocol as p

if TYPE_CHECKING:
    from ramet.daemon.server import Connection
    from ramet.engine.cores import Core, Cores
    from ramet.models.runs import LaneRequest


class Lanes:
    """The operation `lane`, and what is done over lanes."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores

    async def open(self, request: LaneRequest, client: Connection) -> LaneInfo:
        """The beginning of plans; before it a lane, if one is asked for."""
        core = await self._cores.ensure()
        root = await core.definitions.get(None, request.python)
        beginning = root.beginning(request.limits)
        if request.socket:
            client.pass_on({"made": 0, "info": {}}, [await open_lane(core)])
        return LaneInfo(
            core_id=f"{core.core_id:016x}",
            encoded=base64.b64encode(beginning.encoded).decode("ascii"),
            environment=dict(beginning.environment),
            home=beginning.home,
            single_uid=core.single_uid,
            cgroups=core.cgroups,
        )

    async def idle_s(self) -> float:
        """Seconds since core was last asked for a sandbox; 0 while there is one that somebody asked for."""
        core = self._cores.running
        if core is None:
            return math.inf
        status = await core.status()
        return 0.0 if status.sandboxes > self._cores.sandboxes.spares else status.idle_s

    async def close(self) -> bool:
        """Close every lane that has no run; True when none is left.

        A client that sends a run in this moment finds that it was not read, and sends it again elsewhere.
        """
        core = self._cores.running
        return core is None or not (await core.connection.ask(p.CLOSE_LANES)).u32(p.TAG_LANES)


async def open_lane(core: Core) -> int:
    """The client's end of a new lane. Raises RametError."""
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        text = f"no lane can be made: {error.strerror or error}"
        raise RametError("busy", text, errno=error.errno) from None
    end = ours.detach()
    try:
        await core.connection.ask(p.LANE, b"", [theirs.detach()])
    except BaseException:
        close_all([end])
        raise
    return end
