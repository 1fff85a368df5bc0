"""What the pages name exists: links, make targets, scripts; and versions are the same everywhere."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from _repository import ROOT

FOLDERS = ("benchmarks", "changes", "core", "docs", "packaging", "src", "tests")
PAGES = sorted(
    path for pattern in ("*.md", *(f"{folder}/**/*.md" for folder in FOLDERS)) for path in ROOT.glob(pattern)
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"`([^`\n]+)`|^ {4}(\S.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def targets():
    """Every target of the Makefile."""
    return set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def snippets(page: Path) -> list[str]:
    """Inline code, indented code and the lines of fenced blocks."""
    text = page.read_text()
    blocks = re.findall(r"```[^\n]*\n(.*?)```", text, re.DOTALL)
    fenced = [line for block in blocks for line in block.splitlines()]
    return fenced + [one or other for one, other in CODE.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_to_a_file_leads_somewhere(page):
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_make_target_and_script_that_a_page_names_exists(page, targets):
    named = snippets(page)
    makes = {match for text in named for match in re.findall(r"(?:^|[;&] ?)make ([a-z][a-z0-9-]*)", text)}
    scripts = {match for text in named for match in re.findall(r"(?<![\w/.-])scripts/[\w.-]+", text)}
    assert makes - targets == set()
    assert [script for script in sorted(scripts) if not (ROOT / script).exists()] == []


def test_make_help_tells_every_target_that_people_call(targets):
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in told.splitlines()} == targets


def test_core_and_package_have_one_version():
    package = re.search(r'"(.+)"', (ROOT / "src/ramet/_version.py").read_text())
    core = re.search(r"^  version: '(.+)'", (ROOT / "core/meson.build").read_text(), re.MULTILINE)
    assert package is not None
    assert core is not None
    assert package[1] == core[1]


def test_each_ignored_lint_rule_has_its_reason_beside_it():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    listed = tomllib.loads("\n".join(lines))["tool"]["ruff"]["lint"]["ignore"]
    bare = [line for line in lines if re.match(r'\s+"[A-Z]+[0-9]*",?', line) and "#" not in line]
    assert listed
    assert bare == []
