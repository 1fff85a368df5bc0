"""The bash kernel: one shell that keeps its state, and outlives what ends another one."""

import os
import signal

import pytest

from unit.kernels.driver import Driven


@pytest.fixture
def own():
    with Driven("bash") as kernel:
        yield kernel


def output(kernel, code):
    """What a cell writes to standard output, but for its last newline."""
    kernel.written("out")
    kernel.run(f"{code}\nprintf 'END%s' ''")
    return kernel.written("out", b"END").removesuffix("END").rstrip("\n")


def code_of(kernel, code):
    return kernel.run(code)["exit_code"]


def test_variables_functions_arrays_options_and_directory_are_kept(own, tmp_path):
    own.run(
        "x=5; declare -A map=([a]=b); list=(1 '2 3'); f() { echo f $x ${map[a]} ${#list[@]}; }; "
        f"cd {tmp_path}"
    )
    own.run("shopt -s nullglob; set -o noclobber; alias hi='echo aliased'")
    assert output(own, "f; pwd; hi; echo *.none; [[ -o noclobber ]] && echo kept").split("\n") == [
        "f 5 b 2",
        str(tmp_path),
        "aliased",
        "",
        "kept",
    ]


def test_the_exit_code_is_that_of_the_last_command_and_seen_by_the_next_cell(bash):
    assert code_of(bash, "true; (exit 4)") == 4
    assert output(bash, "echo $?") == "4"
    assert code_of(bash, "nonexistent_command") == 127
    assert bash.run("true")["text"] is None


@pytest.mark.parametrize("code", ["if then", "echo $((", "echo 'open", "x=(", "}"])
def test_a_syntax_error_is_told_and_harms_nothing(bash, code):
    done = bash.run(code)
    assert (done["reason"], done["error"]["name"], done["exit_code"]) == ("error", "SyntaxError", 2)
    assert "line 1" in done["error"]["value"]
    assert output(bash, "echo alive") == "alive"


@pytest.mark.parametrize(
    "code",
    [
        "set -u; echo $nope; echo not",
        ": ${nope:?bad}; echo not",
        "exec nonexistent_program",
        "readonly fixed=1; fixed=2",
        "return 5",
        "break",
        "break 9",
        "continue",
        "continue 9",
        "shift 5",
        "trap 'echo bye' EXIT",
        "unset PATH; ls; PATH=/usr/bin:/bin",
        "IFS=abc",
        "set -f",
        "PROMPT_COMMAND=",
        "unset -f exit",
        "printf 'no newline'",
    ],
)
def test_the_shell_outlives(own, code):
    own.run("kept=5")
    own.run(code)
    own.run("set +uf; IFS=$' \\t\\n'")
    assert output(own, "echo alive $kept") == "alive 5"


@pytest.mark.parametrize("code", ["exit 7", "f() { exit 7; }; f", "eval 'exit 7'; echo not"])
def test_exit_ends_the_cell_and_the_shell_lives(own, code):
    done = own.run(f"{code}; echo not")
    assert (done["reason"], done["exit_code"], done["error"]) == ("exit", 7, None)
    assert output(own, "echo $?") == "7"
    assert own.written("err") == ""
    own.run("echo heard >&2")
    assert own.written("err", b"heard") == "heard\n"


def test_exit_in_a_subshell_ends_the_subshell(bash):
    assert output(bash, "(exit 3; echo not); echo $?; echo $(exit 4; echo not)") == "3"
    assert code_of(bash, "(exit 3)") == 3
    assert code_of(bash, "true | exit 5") == 5


def test_errexit_ends_the_cell_at_the_failing_command_and_stays_set(own):
    done = own.run("set -e; false; echo not")
    assert (done["reason"], done["exit_code"]) == ("exit", 1)
    done = own.run("f() { false; echo not; }; f; echo not")
    assert (done["reason"], done["exit_code"]) == ("exit", 1)
    assert own.run("if false; then :; fi; false || true")["reason"] == "ok"
    assert own.run("set +e; false; true")["reason"] == "ok"
    assert own.written("out") == ""


@pytest.mark.parametrize("code", ["echo $nope", ": ${nope:?bad}", "f() { echo $nope; }; f", "[[ $nope ]]"])
def test_an_expansion_that_fails_under_errexit_ends_the_cell_and_not_the_shell(own, code):
    assert own.run(f"kept=5\nset -eu\n{code}\necho not")["exit_code"] == 1
    assert own.written("out") == ""
    assert own.run(f"{code}\necho not")["exit_code"] == 1
    assert output(own, "echo $kept $-").split()[0] == "5"
    assert own.run("false; echo not")["reason"] == "exit"
    assert "nope" in own.written("err", b"nope")


def test_errexit_holds_where_bash_has_it_and_nowhere_else(own):
    own.run("set -e; f() { false; echo in f; }; sleep 100 & pid=$!")
    for code in ("f", "(false; echo not); echo not", "false | false; echo not", "eval false; echo not"):
        done = own.run(code)
        assert (done["reason"], done["exit_code"]) == ("exit", 1), code
    assert own.written("out") == ""
    for code in ("f || :", "if f; then :; fi", "false && :", "! true", "x=$(false; echo sub); echo $x"):
        assert own.run(code)["reason"] == "ok", code
    own.run("echo end")
    assert own.written("out", b"end").split() == ["in", "f", "in", "f", "sub", "end"]
    assert own.run("[[ $- == *e* && -o errexit ]] && kill $pid")["exit_code"] == 0


def test_a_trap_for_errors_of_the_code_runs_and_errexit_still_ends_the_cell(own):
    own.run("trap 'echo mine $?' ERR")
    assert own.run("f() { return 3; }; f; true")["reason"] == "ok"
    done = own.run("set -e; f; echo not")
    assert (done["reason"], done["exit_code"]) == ("exit", 3)
    assert own.run("trap - ERR; f")["reason"] == "exit"
    own.run("echo end")
    assert own.written("out", b"end") == "mine 3\nmine 3\nend\n"


def test_other_traps_of_the_code_are_its_own(own):
    assert "seen" in output(own, "trap 'echo seen' DEBUG; trap 'echo two' USR1; trap - DEBUG")
    assert output(own, "kill -USR1 $$; echo end") == "two\nend"


def test_the_status_of_a_cell_is_seen_by_the_next_one_under_errexit_too(own):
    own.run("trap 'echo error' ERR; set -e")
    own.run("! true")
    own.run("echo status $?")
    assert own.written("out", b"\n") == "status 1\n"


def test_a_line_may_change_how_the_next_one_is_read(own, tmp_path):
    (tmp_path / "aliases").write_text("alias third='echo three'\n")
    code = f"alias first='echo one'\nfirst\nshopt -s extglob\ncd {tmp_path}; echo !(x)\n. ./aliases\nthird"
    assert output(own, code).split("\n") == ["one", "aliases", "three"]
    assert output(own, ". ./aliases\nthird") == "three"
    assert output(own, "cat <<END\ntext\nEND") == "text"
    assert output(own, "echo a # comment") == "a"


def test_patterns_of_an_extended_shell_are_no_syntax_error(own):
    own.run("shopt -s extglob")
    done = own.run("ls -d /!(*) /none_such 2>/dev/null; false")
    assert (done["reason"], done["exit_code"]) == ("ok", 1)
    done = own.run("eval :; ls -d /!(*) /none_such 2>/dev/null; false")
    assert (done["reason"], done["exit_code"]) == ("ok", 1)
    own.run("shopt -u extglob")
    assert own.run("ls /!(*)")["error"]["name"] == "SyntaxError"


def test_functions_and_aliases_named_like_builtins_do_not_disarm_the_kernel(own):
    names = "printf read local set trap exec export return shift break continue kill shopt declare jobs eval"
    own.run("\n".join(f"{name}() {{ echo not; }}" for name in names.split()))
    own.run("alias eval='echo not' unset='echo not' printf='echo not'; exit 3")
    assert own.run("(builtin exit 4)")["exit_code"] == 4
    assert own.run("if then")["error"]["name"] == "SyntaxError"
    assert own.fork(1, env={"NEW": "new"})["errors"] == []
    own.run("builtin unalias -a; builtin unset -f printf")
    own.written("out")
    assert output(own, "echo alive $NEW") == "alive new"


def test_tracing_shows_the_commands_of_the_cell_and_none_of_the_kernel(own):
    own.run("set -x; true")
    own.run("echo a")
    own.run("set +x")
    lines = own.written("err", b"set +x").splitlines()
    assert [line.lstrip("+") for line in lines] == [" true", " echo a", " set +x"]


def test_lines_are_counted_from_the_start_of_the_cell(bash):
    assert output(bash, "echo $LINENO\necho $LINENO") == "1\n2"


def test_standard_input_is_at_its_end(bash):
    assert output(bash, "cat; read x || echo end") == "end"


def test_background_jobs_stay_and_finished_commands_are_no_jobs(own):
    own.run("ls >/dev/null")
    own.run("sleep 100 & pid=$!")
    assert output(own, "jobs").split() == ["[1]+", "Running", "sleep", "100", "&"]
    assert output(own, "kill $pid; wait $pid; echo $?") == "143"


def test_any_bytes_of_code_arrive(bash):
    assert output(bash, "echo 'a\\b\"c\td\\n\x1f\\x1f é' | od -An -c | tr -d ' \\n'") == output(
        bash, "printf %s\\\\n $'a\\\\b\"c\\td\\\\n\\x1f\\\\x1f é' | od -An -c | tr -d ' \\n'"
    )
    assert output(bash, f"x='{'z' * 50_000}'; echo ${{#x}}") == "50000"


def test_commands_do_not_hold_the_channel(bash):
    assert output(bash, "bash -c 'ls -l /proc/self/fd' | grep -c socket") == "0"


def test_there_are_no_named_contexts(bash):
    done = bash.run("echo not", context="named")
    assert (done["reason"], done["error"]["name"]) == ("error", "ContextError")
    bash.send(op="end_context", context="named")
    assert bash.event() == {"event": "context_ended", "context": "named", "existed": False}


# Between fork and exec a child of bash swallows the signal, as at a terminal: so the child says `begun`.
CHILD = "sh -c 'echo begun; exec sleep 100'"


@pytest.mark.parametrize(
    "code",
    [CHILD, "echo begun; while :; do :; done", f"{CHILD} | cat", f"({CHILD})", f"f() {{ {CHILD}; }}; f"],
)
def test_an_interrupt_ends_the_cell_and_keeps_the_shell(own, code):
    own.run("kept=5")
    done = own.interrupted(f"{code}; echo not")
    assert (done["reason"], done["exit_code"]) == ("interrupted", 130)
    assert output(own, "echo alive $kept") == "alive 5"


def test_an_interrupt_while_idle_is_ignored(own):
    for _ in range(20):
        own.interrupt()
    assert output(own, "echo alive") == "alive"


def test_background_jobs_survive_an_interrupt(own):
    own.run("sleep 100 & pid=$!")
    own.interrupted(CHILD)
    assert output(own, "kill $pid && echo there") == "there"


def test_a_fork_renews_random_and_the_environment(own):
    own.run("export GONE=x FIXED; readonly FIXED=1; ramet_on_fork() { echo hook $RAMET_EPOCH; }")
    told = own.fork(
        3, seed=7, env={"NEW": "a b\nc=d", "GONE": None, "FIXED": "2", "no name": "x"}, hostname="h"
    )
    assert told["epoch"] == 3
    assert told["errors"] == ["environment: FIXED is readonly", "environment: a shell cannot have this name"]
    assert own.written("out", b"\n") == "hook 3\n"
    assert output(
        own, 'echo "$NEW" ${GONE-unset} $FIXED $RAMET_SANDBOX_ID $HOSTNAME; printenv RAMET_EPOCH'
    ) == ("a b\nc=d unset 1 sb h\n3")


@pytest.mark.parametrize("option", ["+f", "-f"])
def test_a_hook_runs_under_the_options_of_the_code_and_its_errors_are_heard(own, tmp_path, option):
    (tmp_path / "file").touch()
    own.run(f"ramet_on_fork() {{ echo {tmp_path}/*; echo heard >&2; }}; set {option}")
    expected = f"{tmp_path}/{'file' if option == '+f' else '*'}\n"
    assert own.fork(1)["errors"] == []
    assert own.written("out", b"\n") == expected
    assert own.written("err", b"heard") == "heard\n"
    own.start("echo begun; until [[ $RAMET_EPOCH == 2 ]]; do sleep 0.01; done; echo /*; echo over")
    own.written("out", b"begun\n")
    own.write(own.kernel.fresh({"op": "forked", "epoch": 2, "sandbox": "s", "hostname": "", "seed": None}))
    os.kill(own.process.pid, signal.SIGURG)
    assert own.until("done")["epoch"] == 2
    shown = own.written("out", b"over\n")
    assert shown.startswith(expected)
    assert (shown.removeprefix(expected) == "/*\nover\n") == (option == "-f")
    assert own.written("err", b"heard") == "heard\n"


def test_random_differs_in_children_and_repeats_with_a_seed(own):
    def drawn(epoch, seed):
        own.fork(epoch, seed=seed)
        return output(own, "echo $RANDOM $RANDOM $RANDOM $SRANDOM").rsplit(" ", 1)

    seeded = [drawn(epoch, 7) for epoch in range(5)]
    assert len({numbers for numbers, _ in seeded}) == 1
    assert len({secret for _, secret in seeded}) == 5
    assert len({drawn(epoch, None)[0] for epoch in range(100)}) == 100
    assert drawn(0, 8)[0] != seeded[0][0]


def test_a_running_cell_renews_itself_between_two_commands(own):
    own.start("echo begun; until [[ $RAMET_EPOCH ]]; do sleep 0.01; done; echo $RAMET_EPOCH")
    own.written("out", b"begun")
    own.write(own.kernel.fresh({"op": "forked", "epoch": 2, "sandbox": "s", "hostname": "", "seed": None}))
    os.kill(own.process.pid, signal.SIGURG)
    assert own.event()["event"] == "forked"
    assert own.until("done")["epoch"] == 2


def test_a_line_that_a_fork_has_cut_is_dropped(own):
    line = own.kernel.request({"op": "run", "id": "cut", "code": "touch /nonexistent/x; cut=yes"})[0]
    for at in (1, 5, len(line) - 3, len(line) - 1):
        own.socket.sendall(line[:at])
        own.fork(1)
        assert own.results == []
    assert output(own, "echo ${cut-no}") == "no"


def test_nonsense_is_refused_or_ignored(own):
    own.socket.sendall(b"what\x1fend\n\n\x00\xff\nrun\x1fa\x1fend\nrun\x1fx\x1fy\n")
    assert [own.event()["event"], own.event()["event"]] == ["refused", "refused"]
    own.send(op="ping", id='p"\\')
    assert own.event() == {"event": "pong", "id": 'p"\\', "epoch": 0}
    own.send(op="end_context", context='c"\\n\n')
    assert own.event() == {"event": "context_ended", "context": 'c"\\n\n', "existed": False}


def test_the_shell_ends_with_its_channel(own):
    own.socket.close()
    assert own.process.wait(10) == 0


def test_a_shell_that_is_replaced_closes_its_channel(own):
    own.start("exec sleep 100")
    with pytest.raises((EOFError, ConnectionResetError)):
        own.event()
    os.kill(own.process.pid, signal.SIGKILL)
