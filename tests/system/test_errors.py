"""What goes wrong is told by name, in a shell's words or as one clear error, and then nothing was started."""

import os
import pickle
import secrets
import subprocess
import sys

import pytest

import ramet
from ramet.errors import CommandFailed, InvalidRequest, RametError
from system._daemons import marked


def test_an_unknown_command_is_127_in_the_shells_words():
    result = ramet.run(["no-such-command", "--option"])
    assert (result.exit_code, result.stderr) == (127, "no-such-command: command not found\n")
    result = ramet.run(["/no/such/command"])
    assert (result.exit_code, result.stderr) == (127, "/no/such/command: No such file or directory\n")
    result = ramet.run(["./relative"])
    assert (result.exit_code, result.stderr) == (127, "./relative: No such file or directory\n")
    result = ramet.run("no-such-command")
    assert (result.exit_code, "not found" in result.stderr) == (127, True)


@pytest.mark.parametrize(
    "name, words",
    [
        ("/etc/passwd", "Permission denied"),
        ("/etc", "Is a directory"),
        ("/dev/null", "Permission denied"),
        ("/etc/passwd/below", "No such file or directory"),
    ],
)
def test_what_cannot_be_executed_is_126_in_the_shells_words(name, words):
    result = ramet.run([name])
    assert result.stderr == f"{name}: {words}\n"
    assert result.exit_code == (127 if words.startswith("No such") else 126)
    assert result.reason == "exit"


def test_a_file_that_is_no_program_is_126(rooted, tmp_path):
    from system._daemons import build

    tmp_path.chmod(0o755)
    top = build(tmp_path / "root")
    for name, content in {
        "garbage": b"\x7fELF garbage",
        "loop": b"#!/loop\n",
        "missing": b"#!/no/such/interpreter\n",
        "empty": b"",
        "script": b"echo run by the shell $0 $1\n",
    }.items():
        (top / name).write_bytes(content)
        (top / name).chmod(0o755)
    assert rooted.run(["/garbage"], root=top).exit_code in {126, 127, 2}
    assert rooted.run(["/loop"], root=top).exit_code == 126
    assert rooted.run(["/missing"], root=top).exit_code == 127
    assert rooted.run(["/empty"], root=top).exit_code == 0
    assert rooted.run(["/script", "word"], root=top).stdout == "run by the shell /script word\n"


@pytest.mark.parametrize(
    "command, code",
    [
        ("", "empty_command"),
        ("  \n\t ", "empty_command"),
        ([], "empty_command"),
        ([""], "empty_command"),
        ((), "empty_command"),
        ("a\0b", "nul_in_text"),
        (["a", "b\0"], "nul_in_text"),
        ([b"a\0"], "nul_in_text"),
        (b"ls", "invalid_argument"),
        (None, "invalid_argument"),
        (7, "invalid_argument"),
        ([1, 2], "invalid_argument"),
        ({"a": 1}, "invalid_argument"),
        (["x" * 140_000], "too_long"),
        ("x" * 140_000, "too_long"),
        (["x" * 100_000] * 70, "too_long"),
    ],
)
def test_a_wrong_command_is_refused_by_name(command, code):
    with pytest.raises(InvalidRequest) as caught:
        ramet.run(command)
    assert (caught.value.field, caught.value.code) == ("command", code)


@pytest.mark.parametrize(
    "env",
    [
        {"A=B": "1"},
        {"": "1"},
        {"A\0": "1"},
        {"A": "1\0"},
        {"A": None},
        {1: "1"},
        {"A": "x" * 140_000},
        ["A"],
        "A=1",
        {"A" * 100: "x" * 100_000, **{f"B{n}": "x" * 100_000 for n in range(70)}},
    ],
)
def test_a_wrong_environment_is_refused_by_name(env):
    with pytest.raises(InvalidRequest) as caught:
        ramet.run("true", env=env)
    assert caught.value.field == "env"


@pytest.mark.parametrize("cwd", ["relative", "", ".", "a\0b", "/" + "x" * 300, "/x" * 3000, 7, "/a/../b"])
def test_a_wrong_directory_is_refused_by_name(cwd):
    with pytest.raises(InvalidRequest) as caught:
        ramet.run("true", cwd=cwd)
    assert caught.value.field == "cwd"


@pytest.mark.parametrize("cwd", ["/no/such/directory", "/etc/passwd", "/proc/1/cwd", "/etc/passwd/below"])
def test_a_directory_that_is_not_there_is_refused_by_name_and_nothing_ran(cwd):
    heard = []
    with pytest.raises(InvalidRequest) as caught:
        ramet.run("echo ran", cwd=cwd, on_stdout=heard.append)
    assert caught.value.field == "cwd"
    assert cwd in caught.value.message
    assert heard == []


@pytest.mark.parametrize("root", ["/no/such/root", "/etc/hostname", "a\0b", "", 7])
def test_a_wrong_root_is_refused_by_name(root):
    with pytest.raises(InvalidRequest) as caught:
        ramet.run("true", root=root)
    assert caught.value.field == "root"


@pytest.mark.rootless
def test_a_root_that_may_not_be_opened_is_refused_by_name(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    with pytest.raises(InvalidRequest) as caught:
        ramet.run("true", root=closed)
    assert caught.value.field == "root"


@pytest.mark.parametrize("stdin", [3.5, object(), -1, 10**9, 987_654, ["a"]])
def test_a_wrong_input_is_refused_by_name(stdin):
    with pytest.raises(InvalidRequest) as caught:
        ramet.run("cat", stdin=stdin)
    assert caught.value.field == "stdin"


def test_an_unknown_option_is_refused_as_python_does():
    with pytest.raises(TypeError):
        ramet.run("true", memory="1G")


def test_a_refused_request_starts_no_process():
    mark = f"mark-{secrets.token_hex(6)}"
    for options in (
        {"cwd": "nowhere"},
        {"limits": {"disk": -1}},
        {"env": {"": ""}},
        {"timeout": 0},
        {"stdin": -1},
    ):
        with pytest.raises(InvalidRequest):
            ramet.run(["sleep", "1000", mark], **options)
    assert marked(mark) == []


def test_a_client_goes_on_after_errors_of_every_kind():
    with ramet.Client() as client:
        for options in ({"cwd": "/nowhere"}, {"limits": {"memory": 1}}, {"root": "/nowhere"}):
            with pytest.raises(InvalidRequest):
                client.run("true", **options)
            assert client.run("echo fine").stdout == "fine\n"


def test_check_raises_and_carries_the_result():
    assert ramet.run("true", check=True).ok
    with pytest.raises(CommandFailed) as caught:
        ramet.run("echo out; exit 3", check=True)
    assert (caught.value.result.exit_code, caught.value.result.stdout) == (3, "out\n")
    with pytest.raises(CommandFailed) as caught:
        ramet.run("sleep 1000", check=True, timeout=0.2)
    assert caught.value.result.timed_out
    assert "ran out of time" in str(caught.value)


def test_errors_survive_a_trip_through_pickle():
    """Process pools send them so."""
    for options in ({"cwd": "/nowhere"}, {"limits": {"memory": 1}}, {"check": True}):
        with pytest.raises(RametError) as caught:
            ramet.run("exit 4", **options)
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value)
        assert (str(again), again.field) == (str(caught.value), caught.value.field)


def test_odd_but_legal_arguments_arrive_as_they_are():
    words = ["", " ", "\n", "a b", "$HOME", "*", "ä€", "\udcff", "-n", "--", "x" * 131_000]
    source = "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
    result = ramet.run(["python3", "-c", source, *words])
    assert result.stdout_bytes == b"|".join(map(os.fsencode, words))
    result = ramet.run("env", env={"A": "", "B": "x=y\nz", "_c": "\udcfe", "PATH": "/usr/bin:/bin"})
    assert b"A=\n" in result.stdout_bytes
    assert b"B=x=y\nz\n" in result.stdout_bytes
    assert b"_c=\xfe\n" in result.stdout_bytes


def test_as_many_arguments_as_linux_takes():
    words = ["x" * 1000] * 1500
    result = ramet.run(["python3", "-c", "import sys; print(len(sys.argv), sum(map(len, sys.argv)))", *words])
    assert result.stdout == f"{len(words) + 1} {1000 * len(words) + 2}\n"


def test_more_arguments_than_the_stack_of_a_command_takes_is_126_or_refused():
    try:
        result = ramet.run(["true", *["x" * 100_000] * 50])
    except InvalidRequest as error:
        assert error.field == "command"  # noqa: PT017  either will do
    else:
        assert (result.exit_code, result.stderr) == (126, "true: Argument list too long\n")


@pytest.mark.parametrize("directory", ["/", "/tmp", "/usr/share", "/proc/self", "/home/user/"])
def test_any_directory_inside_will_do(directory):
    result = ramet.run("pwd -P", cwd=directory)
    assert result.ok
    assert result.stdout.startswith(directory.rstrip("/") if "proc" not in directory else "/proc/")


def test_the_exit_codes_of_the_cli_tell_ramets_failures_from_the_commands():
    def code(*words: str) -> int:
        return subprocess.run(
            [sys.executable, "-P", "-m", "ramet", "run", *words], capture_output=True, check=False, timeout=50
        ).returncode

    assert code("exit 9") == 9
    assert code("--timeout", "200ms", "sleep 100") == 124
    assert code("--cwd", "/no/such", "true") not in {0, 1, 127}
    assert code("--no-such-option", "true") == 2
