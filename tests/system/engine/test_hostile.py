"""Guests that do their worst to the engine gain nothing and break only themselves."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _payloads
from system.engine import _engine
from system.engine._engine import Engine, Guest, Victim

HOSTILE = _engine.victims("hostile")
RESTLESS = {"forks", "vforks", "execs", "threads_exec", "maps", "signals_itself", "stops_itself"}
UNFORKABLE = {"unmaps", "fills_holes", "poisons_vdso", "no_stack", "forks", "stops_itself"}
"""Those of which a fork may be refused every time: what it needs is gone, or never holds still."""
HELD = {
    "CapEff 0000000000000000",
    "CapPrm 0000000000000000",
    "CapBnd 0000000000000000",
    "NoNewPrivs 1",
    "Seccomp 2",
    "descriptors 0",
}
"""What a guest holds at most."""
WORDS = {"unforkable", "exiting", "isolation_failed", "tracer_lost", "unknown_sandbox", "stem_lost"}


def named(victims: list[Victim]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("victim", victims, ids=lambda victim: victim.name)


@pytest.fixture
def bystander(engine: Engine) -> Guest:
    source = engine.start(
        ["/bin/sh", "-c", "n=0; echo READY; while read -r line; do n=$((n+1)); echo $n; done"]
    )
    source.ready()
    return source


def nobody_else_is_hurt(engine: Engine, bystander: Guest) -> None:
    count = int(bystander.ask("count"))
    child = engine.snapshot(bystander).fork("next")
    assert child.ask("count") == str(count + 1)
    child.end()
    assert engine.core.reports() == ""


def held(guest: Guest) -> set[str] | None:
    """What it says that it holds; None if it has died of what it did."""
    found: set[str] = set()
    try:
        guest.go()
        while (line := guest.line()) != "END":
            found.add(line)
    except (_engine.Died, BrokenPipeError):
        return None
    return found


def forked(engine: Engine, guest: Guest, about: str) -> Guest | None:
    """A fork of it, or None if it was refused in one of the ways that a guest can cause."""
    number, answer = engine.ask_snapshot(guest)
    if answer.kind != p.OK:
        assert answer.error[0] in WORDS, _engine.describe(answer)
        return None
    engine.snapshots.append(_engine.Snapshot(engine, number, answer.found))
    child, answer = engine.ask_fork(number, about)
    if answer.kind == p.OK:
        return child
    assert answer.kind == p.ENDED or answer.error[0] in WORDS, _engine.describe(answer)
    engine.forget(child)
    return None


@named([victim for victim in HOSTILE if victim.name not in RESTLESS])
def test_a_guest_that_does_its_worst_gains_nothing(engine: Engine, bystander: Guest, victim: Victim) -> None:
    """It does so itself, in a fork with a parked twin, and in a fork of that; each is forked again."""
    source = engine.start(victim.argv)
    source.ready()
    guest: Guest | None = forked(engine, source, "fork")
    assert guest
    made = 0
    for one in (guest, source):
        one.go()
        line = one.line()
        assert line == "DONE", line
        assert held(one) == HELD
        for turn in range(2):
            child = forked(engine, one, f"fork {turn} of {one.about}")
            if child:
                made += 1
                assert held(child) == HELD
                grandchild = forked(engine, child, f"fork of fork {turn} of {one.about}")
                assert not grandchild or held(grandchild) == HELD
    assert made or victim.name in UNFORKABLE
    nobody_else_is_hurt(engine, bystander)


@named([victim for victim in HOSTILE if victim.name in RESTLESS])
def test_a_guest_that_never_rests_gains_nothing(engine: Engine, bystander: Guest, victim: Victim) -> None:
    source = engine.start(victim.argv)
    source.ready()
    made = 0
    for turn in range(10):
        child = forked(engine, source, f"fork {turn}")
        if child:
            made += 1
            assert held(child) == HELD
            forked(engine, child, f"fork of fork {turn}")
            child.end()
        if made == 3:
            break
    assert made or victim.name in UNFORKABLE
    nobody_else_is_hurt(engine, bystander)


HOLDER = r"""
mkdir -p /home/user; cd /home/user
echo text > held-file; ln -s /proc/1/exe held-link; ln -s /proc/1 held-proc; mkfifo held-fifo; mkdir held-dire
exec 5<held-file
echo READY; read -r line; read -r line <&5; echo "$line"
"""
"""Names of one length, so that one may stand in an image in the place of another."""


@pytest.mark.parametrize(
    "name, number",
    [
        ("held-file", 0),
        ("held-link", errno.ESTALE),
        ("held-proc", errno.ESTALE),
        ("held-fifo", errno.ESTALE),
        ("held-dire", errno.ESTALE),
    ],
)
def test_init_opens_nothing_but_what_the_image_says_that_a_name_is(
    engine: Engine, name: str, number: int
) -> None:
    source = engine.start(["/bin/sh", "-c", HOLDER])
    source.ready()
    source.asleep()
    snapshot = engine.snapshot(source)
    answer = engine.core.control.ok(p.EXPORT_SNAPSHOT, frames.u32(p.TAG_SNAPSHOT, snapshot.number))
    description = os.pread(answer.fds[0], os.fstat(answer.fds[0]).st_size, 0)
    assert description.count(b"/home/user/held-file") == 1
    changed = os.memfd_create("changed")
    os.write(changed, description.replace(b"/held-file", b"/" + name.encode()))
    payload = frames.u32(p.TAG_SNAPSHOT, 4711) + frames.u32(p.TAG_ROOT, _payloads.ROOT)
    payload += frames.u32(p.TAG_FILTER, _engine.PRODUCT_FILTER)
    engine.core.control.ok(p.LOAD_SNAPSHOT, payload, (changed, *answer.fds[1:]))
    engine.snapshots.append(_engine.Snapshot(engine, 4711, answer.found))
    for fd in (changed, *answer.fds):
        os.close(fd)
    child, told = engine.ask_fork(4711, "child")
    if number == 0:
        assert told.kind == p.OK, _engine.describe(told)
        assert child.ask("go") == "text"
    else:
        engine.forget(child)
        assert told.error[:3] == ("isolation_failed", "child_make_fds", number), _engine.describe(told)


def test_what_an_export_gives_of_an_image_cannot_be_written(engine: Engine, bystander: Guest) -> None:
    snapshot = engine.snapshot(bystander)
    answer = engine.core.control.ok(p.EXPORT_SNAPSHOT, frames.u32(p.TAG_SNAPSHOT, snapshot.number))
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    for fd in answer.fds[:2]:
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == seals
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    for fd in answer.fds:
        os.close(fd)


BOUND_ROOT = 2
BOUND = """
echo kept > file
exec 3<>file
rm file
echo READY
while read -r line; do echo $(cat <&3) $(stat -Lc %d /proc/self/fd/3) $(stat -c %d /tmp); done
"""


@pytest.fixture
def host() -> Iterator[Path]:
    """A directory of the host's, which core, who is nobody there, may look into."""
    with tempfile.TemporaryDirectory(prefix="ramet-bound-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_init_writes_nothing_into_a_directory_of_the_hosts(engine: Engine, host: Path) -> None:
    """What it makes and writes by itself is in the sandbox's layer."""
    places = [host / "etc", host / "tmp"]
    written = [places[0] / name for name in ("hostname", "hosts", "machine-id")]
    for place in places:
        place.mkdir()
        place.chmod(0o777)
    for file in written:
        file.write_text("the host's")
        file.chmod(0o666)
    binds = b"".join(_payloads.bind(str(place), f"/{place.name}", flags=0) for place in places)
    answer = engine.core.define(BOUND_ROOT, more=binds)
    assert answer.kind == p.OK, _engine.describe(answer)
    source = engine.start(["/bin/sh", "-c", BOUND], root=BOUND_ROOT)
    source.ready()
    child = engine.snapshot(source).fork()
    content, unnamed, bound = child.ask("look").split()
    assert content == "kept"
    assert unnamed != bound
    assert [file.read_text() for file in written] == ["the host's"] * len(written)
