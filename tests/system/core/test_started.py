"""START, ATTACH, COMMANDS, INPUT, KILL_COMMAND: commands whose streams core keeps."""

import os
import select
import signal
from contextlib import suppress

import pytest

from ramet.models.commands import SandboxLane
from ramet.native import _protocol as p
from ramet.native import frames, started
from system.core import _payloads
from system.core._core import DEADLINE_S, Connection, until

KEPT = 1 << 20


class Keeping(Connection):
    """A lane whose answers bring descriptors, which are kept with them."""

    def start(self, sandbox, argv, **options):
        return self.answer(self.send(p.START, start_payload(sandbox, argv, **options)))

    def about(self, kind, sandbox, number=7, *more):
        payload = frames.u64(p.TAG_SANDBOX, sandbox) + frames.u32(p.TAG_COMMAND, number)
        return self.ask(kind, payload + b"".join(more))

    def infos(self, sandbox):
        answer = self.send(p.COMMANDS, frames.u64(p.TAG_SANDBOX, sandbox))
        frame = frames.receive(self.sock, self._buffer)
        assert frame.request == answer
        return {one.id: one for one in started.command_infos(frame.payload)}


def start_payload(sandbox, argv, *, number=7, flags=0, kept=KEPT, wall_s=0.0, **options):
    words = [argv] if isinstance(argv, str) else argv
    argv = ["/bin/sh", "-c", *words] if isinstance(argv, str) else argv
    parts = [
        frames.u64(p.TAG_SANDBOX, sandbox),
        frames.u64(p.TAG_LOG_BYTES, kept),
        frames.u32(p.TAG_FLAGS, flags),
        _payloads.command(argv, number=number, streams=(None, None, None), **options),
    ]
    if wall_s:
        parts.append(frames.u64(p.TAG_WALL_NS, int(wall_s * 1e9)))
    return b"".join(parts)


@pytest.fixture
def lane(shared):
    lane = shared.lane()
    lane.__class__ = Keeping
    yield lane
    lane.close()
    until(lambda: not shared.control.status().u32(p.TAG_LANES), "no lane")


@pytest.fixture
def sandbox(shared):
    number = shared.create()
    yield number
    if number in shared.control.listing():
        shared.kill(number)
    shared.control.ok(p.FORGET, frames.u64(p.TAG_SANDBOX, number))


def over(answer) -> started.Log:
    """The log of a command, once it has ended."""
    assert answer.kind == p.OK, answer
    log, *wakeup = answer.fds
    for fd in wakeup:
        os.set_blocking(fd, True)
        while select.select([fd], [], [], DEADLINE_S)[0] and os.read(fd, 4096):
            pass
        os.close(fd)
    return started.Log(log)


def result(answer):
    log = over(answer)
    try:
        return log.result(SandboxLane("", 0, {}, "/", single_uid=True), "utf-8")
    finally:
        log.close()


def test_the_end_of_a_command_is_one_answer_with_all_that_it_wrote(lane, sandbox):
    answer = lane.start(sandbox, "echo out; echo err >&2; exit 3", flags=p.START_AT_END)
    assert len(answer.fds) == 1
    found = result(answer)
    assert (found.exit_code, found.reason, found.stdout, found.stderr) == (3, "exit", "out\n", "err\n")
    assert not lane.infos(sandbox)


def test_a_log_holds_head_and_tail_and_exact_counts_whatever_the_volume(shared, lane, sandbox):
    before = shared.resident_kib()
    found = result(lane.start(sandbox, "seq 2000000; seq 3000000 >&2", kept=1000, flags=p.START_AT_END))
    out, err = found.out, found.err
    assert out.total == sum(len(str(n)) + 1 for n in range(1, 2000001))
    assert err.total == sum(len(str(n)) + 1 for n in range(1, 3000001))
    assert out.kept[:500] == b"".join(b"%d\n" % n for n in range(1, 200))[:500]
    assert out.kept[500:] == b"".join(b"%d\n" % n for n in range(1999000, 2000001))[-500:]
    assert (out.head, len(out.kept), len(err.kept)) == (500, 1000, 1000)
    assert shared.resident_kib() - before < 8192


def test_any_number_of_readers_each_read_every_byte_at_their_own_pace(shared, lane, sandbox):
    first = lane.start(sandbox, "read x; seq 20000; read x; seq 20000", flags=p.START_STDIN | p.START_CHANGES)
    expected = b"".join(b"%d\n" % n for n in range(1, 20001)) * 2
    others = [lane.about(p.ATTACH, sandbox, 7, frames.u32(p.TAG_FLAGS, p.START_CHANGES)) for _ in range(3)]
    feed = frames.raw(p.TAG_BYTES, b"\n")
    assert lane.about(p.INPUT, sandbox, 7, feed).kind == p.OK
    log = started.Log(first.fds[0])
    read = b""
    while len(read) < len(expected) // 2:
        assert select.select([first.fds[1]], [], [], DEADLINE_S)[0]
        os.read(first.fds[1], 4096)
        lost, data = log.read(0, len(read), 1000)
        assert not lost
        read += data
        while data:
            lost, data = log.read(0, len(read), 1000)
            read += data
    late = lane.about(p.ATTACH, sandbox)
    assert lane.about(p.INPUT, sandbox, 7, feed).kind == p.OK
    for answer in (first, late, *others):
        one = over(answer)
        assert one.read(0, 0, 1 << 20) == (0, expected)
        one.close()


def test_who_reads_nothing_stalls_neither_the_command_nor_another_reader(shared, lane, sandbox):
    stuck = lane.start(sandbox, "seq 1000000; echo last >&2", kept=4096, flags=p.START_CHANGES)
    found = result(lane.about(p.ATTACH, sandbox))
    assert (found.stderr, found.out.total) == ("last\n", 6888896)
    log = over(stuck)
    lost, data = log.read(0, 3000, 100)
    assert lost == found.out.total - (2048 + p.LOG_CHUNK) - 3000
    assert len(data) == 100
    log.close()


def test_a_reader_can_not_write_to_the_log(lane, sandbox):
    answer = lane.start(sandbox, "echo x", flags=p.START_AT_END)
    (log,) = answer.fds
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(log, b"y")
    if os.geteuid():
        with pytest.raises(PermissionError):
            os.open(f"/proc/self/fd/{log}", os.O_RDWR)
    os.close(log)


def test_a_command_goes_on_when_its_lane_ends_and_is_found_over_another(shared, sandbox):
    lane = shared.lane()
    lane.__class__ = Keeping
    request = lane.send(
        p.START, start_payload(sandbox, "read x; echo got $x; exit 9", flags=p.START_STDIN | p.START_AT_END)
    )
    assert request
    until(lambda: 7 in shared_infos(shared, sandbox), "the command")
    lane.close()
    other = shared.lane()
    other.__class__ = Keeping
    attached = other.about(p.ATTACH, sandbox)
    assert other.about(p.INPUT, sandbox, 7, frames.raw(p.TAG_BYTES, b"it\n")).kind == p.OK
    found = result(attached)
    assert (found.exit_code, found.stdout) == (9, "got it\n")
    again = result(other.about(p.ATTACH, sandbox))
    assert (again.exit_code, again.stdout) == (9, "got it\n")
    other.close()


def test_what_has_ended_is_forgotten_when_asked(lane, sandbox):
    result(lane.start(sandbox, "true"))
    running = lane.start(sandbox, "read x", number=8, flags=p.START_STDIN)
    assert set(lane.infos(sandbox)) == {7, 8}
    assert lane.ask(p.FORGET, frames.u64(p.TAG_SANDBOX, sandbox)).kind == p.OK
    assert set(lane.infos(sandbox)) == {8}
    assert lane.about(p.KILL_COMMAND, sandbox, 8).kind == p.OK
    assert result(running).reason == "killed"


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "answered"])
def test_what_others_still_write_to_is_forgotten_when_they_end(lane, sandbox, asked):
    line = "sleep 1007 & echo $!"
    if asked:
        found = result(lane.start(sandbox, line))
        assert lane.ask(p.FORGET, frames.u64(p.TAG_SANDBOX, sandbox)).kind == p.OK
    else:
        found = result(lane.start(sandbox, line, flags=p.START_AT_END))
    assert set(lane.infos(sandbox)) == {7}  # it would notice that its output has no reader
    assert result(lane.start(sandbox, f"kill {found.stdout.strip()}", number=8, flags=p.START_AT_END)).ok
    until(lambda: 7 not in lane.infos(sandbox), "nothing")


def shared_infos(shared, sandbox):
    frame = shared.control.ok(p.COMMANDS, frames.u64(p.TAG_SANDBOX, sandbox))
    payload = b"".join(frames.raw(tag, value) for tag, value in frame.found.items())
    return {one.id: one for one in started.command_infos(payload)}


ESCAPES = "setsid sleep 1001 & (setsid sh -c 'sleep 1002 & exec sleep 1003' &) ; sleep 1004"


def test_a_timeout_ends_every_process_of_the_command_and_of_no_other(shared, lane, sandbox):
    other = lane.start(sandbox, "setsid sleep 1005 & sleep 1006", number=8)
    until(lambda: len(shared.guests("sleep")) == 2, "the other command")
    found = result(lane.start(sandbox, ESCAPES, flags=p.START_AT_END, wall_s=0.3))
    assert (found.reason, found.exit_code, found.timed_out) == ("timeout", 124, True)
    until(lambda: len(shared.guests("sleep")) == 2, "the other command alone")
    assert lane.about(p.KILL_COMMAND, sandbox, 8).kind == p.OK
    assert result(other).reason == "killed"
    until(lambda: not shared.guests("sleep"), "nothing of either")


def test_a_kill_reaches_what_a_command_left_behind_when_it_ended(shared, lane, sandbox):
    ended = lane.start(sandbox, "setsid sleep 1001 & (sleep 1002 &) ; exit 0")
    assert result(ended).exit_code == 0
    until(lambda: len(shared.guests("sleep")) == 2, "what it left behind")
    assert lane.about(p.KILL_COMMAND, sandbox).kind == p.OK
    until(lambda: not shared.guests("sleep"), "nothing left behind")


def test_a_bomb_of_forks_is_killed(shared, lane, sandbox):
    bomb = "bomb() { bomb | bomb & }; ulimit -u 200; bomb; sleep 1000"
    found = result(lane.start(sandbox, ["bash", "-c", bomb], flags=p.START_AT_END, wall_s=0.5))
    assert found.reason == "timeout"
    until(lambda: not shared.guests("bash"), "no process of it")


def test_a_grandchild_that_holds_the_pipe_delays_nothing_and_is_not_hurt(shared, lane, sandbox):
    found = result(lane.start(sandbox, "(sleep 1000; echo late) & echo first", flags=p.START_AT_END))
    assert (found.exit_code, found.stdout) == (0, "first\n")
    until(lambda: len(shared.guests("sleep")) == 1, "the grandchild")
    assert lane.infos(sandbox)[7].status == "ended"


def test_input_is_answered_when_it_was_read_and_ends_when_told(lane, sandbox):
    reader = lane.start(sandbox, "sleep 1000", flags=p.START_STDIN)
    piece = frames.raw(p.TAG_BYTES, b"x" * p.INPUT_MAX)
    assert lane.about(p.INPUT, sandbox, 7, piece).kind == p.OK
    request = lane.send(p.INPUT, frames.u64(p.TAG_SANDBOX, sandbox) + frames.u32(p.TAG_COMMAND, 7) + piece)
    assert lane.about(p.INPUT, sandbox, 7, piece).error[0] == "stdin_busy"
    assert not lane._answers.get(request)
    assert lane.about(p.KILL_COMMAND, sandbox).kind == p.OK
    assert lane.answer(request).error[0] == "stdin_closed"
    assert result(reader).reason == "killed"
    counted = lane.start(sandbox, "wc -c", number=9, flags=p.START_STDIN)
    assert lane.about(p.INPUT, sandbox, 9, piece).kind == p.OK
    end = frames.u32(p.TAG_FLAGS, p.INPUT_END)
    assert lane.about(p.INPUT, sandbox, 9, piece, end).kind == p.OK
    assert lane.about(p.INPUT, sandbox, 9, piece).error[0] == "stdin_closed"
    assert result(counted).stdout.strip() == str(2 * p.INPUT_MAX)


def test_results_outlive_the_sandbox_with_its_cause(shared, lane):
    sandbox = shared.create()
    running = lane.start(sandbox, "echo so far; sleep 1000")
    done = lane.start(sandbox, "exit 4", number=8)
    assert result(done).exit_code == 4
    shared.kill(sandbox)
    assert result(running).reason == "killed"
    found = result(lane.about(p.ATTACH, sandbox))
    assert (found.reason, found.stdout) == ("killed", "so far\n")
    assert {n: one.exit_code for n, one in lane.infos(sandbox).items()} == {7: 137, 8: 4}
    assert lane.start(sandbox, "true").error[0] == "unknown_sandbox"


def test_a_signal_goes_to_the_group_of_the_command(lane, sandbox):
    trap = "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.01; done"
    running = lane.start(sandbox, trap, flags=p.START_CHANGES)
    log = started.Log(running.fds[0])
    until(lambda: log.read(0, 0, 100)[1] == b"ready\n", "a trap")
    assert lane.about(p.SIGNAL, sandbox, 7, frames.u32(p.TAG_SIGNAL, signal.SIGUSR1)).kind == p.OK
    found = result(running)
    assert (found.exit_code, found.stdout) == (5, "ready\ncaught\n")


def test_a_command_that_cannot_be_confined_is_refused_and_forgotten(lane, sandbox):
    code, step, *_ = lane.start(sandbox, ["true"], cwd="/nowhere").error
    assert (code, step) == ("isolation_failed", "working_directory")
    assert not lane.infos(sandbox)
    assert result(lane.start(sandbox, ["true"], flags=p.START_AT_END)).exit_code == 0


@pytest.mark.parametrize(
    "payload, field",
    [
        (start_payload(1, "true", number=0), "command"),
        (start_payload(1, "true", flags=64), "flags"),
        (start_payload(1, "true", flags=p.START_TERMINAL), "window"),
        (start_payload(1, "true") + frames.u32(p.TAG_WINDOW, 24 << 16 | 80), "window"),
        (start_payload(1, "true", flags=p.START_TERMINAL) + frames.u32(p.TAG_WINDOW, 80), "window"),
        (start_payload(1, "true", kept=p.LOG_BYTES_MAX + 1), "log_bytes"),
        (start_payload(1, "true") + frames.u32(p.TAG_STDIN, 0), "payload"),
        (start_payload(1, "true") + frames.u32(p.TAG_ROOT, 1), "payload"),
        (start_payload(1, "true") + frames.raw(p.TAG_RECORD, b"x" * (p.COMMAND_RECORD_MAX + 1)), "record"),
    ],
)
def test_a_start_with_a_wrong_attribute_is_refused_by_its_name(lane, payload, field):
    assert lane.ask(p.START, payload).error[3] == field


def test_two_commands_of_one_number_are_not_started(lane, sandbox):
    first = lane.start(sandbox, "read x", flags=p.START_STDIN)
    assert lane.start(sandbox, "true").error[3] == "command"
    lane.about(p.KILL_COMMAND, sandbox)
    assert result(first).reason == "killed"


def test_only_a_terminal_is_resized_and_its_input_has_no_end(lane, sandbox):
    window = frames.u32(p.TAG_WINDOW, 10 << 16 | 20)
    plain = lane.start(sandbox, "read x", flags=p.START_STDIN)
    assert lane.about(p.RESIZE, sandbox, 7, window).error[0] == "no_terminal"
    lane.about(p.KILL_COMMAND, sandbox)
    result(plain)
    payload = start_payload(sandbox, "stty size; read x; stty size", number=8, flags=p.START_TERMINAL)
    opened = lane.ask(p.START, payload + frames.u32(p.TAG_WINDOW, 24 << 16 | 80))
    assert lane.about(p.RESIZE, sandbox, 8, frames.u32(p.TAG_WINDOW, 24 << 16)).error[3] == "window"
    assert lane.about(p.RESIZE, sandbox, 8).error[3] == "payload"
    assert lane.about(p.INPUT, sandbox, 8, frames.u32(p.TAG_FLAGS, p.INPUT_END)).error[3] == "flags"
    log = started.Log(opened.fds[0])
    until(lambda: log.read(0, 0, 100)[1] == b"24 80\r\n", "the first size")
    assert lane.about(p.RESIZE, sandbox, 8, window).kind == p.OK
    assert lane.about(p.INPUT, sandbox, 8, frames.raw(p.TAG_BYTES, b"\n")).kind == p.OK
    assert result(opened).stdout.split("\r\n")[-2:] == ["10 20", ""]


@pytest.mark.parametrize("kind", [p.ATTACH, p.INPUT, p.KILL_COMMAND, p.RESIZE])
def test_a_command_that_is_not_there_is_refused_by_name(lane, sandbox, kind):
    more = (frames.u32(p.TAG_WINDOW, 1 << 16 | 1),) if kind == p.RESIZE else ()
    assert lane.about(kind, sandbox, 12345, *more).error[0] == "unknown_command"
    assert lane.ask(kind, b"").error[3] == "payload"


def test_the_ends_of_one_sandbox_take_no_room_of_another(shared, lane, sandbox):
    other = shared.create()
    result(lane.start(other, "echo kept", number=9))
    for number in range(100, 360):
        result(lane.start(sandbox, ["true"], number=number))
    assert sorted(lane.infos(sandbox)) == list(range(104, 360))
    assert result(lane.about(p.ATTACH, other, 9)).stdout == "kept\n"
    shared.kill(other)
    shared.control.ok(p.FORGET, frames.u64(p.TAG_SANDBOX, other))


def exiting(sandbox, number):
    line = f"exit {number % 256}"
    return start_payload(sandbox, line, number=100 + number, flags=p.START_AT_END)


def kept_open(shared):
    """How many logs and pipes core has open; the pool's descriptors come and go."""
    count = 0
    for name in os.listdir(f"/proc/{shared.pid}/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/{shared.pid}/fd/{name}")
            count += "ramet-log" in target or target.startswith("pipe:")
    return count


def test_two_hundred_commands_at_once_tell_their_own_codes_and_leave_no_descriptor(shared, lane, sandbox):
    result(lane.start(sandbox, "true", flags=p.START_AT_END))
    before = kept_open(shared)
    lanes = [shared.lane() for _ in range(8)]
    for one in lanes:
        one.__class__ = Keeping
    codes = {}
    for block in range(25):
        sent = [(one, one.send(p.START, exiting(sandbox, 8 * block + i))) for i, one in enumerate(lanes)]
        for i, (one, request) in enumerate(sent):
            codes[8 * block + i] = result(one.answer(request)).exit_code
    assert codes == {number: number % 256 for number in range(200)}
    for one in lanes:
        one.close()
    until(lambda: kept_open(shared) <= before, "as many logs and pipes as before")
