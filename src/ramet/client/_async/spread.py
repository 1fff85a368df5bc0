"""Several servers as one client: what is new goes where there is room, and all else where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

from ramet.client._async.client import PATIENCE_S, AsyncClient
from ramet.client._backends._async import Task
from ramet.client._chosen import forgo
from ramet.client._exchange import Made
from ramet.errors import DaemonLost, InvalidRequest, NoRoom, RametError
from ramet.models.results import CommandResult
from ramet.models.runs import RunRequest

if TYPE_CHECKING:
    from ramet.client._commands import CoreLink

T = TypeVar("T")
_UNKNOWN = frozenset(("unknown_sandbox", "unknown_snapshot"))
# Nothing was begun then. A connection that was lost later may have begun something, and is told.
_ELSEWHERE = frozenset(("quota", "rate", "busy", "draining", "server_unreachable"))
_HOMES_MAX = 65_536
_EVERYWHERE = {"sandbox.list": "sandboxes", "snapshot.list": "snapshots"}


class AsyncSpread(AsyncClient):
    """A client of several servers."""

    def __init__(self, members: Sequence[AsyncClient]) -> None:
        """`members` are clients of one each."""
        super().__init__(remote=members[0].remote)
        self.members = tuple(members)
        self._homes: dict[str, AsyncClient] = {}

    async def somewhere(self, work: Task[AsyncClient, T]) -> T:
        """What `work` makes on the server with most room that takes it."""
        last: RametError | None = None
        for member in await self._by_room():
            try:
                return await work(member)
            except RametError as error:
                if not isinstance(error, NoRoom) and error.code not in _ELSEWHERE:
                    raise
                last = error
        raise last or DaemonLost("server_unreachable", "none of the servers can be reached")

    async def _by_room(self) -> list[AsyncClient]:
        """Those with the fewest sandboxes first, then those that are full or do not answer."""
        loads: list[tuple[bool, int, int]] = []
        for number, member in enumerate(self.members):
            try:
                told = await member.ask("server.load")
                loads.append((told["room"] <= 0, told["sandboxes"], number))
            except RametError:
                loads.append((True, 1 << 30, number))
        return [self.members[number] for _, _, number in sorted(loads)]

    async def ask(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        made: list[Made] | None = None,
        patience: float = PATIENCE_S,
    ) -> dict[str, Any]:
        """The answer of the server that has what is asked about, or of all together."""
        if (listed := _EVERYWHERE.get(name)) is not None:
            answers = [await one.ask(name, arguments, patience=patience) for one in self.members]
            return {listed: [row for answer in answers for row in answer[listed]]}
        given = dict(arguments or {})
        key = given.get("sandbox") or given.get("snapshot") or given.get("name")
        if name == "ping":
            return await self.somewhere(lambda one: one.ask(name, given, patience=patience))
        if not isinstance(key, str):
            raise InvalidRequest("one_server", f"{name} is of one server: ask a client of that", field="url")
        return await self._at_home(key, lambda one: one.ask(name, given, made=made, patience=patience))

    async def _at_home(self, key: str, ask: Task[AsyncClient, T]) -> T:
        known = self._homes.get(key)
        unknown: RametError | None = None
        absent: RametError | None = None
        for member in self.members if known is None else (known, *self.members):
            try:
                answer = await ask(member)
            except InvalidRequest as error:
                if error.code not in _UNKNOWN:
                    raise
                unknown = error
                continue
            except DaemonLost as error:
                if error.code != "server_unreachable":
                    raise
                absent = absent or error
                continue
            self._know(key, member)
            return answer
        # Who could not be asked may have it: that none of the others has it does not say that there is none.
        missing = absent or unknown
        assert missing is not None  # noqa: S101  there are servers
        raise missing

    def _know(self, key: str, member: AsyncClient) -> None:
        self._homes.pop(key, None)
        self._homes[key] = member
        if len(self._homes) > _HOMES_MAX:  # who was not asked about for longest is looked for again
            del self._homes[next(iter(self._homes))]

    async def open_link(self, name: str, arguments: Mapping[str, Any]) -> tuple[CoreLink, dict[str, Any]]:
        """A link to the core that has the sandbox."""
        return await self._at_home(arguments["sandbox"], lambda one: one.open_link(name, arguments))

    def home_of(self, sandbox: str) -> AsyncClient:
        """The client of the server that has a sandbox which was asked about."""
        return self._homes.get(sandbox, self)

    async def run_request(
        self,
        request: RunRequest,
        *,
        stdin: bytes | str | int | IO[Any] | None = None,
        on_stdout: Callable[[bytes], Any] | None = None,
        on_stderr: Callable[[bytes], Any] | None = None,
        encoding: str = "utf-8",
    ) -> CommandResult:
        """As any client, where there is room."""

        async def run(one: AsyncClient) -> CommandResult:
            return await one.run_request(
                request, stdin=stdin, on_stdout=on_stdout, on_stderr=on_stderr, encoding=encoding
            )

        return await self.somewhere(run)

    async def aclose(self) -> None:
        """Close the connections to all of them."""
        forgo([one.remote for one in self.members if one.remote is not None])
        for one in self.members:
            await one.aclose()
