"""The Python kernel: cells behave as in a notebook."""

import base64
import json
import os
import signal
import textwrap

import pytest

from unit.kernels.driver import Driven, interpreters, with_module


def cell(text):
    return textwrap.dedent(text).strip("\n")


# --- values and results -----------------------------------------------------------------------------------


def test_the_value_of_the_last_expression_is_the_text(shared):
    assert shared.text("a = 20\na + 1") == "21"


@pytest.mark.parametrize("code", ["None", "a = 1", "1;", "1 ; # comment", "", "# comment", "pass"])
def test_cells_without_a_value_have_no_text(shared, code):
    assert shared.text(code) is None


@pytest.mark.parametrize("code, text", [("'a;'", "'a;'"), ("1 # ;", "1"), ("'é;'", "'é;'")])
def test_a_semicolon_elsewhere_hides_nothing(shared, code, text):
    assert shared.text(code) == text


def test_the_last_value_is_underscore_unless_the_code_uses_that_name(python):
    python.run("6 * 7")
    assert python.text("_") == "42"
    python.run("_ = str")
    python.run("1")
    assert python.text("_(5)") == "'5'"


def test_rich_representations_come_with_the_value_and_text_without(shared):
    shared.run(
        cell("""
        class Rich:
            def __repr__(self): return "rich"
            def _repr_html_(self): return "<b>rich</b>"
            def _repr_png_(self): return b"\\x89PNG"
            def _repr_svg_(self): return "<svg/>"
            def _repr_json_(self): return {"a": [1]}
            def _repr_markdown_(self): return "*rich*"
            def _repr_latex_(self): return "$r$", {"meta": 1}
        """)
    )
    assert shared.text("Rich()") == "rich"
    (result,) = shared.results
    assert result == {
        "event": "result",
        "id": "1",
        "main": True,
        "data": {
            "text/plain": "rich",
            "text/html": "<b>rich</b>",
            "image/png": base64.b64encode(b"\x89PNG").decode(),
            "image/svg+xml": "<svg/>",
            "application/json": '{"a": [1]}',
            "text/markdown": "*rich*",
            "text/latex": "$r$",
        },
    }
    shared.text("5")
    assert shared.results == []


def test_a_bundle_wins_over_single_representations(shared):
    shared.run(
        cell("""
        class Bundled:
            def _repr_mimebundle_(self, include=None, exclude=None):
                return {"text/html": "bundle", "x/y": b"1"}, {}
            def _repr_html_(self): return "single"
        """)
    )
    shared.run("Bundled()")
    assert shared.results[0]["data"]["text/html"] == "bundle"
    assert shared.results[0]["data"]["x/y"] == base64.b64encode(b"1").decode()


def test_a_representation_that_fails_is_noted_and_left_out(shared):
    shared.written("err")
    shared.run(
        "class Bad:\n    def _repr_html_(self): raise ValueError('no')\n    def __repr__(self): return 'bad'"
    )
    assert shared.text("Bad()") == "bad"
    assert shared.results == []
    assert "_repr_html_ of Bad failed: ValueError: no" in shared.written("err", b"no")


def test_a_value_with_a_greedy_getattr_has_no_rich_representation(shared):
    assert shared.text(
        "class Any:\n    def __getattr__(self, name): return lambda *a, **k: 1\nrepr(Any())[:3]"
    )
    shared.run("Any()")
    assert shared.results == []


def test_a_repr_that_raises_is_the_error_of_the_cell(shared):
    done = shared.run("class No:\n    def __repr__(self): raise OSError('repr')\nNo()")
    assert (done["reason"], done["error"]["name"]) == ("error", "OSError")


def test_display_shows_values_in_order_and_before_the_main_one(shared):
    assert shared.text("display(1, 'two'); display({'text/html': '<i>'}, raw=True)\n3") == "3"
    assert [result["data"] for result in shared.results] == [
        {"text/plain": "1"},
        {"text/plain": "'two'"},
        {"text/html": "<i>"},
    ]
    assert not any(result["main"] for result in shared.results)


def test_what_notebooks_import_of_ipython_is_there_without_it(python, tmp_path):
    (tmp_path / "picture").write_bytes(b"\x89PNG...")
    python.run("import sys; sys.path[:] = [path for path in sys.path if 'site-packages' not in path]")
    python.run(
        cell(f"""
        from IPython.display import HTML, Image, JSON, Markdown, Math, clear_output, display
        from IPython.core.display import display as older
        import IPython
        assert older is display and IPython.get_ipython() is None
        clear_output(wait=True)
        display(HTML("<b>a</b>"), Markdown(data="*b*"), Math("c"), JSON({{"d": 1}}))
        Image({str(tmp_path / "picture")!r})
        """)
    )
    shown = [{**one["data"]} for one in python.results]
    assert [sorted({*data} - {"text/plain"}) for data in shown] == [
        ["text/html"],
        ["text/markdown"],
        ["text/latex"],
        ["application/json"],
        ["image/png"],
    ]
    assert shown[0]["text/html"] == "<b>a</b>"
    assert base64.b64decode(shown[-1]["image/png"]) == b"\x89PNG..."
    failed = python.run("Image('https://example.org/a.png')")["error"]
    assert (failed["name"], "fetch" in failed["value"]) == ("UsageError", True)
    assert python.run("import IPython.nothing")["error"]["name"] == "ModuleNotFoundError"


def test_an_ipython_that_is_installed_shows_things_among_the_results(tmp_path):
    (tmp_path / "IPython/core").mkdir(parents=True)
    (tmp_path / "IPython/__init__.py").write_text("own = True")
    (tmp_path / "IPython/core/__init__.py").touch()
    (tmp_path / "IPython/core/display_functions.py").write_text("def display(*a, **k): print('printed')")
    (tmp_path / "IPython/display.py").write_text("from IPython.core.display_functions import *")
    with Driven("python", env={"PYTHONPATH": str(tmp_path)}) as python:
        python.run("import IPython\nfrom IPython.display import display\nassert IPython.own\ndisplay(7)")
        assert [one["data"] for one in python.results] == [{"text/plain": "7"}]
        assert python.output["out"] == b""


def test_a_text_that_is_too_long_is_cut_and_says_its_length(shared):
    done = shared.run("'x' * 3_000_000")
    assert done["truncated"] == 3_000_002
    assert done["text"] == "'" + "x" * ((1 << 20) - 1)


def test_data_that_is_too_large_is_named_as_dropped(shared):
    shared.run("display({'a/b': 'x' * (1 << 25), 'c/d': 'y'}, raw=True)")
    assert shared.results[0]["data"] == {"c/d": "y"}
    assert shared.results[0]["dropped"] == {"a/b": 1 << 25}


@pytest.mark.parametrize(
    "code, kept, dropped",
    [
        ("{'a/b': 'é' * ((1 << 24) - 1), 'c/d': 'y'}", {"c/d"}, {"a/b": (1 << 24) - 1}),
        ("{f'a/{n}': chr(97 + n) * (5 << 20) for n in range(4)}", {"a/1", "a/2", "a/3"}, {"a/0": 5 << 20}),
        ("{f'a/{n}': '' for n in range(1000)}", None, None),
        ("{'n' * (1 << 24) + str(n): '' for n in range(5)}", {""}, None),
    ],
    ids=["escaped", "many", "names", "long names"],
)
def test_all_that_a_result_says_is_bounded(shared, code, kept, dropped):
    assert shared.run(f"display({code}, raw=True); display('whole')")["reason"] == "ok"
    (result, whole) = shared.results
    assert len(json.dumps(result)) < 1 << 25
    if dropped is not None:
        assert (set(result["data"]), result["dropped"]) == (kept, dropped)
    else:
        assert "dropped" in result
    assert whole["data"]["text/plain"] == "'whole'"


@pytest.mark.parametrize(
    "code, name",
    [
        ("raise ValueError('x' * 70_000_000)", "ValueError"),
        ("raise SystemExit('x' * 70_000_000)", "SystemExit"),
        ("raise type('N' * 70_000_000, (Exception,), {})", "N" * 1024),
    ],
    ids=["value", "exit", "name"],
)
def test_all_that_an_error_says_is_bounded(shared, code, name):
    done = shared.run(code)
    assert done["error"]["name"] == name
    assert len(json.dumps(done)) < 1 << 23
    assert shared.text("1") == "1"


def test_a_traceback_that_is_cut_says_how_much_is_left_out(shared):
    lines = shared.run("raise ValueError('x' * 3_000_000)")["error"]["traceback"]
    said = sum(map(len, lines[:-1]))
    assert (1 << 20) - 100 < said <= 1 << 20
    assert lines[-2].startswith("ValueError: xxx")
    assert lines[-1] == f"[{len('ValueError: ') + 3_000_000 - len(lines[-2])} characters more]"


def test_texts_of_the_codes_own_class_are_taken_as_they_are(shared):
    code = cell("""
    class Text(str):
        def __len__(self): return 0
        def __getitem__(self, _): return self
        def __str__(self): return self
        def __repr__(self): return self
    Text("x" * 3_000_000)
    """)
    assert shared.run(code)["truncated"] == 3_000_000


def test_results_of_many_packets_arrive_whole(shared):
    shared.run("display({'a/b': 'xy' * 500_000}, raw=True)")
    assert shared.results[0]["data"]["a/b"] == "xy" * 500_000


def test_code_of_many_packets_arrives_whole(shared):
    assert shared.text(f"len('{'z' * 200_000}')") == "200000"


def test_lone_surrogates_go_both_ways(shared):
    assert shared.text("'\\udc80'") == "'\\udc80'"
    assert shared.run("'\udc80'")["error"]["name"] == "UnicodeEncodeError"  # as for any Python
    assert shared.text("'😀'") == "'😀'"


# --- output -----------------------------------------------------------------------------------------------


def test_what_a_cell_wrote_is_in_the_pipes_when_it_is_done(shared):
    shared.written("out")
    shared.run("import sys; print('a', end=''); sys.stderr.write('b')")
    assert shared.written("out", b"a") == "a"


def test_output_of_c_is_flushed_when_ctypes_is_there(python):
    python.run("import ctypes; ctypes.CDLL(None).printf(b'from c')")
    assert python.written("out", b"from c") == "from c"


def test_a_replaced_stdout_stays_replaced_and_the_kernel_flushes_its_own(python):
    python.run(
        "import sys, io; real = sys.stdout; sys.stdout = io.StringIO(); print('hidden'); real.write('seen')"
    )
    assert python.written("out", b"seen") == "seen"
    assert python.text("sys.stdout.getvalue()") == r"'hidden\n'"


def test_closing_stdout_does_not_give_its_number_away(python):
    python.run("import sys; sys.stdout.close()")
    assert python.text("f = open('/dev/null'); f.fileno() > 2") == "True"
    python.run("print('again')")
    assert python.written("out", b"again") == "again\n"


def test_a_stdout_that_cannot_be_flushed_or_hashed_harms_nothing(python):
    python.run(
        "class Odd:\n    __hash__ = None\n    def write(self, text): pass\nimport sys; sys.stdout = Odd()"
    )
    python.run("del sys.stdout, sys.stderr")
    assert python.text("1") == "1"


# --- errors -----------------------------------------------------------------------------------------------


def test_a_traceback_shows_the_frames_of_the_user_with_their_lines(python):
    python.run("def f(n):\n    return 1 / n")
    error = python.run("x = 0\nf(x)")["error"]
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    shown = [line for line in error["traceback"] if set(line) - set(" ^~")]
    assert shown == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 2, in <module>',
        "    f(x)",
        '  File "<cell 1>", line 2, in f',
        "    return 1 / n",
        "ZeroDivisionError: division by zero",
    ]


def test_carets_stand_below_what_they_mean(python):
    lines = python.run("1/0")["error"]["traceback"]
    assert lines[2:4] == ["    1/0", "    ~^~"]


def test_chained_exceptions_are_told_in_full(shared):
    error = shared.run(
        cell("""
        try:
            try: int("a")
            except ValueError as e: raise KeyError("k") from e
        except KeyError: raise RuntimeError("r")
        """)
    )["error"]
    text = "\n".join(error["traceback"])
    assert "direct cause" in text
    assert "During handling" in text
    assert "ramet_kernel" not in text


def test_exception_groups_are_told_with_their_members(shared):
    error = shared.run("raise ExceptionGroup('g', [ValueError('v'), TypeError('t')])")["error"]
    text = "\n".join(error["traceback"])
    assert "ValueError: v" in text
    assert "TypeError: t" in text


@pytest.mark.parametrize("code", ["x = = 3", "return 5", "if x:\npass", "'abc"])
def test_a_syntax_error_points_at_the_place_and_has_no_traceback(shared, code):
    error = shared.run(code)["error"]
    assert error["name"] in {"SyntaxError", "IndentationError"}
    assert error["traceback"][0].startswith('  File "<cell ')
    assert any(set(line.strip()) == {"^"} for line in error["traceback"])


@pytest.mark.parametrize(
    "code, name",
    [
        ("def f(): f()\nf()", "RecursionError"),
        ("raise MemoryError", "MemoryError"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise BaseException('b')", "BaseException"),
        ("class E(Exception):\n    def __str__(self): 1/0\nraise E", "E"),
    ],
)
def test_whatever_is_raised_ends_the_cell_alone(shared, code, name):
    shared.run("kept = 5")
    done = shared.run(code)
    assert (done["reason"], done["error"]["name"]) == ("error", name)
    assert shared.text("kept") == "5"


@pytest.mark.parametrize("way", ["SystemExit(bad)", "bad", "SystemExit(3, bad)"])
@pytest.mark.parametrize("inner", ["ValueError", "SystemExit", "KeyboardInterrupt", "MemoryError"])
def test_an_error_that_cannot_be_told_runs_no_code_twice(shared, way, inner):
    code = f"""
    runs = globals().get('runs', 0) + 1
    class Bad(Exception):
        def __str__(self): raise {inner}
    bad = Bad()
    raise {way}
    """
    shared.run("runs = 0")
    assert shared.run(cell(code))["reason"] in {"exit", "error"}
    assert shared.results == []
    assert shared.text("runs") == "1"


def test_an_end_that_the_code_has_broken_is_told_once(python):
    python.run("import ramet_kernel; runs = 0; finish = ramet_kernel._kernel.finish")
    done = python.run(
        cell("""
        runs += 1
        def broken(_):
            ramet_kernel._kernel.finish = finish
            raise LookupError
        ramet_kernel._kernel.finish = broken
        raise OSError
        """)
    )
    assert (done["reason"], done["error"]["name"]) == ("error", "OSError")
    assert "could not be told in full" in done["error"]["value"]
    assert python.fork()["running"] is None
    assert python.text("runs") == "1"


def test_a_stream_that_exits_when_it_is_flushed_harms_nothing(python):
    python.run(
        "import sys\nclass Out:\n    def flush(self): raise SystemExit(3)\n"
        "    def write(self, _): raise SystemExit(4)\nsys.stdout = sys.stderr = Out()"
    )
    assert python.text("1") == "1"


def test_a_low_recursion_limit_is_the_codes_own_affair(python):
    python.run("import sys; sys.setrecursionlimit(60)")
    assert python.run("1/0")["error"]["name"] == "ZeroDivisionError"
    assert python.text("sys.getrecursionlimit()") == "60"


def test_an_excepthook_of_the_code_is_not_asked(python):
    python.run("import sys; sys.excepthook = lambda *a: print('hook')")
    assert python.run("1/0")["reason"] == "error"
    assert python.text("1") == "1"
    assert python.written("out") == ""


@pytest.mark.parametrize(
    "code, status, error",
    [
        ("raise SystemExit", 0, None),
        ("import sys; sys.exit(0)", 0, None),
        ("exit(3)", 3, "3"),
        ("quit('bye')", 1, "bye"),
    ],
)
def test_exit_ends_the_cell_and_the_kernel_lives(shared, code, status, error):
    done = shared.run(code)
    assert (done["reason"], done["exit_code"]) == ("exit", status)
    assert (done["error"] and done["error"]["value"]) == error
    assert shared.text("1") == "1"


@pytest.mark.parametrize("code", ["input('name? ')", "import getpass; getpass.getpass()"])
def test_input_is_refused_and_says_why(shared, code):
    error = shared.run(code)["error"]
    assert error["name"] == "StdinNotImplementedError"
    assert "nobody is there to answer" in error["value"]


def test_standard_input_is_at_its_end(shared):
    assert shared.text("import sys; sys.stdin.read()") == "''"


# --- namespaces -------------------------------------------------------------------------------------------


def test_main_is_the_main_context(shared):
    assert shared.text("y = 1\nimport __main__; (__main__.y, __name__)") == "(1, '__main__')"


def test_named_contexts_have_names_of_their_own(python):
    python.run("v = 'main'")
    python.run("v = 'a'", context="a")
    assert python.text("v", context="a") == "'a'"
    assert python.text("v") == "'main'"
    assert python.run("w", context="a")["error"]["name"] == "NameError"
    assert python.text("import __main__; __main__.v", context="a") == "'a'"
    python.send(op="end_context", context="a")
    assert python.event() == {"event": "context_ended", "context": "a", "existed": True}
    assert python.run("v", context="a")["error"]["name"] == "NameError"
    python.send(op="end_context", context="none")
    assert python.event()["existed"] is False


@pytest.mark.parametrize("context", [None, "named"])
def test_classes_of_cells_can_be_pickled(python, context):
    code = "import pickle\nclass P: pass\ntype(pickle.loads(pickle.dumps(P()))) is P"
    assert python.text(code, context) == "True"


def test_future_imports_hold_for_later_cells_of_their_context(python):
    python.run("from __future__ import annotations")
    assert python.text("def f(a: unknown): pass\nf.__annotations__") == "{'a': 'unknown'}"
    assert python.run("def f(a: unknown): pass\nf.__annotations__", context="b")["reason"] == "error"


def test_code_without_builtins_harms_only_itself(python):
    python.run("del __builtins__")
    assert python.text("len('abc')") == "3"
    python.run("import builtins; del builtins.len, builtins.getattr, builtins.type; builtins.str = None")
    assert python.text("len('abc')") == "3"
    python.run("import builtins; vars(builtins).clear()")
    assert python.text("len('abc')") == "3"
    python.run("import sys; sys.modules.clear()")
    assert python.text("6 * 7") == "42"


DISMANTLING = {
    "os": "import os; os.read = os.write = os.getpid = os._exit = None",
    "json": """
        import json
        json.JSONEncoder.encode = json.JSONEncoder.iterencode = json.encoder.c_make_encoder = None
        json.JSONDecoder.decode = json.JSONDecoder.raw_decode = json.dumps = json.loads = None
    """,
    "signal": """
        import linecache, signal, traceback
        signal.signal = signal.getsignal = signal.SIGINT = linecache.cache = linecache.getline = None
        traceback.TracebackException = traceback.format_exception = None
    """,
    "sys": """
        import sys
        sys.getrecursionlimit = sys.setrecursionlimit = sys.stdout = sys.stderr = sys._getframe = None
    """,
}


@pytest.mark.parametrize("code", DISMANTLING.values(), ids=DISMANTLING)
def test_code_that_takes_the_standard_library_apart_disarms_itself_alone(python, code):
    python.run("import time")
    assert python.run(cell(code))["reason"] == "ok"
    assert python.text("5 + 5") == "10"
    assert python.run("1/0")["error"]["name"] == "ZeroDivisionError"
    assert python.fork(1)["epoch"] == 1
    assert python.interrupted("open(1, 'wb', 0, closefd=False).write(b'begun'); time.sleep(100)")[
        "reason"
    ] == ("interrupted")
    assert python.text("6") == "6"


def test_directory_and_environment_stay_changed(python, tmp_path):
    python.run(f"import os; os.chdir({str(tmp_path)!r}); os.environ['SET'] = 'here'")
    assert python.text("os.getcwd(), os.environ['SET']") == repr((str(tmp_path), "here"))


def test_the_source_of_functions_can_be_read(shared):
    shared.run("def shown(): return 1")
    assert shared.text("import inspect; inspect.getsource(shown)") == r"'def shown(): return 1\n'"


# --- asyncio ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code, text",
    [
        ("  x = 1\n  x + 1", "2"),
        ("\n\n    x = 1\n\n    # so\n    x + 2\n    ", "3"),
        ("# first\n\tx = 4\n\tx", "4"),
        ("    s = '''a\n    b'''\n    s", "'a\\n    b'"),
        ("    from __future__ import annotations\n    1", "1"),
        ("    !true\n    _exit_code", "0"),
        ("  x = 5\n  if x:\n    y = x\ny", "5"),
    ],
)
def test_code_that_is_indented_as_a_whole_is_run_as_it_is_meant(shared, code, text):
    assert shared.text(code) == text


def test_errors_of_indented_code_are_where_they_are(shared):
    done = shared.run("\n    x = 1\n    y = x / 0")
    place, *lines = done["error"]["traceback"][1:-1]
    assert place.endswith(", line 3, in <module>")
    assert lines == ["    y = x / 0", "        ~~^~~"]
    done = shared.run("    x = 1\n    y = (")
    assert (done["error"]["name"], "line 2" in done["error"]["traceback"][0]) == ("SyntaxError", True)
    for code in ("  x = 1\nelse: 2", "x = 1\n  y = 2"):
        assert shared.run(code)["error"]["name"] in {"IndentationError", "SyntaxError"}


def test_await_async_for_and_async_with_work_at_the_top_level(python):
    python.run(
        cell("""
        import asyncio, contextlib
        @contextlib.asynccontextmanager
        async def managed(): yield 1
        async def numbers():
            yield 2
        seen = []
        async with managed() as m: seen.append(m)
        async for n in numbers(): seen.append(n)
        seen += [k async for k in numbers()]
        """)
    )
    assert python.text("await asyncio.sleep(0, seen)") == "[1, 2, 2]"


def test_tasks_of_earlier_cells_go_on_while_later_cells_await(python):
    python.run(
        "import asyncio\nevent = asyncio.Event()\nasync def work():\n    event.set()\n    return 'worked'"
    )
    python.run("task = asyncio.create_task(work())")
    assert python.text("await event.wait()") == "True"
    assert python.text("await task") == "'worked'"


def test_asyncio_run_works_in_cells_that_await_nothing(python):
    assert python.text("import asyncio\nasyncio.run(asyncio.sleep(0, 3))") == "3"
    assert python.text("await asyncio.sleep(0, 4)") == "4"


def test_a_traceback_of_an_awaiting_cell_shows_no_event_loop(python):
    lines = python.run("async def f():\n    raise OSError('x')\nawait f()")["error"]["traceback"]
    files = [line.split('"')[1] for line in lines if line.startswith("  File")]
    assert files == ["<cell 1>", "<cell 1>"]


# --- shell and magics -------------------------------------------------------------------------------------


def test_shell_commands_write_to_the_real_streams_and_see_names(python):
    python.run("name = 'value'")
    python.run("!echo $name {name.upper()} $HOME ${HOME} $$HOME {unknown} | cat")
    home = os.environ["HOME"]
    assert python.written("out", b"}") == f"value VALUE {home} {home} {home} {{unknown}}\n"
    assert python.text("!exit 3\n_exit_code") == "3"


def test_output_of_commands_can_be_assigned(python):
    assert python.text("lines = !printf 'a\\nb\\n'; echo c >&2\nlines") == "['a', 'b', 'c']"
    assert python.text("!!echo d") == "['d']"


def test_commands_in_blocks_strings_and_continued_lines(python):
    code = cell('''
    text = """
    !not a command
    """
    total = (5
    % 3)
    if total == 2:
        !echo one \\
            two
    for i in range(2):
        %env LOOP=$i
    ''')
    assert python.run(code)["reason"] == "ok"
    assert python.written("out", b"LOOP=1") == "one two\nenv: LOOP=0\nenv: LOOP=1\n"
    assert python.text("text") == r"'\n!not a command\n'"


def test_errors_behind_magics_have_their_own_lines(python):
    lines = python.run("!true\n\n1/0")["error"]["traceback"]
    assert '  File "<cell 1>", line 3, in <module>' in lines


def test_magics_that_notebooks_have(python, tmp_path):
    python.run(f"%cd {tmp_path}")
    assert python.text("%pwd") == repr(str(tmp_path))
    python.run("%cd -")
    assert python.text("%env HOME") == repr(os.environ["HOME"])
    assert python.text("%time 1 + 1") == "2"
    assert python.text("t = %time 2 + 1\nt") == "3"
    python.run("%matplotlib inline")
    python.run("%timeit -n 2 -r 3 1 + 1")
    assert "of 3 runs, 2 loops each" in python.written("out", b"each)")
    python.run("%who")
    assert python.written("out", b"\n") == "t\n"
    assert python.text("%pip --version") is None
    assert python.written("out", b"python").startswith("pip ")


def test_magics_of_whole_cells(python, tmp_path):
    python.run("%%bash\nx=5\necho $((x + 1)) $x")
    assert python.written("out", b"\n") == "6 5\n"
    python.run("%%sh\necho who is there?")
    assert python.written("out", b"?\n") == "who is there?\n"
    assert "exit code 4" in python.run("%%sh\nexit 4")["error"]["value"]
    python.run(f"%%writefile {tmp_path}/new.txt\none\n")
    python.run(f"%%writefile -a {tmp_path}/new.txt\ntwo\n")
    assert (tmp_path / "new.txt").read_text() == "one\ntwo\n"
    assert python.text("%%time\nz = 1\nz + 1") == "2"
    error = python.run("\n%%time\nz\n1/0")["error"]
    assert '  File "<cell 7>", line 4, in <module>' in error["traceback"]


def test_a_program_is_run_and_what_it_defines_stays(python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys\nmade = (__name__, sys.argv[1:])\ndef f(): return len(made)\n")
    python.run("made = 1; mine = 5")
    assert python.text(f"%run {program} a 'b c'\nmade, f(), __name__") == (
        "(('__main__', ['a', 'b c']), 2, '__main__')"
    )
    program.write_text("import sys\nmine += 1\nsys.exit(0)")
    assert python.run(f"%run {program}")["error"]["name"] == "NameError"
    assert python.text(f"%run -i {program}\nmine") == "6"
    program.write_text("import sys\nx = 1\nsys.exit(3)")
    assert python.run(f"%run {program}")["error"]["name"] == "SystemExit"
    assert "No such file" in python.run("%run /no/such")["error"]["value"]
    assert python.text(f"import sys; sys.path[0] != '{tmp_path}'") == "True"
    program.write_text("pass")
    within = f"import sys; sys.path.insert(0, '{tmp_path}'); before = len(sys.path)"
    assert (
        python.text(f"{within}\n%run {program}\n(len(sys.path) - before, sys.path[0] == '{tmp_path}')")
        == "(0, True)"
    )


def test_a_question_mark_tells_what_a_name_is(python):
    python.run('def f(a, *, b=2):\n    """Adds."""\n    return a + b')
    python.run("f?")
    told = python.written("out", b"<cell 1>")
    assert "f(a, *, b=2)" in told
    assert "Adds." in told
    python.run("?f.__doc__\nf??\n%run?\nnothing?")
    told = python.written("out", b"not found.\n")
    assert "'Adds.'" in told
    assert "    return a + b" in told
    assert "%run [-i] FILE" in told
    assert told.endswith("Object `nothing` not found.\n")
    assert python.run("f? g")["error"]["name"] == "SyntaxError"


def test_names_cells_and_files_are_listed(python, tmp_path):
    python.run("number = 5; many = [1, 2]")
    python.run("%whos")
    rows = python.written("out", b"number     int    5\n").splitlines()
    assert [row.split() for row in rows] == [
        ["Variable", "Type", "Data/Info"],
        ["many", "list", "n=2"],
        ["number", "int", "5"],
    ]
    python.run(f"%mkdir -p {tmp_path}/one\n%ls {tmp_path}")
    assert python.written("out", b"\n") == "one\n"
    python.run("%history")
    assert python.written("out", b"%history\n").splitlines()[:2] == ["number = 5; many = [1, 2]", "%whos"]


def test_what_a_cell_writes_and_shows_is_captured(python):
    code = "%%capture kept\nprint('one')\n!echo two; echo three >&2\ndisplay(5)"
    assert python.run(code)["reason"] == "ok"
    assert python.text("kept.stdout, kept.stderr, kept.outputs") == (
        r"('one\ntwo\n', 'three\n', [{'text/plain': '5'}])"
    )
    assert python.run("%%capture kept\nprint('four')\n1/0")["error"]["name"] == "ZeroDivisionError"
    python.run("kept.show(); print('end')")
    assert python.written("out", b"end\n") == "four\nend\n"


def test_extensions_are_refused_and_autoreload_says_what_to_do(python):
    error = python.run("%load_ext sql")["error"]
    assert (error["name"], "need IPython" in error["value"]) == ("UsageError", True)
    assert python.run("%load_ext autoreload\n%autoreload 2")["reason"] == "ok"
    assert "importlib.reload" in python.written("err", b"does it\n")


@pytest.mark.parametrize("code", ["%nothing 1", "%%nothing\nbody"])
def test_an_unknown_magic_names_the_known_ones(shared, code):
    error = shared.run(code)["error"]
    assert error["name"] == "UsageError"
    assert all(name in error["value"] for name in ("%cd", "%timeit", "%%bash", "%%writefile"))


# --- interrupts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(100)",
        "import asyncio; await asyncio.sleep(100)",
        "import asyncio; await asyncio.sleep(0)\nwhile True: pass",
        "!sleep 100",
        "x = !sleep 100",
        "!trap '' INT; sleep 100 & wait; sleep 100",
        "import subprocess; subprocess.run(['sleep', '100'])",
        "while True: print('y' * 1000)",
        "class Slow:\n    def __repr__(self):\n        while True: pass\nSlow()",
    ],
)
def test_an_interrupt_ends_the_cell_and_keeps_the_state(python, code):
    python.run("state = 'kept'")
    done = python.interrupted(f"print('begun', flush=True)\n{code}")
    assert (done["reason"], done["error"]["name"]) == ("interrupted", "KeyboardInterrupt")
    assert python.text("state") == "'kept'"


def test_an_interrupted_command_is_ended_with_the_cell(python, tmp_path):
    python.interrupted(f"!echo $$$$ > {tmp_path}/pid; echo begun; sleep 100")
    pid = int((tmp_path / "pid").read_text())
    assert python.text(f"import os; os.path.exists('/proc/{pid}')") == "False"


def test_a_task_that_swallows_cancellation_is_interrupted_by_the_second_signal(python):
    code = cell("""
    import asyncio
    async def stubborn():
        asyncio.get_running_loop().call_later(0.01, print, "begun")
        try: await asyncio.sleep(100)
        except asyncio.CancelledError: print("begun again", flush=True)
        while True: pass
    await stubborn()
    """)
    python.start(code)
    python.written("out", b"begun\n")
    python.interrupt()
    python.written("out", b"begun again")
    python.interrupt()
    assert python.until("done")["reason"] == "interrupted"


def test_code_may_catch_an_interrupt(python):
    code = "import time\ntry:\n    print('begun'); time.sleep(100)\nexcept KeyboardInterrupt: r = 'caught'\nr"
    assert python.interrupted(code)["text"] == "'caught'"


def test_an_interrupt_while_idle_is_ignored(python):
    for _ in range(20):
        python.interrupt()
    assert python.text("1") == "1"


def test_a_handler_of_the_code_lasts_for_its_cell(python):
    python.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert python.interrupted("print('begun')\nwhile True: pass")["reason"] == "interrupted"
    code = "signal.signal(signal.SIGINT, lambda *a: got.set())\nimport threading; got = threading.Event()"
    assert python.interrupted(f"{code}\nprint('begun'); got.wait()")["text"] == "True"


# --- processes, threads, descriptors ----------------------------------------------------------------------


def test_the_channel_is_not_where_code_looks_for_it(python):
    assert python.run("import os; os.read(3, 1)")["error"]["name"] == "OSError"
    python.run("os.closerange(3, 256)")
    assert python.text("os.environ.get('RAMET_CHANNEL')") is None
    assert python.text("x = !ls -l /proc/self/fd\nany('socket' in line for line in x)") == "False"


def test_code_that_closes_the_channel_ends_the_kernel_with_a_word(python):
    python.start("import os; os.closerange(3, 5000)")
    assert python.process.wait(10) == 113
    assert "closed the kernel's channel" in python.written("err", b"channel")


def test_a_process_that_a_cell_forks_off_never_answers(python):
    code = cell("""
    import os
    pid = os.fork()
    if pid == 0:
        display("from the child")
        print("child")
    else:
        status = os.waitpid(pid, 0)[1]
    """)
    assert python.run(code)["reason"] == "ok"
    assert python.results == []
    assert python.written("out", b"child") == "child\n"
    assert python.text("status") == "0"


@pytest.mark.parametrize("ending, status", [("raise SystemExit(7)", 7), ("1/0", 1), ("os._exit(9)", 9)])
def test_a_forked_process_ends_with_what_it_raised(python, ending, status):
    code = f"import os\npid = os.fork()\nif pid == 0:\n    {ending}\n"
    code += "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    assert python.text(code) == str(status)


def test_multiprocessing_works_in_cells(python):
    code = cell("""
    import multiprocessing
    def double(x): return 2 * x
    with multiprocessing.get_context("fork").Pool(2) as pool: result = pool.map(double, [1, 2])
    result
    """)
    assert python.text(code) == "[2, 4]"


def test_a_kernel_that_ends_itself_says_how(python):
    python.start("import os; os._exit(5)")
    assert python.process.wait(10) == 5
    with pytest.raises((EOFError, ConnectionResetError)):
        python.event()


def test_exec_leaves_a_program_without_the_channel(python):
    python.start("import os; os.execvp('sleep', ['sleep', '100'])")
    with pytest.raises((EOFError, ConnectionResetError)):
        python.event()
    os.kill(python.process.pid, signal.SIGKILL)


def test_threads_go_on_between_cells_and_may_display(python):
    code = cell("""
    import threading
    go, gone = threading.Event(), threading.Event()
    def work():
        go.wait()
        display("x" * 100_000)
        gone.set()
    threading.Thread(target=work, daemon=True).start()
    """)
    python.run(code)
    python.run("go.set(); gone.wait()")
    assert len(python.results[0]["data"]["text/plain"]) == 100_002


def test_the_kernel_ends_with_its_channel(python):
    python.socket.close()
    assert python.process.wait(10) == 0


# --- figures ----------------------------------------------------------------------------------------------

PYPLOT = """
import sys, types
class Figure:
    def __init__(self, n): self.n = n
    def savefig(self, file, format, bbox_inches): file.write(b"png %d" % self.n)
    def __repr__(self): return f"<Figure {self.n}>"
Figure.__module__ = "matplotlib.figure"
class Gcf:
    managers = []
    @classmethod
    def get_all_fig_managers(cls): return list(cls.managers)
class Manager:
    def __init__(self, figure): self.canvas = types.SimpleNamespace(figure=figure)
helpers = sys.modules["matplotlib._pylab_helpers"] = types.ModuleType("matplotlib._pylab_helpers")
helpers.Gcf = Gcf
def figure():
    made = Figure(len(Gcf.managers) + 1)
    Gcf.managers.append(Manager(made))
    return made
def close(what): Gcf.managers[:] = [m for m in Gcf.managers if what != "all" and m.canvas.figure is not what]
def get_backend(): import os; return os.environ["MPLBACKEND"]
def show(): raise AssertionError("the backend was asked")
"""


@pytest.fixture
def pyplot(python, tmp_path):
    """A kernel with a stand-in for matplotlib."""
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib/__init__.py").write_text("")
    (tmp_path / "matplotlib/pyplot.py").write_text(PYPLOT)
    python.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    return python


def pictures(kernel):
    return [base64.b64decode(result["data"]["image/png"]) for result in kernel.results]


def test_open_figures_are_shown_after_the_cell_and_closed(pyplot):
    pyplot.run("import matplotlib.pyplot as plt; plt.figure(); plt.figure(); 1/0")
    assert pictures(pyplot) == [b"png 1", b"png 2"]
    pyplot.run("1")
    assert pyplot.results == []


def test_show_shows_at_once_in_the_very_cell_that_imports_pyplot(pyplot):
    pyplot.run("from matplotlib.pyplot import figure, show\nfigure(); show(); display('between'); figure()")
    assert [sorted(result["data"]) for result in pyplot.results] == [
        ["image/png", "text/plain"],
        ["text/plain"],
        ["image/png", "text/plain"],
    ]


def test_a_figure_as_value_is_shown_once(pyplot):
    assert pyplot.text("import matplotlib.pyplot as plt; plt.figure()") == "<Figure 1>"
    assert pictures(pyplot) == [b"png 1"]
    assert pyplot.results[0]["main"] is True


def test_real_figures_are_caught():
    program = with_module("matplotlib")
    if program is None:
        pytest.skip("matplotlib is not installed")
    with Driven("python", program) as kernel:
        kernel.run("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show(); plt.plot([2, 1])")
        assert [picture[:4] for picture in pictures(kernel)] == [b"\x89PNG"] * 2


# --- the protocol -----------------------------------------------------------------------------------------


def test_ping_is_answered_with_the_epoch(shared):
    shared.send(op="ping", id="p")
    assert shared.event() == {"event": "pong", "id": "p", "epoch": 0}


@pytest.mark.parametrize(
    "packet",
    [
        b"\0",
        b"\0{",
        b"\0[]",
        b"\0null",
        b'\0{"op": 5}',
        b'\0{"op": "run"}',
        b'\0{"op": "run", "id": 1, "code": "x"}',
        b'\0{"op": "run", "id": "i", "code": "x", "context": 5}',
        b'\0{"op": "nothing", "id": "i"}',
        b"\0\xff\xfe",
        b"\0" + b"[" * 30_000,
    ],
)
def test_what_is_no_request_is_refused(shared, packet):
    shared.socket.sendall(packet)
    assert shared.event()["event"] == "refused"
    assert shared.text("1") == "1"


def test_every_version_of_python_runs_the_kernel():
    for version, program in interpreters().items():
        with Driven("python", program) as kernel:
            assert kernel.ready["version"].startswith(version + ".")
            assert kernel.text("x = 5\nx + 1") == "6"
            assert kernel.run("def f(): 1/0\nf()")["error"]["traceback"][-1].startswith("ZeroDivisionError")
            assert kernel.text("import asyncio\nawait asyncio.sleep(0, 1)") == "1"
            assert kernel.run("return 1")["error"]["traceback"][0] == '  File "<cell 4>", line 1'
            assert kernel.text("l = !echo {x}\nl") == "['5']"
            kernel.run("import random, uuid, tempfile, ssl")
            assert kernel.fork(seed=3)["errors"] == []
            assert kernel.text("(random.random(), uuid.uuid4())") == kernel_again(kernel)


def kernel_again(kernel):
    assert kernel.fork(epoch=2, seed=3)["errors"] == []
    return kernel.text("(random.random(), uuid.uuid4())")
