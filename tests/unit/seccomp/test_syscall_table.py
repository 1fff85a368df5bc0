"""The generated table of numbers."""

import subprocess
import sys
from pathlib import Path

import pytest

from ramet.seccomp._syscalls import X86_64

ROOT = Path(__file__).resolve().parents[3]
GENERATOR = ROOT / "scripts" / "gen_syscalls.py"
HEADERS = [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")]


@pytest.mark.skipif(
    not any(header.exists() for header in HEADERS), reason="no kernel headers (linux-libc-dev)"
)
def test_committed_table_agrees_with_the_headers_of_this_machine() -> None:
    done = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_table_is_in_order_and_ends_with_linux_6_18() -> None:
    numbers = list(X86_64.values())
    assert numbers == sorted(set(numbers))
    assert (X86_64["read"], X86_64["clone3"], numbers[-1]) == (0, 435, 469)
