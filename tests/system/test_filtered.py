"""A daemon that was started under seccomp filters, as services of systemd and containers are."""

import os
import subprocess
import sys
from pathlib import Path

INSTALL = """
import ctypes, struct
def install():
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))  # RET ALLOW
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
"""
PROGRAM = f"""
import sys
import ramet
from ramet.client import Client
{INSTALL}
def filters(status):
    return int(status.partition("Seccomp_filters:")[2].split()[0])
before = filters(open("/proc/self/status").read())
install()
install()
with Client(sys.argv[1], data_dir=sys.argv[2]) as client:
    with ramet.Sandbox("python", client=client) as sandbox:
        sandbox.run_code("x = 41")
        with sandbox.fork() as fork:
            print(fork.run_code("x + 1").text)
            print(filters(fork.commands.run("cat /proc/self/status").stdout) - before)
        print(sandbox.run_code({INSTALL!r} + "install()").error)
        try:
            sandbox.fork()
        except ramet.Unforkable as error:
            print(error.message)
    client.shutdown()
"""


def test_what_runs_under_filters_is_forked_and_what_installs_one_is_not(tmp_path: Path) -> None:
    places = [str(tmp_path / "run"), str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *places], capture_output=True, text=True, check=False,
        env={**os.environ, "RAMET_RUNTIME_DIR": places[0]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer, added, installed, refused = done.stdout.splitlines()
    # Two of whoever started it, and the sandbox's.
    assert (answer, added, installed) == ("42", "3", "None")
    assert "seccomp filter of its own" in refused
