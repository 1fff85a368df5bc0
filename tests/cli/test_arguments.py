"""From words to the call of `ramet.run`, and the one line for each word that is wrong. Nothing is started."""

import json
import re

import pytest

import ramet.client
from ramet.cli import _habits
from ramet.cli._errors import describe
from ramet.cli.main import app, invoke
from ramet.errors import InternalError, InvalidRequest, IsolationError
from ramet.models.limits import LIMITS
from ramet.models.results import Captured, CommandResult


@pytest.fixture
def calls(monkeypatch):
    """Each call of `ramet.run` as (command, options); all of them succeed."""
    made = []

    def run(command, **options):
        made.append((command, options))
        return CommandResult(0)

    monkeypatch.setattr(ramet.client, "run", run)
    return made


@pytest.mark.parametrize(
    "words, command",
    [
        (["seq 3 | wc -l"], "seq 3 | wc -l"),
        (["true"], "true"),
        (["ls", "-l", "/"], ["ls", "-l", "/"]),
        (["--", "true"], ["true"]),
        (["--", "echo a b"], ["echo a b"]),
        (["--", "sh", "-c", "exit 3"], ["sh", "-c", "exit 3"]),
        (["--disk", "1M", "--", "--help"], ["--help"]),
        (["echo", "--json", "--timeout"], ["echo", "--json", "--timeout"]),
        (["echo", "--", "-x"], ["echo", "--", "-x"]),
    ],
)
def test_one_word_is_a_shell_line_and_several_or_any_after_dashes_are_a_program(calls, words, command):
    assert invoke(["run", *words]) == 0
    assert calls[0][0] == command


def test_every_limit_of_the_table_has_its_option(calls):
    wanted = {}
    words = []
    for spec in LIMITS:
        words += [spec.option, str(spec.maximum)]
        wanted[spec.name] = str(spec.maximum)
    assert invoke(["run", "--json", *words, "true"]) == 0
    options = calls[0][1]
    assert {**options["limits"], "wall": options["timeout"]} == wanted


def test_a_limit_that_was_not_given_is_left_to_its_default(calls):
    invoke(["run", "--json", "true"])
    assert calls[0][1]["limits"] == {}
    assert calls[0][1]["timeout"] is None


def test_output_that_is_passed_on_is_not_kept_as_well(calls):
    invoke(["run", "true"])
    assert calls[0][1]["limits"] == {"output": "0"}


def test_a_variable_without_value_takes_the_one_it_has_here(calls, monkeypatch):
    monkeypatch.setenv("FROM_HERE", "a=b")
    assert invoke(["run", "--env", "FROM_HERE", "-e", "EMPTY=", "-e", "X=1=2", "true"]) == 0
    assert calls[0][1]["env"] == {"FROM_HERE": "a=b", "EMPTY": "", "X": "1=2"}


@pytest.mark.parametrize(
    "words, line",
    [
        (["run"], "COMMAND: is missing"),
        (["run", ""], "COMMAND: is empty"),
        (["run", "--", ""], "COMMAND: is empty"),
        (["run", "--timeout", "soon", "true"], "--timeout: 'soon' is not a time"),
        (["run", "--timeout", "0", "true"], "--timeout: '0' is out of range"),
        (["run", "--timeout", "inf", "true"], "--timeout: 'inf' is not a time"),
        (["run", "--pids", "many", "true"], "--pids: 'many' is not a count"),
        (["run", "--pids", "0", "true"], "--pids: '0' is out of range"),
        (["run", "--disk", "1Q", "true"], "--disk: '1Q' is not a size"),
        (["run", "--file-size", "9999999T", "true"], "--file-size: '9999999T' is out of range"),
        (["run", "--env", "=1", "true"], "--env: '=1' is not NAME=VALUE"),
        (["run", "--env", "SURELY_NOT_SET", "true"], "--env: SURELY_NOT_SET has no value here"),
        (["run", "--cwd", "here", "true"], "--cwd: 'here' is not an absolute path"),
        (["run", "--root", "/no/such/directory", "true"], "--root: /no/such/directory does not exist"),
        (["run", "--root", "/etc/passwd", "true"], "--root: /etc/passwd is not a directory"),
        (["run", "--output", "1M", "true"], "--output: needs --json"),
        (["run", "--memoryx", "1G", "true"], "No such option: --memoryx"),
        (["run", "--timeout"], "Option '--timeout' requires an argument"),
        (["doctor", "now"], "Got unexpected extra argument"),
        (["root", "build"], "DIRECTORY: is missing"),
        (["root", "build", "/tmp/never-made"], "--bin: at least one program"),
        (
            ["root", "build", "/tmp/never-made", "--bin", "no-such-program"],
            "--bin: 'no-such-program' is not in PATH",
        ),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_a_wrong_word_is_named_in_one_line_and_starts_nothing(words, line, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("RAMET_RUNTIME_DIR", str(tmp_path))
    assert invoke(words) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"ramet: {line}")
    assert told.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words, line",
    [
        (["ps"], "No such command 'ps': ramet ls"),
        (["rm", "x"], "No such command 'rm': ramet kill"),
        (["exec", "-it", "x", "sh"], "No such option: -t: ramet sandbox shell"),
        (["exec", "--tty", "x", "sh"], "No such option: --tty: ramet sandbox shell"),
        (["run", "--rm", "true"], "No such option: --rm: what ramet run makes is gone"),
        (["run", "-v", "/a:/b", "true"], "No such option: -v: --workspace DIR"),
    ],
)
def test_a_word_of_dockers_is_answered_with_what_it_is_here(words, line, capfd):
    assert invoke(words) == 2
    assert capfd.readouterr().err.startswith(f"ramet: {line}")


def test_what_a_word_of_dockers_is_here_exists():
    assert not _habits.COMMANDS.keys() & app.commands.keys()
    for said in [*_habits.COMMANDS.values(), *_habits.OPTIONS.values()]:
        for words in re.findall(r"ramet((?: [a-z]+)+)", said):
            at = app
            for word in words.split():
                at = at.commands[word] if hasattr(at, "commands") else at


@pytest.mark.parametrize(
    "words, near",
    [
        (["rum", "true"], "'run'"),
        (["run", "--timout", "1", "true"], "--timeout"),
        (["daemon", "stpo"], "'stop'"),
    ],
)
def test_a_word_that_is_nearly_right_is_answered_with_the_right_one(words, near, capfd):
    assert invoke(words) == 2
    assert near in capfd.readouterr().err


def test_without_a_command_the_help_is_shown_and_the_exit_code_tells_the_mistake(capfd):
    assert invoke([]) == 2
    assert "Commands:" in capfd.readouterr().out


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["daemon", "-h"], ["root", "build", "--help"]]
)
def test_help_is_no_mistake(words, capfd):
    assert invoke(words) == 0
    told = capfd.readouterr()
    assert told.out.startswith("Usage: ramet")
    assert told.err == ""


@pytest.mark.parametrize("words", [["version"], ["--version"], ["-V"]])
def test_the_version_is_told(words, capfd):
    assert invoke(words) == 0
    assert capfd.readouterr().out.startswith(f"ramet {ramet.__version__}")


@pytest.mark.parametrize(
    "error, code, line",
    [
        (
            IsolationError("isolation_failed", "no", step="x", errno=1),
            125,
            "ramet: no (step x) (EPERM: Operation not permitted) (ramet doctor says what this machine lacks)",
        ),
        (
            InvalidRequest.of("limits.processes", "is too much", hint="ask for less"),
            2,
            "ramet: --pids: is too much (ask for less)",
        ),
        (
            InternalError("internal", "one and one were three"),
            125,
            "ramet: one and one were three (this is a defect of Ramet: please report it)",
        ),
        (
            RuntimeError("oops"),
            125,
            "ramet: a defect of Ramet: RuntimeError: oops (RAMET_DEBUG=1 shows where)",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_and_its_exit_code_tells_whose_fault_it_was(
    error, code, line, monkeypatch, capfd
):
    def run(command, **options):
        raise error

    monkeypatch.setattr(ramet.client, "run", run)
    assert invoke(["run", "true"]) == code
    told = capfd.readouterr()
    assert (told.out, told.err.strip()) == ("", line)


def test_with_json_an_error_is_an_object_too(monkeypatch, capfd):
    def run(command, **options):
        raise IsolationError("isolation_failed", "fsmount: EPERM", step="overlay", errno=1)

    monkeypatch.setattr(ramet.client, "run", run)
    assert invoke(["run", "--json", "true"]) == 125
    error = json.loads(capfd.readouterr().out)["error"]
    assert (error["type"], error["step"], error["errno"]) == ("IsolationError", "overlay", 1)


def test_bytes_that_are_no_text_come_in_base64_beside_it(monkeypatch, capfd):
    result = CommandResult(0, out=Captured(b"\xff\x00", 2, 2), err=Captured(b"text", 4, 4))
    monkeypatch.setattr(ramet.client, "run", lambda command, **options: result)
    assert invoke(["run", "--json", "true"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert data["stdout_base64"] == "/wA="
    assert "stderr_base64" not in data


@pytest.mark.parametrize(
    "result, note",
    [
        (CommandResult(124, "timeout"), "ramet: the command ran longer than 2s (--timeout)\n"),
        (CommandResult(124), ""),
        (CommandResult(139, "signal", "SIGSEGV"), ""),
        (
            CommandResult(152, "signal", "SIGXCPU", reached="cpu_seconds"),
            "ramet: the command: ended by SIGXCPU (limit --cpu-seconds)\n",
        ),
        (CommandResult(152, "signal", "SIGXCPU"), ""),
        (
            CommandResult(153, reached="file_size"),
            "ramet: the command: exit code 153 (limit --file-size)\n",
        ),
        (CommandResult(137, "killed"), "ramet: the command: its sandbox was ended from outside\n"),
        (CommandResult(137, "lost"), "ramet: the command: its sandbox was lost\n"),
    ],
)
def test_what_the_exit_code_does_not_tell_is_told_on_standard_error(result, note, monkeypatch, capfd):
    monkeypatch.setattr(ramet.client, "run", lambda command, **options: result)
    assert invoke(["run", "--timeout", "2s", "true"]) == result.exit_code
    assert capfd.readouterr().err == note


KNOWN_COMMANDS = "the ends of commands are kept for some minutes; ramet sandbox ps lists those"


@pytest.mark.parametrize(
    "code, line",
    [
        ("unknown_command", f"NUMBER: there is none ({KNOWN_COMMANDS})"),
        ("command_ended", "NUMBER: there is none (as in Python)"),
        ("no_kernel", "COMMAND: there is none (ramet spawn --tag python makes one that has)"),
    ],
)
def test_what_helps_is_told_in_words_of_the_command_line(code, line):
    assert describe(InvalidRequest.of("command", "there is none", code=code, hint="as in Python")) == line
