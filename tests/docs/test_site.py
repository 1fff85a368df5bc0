"""The web site: it is built without a warning, and every page can be found on it."""

import importlib.util
import subprocess
import sys
import tomllib

import pytest

from _repository import ROOT

# Found by the lists on their first pages, as there are many.
LISTED = ("docs/decisions", "docs/internals")


def pages(nav):
    """Every page of the navigation."""
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages(value)


def test_every_page_of_docs_is_in_the_navigation():
    named = list(pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    there = {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")}
    assert [page for page in named if not (ROOT / page).is_file()] == []
    assert len(named) == len(set(named))
    assert [page for page in sorted(there - set(named)) if not page.startswith(LISTED)] == []


@pytest.mark.parametrize("folder", LISTED)
def test_every_page_that_is_not_is_in_the_list_of_its_folder(folder):
    told = (ROOT / folder / "README.md").read_text()
    there = {path.name for path in (ROOT / folder).glob("*.md")} - {"README.md"}
    assert [name for name in sorted(there) if f"({name})" not in told] == []


@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="zensical is not installed")
def test_the_site_is_built_without_a_warning():
    words = [sys.executable, str(ROOT / "scripts/build_site.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (ROOT / "build/site/docs/reference/python.html").is_file()
