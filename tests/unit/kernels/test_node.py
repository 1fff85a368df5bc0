"""The node kernel: one process that keeps its state."""

import json
import shutil

import pytest

from unit.kernels.driver import Driven


@pytest.fixture
def own():
    if shutil.which("node") is None:
        pytest.skip("there is no node on this machine")
    with Driven("node") as kernel:
        yield kernel


@pytest.mark.parametrize(
    "code, text",
    [
        ("1 + 1", "2"),
        ("'a'", "'a'"),
        ("undefined", None),
        ("var a = 1", None),
        ("", None),
        ("{a: 1}", "{ a: 1 }"),
        ("({value: 5})", "{ value: 5 }"),
        ("await ({value: 5})", "{ value: 5 }"),
        ("await Promise.resolve(7) + 1", "8"),
        ("async function g() { await 1; return 3 }\nawait g()", "3"),
        ("for await (const x of [Promise.resolve(9)]) var last = x; last", "9"),
        ("(await import('fs')).existsSync('/')", "true"),
        ("require('path').join('a', 'b')", "'a/b'"),
        ("[1, [2, [3, [4]]]]", "[ 1, [ 2, [ 3, [Array] ] ] ]"),
    ],
)
def test_the_value_of_the_last_expression_is_inspected(node, code, text):
    assert node.text(code) == text
    assert node.results == []


def test_declarations_are_kept_and_can_be_made_again(node):
    for code in (
        "const one = 1; let two = 2",
        "const one = 5, two = 6",
        "class A { f() { return 1 } }",
        "class A { f() { return 2 } }",
    ):
        assert node.run(code)["reason"] == "ok"
    node.run("const { p, ...rest } = { p: 1, q: await 2 }")
    assert node.text("[one, two, new A().f(), p, rest.q]") == "[ 5, 6, 2, 1, 2 ]"
    assert node.text("const crypto = require('crypto'); typeof crypto.createHmac") == "'function'"


def test_what_a_cell_imports_is_there_in_later_ones(node, tmp_path):
    (tmp_path / "one.mjs").write_text("export const a = 1, b = 2; export default 3\n")
    code = f"""import d, {{ a, b as other }} from '{tmp_path}/one.mjs'
import * as all from "{tmp_path}/one.mjs"
import e, * as rest from '{tmp_path}/one.mjs';
import {{
  default as f
}} from 'node:path'
import 'fs'"""
    assert node.text(code) is None
    assert node.text("[d, a, other, all.b, e, rest.a, typeof f.join]") == "[ 3, 1, 2, 2, 3, 1, 'function' ]"
    assert node.run(f"import {{ a }} from '{tmp_path}/none.mjs'")["error"]["name"] == "Error"
    lines = node.run("import {\n  join\n} from 'path'\nundefined_name")["error"]["traceback"]
    assert any(":4" in line for line in lines)


def test_named_contexts_have_names_of_their_own(node):
    node.run("shared_name = 1", context="a")
    assert node.text(
        "[shared_name, typeof require, typeof fs.readFileSync, Math.random() < 1]", context="a"
    ) == ("[ 1, 'function', 'function', true ]")
    assert node.text("typeof shared_name") == "'undefined'"
    node.send(op="end_context", context="a")
    assert node.event()["existed"] is True
    assert node.text("typeof shared_name", context="a") == "'undefined'"


def test_output_is_in_the_pipes_when_a_cell_is_done(node):
    node.written("out")
    node.run("console.log('x'.repeat(1_000_000)); console.error('e')")
    assert len(node.written("out", b"x\n")) == 1_000_001
    assert node.written("err", b"e\n") == "e\n"


def test_an_error_has_its_stack_without_the_kernel(node):
    error = node.run("function f() {\n  throw new TypeError('bad')\n}\nf()")["error"]
    assert (error["name"], error["value"]) == ("TypeError", "bad")
    text = "\n".join(error["traceback"])
    assert "<cell " in text
    assert "ramet_kernel" not in text
    assert "node:vm" not in text
    error = node.run("await Promise.reject(new RangeError('r'))")["error"]
    assert error["name"] == "RangeError"
    assert node.run("throw 'text'")["error"]["value"] == "'text'"


def test_a_syntax_error_points_at_the_place(node):
    error = node.run("foo bar")["error"]
    assert error["name"] == "SyntaxError"
    assert error["traceback"][1:3] == ["foo bar", "    ^^^"]


def test_rich_results_are_those_of_other_kernels_of_javascript(node):
    node.run(
        "display(5); "
        "({ [Symbol.for('Jupyter.display')]() { return { 'text/html': '<b>', 'a/b': { c: 1 } } } })"
    )
    shown, main = node.results
    assert (shown["main"], shown["data"]) == (False, {"text/plain": "5"})
    assert main["main"] is True
    assert (main["data"]["text/html"], main["data"]["a/b"]) == ("<b>", '{"c":1}')


@pytest.mark.parametrize(
    "code", ["process.exit(3)", "setTimeout(() => process.exit(3), 1); await new Promise(() => {})"]
)
def test_exit_ends_the_cell_and_the_process_lives(node, code):
    done = node.run(code)
    assert (done["reason"], done["exit_code"]) == ("exit", 3)
    assert node.text("1") == "1"


def test_what_is_thrown_after_the_cell_is_told_and_ends_nothing(node):
    node.run("setTimeout(() => { throw new Error('late') }, 1); Promise.reject(new Error('unheard'))")
    assert "Uncaught Error: late" in node.written("err", b"late") + node.written("err", b"")
    assert node.text("1") == "1"


LATER = "await new Promise((r) => setTimeout(r, 5)); "


@pytest.mark.parametrize(
    "code",
    [
        "console.log('begun'); while (true) {}",
        "setTimeout(console.log, 20, 'begun'); await new Promise(() => {})",
        f"{LATER}console.log('begun'); while (true) {{}}",
        f"{LATER}console.log('begun'); while (true) try {{ while (true) {{}} }} catch {{}} finally {{}}",
        f"{LATER}console.log('begun'); while (true) await null",
        "setTimeout(() => { console.log('begun'); while (true) {} }, 5); await new Promise(() => {})",
        "setImmediate(() => { console.log('begun'); for (;;); }); await new Promise(() => {})",
        "process.nextTick(() => { console.log('begun'); for (;;); }); await new Promise(() => {})",
        "({ [require('util').inspect.custom]() { console.log('begun'); for (;;); } })",
        f"{LATER}({{ [require('util').inspect.custom]() {{ console.log('begun'); for (;;); }} }})",
        "process.removeAllListeners('SIGINT'); console.log('begun'); await new Promise(() => {})",
    ],
)
def test_an_interrupt_ends_the_cell_and_keeps_the_state(node, code):
    node.run("var kept = 5")
    done = node.interrupted(code)
    assert (done["reason"], done["error"]["name"]) == ("interrupted", "Interrupted")
    assert node.text("kept") == "5"


def test_what_was_left_behind_goes_on_after_an_interrupt(own):
    own.run("let ticks = 0, waiting = []; setInterval(() => { ticks += 1; waiting.forEach((r) => r()) }, 1)")
    for _ in range(5):
        assert own.interrupted(f"{LATER}console.log('begun'); while (true) {{}}")["reason"] == "interrupted"
        assert own.text("await new Promise((r) => waiting.push(r)); ticks > 0") == "true"


def test_requests_that_come_amid_a_loop_are_answered_once_it_is_interrupted(own):
    own.start(f"{LATER}console.log('begun'); while (true) {{}}")
    own.written("out", b"begun")
    own.send(op="ping", id="p")
    own.start("5 + 5", name="2")
    own.interrupt()
    assert own.until("done")["reason"] == "interrupted"
    assert own.event() == {"event": "pong", "id": "p", "epoch": 0}
    assert own.until("done")["text"] == "10"


# What may be thrown: none of it can be inspected, or it throws when it is looked at.
BAD = {
    "inspect": "{ [require('util').inspect.custom]() { throw new Error() } }",
    "getters": "Object.defineProperties(new Error(), Object.fromEntries(['stack', 'name', 'message', 'code']"
    ".map((one) => [one, { get() { throw bad } }])))",
    "proxy": "new Proxy({}, new Proxy({}, { get() { throw bad } }))",
    "symbol": "Object.assign(new Error(), { name: Symbol(), message: Symbol(), stack: Symbol() })",
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_inspected_can_be_thrnode_and_ends_the_cell_alone(node, name):
    assert node.run(f"var bad = {BAD[name]}; 1")["text"] == "1"
    for code in (
        "throw bad",
        "await 1; throw bad",
        "({ [Symbol.for('Jupyter.display')]() { throw bad } }); ",
    ):
        assert node.run(code)["reason"] in {"ok", "error"}
    node.written("err")
    node.run(
        "setTimeout(() => { throw bad }, 1); Promise.reject(bad); await new Promise((r) => setTimeout(r, 20))"
    )
    assert node.written("err", b"Uncaught").count("Uncaught") >= 1
    assert node.text("1") == "1"


def test_a_hook_may_throw_what_cannot_be_inspected(own):
    for bad in BAD.values():
        assert own.run(f"var bad = {bad}; process.once('forked', () => {{ throw bad }}); 1")["text"] == "1"
        assert own.fork(1)["errors"][-1].startswith("hook ")


def test_all_that_an_error_says_is_bounded(node):
    for code in ("throw new Error('x'.repeat(70_000_000))", "throw 'x'.repeat(70_000_000)"):
        done = node.run(code)
        assert done["reason"] == "error"
        assert len(json.dumps(done)) < 1 << 23
    node.run("throw new Error('x'.repeat(3_000_000))")
    lines = node.run("var e = new Error('y'); e.stack = 'z'.repeat(3_000_000); throw e")["error"]["traceback"]
    assert len("\n".join(lines[:-1])) == 1 << 20
    assert lines[-1].endswith(" characters more]")


@pytest.mark.parametrize(
    "code, kept, dropped",
    [
        ("{'a/b': 'é'.repeat((1 << 24) - 1), 'c/d': 'y'}", {"c/d"}, {"a/b": (1 << 24) - 1}),
        ("{'a/b': '\\x01'.repeat(1 << 22), 'c/d': 'y'}", {"c/d"}, {"a/b": 1 << 22}),
        (
            "Object.fromEntries([0, 1, 2, 3].map((n) => ['a/' + n, 'abcd'[n].repeat(5 << 20)]))",
            {"a/1", "a/2", "a/3"},
            {"a/0": 5 << 20},
        ),
        ("Object.fromEntries(Array.from({ length: 1000 }, (_, n) => ['a/' + n, '']))", None, None),
        ("{['n'.repeat(1 << 25)]: ''}", set(), {"n" * 1024: 0}),
    ],
    ids=["wide", "escaped", "many", "names", "long name"],
)
def test_all_that_a_result_says_is_bounded(node, code, kept, dropped):
    assert node.run(f"display({code}, {{ raw: true }}); display('whole')")["reason"] == "ok"
    result, whole = node.results
    assert len(json.dumps(result, ensure_ascii=False).encode()) < 1 << 25
    if dropped is not None:
        assert (set(result["data"]), result["dropped"]) == (kept, dropped)
    else:
        assert "488 more" in result["dropped"]  # 256 are kept, and 256 named
    assert whole["data"]["text/plain"] == "'whole'"


DISMANTLING = {
    "globals": [
        "JSON.stringify = JSON.parse = Buffer.from = Buffer.concat = null",
        "JSON = Buffer = Promise = Map = Object = String = Number = Reflect = Error = Atomics = null",
        "setTimeout = setImmediate = queueMicrotask = null",
        "eval = Function = globalThis.process = globalThis.globalThis = null",
    ],
    "prototypes": [
        "for (const one of ['push', 'shift', 'join', 'sort', 'splice']) Array.prototype[one] = null",
        "for (const one of ['slice', 'split', 'endsWith']) String.prototype[one] = null",
        "for (const one of ['get', 'set', 'delete', 'has']) Map.prototype[one] = null",
    ],
    "modules": [
        "Promise.prototype.then = Promise.race = Promise.all = null",
        "process.on = process.rawListeners = process.listeners = process.reallyExit = null",
        "require('fs').writeSync = require('util').inspect = require('vm').Script = null",
        "Object.prototype.toJSON = Array.prototype.toJSON = String.prototype.toJSON = () => 'nothing'",
    ],
}


@pytest.mark.parametrize("code", DISMANTLING.values(), ids=DISMANTLING)
def test_code_that_takes_the_language_apart_disarms_itself_alone(own, code):
    assert own.run("; ".join(code))["reason"] == "ok"
    assert own.run("5 + 5")["reason"] in {"ok", "error"}
    own.send(op="ping", id="p")
    assert own.event() == {"event": "pong", "id": "p", "epoch": 0}
    assert own.fork(1)["epoch"] == 1
    assert own.interrupted("console.log('begun'); while (true) {}")["reason"] == "interrupted"


def test_a_hook_of_once_is_called_once_and_one_that_would_have_to_be_awaited_is_told(own):
    own.run("var calls = []; process.once('forked', (info) => calls.push(info.epoch))")
    own.run("process.on('forked', async function later() { calls.push('later') })")
    for epoch in (1, 2):
        error = own.fork(epoch, seed=1)["errors"][-1]
        assert error == "hook later: Error: it returned a promise, which nobody awaits"
    assert own.text("calls") == "[ 1, 'later', 'later' ]"


def test_an_interrupt_while_idle_is_ignored(node):
    for _ in range(20):
        node.interrupt()
    assert node.text("1") == "1"


def test_a_fork_renews_random_numbers_and_repeats_them_with_a_seed(own):
    own.run(
        "const { randomUUID, randomInt } = require('crypto'), { random } = Math; randomUUID(); randomInt(9)"
    )
    values = (
        "[Math.random(), random(), randomUUID(), randomInt(2 ** 40), "
        "crypto.getRandomValues(new Uint32Array(2)).join()]"
    )
    seen = []
    for epoch in range(1, 6):
        own.fork(epoch, seed=7)
        seen.append(own.text(values).strip("[] \n").split(",\n"))
    columns = list(zip(*seen, strict=True))
    assert [len(set(column)) for column in columns] == [1, 1, 5, 5, 5]
    free = set()
    for epoch in range(100):
        own.fork(epoch)
        free.add(own.text("Math.random()"))
    assert len(free) == 100


def test_a_fork_sets_the_environment_and_calls_hooks(own):
    own.run(
        "process.env.GONE = 'x'; process.on('forked', (info) => { seen = info }); "
        "process.on('forked', function bad() { no() })"
    )
    told = own.fork(2, seed=1, env={"NEW": "n", "GONE": None})
    assert told["errors"][-1:] == ["hook bad: ReferenceError: no is not defined"]
    assert own.text(
        "[process.env.NEW, process.env.GONE, process.env.RAMET_SANDBOX_ID, process.env.RAMET_EPOCH]"
    ) == ("[ 'n', undefined, 'sb', '2' ]")
    assert own.text("[seen.epoch, seen.seed]") == "[ 2, 1 ]"


def test_a_cell_that_awaits_goes_on_as_the_childs_and_waiting_requests_stay_with_the_parent(own):
    own.start(
        "console.log('begun'); "
        "while (!process.env.RAMET_EPOCH) await new Promise((r) => setTimeout(r, 5)); 'over'"
    )
    own.written("out", b"begun")
    own.start("stolen = 1", name="2")
    own.send(op="ping", id="p")
    assert own.fork(1)["epoch"] == 1
    done = own.until("done")
    assert (done["text"], done["epoch"]) == ("'over'", 1)
    assert own.text("typeof stolen") == "'undefined'"


def test_a_line_that_a_fork_has_cut_is_dropped(own):
    line = own.kernel.request({"op": "run", "id": "cut", "code": "cut = 1"})[0]
    for at in (1, 5, len(line) - 2, len(line) - 1):
        own.socket.sendall(line[:at])
        own.fork(1)
        assert own.results == []
    assert own.text("typeof cut") == "'undefined'"


def test_nonsense_is_refused(node):
    for line in (
        b"what",
        b"{}",
        b"5",
        b"null",
        b'{"op":"what"}',
        b'{"op":"run","id":"1"}',
        b'{"op":5}',
        b"\xff\x00",
    ):
        node.socket.sendall(line + b"\n")
        assert node.event()["event"] == "refused"
    node.send(op="ping", id="p")
    assert node.event() == {"event": "pong", "id": "p", "epoch": 0}


def test_commands_do_not_hold_the_channel(node):
    node.written("out")
    node.run("require('child_process').spawnSync('ls', ['-l', '/proc/self/fd'], { stdio: 'inherit' })")
    assert "socket" not in node.written("out", b"/proc/")


def test_the_process_ends_with_its_channel(own):
    own.socket.close()
    assert own.process.wait(10) == 0


def test_programs_that_a_cell_forks_start_as_any_other(node, tmp_path):
    (tmp_path / "child.js").write_text("process.send(require('crypto').randomBytes(4).length)")
    code = f"await new Promise((r) => require('child_process').fork('{tmp_path}/child.js').on('message', r))"
    assert node.text(code) == "4"


def test_where_openssl_cannot_be_renewed_the_fork_says_so(node):
    # Bit 62 is RDRAND: OpenSSL takes it for absent, and has no engine of that name.
    with Driven("node", env={"OPENSSL_ia32cap": "~0x4000000000000000"}) as kernel:
        (error,) = kernel.fork(1)["errors"]
    assert error.startswith("crypto: ")
    assert "may repeat those of sibling sandboxes" in error


def test_what_ps_shows_is_short(own):
    with open(f"/proc/{own.process.pid}/cmdline") as line:
        assert len(line.read()) < 500
