"""Events of real sandboxes: told in their order, to whoever reads, and taken up where they were left."""

import json
import threading
import time

import pytest

import ramet
from ramet.cli.main import invoke
from ramet.client import Client, sandboxes
from ramet.errors import DaemonLost
from system._daemons import kill_hard, wait_gone
from system.sandbox._repl import PATIENCE_S

SLEEP = ["sleep", "10000"]


def until(stream, kind, sandbox=None):
    """The events up to that one."""
    found = []
    while not found or (found[-1].type, found[-1].sandbox) != (kind, sandbox):
        found.append(stream.next(PATIENCE_S))
    return found


class Reader:
    """A thread that waits for the next event; what it was refused for."""

    def __init__(self, own, stream):
        self.refused = []
        self._stream = stream
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        with Client(own.place, start=False) as other:
            end = time.monotonic() + PATIENCE_S
            while not other.status().active:
                assert time.monotonic() < end

    def _read(self):
        try:
            self._stream.next(PATIENCE_S)
        except DaemonLost as error:
            self.refused.append(error)

    def join(self):
        self._thread.join(PATIENCE_S)
        return self.refused


def test_the_life_of_a_sandbox_its_forks_and_its_states_is_told():
    stream = ramet.events()
    with ramet.Sandbox(command=SLEEP, name="told") as parent:
        child = parent.fork()
        again = parent.fork()  # this one past the daemon
        again.close()
        child.close()
        paused = parent.pause("told-state")
    with ramet.Sandbox.resume(paused) as resumed:
        assert resumed.name == "told"
    found = until(stream, "ended", resumed.id)
    told = [(one.type, one.sandbox or one.snapshot) for one in found]
    assert told.index(("created", parent.id)) == 0
    assert ("forked", child.id) in told[1:3]
    forked = next(one for one in found if one.sandbox == again.id)
    assert (forked.type, forked.parent) == ("forked", parent.id)
    kinds = [
        one.type for one in found if one.sandbox in {parent.id, resumed.id} or one.snapshot == "told-state"
    ]
    assert kinds == ["created", "paused", "ended", "resumed", "removed", "ended"]
    end = next(one for one in found if one.type == "ended" and one.sandbox == parent.id)
    assert (end.reason, end.name, end.note) == ("killed", "told", "by request")
    later = ramet.events(found[0].cursor, types=["resumed"], follow=False)
    assert [one.sandbox for one in later] == [resumed.id]


def test_commands_are_told_as_they_begin_and_end_each_with_its_cause():
    kinds = ["command_began", "command_ended", "ended"]
    with (
        ramet.Sandbox(command=SLEEP, name="busy") as one,
        ramet.events(types=kinds, sandbox=one.id) as stream,
    ):
        with ramet.events(types=["command_ended"], sandbox=one.id) as waiting:
            waiter = threading.Thread(target=lambda: seen.append(waiting.next(PATIENCE_S)))
            seen = []
            waiter.start()
            one.commands.run("exit 7")
            waiter.join(PATIENCE_S)
        timed = one.commands.start("sleep 1000", timeout=0.1)
        assert timed.wait(PATIENCE_S).reason == "timeout"
        left = one.commands.start("sleep 1000")
        one.kill()
        told = until(stream, "ended", one.id)
        numbers = [event.command for event in told]
        first = numbers[0]
        assert [(event.type, event.command, event.reason, event.exit_code) for event in told] == [
            ("command_began", first, None, None),
            ("command_ended", first, "exit", 7),
            ("command_began", timed.id, None, None),
            ("command_ended", timed.id, "timeout", 124),
            ("command_began", left.id, None, None),
            ("command_ended", left.id, "killed", 137),
            ("ended", None, "killed", 137),
        ]
        assert (told[0].note, told[0].name) == ("/bin/sh -c exit 7", "busy")
        assert [event.command for event in seen] == [first]
        for command in (timed, left):
            command.close()
        one.commands.forget()


def test_a_cause_of_death_is_told_and_one_sandbox_can_be_followed():
    with ramet.Sandbox(command="read _; exit 3") as one, ramet.Sandbox(command=SLEEP):
        stream = ramet.events("start", sandbox=one.id)
        one.stdin.write("\n")
        found = until(stream, "ended", one.id)
    assert [event.type for event in found] == ["created", "ended"]
    assert (found[-1].reason, found[-1].exit_code) == ("exit", 3)


async def test_an_asynchronous_reader_waits_beside_others():
    async with ramet.aevents(types=["created"]) as stream, ramet.AsyncSandbox(command=SLEEP) as sandbox:
        async for event in stream:
            assert event.sandbox == sandbox.id
            break
    assert stream.cursor == event.cursor


def test_readers_that_read_nothing_stall_nobody_and_a_wait_can_be_in_vain():
    stuck = [ramet.events() for _ in range(20)]
    with ramet.Sandbox(command=SLEEP) as sandbox, sandbox.fork(3):
        pass
    with pytest.raises(ramet.WaitTimeout):
        ramet.events().next(0.01)
    assert stuck[0].next(PATIENCE_S).sandbox == sandbox.id


def test_a_reader_hears_of_the_end_of_its_daemon_and_of_a_gap_after_it(own):
    client = own.client()
    with ramet.Sandbox(command=SLEEP, detach=True, client=client) as kept:
        daemon, _ = own.pids()
        stream = ramet.events("start", client=client)
        until(stream, "created", kept.id)
        reader = Reader(own, stream)
        kill_hard(daemon)
        assert reader.join()
    client.ping()
    found = [stream.next(PATIENCE_S) for _ in range(2)]
    assert [(one.type, one.sandbox, one.missed) for one in found] == [
        ("gap", None, None),
        ("adopted", kept.id, None),
    ]
    sandboxes.kill(kept.id, client=client)
    until(stream, "ended", kept.id)


def test_a_stopped_daemon_is_not_started_again_by_who_only_looks_on(own):
    reader = Reader(own, ramet.events(client=own.client()))
    with Client(own.place, start=False) as other:
        wait_gone(other.shutdown().pid)
    assert reader.join()
    assert own.entries() == set()


def test_the_command_line_prints_them_as_lines_of_json(capfd):
    with ramet.Sandbox(command=SLEEP) as sandbox:
        pass
    assert invoke(["events", "--since", "start", "--no-follow", "--json", "--sandbox", sandbox.id]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["created", "ended"]
    assert invoke(["events", "--since", lines[0]["cursor"], "--no-follow", "--sandbox", sandbox.id]) == 0
    assert "ended" in capfd.readouterr().out
