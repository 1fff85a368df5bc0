"""Forks of sandboxes in which several processes run."""

import pytest

import ramet
from system.sandbox._repl import PATIENCE_S, ask, tell


def test_a_fork_of_bash_has_its_background_jobs(bash):
    bash.stdin.write("sleep 1000 & job=$!; (sleep 1000; echo never) & echo ready\n")
    assert bash.stdout.readline(timeout=PATIENCE_S) == b"ready\n"
    with bash.fork() as child, child.fork() as grandchild:
        assert ask(child, "kill $job; wait $job; echo $?") == "143"
        assert ask(grandchild, "cat /proc/$job/comm") == "sleep"
        assert ask(bash, "jobs -p | wc -l") == "2"
        assert ask(child, "jobs -p | wc -l") == "1"


def test_a_fork_of_python_drives_its_own_copy_of_the_child_process(python):
    tell(python, "import subprocess, sys")
    tell(python, "text = 'x = 0\\nfor line in sys.stdin: x += int(line); print(x, flush=True)'")
    tell(python, "argv = [sys.executable, '-c', 'import sys; ' + text]")
    tell(python, "p = subprocess.Popen(argv, stdin=-1, stdout=-1, text=True)")
    tell(python, "def add(n): print(n, file=p.stdin, flush=True); return int(p.stdout.readline())")
    assert ask(python, "add(40)") == "40"
    with python.fork(2) as (one, other):
        assert ask(one, "add(1)") == "41"
        assert ask(other, "add(2)") == "42"
        assert ask(python, "add(3)") == "43"
        with one.fork() as grandchild:
            assert ask(grandchild, "add(4)") == "45"


def test_what_cannot_be_carried_is_left_out_when_that_is_asked_for_and_told(python):
    tell(python, "import os", "fd = os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)", "x = 41")
    fd = ask(python, "fd")
    with pytest.raises(ramet.Unforkable, match="is a terminal"):
        python.fork()
    with pytest.raises(ramet.InvalidRequest, match="on_unsupported"):
        python.fork(on_unsupported="ignore")
    with python.fork(on_unsupported="drop") as child:
        assert child.info.dropped == (f"pid 2 python3: fd {fd} is a terminal that nobody has opened yet",)
        assert ask(child, "x + 1") == "42"
        with child.fork() as grandchild:
            assert grandchild.info.dropped == child.info.dropped
    point = python.snapshot("without-terminal", on_unsupported="drop")
    try:
        assert point.dropped == (f"pid 2 python3: fd {fd} is a terminal that nobody has opened yet",)
        with ramet.Sandbox("without-terminal") as kept:
            assert ask(kept, "x + 1") == "42"
    finally:
        ramet.snapshots.remove("without-terminal")
    assert ask(python, "os.isatty(fd)") == "True"
