"""A named snapshot outlives core and daemon: state, files and open files come back in another core."""

import os
from pathlib import Path

import pytest

from ramet.engine.closure import build_root
from ramet.errors import InvalidRequest, SnapshotDamaged, SnapshotError, SnapshotUnusable
from ramet.models.creation import CreateRequest
from system.store._host import host
from unit.store.material import flip


@pytest.fixture
def store(tmp_path):
    return tmp_path / "data/ramet"


async def test_a_python_goes_on_in_another_core_with_its_state_and_files(store):
    async with host(store) as first:
        repl = await first.repl()
        for line in (
            "x = 41",
            "import os, hashlib",
            "open('/home/user/notes', 'w').write('kept')",
            "open('/dev/shm/shared', 'w').write('in memory')",
            "os.makedirs('/home/user/deep/er'); os.symlink('er', '/home/user/deep/link')",
            "open('/home/user/closed', 'w').write('mode 0'); os.chmod('/home/user/closed', 0)",
            "big = os.urandom(8 << 20)",
            "f = open('/tmp/gone', 'w+'); f.write('unlinked'); f.flush(); os.unlink('/tmp/gone')",
        ):
            assert "Error" not in repl.ask(line), line
        digest = repl.ask("hashlib.sha256(big).hexdigest()")
        told = await first.snapshot(repl, "before")
        assert told.durable
        assert repl.ask("x") == "41"
    async with host(store) as second:
        child = await second.fork("before")
        assert child.ask("x") == "41"
        assert child.ask("hashlib.sha256(big).hexdigest()") == digest
        assert child.ask("open('/home/user/notes').read()") == "'kept'"
        assert child.ask("open('/dev/shm/shared').read()") == "'in memory'"
        assert child.ask("os.readlink('/home/user/deep/link')") == "'er'"
        assert child.ask("oct(os.stat('/home/user/closed').st_mode)") == "'0o100000'"
        assert child.ask("f.seek(0), f.read()") == "(0, 'unlinked')"
        assert child.ask("os.getpid()") == "2"
        assert child.ask("__import__('json').dumps([x])") == "'[41]'"
        # What it does now stays its own.
        child.ask("x = 1")
        assert (await second.fork("before")).ask("x") == "41"


async def test_five_generations_each_saved_and_loaded_by_a_new_core(store):
    async with host(store) as first:
        repl = await first.repl()
        repl.ask("trail = [0]")
        await first.snapshot(repl, "g0")
    for generation in range(1, 6):
        async with host(store) as one:
            repl = await one.fork(f"g{generation - 1}")
            assert repl.ask("trail") == str(list(range(generation)))
            repl.ask(f"trail.append({generation})")
            repl.ask(f"open('/home/user/{generation}', 'w').write('{generation}')")
            told = await one.snapshot(repl, f"g{generation}")
            assert told.parent == f"g{generation - 1}"
    async with host(store) as last:
        child = await last.fork("g5")
        assert child.ask("trail") == "[0, 1, 2, 3, 4, 5]"
        files = child.ask("[open(f'/home/user/{n}').read() for n in range(1, 6)]")
        assert files == "['1', '2', '3', '4', '5']"
        middle = await last.fork("g2")
        assert middle.ask("trail, __import__('os').path.exists('/home/user/3')") == "([0, 1, 2], False)"


async def test_a_fork_of_a_fork_builds_upon_the_last_snapshot_with_a_name(store):
    async with host(store) as one:
        repl = await one.repl()
        repl.ask("x = 1")
        await one.snapshot(repl, "named")
        child = await one.fork("named")
        grandchild = await one.fork(child)
        grandchild.ask("x = 2")
        told = await one.snapshot(grandchild, "later")
        assert told.parent == "named"
        assert told.disk_bytes < (4 << 20)
    async with host(store) as two:
        assert (await two.fork("later")).ask("x") == "2"
        assert (await two.fork("named")).ask("x") == "1"


async def test_saved_snapshots_are_listed_and_their_names_are_taken(store):
    async with host(store) as one:
        repl = await one.repl()
        told = await one.snapshot(repl, "kept")
    async with host(store) as two:
        (listed,) = await two.cores.sandboxes.snapshots.all_told()
        assert listed == told
        repl = await two.repl()
        with pytest.raises(InvalidRequest) as caught:
            await two.snapshot(repl, "kept")
        assert (caught.value.code, caught.value.field) == ("name_taken", "name")
        with pytest.raises(InvalidRequest, match="there is no snapshot 'kepd'"):
            await two.fork("kepd")


async def test_a_snapshot_others_build_upon_is_not_removed(store):
    async with host(store) as one:
        repl = await one.repl()
        await one.snapshot(repl, "parent")
        await one.snapshot(await one.fork("parent"), "child")
        snapshots = one.cores.sandboxes.snapshots
        with pytest.raises(SnapshotError, match="'child'"):
            await snapshots.remove("parent")
        assert (await one.fork("parent")).ask("1 + 1") == "2"
        await snapshots.remove("child")
        assert (await snapshots.remove("parent")).name == "parent"
        assert await snapshots.all_told() == ()
        with pytest.raises(InvalidRequest):
            await one.fork("parent")


async def test_damage_on_the_disk_is_refused_before_anything_runs(store):
    async with host(store) as one:
        await one.snapshot(await one.repl(), "x")
    image = store / "snapshots/x/image"
    flip(image, 4096 * 17 + 5)
    async with host(store) as two:
        with pytest.raises(SnapshotDamaged, match="pages: block 16"):
            await two.fork("x")
        flip(image, 4096 * 17 + 5)
        assert (await two.fork("x")).ask("1") == "1"


def upgrade(program: Path) -> None:
    """Another version takes the program's name."""
    real = program.resolve()
    new = real.with_name("new")
    new.write_bytes(real.read_bytes() + b"upgraded")
    new.chmod(0o755)
    new.replace(real)


async def test_a_snapshot_of_files_that_the_host_has_changed_is_refused_by_their_name(store, tmp_path):
    # A root of one's own, because the host's programs cannot be changed here.
    root = tmp_path / "root"
    build_root(root, ["sh", "cat"])
    os.chmod(tmp_path, 0o755)
    async with host(store) as one:
        sandbox, channel = await one.cores.sandboxes.create(CreateRequest.of(["/bin/cat"], root=str(root)))
        repl = one._kept(sandbox, channel.take_ours())
        assert repl.ask("hello") == "hello"
        await one.snapshot(repl, "cat")
    async with host(store) as two:
        assert (await two.fork("cat")).ask("again") == "again"
    upgrade(root / "bin/cat")
    async with host(store) as three:
        with pytest.raises(SnapshotUnusable, match="cat") as caught:
            await three.fork("cat")
        assert caught.value.code == "root_changed"
