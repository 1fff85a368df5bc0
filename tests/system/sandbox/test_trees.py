"""Forks of sandboxes in which several processes run."""

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
