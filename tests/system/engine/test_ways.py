"""Each process's way into a snapshot is told."""

from ramet.models.sandboxes import ForkWay
from ramet.native import _protocol as p
from system.engine._engine import Engine, Guest, Snapshot

BIG = "import time; held = b'x' * (4 << 20); open('up', 'w').close(); time.sleep(1000)"
SHELL = ["/bin/sh", "-c", 'echo READY; while read -r line; do eval "$line"; done']


def shell(engine: Engine) -> Guest:
    guest = engine.start(SHELL)
    guest.ready()
    return guest


def ways(snapshot: Snapshot) -> list[tuple[str, str, str | None]]:
    return [(one.name, one.way, one.why) for one in ForkWay.parse(snapshot.found.text(p.TAG_WAYS))]


def test_a_source_has_no_twin_and_its_children_have_one(engine: Engine) -> None:
    source = shell(engine)
    # Before it is a program of its own it is called as its parent.
    source.ask('sleep 1000 & while [ "$(cat /proc/$!/comm)" != sleep ]; do :; done; echo done')
    first = engine.snapshot(source)
    assert ways(first) == [("sh", "frozen", "no_twin"), ("sleep", "copied", "has_parent")]
    second = engine.snapshot(first.fork())
    assert ways(second) == [("sh", "twin", None), ("sleep", "copied", "has_parent")]


def test_what_was_copied_is_counted_for_each(engine: Engine) -> None:
    source = shell(engine)
    source.ask(f'python3 -c "{BIG}" & while [ ! -e up ]; do :; done; echo done')
    snapshot = engine.snapshot(source)
    told = ForkWay.parse(snapshot.found.text(p.TAG_WAYS))
    assert [(one.name, one.way, one.why) for one in told] == [
        ("sh", "frozen", "no_twin"),
        ("python3", "frozen", "has_parent"),
    ]
    assert told[1].copied_bytes > 4 << 20
    assert sum(one.copied_bytes for one in told) == snapshot.found.u64(p.TAG_MEMORY_BYTES)
    parked = ForkWay.parse(engine.snapshot(snapshot.fork()).found.text(p.TAG_WAYS))
    assert parked[0].copied_bytes == 0


def test_a_program_that_another_has_replaced_or_whose_twin_fails_is_copied(engine: Engine) -> None:
    child = engine.snapshot(shell(engine)).fork()
    assert ways(engine.snapshot(child, twin=False)) == [("sh", "frozen", "failed")]
    other = engine.snapshot(shell(engine)).fork()
    other.ask("exec /bin/sh -c 'echo there; read -r line'")
    assert ways(engine.snapshot(other)) == [("sh", "frozen", "exec")]
