"""Sandboxes to fork."""

from collections.abc import Iterator

import pytest

import ramet
from system.sandbox._repl import PYTHON


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
