"""Counts what a test session owns, so that a test which leaves something behind fails by name.

What belongs to the session is found by descent: `adopt_orphans` makes this process the reaper of all that it
started, so a daemon that detached itself is still a descendant. Other people's processes are never counted.

Kernel teardown is asynchronous (a namespace outlives its last process by milliseconds), so the one way to ask
"is it gone" is to look again until a deadline.
"""

import ctypes
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LOOK_AGAIN = 0.02  # seconds between two looks
NAMESPACE_LINK = re.compile(r"(cgroup|ipc|mnt|net|pid|time|user|uts):\[\d+\]")
NUMBERS = re.compile(r"[0-9]+")
SELF = "this test process"
KEPT_LOG = "/memfd:ramet-log (deleted)"
"""What a command wrote, which core keeps for minutes after its end; system/core/test_started.py counts."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat."""

    pid: int
    parent: int
    name: str
    state: str

    @property
    def ended(self) -> bool:
        """Dead, and only its parent's wait is outstanding."""
        return self.state in "ZX"


@dataclass(frozen=True, slots=True)
class Record:
    """What the session owned at one instant. Counters go by process name: pids change, numbers must not."""

    processes: Counter[str]
    descriptors: Counter[str]
    mounts: Counter[str]
    targets: Counter[str]
    """What the descriptors lead to, without numbers: only to say which kind there is more of."""
    host_mounts: frozenset[str]
    namespaces: frozenset[str]
    entries: frozenset[str]

    def growth_since(self, before: "Record") -> list[str]:
        """One sentence for each kind of thing of which there is more now; empty if nothing leaked."""
        found = []
        for kind in ("processes", "descriptors", "mounts"):
            old, new = getattr(before, kind), getattr(self, kind)
            found += [f"{kind} of {name}: {old[name]} -> {new[name]}" for name in sorted(new - old)]
        if new_targets := self.targets - before.targets:
            more = ", ".join(f"{count} of {target}" for target, count in sorted(new_targets.items()))
            found = [f"{one} ({more})" if one.startswith("descriptors") else one for one in found]
        if lines := sorted(self.host_mounts - before.host_mounts):
            found.append(f"mounts on the host: {lines}")
        if len(self.namespaces) > len(before.namespaces):
            found.append(f"namespaces: {len(before.namespaces)} -> {len(self.namespaces)}")
        if len(self.entries) > len(before.entries):
            found.append(f"runtime directory: {sorted(self.entries - before.entries)} came")
        return found


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (PR_SET_CHILD_SUBREAPER)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def processes() -> Iterator[Process]:
    """Every process that /proc shows. One that ends meanwhile is left out."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with suppress(OSError):
            # The name stands in parentheses and may hold any byte, so the last one counts.
            head, _, tail = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")
            state, parent = tail.split()[:2]
            yield Process(int(entry), int(parent), head.partition("(")[2], state)


def descendants(root: int) -> list[Process]:
    """All processes below `root`, in the order of the tree."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [process.pid for process in below]
    return found


def reap_adopted() -> None:
    """Wait for children that have ended, adopted ones among them.

    Only for use between modules: a Popen whose child was taken away believes in exit code 0.
    """
    for process in descendants(os.getpid()):
        if process.parent == os.getpid() and process.ended:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def links(directory: str) -> list[str]:
    """Targets of the links in a /proc directory; what cannot be read (ended, or another's) is left out."""
    targets = []
    with suppress(OSError):
        for entry in os.listdir(directory):
            with suppress(OSError):
                targets.append(os.readlink(f"{directory}/{entry}"))
    return targets


def mount_lines(pid: int | str) -> list[str]:
    """Lines of a process's mountinfo; none once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines()
    return []


def observe(runtime: Path) -> Record:
    """Count now. `runtime` is the directory in which the session's daemon keeps its sockets."""
    me = os.getpid()
    names: Counter[str] = Counter()
    descriptors: Counter[str] = Counter()
    mounts: Counter[str] = Counter()
    targets: Counter[str] = Counter()
    # One descriptor less: the listing itself holds one.
    own = links("/proc/self/fd")
    descriptors[SELF] = len(own) - 1
    held = set(own)
    for process in descendants(me):
        names[process.name] += 1
        files = links(f"/proc/{process.pid}/fd")
        files = [one for one in files if one != KEPT_LOG]
        descriptors[process.name] += len(files)
        targets.update(f"{process.name}'s {NUMBERS.sub('N', file)}" for file in files)
        mounts[process.name] += len(mount_lines(process.pid))
        held.update(files, links(f"/proc/{process.pid}/ns"))
    home = set(links("/proc/self/ns"))
    return Record(
        processes=names,
        descriptors=descriptors,
        mounts=mounts,
        targets=targets,
        host_mounts=frozenset(mount_lines("self")),
        namespaces=frozenset(link for link in held - home if NAMESPACE_LINK.fullmatch(link)),
        entries=frozenset(str(path.relative_to(runtime)) for path in runtime.rglob("*")),
    )


def settle(look: Callable[[], Record], *, quiet: float = 0.25, deadline: float = 10.0) -> Record:
    """The first record that has not changed for `quiet` seconds, or the last one at the deadline."""
    end = time.monotonic() + deadline
    record, since = look(), time.monotonic()
    while time.monotonic() - since < quiet and time.monotonic() < end:
        time.sleep(LOOK_AGAIN)
        again = look()
        if again != record:
            record, since = again, time.monotonic()
    return record


def drift(before: Record, look: Callable[[], Record], *, deadline: float = 10.0) -> list[str]:
    """What has grown since `before` and does not go away until the deadline; empty as soon as nothing has."""
    end = time.monotonic() + deadline
    while found := look().growth_since(before):
        if time.monotonic() > end:
            return found
        time.sleep(LOOK_AGAIN)
    return []
