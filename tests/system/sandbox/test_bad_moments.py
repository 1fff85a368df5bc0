"""Forks of what has no room left: named, and the source is what it was."""

import pytest

import ramet
from ramet.errors import IsolationError, SandboxEnded, Unforkable
from system.sandbox._repl import PATIENCE_S, PYTHON, ask, tell

FILL = """
while True:
    try:
        pid = os.fork()
    except BlockingIOError:
        break
    if pid == 0:
        time.sleep(10000)
        os._exit(0)
    pids.append(pid)
"""
GROW = "[(data.append(bytearray(b'x') * (1 << 20)), time.sleep(0.005)) for _ in range(1000)]"
EMPTY = """
for pid in pids:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""


def test_a_sandbox_at_its_limit_of_processes_is_refused_by_name_and_forked_again_when_it_has_room():
    with ramet.Sandbox(command=PYTHON, limits={"processes": 12}) as python:
        tell(python, "import os, time", "pids = []; x = 41; data = bytearray(4 << 20)", FILL)
        with pytest.raises(Unforkable) as caught:
            python.fork()
        assert (caught.value.process, caught.value.what) == ("python3", "is at its limit of processes")
        assert ask(python, "x + 1") == "42"
        tell(python, EMPTY)
        with python.fork() as child:
            assert ask(child, "x + 1") == "42"


def test_a_sandbox_that_runs_out_of_memory_while_it_is_forked_tells_so():
    with ramet.Sandbox(command=PYTHON, limits={"memory": "96M"}) as python:
        tell(python, "import time", "data = []")
        told = []
        python.stdin.write(f"{GROW}\n")
        ended = None
        while ended is None:
            try:
                python.fork().close()
            except SandboxEnded as error:
                ended = error
            except (IsolationError, Unforkable) as error:
                told.append(error.message)
        assert all(told)
        assert ended.reason == "oom"
        assert python.wait(timeout=PATIENCE_S).reason == "oom"
