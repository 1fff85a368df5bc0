"""Nothing that a command does moves a mount, here or inside, and no mount leads out."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import os
import re
import sys
from pathlib import Path

import pytest

import ramet
from system._daemons import build

MS_BIND, MS_REMOUNT, MS_RDONLY, MS_MOVE = 4096, 32, 1, 8192
MNT_DETACH = 2
AT_FDCWD = -100
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
OPEN_TREE_CLONE = 1


def host_mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def test_a_second_chroot_is_refused(told):
    found = told(
        """
        os.mkdir("jail")
        tell([attempt(os.chroot, "jail"), attempt(os.chroot, "/"), attempt(os.chroot, "/proc/self/root")])
        """
    )
    assert found == ["EPERM"] * 3


def test_the_classic_escape_from_a_chroot_stays_where_it_is(compiled, run_binary):
    """chroot below an open directory, then up from there: forks of ForkCage's kind fall to this."""
    program = compiled(
        """
        #define _GNU_SOURCE
        #include <errno.h>
        #include <fcntl.h>
        #include <stdio.h>
        #include <string.h>
        #include <sys/stat.h>
        #include <unistd.h>
        int main(void)
        {
            char *words[] = {"/bin/sh", "-c", "cat /proc/self/mountinfo >/dev/null; ls -a /", 0};
            int top = open("/", O_RDONLY);
            mkdir("/tmp/jail", 0755);
            printf("chroot: %s\\n", chroot("/tmp/jail") ? strerrorname_np(errno) : "done");
            fchdir(top);
            for (int i = 0; i < 64; i++)
                chdir("..");
            printf("chroot: %s\\n", chroot(".") ? strerrorname_np(errno) : "done");
            fflush(stdout);
            return execv(words[0], words);
        }
        """
    )
    result = run_binary(program)
    lines = result.stdout.split()
    assert lines[:4] == ["chroot:", "EPERM", "chroot:", "EPERM"], result.stderr
    assert not {"boot", "lost+found"} & {*lines[4:]}
    assert {"proc", "usr", "home"} <= {*lines[4:]}


def test_no_way_of_mounting_or_unmounting_is_open(calls):
    refused = {
        "tmpfs": ("mount", "none", "/tmp", "tmpfs", 0, 0),
        "proc": ("mount", "proc", "/tmp", "proc", 0, 0),
        "bind": ("mount", "/usr", "/tmp", 0, MS_BIND, 0),
        "move": ("mount", "/usr", "/tmp", 0, MS_MOVE, 0),
        "/usr writable": ("mount", "none", "/usr", 0, MS_REMOUNT | MS_BIND, 0),
        "/proc/sys writable": ("mount", "none", "/proc/sys", 0, MS_REMOUNT | MS_BIND, 0),
        "propagation": ("mount", "none", "/", 0, 1 << 20, 0),
        "overlay": ("mount", "overlay", "/tmp", "overlay", 0, "lowerdir=/usr:/etc"),
        "unmount /usr": ("umount2", "/usr", MNT_DETACH),
        "unmount /proc/sys": ("umount2", "/proc/sys", MNT_DETACH),
        "unmount a mask": ("umount2", "/proc/keys", MNT_DETACH),
        "unmount /": ("umount2", "/", MNT_DETACH),
        "pivot_root": ("pivot_root", "/", "/tmp"),
        "fsopen": ("fsopen", "tmpfs", 0),
        "fspick": ("fspick", AT_FDCWD, "/", 0),
        "open_tree": ("open_tree", AT_FDCWD, "/", OPEN_TREE_CLONE),
        "open_tree_attr": ("open_tree_attr", AT_FDCWD, "/", OPEN_TREE_CLONE, 0, 0),
        "move_mount": ("move_mount", AT_FDCWD, "/usr", AT_FDCWD, "/tmp", 0),
        "mount_setattr": ("mount_setattr", AT_FDCWD, "/usr", 0, [0] * 32, 32),
    }
    assert calls(refused) == dict.fromkeys(refused, "EPERM")


def test_the_host_sees_no_mount_of_a_running_sandbox_and_keeps_its_own():
    before = host_mounts()
    during: list[list[str]] = []
    result = ramet.run(
        "mount -t tmpfs none /mnt; umount -l /usr /proc / 2>/dev/null; echo tried; cat; ls /usr",
        stdin=b"",
        on_stdout=lambda _: during.append(host_mounts()),
    )
    assert result.stdout.startswith("tried\n")
    assert "bin" in result.stdout.split()
    assert during
    assert all(mounts == before for mounts in [*during, host_mounts()])


def test_mountinfo_names_no_directory_of_the_host_but_what_the_default_root_shows():
    rows = [line.split() for line in ramet.run("cat /proc/self/mountinfo").stdout.splitlines()]
    points = {row[4]: row[3] for row in rows}
    shown = {os.path.realpath(path) for path in ("/usr", sys.prefix, sys.base_prefix)}
    shown |= {path for path in ("/bin", "/lib", "/lib64", "/sbin") if not os.path.islink(path)}
    binds = {
        point for point, source in points.items() if not point.startswith(("/proc", "/dev")) and point != "/"
    }
    # Of core's own, named after the limits that it tells.
    assert re.fullmatch(r"/r/c/[0-9a-f]+-[0-9a-f]+-[0-9a-f]+", points["/sys/fs/cgroup"])
    binds -= {"/sys/fs/cgroup"}
    assert binds <= shown | {point for point in binds if any(point.startswith(top + "/") for top in shown)}
    for point, source in points.items():
        if point.startswith(("/proc", "/dev")):
            assert source in {"/", "/1", "/e", "/sys", "/shm", "/meminfo", *(f"/{name}" for name in DEVICES)}
    # Options of the root: descriptors of core, which name nothing.
    (options,) = [row[-1] for row in rows if row[4] == "/"]
    assert "/home" not in options
    assert all(part.split("=/")[1].startswith("proc/self/fd/") for part in options.split(",") if "=/" in part)


def test_mountinfo_does_not_name_a_directory_given_as_root(rooted, tmp_path):
    top = build(tmp_path / "secret-name", "cat")
    result = rooted.run("cat /proc/self/mountinfo /proc/self/mounts", root=top)
    assert result.ok, result.stderr
    assert " / / " in result.stdout
    assert "secret-name" not in result.stdout
    assert str(tmp_path) not in result.stdout


@pytest.mark.parametrize(
    "mode, answer",
    [("S_IFCHR", "EPERM"), ("S_IFBLK", "EPERM"), ("S_IFIFO", ""), ("S_IFSOCK", ""), ("S_IFREG", "")],
)
def test_device_nodes_cannot_be_made(told, mode, answer):
    source = """
    import stat
    mode = getattr(stat, sys.argv[1]) | 0o666
    tell([attempt(os.mknod, f"node{number}", mode, number) for number in (0, os.makedev(1, 3), os.makedev(8, 0))])
    """
    assert told(source, mode) == [answer] * 3


def test_no_rename_makes_a_whiteout(calls):
    flags = {"whiteout": 4, "whiteout and exchange": 6, "high bits": 1 << 32 | 4}
    table = {
        name: ("renameat2", AT_FDCWD, "/tmp", AT_FDCWD, "/var/tmp/x", flag) for name, flag in flags.items()
    }
    assert calls(table) == dict.fromkeys(flags, "EPERM")


def test_a_file_handle_does_not_open_anything(told):
    """name_to_handle_at tells handles of the host's file system; from one, any inode can be guessed."""
    found = told(
        """
        handle = [128, 0, 0, 0] + [0] * 132
        HELD.append(ctypes.create_string_buffer(bytes(handle), 136))
        named = outcome(303, -100, "/usr", ctypes.addressof(HELD[-1]), [0] * 8, 0)
        fd = os.open("/usr", os.O_RDONLY)
        tell([named, outcome(304, fd, ctypes.addressof(HELD[0]), 0), outcome(304, -100, HELD[0].raw, 0)])
        """
    )
    assert found[0] in {"", "EOPNOTSUPP"}
    assert found[1:] == ["EPERM", "EPERM"]


def test_dev_is_read_only(told):
    found = told(
        """
        tell([
            opened("/dev/new", os.O_WRONLY | os.O_CREAT),
            attempt(os.mkdir, "/dev/new"),
            attempt(os.symlink, "/", "/dev/new"),
            attempt(os.unlink, "/dev/fd"),
            attempt(os.chmod, "/dev", 0o777),
            attempt(os.rename, "/dev/fd", "/dev/new"),
        ])
        """
    )
    assert found == ["EROFS"] * 6
    assert ramet.run("rm -f /dev/null; test -c /dev/null").ok


def test_the_nodes_of_dev_cannot_be_touched(told):
    before = {name: os.stat(f"/dev/{name}").st_mtime_ns for name in ("null", "zero", "full", "random", "tty")}
    source = """
    names = sys.argv[1:]
    tell([attempt(os.utime, f"/dev/{name}") for name in names] + [attempt(os.chmod, f"/dev/{name}", 0) for name in names])
    """
    assert set(told(source, *before)) <= {"EROFS", "EPERM"}
    # Others may touch the host's nodes meanwhile (a write to /dev/tty does), so only /dev/full is compared.
    assert os.stat("/dev/full").st_mtime_ns == before["full"]


def test_devices_still_work():
    result = ramet.run(
        "head -c 3 /dev/zero | od -An -c; echo lost >/dev/null; head -c 8 /dev/urandom | wc -c; cat /etc/hosts >/dev/full"
    )
    assert result.stdout.split() == ["\\0", "\\0", "\\0", "8"]
    assert "No space left" in result.stderr


def test_what_is_bound_from_the_host_is_read_only(told):
    found = told(
        """
        places = [place for place in ("/usr", sys.base_prefix, *sys.argv[1:]) if os.path.isdir(place)]
        answers = []
        for place in places:
            answers.append(opened(place + "/new", os.O_WRONLY | os.O_CREAT))
            answers.append(attempt(os.mkdir, place + "/new"))
        answers.append(written(os.__file__))
        answers.append(attempt(os.utime, os.__file__))
        answers.append(attempt(os.chmod, os.__file__, 0o777))
        answers.append(attempt(os.unlink, os.__file__))
        answers.append(attempt(os.setxattr, os.__file__, "user.x", b"x"))
        tell(answers)
        """,
        sys.prefix,
    )
    assert set(found) <= {"EROFS", "EACCES", "EPERM"}


def test_of_sys_there_are_only_the_own_limits(told):
    source = 'tell(sorted(os.path.join(top, name) for top, _, names in os.walk("/sys") for name in names))'
    assert told(source) == [
        f"/sys/fs/cgroup/{name}"
        for name in (
            "cgroup.controllers",
            "cpu.max",
            "cpu/cpu.cfs_period_us",
            "cpu/cpu.cfs_quota_us",
            "memory.high",
            "memory.max",
            "memory.swap.max",
            "memory/memory.limit_in_bytes",
            "memory/memory.memsw.limit_in_bytes",
            "memory/memory.soft_limit_in_bytes",
            "pids.max",
            "pids/pids.max",
        )
    ]
