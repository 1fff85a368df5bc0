"""The roots and filters that a running core knows, and when they must be told anew.

A root's recipe is worked out in a thread (it reads the host's /etc and asks interpreters for their files), is
told to core once, and after that costs a dictionary look-up per run. A directory root is compared with the
host on every use; the default root in the background every REFRESH_S, so that an upgrade of the host's
programs is noticed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import hashlib
import os
import secrets
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet._descriptors import close_all
from ramet.engine import plan
from ramet.engine.root import InterpreterFacts, RootSpec, default_environment, default_root, directory_root
from ramet.errors import DaemonLost, InternalError, InvalidRequest, IsolationError, RametError
from ramet.models.users import ROOT
from ramet.native import _protocol as p
from ramet.native.frames import raw, u32
from ramet.native.launch import lend_mounts
from ramet.native.runs import Beginning, environment_part
from ramet.seccomp import default_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ramet.models.limits import Limits
    from ramet.models.runs import Python, RunRequest
    from ramet.native.core import CoreConnection

ROOTS_MAX = 16
REFRESH_S = 30.0

Key = tuple[str | None, "Python | None", tuple[str, ...]]
"""A directory to use as root; else the interpreter to show, and further directories."""


@dataclasses.dataclass(slots=True)
class Defined:
    """A root that core knows by `number`, and what every plan on it repeats."""

    number: int
    filter_number: int
    spec: RootSpec
    identity: str
    home: str
    environment: Mapping[str, str]
    fixed: bytes
    checked: float
    stamp: tuple[int, ...] | None
    cgroups: str = ""
    beginnings: dict[Limits, Beginning] = dataclasses.field(default_factory=dict)

    def beginning(self, limits: Limits) -> Beginning:
        """What every plan of a run with these limits begins with. Raises InvalidRequest."""
        # The deadline is no part of it: it differs from call to call.
        key = limits.without_deadline()
        known = self.beginnings.get(key)
        if known is None:
            if len(self.beginnings) >= 64:
                self.beginnings.clear()
            encoded = self.fixed + plan.limits_part(key, self.cgroups)
            environment = {**plan.environment_of(key), **self.environment}
            known = self.beginnings[key] = Beginning(encoded, environment, self.home)
        return known

    def create(self, limits: Limits, standing: bytes) -> bytes:
        """The payload of CREATE; `standing` is from `plan.standing_part`. Raises InvalidRequest."""
        place = u32(p.TAG_ROOT, self.number) + u32(p.TAG_FILTER, self.filter_number)
        return b"".join((place, standing, plan.limits_part(limits, self.cgroups)))

    def spawn(self, request: RunRequest, sandbox: int, streams: bytes, user: tuple[int, int] = ROOT) -> bytes:
        """The payload of SPAWN."""
        told = plan.environment_of(request.limits)
        environment = environment_part({**told, **self.environment, **request.env})
        return plan.spawn_part(request, sandbox, self.home, streams, user) + environment


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """How files of the host come to core: by path, or lent by `lender` where core's user cannot open them."""

    program: Path
    core_pid: int
    lends: bool
    private: tuple[str, ...] = ()
    cgroups: str = ""


class Definitions:
    """The roots and the filter of one core."""

    def __init__(self, core: CoreConnection, host: Host, spawn: Callable[..., object]) -> None:
        """`spawn` runs a coroutine in the daemon's task group."""
        self._core = core
        self._host = host
        self._spawn = spawn
        self._roots: OrderedDict[Key, Defined] = OrderedDict()
        self._making: dict[Key, asyncio.Future[Defined]] = {}
        # A core that was adopted knows numbers of a daemon that is gone; a random start does not meet them.
        self._last = secrets.randbelow(1 << 31)
        self.filter_number = secrets.randbelow(1 << 31) + 1
        self.filter_hash = ""

    def __len__(self) -> int:
        return len(self._roots)

    async def define_filter(self) -> None:
        """Tell core the seccomp program of guests."""
        program = await asyncio.to_thread(default_filter)
        self.filter_hash = hashlib.blake2b(program, digest_size=16).hexdigest()
        await self._core.ask(
            p.DEFINE_FILTER, u32(p.TAG_FILTER, self.filter_number) + raw(p.TAG_BYTES, program)
        )

    def known(
        self, directory: str | None, python: Python | None, tools: tuple[str, ...] = ()
    ) -> Defined | None:
        """The root in `directory`, or the default one for `python`, when it can be used at once."""
        key = (directory, python, tools)
        defined = self._roots.get(key)
        if defined is None:
            return None
        if directory is not None:
            # The caller may have replaced the directory since.
            if stamp(directory) != defined.stamp:
                return None
        elif time.monotonic() - defined.checked > REFRESH_S and key not in self._making:
            defined.checked = time.monotonic()
            self._spawn(self._refresh(key, defined.identity))
        self._roots.move_to_end(key)
        return defined

    async def get(self, directory: str | None, python: Python | None, tools: tuple[str, ...] = ()) -> Defined:
        """The same, told to core if need be. Raises InvalidRequest, IsolationError, DaemonLost."""
        known = self.known(directory, python, tools)
        if known is not None:
            return known
        key = (directory, python, tools)
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.get_running_loop().create_future()
            self._spawn(self._make(key, making))
        return await asyncio.shield(making)

    async def _make(self, key: Key, made: asyncio.Future[Defined]) -> None:
        try:
            before = stamp(key[0])
            spec = await asyncio.to_thread(self.work_out, key)
            made.set_result(await self._tell(key, spec, before))
        except RametError as error:
            refuse(made, _gone(error, key[0]) or error)
        except Exception as error:
            refuse(made, InternalError("internal", f"the root cannot be worked out: {error!r}"))
            raise
        finally:
            del self._making[key]
            if not made.done():
                refuse(made, DaemonLost("daemon_lost", "the daemon is ending"))

    async def _refresh(self, key: Key, identity: str) -> None:
        spec = await asyncio.to_thread(self.work_out, key)
        if spec.identity != identity:
            await self._tell(key, spec, None)

    def work_out(self, key: Key) -> RootSpec:
        """The recipe for a key as the host is now. Blocks. Raises InvalidRequest."""
        root, python, tools = key
        if root is not None:
            return directory_root(root)
        facts = None
        if python is not None:
            facts = InterpreterFacts(python.prefix, python.base_prefix, python.executable)
        return default_root(facts, private=self._host.private, tools=tools)

    async def _tell(self, key: Key, spec: RootSpec, before: tuple[int, ...] | None) -> Defined:
        number = await self.define_once(spec)
        environment = default_environment(spec)
        defined = Defined(
            number=number,
            filter_number=self.filter_number,
            spec=spec,
            identity=spec.identity,
            home=spec.home,
            environment=environment,
            fixed=plan.fixed_part(number, self.filter_number),
            checked=time.monotonic(),
            stamp=before,
            cgroups=self._host.cgroups,
        )
        replaced = self._roots.pop(key, None)
        self._roots[key] = defined
        # Sandboxes that run on a dropped root keep it.
        if replaced is not None:
            await self.drop(replaced.number)
        while len(self._roots) > ROOTS_MAX:
            await self.drop(self._roots.popitem(last=False)[1].number)
        return defined

    async def define_once(self, spec: RootSpec) -> int:
        """Tell core a root; its number, by which the caller drops it. Raises IsolationError, DaemonLost."""
        self._last = number = self._last % (1 << 31) + 1
        fds = await asyncio.to_thread(self._lend, spec) if self._host.lends else []
        lent = [bool(fds)] * (len(spec.binds) + len(spec.layers))
        try:
            payload = plan.root_part(number, spec, lent)
        except BaseException:
            close_all(fds)
            raise
        await self._core.ask(p.DEFINE_ROOT, payload, fds)
        return number

    async def drop(self, number: int) -> None:
        """Have core forget a root. What stands on it keeps it."""
        await self._core.ask(p.DROP_ROOT, u32(p.TAG_ROOT, number))

    def _lend(self, spec: RootSpec) -> list[int]:
        """Mounts of every bind and layer. Layers need owners that exist inside, to be copied up."""
        binds = [str(bind.source) for bind in spec.binds]
        layers = [str(layer) for layer in spec.layers]
        fds = lend_mounts(self._host.program, binds) if binds else []
        try:
            if layers:
                fds += lend_mounts(self._host.program, layers, id_map_pid=self._host.core_pid)
        except BaseException:
            close_all(fds)
            raise
        return fds


def stamp(root: str | None) -> tuple[int, ...] | None:
    """What tells one directory from another that has taken its name; None for none."""
    if root is None:
        return None
    try:
        status = os.stat(root)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def refuse(future: asyncio.Future[Any], error: RametError) -> None:
    """Fail `future`; that nobody may be left to hear of it is no fault."""
    future.set_exception(error)
    future.exception()


def _gone(error: RametError, directory: str | None) -> InvalidRequest | None:
    """The refusal of a root directory that was there when it was looked at, and not when core opened it."""
    if directory is None or not isinstance(error, IsolationError):
        return None
    # Where it is lent, the step is that of a bind, and the path is told.
    if error.step != "root_layer" and not (error.step == "root_bind" and f" {directory}:" in error.message):
        return None
    if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
        return None
    return InvalidRequest.of("root", f"{directory} has gone meanwhile", code="not_found")
