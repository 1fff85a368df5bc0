"""`ramet sandbox shell`, at a terminal as a person has it."""

import contextlib
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from fcntl import ioctl

import pytest

PATIENCE_S = 30.0


class Person:
    """Who sits at a terminal in which a program runs."""

    def __init__(self, words, rows=30, columns=90):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            # Not before it has the size that it is to find.
            while os.get_terminal_size(0).lines != rows:
                time.sleep(0.001)
            os.environ["TERM"] = "vt220"
            os.execvp(words[0], words)
        self.before = self.modes()
        self.resize(rows, columns)
        self.seen = b""
        self.code = None

    def modes(self):
        return termios.tcgetattr(self.terminal)

    def is_raw(self):
        return not self.modes()[3] & termios.ICANON

    def becomes_raw(self):
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_raw():
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.005)

    def resize(self, rows, columns):
        ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def types(self, keys):
        os.write(self.terminal, keys)

    def sees(self, pattern):
        """All that came up to what `pattern` matches, as soon as it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not (match := re.search(pattern, self.seen)):
            self._read(deadline)
        found, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return found

    def _read(self, deadline):
        left = deadline - time.monotonic()
        assert select.select([self.terminal], [], [], max(left, 0))[0], self.seen
        self.seen += os.read(self.terminal, 65536)

    def leaves_it(self):
        """The program's exit code; all that it still writes is in `seen`."""
        with contextlib.suppress(OSError):
            while True:
                self._read(time.monotonic() + PATIENCE_S)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def closes(self):
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture(scope="module")
def sandbox(ramet):
    made = ramet("sandbox", "create", "-e", "PS1=inside> ", "--", "sleep", "10000").stdout.decode().strip()
    yield made
    assert ramet("sandbox", "kill", made).returncode == 0


@pytest.fixture
def sits(program, sandbox):
    """Sit down at `ramet sandbox shell [OPTIONS] SANDBOX [COMMAND]`."""
    all_of_them = []

    def call(command=("--", "bash", "--norc", "--noediting"), options=()):
        person = Person([*program, "sandbox", "shell", *options, sandbox, *command])
        all_of_them.append(person)
        return person

    yield call
    for person in all_of_them:
        person.closes()


def test_a_shell_has_size_kind_and_keys_of_the_terminal_and_gives_its_exit_code(sits):
    person = sits()
    person.sees(rb"inside> ")
    assert person.is_raw()
    person.types(b"stty size; echo $TERM\r")
    person.sees(rb"30 90\r\nvt220\r\n")
    person.resize(40, 100)
    person.types(b"until [ \"$(stty size)\" = '40 100' ]; do sleep 0.01; done; echo re''sized\r")
    person.sees(rb"resized\r\n")
    person.types(b"sh -c 'echo st''arted; exec sleep 921'\r")
    person.sees(rb"started\r\n")
    person.types(b"\x03")
    person.sees(rb"inside> ")
    person.types(b"echo was $?\r")
    person.sees(rb"was 130\r\n")
    person.types(b"cat\rboth\r")
    person.sees(rb"both\r\n(.|\n)*both\r\n")
    person.types(b"\x1a")
    person.sees(rb"Stopped(.|\n)*inside> ")
    person.types(b"fg\r")
    person.sees(rb"cat\r\n")
    person.types(b"more\r")
    person.sees(rb"more\r\n(.|\n)*more\r\n")
    person.types(b"\x04")
    person.sees(rb"inside> ")
    person.types(b"exit 6\r")
    assert person.leaves_it() == 6
    assert person.modes() == person.before


def test_detaching_puts_the_screen_back_and_attaching_shows_what_was_there(sits, ramet, sandbox):
    person = sits()
    person.sees(rb"inside> ")
    person.types(b"echo remem''bered; printf '\\033[?1049h\\033[?25l'; echo sw''itched\r")
    person.sees(rb"switched\r\n")
    person.types(b"\x10\x11")
    assert person.leaves_it() == 0
    assert b"\x1b[?1049l\x1b[?25h" in person.seen
    assert person.modes() == person.before
    (number,) = re.findall(rb"--attach ([0-9]+)", person.seen)
    assert number in ramet("sandbox", "ps", sandbox).stdout

    again = sits(command=(), options=("--attach", number.decode()))
    again.sees(rb"remembered\r\n")
    again.types(b"\x10x\rexit 4\r")  # one of the two keys is a key like any other
    assert again.leaves_it() == 4


def test_ends_that_others_bring_about_give_the_terminal_back(sits, ramet, sandbox):
    person = sits(command=("sleep", "922"))
    person.becomes_raw()
    os.kill(person.pid, signal.SIGTSTP)
    assert os.WIFSTOPPED(os.waitpid(person.pid, os.WUNTRACED)[1])
    assert person.modes() == person.before
    os.kill(person.pid, signal.SIGCONT)
    person.becomes_raw()
    os.kill(person.pid, signal.SIGTERM)
    assert person.leaves_it() == 129
    assert person.modes() == person.before
    (number,) = re.findall(rb"--attach ([0-9]+)", person.seen)

    again = sits(command=(), options=("--attach", number.decode(), "--detach-keys", ""))
    again.becomes_raw()
    assert ramet("sandbox", "signal", sandbox, number.decode()).returncode == 0
    assert again.leaves_it() == 137
    assert again.modes() == again.before


def test_a_terminal_that_goes_leaves_the_one_inside(sits, ramet, sandbox):
    person = sits(command=("sleep", "923"))
    person.becomes_raw()
    os.close(person.terminal)
    person.terminal = -1
    person.code = os.waitstatus_to_exitcode(os.waitpid(person.pid, 0)[1])
    assert person.code == 129
    rows = ramet("sandbox", "ps", sandbox).stdout.decode().splitlines()
    (left,) = [row.split()[0] for row in rows if row.endswith("sleep 923")]
    assert ramet("sandbox", "signal", sandbox, left).returncode == 0


@pytest.mark.parametrize(
    "words, text",
    [
        ((), b"SANDBOX: is missing"),
        (("box",), b"is no terminal"),
        (("--detach-keys", "ctrl-1", "box"), b"--detach-keys: 'ctrl-1' is no key"),
        (("--attach", "5", "box", "true"), b"COMMAND: runs already"),
    ],
)
def test_wrong_words_are_refused_by_name(ramet, words, text):
    done = ramet("sandbox", "shell", *words)
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr
