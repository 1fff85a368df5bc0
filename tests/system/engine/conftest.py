"""One core for all victims of a module; the programs are compiled once a session."""

import contextlib
import fcntl
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
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    with (
        tempfile.TemporaryDirectory(prefix="ramet-victims-", dir="/tmp")
        if run is None
        else _shared(Path(f"/tmp/ramet-victims-{run}")) as name
    ):
        out = Path(name)
        out.chmod(0o755)

        def build(source: Path) -> None:
            if not (out / source.stem).exists():
                subprocess.run([compiler, *FLAGS, "-o", out / source.stem, source], check=True)

        with _locked(out), ThreadPoolExecutor(2) as pool:
            list(pool.map(build, sorted(_engine.SOURCES.glob("*.c"))))
        yield out


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _shared(directory: Path) -> Iterator[Path]:
    """A directory that several test processes use. It goes with the first of them that nobody else is with.

    Each has a file of its name in it for as long as it uses it.
    """
    mine = directory / f".{os.getpid()}"
    while not mine.exists():
        directory.mkdir(exist_ok=True)
        with (
            contextlib.suppress(FileNotFoundError),
            _locked(directory),
        ):  # its last user took it away meanwhile
            mine.touch()
    try:
        yield directory
    finally:
        mine.unlink()
        with _locked(directory):
            if not list(directory.glob(".*")):
                shutil.rmtree(directory)


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
    _engine.end(engine)


@pytest.fixture
def engine(shared_engine: _engine.Engine) -> Iterator[_engine.Engine]:
    """The module's core, empty again after each test."""
    yield shared_engine
    shared_engine.clear()
