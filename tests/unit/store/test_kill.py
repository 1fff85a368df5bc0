"""kill -9 of the writer: the old state or the new, never a part, and nothing is left for the next store."""

import itertools
import os
import signal
import time
from collections.abc import Callable

import pytest

from ramet.store import Store
from unit.store.material import PAGE, left_in, loaded_pages, pages, save

# Whatever changes the disk goes through one of these.
CALLS = ("fsync", "ftruncate", "link", "mkdir", "open", "pwrite", "pwritev", "rename", "rmdir", "unlink")
PARENT = pages(*range(1, 60))
CHILD = pages(*range(1, 30), 100, *range(31, 60))


def killed_at(step: int, act: Callable[[], object]) -> bool:
    """Do `act` in a process that is killed at the beginning of its call number `step`; whether it was."""
    pid = os.fork()
    if pid == 0:
        counter = itertools.count(1)
        for name in CALLS:
            call = getattr(os, name)

            def counted(*args: object, _call: Callable[..., object] = call, **options: object) -> object:
                if next(counter) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return _call(*args, **options)

            setattr(os, name, counted)
        try:
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def through_every_step(store: Store, act: Callable[[], object], check: Callable[[], object]) -> None:
    """Kill at each step in turn; after each, a new store must find what `check` says, and nothing else."""
    for step in itertools.count(1):
        killed = killed_at(step, act)
        with Store(store.root) as after:
            assert left_in(after) == []
            check()
        if not killed:
            assert step > 5
            return


@pytest.fixture
def layer(tmp_path):
    top = tmp_path / "layer"
    (top / "upper").mkdir(parents=True)
    (top / "upper/file").write_text("x" * 100_000)
    os.link(top / "upper/file", top / "upper/link")
    return top


def test_a_writer_killed_at_any_step_leaves_all_or_nothing(store, layer):
    parent = save(store, "parent", PARENT)

    def act():
        with Store(store.root) as writer:
            save(writer, "child", CHILD, parent=parent, uppers=[layer])

    seen = set()

    def check():
        names = store.names()
        seen.add(names)
        if "child" in names:
            assert loaded_pages(store, "child") == CHILD
            store.remove("child")

    through_every_step(store, act, check)
    assert seen == {("parent",), ("child", "parent")}


def test_a_reader_killed_at_any_step_leaves_nothing(store, layer):
    save(store, "x", PARENT, uppers=[layer])

    def act():
        with Store(store.root) as reader:
            reader.load("x").close()

    through_every_step(store, act, lambda: store.verify("x"))


def test_a_remover_killed_at_any_step_leaves_all_or_nothing(store):
    def act():
        with Store(store.root) as remover:
            remover.remove("x")

    def check():
        if "x" in store.names():
            store.verify("x")
        else:
            save(store, "x", PARENT)

    check()
    through_every_step(store, act, check)


def test_a_flattener_killed_at_any_step_leaves_the_old_or_the_new(store):
    parent = save(store, "parent", PARENT)
    save(store, "child", CHILD, parent=parent)
    grandchild = save(store, "grandchild", PARENT, parent=store.info("child"))

    def act():
        with Store(store.root) as flattener:
            flattener.flatten("child")

    seen = set()

    def check():
        info = store.info("child")
        seen.add((info.parent is None, info.page_bytes))
        assert loaded_pages(store, "child") == CHILD
        assert store.verify("grandchild") == grandchild

    through_every_step(store, act, check)
    assert seen == {(False, PAGE), (True, len(CHILD))}


def test_a_writer_killed_at_any_moment_keeps_what_it_was_told_is_kept(store):
    """Between the calls too: while the kernel writes, while hashes are made."""
    data = os.urandom(8 << 20)
    for number in range(8):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                with Store(store.root) as writer:
                    for turn in itertools.count():
                        save(writer, f"n{number}-{turn}", data[turn * PAGE :])
                        os.write(write, b"%d\n" % turn)
            finally:
                os._exit(1)
        os.close(write)
        with open(read, "rb") as promises:
            promises.readline()
            end = time.monotonic() + number * 0.007
            while time.monotonic() < end:  # a moment that no event marks is what this is about
                pass
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            promised = 1 + len(promises.readlines())
        with Store(store.root) as after:
            kept = [name for name in after.names() if name.startswith(f"n{number}-")]
            assert promised <= len(kept) <= promised + 1
            for name in kept:
                after.verify(name)
                after.remove(name)
