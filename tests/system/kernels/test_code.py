"""Code in real sandboxes: state, output, errors, time, forks, and kernels that die."""

import ast
import threading
import time

import anyio
import pytest

import ramet
from ramet.errors import CodeFailed, InvalidRequest, SandboxEnded
from system._interrupting import interrupted

GRACE_S = 30


@pytest.fixture
def python(warm):
    with ramet.Sandbox("python") as sandbox:
        yield sandbox


def until(condition):
    end = time.monotonic() + GRACE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# --- code --------------------------------------------------------------------------------------------------


def test_state_is_kept_from_one_piece_to_the_next(python):
    assert python.run_code("x = 20").text is None
    assert python.run_code("def double(n): return 2 * n").ok
    done = python.run_code("double(x) + 2")
    assert (done.text, done.reason, done.error, done.state_kept) == ("42", "ok", None, True)
    assert [one.text for one in done.results] == ["42"]
    assert done.results[0].main


def test_output_is_exact_and_told_apart(python):
    code = "import sys, os\nprint('a')\nsys.stderr.write('b')\nos.write(1, b'\\xff')\n!echo from a shell"
    done = python.run_code(code)
    assert done.out.kept == b"a\n\xfffrom a shell\n"
    assert done.err.kept == b"b"
    assert python.run_code("1").out.total == 0


def test_callbacks_hear_everything_while_it_runs(python):
    heard, shown = [], []
    code = "for i in range(3):\n    print(i, flush=True)\n    display(i)"
    done = python.run_code(code, on_stdout=heard.append, on_result=shown.append)
    assert b"".join(heard) == b"0\n1\n2\n" == done.out.kept
    assert [one.text for one in shown] == ["0", "1", "2"]


def test_the_callback_hears_every_result_also_those_that_are_not_kept(python):
    shown = []
    python.run_code("for i in range(1200):\n    display(i)\n42", on_result=shown.append)
    assert [one.text for one in shown] == [*map(str, range(1200)), "42"]


def test_a_value_that_is_cut_and_results_that_are_missing_are_marked(python):
    done = python.run_code("'x' * 3_000_000")
    assert (done.truncated, len(done.text), done.text_length) == (True, 1 << 20, 3_000_002)
    done = python.run_code("for i in range(1200): display(i)")
    assert (done.truncated, len(done.results), done.results_left_out) == (True, 1000, 200)


def test_output_above_the_limit_is_marked(warm):
    with ramet.Sandbox("python", limits={"output": 1000}) as sandbox:
        done = sandbox.run_code("print('x' * 3_000_000)")
    assert done.truncated
    assert (done.out.total, len(done.out.kept)) == (3_000_001, 1000)


def test_an_error_is_told_and_never_raised_but_on_demand(python):
    done = python.run_code("def f():\n    return {}['key']\nf()")
    assert (done.reason, done.error.name, done.error.value) == ("error", "KeyError", "'key'")
    assert "line 2, in f" in str(done.error)
    assert "ramet_kernel" not in str(done.error)
    with pytest.raises(CodeFailed) as caught:
        done.check()
    assert caught.value.execution is done
    assert python.run_code("1").check().text == "1"


def test_rich_values_come_in_every_format_they_have(python):
    code = """
    class Both:
        def _repr_html_(self): return '<b>x</b>'
        def _repr_png_(self): return b'\\x89PNG'
        def __repr__(self): return 'both'
    Both()
    """
    shown = python.run_code("if 1:" + code.replace("    Both()", "    pass") + "\nBoth()").results[0]
    assert (shown.text, shown.html, shown.png) == ("both", "<b>x</b>", b"\x89PNG")


def test_contexts_do_not_see_each_other(python):
    python.run_code("x = 1", context="a")
    assert python.run_code("x", context="b").error.name == "NameError"
    assert python.run_code("x", context="a").text == "1"
    assert python.run_code("'x' in globals()").text == "False"


def test_one_piece_of_code_runs_at_a_time(python):
    started = threading.Event()
    thread = threading.Thread(
        target=python.run_code, args=("print(1, flush=True); import time; time.sleep(60)",),
        kwargs={"on_stdout": lambda _: started.set()},
    )  # fmt: skip
    thread.start()
    assert started.wait(GRACE_S)
    with pytest.raises(InvalidRequest) as caught:
        python.run_code("1")
    assert caught.value.code == "kernel_busy"
    python.interrupt()
    thread.join(GRACE_S)
    assert python.run_code("2").text == "2"


def test_large_code_and_large_input_pass(python):
    text = "x" * 3_000_000
    assert python.run_code(f"len('{text}')").text == "3000000"


def test_the_first_piece_can_be_given_input_and_then_there_is_none(python):
    text = "x" * 3_000_000
    assert python.run_code("import sys; len(open(0, closefd=False).read())", stdin=text).text == "3000000"
    assert python.run_code("import os; os.read(0, 10)").text == "b''"
    with pytest.raises(InvalidRequest) as caught:
        python.run_code("1", stdin="more")
    assert caught.value.code == "stdin_closed"


def test_without_input_whatever_reads_it_is_at_its_end(python):
    assert python.run_code("import os, subprocess; os.read(0, 10)").text == "b''"
    assert python.run_code("subprocess.run(['cat']).returncode").text == "0"


def test_a_sandbox_without_a_kernel_says_so():
    with ramet.Sandbox(command=["cat"]) as sandbox, pytest.raises(InvalidRequest) as caught:
        sandbox.run_code("1")
    assert caught.value.code == "no_kernel"


async def test_the_asynchronous_sandbox_does_the_same(warm):
    async with ramet.AsyncSandbox("python") as sandbox:
        assert (await sandbox.run_code("import asyncio; await asyncio.sleep(0, 6)")).text == "6"
        async with await sandbox.fork(2) as children:
            assert [(await child.run_code("1 + 1")).text for child in children] == ["2", "2"]


# --- time --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)", "!sleep 60"])
def test_code_that_runs_out_of_time_is_interrupted_and_the_state_is_kept(python, code):
    python.run_code("x = 1")
    done = python.run_code(code, timeout=0.2)
    assert (done.reason, done.state_kept) == ("timeout", True)
    assert python.run_code("x").text == "1"


def test_code_that_does_not_heed_an_interrupt_ends_with_its_sandbox(python):
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    done = python.run_code(code, timeout=0.2)
    assert (done.reason, done.state_kept) == ("timeout", False)
    with pytest.raises(SandboxEnded):
        python.run_code("1")


def test_code_that_swallows_one_interrupt_is_interrupted_again(python):
    python.run_code("x = 7\nclass Endless(Exception):\n    def __str__(self):\n        while True: len('')")
    assert python.run_code("raise Endless", timeout=0.2).reason == "timeout"
    swallowed = "try:\n    while True: len('')\nexcept KeyboardInterrupt:\n    while True: len('')"
    assert python.run_code(swallowed, timeout=0.2).state_kept
    assert python.run_code("x").text == "7"


def test_packages_are_not_looked_for_where_there_is_no_network(python):
    done = python.run_code("%pip install -q nothing-of-this-name")
    assert "there is no network" in done.stderr
    assert "Retrying" not in done.stderr
    assert python.run_code("_exit_code").text == "1"


def test_an_interrupt_ends_what_runs_and_nothing_else(python):
    python.interrupt()
    assert python.run_code("x = 1; x").text == "1"
    code = "print(1, flush=True); import time; time.sleep(60)"
    assert [done.reason for done in interrupted(python, code, GRACE_S)] == ["interrupted"]
    assert python.run_code("x").text == "1"


@pytest.mark.parametrize("detach", [False, True], ids=["owned", "detached"])
def test_an_interrupt_that_comes_too_late_reaches_no_later_code(warm, detach):
    with ramet.Sandbox("python", detach=detach) as sandbox:
        try:
            reasons = set()
            for number in range(60):
                late = threading.Timer(number % 12 * 0.0004, sandbox.interrupt)
                late.start()
                reasons.add(sandbox.run_code("for _ in range(60_000): pass").reason)
                late.join()
                assert sandbox.run_code("y = 2\nfor _ in range(2_000): pass\ny").text == "2"
            assert reasons <= {"ok", "interrupted"}
            for _ in range(300):  # more answers than a socket has room for, unless somebody reads them
                sandbox.interrupt()
            assert sandbox.run_code("y").text == "2"
        finally:
            sandbox.kill()


def test_what_was_given_up_is_interrupted_and_its_output_is_nobodys(python):
    def refuse(_):
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            python.run_code("import time\nwhile True:\n    print('old', flush=True)", on_stdout=refuse)
        done = python.run_code("print('new')\n5", timeout=GRACE_S)
        assert (done.stdout, done.text, done.reason) == ("new\n", "5", "ok")


async def test_a_cancelled_piece_is_interrupted_and_the_next_one_runs(warm):
    async with ramet.AsyncSandbox("python") as sandbox:
        with anyio.move_on_after(0.3):
            await sandbox.run_code("while True: pass")
        assert (await sandbox.run_code("1 + 1")).text == "2"


def test_a_sandbox_that_was_let_go_says_so(python):
    python.run_code("1")
    python.close()
    with pytest.raises(SandboxEnded):
        python.run_code("1")


# --- kernels that die --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code, how",
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os; os.execvp('sh', ['sh', '-c', 'exit 4'])", "exit code 4"),
    ],
)
def test_a_kernel_that_dies_says_how(python, code, how):
    done = python.run_code("print('before', flush=True)\n" + code)
    assert (done.reason, done.state_kept, done.stdout) == ("died", False, "before\n")
    assert how in done.error.value
    with pytest.raises(SandboxEnded) as caught:
        python.run_code("1")
    assert how in str(caught.value)


SEND = "import ramet_kernel, os; os.write(ramet_kernel._kernel.channel.number, {})"


@pytest.mark.parametrize("garbage", ["b'\\x02not json'", "b'\\xff'", "b'\\x02[]'"])
def test_garbage_on_the_channel_ends_that_sandbox_alone(python, garbage):
    with python.fork() as other:
        code = f"{SEND.format(garbage)}; import time; time.sleep(60)"
        done = python.run_code(code, timeout=GRACE_S)
        assert (done.reason, done.state_kept) == ("died", False)
        assert "no kernel says" in done.error.value
        assert other.run_code("1 + 1").text == "2"


def test_the_end_of_a_cell_that_nobody_has_begun_is_ignored(python):
    unknown = b'\2{"event":"done","id":"?","reason":"ok","text":"7","error":null,"epoch":0}'
    done = python.run_code(f"{SEND.format(unknown)}; 5")
    assert (done.reason, done.text) == ("ok", "5")
    assert python.run_code("6").text == "6"


def test_a_fork_in_a_cell_never_answers_for_the_kernel(python):
    code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\npid > 0"
    assert python.run_code(code).text == "True"
    assert python.run_code("1 + 1").text == "2"


# --- forks -------------------------------------------------------------------------------------------------


def test_memory_that_a_fork_shares_is_told_and_not_charged_to_it(python):
    """What all its forks have of a snapshot is there once: a fork's limit may be less than that."""
    mib = 1 << 20
    python.run_code("data = bytearray(b'x') * (64 << 20)")
    with python.fork(limits={"memory": 48 * mib}) as child:
        assert child.run_code("sum(data[::4096])").text == str(ord("x") * 64 * mib // 4096)
        before = child.metrics()
        assert before.memory_bytes >= before.shared_bytes >= 64 * mib
        assert child.run_code("for at in range(0, 16 << 20, 4096): data[at] = 1").reason == "ok"
        after = child.metrics()
        assert before.shared_bytes - after.shared_bytes >= 15 * mib
        # All of it is written to sooner than the next look comes, as a rule.
        code = "for at in range(0, 64 << 20, 4096): data[at] = 2\nimport time; time.sleep(60)"
        assert child.run_code(code).reason == "died"
        result = child.wait(timeout=GRACE_S)
        assert (result.reason, result.limit_value) == ("oom", 48 * mib)
    assert python.run_code("set(data)").text == str({ord("x")})


def test_parent_and_children_diverge_in_memory_and_files(python):
    python.run_code("x = 1; open('/tmp/f', 'w').write('parent')")
    with python.fork(3) as children:
        for number, child in enumerate(children):
            child.run_code(f"x += {number}; open('/tmp/f', 'w').write('{number}')").check()
        assert [child.run_code("x, open('/tmp/f').read()").text for child in children] == [
            f"({1 + number}, '{number}')" for number in range(3)
        ]
        with children[2].fork() as grandchild:
            assert grandchild.run_code("x").text == "3"
            assert grandchild.info.epoch == children[2].info.epoch + 1 == python.info.epoch + 2
    assert python.run_code("x, open('/tmp/f').read()").text == "(1, 'parent')"


def test_what_differs_from_child_to_child_is_given_by_lists(python):
    with python.fork(
        2,
        env=[{"A": "1"}, {"A": "2"}],
        names=["first-of-two", "second-of-two"],
        metadata=[{"step": "1"}, None],
        limits=[{"output": 10}, None],
    ) as (first, second):
        look = "import os, socket; os.environ['A'], socket.gethostname(), os.environ['RAMET_SANDBOX_ID']"
        assert second.run_code(look).text == f"('2', 'second-of-two', '{second.id}')"
        assert first.run_code("print('x' * 100)").out.kept == b"x" * 9 + b"\n"
        assert (first.info.metadata, second.info.metadata) == ({"step": "1"}, {})
        assert first.info.name == "first-of-two"


FIRST_VALUES = """
import os, random, secrets, ssl, tempfile, uuid
def values():
    with tempfile.NamedTemporaryFile() as file:
        return (os.urandom(8), random.random(), secrets.token_hex(8), ssl.RAND_bytes(8),
                os.path.basename(file.name), str(uuid.uuid4()))
values()
"""


def test_of_a_hundred_children_no_two_draw_the_same(python):
    python.run_code(FIRST_VALUES).check()
    with python.fork(100) as children:
        drawn = [eval(child.run_code("values()").check().text) for child in children]
        machines = {child.run_code("open('/etc/machine-id').read()").text for child in children}
    for kind in zip(*drawn, strict=True):
        assert len(set(kind)) == 100
    assert len(machines) == 100


def test_each_child_finds_its_own_address_by_its_name_and_keeps_what_was_noted_of_others(python):
    own = "import socket; socket.gethostbyname(socket.gethostname()), open('/etc/hosts').read()"
    assert (
        python.run_code("open('/etc/hosts', 'a').write('127.0.0.9 other\\n') and None; " + own).error is None
    )
    with python.fork() as child, child.fork(1, names=["named"]) as (grandchild,):
        assert [change.path for change in child.diff()] == []
        for one in (child, grandchild):
            address, hosts = ast.literal_eval(one.run_code(own).text)
            assert address == "127.0.1.1"
            assert "127.0.0.9 other" in hosts
            assert hosts.count("# this sandbox") == 2
        assert hosts.endswith("127.0.1.1 named # this sandbox\n")


def test_etc_hostname_has_the_name_of_each_sandbox(python):
    own = "import socket; (socket.gethostname() + '\\n', open('/etc/hostname').read())"
    with python.fork() as child, child.fork(1, names=["named-so"]) as (grandchild,):
        said = [ast.literal_eval(one.run_code(own).check().text) for one in (python, child, grandchild)]
        assert [change.path for change in child.diff()] == []
    assert all(name == written for name, written in said)
    assert len(set(said)) == 3
    assert said[2] == ("named-so\n", "named-so\n")


def test_a_seed_has_children_repeat_themselves(python):
    python.run_code(FIRST_VALUES).check()
    with python.fork(3, seed=[5, 5, 6]) as children:
        drawn = [eval(child.run_code("values()").check().text) for child in children]
    same, other = drawn[0], drawn[2]
    assert (same[1], same[4]) == (drawn[1][1], drawn[1][4])
    assert same[1] != other[1]
    assert len({values[3] for values in drawn}) == 3  # what is secret never repeats


@pytest.mark.parametrize(
    "work",
    [
        "while not over(): pass",
        "while not over(): time.sleep(0.05)",
        "while not over(): hashlib.pbkdf2_hmac('sha256', b'x', b'y', 50_000)",
    ],
)
def test_code_that_runs_at_a_fork_ends_in_both(python, work):
    # The work lasts until the forks are made, however long that takes, and in the parent until it is told.
    python.run_code(
        "import hashlib, random, ramet_kernel, signal, time\n"
        "first, told = ramet_kernel.epoch(), []\n"
        "def over(): return ramet_kernel.epoch() > first or told"
    )
    began = threading.Event()
    code = (
        "signal.signal(signal.SIGINT, lambda *_: told.append(1))\n"
        f"print('began', flush=True)\n{work}\nprint('done')\nrandom.random()"
    )
    told = []
    thread = threading.Thread(
        target=lambda: told.append(python.run_code(code, on_stdout=lambda _: began.set()))
    )
    thread.start()
    assert began.wait(GRACE_S)
    with python.fork(2) as children:
        assert [child.running_code for child in children] == [python.running_code] * 2
        assert told == []
        python.interrupt()
        ends = [child.attach(GRACE_S) for child in children]
        assert [(end.stdout, end.reason) for end in ends] == [("done\n", "ok")] * 2
        assert [child.run_code("1").text for child in children] == ["1", "1"]
        assert [child.running_code for child in children] == [None, None]
        thread.join(GRACE_S)
        assert len({end.text for end in [*ends, *told]}) == 3
    with pytest.raises(InvalidRequest):
        python.attach()


def test_hooks_run_in_each_child_before_anything_else(python):
    python.run_code(
        "import ramet_kernel\nseen = []\n@ramet_kernel.on_fork\ndef f(info): seen.append(info.epoch)"
    )
    with python.fork(2) as children:
        assert [child.run_code("len(seen)").text for child in children] == ["1", "1"]
    assert python.run_code("len(seen)").text == "0"


def test_what_fails_of_a_hook_is_told(python):
    python.run_code("import ramet_kernel\ndef bad(info): raise ValueError('hook')\nramet_kernel.on_fork(bad)")
    with python.fork() as child:
        child.run_code("1").check()
        assert len(child.fork_errors) == 1
        assert "hook" in child.fork_errors[0]
    assert python.fork_errors == ()


def test_a_snapshot_of_a_kernel_is_forked_by_its_name(python):
    python.run_code("x = 41")
    python.snapshot("of-a-kernel")
    try:
        with ramet.Sandbox("of-a-kernel", env={"A": "b"}) as later:
            assert later.run_code("import os; x + 1, os.environ['A']").text == "(42, 'b')"
    finally:
        ramet.snapshots.remove("of-a-kernel")


# --- other languages ---------------------------------------------------------------------------------------


def test_a_shell_keeps_its_variables_functions_and_directory():
    with ramet.Sandbox("bash") as shell:
        shell.run_code("x=5; f() { echo $((x + $1)); }; cd /tmp")
        done = shell.run_code("f 2; pwd; echo to >&2; false")
        assert (done.stdout, done.stderr, done.exit_code) == ("7\n/tmp\n", "to\n", 1)
        with shell.fork(20) as children:
            assert {child.run_code("f 3").stdout for child in children} == {"8\n"}
            assert len({child.run_code("echo $RANDOM $SRANDOM").stdout for child in children}) == 20
        assert shell.run_code("sleep 60", timeout=0.2).reason == "timeout"
        assert shell.run_code("set -eu\necho $nope\necho not").stdout == ""
        assert shell.run_code("echo $x").stdout == "5\n"


def test_node_keeps_its_names(monkeypatch):
    if ramet.run("node --version").exit_code:
        pytest.skip("no node in the sandbox")
    with ramet.Sandbox("node") as node:
        node.run_code("const list = [1, 2]; console.log('hi')")
        assert node.run_code("await Promise.resolve(list.length)").text == "2"
        assert node.run_code("throw new TypeError('no')").error.name == "TypeError"
        with node.fork(10) as children:
            draw = "Math.random() + require('crypto').randomUUID()"
            assert len({child.run_code(draw).text for child in children}) == 10
            for one in (node, children[0]):
                done = one.run_code("await 1; while (true) {}", timeout=0.2)
                assert (done.reason, done.state_kept) == ("timeout", True)
                assert one.run_code("list").text == "[ 1, 2 ]"


def test_code_runs_in_all_of_them_and_the_best_goes_on_with_its_state():
    with ramet.Sandbox("python") as parent:
        parent.run_code("x = 10")

        def work(child):
            return int(child.run_code(f"x += {child.info.metadata['number']}; x").text)

        noted = [{"number": str(number)} for number in range(3)]
        with ramet.rollouts(parent, 3, work, best=float, commit=False, metadata=noted) as found:
            assert [one.value for one in found.attempts] == [10, 11, 12]
            assert found.sandbox.run_code("x").text == "12"
        assert parent.run_code("x").text == "10"
