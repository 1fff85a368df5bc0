"""What a kernel does after a fork of its sandbox: a child is not its twin."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from _repository import ROOT, load
from unit.kernels.driver import Driven, with_module

SOURCE = "src/ramet/kernels/python/ramet_kernel.py"
SAME_PID = ROOT / "tests/unit/kernels/same_pid.py"
NEVER_SEEDED = {"urandom", "secrets", "ssl", "uuid1"}


def children(count, seed="none", *, duties="yes"):
    """First values of so many real copies of one process; those of numpy too where there is one."""
    program = with_module("numpy") or sys.executable
    answer = subprocess.run(
        [program, SAME_PID, ROOT / SOURCE, str(count), str(seed), duties],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode == 77:
        pytest.skip("pid namespaces cannot be made here")
    assert answer.returncode == 0, answer.stderr
    made = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len(made) == count
    return made


def test_copies_of_a_process_repeat_what_no_duty_renews():
    first, second = children(2, duties="no")
    assert {name for name in first if first[name] == second[name]} >= {
        "random",
        "ssl",
        "instance",
        "tempfile",
    }


def test_first_values_of_100_children_all_differ():
    made = children(100)
    for name in made[0]:
        assert len({child[name] for child in made}) == 100, name


def test_first_values_of_children_with_one_seed_repeat_but_for_secrets():
    first, second = children(2, 7)
    assert {name for name in first if first[name] != second[name]} == NEVER_SEEDED
    (other,) = children(1, 8)
    assert [name for name in first if first[name] == other[name]] == []


def test_a_seed_gives_what_the_same_seed_gives_elsewhere(python):
    python.run("import random")
    python.fork(seed=42)
    assert python.text("random.random()") == "0.6394267984578837"


@pytest.mark.parametrize("module", ["random", "uuid", "tempfile"])
def test_a_seed_holds_for_modules_that_are_imported_later(module):
    value = {"random": "random.random()", "uuid": "uuid.uuid4()", "tempfile": "tempfile.mktemp()"}[module]
    seen = set()
    for _ in range(2):
        with Driven("python") as kernel:
            kernel.fork(seed=5)
            seen.add(kernel.text(f"import {module}\n{value}"))
    assert len(seen) == 1


def test_a_later_fork_without_a_seed_is_random_again(python):
    python.run("import random, uuid, tempfile")
    seen = set()
    for epoch in range(1, 4):
        python.fork(2 * epoch, seed=5)
        python.fork(2 * epoch + 1)
        seen.add(python.text("(random.random(), uuid.uuid4(), tempfile.mktemp())"))
    assert len(seen) == 3


def test_generators_that_the_code_has_seeded_are_left_alone(python):
    python.run("import random; mine = random.Random(1); state = mine.getstate()")
    python.fork()
    assert python.text("mine.getstate() == state") == "True"


def test_generators_are_the_codes_from_the_call_that_seeds_them_to_the_one_that_does_not(python):
    python.run(
        "import random\nmine, free, secret = random.Random(), random.Random(5), random.SystemRandom()\n"
        "class Own(random.Random): pass\nowned = Own()\nfor one in (mine, owned): one.seed(5)\n"
        "free.seed(); secret.seed(); kept = [one.getstate() for one in (mine, owned, free)]"
    )
    assert python.fork(1)["errors"] == []
    same = "[one.getstate() == state for one, state in zip((mine, owned, free), kept)]"
    assert python.text(same) == "[True, True, False]"
    python.run("kept = [one.getstate() for one in (mine, owned, free)]")
    assert python.fork(2, seed=7)["errors"] == []
    assert python.text(same) == "[True, True, False]"
    python.run("kept = [one.getstate() for one in (mine, owned, free)]")
    assert python.fork(3)["errors"] == []
    assert python.text(same) == "[True, True, False]"


def test_looking_for_generators_of_numpy_touches_no_object_of_the_code():
    program = with_module("numpy")
    if program is None:
        pytest.skip("numpy is not installed")
    with Driven("python", program) as kernel:
        kernel.run(
            "import numpy as np, weakref\nclass Gone: pass\ndead = weakref.proxy(Gone())\ntouched = []\n"
            "class Lazy:\n    @property\n    def __class__(self): touched.append(1); return Lazy\n"
            "lazy = Lazy(); free = np.random.default_rng(); held = [lazy, dead]"
        )
        assert kernel.text("free = np.random.default_rng(); touched") == "[]"
        assert kernel.text("import ramet_kernel; len(ramet_kernel._seeds.generators)") == "1"
        assert kernel.written("err") == ""
        kernel.run(
            "class Odd(np.random.PCG64):\n"
            "    @property\n    def seed_seq(self): raise ValueError('odd')\nodd = Odd()"
        )
        assert "may repeat after a fork: ValueError: odd" in kernel.written("err", b"odd")


def test_generators_of_numpy_are_renewed_unless_the_code_has_seeded_them():
    program = with_module("numpy")
    if program is None:
        pytest.skip("numpy is not installed")
    with Driven("python", program) as kernel:
        kernel.run(
            "import numpy as np\nmine, free = np.random.default_rng(1), np.random.default_rng()\n"
            "old = np.random.RandomState(1)\nheld = [np.random.Generator(np.random.MT19937())]\n"
            "def values():\n"
            "    return [float(g.random()) for g in (mine, free, held[0])] + [old.random_sample()]\n"
            "kept = [g.bit_generator.state for g in (mine, free, held[0])], old.get_state()"
        )
        seen = []
        for epoch in range(1, 4):
            kernel.run(
                "for g, s in zip((mine, free, held[0]), kept[0]): g.bit_generator.state = s\n"
                "old.set_state(kept[1])"
            )
            assert kernel.fork(epoch)["errors"] == []
            seen.append(json.loads(kernel.text("values()")))
        assert [len(set(column)) for column in zip(*seen, strict=True)] == [1, 3, 3, 1]


def test_generators_of_numpy_that_the_code_has_dropped_are_not_kept():
    program = with_module("numpy")
    if program is None:
        pytest.skip("numpy is not installed")
    with Driven("python", program) as kernel:
        kernel.run("import numpy as np, ramet_kernel\nfree = np.random.default_rng()")
        assert kernel.text("len(ramet_kernel._seeds.generators)") == "1"
        kernel.run("free = None; np.random.default_rng()")
        kernel.run("_ = None; np.random.default_rng(); None")
        assert kernel.text("len(ramet_kernel._seeds.generators)") == "0"


def test_the_environment_is_the_childs(python):
    python.run("import os; os.environ['GONE'] = 'x'; os.environ['HOSTNAME'] = 'old'")
    told = python.fork(4, env={"NEW": "n", "GONE": None}, sandbox="sb-9", hostname="new")
    assert told == {"event": "forked", "epoch": 4, "running": None, "errors": []}
    names = ("NEW", "GONE", "HOSTNAME", "RAMET_SANDBOX_ID", "RAMET_EPOCH")
    assert python.text(f"[os.environ.get(name) for name in {names}]") == "['n', None, 'new', 'sb-9', '4']"
    python.run("!echo $NEW $RAMET_EPOCH")
    assert python.written("out", b"\n") == "n 4\n"
    assert python.run("1")["epoch"] == 4


def test_a_large_environment_comes_in_many_packets(python):
    python.fork(env={f"BIG_{n}": "x" * 10_000 for n in range(20)})
    assert python.text("import os; len(os.environ['BIG_19'])") == "10000"


def test_hooks_are_called_after_the_duties_in_order_and_failures_are_told(python):
    python.run(
        "import ramet_kernel, os\nseen = []\n"
        "@ramet_kernel.on_fork\ndef first(fork): seen.append((fork, os.environ['RAMET_EPOCH']))\n"
        "@ramet_kernel.on_fork\ndef bad(fork): 1/0\n"
        "@ramet_kernel.on_fork\ndef leaving(fork): raise SystemExit(1)\n"
        "ramet_kernel.on_fork(lambda fork: seen.append(fork.seed))"
    )
    errors = python.fork(2, seed=6)["errors"]
    assert errors == ["hook bad: ZeroDivisionError: division by zero", "hook leaving: SystemExit: 1"]
    assert python.text("seen") == "[(ForkInfo(epoch=2, sandbox='sb', seed=6), '2'), 6]"
    assert python.text("ramet_kernel.epoch(), ramet_kernel.sandbox(), ramet_kernel.seed()") == "(2, 'sb', 6)"
    assert python.run("ramet_kernel.on_fork(5)")["error"]["name"] == "TypeError"


@pytest.mark.parametrize(
    "hook",
    [
        "async def hook(fork): pass",
        "async def hook(fork): yield",
        "import functools\nasync def f(fork, x): pass\nhook = functools.partial(f, x=1)",
        "class A:\n    async def m(self, fork): pass\nhook = A().m",
        "class A:\n    async def __call__(self, fork): pass\nhook = A()",
    ],
)
def test_a_hook_that_would_have_to_be_awaited_is_refused(python, hook):
    error = python.run(f"import ramet_kernel\n{hook}\nramet_kernel.on_fork(hook)")["error"]
    assert (error["name"], "never be awaited" in error["value"]) == ("TypeError", True)
    assert python.fork()["errors"] == []


def test_an_interrupt_ends_a_hook_that_hangs(python):
    python.run(
        "import ramet_kernel, time\n"
        "@ramet_kernel.on_fork\ndef hang(_):\n    print('begun')\n    time.sleep(100)"
    )
    python.send(op="forked", epoch=1, sandbox="s", hostname="", seed=None, env={})
    python.written("out", b"begun")
    python.interrupt()
    assert python.until("forked")["errors"] == ["hook hang: KeyboardInterrupt"]
    assert python.text("1") == "1"


WAITING = """
import ramet_kernel, time
print("begun", flush=True)
while ramet_kernel.epoch() == 0: {}
"""


@pytest.mark.parametrize("wait", ["pass", "time.sleep(0.05)"])
def test_a_running_cell_goes_on_as_the_childs(python, wait):
    python.start(WAITING.format(wait))
    python.written("out", b"begun")
    python.write(
        python.kernel.fresh({"op": "forked", "epoch": 1, "sandbox": "s", "hostname": "", "seed": None})
    )
    os.kill(python.process.pid, signal.SIGURG)
    assert python.event()["event"] == "forked"
    done = python.until("done")
    assert (done["reason"], done["epoch"]) == ("ok", 1)


def test_duties_are_done_once_whenever_the_signal_comes(python):
    python.run("import ramet_kernel\ncalls = []\nramet_kernel.on_fork(lambda fork: calls.append(fork.epoch))")
    for epoch in range(1, 31):
        python.write(
            python.kernel.fresh(
                {"op": "forked", "epoch": epoch, "sandbox": "s", "hostname": "", "seed": None}
            )
        )
        python.start("sum(range(2000))")
        for _ in range(3):
            os.kill(python.process.pid, signal.SIGURG)
        assert python.until("done")["reason"] == "ok"
        assert [event["event"] for event in python.results] == ["forked"]
    assert python.text("calls == list(range(1, 31))") == "True"


def test_the_signal_alone_does_nothing(python):
    python.start("import os, signal\nfor _ in range(100): os.kill(os.getpid(), signal.SIGURG)\n5")
    assert python.until("done")["text"] == "5"


def test_a_signal_while_later_requests_wait_takes_none_of_them(python):
    python.start("print('begun'); import time; time.sleep(0.05); 'first'", name="1")
    python.start("'second'", name="2")
    python.written("out", b"begun")
    os.kill(python.process.pid, signal.SIGURG)
    assert python.until("done")["text"] == "'first'"
    assert python.until("done")["text"] == "'second'"


def test_a_request_that_a_fork_has_cut_is_dropped(python):
    whole = python.kernel.request({"op": "run", "id": "cut", "code": f"x = '{'y' * 100_000}'"})
    assert len(whole) > 2
    python.write(whole[:2])
    python.fork()
    assert python.run("x")["error"]["name"] == "NameError"


def test_a_long_event_that_a_fork_has_cut_is_begun_again():
    kernel = load(SOURCE)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = kernel.Channel(theirs.detach())
    write, sent = channel._write, []

    def forked_after_the_second_packet(packet):
        sent.append(packet[0])
        if len(sent) == 2:
            channel.epoch += 1
        write(packet)

    channel._write = forked_after_the_second_packet
    channel.send({"event": "result", "data": "z" * 80_000})
    assert sent == [3, 1, 3, 1, 0]
    channel.leave()
    ours.close()
