"""Interpreters to fork: each reads a line, answers with a line."""

from __future__ import annotations

from collections.abc import Iterable

import ramet

PATIENCE_S = 20.0
PYTHON = (
    "python3",
    "-c",
    """
import sys
names = {}
for line in sys.stdin:
    try:
        answer = repr(eval(line, names))
    except BaseException as error:
        answer = repr(error)
    print(answer, flush=True)
""",
)


def ask(sandbox: ramet.Sandbox, line: str) -> str:
    """What the interpreter answers to one line."""
    sandbox.stdin.write(f"{line}\n", timeout=PATIENCE_S)
    return sandbox.stdout.readline(timeout=PATIENCE_S).decode().removesuffix("\n")


def tell(sandbox: ramet.Sandbox, *lines: str) -> None:
    """Statements, each of which must succeed."""
    for line in lines:
        assert ask(sandbox, f"exec({line!r})") == "None", line


def ask_all(sandboxes: Iterable[ramet.Sandbox], line: str) -> list[str]:
    """Ask all of them at once."""
    chosen = list(sandboxes)
    for sandbox in chosen:
        sandbox.stdin.write(f"{line}\n", timeout=PATIENCE_S)
    return [sandbox.stdout.readline(timeout=PATIENCE_S).decode().strip() for sandbox in chosen]
