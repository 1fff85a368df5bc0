"""Sandboxes that stay, over a core made of Python: what reaches core, what comes back, who ends what."""

import json
import os
import signal
import threading
import time

import pytest

import ramet
from _daemon import Daemon
from _fake_core import answer, ended, exited, failed, refused, sandbox_of, silence, snapshot_taken
from ramet.client import fork, sandboxes
from ramet.errors import (
    DaemonLost,
    ForkError,
    InvalidRequest,
    IsolationError,
    SandboxEnded,
    SnapshotError,
    Unforkable,
)
from ramet.models.creation import CreateRequest
from ramet.models.forks import ForkRequest
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.wire import messages, places


@pytest.fixture
def daemon(tmp_path):
    tmp_path.chmod(0o700)
    daemon = Daemon(tmp_path).start()
    assert daemon.word == b"ready"
    yield daemon
    daemon.stop()
    assert daemon.error is None
    assert "defect" not in daemon.log.names()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def client(daemon):
    with daemon.client() as client:
        yield client


@pytest.fixture
def make(client):
    made = []

    def call(*source, **options):
        if not source:
            options.setdefault("command", ["repl"])
        made.append(ramet.Sandbox(*source, client=client, **options))
        return made[-1]

    yield call
    for sandbox in made:
        sandbox.close()


def until(condition, seconds=5):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def values(frame):
    """The attributes of a frame, each tag with all its values."""
    found = {}
    for tag, value in frames.decode(frame.payload):
        found.setdefault(tag, []).append(value)
    return found


def number(frame, tag):
    return int.from_bytes(values(frame)[tag][0], "little")


def of_kind(core, kind):
    return [frame for frame in core.seen if frame.kind == kind]


# --- one sandbox -------------------------------------------------------------------------------------------


def test_a_sandbox_is_created_and_then_its_command_is_started(daemon, make):
    sandbox = make(command=["echo", "hi"], env={"A": "b"}, cwd="/tmp", limits={"disk": "64M"}, name="web")
    assert daemon.core.kinds() == [p.DEFINE_FILTER, p.DEFINE_ROOT, p.CREATE, p.SPAWN]
    create, spawn = map(values, daemon.core.seen[2:])
    assert int.from_bytes(create[p.TAG_DISK_BYTES][0], "little") == 64 << 20
    assert create[p.TAG_OWNED] == [b"\1\0\0\0"]
    assert create[p.TAG_WALL_NS] == [bytes(8)]
    assert p.TAG_ARG not in create
    assert spawn[p.TAG_ARG] == [b"echo", b"hi"]
    assert spawn[p.TAG_CWD] == [b"/tmp"]
    assert b"A=b" in spawn[p.TAG_ENV]
    assert [spawn[tag] for tag in (p.TAG_STDIN, p.TAG_STDOUT, p.TAG_STDERR)] == [
        [bytes([place, 0, 0, 0])] for place in range(3)
    ]
    assert sandbox.id == f"{sandbox_of(daemon.core.seen[2]):012x}"
    assert (sandbox.name, sandbox.pid, sandbox.info.command) == ("web", 2, ("echo", "hi"))
    assert sandbox.info.setup_ms == 0.9
    assert sandbox.running


def test_the_record_in_core_tells_what_another_daemon_must_know(daemon, make):
    make(command=["echo", "hi"], name="web", limits={"disk": "64M"})
    record = json.loads(values(of_kind(daemon.core, p.CREATE)[0])[p.TAG_RECORD][0])
    assert record["name"] == "web"
    assert record["ttl"] is None
    assert record["limits"] == {"disk": 64 << 20}
    assert record["origin"]["command"] == ["echo", "hi"]


@pytest.mark.parametrize("arguments", [{"timeout": 2.5}, {"limits": {"wall": 2.5}}])
def test_a_sandbox_has_a_deadline_only_when_one_is_asked_for(daemon, make, arguments):
    make(**arguments)
    assert number(of_kind(daemon.core, p.CREATE)[0], p.TAG_WALL_NS) == 2_500_000_000


def test_its_result_is_the_commands_own_and_is_told_when_no_process_is_left(daemon, make):
    sandbox = make()
    number = sandbox_of(of_kind(daemon.core, p.CREATE)[0])
    daemon.core.on[p.KILL] = silence
    daemon.core.send(p.EXITED, 0, exited(number, 3 << 8))
    daemon.core.wait_for(p.KILL)
    with pytest.raises(ramet.WaitTimeout):
        sandbox.wait(timeout=0.05)
    killed = ended(signal.SIGKILL, p.REASON_KILLED, frames.u64(p.TAG_SANDBOX, number))
    daemon.core.send(p.ENDED, 0, killed)
    result = sandbox.wait(timeout=5)
    assert (result.exit_code, result.reason, result.usage.disk_bytes) == (3, "exit", 4096)
    assert not sandbox.running
    assert sandbox.wait() is result


@pytest.mark.parametrize(
    "status, reason, expected",
    [
        (signal.SIGKILL, p.REASON_TIMEOUT, (124, "timeout", None)),
        (signal.SIGKILL, p.REASON_LOST, (137, "lost", None)),
    ],
)
def test_who_ended_a_sandbox_is_told_apart(daemon, make, status, reason, expected):
    sandbox = make()
    number = sandbox_of(of_kind(daemon.core, p.CREATE)[0])
    daemon.core.send(p.ENDED, 0, ended(status, reason, frames.u64(p.TAG_SANDBOX, number)))
    result = sandbox.wait(timeout=5)
    assert (result.exit_code, result.reason, result.signal) == expected


def test_a_command_that_a_signal_ended_is_told_by_its_name(daemon, make):
    sandbox = make()
    daemon.core.send(p.EXITED, 0, exited(sandbox_of(of_kind(daemon.core, p.CREATE)[0]), signal.SIGSEGV))
    result = sandbox.wait(timeout=5)
    assert (result.exit_code, result.reason, result.signal) == (139, "signal", "SIGSEGV")


def test_a_killed_sandbox_tells_that_it_was_killed(daemon, make):
    sandbox = make()
    sandbox.kill()
    assert sandbox.wait().reason == "killed"
    assert sandbox.info.note == "by request"


def test_leaving_the_context_ends_the_sandbox(daemon, make):
    with make():
        assert daemon.core.standing
    assert not daemon.core.standing


def test_a_sandbox_ends_when_nobody_holds_it_any_more(daemon, client):
    ramet.Sandbox(command=["repl"], client=client)
    until(lambda: not daemon.core.standing)


def test_a_step_that_fails_is_told_and_nothing_is_left(daemon, make):
    make()
    daemon.core.on[p.SPAWN] = lambda core, frame: core.send(p.ERROR, frame.request, failed(p.STEP_EXEC, 1))
    before = set(daemon.core.standing)
    with pytest.raises(IsolationError) as caught:
        make()
    assert caught.value.step == "exec"
    until(lambda: daemon.core.standing == before)


def test_a_directory_that_the_sandbox_lacks_is_a_wrong_argument(daemon, make):
    make()
    daemon.core.on[p.SPAWN] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_WORKING_DIRECTORY, 2)
    )
    with pytest.raises(InvalidRequest) as caught:
        make(cwd="/nowhere")
    assert caught.value.field == "cwd"


def test_a_sandbox_whose_time_is_up_before_it_stands_is_told_as_that(daemon, make):
    make()
    daemon.core.on[p.CREATE] = lambda core, frame: core.send(
        p.ENDED,
        frame.request,
        ended(signal.SIGKILL, p.REASON_TIMEOUT, frames.u64(p.TAG_SANDBOX, sandbox_of(frame))),
    )
    with pytest.raises(SandboxEnded) as caught:
        make(timeout=0.1)
    assert caught.value.reason == "timeout"


def test_the_end_of_core_is_the_end_of_its_sandboxes_but_not_of_snapshots(daemon, client, make):
    sandbox = make()
    point = sandbox.snapshot("point")
    daemon.core.close()
    assert sandbox.wait(timeout=5).reason == "lost"
    assert ramet.snapshots.list(client=client) == (point,)
    with pytest.raises(SandboxEnded, match="lost"):
        sandbox.fork()
    with make("point") as first, make("point") as second:
        # The next core has it from the disk, once.
        assert daemon.core.kinds().count(p.LOAD_SNAPSHOT) == 1
        assert first.info.snapshot == second.info.snapshot == "point"
        assert first.info.command == ("repl",)


def test_what_core_does_not_export_is_not_kept_and_its_name_is_free(daemon, client, make):
    sandbox = make()
    daemon.core.on[p.EXPORT_SNAPSHOT] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_EXPORT, 12)
    )
    with pytest.raises(IsolationError, match="export"):
        sandbox.snapshot("point")
    daemon.core.wait_for(p.DROP_SNAPSHOT)
    assert ramet.snapshots.list(client=client) == ()
    daemon.core.on[p.EXPORT_SNAPSHOT] = answer
    assert sandbox.snapshot("point").durable


def test_a_snapshot_that_others_build_upon_is_not_removed(client, make):
    make().snapshot("parent")
    with make("parent") as child:
        assert child.snapshot("child").parent == "parent"
        # A fork of a fork has the same ancestor on disk.
        with child.fork() as grandchild:
            assert grandchild.snapshot("grandchild").parent == "parent"
    with pytest.raises(SnapshotError) as caught:
        ramet.snapshots.remove("parent", client=client)
    assert caught.value.code == "snapshot_in_use"
    assert "'child', 'grandchild'" in caught.value.message
    for name in ("child", "grandchild", "parent"):
        ramet.snapshots.remove(name, client=client)


def test_the_end_of_the_daemon_ends_its_sandboxes(tmp_path):
    tmp_path.chmod(0o700)
    daemon = Daemon(tmp_path).start()
    with daemon.client() as client:
        sandbox = ramet.Sandbox(command=["repl"], client=client)
        daemon.stop()
        result = sandbox.wait(timeout=5)
        assert (result.reason, sandbox.info.note) == ("killed", "the daemon ended")
        sandbox.close()


def test_a_daemon_with_a_sandbox_is_not_idle(tmp_path):
    tmp_path.chmod(0o700)
    daemon = Daemon(tmp_path, idle_s=0.2).start()
    with daemon.client() as client, ramet.Sandbox(command=["repl"], client=client):
        assert not daemon.ended.wait(0.6)
    assert daemon.ended.wait(10)
    daemon.stop()


@pytest.mark.parametrize(
    "field, arguments",
    [
        ("command", {}),
        ("command", {"command": []}),
        ("command", {"source": "point", "command": ["x"]}),
        ("command", {"command": ["x"], "kernel": "python"}),
        ("kernel", {"kernel": "pythonn"}),
        ("kernel", {"source": "point", "kernel": "python"}),
        ("seed", {"source": "point", "seed": -1}),
        ("seed", {"command": ["x"], "seed": 1}),
        ("env", {"source": "point", "env": {"A": 1}}),
        ("metadata", {"command": ["x"], "metadata": "x"}),
        ("cwd", {"source": "point", "cwd": "/"}),
        ("root", {"source": "point", "root": "/"}),
        ("limits.nothing", {"source": "point", "limits": {"nothing": 3}}),
        ("snapshot", {"source": "no name"}),
        ("name", {"command": ["x"], "name": "no name"}),
        ("ttl", {"command": ["x"], "ttl": 5}),
        ("ttl", {"command": ["x"], "ttl": 0.5, "detach": True}),
        ("detach", {"command": ["x"], "detach": "yes"}),
        ("timeout", {"command": ["x"], "timeout": 0}),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_started(tmp_path, field, arguments):
    with ramet.Client(str(tmp_path), start=False) as nobody, pytest.raises(InvalidRequest) as caught:
        ramet.Sandbox(client=nobody, **arguments)
    assert caught.value.field == field


# --- forks -------------------------------------------------------------------------------------------------


def test_a_fork_is_a_snapshot_children_of_it_and_its_end(daemon, make):
    parent = make(limits={"disk": "64M"})
    begun = len(daemon.core.seen)
    with parent.fork(3) as children:
        until(lambda: p.DROP_SNAPSHOT in daemon.core.kinds())
        seen = daemon.core.seen[begun:]
        assert [frame.kind for frame in seen] == [p.SNAPSHOT, *[p.CREATE] * 3, p.DROP_SNAPSHOT]
        point = number(seen[0], p.TAG_SNAPSHOT)
        for frame in seen[1:4]:
            found = values(frame)
            assert number(frame, p.TAG_SNAPSHOT) == point
            assert number(frame, p.TAG_DISK_BYTES) == 64 << 20
            assert found[p.TAG_COMMAND] == [b"\1\0\0\0"]
            assert p.TAG_ROOT not in found
            assert p.TAG_FILTER not in found
        assert [child.info.parent for child in children] == [parent.id] * 3
        assert len({child.id for child in children} | {parent.id}) == 4
        assert {(child.pid, child.info.pause_ms, child.info.by_twin) for child in children} == {
            (2, 1.5, True)
        }
        assert {child.info.ways for child in children} == {
            ((2, "python", "twin", None, 0), (3, "a name", "copied", "has_parent", 8192))
        }
    assert daemon.core.standing == {int(parent.id, 16)}


def test_without_a_number_a_fork_is_one_sandbox(make):
    with make().fork() as child:
        assert isinstance(child, ramet.Sandbox)


def test_children_are_made_at_once_and_come_in_order(daemon, make):
    parent = make()
    waiting = []

    def hold(core, frame):
        waiting.append(frame)
        if len(waiting) == 20:
            for one in reversed(waiting):
                answer(core, one)

    daemon.core.on[p.CREATE] = hold
    with parent.fork(20) as children:
        assert [int(child.id, 16) for child in children] == [sandbox_of(frame) for frame in waiting]


def test_limits_and_a_name_can_be_a_childs_own(daemon, make):
    parent = make(limits={"disk": "64M", "processes": 9})
    with parent.fork(limits={"disk": "1M"}, timeout=3, name="kid") as child:
        create = of_kind(daemon.core, p.CREATE)[-1]
        assert number(create, p.TAG_DISK_BYTES) == 1 << 20
        assert number(create, p.TAG_PROCESSES) == 9
        assert number(create, p.TAG_WALL_NS) == 3_000_000_000
        assert child.name == "kid"


def break_child(which, error):
    """CREATE of the child with this number fails."""
    count = iter(range(1000))

    def handle(core, frame):
        if next(count) in which:
            core.send(p.ERROR, frame.request, error)
        else:
            answer(core, frame)

    return handle


def test_each_child_that_cannot_be_made_has_its_error_and_the_others_end(daemon, make):
    parent = make()
    daemon.core.on[p.CREATE] = break_child({1, 3}, failed(p.STEP_CLONE_INIT, 11))
    with pytest.raises(ForkError) as caught:
        parent.fork(5)
    error = caught.value
    assert sorted(error.errors) == [1, 3]
    assert {(one.step, one.errno) for one in error.errors.values()} == {("clone_init", 11)}
    assert (error.step, error.errno, error.code) == ("clone_init", 11, "fork_failed")
    assert error.sandboxes == []
    assert "2 of 5" in error.message
    assert daemon.core.standing == {int(parent.id, 16)}
    assert daemon.core.wait_for(p.DROP_SNAPSHOT)


def test_survivors_are_kept_when_asked_for(daemon, make):
    parent = make()
    daemon.core.on[p.CREATE] = break_child({0}, failed(p.STEP_CLONE_INIT, 11))
    with pytest.raises(ForkError) as caught:
        parent.fork(3, on_error="keep")
    assert len(caught.value.sandboxes) == 2
    assert all(child.running for child in caught.value.sandboxes)
    for child in caught.value.sandboxes:
        child.close()


def test_a_single_fork_that_fails_is_a_fork_error_too(daemon, make):
    parent = make()
    daemon.core.on[p.CREATE] = break_child({0}, failed(p.STEP_CHILD_CLONE, 11))
    with pytest.raises(ForkError, match="1 of 1") as caught:
        parent.fork()
    assert caught.value.step == "child_clone"


def test_what_cannot_be_forked_is_named_with_its_place(daemon, make):
    parent = make(name="web")
    text = "pid 2 python3: fd 9 is a netlink socket"
    daemon.core.on[p.SNAPSHOT] = lambda core, frame: core.send(
        p.ERROR, frame.request, refused("unforkable", text)
    )
    with pytest.raises(Unforkable) as caught:
        parent.fork(3)
    error = caught.value
    assert (error.pid, error.process, error.what) == (2, "python3", "fd 9 is a netlink socket")
    assert error.code == "unforkable"
    assert "web" in error.message
    assert text in error.message
    assert len(of_kind(daemon.core, p.CREATE)) == 1
    assert parent.running
    with pytest.raises(Unforkable):
        parent.snapshot("point")


def test_a_step_of_a_snapshot_that_fails_is_told(daemon, make):
    parent = make()
    daemon.core.on[p.SNAPSHOT] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_FROZEN_TWIN, 12)
    )
    with pytest.raises(IsolationError) as caught:
        parent.fork()
    assert (caught.value.step, caught.value.errno) == ("frozen_twin", 12)


@pytest.mark.parametrize("n", [0, -1, 1001, 10**30, 2.0, "2", True])
def test_a_number_of_children_out_of_range_is_refused(daemon, make, n):
    parent = make()
    with pytest.raises(InvalidRequest) as caught:
        parent.fork(n)
    assert caught.value.field == "n"
    assert p.SNAPSHOT not in daemon.core.kinds()


def test_other_wrong_arguments_of_a_fork_are_named(make):
    parent = make()
    for field, arguments in (
        ("on_error", {"n": 2, "on_error": "ignore"}),
        ("name", {"n": 2, "name": "kid"}),
        ("limits.open_files", {"limits": {"open_files": 5000}}),
        ("limits.memory", {"limits": {"memory": 9}}),
        ("limits", {"limits": 3}),
        ("ttl", {"ttl": 9}),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parent.fork(**arguments)
        assert caught.value.field == field


def test_a_fork_of_the_dead_tells_of_what_they_died(daemon, client, make):
    parent = make(name="web")
    daemon.core.send(p.EXITED, 0, exited(int(parent.id, 16), 3 << 8))
    parent.wait(timeout=5)
    for call in (parent.fork, lambda: parent.snapshot("x"), lambda: fork(sandbox="web", client=client)):
        with pytest.raises(SandboxEnded, match="exit code 3") as caught:
            call()
        assert (caught.value.sandbox, caught.value.reason, caught.value.exit_code) == (parent.id, "exit", 3)


def test_a_sandbox_that_is_killed_while_it_is_forked_tells_that(daemon, client, make):
    parent = make()

    def handle(core, frame):
        threading.Thread(target=sandboxes.kill, args=(parent.id,), kwargs={"client": client}).start()
        core.on[p.KILL] = lambda core, kill: (
            core.send(p.ERROR, frame.request, failed(p.STEP_SEIZE, 3)),
            answer(core, kill),
        )

    daemon.core.on[p.SNAPSHOT] = handle
    with pytest.raises(SandboxEnded, match="killed"):
        parent.fork(2)


def test_forks_of_one_sandbox_come_one_after_the_other(daemon, client, make):
    parent = make()
    held = []
    daemon.core.on[p.SNAPSHOT] = lambda core, frame: held.append(frame)
    made = []
    # Names are the daemon's to keep, so neither goes past it.
    forks = [lambda name=name: made.extend(parent.fork(1, names=[name])) for name in ("one", "two")]
    threads = [threading.Thread(target=fork) for fork in forks]
    for thread in threads:
        thread.start()
    until(lambda: held)
    daemon.core.on[p.SNAPSHOT] = answer
    daemon.core.send(p.OK, held[0].request, snapshot_taken())
    for thread in threads:
        thread.join(5)
    assert len(held) == 1
    for child in made:
        child.close()


def test_a_snapshot_waits_for_one_that_a_client_takes_past_the_daemon(daemon, make):
    parent = make()
    refusals = []

    def refuse(core, frame):
        refusals.append(frame)
        if len(refusals) == 3:
            core.on[p.SNAPSHOT] = answer
        core.send(p.ERROR, frame.request, refused("capturing", "a snapshot of this sandbox is being taken"))

    daemon.core.on[p.SNAPSHOT] = refuse
    with parent.fork() as child:
        assert child.info.parent == parent.id
    assert len(refusals) == 3


def test_a_client_that_goes_while_the_snapshot_is_taken_gets_no_children(daemon, make):
    parent = make()
    held = []
    daemon.core.on[p.SNAPSHOT] = lambda core, frame: held.append(frame)
    sock = places.connect(daemon.place)
    messages.send(sock, {"op": "sandbox.fork", "args": ForkRequest.of(sandbox=parent.id, n=3).to_wire()})
    until(lambda: held)
    sock.close()
    connections = daemon.client()
    until(lambda: connections.status().connections <= 2)
    connections.close()
    daemon.core.send(p.OK, held[0].request, snapshot_taken())
    daemon.core.wait_for(p.DROP_SNAPSHOT)
    assert len(of_kind(daemon.core, p.CREATE)) == 1


def test_children_whose_client_never_read_of_them_end(daemon, make):
    parent = make()
    sock = places.connect(daemon.place)
    messages.send(sock, {"op": "sandbox.fork", "args": ForkRequest.of(sandbox=parent.id, n=3).to_wire()})
    until(lambda: len(of_kind(daemon.core, p.CREATE)) == 4)
    sock.close()
    until(lambda: daemon.core.standing == {int(parent.id, 16)})


def test_a_client_that_reads_late_gets_all_of_hundreds_of_children(daemon, make):
    parent = make()
    sock = places.connect(daemon.place)
    messages.send(sock, {"op": "sandbox.fork", "args": ForkRequest.of(sandbox=parent.id, n=300).to_wire()})
    until(lambda: len(of_kind(daemon.core, p.CREATE)) == 301)
    numbers = []
    while "made" in (received := messages.receive(sock))[0]:
        numbers.append(received[0]["made"])
        assert len(received[1]) == 4
        for descriptor in received[1]:
            os.close(descriptor)
    assert sorted(numbers) == list(range(300))
    assert received[0]["ok"]["errors"] == []
    sock.close()
    until(lambda: daemon.core.standing == {int(parent.id, 16)})


# --- snapshots ---------------------------------------------------------------------------------------------


def test_a_snapshot_is_kept_by_name_and_forked_later(daemon, client, make):
    parent = make(limits={"disk": "64M"})
    point = parent.snapshot("before-risk")
    assert (point.name, point.sandbox, point.pause_ms) == ("before-risk", parent.id, 1.5)
    assert (point.memory_bytes, point.file_bytes, point.processes) == (5_000_000, 7000, 1)
    assert (point.capture_ms, point.stem_ms, point.by_twin) == (4.0, 2.0, True)
    assert [(way.pid, way.way, way.why) for way in point.ways] == [
        (2, "twin", None),
        (3, "copied", "has_parent"),
    ]
    assert point.durable
    assert ramet.snapshots.list(client=client) == (point,)
    parent.close()
    for source in ("before-risk", point):
        with make(source) as child:
            assert (child.info.snapshot, child.info.parent) == ("before-risk", parent.id)
            assert child.info.pause_ms is None
            create = of_kind(daemon.core, p.CREATE)[-1]
            assert number(create, p.TAG_SNAPSHOT) == number(
                of_kind(daemon.core, p.SNAPSHOT)[0], p.TAG_SNAPSHOT
            )
            assert number(create, p.TAG_DISK_BYTES) == 64 << 20
    assert p.DROP_SNAPSHOT not in daemon.core.kinds()


def test_a_removed_snapshot_is_dropped(daemon, client, make):
    parent = make()
    point = parent.snapshot("point")
    assert ramet.snapshots.remove(point, client=client) == point
    daemon.core.wait_for(p.DROP_SNAPSHOT)
    assert ramet.snapshots.list(client=client) == ()
    parent.snapshot("point")


def test_a_snapshot_that_is_being_forked_is_dropped_after_that(daemon, client, make):
    parent = make()
    parent.snapshot("point")
    held = []
    daemon.core.on[p.CREATE] = lambda core, frame: held.append(frame)
    made = []
    thread = threading.Thread(target=lambda: made.append(make("point")))
    thread.start()
    until(lambda: held)
    ramet.snapshots.remove("point", client=client)
    assert p.DROP_SNAPSHOT not in daemon.core.kinds()
    answer(daemon.core, held[0])
    thread.join(5)
    daemon.core.wait_for(p.DROP_SNAPSHOT)
    assert made[0].running


def test_an_unknown_snapshot_is_told_with_names_like_it(client, make):
    parent = make()
    parent.snapshot("before-risk")
    calls = (
        lambda: make("before_risk"),
        lambda: ramet.snapshots.remove("before_risk", client=client),
        lambda: fork(snapshot="before_risk", client=client),
    )
    for call in calls:
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert (caught.value.code, caught.value.field) == ("unknown_snapshot", "snapshot")
        assert "before-risk" in caught.value.hint


def test_an_unknown_sandbox_is_told_with_names_like_it(client, make):
    make(name="worker-1")
    for call in (sandboxes.kill, lambda name, client: fork(sandbox=name, client=client)):
        with pytest.raises(InvalidRequest) as caught:
            call("worker-2", client=client)
        assert (caught.value.code, caught.value.field) == ("unknown_sandbox", "sandbox")
        assert "worker-1" in caught.value.hint


def test_a_name_is_taken_once(daemon, make):
    parent = make(name="web")
    parent.snapshot("point")
    for call in (
        lambda: make(name="web"),
        lambda: make("point", name="web"),
        lambda: parent.fork(name="web"),
        lambda: parent.snapshot("point"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert (caught.value.code, caught.value.field) == ("name_taken", "name")
    parent.close()
    make(name="web")


def test_the_name_of_a_snapshot_that_failed_is_free(daemon, make):
    parent = make()
    daemon.core.on[p.SNAPSHOT] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_SEIZE, 3)
    )
    with pytest.raises(IsolationError):
        parent.snapshot("point")
    daemon.core.on[p.SNAPSHOT] = answer
    parent.snapshot("point")


# --- detached sandboxes ------------------------------------------------------------------------------------


def test_a_detached_sandbox_stays_when_its_owner_goes(daemon, client, make):
    sandbox = make(detach=True)
    assert number(of_kind(daemon.core, p.CREATE)[0], p.TAG_OWNED) == 0
    sandbox.close()
    assert [one.id for one in sandboxes.list(client=client)] == [sandbox.id]
    assert sandboxes.list(client=client)[0].ttl == 300
    info = sandboxes.kill(sandbox.id, client=client)
    assert (info.status, info.end.reason, info.note) == ("ended", "killed", "by request")
    assert not daemon.core.standing


def test_the_record_of_a_detached_sandbox_holds_the_pid(daemon, make):
    make(detach=True)
    daemon.core.wait_for(p.RECORD)
    record = json.loads(values(of_kind(daemon.core, p.RECORD)[0])[p.TAG_RECORD][0])
    assert record["origin"]["pid"] == 2


def test_children_can_be_detached_whatever_the_parent_is(daemon, client, make):
    with make() as parent, parent.fork(2, detach=True, ttl=60) as children:
        ids = [child.id for child in children]
    assert sorted(one.id for one in sandboxes.list(client=client)) == sorted(ids)
    for one in ids:
        sandboxes.kill(one, client=client)


def test_ended_sandboxes_are_remembered_for_who_asks(daemon, client, make):
    with make(name="web") as sandbox:
        pass
    assert sandboxes.list(client=client) == ()
    (info,) = sandboxes.list(ended=True, client=client)
    assert (info.id, info.name, info.status, info.end.reason) == (sandbox.id, "web", "ended", "killed")
    assert sandboxes.kill("web", client=client) == info


def test_a_create_whose_client_went_leaves_nothing_even_detached(daemon, make):
    make()
    held = []
    daemon.core.on[p.SPAWN] = lambda core, frame: held.append(frame)
    sock = places.connect(daemon.place)
    messages.send(sock, {"op": "sandbox.create", "args": CreateRequest.of(["x"], detach=True).to_wire()})
    until(lambda: held)
    sock.close()
    with daemon.client() as client:
        until(lambda: client.status().connections <= 2)
    answer(daemon.core, held[0])
    until(lambda: len(daemon.core.standing) == 1)


def test_a_core_that_ends_while_it_takes_a_snapshot_takes_the_sandbox_along(daemon, make):
    parent = make()
    core = daemon.core
    core.on[p.SNAPSHOT] = silence
    thread = threading.Thread(target=lambda: (core.wait_for(p.SNAPSHOT), core.close()))
    thread.start()
    with pytest.raises((DaemonLost, SandboxEnded)):
        parent.fork()
    thread.join(5)
    assert parent.wait(timeout=5).reason == "lost"
