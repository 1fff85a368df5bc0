"""One core for all victims of a module; the programs are compiled once a session."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import _ledger
from system.engine import _engine

FLAGS = ["-std=gnu11", "-O2", "-g", "-static", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wshadow"]


@pytest.fixture(scope="session")
def victims_dir() -> Iterator[Path]:
    """The victims, built. Core, which is nobody of the host, must be able to look into the directory."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler to build the victims with")
    with tempfile.TemporaryDirectory(prefix="ramet-victims-", dir="/tmp") as name:
        out = Path(name)
        out.chmod(0o755)

        def build(source: Path) -> None:
            subprocess.run([compiler, *FLAGS, "-o", out / source.stem, source], check=True)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(build, sorted(_engine.SOURCES.glob("*.c"))))
        yield out


@pytest.fixture(scope="module", autouse=True)
def ledger(runtime_directory: Path) -> Iterator[None]:
    """Fail a module after which there is more of anything than before it; no daemon is involved."""

    def look() -> _ledger.Record:
        _ledger.reap_adopted()
        return _ledger.observe(runtime_directory)

    before = _ledger.settle(look)
    yield
    if found := _ledger.drift(before, look):
        pytest.fail("left behind: " + "; ".join(found), pytrace=False)


@pytest.fixture(scope="module")
def shared_engine(victims_dir: Path, ledger: None) -> Iterator[_engine.Engine]:
    """One core for the module."""
    engine = _engine.start_engine(victims_dir)
    yield engine
    reports = engine.core.reports()
    try:
        if engine.core.pid:
            engine.core.shut_down()
    finally:
        engine.core.discard()
    assert not reports


@pytest.fixture
def engine(shared_engine: _engine.Engine) -> Iterator[_engine.Engine]:
    """The module's core, empty again after each test."""
    yield shared_engine
    shared_engine.clear()
