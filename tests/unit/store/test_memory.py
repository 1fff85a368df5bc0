"""Memory stays bounded whatever the size of a page file."""

import subprocess
import sys
from pathlib import Path

SIZE_MIB = 192
PROGRAM = """
import os, resource, sys
from ramet.store import Base, Exported, Store

size = int(sys.argv[2]) << 20
pages, description = os.memfd_create("p"), os.memfd_create("d")
for at in range(0, size, 1 << 20):
    os.pwrite(pages, os.urandom(1 << 20), at)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
with Store(sys.argv[1]) as store:
    before = peak()
    given = Exported(description, pages, [])
    parent = store.save("parent", given, base=Base("", b""), filter_hash="")
    os.pwrite(pages, b"changed", size // 2)
    store.save("child", given, base=Base("", b""), filter_hash="", parent=parent.ref)
    with store.load("child") as loaded:
        assert os.fstat(loaded.pages).st_size == size
    store.flatten("child")
    print(peak() - before)
"""


def test_saving_loading_and_flattening_hold_a_small_part_of_the_pages_in_memory(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), str(SIZE_MIB)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < SIZE_MIB // 6
