# Generated from _async/client.py by scripts/unasync.py. Do not edit.
"""A client of the user's daemon.

It holds connections, one operation at a time on each, and starts the daemon on demand.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

from ramet._descriptors import close_all
from ramet.client._backends._sync import Task, deliver, in_thread, poll, ready
from ramet.client._chosen import forgo
from ramet.client._exchange import Connection, Exchange, Link, Made, Peer, Stale, keep
from ramet.client._start import absolute, connect, interpreter, start_daemon
from ramet.client._streams import Source, check_output
from ramet.errors import DaemonLost, InvalidRequest, RametError
from ramet.models.limits import Limits
from ramet.models.results import CommandResult
from ramet.models.runs import RunRequest
from ramet.wire.places import runtime_path

if TYPE_CHECKING:
    from ramet.client._commands import CoreLink
    from ramet.client._forks import Forkable, Forking, KnownFork, Taking
    from ramet.client._held import Held
    from ramet.client._lanes import Lane, Lanes
    from ramet.client._remote import Remote
    from ramet.models.forks import ForkRequest
    from ramet.models.status import DaemonStatus, Pong, Report
    from ramet.native.frames import Attributes

T = TypeVar("T")
# Core ends a command at its deadline; a daemon that does not say so within this time is beyond help.
PATIENCE_S = 30.0
# The memory of the source is copied first: gigabytes take seconds.
FORK_PATIENCE_S = 120.0
ATTEMPTS = 3
# A command that is done by then costs one wakeup; one that writes more than a pipe holds waits so long once.
QUIET_S = 0.004
ALARM_S = 0.003


def _silent() -> DaemonLost:
    return DaemonLost("daemon_silent", "core does not answer", hint="ramet daemon stop ends it")


def _heard(forking: Forking, timeout: float) -> list[int]:
    """Which of the sessions that are waited for have something to say."""
    if (only := forking.only) is not None:
        return [only] if ready(only, timeout) else []
    return [number for number, _ in poll(forking.poller(), timeout)]


def _idempotent(operation: str) -> bool:
    from ramet.models.operations import OPERATIONS

    row = OPERATIONS.get(operation)
    return row is not None and row.idempotent


class Client:
    """Speaks to the user's daemon, which is started when the first request needs it.

    Safe to share between threads and event loops. Closing it ends the runs that are under way on it.
    """

    def __init__(
        self,
        runtime_dir: str | None = None,
        *,
        start: bool = True,
        data_dir: str | None = None,
        remote: Remote | None = None,
        guest: bool = False,
    ) -> None:
        """Make a client; nothing is connected or started yet.

        Args:
            runtime_dir: where the daemon is met; by default the user's own place.
            start: start a daemon when there is none; else a request raises DaemonLost.
            data_dir: where a daemon that this client starts keeps snapshots; by default the user's own place.
            remote: the server to ask instead; `ramet.connect` makes clients of those.
            guest: leave the connection to `remote` open in the end: it is another client's.
        """
        self._guest = guest
        self.remote = remote
        """The server that is asked; None: a daemon of this machine."""
        self._runtime_dir = runtime_dir
        self._data_dir = data_dir
        self._start = start
        # Each operation on it is atomic; a lock could be left locked by a fork of a threaded program.
        self._idle: list[Connection] = []
        self._lanes: Lanes | None = None
        self._core_links: list[CoreLink] = []
        self._ran = False
        self.templates: dict[str, str] = {}
        """Built-in templates that were seen to be there: the names of their snapshots."""
        self.forkables: dict[str, Forkable] = {}
        """By id, of whoever forks sandboxes of others again: kept, and forgotten, by that one."""

    @property
    def runtime_dir(self) -> str | None:
        """Where the daemon is met; None: in the user's own place."""
        return self._runtime_dir

    def somewhere(self, work: Task[Client, T]) -> T:
        """What `work` makes, with the client of a place where there is room."""
        return work(self)

    def home_of(self, _sandbox: str) -> Client:
        """The client of the place where a sandbox is that was asked about."""
        return self

    def beside(self) -> dict[str, Any]:
        """What makes another client of the same place."""
        return {"runtime_dir": self._runtime_dir, "remote": self.remote, "guest": True}

    def check_place(self, **directories: object) -> None:
        """Raises InvalidRequest for a directory of the host, where that is another machine."""
        if self.remote is None:
            return
        for field, value in directories.items():
            if value:
                raise InvalidRequest.of(
                    field, "names a directory of the machine that runs the sandbox, which is another one",
                    code="not_remote", hint="workspace= and files.upload() bring files along",
                )  # fmt: skip

    def run(
        self,
        command: str | Sequence[str | bytes | PathLike[str]],
        *,
        timeout: float | None = None,
        stdin: bytes | str | int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        root: str | PathLike[str] | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        on_stdout: Callable[[bytes], Any] | None = None,
        on_stderr: Callable[[bytes], Any] | None = None,
        check: bool = False,
        encoding: str = "utf-8",
    ) -> CommandResult:
        """Run one command in a sandbox of its own; arguments and errors are those of `ramet.run`."""
        streams = (1, 2) if stdin is None else (0, 1, 2)
        check_output(encoding, {"on_stdout": on_stdout, "on_stderr": on_stderr})
        self.check_place(root=root)
        request = RunRequest.of(
            command,
            timeout=timeout,
            env=env,
            cwd=cwd,
            root=absolute(root),
            limits=limits,
            python=interpreter(),
            streams=streams,
        )
        result = self.run_request(
            request, stdin=stdin, on_stdout=on_stdout, on_stderr=on_stderr, encoding=encoding
        )
        return result.check() if check else result

    def run_request(
        self,
        request: RunRequest,
        *,
        stdin: bytes | str | int | IO[Any] | None = None,
        on_stdout: Callable[[bytes], Any] | None = None,
        on_stderr: Callable[[bytes], Any] | None = None,
        encoding: str = "utf-8",
    ) -> CommandResult:
        """Carry out a request that is made and checked already; else as `run`."""
        for _ in range(ATTEMPTS):
            source = None if stdin is None else Source(stdin, encoding)
            link = self._link(request)
            exchange = Exchange(link, request, source, callbacks=(on_stdout, on_stderr), encoding=encoding)
            try:
                self._drive(exchange, request.limits.wall + PATIENCE_S)
                self._ran = True
                return exchange.result()
            except Stale:
                if source is not None and source.consumed:
                    break
            finally:
                exchange.close()
                self._give_back(link)
        raise DaemonLost("daemon_lost", "the daemon ends whenever it is asked")

    def doctor(self) -> Report:
        """What this machine has of what Ramet needs, seen by the daemon."""
        from ramet.models.status import Report

        return Report.from_wire(self.ask("doctor"))

    def status(self) -> DaemonStatus:
        """What the daemon and its core are doing."""
        from ramet.models.status import DaemonStatus

        return DaemonStatus.from_wire(self.ask("status"))

    def ping(self) -> Pong:
        """The daemon's version and pid; starts it if need be."""
        from ramet.models.status import Pong

        return Pong.from_wire(self.ask("ping"))

    def shutdown(self) -> Pong:
        """End the daemon and every sandbox; with ``start=True`` a missing one is started first."""
        from ramet.models.status import Pong

        return Pong.from_wire(self.ask("shutdown"))

    def hand_over(self) -> Pong:
        """End the daemon alone: the next one has what outlives its makers."""
        from ramet.models.status import Pong

        return Pong.from_wire(self.ask("hand_over"))

    def ask(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        made: list[Made] | None = None,
        patience: float = PATIENCE_S,
    ) -> dict[str, Any]:
        """The answer to an operation of the table that takes no descriptors.

        `made` takes the sandboxes that come before it, whose descriptors are the caller's, also when this
        raises. `patience`: seconds after which a daemon that says nothing is given up.
        """
        lost = DaemonLost("daemon_lost", "the daemon ends whenever it is asked")
        for _ in range(ATTEMPTS):
            connection = self._connection()
            try:
                connection.send(name, dict(arguments or {}), [])
                deadline = time.monotonic() + patience
                while (answer := connection.receive(made)) is None:
                    self._wait(connection, deadline)
                return answer
            except Stale:
                if made:
                    break
            except DaemonLost as error:
                lost = error
                if name in {"shutdown", "hand_over"} or not _idempotent(name):
                    break
            finally:
                self._give_back(connection)
        raise lost

    # --- links to core, for commands in sandboxes ---------------------------------------------------------

    def idle_link(self, core_id: str) -> CoreLink | None:
        """A link to this core that nobody uses; those to others are closed."""
        while self._core_links:
            try:
                link = self._core_links.pop()
            except IndexError:  # another thread was faster
                return None
            if link.core_id == core_id and link.is_alive():
                return link
            link.close()
        return None

    def open_link(self, name: str, arguments: Mapping[str, Any]) -> tuple[CoreLink, dict[str, Any]]:
        """A new link, which comes with the answer to this operation."""
        from ramet.client._commands import CoreLink

        made: list[Made] = []
        try:
            answer = self.ask(name, arguments, made=made)
            if not made or not made[0].fds:
                raise DaemonLost("malformed", "the daemon answered without a lane")
            return CoreLink(socket.socket(fileno=made[0].fds.pop(0)), ""), answer
        finally:
            for one in made:
                close_all(one.fds)

    def give_back_link(self, link: CoreLink) -> None:
        """Keep it for the next request, unless it has one under way."""
        if link.busy:
            link.close()
        elif not link.poller.closed:
            keep(self._core_links, link)

    def wait_link(self, link: Peer, deadline: float) -> None:
        """Wait for an answer on it. Raises DaemonLost when there is none in time."""
        self._wait(link, deadline)

    def _drive(self, exchange: Exchange, patience: float) -> None:
        deadline = time.monotonic() + patience
        exchange.begin()
        over = exchange.quiet and exchange.step(poll(exchange.link.poller, QUIET_S))
        if not over:
            exchange.watch()
        # A process that slept takes milliseconds to be itself again on some machines: it is woken before the
        # end that is to be expected at the latest.
        alarm = deadline - PATIENCE_S - ALARM_S
        while not over:
            over = exchange.step(self._wait(exchange.link, deadline, alarm))
            if exchange.chunks:
                chunks, exchange.chunks = exchange.chunks, []
                for callback, chunk in chunks:
                    deliver(callback, chunk)

    def _wait(self, link: Peer, deadline: float, alarm: float = 0.0) -> list[tuple[int, int]]:
        now = time.monotonic()
        remaining = deadline - now
        events = poll(link.poller, max(alarm - now if alarm > now else remaining, 0.0))
        if not events and remaining <= 0:
            raise DaemonLost("daemon_silent", "the daemon does not answer", hint="ramet daemon stop ends it")
        return events

    def _link(self, request: RunRequest) -> Link:
        """Where to ask for a run: for the first the daemon, which a program with only one then wakes once.

        A directory is compared with what core knows of it, which is the daemon's to do.
        """
        own = request.root is not None or request.fault is not None
        if not self._ran or own or self.remote is not None:
            return self._connection()
        lanes = self._known_lanes()
        known = lanes.known(request)
        if lanes.idle and known is None:
            known = lanes.learn(request, self.ask("lane", lanes.question(request, socket=False)))
        lane = lanes.take(known)
        if lane is not None:
            return lane
        made: list[Made] = []
        try:
            answer = self.ask("lane", lanes.question(request, socket=True), made=made)
            return lanes.add(lanes.learn(request, answer), made)
        finally:
            for one in made:
                close_all(one.fds)

    def _known_lanes(self) -> Lanes:
        if self._lanes is None:
            from ramet.client._lanes import Lanes

            self._lanes = Lanes()
        return self._lanes

    def fork_past_daemon(self, request: ForkRequest, patience: float, *, plain: bool) -> Forking | None:
        """What core made of `request`, asked over a lane; None when it is for the daemon.

        What it holds is the caller's. `plain`: as for `Forking`.
        """
        from ramet.client._forks import Forking, goes_past_daemon, key_of, question

        lanes, key = self._known_lanes(), key_of(request)
        if self.remote is not None or request.snapshot is None:
            return None
        if not goes_past_daemon(request) or not lanes.forked_before(key):
            return None
        known = lanes.known_fork(key)
        lane = lanes.take(known)
        if known is None or lane is None:
            opened = self._open_fork_lane(question(request, lane=True))
            if opened is None:
                return None
            known, lane = opened
            lanes.learn_fork(key, known)
        forking = Forking(lane, known, request, plain=plain)
        try:
            self._until_forked(forking, time.monotonic() + patience)
        finally:
            self._give_back(lane)
        if forking.outdated:
            lanes.forget_fork(key)
        return forking

    def _open_fork_lane(self, asked: Mapping[str, Any]) -> tuple[KnownFork, Lane] | None:
        """What children have in common, and a lane to the core that makes them; None when there is none.

        The fork itself is refused for the same reason then, and by its own words.
        """
        from ramet.client._forks import KnownFork

        made: list[Made] = []
        try:
            known = KnownFork.of_wire(self.ask("sandbox.lane", asked, made=made))
            return known, self._known_lanes().add(known, made)
        except RametError:
            return None
        finally:
            for one in made:
                close_all(one.fds)

    def fork_live_past_daemon(
        self, request: ForkRequest, source: Held | Forkable, patience: float, *, plain: bool
    ) -> Forking | None:
        """As `fork_past_daemon`, of `source` as it runs.

        One that the daemon made is known from its second fork on.
        """
        from ramet.client._forks import Forking, Taking, goes_past_daemon, question
        from ramet.native.channels import Channel

        before, source.forked = source.forked, True
        if self.remote is not None:
            return None
        if not goes_past_daemon(request) or (source.known is None and not before):
            return None
        known, lane = source.known, self._known_lanes().take(source.known)
        if known is None or lane is None:
            opened = self._open_fork_lane(question(request, lane=True))
            if opened is None:
                return None
            known, lane = opened
            source.known = known = source.known or known
        with contextlib.ExitStack() as using:
            using.callback(self._give_back, lane)
            try:
                taking = Taking(lane, source.info)
                using.callback(taking.close)
                # While core works.
                channel = Channel(detached=request.detach, kernel=known.info.kernel)
                using.callback(channel.close)
            except OSError:
                return None
            deadline = time.monotonic() + patience
            found = self._until_taken(taking, deadline)
            if found is None:
                return None
            forking = Forking(lane, known.of_live(source.info, found), request, channel, plain=plain)
            self._until_forked(forking, deadline)
        return forking

    def _until_taken(self, taking: Taking, deadline: float) -> Attributes | None:
        """What core says of a snapshot; None when there is none."""
        while True:
            try:
                return taking.found()
            except BlockingIOError:
                remaining = deadline - time.monotonic()
                if not ready(taking.session.fileno(), max(remaining, 0.0)) and remaining <= 0:
                    raise _silent() from None

    def _until_forked(self, forking: Forking, deadline: float) -> None:
        try:
            events: list[int] = []
            while not forking.step(events):
                remaining = deadline - time.monotonic()
                events = _heard(forking, max(remaining, 0.0))
                if not events and remaining <= 0:
                    raise _silent()
        except BaseException:
            for held in forking.held.values():
                held.ask_end()  # nobody hears of it
                held.close()
            raise
        finally:
            forking.close()

    def _connection(self) -> Connection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.is_alive():
                return connection
            connection.close()
        if (remote := self.remote) is not None:
            if remote.ready:
                return Connection(remote.begin())
            begun: list[Connection] = []
            try:
                in_thread(lambda: begun.append(Connection(remote.begin())))
            except BaseException:
                for connection in begun:
                    connection.close()
                raise
            return begun[0]
        place = self._runtime_dir or runtime_path()
        sock = connect(place)
        if sock is None:
            if not self._start:
                raise DaemonLost("daemon_absent", f"no daemon is running in {place}")
            started: list[Connection] = []
            try:
                in_thread(lambda: started.append(Connection(start_daemon(place, self._data_dir))))
            except BaseException:
                # Cancelled: the thread came to its end all the same.
                for connection in started:
                    connection.close()
                raise
            return started[0]
        return Connection(sock)

    def _give_back(self, link: Link) -> None:
        if link.busy:
            link.close()
        elif isinstance(link, Connection):
            keep(self._idle, link)
        elif self._lanes is not None:
            keep(self._lanes.idle, link)

    def close(self) -> None:
        """Close every idle connection."""
        connections, self._idle = self._idle, []
        for connection in connections:
            connection.close()
        links, self._core_links = self._core_links, []
        for link in links:
            link.close()
        if self._lanes is not None:
            self._lanes.close()
        if (remote := self.remote) is not None and not self._guest:
            forgo((remote,))
            in_thread(remote.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
