"""What is asked of a sandbox, command, terminal or snapshot that is not there, or has ended, is refused by
name: nothing is silently done to nobody."""

import pytest

import ramet
from ramet.errors import InvalidRequest, RametError, SandboxEnded
from ramet.models.operations import OPERATIONS
from system.sandbox._repl import PATIENCE_S

NONE = 987654321
"""No command's number."""
POINT = {"snapshot": "nowhere"}
# What a row of the table is to be asked about nothing; without those that are about nothing in particular.
OF_SANDBOX = {
    "sandbox.fork": {"children": [{}]},
    "sandbox.lane": {},
    "sandbox.snapshot": {"name": "unborn"},
    "sandbox.kill": {},
    "sandbox.attach": {},
    "sandbox.begin": {},
    "sandbox.rollback": {"snapshot": "point"},
    "sandbox.promote": {},
    "sandbox.commands": {},
}
OF_SNAPSHOT = {
    "sandbox.fork": {**POINT, "children": [{}]},
    "sandbox.lane": POINT,
    "snapshot.compact": {"name": "nowhere"},
    "snapshot.import": {"name": "nowhere", "store": "/a place of ours"},
    "snapshot.pack": {"name": "nowhere", "path": "/a place of ours/pack"},
    "snapshot.remove": {"name": "nowhere"},
}
OF_NEITHER = {
    *("run", "lane", "doctor", "status", "ping", "shutdown"),
    *("sandbox.create", "sandbox.list", "events", "lineage", "snapshot.list", "hand_over"),
    "snapshot.unpack",
}


@pytest.fixture(scope="module")
def base(runtime_directory):
    """A snapshot to go back to."""
    with ramet.Sandbox(command=["cat"]) as made:
        point = made.snapshot("point")
    yield point
    ramet.snapshots.remove(point)


@pytest.fixture(scope="module")
def living(runtime_directory):
    with ramet.Sandbox(command=["cat"], name="living") as made:
        yield made
    made.commands.forget()


@pytest.fixture(scope="module")
def dead(runtime_directory):
    with ramet.Sandbox(command=["cat"], name="ended") as made:
        made.kill()
        made.wait(PATIENCE_S)
        yield made


@pytest.fixture(scope="module")
def over(living):
    """A command that has ended."""
    command = living.commands.start("true")
    command.wait(PATIENCE_S)
    command.close()
    return command.id


def test_every_row_of_the_table_is_asked_about_what_is_not_there():
    assert {*OF_SANDBOX, *OF_SNAPSHOT} | OF_NEITHER == {*OPERATIONS}


@pytest.mark.parametrize("name", OF_SANDBOX)
def test_an_operation_on_no_sandbox_or_a_dead_one_is_refused_by_name(base, living, dead, name):
    with ramet.Client() as client:
        with pytest.raises(InvalidRequest) as unknown:
            client.ask(name, {"sandbox": "living-", **OF_SANDBOX[name]}, made=[])
        assert (unknown.value.code, unknown.value.field) == ("unknown_sandbox", "sandbox")
        assert "'living-'" in unknown.value.message
        assert "living" in (unknown.value.hint or "")
        if name == "sandbox.kill":  # what it asks for is so
            assert client.ask(name, {"sandbox": dead.id})["end"]
            return
        with pytest.raises(SandboxEnded) as ended:
            client.ask(name, {"sandbox": dead.id, **OF_SANDBOX[name]}, made=[])
        assert ended.value.reason == "killed"


@pytest.mark.parametrize("name", OF_SNAPSHOT)
def test_an_operation_on_no_snapshot_is_refused_by_name(living, tmp_path, name):
    ours = {"store": str(tmp_path)} if "store" in OF_SNAPSHOT[name] else {}
    with ramet.Client() as client, pytest.raises(InvalidRequest) as caught:
        client.ask(name, {**OF_SNAPSHOT[name], **ours}, made=[])
    assert (caught.value.code, caught.value.field) == ("unknown_snapshot", "snapshot")
    assert "'nowhere'" in caught.value.message


def test_a_sandbox_does_not_end_for_a_snapshot_that_is_not_there(living):
    with pytest.raises(InvalidRequest) as caught:
        living.rollback("nowhere")
    assert caught.value.code == "unknown_snapshot"
    assert living.running


def test_nothing_was_forked_from_a_sandbox_that_is_not_there(living):
    assert ramet.sandboxes.list(parent="living-") == ()
    assert ramet.sandboxes.lineage(parent="living-").nodes == ()
    with living.fork() as child:
        assert [one.id for one in ramet.sandboxes.list(parent="living")] == [child.id]


WRONG = {
    "timeout": (
        lambda sandbox: sandbox.wait("1s"),
        lambda sandbox: sandbox.stdout.read(timeout=float("nan")),
        lambda sandbox: sandbox.stdin.write("x", timeout="soon"),
        lambda sandbox: next(sandbox.files.watch("/tmp", timeout="soon")),
    ),
    "size": (
        lambda sandbox: sandbox.stdout.read(0),
        lambda sandbox: sandbox.stdout.readline(size=-1),
    ),
    "data": (lambda sandbox: sandbox.stdin.write(7),),
    "other": (lambda sandbox: sandbox.diff(7), lambda sandbox: sandbox.commit_to(7)),
    "fn": (lambda sandbox: ramet.rollouts(sandbox, 2, 7),),
    "encoding": (
        lambda _: ramet.Sandbox(command="true", encoding="klingon"),
        lambda sandbox: ramet.Sandbox.connect(sandbox.id, encoding="klingon"),
    ),
    "tools": (lambda _: ramet.Sandbox(command="true", tools="/opt"),),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_argument_is_refused_by_its_name_and_nothing_is_made(living, field):
    for call in WRONG[field]:
        with pytest.raises(InvalidRequest) as caught:
            call(living)
        assert caught.value.field == field
    assert [one.id for one in ramet.sandboxes.list()] == [living.id]


def test_a_wrong_argument_of_a_command_is_refused_by_its_name(living):
    with living.commands.start("cat", stdin=True) as command:
        for field, call in (
            ("timeout", lambda: command.wait("1s")),
            ("data", lambda: command.send(7)),
            ("size", lambda: command.stdout.read(0)),
            ("size", lambda: command.stdout.readline(size=0)),
        ):
            with pytest.raises(InvalidRequest) as caught:
                call()
            assert caught.value.field == field
    living.commands.forget()


ABOUT_COMMANDS = {
    "connect": lambda sandbox, number: sandbox.commands.connect(number).close(),
    "kill": lambda sandbox, number: sandbox.commands.kill(number),
    "send_signal": lambda sandbox, number: sandbox.commands.send_signal(number, "TERM"),
    "terminal": lambda sandbox, number: sandbox.terminals.connect(number).close(),
    "kill a terminal": lambda sandbox, number: sandbox.terminals.kill(number),
}
OF_THE_DEAD = {"send_signal": "sandbox_ended"}
"""The ends of commands outlive their sandbox: the rest is told about commands."""


def told_of(sandbox, name):
    with pytest.raises(RametError) as caught:
        ABOUT_COMMANDS[name](sandbox, NONE)
    return caught.value.code


@pytest.mark.parametrize("name", ABOUT_COMMANDS)
def test_what_is_asked_of_a_command_that_is_not_there_names_it(living, dead, name):
    with pytest.raises(InvalidRequest) as caught:
        ABOUT_COMMANDS[name](living, NONE)
    assert (caught.value.code, caught.value.field) == ("unknown_command", "command")
    assert str(NONE) in caught.value.message
    assert told_of(dead, name) == OF_THE_DEAD.get(name, "unknown_command")


@pytest.mark.parametrize("name", ABOUT_COMMANDS)
def test_a_client_that_has_no_lane_to_the_dead_is_told_the_same(runtime_directory, name):
    with ramet.Client() as client:
        with ramet.Sandbox(command=["cat"], client=client) as made:
            made.kill()
            made.wait(PATIENCE_S)
        assert told_of(made, name) == OF_THE_DEAD.get(name, "unknown_command")


def test_a_command_that_has_ended_takes_no_signal_and_no_input(living, over):
    again = living.commands.connect(over)
    for call, code in (
        (lambda: living.commands.send_signal(over, "TERM"), "command_ended"),
        (lambda: again.send_signal(9), "command_ended"),
        (lambda: again.send(b"more"), "stdin_closed"),
        (again.close_stdin, "stdin_closed"),
        (lambda: living.terminals.connect(over), "invalid_argument"),
    ):
        with pytest.raises(RametError) as caught:
            call()
        assert caught.value.code == code
    assert living.commands.kill(over) is None  # also of what it left behind, which may be nothing
    again.close()


def test_a_terminal_that_has_ended_takes_nothing(living):
    with living.terminals.create(["true"]) as terminal:
        terminal.wait(PATIENCE_S)
        for call in (
            lambda: terminal.resize(10, 20),
            lambda: terminal.write(b"x"),
            lambda: terminal.send_signal("TERM"),
        ):
            with pytest.raises(RametError) as caught:
                call()
            assert caught.value.code in {"stdin_closed", "command_ended"}


def test_ports_and_contexts_that_are_not_there_are_refused_by_name(living):
    with pytest.raises(RametError) as caught:
        living.ports.connect(1)
    assert caught.value.code == "connection_refused"
    with pytest.raises(InvalidRequest) as caught:
        living.run_code("1", context="elsewhere")
    assert caught.value.code == "no_kernel"
