"""A command is in namespaces of its own, and can neither make others nor join any."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import os
import threading

import pytest

import ramet
from ramet.client import Client

NAMESPACES = {
    "time": 0x80,
    "mnt": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
OWN = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
SIGCHLD = 17
HIGH = 1 << 40


@pytest.mark.parametrize("kind", NAMESPACES)
def test_no_namespace_can_be_made(calls, kind):
    flag = NAMESPACES[kind]
    table = {
        "unshare": ("unshare", flag),
        "unshare with others": ("unshare", flag | 0x400),
        "unshare, high bits": ("unshare", HIGH | flag),
        "unshare a user and it": ("unshare", flag | NAMESPACES["user"]),
    }
    if kind != "time":  # in clone(2) this bit is part of the exit signal
        table["clone"] = ("clone", flag | SIGCHLD, 0, 0, 0, 0)
        table["clone, high bits"] = ("clone", HIGH | flag | SIGCHLD, 0, 0, 0, 0)
        table["clone a user and it"] = ("clone", flag | NAMESPACES["user"] | SIGCHLD, 0, 0, 0, 0)
    assert calls(table) == dict.fromkeys(table, "EPERM")
    arguments = [*(flag | NAMESPACES["user"]).to_bytes(8, "little"), *[0] * 24, SIGCHLD, *[0] * 55]
    assert calls({"clone3": ("clone3", arguments, 88)}) == {"clone3": "ENOSYS"}


def test_the_c_library_finds_no_other_way(compiled, run_binary):
    program = compiled(
        """
        #define _GNU_SOURCE
        #include <errno.h>
        #include <sched.h>
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static char stack[65536];
        static int child(void *unused) { (void)unused; return 42; }
        int main(void)
        {
            int flags[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS,
                           CLONE_NEWCGROUP, CLONE_NEWUSER | CLONE_NEWNS};
            for (unsigned i = 0; i < sizeof flags / sizeof flags[0]; i++) {
                printf("%s ", unshare(flags[i]) ? strerrorname_np(errno) : "done");
                printf("%s ", clone(child, stack + sizeof stack, flags[i] | SIGCHLD, 0) < 0 ? strerrorname_np(errno) : "done");
            }
            int status = 0, pid = clone(child, stack + sizeof stack, SIGCHLD, 0);
            waitpid(pid, &status, 0);
            printf("%d\\n", WEXITSTATUS(status));
            return 0;
        }
        """
    )
    assert run_binary(program).stdout.split() == ["EPERM"] * 16 + ["42"]


def test_no_namespace_can_be_joined(told):
    """Not even its own, by name or by the pidfd of a child."""
    source = """
    answers = []
    for name in os.listdir("/proc/self/ns"):
        fd = os.open("/proc/self/ns/" + name, os.O_RDONLY)
        answers += [outcome(308, fd, 0), outcome(308, fd, 0x10000000)]
    answers.append(outcome(308, os.pidfd_open(os.getpid()), 0x20000))
    tell(answers)
    """
    answers = told(source)
    assert len(answers) > 14
    assert set(answers) == {"EPERM"}


def test_a_handle_of_a_namespace_gives_away_none_above_it(told):
    """NS_GET_PARENT and NS_GET_USERNS, of the user and pid namespaces."""
    source = """
    import fcntl
    answers = []
    for name in ("user", "pid"):
        fd = os.open("/proc/self/ns/" + name, os.O_RDONLY)
        answers.append(attempt(fcntl.ioctl, fd, 0xB702))
    answers.append(attempt(fcntl.ioctl, os.open("/proc/self/ns/user", os.O_RDONLY), 0xB701))
    tell(answers)
    """
    assert told(source) == ["EPERM"] * 3


def test_every_namespace_is_another_than_the_hosts_and_than_another_sandboxs(told):
    source = "tell({name: os.readlink('/proc/self/ns/' + name) for name in sys.argv[1:]})"
    one, two = told(source, *OWN), told(source, *OWN)
    host = {name: os.readlink(f"/proc/self/ns/{name}") for name in OWN}
    assert [name for name in OWN if one[name] == host[name]] == []
    assert host["user"] != one["user"]
    # A number may be given out again once its namespace is gone; so many at once are not.
    assert len({one[name] for name in OWN} & {two[name] for name in OWN}) < len(OWN)


def test_two_sandboxes_at_once_share_no_namespace():
    both = threading.Barrier(2, timeout=20)
    seen: list[set[str]] = []

    def run() -> None:
        lines = []

        def line(chunk: bytes) -> None:
            lines.append(chunk)
            both.wait()

        with Client() as client:
            client.run("readlink /proc/self/ns/*; cat", stdin=b"", on_stdout=line)
        seen.append({*b"".join(lines).decode().split()})

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared = {name.split(":")[0] for name in seen[0] & seen[1]}
    assert shared <= {"time"}


def test_maps_of_ids_cannot_be_changed(told):
    source = """
    names = ["uid_map", "gid_map", "projid_map", "setgroups", "timens_offsets"]
    tell({name: written("/proc/self/" + name, b"0 0 1\\n") for name in names})
    """
    found = told(source)
    assert set(found.values()) <= {"EPERM", "EACCES", "EINVAL"}
    assert found["uid_map"] == "EPERM"


def test_ids_that_are_not_mapped_cannot_be_taken(told):
    count = len(ramet.run("cat /proc/self/uid_map").stdout.splitlines())
    assert count >= 1
    source = """
    ids = [int(first) + int(number) for first, _, number in map(str.split, open("/proc/self/uid_map"))]
    unmapped = max(ids)
    tell([attempt(os.setuid, unmapped), attempt(os.setgid, unmapped), attempt(os.chown, "/tmp", unmapped, -1)])
    """
    assert set(told(source)) <= {"EINVAL", "EPERM"}


def test_host_root_is_mapped_in_no_namespace_of_a_sandbox():
    rows = [line.split() for line in ramet.run("cat /proc/self/uid_map").stdout.splitlines()]
    # Inside, a map shows ids as the namespace above numbers them: what counts is how files of host root look.
    assert rows[0][0] == "0"
    owner = ramet.run("stat -c %u /usr /dev/null /proc").stdout.split()
    assert owner == ["65534"] * 3 or "0" not in owner
