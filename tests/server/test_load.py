"""A server that is restarted, upgraded, or given other tokens while clients are at work loses nothing."""

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from _core_program import another_build
from ramet.client import Client
from server._server import ALICE, BOB, TOKENS, Server, refusal, running, told
from system._daemons import wait_gone

WORKERS = 2
ROUNDS = 3
"""What is done by all together before something befalls the server, and again after it."""


class Load:
    """Clients that create sandboxes, and give those that they have new state, without an end."""

    def __init__(self, server: Server, token: str) -> None:
        self._server = server
        self._token = token
        self._changed = threading.Condition()
        self._stop = False
        self._up = threading.Event()
        self._up.set()
        self.done = 0
        self.known: dict[str, int] = {}
        """What was acknowledged: by sandbox, the last value that its kernel was given."""
        self.unsure: dict[str, int] = {}
        """What was asked for and not answered."""
        self.wrong: list[str] = []

    def _ask(self, api: httpx.Client, path: str, body: object) -> httpx.Response | None:
        """None when the server was not there, or went; a refusal is noted as wrong."""
        try:
            answer = api.post(f"{self._server.url}{path}", json=body)
        except httpx.TransportError:
            self._up.wait(60)
            return None
        if answer.status_code not in {200, 201}:
            self.wrong.append(f"{path}: {answer.status_code} {answer.text}")
        return answer

    def _work(self) -> None:
        with self._server.client(self._token) as api:
            self._work_with(api)

    def _work_with(self, api: httpx.Client) -> None:
        mine: list[str] = []
        value = 0
        while not self._stop:
            value += 1
            if value % 3 == 1:
                answer = self._ask(api, "/v1/sandboxes", {"snapshot_tag": "python"})
                if answer is None or answer.status_code != 201:
                    continue
                mine.append(answer.json()[0]["id"])
            chosen = mine[value % len(mine)] if mine else None
            if chosen is None:
                continue
            self.unsure[chosen] = value
            answer = self._ask(api, f"/v1/sandboxes/{chosen}/eval", {"code": f"x = {value}"})
            if answer is not None and answer.status_code == 200:
                with self._changed:
                    self.known[chosen] = value
                    self.done += 1
                    self._changed.notify_all()

    def during(self, befalls: Callable[[Server], None]) -> None:
        """Have something befall the server; who finds it gone waits until that is over."""
        self._up.clear()
        try:
            befalls(self._server)
        finally:
            self._up.set()

    def wait(self, rounds: int, until: Callable[[], bool] = lambda: True) -> None:
        """Return when so much more was acknowledged, and `until` holds."""
        with self._changed:
            wanted = self.done + rounds
            assert self._changed.wait_for(lambda: self.done >= wanted and until(), 60), self.wrong

    @contextmanager
    def running(self) -> Iterator["Load"]:
        """Have them work for the time of a `with` block."""
        with ThreadPoolExecutor(WORKERS) as pool:
            working = [pool.submit(self._work) for _ in range(WORKERS)]
            try:
                yield self
            finally:
                self._stop = True
            for one in working:
                one.result(60)

    def check(self) -> None:
        """Everything that was acknowledged is there."""
        assert self.wrong == []
        with self._server.client(self._token) as api:
            living = {one["id"] for one in told(api.get("/v1/sandboxes"), 200)}
            assert self.known.keys() <= living
            for sandbox, value in self.known.items():
                answer = told(api.post(f"/v1/sandboxes/{sandbox}/eval", json={"code": "x"}), 200)
                assert int(answer["result"]) in {value, self.unsure[sandbox]}


def restart(server: Server) -> None:
    server.stop()
    server.start()


def crash(server: Server) -> None:
    server.stop(signal.SIGKILL)
    server.start()


ROOMY = TOKENS.replace("sandboxes = 2", "sandboxes = 100")


@pytest.fixture(scope="module")
def roomy() -> Iterator[Server]:
    with running(tokens=ROOMY) as server:
        yield server


@pytest.mark.timeout(180)
def test_a_crash_and_an_upgrade_under_load_lose_nothing_that_was_acknowledged(
    roomy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(roomy.data / "tenants/bob/run")
    load = Load(roomy, BOB)
    with load.running():
        load.wait(ROUNDS)
        load.during(crash)
        load.wait(ROUNDS)
        with Client(place, start=False) as client:
            first = client.status().core
        monkeypatch.setenv("RAMET_CORE", str(another_build(tmp_path)))
        load.during(restart)
        before = set(load.known)
        load.wait(ROUNDS, lambda: load.known.keys() > before)
    load.check()
    assert first is not None
    with Client(place, start=False) as client:
        status = client.status()
        # What is new is in the new core, and the old one ends with what it has.
        assert status.core is not None
        assert [one.pid for one in status.older] == [first.pid]
        assert status.core.sandboxes > 0
        with roomy.client(BOB) as api:
            for one in told(api.get("/v1/sandboxes"), 200):
                told(api.delete(f"/v1/sandboxes/{one['id']}"), 204)
        wait_gone(first.pid)
        assert client.status().older == ()


def test_tokens_are_rotated_under_load_and_no_request_with_a_valid_one_is_refused(roomy: Server) -> None:
    tokens = [f"bob-token-number-{number:04}" for number in range(40)]
    valid = [tokens[0]]
    roomy.write_tokens(f'[tenants.bob]\ntokens = [{{ token = "{tokens[0]}" }}]')
    stop, refused, asked = threading.Event(), [], [0]

    def ask() -> None:
        with roomy.client(None) as api:
            while not stop.is_set():
                token = valid[0]
                answer = api.get("/v1/me", headers={"authorization": f"Bearer {token}"})
                asked[0] += 1
                # One that was valid when it was sent, and is still.
                if answer.status_code != 200 and token == valid[0]:
                    refused.append(answer.text)

    threads = [threading.Thread(target=ask) for _ in range(WORKERS)]
    for one in threads:
        one.start()
    api = roomy.client(None)
    try:
        for old, new in itertools.pairwise(tokens):
            # Both hold for a while, as one rotates them.
            rows = ", ".join(f'{{ token = "{one}" }}' for one in (old, new))
            roomy.write_tokens(f"[tenants.bob]\ntokens = [{rows}]")
            valid[0] = new
            told(api.get("/v1/me", headers={"authorization": f"Bearer {new}"}), 200)
            roomy.write_tokens(f'[tenants.bob]\ntokens = [{{ token = "{new}" }}]')
            refusal(api.get("/v1/me", headers={"authorization": f"Bearer {old}"}), 401)
    finally:
        stop.set()
        for one in threads:
            one.join()
        api.close()
        roomy.write_tokens(ROOMY)
    assert refused == []
    assert asked[0] > len(tokens)


def test_a_stop_is_not_held_up_by_who_only_waits_and_can_come_back(roomy: Server) -> None:
    with roomy.client(BOB) as api, ThreadPoolExecutor(2) as pool:
        made = told(api.post("/v1/sandboxes", json={"command": ["sleep", "1000"]}), 201)[0]["id"]
        place = f"/v1/sandboxes/{made}/processes"
        command = {"command": "echo before; read x; echo after", "stdin": True}
        place += f"/{told(api.post(place, json=command), 201)['id']}"
        with api.stream("GET", f"{place}/stream") as stream:
            lines = stream.iter_lines()
            cursor = next(line for line in lines if line.startswith("id: ")).removeprefix("id: ")
            now = told(api.get("/v1/events"), 200)["cursor"]
            paths = (f"{place}?wait=1000", f"/v1/events?wait=20&cursor={now}")
            waiting = [pool.submit(api.get, path) for path in paths]
            with roomy.client(ALICE) as boss:
                while "ramet_streams_active 3" not in boss.get("/metrics").text:
                    pass
            assert roomy.stop() == 0
            # A stop that had to wait cuts off in the middle what it waited for.
            assert not [line for line in lines if line.startswith("event: ")]
        assert told(waiting[0].result(60), 200)["status"] == "running"
        assert told(waiting[1].result(60), 200).keys() == {"events", "cursor"}
        roomy.start()
    with roomy.client(BOB) as api:
        told(api.post(f"{place}/stdin?eof=true", content=b"\n"), 204)
        again = api.get(f"{place}/stream", headers={"last-event-id": cursor})
        events = [line for line in again.text.splitlines() if line.startswith("event: ")]
        assert events == ["event: stdout", "event: exit"]
        told(api.delete(f"/v1/sandboxes/{made}"), 204)
