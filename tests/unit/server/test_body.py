"""How slowly a body may come."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ramet.server import guard
from ramet.server.faults import Refused
from ramet.server.settings import Settings

PATIENCE_S = 10.0


class Slow:
    """A client that sends pieces of this size, each after so many seconds of a clock of its own."""

    def __init__(self, size: int, every_s: float) -> None:
        self.now = 0.0
        self._size = size
        self._every_s = every_s

    def monotonic(self) -> float:
        return self.now

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.now += self._every_s
        return {"type": "http.request", "body": bytes(self._size), "more_body": True}


@pytest.mark.parametrize(
    "size, every_s, pieces",
    [(1, 1.0, 10), (1, 4.0, 3), (guard.BODY_PACE // 2, 1.0, 20), (guard.BODY_PACE, 1.0, None)],
)
async def test_a_body_has_its_time_and_more_for_what_has_come(
    monkeypatch: pytest.MonkeyPatch, size: int, every_s: float, pieces: int | None
) -> None:
    client = Slow(size, every_s)
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=client.monotonic))
    settings = Settings(data="/nowhere", body_s=PATIENCE_S)
    body = guard._Body({"path": "/v1/run", "headers": []}, client.receive, settings)
    came = 0

    async def read() -> None:
        nonlocal came
        for _ in range(100):
            await body()
            came += 1

    if pieces is None:
        await read()
        return
    with pytest.raises(Refused) as refused:
        await read()
    assert (refused.value.status, refused.value.code) == (408, "slow_body")
    assert abs(came - pieces) <= 1
