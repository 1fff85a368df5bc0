"""What the pages show is what happens: their code is run, their output compared.

A fenced block of `python` is run as a program; a `text` block right after it is its output. A block of
`console` is a session: lines that begin with `$ ` are typed (`> ` continues one), the others are what comes
back. `...` stands for anything in a line, a line of it for any number of lines; numbers before ms, B, KiB and
the like may differ. A block that must not run has `<!-- not run: REASON -->` above it.
"""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from _repository import ROOT
from ramet.client import sandboxes
from ramet.errors import InvalidRequest, SandboxEnded

PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "SECURITY.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
EXAMPLES = sorted(path for path in ROOT.glob("examples/*") if path.suffix in {".py", ".sh"})
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$"
    r"(?:\n\n?```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
RUN = ("python", "console")
SHOWN = ("", "text", "mermaid", "json", "toml", "c", "ini", "py")  # signatures are `py`
NUMBER = re.compile(r"\d+(?:\\\.\d+)?(?=\\ (?:ms|B|[KMGT]iB)\b)")
END = "\x01end of command\x01"


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block; `line` is where it stands on its page."""

    page: Path
    line: int
    kind: str
    body: str
    output: str | None
    reason: str | None

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks():
    """Every fenced block of every page."""
    found = []
    for page in PAGES:
        if not page.exists():
            continue
        text = page.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page, line, match["kind"], match["body"], match["output"], match["reason"]))
    return found


BLOCKS = blocks()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """PATH with this Ramet and this Python in front."""
    directory = tmp_path_factory.mktemp("bin")
    for name, words in (("ramet", "-P -m ramet"), ("python3", ""), ("python", "")):
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        script.chmod(0o755)
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}


@pytest.fixture
def directory(tmp_path):
    """Where a block runs: empty but for the examples, which pages call by their path."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_left():
    """End what an example has left for its time to live: others count what there is."""
    yield
    for one in sandboxes.list():
        with suppress(InvalidRequest, SandboxEnded):
            sandboxes.kill(one.id)


def tidy(text):
    """The lines without blanks at their ends, and without empty lines before and after all of them."""
    return [line.rstrip() for line in text.strip().splitlines()]


def pattern(shown):
    """A regular expression for what is shown."""
    lines = [
        r"(?:[^\n]*\n)*" if line == "..." else re.escape(line).replace(re.escape("..."), "[^\n]*") + "\n"
        for line in tidy(shown)
    ]
    return NUMBER.sub(r"[\\d.]+", "".join(lines))


def assert_matches(came, shown):
    text = "".join(f"{line}\n" for line in tidy(came))
    assert re.fullmatch(pattern(shown), text), f"what came:\n{text}\nwhat is shown:\n{shown}"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_each_block_is_of_a_known_kind_and_only_programs_are_marked_as_not_run(block):
    assert block.kind in RUN + SHOWN
    assert block.reason is None or block.kind in RUN


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.kind == "python" and not block.reason], ids=str
)
def test_each_program_on_a_page_runs_and_prints_what_is_shown(block, environment, directory):
    (directory / "shown.py").write_text(block.body)
    words = [sys.executable, "-W", "error", "shown.py"]
    done = subprocess.run(
        words, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    if block.output is not None:
        assert_matches(done.stdout, block.output)


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.kind == "console" and not block.reason], ids=str
)
def test_each_session_on_a_page_goes_as_shown(block, environment, directory):
    typed, shown = [], []
    for line in block.body.splitlines():
        if line.startswith("$ "):
            typed.append(line[2:])
            shown.append([])
        elif line.startswith("> "):
            typed[-1] += f"\n{line[2:]}"
        else:
            shown[-1].append(line)
    script = "".join(f"{command}\n_code=$?; printf '%s\\n' '{END}'; (exit $_code)\n" for command in typed)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=50,
    )
    came = done.stdout.split(f"{END}\n")[:-1]
    assert len(came) == len(typed), done.stdout
    for one, expected in zip(came, shown, strict=True):
        assert_matches(one, "\n".join(expected))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_each_example_runs(example, environment, directory):
    words = [sys.executable, "-W", "error"] if example.suffix == ".py" else ["sh", "-eu"]
    done = subprocess.run(
        [*words, str(example)],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_example_is_named_on_a_page():
    told = "".join(page.read_text() for page in PAGES if page.exists())
    assert [path.name for path in EXAMPLES if f"examples/{path.name}" not in told] == []
