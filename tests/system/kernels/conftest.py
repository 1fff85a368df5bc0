"""Templates that are there before anything is counted."""

from pathlib import Path

import pytest

import ramet
from ramet.client._start import base_interpreter


@pytest.fixture(scope="session", autouse=True)
def warm(runtime_directory: Path) -> None:
    """The built-in templates, each with its stem, its spare, and what a first fork of it makes ahead."""
    for name in ("python", "bash", "node"):
        if name == "node" and ramet.run("node --version").exit_code:
            continue
        for _ in range(3):
            with ramet.Sandbox(name) as sandbox:
                sandbox.run_code("1")
    # The root of templates with packages of their own, which core knows from then on.
    ramet.Sandbox(kernel="python", python=base_interpreter()).close()
