"""`ramet quickstart`: five untrusted programs, what each of them got, and a hundred forks of a Python."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

    from ramet.models.results import CommandResult

_PRIMES = """\
sieve = bytearray([1]) * 2_000_000
for n in range(2, 1415):
    if sieve[n]:
        sieve[n * n :: n] = bytes(len(range(n * n, 2_000_000, n)))
print("the primes below two million add up to", sum(n for n in range(2, 2_000_000) if sieve[n]))
"""

_PIPELINE = "seq 100000 | grep 7 | sort -n | tail -n 3 | tr '\\n' ' '; echo; id; uname -n"

# 192.0.2.1 is an address for documentation: a host with a way out would wait for it in vain.
_NOSY = """\
import os, socket, sys

def attempt(what, action):
    try:
        print(f"{what}: {action()}")
    except OSError as error:
        print(f"{what}: {error.strerror}")

home, marker = sys.argv[1:]
attempt("list your ~/.ssh", lambda: os.listdir(home + "/.ssh"))
attempt("list its own home", lambda: [name for name in os.listdir(os.path.expanduser("~")) if name[0] != "."])
attempt("overwrite /etc/hosts", lambda: open("/etc/hosts", "w").write(marker) and "done, in its own copy")
attempt("connect to 192.0.2.1", lambda: socket.create_connection(("192.0.2.1", 80), 5))
attempt("set the host's name", lambda: socket.sethostname("taken"))
print("processes in sight:", sum(name.isdigit() for name in os.listdir("/proc")))
print("its environment:", *sorted(os.environ))
"""

_FORKS = """\
import os, time

count = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(3600)
    except OSError as error:
        print(f"after {count} forks: {error.strerror}")
        break
    count += 1
"""

_LOOP = "while :; do :; done"
_MARKER = "written by a program of ramet quickstart\n"


@dataclasses.dataclass(frozen=True, slots=True)
class _Program:
    """One program of the show. `expected` judges its result; `options` are arguments of `ramet.run`."""

    title: str
    command: str | list[str]
    expected: Callable[[CommandResult], bool]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def _programs(home: str) -> list[_Program]:
    return [
        _Program(
            "A computation in Python",
            ["python3", "-c", _PRIMES],
            lambda result: result.stdout.rstrip().endswith(" 142913828922"),
        ),
        _Program(
            "A shell pipeline",
            _PIPELINE,
            lambda result: result.ok and result.stdout.startswith("99979 99987 99997"),
        ),
        _Program(
            "A program that wants your keys, your files, the network",
            ["python3", "-c", _NOSY, home, _MARKER],
            lambda result: result.ok and "No such file" in result.stdout and "unreachable" in result.stdout,
        ),
        _Program(
            "A program that forks without end, with --pids 64",
            ["python3", "-c", _FORKS],
            lambda result: result.ok and "temporarily unavailable" in result.stdout,
            {"limits": {"processes": 64}},
        ),
        _Program(
            "A program that never ends, with --timeout 0.5",
            _LOOP,
            lambda result: result.timed_out and result.exit_code == 124,
            {"timeout": 0.5},
        ),
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """What one program got; `seconds` from call to result."""

    program: _Program
    result: CommandResult
    seconds: float

    @property
    def expected(self) -> bool:
        return self.program.expected(self.result)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "title": self.program.title,
            "expected": self.expected,
            "call_ms": self.seconds * 1000,
            "result": self.result.to_dict(),
        }


CHILDREN = 100
CHILDREN_MAX = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class _Forks:
    """What a hundred forks of one Python answered; times in seconds."""

    children: int
    template: float
    forked: float
    answered: float
    live: float
    bare: float
    right: int
    parent: str
    child: str
    grandchild: str
    grandchilds: str

    @property
    def expected(self) -> bool:
        return self.right == self.children and self.grandchilds == "0 -1"


def _fork(count: int) -> _Forks:
    """A table in a parent's memory; each child is asked for another row of it; one child is forked again."""
    from ramet.client import Sandbox

    begin = time.perf_counter()
    with Sandbox("python") as parent:
        parent.run_code("table = [n * n for n in range(1000)]").check()
        warm = time.perf_counter()
        with parent.fork(count) as children:
            forked = time.perf_counter()
            answers = [child.run_code(f"table[{row}]").text for row, child in enumerate(children)]
            answered = time.perf_counter()
            child = children[0]
            before = time.perf_counter()
            with child.fork() as grandchild:
                grandchild.run_code("table[0] = -1").check()
                live = time.perf_counter() - before
                texts = [one.run_code("table[0]").text or "" for one in (child, grandchild)]
                return _Forks(
                    children=count,
                    template=warm - begin,
                    forked=forked - warm,
                    answered=answered - forked,
                    live=live,
                    bare=_bare_fork(),
                    right=sum(text == str(row * row) for row, text in enumerate(answers)),
                    parent=parent.id,
                    child=child.id,
                    grandchild=grandchild.id,
                    grandchilds=" ".join(texts),
                )


def _bare_fork() -> float:
    """`os.fork` of this program until the child has ended, which isolates nothing."""
    import os

    begin = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return time.perf_counter() - begin


def _show_forks(out: Console, forks: _Forks) -> None:
    out.print(f"   | {forks.right} of {forks.children} children knew the row that they were asked for")
    out.print(f"   | {forks.parent}  the parent, a fork of the template python")
    out.print(f"   |  ├─ {forks.child}  table[0] is {forks.grandchilds.split()[0]}")
    out.print(f"   |  │   └─ {forks.grandchild}  table[0] is {forks.grandchilds.split()[-1]}")
    out.print(f"   |  └─ and {forks.children - 1} more children")
    each = (forks.forked + forks.answered) / forks.children
    out.print(
        f"   template ready after {_ms(forks.template)} ms, {_ms(each)} ms for each child and its answer, "
        f"{_ms(forks.live)} ms for a fork of a child; os.fork, which isolates nothing, {_ms(forks.bare)} ms",
        style="green" if forks.expected else "bold red",
    )


def quickstart(
    n: str = typer.Option(str(CHILDREN), "-n", metavar="N", help=f"How many forks, up to {CHILDREN_MAX}."),
    image: str | None = typer.Option(
        None,
        "--image",
        metavar="IMAGE",
        help="Refused: it runs this machine's programs, and fetches none.",
    ),
    yes: bool = typer.Option(False, "-y", "--yes", help="Ask nothing; nothing is ever asked."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Run five untrusted programs, show what each of them got, and fork a Python a hundred times.

    The exit code is 1 when one of them got something else than it should.
    """
    del yes  # it installs nothing, and changes nothing of this machine
    if image is not None:
        raise InvalidRequest.of(
            "image", "the programs of quickstart are this machine's own, and no image is fetched",
            hint="ramet root build makes a root directory, and ramet template build a template",
        )  # fmt: skip
    if not n.isdecimal() or len(n) > 9 or not 1 <= int(n) <= CHILDREN_MAX:
        raise InvalidRequest.of("n", f"{n!r:.40} is no number of forks: from 1 to {CHILDREN_MAX}")
    count = int(n)
    from ramet.cli.render import console
    from ramet.client import ping

    out = None if as_json else console()
    begin = time.perf_counter()
    pong = ping()
    if out is not None:
        seconds = time.perf_counter() - begin
        out.print(f"The daemon answers after {_ms(seconds)} ms (pid {pong.pid}).", style="dim")
    outcomes = []
    for number, program in enumerate(_programs(str(Path.home())), 1):
        outcomes.append(_perform(program))
        if out is not None:
            out.print(f"\n{number}. {program.title}", style="bold")
            _show(out, outcomes[-1])
    untouched = _MARKER.strip() not in _text("/etc/hosts")
    forks = _fork(count)
    good = untouched and forks.expected and all(outcome.expected for outcome in outcomes)
    if out is not None:
        out.print(
            f"\n{len(outcomes) + 1}. A Python with a table in its memory, forked {n} times",
            style="bold",
        )
        _show_forks(out, forks)
        out.print(f"\nYour own /etc/hosts is {'as it was' if untouched else 'CHANGED'}.", style="bold")
    else:
        programs = [outcome.to_dict() for outcome in outcomes]
        told = dataclasses.asdict(forks) | {"expected": forks.expected}
        print(json.dumps({"ok": good, "hosts_unchanged": untouched, "programs": programs, "forks": told}))
    return 0 if good else 1


def _perform(program: _Program) -> _Outcome:
    from ramet.client import run

    begin = time.perf_counter()
    result = run(program.command, **program.options)
    return _Outcome(program, result, time.perf_counter() - begin)


def _show(out: Console, outcome: _Outcome) -> None:
    from ramet.cli.render import how_it_ended, size

    result = outcome.result
    for line in (result.stdout + result.stderr).splitlines():
        out.print(f"   | {line}")
    facts = [how_it_ended(result), f"{_ms(outcome.seconds)} ms from call to result"]
    if result.setup_ms:
        facts.append(f"{result.setup_ms:.1f} ms of them until the program ran")
    facts.append(f"peak memory {size(result.usage.peak_rss_bytes)}")
    out.print("   " + ", ".join(facts), style="green" if result.ok else "yellow")
    if not outcome.expected:
        out.print("   This is not what it should have got.", style="bold red")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
