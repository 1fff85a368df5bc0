"""Names on the pages are names of the code: files, functions, errors, options; and tables are the code's."""

import re
from pathlib import Path

import pytest

import _tables as tables
from _repository import ROOT
from ramet import errors
from ramet.cli.main import app
from ramet.models.limits import LIMITS
from ramet.models.operations import OPERATIONS

PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FILE = re.compile(r"(?:\.ci|benchmarks|core|docs|examples|packaging|scripts|src|tests)(?:/[\w.-]+)+")
# Codes of errors as they are written where they are raised.
RAISED = (
    re.compile(r'default_code = "([a-z_]+)"'),
    re.compile(r'\bcode="([a-z_]+)"'),
    re.compile(r'(?:Error|Lost|Mismatch|Request|Unsupported)\(\s*"([a-z_]+)",'),
)
PYTHON = "".join(path.read_text() for path in ROOT.glob("src/ramet/**/*.py"))
C = "".join(path.read_text() for path in ROOT.glob("core/**/*.[ch]"))


def inline_code(page: Path) -> list[str]:
    return CODE.findall(re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_file_that_a_page_names_exists(page):
    named = {code for code in inline_code(page) if FILE.fullmatch(code)}
    # What is built is not in a clone.
    named = {name for name in named if not name.startswith("src/ramet/_native")}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_function_that_a_page_names_exists(page):
    named = {code[:-2] for code in inline_code(page) if re.fullmatch(r"[a-z_]+\(\)", code)}
    missing = [
        name
        for name in sorted(named)
        if not re.search(rf"^\s*(?:async )?def {name}\(", PYTHON, re.MULTILINE)
        and not re.search(rf"^{name}\(", C, re.MULTILINE)
    ]
    assert missing == []


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_those_of_the_code(page):
    assert tables.written(page.read_text()) == page.read_text(), "run: python tests/_tables.py"


def test_there_are_pages_with_tables():
    assert len(tables.pages()) >= 2


def test_the_page_of_errors_has_every_exception_and_every_code():
    pages = ("docs/reference/errors.md", "docs/reference/rest.md")
    told = {code for page in pages for code in CODE.findall((ROOT / page).read_text())}
    codes = {code for raised in RAISED for code in raised.findall(PYTHON)}
    assert set(errors.__all__) - told == set()
    assert codes - told == set()


def test_the_page_of_commands_has_every_command_and_every_option():
    page = (ROOT / "docs/reference/cli.md").read_text()
    told = {word for code in CODE.findall(page) for word in code.replace(",", " ").split()}
    known = dict(commands(app))
    missing = [name for name in known if f"`ramet {name}`" not in page]
    missing += [option for one in (app, *known.values()) for option in options(one) if option not in told]
    assert missing == []


def commands(group, prefix=""):
    """Names of all commands below a group, and those commands."""
    for name, below in group.commands.items():
        if hasattr(below, "commands"):
            yield from commands(below, f"{prefix}{name} ")
        else:
            yield prefix + name, below.loaded


def options(command):
    """Spellings of all options of a command, without --help."""
    for param in command.params:
        if param.param_type_name == "option":
            yield from (*param.opts, *param.secondary_opts)


def test_each_limit_has_the_option_that_the_table_says(capfd):
    from ramet.cli.main import invoke

    assert invoke(["run", "--help"]) == 0
    told = capfd.readouterr().out
    assert [spec.option for spec in LIMITS if spec.option not in told] == []


def test_each_defence_has_its_place_and_a_test():
    text = (ROOT / "SECURITY.md").read_text()
    table = text.partition("<!-- defences -->")[2].partition("<!-- end -->")[0]
    rows = [line.strip("|").split("|") for line in table.strip().splitlines()[2:]]
    assert len(rows) > 12
    for defence, _, where, tests in rows:
        for column in (where, tests):
            places = [re.sub("::.*", "", code) for code in CODE.findall(column)]
            assert places, defence
            assert all((ROOT / place).exists() for place in places), (defence, places)


def test_each_variable_of_the_environment_that_ramet_reads_is_in_the_guide():
    pages = (
        "docs/guides/run.md",
        "docs/guides/remote.md",
        "docs/reference/cli.md",
        "docs/reference/kernels.md",
    )
    told = "".join((ROOT / page).read_text() for page in pages)
    read = set(re.findall(r'"(RAMET_[A-Z_]+)"', PYTHON)) - {"RAMET_TEST_FAULTS"}
    assert [name for name in sorted(read) if name not in told] == []


def test_the_decisions_are_listed_in_order_and_numbered():
    folder = ROOT / "docs/decisions"
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    listed = re.findall(r"\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == records
    for number, name in enumerate(records, 1):
        assert (folder / name).read_text().startswith(f"# {number}. ")


def test_the_first_page_names_the_path_that_apparmor_gets_a_profile_for():
    from ramet.native.locate import SYSTEM_PROGRAM

    assert f"`{SYSTEM_PROGRAM}`" in (ROOT / "README.md").read_text()


def test_every_command_has_json():
    assert [name for name, command in commands(app) if "--json" not in {*options(command)}] == []


# Where the command line calls an operation otherwise. What a client asks for by itself is no command.
CALLED = {
    "lane": "run",
    "sandbox.create": "sandbox create",
    "sandbox.fork": "fork",
    "sandbox.snapshot": "snapshot create",
    "sandbox.kill": "sandbox kill",
    "sandbox.list": "sandbox ls",
    "sandbox.attach": "sandbox attach",
    "sandbox.begin": "sandbox create",
    "sandbox.rollback": "sandbox rollback",
    "sandbox.promote": "sandbox promote",
    "sandbox.commands": "exec",
    "sandbox.lane": "fork",
    "snapshot.list": "snapshot ls",
    "snapshot.compact": "snapshot-compact",
    "snapshot.remove": "snapshot rm",
    "snapshot.import": "serve",
    "snapshot.pack": "pack",
    "snapshot.unpack": "unpack",
    "hand_over": "daemon upgrade",
}


def test_operations_are_reachable_from_the_command_line():
    source = "".join(path.read_text() for path in ROOT.glob("src/ramet/cli/**/*.py"))
    assert set(CALLED.values()) <= dict(commands(app)).keys()
    assert [name for name in OPERATIONS if name not in CALLED and name not in source] == []
