"""The same client over every transport: of the user's daemon, and of a server that has that daemon."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramet
from ramet.client import Client
from server._server import Server, running

TRANSPORTS = ("local", "tcp")


@pytest.fixture(scope="session", autouse=True)
def warm(runtime_directory: Path) -> None:
    """The template, with what a first fork of it makes ahead, is no leak of a test's."""
    for _ in range(3):
        with ramet.Sandbox("python") as sandbox:
            sandbox.run_code("1")


@pytest.fixture(scope="module")
def server(runtime_directory: Path) -> Iterator[Server]:
    """One for a module, at an address and at a socket; without tokens it serves this user's own."""
    with (
        tempfile.TemporaryDirectory(prefix="ramet-u-", dir="/tmp") as place,
        running("--socket", f"{place}/server", tokens=None) as made,
    ):
        yield made


@pytest.fixture(scope="module", params=TRANSPORTS)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    """A client of the daemon, or of the server."""
    made = Client() if request.param == "local" else ramet.connect(server.url, select=False)
    with made:
        yield made


@pytest.fixture
def shell(client: Client) -> Iterator[ramet.Sandbox]:
    """A sandbox that does nothing by itself."""
    with ramet.Sandbox(command=["sleep", "1000"], client=client) as made:
        yield made


@pytest.fixture(scope="module")
def python(client: Client) -> Iterator[ramet.Sandbox]:
    """A sandbox with a Python that keeps its state: the second of its template goes past the daemon."""
    ramet.Sandbox("python", client=client).close()
    with ramet.Sandbox("python", client=client) as made:
        yield made
