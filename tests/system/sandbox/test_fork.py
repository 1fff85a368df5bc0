"""Forks of running programs: they have all of the parent's state, and from then on a life of their own."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

import ramet
from ramet.client import sandboxes
from system.sandbox._repl import PATIENCE_S, PYTHON, ask, ask_all, tell

WAYS_MAX = 128
"""As in core/src/capture_ways.c."""


def test_a_fork_of_python_has_its_variables_modules_and_open_files(python):
    tell(python, "x = {'a': [1, 2]}", "import json, threading", "f = open('notes', 'w+')")
    tell(python, "n = f.write('one ')", "f.flush()")
    with python.fork() as child:
        assert ask(child, "json.dumps(x)") == """'{"a": [1, 2]}'"""
        assert ask(child, "f.tell()") == "4"
        tell(child, "n = f.write('two')", "f.flush()", "n = f.seek(0)")
        assert ask(child, "f.read()") == "'one two'"
        assert ask(python, "open('notes').read()") == "'one '"
        assert child.pid == python.pid
        assert ask(child, "__import__('os').getpid()") == ask(python, "__import__('os').getpid()")


def test_a_fork_has_files_without_a_name_and_files_of_the_root_that_were_removed(python):
    tell(python, "import os, tempfile", "f = tempfile.TemporaryFile()", "n = f.write(b'0123')", "f.flush()")
    tell(python, "r = open('/etc/passwd')", "text = open('/etc/passwd').read()", "os.unlink('/etc/passwd')")
    with python.fork() as child, child.fork() as grandchild:
        for one in (child, grandchild, python):
            assert ask(one, "(f.tell(), f.seek(1), f.read())") == "(4, 1, b'123')"
            assert ask(one, "r.read() == text") == "True"


def test_a_fork_of_bash_has_its_variables_and_directory(bash):
    bash.stdin.write("x=41; f() { echo $((x + 1)); }; mkdir -p deep; cd deep; echo ready\n")
    assert bash.stdout.readline(timeout=PATIENCE_S) == b"ready\n"
    with bash.fork() as child:
        assert ask(child, "f; cd ..") == "42"
        assert ask(child, "basename $PWD") == "user"
        assert ask(bash, "basename $PWD") == "deep"
        assert ask(child, "ls -d deep") == "deep"


def test_memory_and_files_diverge_both_ways(python):
    tell(python, "x = 1", "n = open('shared', 'w').write('before')")
    with python.fork() as child:
        tell(child, "x = 2", "n = open('shared', 'w').write('child')", "n = open('own', 'w').write('c')")
        tell(python, "x = 3", "n = open('shared', 'w').write('parent')")
        assert (ask(child, "x"), ask(python, "x")) == ("2", "3")
        assert ask(child, "open('shared').read()") == "'child'"
        assert ask(python, "open('shared').read()") == "'parent'"
        assert ask(python, "__import__('os').path.exists('own')") == "False"


def test_siblings_do_not_see_each_other(python):
    tell(python, "x = 0")
    with python.fork(5) as children:
        for number, child in enumerate(children):
            tell(child, f"x = {number}", f"n = open('who', 'w').write('{number}')")
        assert ask_all(children, "(x, open('who').read())") == [f"({n}, '{n}')" for n in range(5)]
        assert ask(python, "x") == "0"


def test_a_fork_of_a_fork_of_a_fork_keeps_what_each_added(python):
    tell(python, "path = [0]", "n = open('f0', 'w').write('0')")
    held = [python]
    try:
        for depth in range(1, 6):
            held.append(held[-1].fork())
            tell(held[-1], f"path.append({depth})", f"n = open('f{depth}', 'w').write('{depth}')")
            assert held[-1].info.parent == held[-2].id
        assert ask_all(held, "path") == [str(list(range(depth + 1))) for depth in range(6)]
        assert ask(held[-1], "sorted(n for n in __import__('os').listdir('.') if n[0] == 'f')") == str(
            [f"f{depth}" for depth in range(6)]
        )
    finally:
        for sandbox in held[1:]:
            sandbox.close()


def test_ten_at_once(python):
    tell(python, "x = 41")
    with python.fork(10) as children:
        assert ask_all(children, "x + 1") == ["42"] * 10
        assert len({child.id for child in children}) == 10


@pytest.mark.slow
def test_the_fiftieth_fork_is_like_the_first_and_the_parent_goes_on(python):
    tell(python, "x = 0", "import itertools", "c = itertools.count()")
    for number in range(50):
        with python.fork() as child:
            assert ask(child, f"(x, next(c), {number})") == f"(0, {number}, {number})"
            tell(child, "x = 1")
        assert ask(python, "next(c)") == str(number)
    assert ask(python, "x") == "0"


@pytest.mark.slow
def test_fifty_siblings_live_at_once(python):
    tell(python, "data = list(range(100_000))")
    with python.fork(50) as children:
        assert ask_all(children, "sum(data)") == ["4999950000"] * 50
        tell(children[7], "data.clear()")
        assert ask_all(children[6:9], "len(data)") == ["100000", "0", "100000"]
    assert sandboxes.list() == tuple([one for one in sandboxes.list() if one.id == python.id])


def test_children_outlive_their_parent():
    with ramet.Sandbox(command=PYTHON) as parent:
        tell(parent, "x = 41")
        child = parent.fork()
    with child:
        assert ask(child, "x + 1") == "42"
        with child.fork() as grandchild:
            assert ask(grandchild, "x + 2") == "43"


BLOCKED = """
import sys
sys.stdout.write("x" * 1_000_000 + "\\n")
sys.stdout.flush()
print(sys.stdin.readline(), end="", flush=True)
"""


def test_unread_input_stays_with_the_parent():
    # It stands in a write that nobody reads, and has read nothing yet.
    with ramet.Sandbox(command=["python3", "-c", BLOCKED]) as parent:
        assert parent.stdout.read(1, timeout=PATIENCE_S) == b"x"
        parent.stdin.write("mine\n")
        with parent.fork() as child:
            child.stdin.write("yours\n")
            for sandbox, answer in ((child, b"yours\n"), (parent, b"mine\n")):
                assert sandbox.stdout.readline(timeout=PATIENCE_S).endswith(b"x\n")
                assert sandbox.stdout.readline(timeout=PATIENCE_S) == answer


def test_a_child_has_limits_of_its_own():
    with (
        ramet.Sandbox(command=PYTHON, limits={"disk": "8M"}) as parent,
        parent.fork() as same,
        parent.fork(limits={"disk": "1M"}) as less,
    ):
        write = "open('f', 'wb').write(bytes(4 << 20))"
        assert ask(same, write) == str(4 << 20)
        assert "No space left" in ask(less, write)


def test_a_child_has_a_deadline_only_when_it_is_asked_for(python):
    with python.fork(timeout=0.5) as hasty, python.fork() as patient:
        result = hasty.wait(timeout=PATIENCE_S)
        assert (result.reason, result.exit_code, result.limit) == ("timeout", 124, "wall")
        assert ask(patient, "1 + 1") == "2"


def test_each_has_its_own_end(python):
    children = python.fork(3)
    with children:
        children[0].stdin.write("__import__('os')._exit(7)\n")
        children[1].stdin.write("__import__('os').kill(__import__('os').getpid(), 11)\n")
        children[2].stdin.close()
        ends = [child.wait(timeout=PATIENCE_S) for child in children]
    assert [(end.exit_code, end.reason, end.signal) for end in ends] == [
        (7, "exit", None),
        (128 + signal.SIGSEGV, "signal", "SIGSEGV"),
        (0, "exit", None),
    ]
    assert python.running


def test_the_result_tells_what_the_command_wrote_and_used():
    with ramet.Sandbox(
        command="echo out; echo err >&2; dd if=/dev/zero of=f bs=64k count=2 2>/dev/null"
    ) as one:
        result = one.wait(timeout=PATIENCE_S)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    assert result.usage.disk_bytes >= 128 << 10
    assert result.duration_ms > 0


def test_output_without_end_does_not_stop_the_command_from_ending():
    command = "head -c 20M /dev/zero; exit 3"
    with ramet.Sandbox(command=command, limits={"output": "1M"}) as sandbox:
        result = sandbox.wait(timeout=PATIENCE_S)
    assert (result.exit_code, result.stdout_total, len(result.stdout_bytes)) == (3, 20 << 20, 1 << 20)


def test_the_standard_streams_can_be_opened_by_their_names():
    with ramet.Sandbox(command="echo one >/dev/stdout; echo two >/dev/stderr; cat /dev/stdin") as sandbox:
        sandbox.stdin.write("three\n")
        sandbox.stdin.close()
        result = sandbox.wait(timeout=PATIENCE_S)
    assert (result.stdout, result.stderr) == ("one\nthree\n", "two\n")


def test_many_threads_fork_one_sandbox_at_once():
    def fork_and_ask(number):
        with parent.fork() as child:
            return ask(child, f"x + {number}")

    # A client of its own, whose connections go with it.
    with (
        ramet.Client() as client,
        ramet.Sandbox(command=PYTHON, client=client) as parent,
        ThreadPoolExecutor(6) as threads,
    ):
        tell(parent, "x = 41")
        assert list(threads.map(fork_and_ask, range(12))) == [str(41 + number) for number in range(12)]


def test_a_process_that_keeps_memory_from_its_forks_is_copied_and_the_fork_says_why(python):
    """A twin is a fork of the process: it lacks what is advised to be left out of forks (madvise(2))."""
    tell(python, "import mmap", "m = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)")
    with python.fork() as child:
        tell(child, "n = m.write(b'kept')")
        with child.fork() as before:
            assert [(way.way, way.why) for way in before.info.ways] == [("twin", None)]
        tell(child, "m.madvise(mmap.MADV_DONTFORK)")
        with child.fork() as grandchild:
            assert [(way.way, way.why) for way in grandchild.info.ways] == [("frozen", "unforked")]
            assert ask(grandchild, "m[:4]") == "b'kept'"


def test_of_a_large_tree_a_fork_tells_the_ways_of_the_first_processes(bash):
    bash.stdin.write("for n in $(seq 150); do sleep 1000 & done; echo ready\n")
    assert bash.stdout.readline(timeout=PATIENCE_S) == b"ready\n"
    with bash.fork() as child:
        assert len(child.info.ways) == WAYS_MAX
        assert ask(child, "jobs -r | wc -l") == "150"
