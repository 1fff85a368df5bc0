"""Sandboxes to fork."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ramet
from system.sandbox._repl import PYTHON


@pytest.fixture(scope="session", autouse=True)
def store(runtime_directory: Path) -> None:
    """The daemon opens its store for the first snapshot, and keeps it open: that is no leak of a test's."""
    with ramet.Sandbox(command=PYTHON) as sandbox:
        ramet.snapshots.remove(sandbox.snapshot("warm-up"))


@pytest.fixture
def python() -> Iterator[ramet.Sandbox]:
    """A Python that answers lines."""
    with ramet.Sandbox(command=PYTHON) as sandbox:
        yield sandbox


@pytest.fixture
def bash() -> Iterator[ramet.Sandbox]:
    """A shell that carries out lines."""
    with ramet.Sandbox(command=["bash"]) as sandbox:
        yield sandbox
