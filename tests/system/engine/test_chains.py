"""Forks of forks of forks: each adds the files that it has written, and no more."""

import os
from collections.abc import Iterable
from random import Random

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.engine import _engine
from system.engine._engine import Engine, Guest

DEEP = 10
"""Of so many writable layers core makes one."""
SHELL = ["/bin/sh", "-c", 'cd /dev/shm; cd /; echo READY; while read -r line; do eval "$line"; done']


@pytest.fixture
def shell(engine: Engine) -> Guest:
    source = engine.start(SHELL)
    source.ready()
    return source


def next_of(engine: Engine, guest: Guest, about: str) -> Guest:
    """A fork of it, which alone goes on."""
    snapshot = engine.snapshot(guest)
    child = snapshot.fork(about)
    snapshot.drop()
    guest.end()
    return child


def layers(engine: Engine, guest: Guest) -> int:
    """How many writable layers a snapshot of it has."""
    snapshot = engine.snapshot(guest)
    answer = engine.core.control.ok(p.EXPORT_SNAPSHOT, frames.u32(p.TAG_SNAPSHOT, snapshot.number))
    for fd in answer.fds:
        os.close(fd)
    snapshot.drop()
    return len(answer.fds) - 2


def contents(guest: Guest, names: Iterable[str]) -> dict[str, str]:
    """What the files hold, "-" of one that is not there."""
    told = {}
    for name in names:
        told[name] = guest.ask(f"if [ -e {name} ]; then read -r line < {name}; else line=-; fi; echo $line")
    return told


@pytest.mark.parametrize("length", [130, pytest.param(600, marks=pytest.mark.slow)])
def test_a_chain_of_forks_has_what_each_of_them_wrote_in_layers_that_do_not_grow_in_number(
    engine: Engine, shell: Guest, length: int
) -> None:
    random = Random(length)
    expected: dict[str, str] = {}
    for number in range(length):
        name = f"d{random.randrange(4)}/f{random.randrange(12)}"
        directory = name.partition("/")[0]
        match random.randrange(5):
            case 0:
                wanted = f"rm -rf {directory}"
                expected = {
                    known: "-" if known.startswith(f"{directory}/") else text
                    for known, text in expected.items()
                }
            case 1:
                wanted = f"rm -f {name}"
                expected[name] = "-"
            case 2:
                wanted = f"rm -rf {directory}; mkdir {directory}; echo {number} > {name}"
                expected = {
                    known: "-" if known.startswith(f"{directory}/") else text
                    for known, text in expected.items()
                }
                expected[name] = str(number)
            case _:
                wanted = f"mkdir -p {directory}; echo {number} > {name}"
                expected[name] = str(number)
        assert shell.ask(f"{wanted}; echo done") == "done"
        shell = next_of(engine, shell, f"fork {number}")
        if number % 10 == 9:
            assert layers(engine, shell) <= DEEP + 1
    assert contents(shell, expected) == expected
    listed = shell.ask("echo d[0-3]/*").split()
    assert sorted(listed) == sorted(name for name, text in expected.items() if text != "-")


def test_a_file_that_is_open_keeps_its_number_and_its_names_when_layers_become_one(
    engine: Engine, shell: Guest
) -> None:
    for number in range(5):
        shell.ask(f"echo {number} > before{number}; echo done")
    shell.ask("echo kept > kept; ln kept again; exec 7< kept; rm before*; echo done")
    inode = shell.ask("set -- $(ls -Li /proc/self/fd/7); echo $1")
    for number in range(DEEP + 2):
        assert shell.ask(f"echo {number} > file{number}; echo done") == "done"
        shell = next_of(engine, shell, f"fork {number}")
    assert layers(engine, shell) < DEEP
    assert shell.ask("set -- $(ls -Li /proc/self/fd/7); echo $1") == inode
    assert shell.ask("set -- $(ls -i kept again); echo $1 $3") == f"{inode} {inode}"
    assert shell.ask("read -r line <&7; echo $line") == "kept"


def test_forks_of_one_source_stand_on_the_same_layer_beside_the_copy_that_is_kept_of_it(
    engine: Engine, shell: Guest
) -> None:
    for number in range(DEEP):
        assert shell.ask(f"echo {number} > file{number}; echo done") == "done"
        shell = next_of(engine, shell, f"fork {number}")
    shell.ask("n=0; while [ $n -lt 600 ]; do echo $n > many$n; n=$((n+1)); done; echo done")
    for number in range(3):
        assert shell.ask(f"rm file{number}; echo {number} > late{number}; echo done") == "done"
        snapshot = engine.snapshot(shell)
        child = snapshot.fork(f"child {number}")
        assert layers(engine, shell) <= 3  # one of all, the one that is kept, what differs from that
        assert child.ask("set -- file*; echo $#") == str(DEEP - 1 - number)
        assert child.ask("set -- many* late*; echo $#") == str(601 + number)
        assert child.ask("read -r line < many599; echo $line") == "599"
        child.end()
        snapshot.drop()


def test_a_source_whose_layers_could_not_become_one_runs_on(engine: Engine, shell: Guest) -> None:
    for number in range(DEEP):
        assert shell.ask(f"echo {number} > file{number}; echo done") == "done"
        shell = next_of(engine, shell, f"fork {number}")
    _, answer = engine.ask_snapshot(shell, fault=p.STEP_FLATTEN)
    assert answer.error[1] == p.STEP_NAMES[p.STEP_FLATTEN], _engine.describe(answer)
    assert shell.ask("read -r line < file0; echo $line") == "0"
    shell = next_of(engine, shell, "after the failure")
    assert shell.ask("set -- file*; echo $#") == str(DEEP)


def test_forks_that_write_nothing_add_no_layer(engine: Engine, shell: Guest) -> None:
    shell.ask("echo a > a; echo done")
    for number in range(p.LAYERS_MAX + 5):
        shell = next_of(engine, shell, f"fork {number}")
    assert shell.ask("read -r line < a; echo $line") == "a"
    assert layers(engine, shell) <= 2


def test_what_left_shared_memory_does_not_come_back_with_a_fork_that_writes_nothing(
    engine: Engine, shell: Guest
) -> None:
    shell.ask("echo a > /dev/shm/a; echo done")
    shell = next_of(engine, shell, "with a file")
    assert shell.ask("rm /dev/shm/a; echo $?") == "0"
    for number in range(3):
        shell = next_of(engine, shell, f"fork {number}")
        assert shell.ask("set -- /dev/shm/*; echo $1") == "/dev/shm/*"
