"""The program that is forked: it answers each line of its input with a line.

Its text is given to the interpreter with -c, in a sandbox and beside it: what Ramet forks and what `os.fork`
forks are the same program with the same modules. It imports next to nothing, so that it can be small.
"""

# ruff: noqa: BLE001  it tells whoever asked
import mmap
import os
import time
from _thread import start_new_thread

LEAST_GAP_NS = 50_000
BLOCK = 1 << 20

names = globals()
ballast: list[mmap.mmap] = []
beside: list[int] = []
ends: list[int] = []
gaps: list[tuple[int, int]] = []
spun = [0, 0]
spinning = False


def answer(line: bytes) -> bytes:
    """What an expression is worth; a statement is carried out."""
    try:
        try:
            code = compile(line, "-", "eval")
        except SyntaxError:
            exec(line, names)
            return b"None\n"
        return repr(eval(code, names)).encode() + b"\n"
    except BaseException as error:
        return f"failed: {error!r}\n".encode()


def grow(size: int, *advice: int) -> None:
    """Have `size` more bytes of anonymous memory, with that `advice` (madvise), every page written."""
    if size <= 0:
        return
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for number in advice:
        area.madvise(number)
    block = os.urandom(BLOCK)
    for start in range(0, size, BLOCK):
        area[start : start + BLOCK] = block[: min(BLOCK, size - start)]
    ballast.append(area)


def change(size: int, value: int) -> None:
    """Write one byte to each of the first pages of the last ballast, `size` bytes of pages."""
    area = ballast[-1]
    for start in range(0, min(size, len(area)), mmap.PAGESIZE):
        area[start] = value & 255


def start_beside() -> None:
    """Have a shell that waits for a line, and a program that sleeps, as children."""
    reader, writer = os.pipe()
    beside.append(
        os.posix_spawn(
            "/bin/sh", ["sh", "-c", "read line"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0)]
        )
    )
    os.close(reader)
    ends.append(writer)
    beside.append(os.posix_spawnp("sleep", ["sleep", "100000"], {"PATH": "/usr/bin:/bin"}))


def fork_beside(count: int, size: int) -> None:
    """Have forks of this program as children, each with `size` more bytes of memory; when all have them."""
    for _ in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            grow(size)
            os.write(writer, b"r")
            while True:
                time.sleep(100000)
        beside.append(pid)
        os.read(reader, 1)
        os.close(reader)
        os.close(writer)


def all_beside() -> bool:
    """Whether all that were started are there and live."""
    return all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in beside)


def write_files(count: int, size: int) -> None:
    """Make files in the working directory."""
    content = os.urandom(size)
    for number in range(count):
        file = os.open(f"file-{number}", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, content)
        os.close(file)


HUGE = (mmap.MADV_HUGEPAGE,)
"""Ask for huge pages. Without advice: what this machine gives to everybody."""


def memory() -> dict[str, int]:
    """Bytes by kind, from smaps_rollup: Rss, Anonymous, Private_Dirty and others."""
    file = os.open("/proc/self/smaps_rollup", os.O_RDONLY)
    lines = os.read(file, 1 << 16).decode().splitlines()[1:]
    os.close(file)
    return {words[0][:-1]: int(words[1]) << 10 for words in map(str.split, lines)}


# --- the pause, from inside


def spin() -> None:
    """Look at the clock until told to stop; keep the times at which it jumped."""
    clock = time.monotonic_ns
    last = spun[0] = clock()
    going = True
    while going:
        going = spinning
        now = clock()
        if now - last > LEAST_GAP_NS:
            gaps.append((last, now))
        last = now
    spun[1] = last


def spin_start() -> None:
    """Begin to spin, in a thread."""
    global spinning  # noqa: PLW0603
    gaps.clear()
    spun[:] = 0, 0
    spinning = True
    start_new_thread(spin, ())
    while not spun[0]:
        time.sleep(0)


def spin_stop(start: int, end: int) -> int:
    """Stop; the longest gap that touches the given time, in ns; -1 when that time was not covered."""
    global spinning  # noqa: PLW0603
    spinning = False
    while not spun[1]:
        time.sleep(0)
    if spun[0] > start or spun[1] < end:
        return -1
    return max((after - before for before, after in gaps if after > start and before < end), default=0)


# --- what it is compared with


def fork_once(line: bytes) -> tuple[int, bytes]:
    """Fork, have the child answer over a pipe: nanoseconds to the answer, and the answer."""
    start = time.perf_counter_ns()
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, answer(line))
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 65536)
    took = time.perf_counter_ns() - start
    os.close(reader)
    os.waitpid(pid, 0)
    return took, said


def fork_many(count: int, line: bytes) -> tuple[int, int]:
    """Fork `count` children that answer: nanoseconds until all have, and how many answers came."""
    start = time.perf_counter_ns()
    readers = []
    for _ in range(count):
        reader, writer = os.pipe()
        if not os.fork():
            os.write(writer, answer(line))
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    said = sum(1 for reader in readers if os.read(reader, 65536))
    took = time.perf_counter_ns() - start
    for reader in readers:
        os.close(reader)
        os.wait()
    return took, said


kept: list[int] = []


def fork_and_keep(count: int, line: bytes) -> list[int]:
    """Fork `count` children that answer and stay; their pids."""
    for _ in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(writer, answer(line))
            while True:
                time.sleep(3600)
        os.close(writer)
        os.read(reader, 65536)
        os.close(reader)
        kept.append(pid)
    return kept


def end_kept() -> None:
    """End them."""
    while kept:
        pid = kept.pop()
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def main() -> None:
    """A line comes in one piece: whoever writes it waits for the answer."""
    while line := os.read(0, 65536):
        os.write(1, answer(line))


if __name__ == "__main__":
    main()
