"""Running programs under the default filter, in processes of their own."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ramet.seccomp import default_filter

GUEST = Path(__file__).with_name("guest.py")
Confined = Callable[..., subprocess.CompletedProcess[str]]
Calls = Callable[..., Any]


@pytest.fixture(scope="session")
def filter_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("seccomp") / "default.bpf"
    file.write_bytes(default_filter())
    return file


@pytest.fixture
def confined(filter_file: Path, tmp_path: Path) -> Confined:
    """Run a command under the filter, in an empty directory."""

    def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, GUEST, filter_file, "exec", *command],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
            **options,
        )

    return run


@pytest.fixture
def calls(filter_file: Path) -> Calls:
    """Do raw system calls under the filter; the answer is what guest.py writes."""

    def do(mode: str, requests: Sequence[Sequence[int]]) -> Any:
        done = subprocess.run(
            [sys.executable, GUEST, filter_file, mode],
            input=json.dumps(requests),
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
        if done.returncode == 77:
            pytest.skip("no user namespaces for this user")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return do
