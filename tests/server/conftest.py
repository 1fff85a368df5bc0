"""One server for all modules: each tenant's first sandbox builds a template, which takes a second."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ramet.engine.closure import build_root
from server._server import BOB, Server, running, told


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the host that can be a root."""
    place = tmp_path_factory.mktemp("allowed")
    place.chmod(0o755)
    build_root(place / "root", ["sh", "sleep", "cat"], [])
    (place / "root/kept").write_text("of the directory\n")
    return place / "root"


@pytest.fixture(scope="session")
def server(runtime_directory: object) -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture(scope="session")
def api(server: Server) -> Iterator[httpx.Client]:
    """alice's, who may do everything."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def bob(server: Server) -> Iterator[httpx.Client]:
    with server.client(BOB) as client:
        yield client


@pytest.fixture(scope="module")
def shell(api: httpx.Client) -> Iterator[str]:
    """A sandbox without a kernel, for what only needs commands and files."""
    made = told(api.post("/v1/sandboxes", json={"command": ["sleep", "1000"]}), 201)
    yield made[0]["id"]
    told(api.delete(f"/v1/sandboxes/{made[0]['id']}"), 204)


@pytest.fixture(scope="module")
def python(api: httpx.Client) -> Iterator[str]:
    """A sandbox with a Python that keeps its state."""
    made = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python"}), 201)
    yield made[0]["id"]
    told(api.delete(f"/v1/sandboxes/{made[0]['id']}"), 204)
