"""RUN: one command in a sandbox made for it."""

import os
import resource
import signal

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _payloads
from system.core._core import Core


def test_a_command_runs_and_its_exit_code_and_output_come_back(core):
    result = core.shell("echo out; echo err >&2; exit 3")
    assert (result.answer.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


def test_a_run_tells_what_it_used(core):
    result = core.shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; head -c 100000 /dev/zero > file")
    found = result.answer.found
    assert found.u64(p.TAG_USER_NS) + found.u64(p.TAG_SYSTEM_NS) > 0
    assert found.u64(p.TAG_PEAK_BYTES) > 1 << 20
    assert 100000 <= found.u64(p.TAG_DISK_PEAK) < 1 << 20
    assert 0 < found.u64(p.TAG_SETUP_NS) <= found.u64(p.TAG_ELAPSED_NS)
    assert found.u32(p.TAG_LINGERING) == 0


def test_runs_do_not_see_what_others_left(core):
    assert core.shell("touch /tmp/mark /dev/shm/mark mark").answer.exit_code == 0
    assert core.shell("ls /tmp /dev/shm .").stdout == b".:\n\n/dev/shm:\n\n/tmp:\n"


@pytest.mark.parametrize(
    "name, code, words",
    [
        ("no-such-command", 127, "not found"),
        ("/no/such/file", 127, "No such file or directory"),
        ("/usr", 126, "Is a directory"),
        ("/etc/data", 126, "Permission denied"),
        ("", 127, "not found"),
    ],
)
def test_a_command_that_cannot_be_executed_says_so_as_a_shell_does(core, name, code, words):
    assert core.define(2, more=_payloads.file("/etc/data", b"data")).kind == p.OK
    result = core.run([name], root=2)
    assert result.answer.exit_code == code
    assert result.stderr.decode() == f"{name}: {words}\n" or (
        result.stderr.decode() == f"{name}: command not found\n"
    )
    assert result.stdout == b""


def test_a_script_without_an_interpreter_line_is_run_by_the_shell(core):
    assert core.define(2, more=_payloads.file("/etc/script", b'echo "$0 $1 $2"', 0o755)).kind == p.OK
    assert core.run(["/etc/script", "a b", "c"], root=2).stdout == b"/etc/script a b c\n"


def test_the_environment_is_what_was_sent_and_nothing_else(core):
    result = core.run(["/usr/bin/env"], env={"A": "1", "EMPTY": "", "B": "x=y\nz"})
    assert result.stdout == b"A=1\nEMPTY=\nB=x=y\nz\n"


def test_a_command_has_three_descriptors(core):
    result = core.shell("ls /proc/$$/fd")
    assert result.stdout.split() == [b"0", b"1", b"2"]


def test_standard_input_is_what_was_passed_and_else_empty(core):
    memory = os.memfd_create("stdin")
    os.write(memory, b"hello")
    os.lseek(memory, 0, os.SEEK_SET)
    assert core.run(["cat"], inherit=memory).stdout == b"hello"
    os.close(memory)
    assert core.run(["cat"]).stdout == b""


def test_a_large_plan_travels_in_a_memory_file(core):
    argument = "x" * 100_000
    result = core.run(["printf", "%s", argument])
    assert result.stdout == argument.encode()


def test_a_command_has_no_terminal_and_leads_its_session(core):
    result = core.shell("(exec 3<>/dev/tty) || echo none; cut -d' ' -f1,5,6 /proc/$$/stat")
    assert result.stdout.splitlines()[0] == b"none"
    pid, group, session = result.stdout.splitlines()[1].split()
    assert pid == group == session


def test_files_are_made_with_the_usual_mask(core):
    assert core.shell("umask").stdout == b"0022\n"


def test_no_signal_is_blocked_or_ignored(core):
    result = core.run(["grep", "^Sig[BI]", "/proc/self/status"])
    assert [line.split()[1] for line in result.stdout.splitlines()] == [b"0" * 16, b"0" * 16]


def test_a_missing_working_directory_is_an_error_that_names_the_step(core):
    result = core.run(["true"], cwd="/no/such/place")
    assert result.answer.error == ("isolation_failed", "working_directory", 2, "")


def test_a_run_that_ends_by_its_own_signal_is_told_apart(core):
    assert core.shell("kill -KILL $$").answer.ended == ("signal", signal.SIGKILL)
    assert core.shell("kill -TERM $$").answer.ended == ("signal", signal.SIGTERM)


def test_unknown_roots_and_filters_are_refused_by_code(core):
    assert core.run(["true"], root=77).answer.error[0] == "unknown_root"
    assert core.run(["true"], filter_id=77).answer.error[0] == "unknown_filter"


def test_a_dropped_root_is_gone_and_sandboxes_on_it_keep_it(core):
    sandbox = core.create()
    core.control.ok(p.DROP_ROOT, frames.u32(p.TAG_ROOT, _payloads.ROOT))
    assert core.run(["true"]).answer.error[0] == "unknown_root"
    assert core.spawn(sandbox, ["/bin/sh", "-c", "ls /usr >/dev/null"]).kind == p.OK
    assert core.control.event(p.EXITED, sandbox).exit_code == 0
    assert core.define().kind == p.OK
    assert core.run(["true"]).answer.exit_code == 0


# --- limits ------------------------------------------------------------------------------------------------


def test_the_writable_layer_is_bounded_in_bytes_and_inodes(core):
    result = core.shell("head -c 2000000 /dev/zero > big", disk=1 << 20)
    assert b"No space left on device" in result.stderr
    result = core.shell("for i in $(seq 100); do : > f$i || exit 9; done", inodes=50)
    assert b"No space left" in result.stderr


def test_shared_memory_counts_as_disk(core):
    result = core.shell("head -c 2000000 /dev/zero > /dev/shm/big", disk=1 << 20)
    assert b"No space left on device" in result.stderr


def test_the_number_of_processes_is_bounded(core):
    line = "for i in $(seq 20); do sleep 60 & done"
    assert b"annot fork" in core.shell(line, processes=10).stderr
    assert core.shell(line, processes=50).answer.exit_code == 0


def test_the_bound_is_each_sandboxes_own(core: Core):
    line = "sleep 0.2 & sleep 0.2 & sleep 0.2 & wait"
    runs = [core.start_run(["/bin/sh", "-c", line], processes=6) for _ in range(8)]
    assert [core.finish(run).answer.exit_code for run in runs] == [0] * 8


def test_resource_limits_are_set_soft_and_hard(core):
    limits = [(resource.RLIMIT_NOFILE, 50, 60), (resource.RLIMIT_CORE, 0, 0)]
    result = core.shell("ulimit -Sn; ulimit -Hn; ulimit -Hc", rlimits=limits)
    assert result.stdout.split() == [b"50", b"60", b"0"]


def test_a_limit_above_what_core_itself_has_is_an_error_that_names_the_step(core):
    hard = 1 << 62
    result = core.run(["true"], rlimits=[(resource.RLIMIT_NOFILE, hard, hard)])
    assert result.answer.error[:3] == ("isolation_failed", "rlimits", 1)


def test_absurd_numbers_do_not_wrap_into_other_limits(core):
    refused = core.run(["true"], processes=2**64 - 1).answer
    assert refused.error[:3] == ("isolation_failed", "rlimits", 1)
    payload = _payloads.plan(5).replace(
        frames.u64(p.TAG_WALL_NS, 0), frames.u64(p.TAG_WALL_NS, 2**64 - 1)
    ) + _payloads.command(["true"], streams=(None, None, None))
    assert core.control.ask(p.RUN, payload).exit_code == 0
