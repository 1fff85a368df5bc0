"""Core alone: no daemon is involved, so the ledger of these modules starts from nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import _ledger
from system.core import _core


@pytest.fixture(scope="module", autouse=True)
def ledger(runtime_directory: Path) -> Iterator[None]:
    """Fail a module after which there is more of anything than before it."""

    def look() -> _ledger.Record:
        _ledger.reap_adopted()
        return _ledger.observe(runtime_directory)

    before = _ledger.settle(look)
    yield
    if found := _ledger.drift(before, look):
        pytest.fail("left behind: " + "; ".join(found), pytrace=False)


Starter = Callable[..., _core.Core]


def finish(cores: list[_core.Core]) -> None:
    """Those that still run must be sound and end when asked."""
    reports = []
    try:
        for core in cores:
            reports.append(core.reports())
            if core.pid and core.control.sock.fileno() >= 0:
                core.shut_down()
            reports.append(core.reports())
    finally:
        for core in cores:
            core.discard()
    assert not any(reports), "\n".join(reports)


@pytest.fixture
def starter() -> Iterator[Starter]:
    """Starts cores with options, and ends them with the test."""
    started: list[_core.Core] = []

    def start(**options: object) -> _core.Core:
        core = _core.start(_core.Options(**options))  # type: ignore[arg-type]
        started.append(core)
        return core

    yield start
    finish(started)


@pytest.fixture
def core(starter: Starter) -> _core.Core:
    """A core with a full pool and one root."""
    return starter()


@pytest.fixture(scope="module")
def shared(ledger: None) -> Iterator[_core.Core]:
    """One core for a whole module, each of whose tests leaves it as it was."""
    core = _core.start(_core.Options(python=True))
    yield core
    finish([core])
