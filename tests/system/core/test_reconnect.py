"""The daemon goes and comes back: the grace period, and core.sock."""

import os
import signal
import struct

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _core
from system.core._core import Core

LONG_MS = 60000
SHORT_MS = 150


@pytest.fixture
def core(starter):
    return starter(listen=True, grace_ms=LONG_MS)


def standing(core: Core, *, owned: bool, record: bytes = b"") -> int:
    sandbox = core.create(owned=owned, record=record)
    assert core.spawn(sandbox, ["sleep", "1000"]).kind == p.OK
    return sandbox


def reconnect(core: Core) -> _core.Answer:
    """Hang up and come back as another daemon, which defines its own root."""
    core.control.close()
    core.control = core.connect()
    answer = core.control.hello()
    assert core.define().kind == p.OK
    return answer


def test_a_new_daemon_finds_the_same_core(core):
    answer = reconnect(core)
    assert answer.found.u64(p.TAG_CORE_ID) == core.ready.found.u64(p.TAG_CORE_ID)
    assert answer.found.u32(p.TAG_VERSION) == p.PROTOCOL_VERSION
    assert core.run(["true"]).answer.exit_code == 0


def test_what_the_daemon_owned_ends_at_once_and_the_rest_is_taken_over(core):
    owned = standing(core, owned=True)
    kept = standing(core, owned=False, record=b"taken over")
    core.control.close()
    _core.until(lambda: len(core.guests("sleep")) == 1, "the end of what was owned")
    core.control = core.connect()
    core.control.hello()
    assert core.control.listing() == {kept: b"taken over"}
    assert core.spawn(kept, ["true"], number=5).kind == p.OK
    assert core.control.event(p.EXITED, kept).found.u32(p.TAG_COMMAND) == 5
    assert owned not in core.control.listing()
    assert core.kill(kept).ended[0] == "killed"


def test_streams_that_are_held_are_there_for_the_next_daemon(core):
    kept, bare = standing(core, owned=False), standing(core, owned=False)
    pipes = [os.pipe() for _ in range(3)]
    about = frames.u64(p.TAG_SANDBOX, kept)
    assert core.control.ask(p.HOLD, about, [reader for reader, _ in pipes[:2]]).error[3] == "fds"
    assert core.control.ask(p.HOLD, about, [reader for reader, _ in pipes]).kind == p.OK
    assert core.control.ask(p.HOLD, frames.u64(p.TAG_SANDBOX, 12345)).error[0] == "unknown_sandbox"
    for reader, _ in pipes:
        os.close(reader)
    reconnect(core)
    held = core.control.ask(p.HELD, about).fds
    for (_, writer), reader in zip(pipes, held, strict=True):
        os.write(writer, b"x")
        assert os.read(reader, 2) == b"x"
        os.close(reader)
    assert core.control.ask(p.HELD, frames.u64(p.TAG_SANDBOX, bare)).fds == ()
    assert core.control.ask(p.HOLD, about).kind == p.OK
    assert core.control.ask(p.HELD, about).fds == ()
    for _, writer in pipes:
        with pytest.raises(BrokenPipeError):
            os.write(writer, b"x")
        os.close(writer)
    for one in (kept, bare):
        core.kill(one)


def test_roots_go_with_the_daemon_that_numbered_them_and_sandboxes_keep_theirs(core):
    kept = core.create(owned=False)
    core.control.close()
    core.control = core.connect()
    core.control.hello()
    assert core.control.status().u32(p.TAG_ROOTS) == 0
    assert core.run(["true"]).answer.error[0] == "unknown_root"
    assert core.spawn(kept, ["/bin/sh", "-c", "ls /usr >/dev/null"]).kind == p.OK
    assert core.control.event(p.EXITED, kept).exit_code == 0
    core.kill(kept)


def test_what_ended_in_between_is_told_after_the_greeting(core):
    sandbox = core.create(owned=False, wall_s=0.3)
    core.spawn(sandbox, ["sleep", "1000"])
    core.control.close()
    _core.until(lambda: not core.guests("sleep"), "the wall limit")
    core.control = core.connect()
    # The frame after HELLO's answer, not before it.
    request = core.control.send(p.HELLO)
    first, second = core.control.receive(), core.control.receive()
    assert first is not None
    assert second is not None
    assert (first.kind, first.request) == (p.OK, request)
    assert (second.kind, second.request) == (p.ENDED, 0)
    assert second.found.u64(p.TAG_SANDBOX) == sandbox
    assert second.ended[0] == "timeout"
    assert core.control.listing() == {}


def test_exits_of_commands_in_between_are_told_too(core):
    sandbox = core.create(owned=False)
    reader, writer = os.pipe()
    core.spawn(sandbox, ["cat"], [reader], number=3, streams=(0, None, None))
    os.close(reader)
    core.control.close()
    os.close(writer)
    _core.until(lambda: not core.guests("cat"), "the end of the command")
    core.control = core.connect()
    core.control.hello()
    event = core.control.event(p.EXITED, sandbox)
    assert (event.found.u32(p.TAG_COMMAND), event.exit_code) == (3, 0)


def test_the_next_daemon_gets_no_answer_to_a_request_of_the_last(core):
    """A run that nobody owns goes on; its end is an event, whose number is nobody's request."""
    running = core.start_run(["sleep", "1000"], owned=False)
    _core.until(lambda: len(core.guests("sleep")) == 1, "the command")
    # Core has heard of the first start by the end of a second run.
    assert core.run(["true"]).answer.exit_code == 0
    reconnect(core)
    assert list(core.control.listing()) == [running.sandbox]
    core.control.ok(p.KILL, frames.u64(p.TAG_SANDBOX, running.sandbox))
    assert core.control.event(p.ENDED, running.sandbox).request == 0
    running.forget()


def test_a_second_daemon_is_refused_while_the_first_is_there(core):
    second = core.connect()
    assert second.receive() is None
    second.close()
    assert core.run(["true"]).answer.exit_code == 0


def test_another_protocol_version_is_answered_naming_both(core):
    kept = standing(core, owned=False)
    core.control.close()
    stranger = core.connect()
    header = struct.pack("<IHHQIHH", p.FRAME_MAGIC, 999, p.HELLO, 31, 0, 0, 0)
    stranger.sock.send(header)
    answer = stranger.receive()
    assert answer is not None
    assert (answer.kind, answer.request) == (p.ERROR, 31)
    assert answer.found.text(p.TAG_CODE) == "version"
    text = answer.found.text(p.TAG_TEXT)
    assert "999" in text
    assert str(p.PROTOCOL_VERSION) in text
    assert stranger.receive() is None
    stranger.close()
    # One that speaks the same is still welcome, and is told nothing of that.
    core.control = core.connect()
    core.control.hello()
    assert list(core.control.listing()) == [kept]
    assert not core.control.events
    core.kill(kept)


def test_a_visitor_that_does_not_greet_is_shown_out(core):
    core.control.close()
    visitor = core.connect()
    visitor.send(p.STATUS)
    assert visitor.receive() is None
    visitor.close()
    core.control = core.connect()
    core.control.hello()


def test_a_visitor_that_says_nothing_gives_way_to_the_next(core):
    core.control.close()
    silent = core.connect()
    core.control = core.connect()
    core.control.hello()
    assert silent.receive() is None
    silent.close()
    assert core.control.listing() == {}


def test_when_the_grace_passes_core_goes_and_takes_everything_along(starter):
    core = starter(listen=True, grace_ms=SHORT_MS)
    for _ in range(3):
        standing(core, owned=False)
    assert core.socket_path.exists()
    core.control.close()
    assert core.wait() == 0
    assert not core.socket_path.exists()


def test_a_visitor_does_not_prolong_the_grace(starter):
    core = starter(listen=True, grace_ms=SHORT_MS)
    core.control.close()
    visitor = core.connect()
    assert visitor.receive() is None
    visitor.close()
    assert core.wait() == 0


def test_a_daemon_that_came_back_ends_the_grace(starter):
    core = starter(listen=True, grace_ms=SHORT_MS)
    for _ in range(3):
        reconnect(core)
    # Longer than the grace lasts; it is guests' time, nobody here sleeps.
    assert core.run(["sleep", str(SHORT_MS * 3 / 1000)]).answer.exit_code == 0


def test_a_shutdown_ends_everything_and_removes_the_socket(core):
    standing(core, owned=False)
    running = core.start_run(["sleep", "1000"])
    core.shut_down()
    running.forget()
    assert not core.socket_path.exists()


def test_a_termination_signal_is_a_shutdown(core):
    standing(core, owned=False)
    os.kill(core.pid, signal.SIGTERM)
    assert core.wait() == 0
    assert not core.socket_path.exists()


def test_without_a_listener_the_grace_only_passes(starter):
    core = starter(grace_ms=SHORT_MS)
    standing(core, owned=False)
    core.control.close()
    assert core.wait() == 0


def test_a_daemon_that_does_not_read_for_a_while_loses_nothing(core):
    runs = [core.start_run(["/bin/sh", "-c", f"exit {turn % 256}"]) for turn in range(1500)]
    for turn, running in enumerate(runs):
        assert core.finish(running).answer.exit_code == turn % 256
