"""The program as users start it."""

import subprocess
import sys

import pytest

PROGRAM = (sys.executable, "-P", "-m", "ramet")


@pytest.fixture(scope="session")
def program():
    """The words that start it."""
    return PROGRAM


@pytest.fixture(scope="session")
def ramet():
    """Call `ramet WORDS...` to its end; output as bytes."""

    def call(*words, **options):
        options = {"stdin": subprocess.DEVNULL, "timeout": 150, **options}
        if "input" in options:
            del options["stdin"]
        return subprocess.run([*PROGRAM, *words], capture_output=True, check=False, **options)

    return call


@pytest.fixture
def start():
    """Start `ramet WORDS...` with pipes on all three streams; it is killed at the end of the test."""
    started = []

    def call(*words, **options):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen([*PROGRAM, *words], **{"bufsize": 0, **pipes, **options})
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
