#!/usr/bin/env python3
"""Writes the synchronous client from the asynchronous one.

    unasync.py            write src/ramet/client/_sync from src/ramet/client/_async
    unasync.py --check    write nothing; exit 1 if a generated file is stale, missing or left over

The rules below apply to every line, comments and docstrings too, so that documentation stays true in both. A
rule that matches nowhere is an error: it is either a slip or left from code that has gone. `ruff format` then
rejoins lines that became shorter.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "src/ramet/client"
HEADER = "# Generated from {source} by scripts/unasync.py. Do not edit.\n"

# Words, applied one after the other in this order.
WORDS: dict[str, str] = {
    "async def": "def",
    "async with": "with",
    "async for": "for",
    "await ": "",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
    "AsyncIterator": "Iterator",
    "aclose": "close",
    "_async": "_sync",
}
# Names of classes: AsyncClient becomes Client. Words listed above have gone by then.
PATTERNS: dict[str, str] = {
    r"\bAsync(?=[A-Z])": "",
}


class UnusedRule(Exception):
    """A rule that matched nothing in any file."""


def compile_rules(words: dict[str, str], patterns: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """Words match whole; a word that ends in a blank eats that blank."""

    def whole(word: str) -> str:
        end = "" if word.endswith(" ") else r"(?![A-Za-z0-9_])"
        return rf"(?<![A-Za-z0-9_]){re.escape(word)}{end}"

    rules = [(re.compile(whole(word)), to) for word, to in words.items()]
    return rules + [(re.compile(pattern), to) for pattern, to in patterns.items()]


def translate(text: str, rules: list[tuple[re.Pattern[str], str]], used: Counter[str]) -> str:
    """Apply each rule in order to `text`; count the matches by pattern in `used`."""
    for pattern, to in rules:
        text, times = pattern.subn(to, text)
        used[pattern.pattern] += times
    return text


def tidy(text: str, path: Path) -> str:
    """Sort imports and format as the rest of the project."""
    for step in (["check", "--quiet", "--select=I", "--fix-only"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *step, "--config", str(ROOT / "pyproject.toml")]
        command += ["--stdin-filename", str(path), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def generate(source: Path, target: Path) -> dict[Path, str]:
    """The text of each generated file by its path.

    Raises:
        UnusedRule: a rule of the tables matched in no file.
    """
    rules = compile_rules(WORDS, PATTERNS)
    used: Counter[str] = Counter()
    texts = {}
    for path in sorted(source.rglob("*.py")):
        relative = path.relative_to(source)
        header = HEADER.format(source=f"{source.name}/{relative}")
        texts[target / relative] = tidy(header + translate(path.read_text(), rules, used), target / relative)
    if idle := [pattern.pattern for pattern, _ in rules if not used[pattern.pattern]]:
        raise UnusedRule(f"rules that match nothing: {', '.join(idle)}")
    return texts


def stale(texts: dict[Path, str], target: Path) -> list[str]:
    """One line for each file under `target` that differs from `texts`."""
    found = [
        f"{path}: {'stale' if path.exists() else 'missing'}"
        for path, text in texts.items()
        if not path.exists() or path.read_text() != text
    ]
    return found + [f"{path}: left over" for path in sorted(target.rglob("*.py")) if path not in texts]


def main(arguments: list[str] | None = None) -> int:
    """Write, or with --check compare."""
    parser = argparse.ArgumentParser(description="generate the synchronous client")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is not as generated"
    )
    parser.add_argument("--source", type=Path, default=CLIENT / "_async")
    parser.add_argument("--target", type=Path, default=CLIENT / "_sync")
    options = parser.parse_args(arguments)
    try:
        texts = generate(options.source, options.target)
    except UnusedRule as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"ruff refuses the generated text:\n{error.stderr}", file=sys.stderr)
        return 1
    found = stale(texts, options.target)
    if options.check:
        for line in found:
            print(f"{line}; run scripts/unasync.py", file=sys.stderr)
        return bool(found)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in options.target.rglob("*.py"):
        if path not in texts:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
