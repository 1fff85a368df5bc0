"""The table of commands: what it says of each is so, and no command is imported until it is called."""

import inspect
import subprocess
import sys

import pytest

from ramet.cli._table import COMMANDS

ROWS = [row for entry in COMMANDS for row in getattr(entry, "commands", {"": entry}).values()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.module}-{row.function}")
def test_its_line_is_the_first_of_the_commands_own_help(row):
    said = inspect.getdoc(row.loaded.callback)
    assert row.help == said.partition("\n")[0]
    assert row.loaded.help == said
    assert row.loaded.name == row.name


IMPORTED = """
import importlib, sys
from ramet.cli.main import invoke
def imported():
    return sorted(name for name in sys.modules if name.startswith("ramet.cli.commands."))
"""


def printed(program):
    """The last line of standard error of a new process."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED + program], capture_output=True, text=True, check=True, timeout=50
    )
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "words, modules",
    [
        (["--help"], []),
        (["sandbox", "--help"], []),
        (["--version"], []),
        (["run", "true"], ["ramet.cli.commands.run"]),
        (["ls"], ["ramet.cli.commands.sandbox"]),
    ],
)
def test_only_the_command_that_is_called_is_imported(words, modules):
    program = f"code = invoke({words}); print(code, imported(), file=sys.stderr)"
    assert printed(program) == f"0 {modules}"


def test_no_commands_module_imports_anothers_for_itself():
    names = [f"ramet.cli.commands.{name}" for name in sorted({row.module for row in ROWS})]
    program = f"""
for name in {names}:
    importlib.import_module(name)
    assert imported() == [name], imported()
    del sys.modules[name]
print("all", file=sys.stderr)
"""
    assert printed(program) == "all"
