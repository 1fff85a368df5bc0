#!/usr/bin/env python3
"""Builds the pages as a web site, build/site, with no warning and no link that leads nowhere.

Pages are read in the checkout as well, and name what is beside them, above docs/ too: so they are built from
a copy of all of them, build/pages, with the files that they link to.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build/pages"
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
# Beside docs/. Of changes/ only what explains it: the notes are parts of CHANGELOG.md to be.
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "core/*.md",
    *(f"{one}/README.md" for one in ("benchmarks", "changes", "packaging")),
)


def copy(path: Path) -> None:
    """To the same place below the copy."""
    target = COPY / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def linked(page: Path) -> set[Path]:
    """The files that it links to, but pages."""
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    files = {(page.parent / link).resolve() for link in links}
    return {file for file in files if file.is_file() and file.suffix != ".md"}


def main() -> int:
    """Copy, then build."""
    shutil.rmtree(COPY, ignore_errors=True)
    pages = {path for pattern in PATTERNS for path in ROOT.glob(pattern)}
    for path in pages | {file for page in pages for file in linked(page)}:
        copy(path)
    words = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(words, cwd=ROOT, check=False, stdin=subprocess.DEVNULL)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
