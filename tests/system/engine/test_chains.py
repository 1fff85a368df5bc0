"""Forks of forks of forks: each adds the files that it has written, and no more."""

import os

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.engine import _engine
from system.engine._engine import Engine, Guest

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


def test_a_chain_of_fifty_forks_that_each_write_a_file_has_all_of_them(engine: Engine, shell: Guest) -> None:
    for number in range(50):
        assert shell.ask(f"echo {number} > file{number}; echo done") == "done"
        shell = next_of(engine, shell, f"fork {number}")
    assert shell.ask("set -- file*; echo $#") == "50"
    for number in (0, 25, 49):
        assert shell.ask(f"read -r line < file{number}; echo $line") == str(number)
    assert layers(engine, shell) >= 50


def test_a_chain_ends_by_name_when_its_layers_are_used_up(engine: Engine, shell: Guest) -> None:
    for number in range(p.LAYERS_MAX + 1):
        assert shell.ask(f"echo {number} > file{number}; echo done") == "done"
        _, answer = engine.ask_snapshot(shell)
        if answer.kind == p.ERROR:
            break
        shell = next_of(engine, shell, f"fork {number}")
    assert answer.error[0] == "too_many_layers", _engine.describe(answer)
    assert "a chain of more than 59 forks that wrote files" in answer.found.text(p.TAG_TEXT)
    assert shell.ask("echo still") == "still"


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
