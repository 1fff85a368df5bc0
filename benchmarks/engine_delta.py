"""Measures snapshots on disk: ``python -m benchmarks.engine_delta [--quick] [--json FILE]``.

What a save and a load of a page file cost by size, and what generations of a Python store in proportion to
what they have changed, in a daemon and a store of their own that are gone afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import _machine
from ramet.store import Base, Exported, Store

DEFAULT_FILE = _machine.ROOT / "build" / "bench-delta.json"
PROMISED_SAVE_MS = 150.0
"""Of 30 MB."""
PROMISED_RATIO = 1.5
MIB = 1 << 20
REPL = "import sys\nfor line in sys.stdin:\n    exec(line, globals())\n    print('done', flush=True)\n"


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a look: few rounds, small sizes")
    parser.add_argument("--json", type=Path, default=DEFAULT_FILE, metavar="FILE")
    options = parser.parse_args()
    sizes = (30,) if options.quick else (30, 100, 500)
    rounds = 3 if options.quick else 15
    with tempfile.TemporaryDirectory(prefix="ramet-delta-") as place:
        found = {
            "machine": _machine.facts(),
            "load": _machine.load(),
            "disk": [disk(Path(place), size, rounds if size < 200 else 3) for size in sizes],
            "listing": listing(Path(place), 100 if options.quick else 300),
            "generations": generations(Path(place), (1, 4) if options.quick else (1, 4, 16)),
        }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    show(found)


def show(found: dict[str, Any]) -> None:
    """The table."""
    for row in found["disk"]:
        print(
            f"{row['mib']:4} MiB  save {row['save_ms']:7.1f} ms  load {row['load_ms']:7.1f} ms"
            f"  child, 100 pages changed: save {row['child_save_ms']:7.1f} ms, {row['child_bytes']} bytes"
        )
    print(f"list of {found['listing']['snapshots']} snapshots: {found['listing']['list_ms']:.1f} ms")
    for row in found["generations"]:
        print(
            f"wrote {row['wrote_mib']:3} MiB: {row['changed_bytes']} bytes of pages differ,"
            f" {row['stored_bytes']} stored: {row['per_changed']:.3f} x what differs,"
            f" {row['per_written']:.2f} x what was written"
        )
    print(
        f"promised: 30 MiB saved within {PROMISED_SAVE_MS:g} ms; at most {PROMISED_RATIO} x what was changed"
    )


# --- the store alone --------------------------------------------------------------------------------------


def disk(place: Path, mib: int, rounds: int) -> dict[str, Any]:
    """Saves and loads of a page file, and of a child of it."""
    pages = memory(mib)
    with store(place / f"disk{mib}") as kept:
        saves, loads, children = [], [], []
        for number in range(rounds):
            begun = time.perf_counter()
            parent = save(kept, f"n{number}", pages)
            saves.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            kept.load(f"n{number}").close()
            loads.append(time.perf_counter() - begun)
            for page in range(100):
                os.pwrite(pages, os.urandom(64), page * (mib * MIB // 100) // 4096 * 4096)
            begun = time.perf_counter()
            child = save(kept, f"c{number}", pages, parent.ref)
            children.append(time.perf_counter() - begun)
            kept.remove(f"c{number}")
            kept.remove(f"n{number}")
    os.close(pages)
    return {
        "mib": mib,
        "rounds": rounds,
        "save_ms": statistics.median(saves) * 1e3,
        "load_ms": statistics.median(loads) * 1e3,
        "child_save_ms": statistics.median(children) * 1e3,
        "child_bytes": child.stored_bytes,
    }


def listing(place: Path, count: int) -> dict[str, Any]:
    """A list of many."""
    pages = os.memfd_create("none")
    with store(place / "listing") as kept:
        for number in range(count):
            save(kept, f"n{number}", pages)
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            assert len(kept.list()) == count
            times.append(time.perf_counter() - begun)
    os.close(pages)
    return {"snapshots": count, "list_ms": statistics.median(times) * 1e3}


def memory(mib: int) -> int:
    """A memory file of pages that differ."""
    fd = os.memfd_create("pages")
    block = os.urandom(MIB)
    for at in range(mib):
        data = bytearray(block)
        for page in range(0, MIB, 4096):
            data[page : page + 8] = (at * MIB + page).to_bytes(8, "little")
        os.pwrite(fd, data, at * MIB)
    return fd


@contextlib.contextmanager
def store(path: Path) -> Iterator[Store]:
    """A store of its own."""
    with Store(str(path)) as made:
        yield made


def save(kept: Store, name: str, pages: int, parent: Any = None) -> Any:
    """Save a page file."""
    description = os.memfd_create("description")
    given = Exported(description, pages, [])
    try:
        return kept.save(name, given, base=Base("", b""), filter_hash="", parent=parent)
    finally:
        os.close(description)


# --- a Python and its descendants -------------------------------------------------------------------------


def generations(place: Path, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """A grandchild of a snapshot that writes some, snapshot, for each size; all by a user's own calls."""
    runtime = place / "run"
    runtime.mkdir(mode=0o700)
    os.environ |= {"RAMET_RUNTIME_DIR": str(runtime), "XDG_DATA_HOME": str(place / "data")}
    import ramet

    def tell(sandbox: Any, line: str) -> None:
        sandbox.stdin.write(line + "\n")
        answer = sandbox.stdout.readline(timeout=60)
        assert answer == b"done\n", answer

    found = []
    with ramet.Client() as client:
        with ramet.Sandbox(command=["python3", "-c", REPL], client=client) as first:
            tell(first, "import os, json; ballast = os.urandom(24 << 20)")
            base = first.snapshot("base")
        with ramet.Sandbox("base", client=client) as child:
            tell(child, "a = 1")
            child.snapshot("child")
        for size in sizes:
            with ramet.Sandbox("child", client=client) as grandchild:
                tell(grandchild, f"b = os.urandom({size} << 20)")
                begun = time.perf_counter()
                point = grandchild.snapshot(f"grandchild{size}")
                took = time.perf_counter() - begun
            with Store(f"{os.environ['XDG_DATA_HOME']}/ramet") as kept:
                info = kept.info(point.name)
            found.append(
                {
                    "wrote_mib": size,
                    "base_bytes": base.disk_bytes,
                    "changed_bytes": info.page_bytes,
                    "stored_bytes": info.stored_bytes,
                    "per_changed": info.stored_bytes / info.page_bytes,
                    "per_written": info.stored_bytes / (size * MIB),
                    "snapshot_ms": took * 1e3,
                    "pause_ms": point.pause_ms,
                }
            )
        client.shutdown()
    return found


if __name__ == "__main__":
    sys.exit(main())
