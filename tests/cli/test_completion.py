"""Shells complete words of ramet: the shells themselves, where they are installed."""

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

PATIENCE_S = 60.0
BEGUN, COMPLETED = "ramet fork --tag pyth", "ramet fork --tag python "
"""What is typed, and what is there after the tabulator; the template is known without a daemon."""
TYPED = {
    "bash": (["bash", "--noprofile", "--norc", "-i"], 'eval "$(ramet completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -D -u; eval "$(ramet completion zsh)"'),
}
CONTROL = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]|[\a\r]")


@pytest.fixture
def place(tmp_path):
    """A home with nothing in it, and variables by which `ramet` is found."""
    program = tmp_path / "ramet"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m ramet "$@"\n')
    program.chmod(0o755)
    found = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}", "PS1": "> ", "TERM": "dumb"}
    kept = ("RAMET_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    return found | {name: os.environ[name] for name in kept}


class Typing:
    """A shell at a terminal."""

    def __init__(self, words, environment):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)

    def type(self, text, until):
        """Type it, and return when the shell has shown this at the end of a line."""
        os.write(self.master, text.encode())
        shown, deadline = "", time.monotonic() + PATIENCE_S
        while not CONTROL.sub("", shown).endswith(until):
            left = deadline - time.monotonic()
            assert left > 0, f"not {until!r}: {shown!r}"
            if select.select([self.master], [], [], left)[0]:
                shown += os.read(self.master, 1 << 16).decode()

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        os.close(self.master)


@pytest.mark.parametrize("shell", TYPED)
def test_a_shell_completes_what_is_typed(shell, place):
    words, setup = TYPED[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    typing = Typing(words, place)
    try:
        typing.type(f"{setup}; PS1='rea''dy> '\n", until="ready> ")
        typing.type(f"{BEGUN}\t", until=COMPLETED)
    finally:
        typing.close()


def test_fish_completes_what_is_typed(place):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    words = ["fish", "--no-config", "-c", f"ramet completion fish | source; complete -C '{BEGUN}'"]
    done = subprocess.run(words, env=place, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.split() == [COMPLETED.rsplit(maxsplit=1)[-1]]
