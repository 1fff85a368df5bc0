"""Ways to do something inside a sandbox and to hear how it went."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import ramet
from ramet.seccomp._syscalls import X86_64
from system._daemons import own, rooted, shared

__all__ = ["own", "rooted", "shared"]

INSIDE = Path(__file__).resolve().with_name("_inside.py").read_text()
TIMEOUT_S = 30

Run = Callable[..., ramet.CommandResult]


@pytest.fixture
def python() -> Run:
    """Run a piece of Python inside, where `call`, `outcome` and their like (_inside.py) are defined."""

    def run(source: str, *words: str, **options: Any) -> ramet.CommandResult:
        return ramet.run(
            ["python3", "-c", INSIDE + dedent(source), *words], **{"timeout": TIMEOUT_S, **options}
        )

    return run


@pytest.fixture
def told(python: Run) -> Callable[..., Any]:
    """The same, for a piece that ends with `tell(VALUE)`: the value."""

    def run(source: str, *words: str, **options: Any) -> Any:
        result = python(source, *words, **options)
        assert result.ok, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture
def calls(told: Callable[..., Any]) -> Callable[..., dict[str, str]]:
    """Do system calls inside: title -> (name or number, arguments); for each the name of its errno, or ""."""

    def run(table: dict[str, tuple[Any, ...]], **options: Any) -> dict[str, str]:
        source = "tell([outcome(*row) for row in json.load(sys.stdin)])"
        rows = [(X86_64.get(name, name), *arguments) for name, *arguments in table.values()]
        answers = told(source, stdin=json.dumps(rows), **options)
        return dict(zip(table, answers, strict=True))

    return run


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[[str], Path]:
    """A static program made from C."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")

    def make(source: str) -> Path:
        path = tmp_path / "program"
        made = subprocess.run(
            ["gcc", "-x", "c", "-O1", "-w", "-static", "-o", path, "-"],
            input=dedent(source).encode(),
            capture_output=True,
            check=False,
        )
        if b"cannot find -lc" in made.stderr:
            pytest.skip("no static C library")
        assert made.returncode == 0, made.stderr.decode()
        return path

    return make


@pytest.fixture
def run_binary() -> Run:
    """Bring a program in by standard input and run it."""

    def run(program: Path, *words: str, **options: Any) -> ramet.CommandResult:
        line = 'cat >/tmp/program && chmod +x /tmp/program && exec /tmp/program "$@"'
        return ramet.run(
            ["sh", "-c", line, "sh", *words],
            stdin=program.read_bytes(),
            **{"timeout": TIMEOUT_S, **options},
        )

    return run
