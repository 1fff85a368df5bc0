"""The deadline ends everything of a command, and tells itself apart from every other end.

Times are compared only with what would be wrong by orders: a machine under load delays all of this.
"""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import secrets
import signal
import threading
import time

import pytest

import ramet
from system._daemons import marked

LATE_S = 8.0
"""A run of 0.5 s that takes longer has waited for something it must not wait for."""


@pytest.fixture
def mark():
    """A word for the command line, by which the host finds processes of the sandbox."""
    return f"mark-{secrets.token_hex(6)}"


def timed(*words, **options):
    """The result, and the seconds it took."""
    begin = time.monotonic()
    result = ramet.run(*words, **options)
    return result, time.monotonic() - begin


def assert_timed_out(result):
    assert (result.exit_code, result.reason, result.timed_out, result.limit) == (124, "timeout", True, "wall")
    assert result.signal is None
    assert not result.ok


def test_an_endless_loop_is_ended_at_its_deadline():
    result, took = timed("while :; do :; done", timeout=0.5)
    assert_timed_out(result)
    assert 500 <= result.duration_ms < LATE_S * 1000
    assert 0.5 <= took < LATE_S


PROCESSES = {
    "in the background": 'sh -c "sleep 1000; :" {mark} & sleep 1000',
    "in another session": 'setsid sh -c "sleep 1000; :" {mark} & sleep 1000',
    "forked twice": '(setsid sh -c "sleep 1000; :" {mark} &) ; sleep 1000',
    "ignoring every signal": "sh -c \"trap '' TERM INT HUP QUIT ALRM USR1 USR2; while :; do sleep 1000; done\" {mark}",
    "stopped": 'sh -c "kill -STOP \\$\\$; :" {mark} & sleep 1000',
    "stopped itself": 'sh -c "kill -STOP 1; kill -STOP 0" {mark}',
    "in a pipeline": 'yes {mark} | sh -c "sleep 1000; :" {mark} | cat',
    "in its own process group": 'set -m; sh -c "sleep 1000; :" {mark} & sleep 1000',
    "as the field has it": "setsid sleep 300 & (sleep 300 &) ; sleep 300 # {mark}",
}


@pytest.mark.parametrize("kind", PROCESSES)
def test_no_process_outlives_the_deadline(mark, kind):
    """Field pain 3."""
    result, took = timed(PROCESSES[kind].format(mark=mark), timeout=0.5)
    assert marked(mark) == []
    assert_timed_out(result)
    assert took < LATE_S


def test_the_processes_were_there_before(mark):
    """Else the test above would prove nothing."""
    seen = threading.Event()

    def look(_: bytes) -> None:
        if len(marked(mark)) >= 2:
            seen.set()

    ramet.run(
        f'setsid sh -c "echo up; sleep 1000; :" {mark} & echo {mark}; sleep 1000', timeout=0.7, on_stdout=look
    )
    assert seen.is_set()


def test_a_command_with_threads_and_children_in_every_state_is_ended(mark):
    source = """
import os, signal, threading, time
for _ in range(20):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
for number in range(20):
    if os.fork() == 0:
        os.setsid()
        for each in range(1, 65):
            try:
                signal.signal(each, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        if number % 3 == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(1000)
time.sleep(1000)
"""
    result, took = timed(["python3", "-c", source, mark], timeout=1)
    assert marked(mark) == []
    assert_timed_out(result)
    assert took < LATE_S


def test_a_grandchild_that_keeps_the_pipe_does_not_delay_the_end(mark):
    """Field pain 4."""
    result, took = timed(f'(sh -c "sleep 1000; :" {mark} &) ; exit 0', timeout=60)
    assert (result.exit_code, result.reason) == (0, "exit")
    assert took < LATE_S
    assert marked(mark) == []


@pytest.mark.parametrize(
    "keeps", ["sleep 1000", "sh -c 'while :; do echo more; done'", "sleep 1000 >/dev/null"]
)
def test_what_is_left_when_the_command_ends_is_ended_with_it(mark, keeps):
    result, took = timed(
        f"setsid {keeps} & setsid sh -c 'sleep 1000; :' {mark} & echo done; exit 3", timeout=60
    )
    assert result.exit_code == 3
    assert "done" in result.stdout.splitlines()
    assert took < LATE_S
    assert marked(mark) == []


def test_output_before_the_deadline_is_kept():
    result = ramet.run("echo out; echo err >&2; sleep 1000", timeout=0.5)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert_timed_out(result)


def test_an_endless_writer_is_ended_and_what_it_wrote_is_kept():
    result = ramet.run("yes", timeout=0.5, limits={"output": 1000})
    assert_timed_out(result)
    assert result.stdout_bytes == b"y\n" * 500
    assert result.stdout_total > 1000


def test_input_that_never_ends_does_not_keep_the_run_alive():
    import os

    reader, writer = os.pipe()
    try:
        assert_timed_out(ramet.run("cat", stdin=reader, timeout=0.3))
        assert ramet.run("exit 2", stdin=reader, timeout=30).exit_code == 2
    finally:
        os.close(writer)
        os.close(reader)


@pytest.mark.parametrize("timeout", [0.001, 0.002, 0.004])
def test_a_deadline_before_the_command_begins_is_a_timeout_too(timeout):
    for _ in range(10):
        result = ramet.run("sleep 1000", timeout=timeout)
        assert_timed_out(result)


@pytest.mark.parametrize("timeout", ["300ms", "0.3s", 0.3, "0.3"])
def test_the_deadline_may_be_text(timeout):
    assert_timed_out(ramet.run("sleep 1000", timeout=timeout))
    assert_timed_out(ramet.run("sleep 1000", limits={"wall": timeout}))


def test_the_longer_of_two_at_once_is_not_ended_by_the_shorter():
    results = {}

    def work(timeout: float) -> None:
        with ramet.Client() as client:
            results[timeout] = client.run("sleep 1; echo survived", timeout=timeout)

    threads = [threading.Thread(target=work, args=(timeout,)) for timeout in (0.2, 0.3, 0.4, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.pop(50).stdout == "survived\n"
    for result in results.values():
        assert_timed_out(result)


def test_a_command_cannot_move_its_deadline():
    """Clocks and timers of its own are all it has."""
    source = """
import signal, time
for number in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF):
    signal.signal(number, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC):
    try:
        time.clock_settime(clock, 0)
    except OSError:
        pass
while True:
    time.sleep(1000)
"""
    result, took = timed(["python3", "-c", source], timeout=0.5)
    assert_timed_out(result)
    assert took < LATE_S


NUMBERS = [
    number
    for number in signal.valid_signals()
    if number not in {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    and number not in {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_a_signal_of_its_own_making_is_a_signal_and_no_timeout(number):
    source = f"import os, signal; signal.signal({number}, signal.SIG_DFL) if {number} not in (9, 19) else 0; os.kill(os.getpid(), {number})"
    result = ramet.run(["python3", "-S", "-c", source], timeout=20)
    name = number.name if isinstance(number, signal.Signals) else None
    assert (result.exit_code, result.reason, result.timed_out) == (128 + number, "signal", False)
    assert result.signal == name or (name is None and result.signal)
    assert not result.ok


@pytest.mark.parametrize(
    "line, code", [("exit 124", 124), ("exit 137", 137), ("exit 143", 143), ("exit 255", 255)]
)
def test_an_exit_code_that_looks_like_a_signal_or_a_timeout_is_an_exit(line, code):
    result = ramet.run(line)
    assert (result.exit_code, result.reason, result.signal, result.limit) == (code, "exit", None, None)


def test_a_child_that_is_killed_is_the_commands_own_affair():
    result = ramet.run("sh -c 'kill -KILL $$'; exit $?")
    assert (result.exit_code, result.reason, result.signal) == (137, "exit", None)


def test_a_command_killed_by_its_child_is_a_signal():
    result = ramet.run("(kill -KILL $PPID 2>/dev/null; kill -KILL 2) & sleep 1000", timeout=20)
    assert (result.exit_code, result.reason, result.signal) == (137, "signal", "SIGKILL")


def test_times_add_up():
    result = ramet.run("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    assert 0 < result.setup_ms <= result.duration_ms
    assert result.usage.user_ms > 10
    assert result.usage.user_ms + result.usage.system_ms <= result.duration_ms * 1.5 + 50
