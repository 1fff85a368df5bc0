"""The kernel itself under the default filter.

Every argument is one that the kernel would refuse otherwise, or that changes nothing: a filter that lets a
call through harms no machine, and fails the test all the same.
"""

import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from ramet.seccomp._syscalls import X86_64
from unit.seccomp.conftest import Calls, Confined

BAD = -1
BAD_POINTER = 1
HIGH = 0xABCD << 32

REFUSED = {
    "mount": ("mount", (BAD_POINTER, BAD_POINTER, BAD_POINTER), "EPERM"),
    "umount2": ("umount2", (BAD_POINTER, 0), "EPERM"),
    "fsopen": ("fsopen", (BAD_POINTER, 0), "EPERM"),
    "open_tree": ("open_tree", (BAD, BAD_POINTER, 0), "EPERM"),
    "mount_setattr": ("mount_setattr", (BAD, BAD_POINTER, 0, BAD_POINTER, 0), "EPERM"),
    "pivot_root": ("pivot_root", (BAD_POINTER, BAD_POINTER), "EPERM"),
    "chroot": ("chroot", (BAD_POINTER,), "EPERM"),
    "setns": ("setns", (BAD, 0), "EPERM"),
    "unshare user": ("unshare", (0x10000000,), "EPERM"),
    "unshare time": ("unshare", (0x80,), "EPERM"),
    "clone with a network": ("clone", (0x40000011, 0, 0, 0, 0), "EPERM"),
    "clone with a network and high bits": ("clone", (HIGH | 0x40000011, 0, 0, 0, 0), "EPERM"),
    "clone3": ("clone3", (0, 0), "ENOSYS"),
    "keyctl": ("keyctl", (BAD,), "EPERM"),
    "add_key": ("add_key", (BAD_POINTER, BAD_POINTER, 0, 0, BAD), "EPERM"),
    "bpf": ("bpf", (BAD, 0, 0), "EPERM"),
    "perf_event_open": ("perf_event_open", (BAD_POINTER, 0, -1, -1, 0), "EPERM"),
    "userfaultfd": ("userfaultfd", (BAD,), "EPERM"),
    "io_uring_setup": ("io_uring_setup", (0, BAD_POINTER), "EPERM"),
    "kexec_load": ("kexec_load", (0, 0, 0, BAD), "EPERM"),
    "finit_module": ("finit_module", (BAD, BAD_POINTER, 0), "EPERM"),
    "swapon": ("swapon", (BAD_POINTER, 0), "EPERM"),
    "reboot": ("reboot", (0, 0, 0), "EPERM"),
    "clock_settime": ("clock_settime", (0, BAD_POINTER), "EPERM"),
    "adjtimex": ("adjtimex", (BAD_POINTER,), "EPERM"),
    "open_by_handle_at": ("open_by_handle_at", (BAD, BAD_POINTER, 0), "EPERM"),
    "syslog": ("syslog", (BAD,), "EPERM"),
    "personality": ("personality", (0x0400000,), "EPERM"),
    "AF_ALG": ("socket", (38, 5, 0), "EAFNOSUPPORT"),
    "AF_VSOCK": ("socket", (40, 1, 0), "EAFNOSUPPORT"),
    "AF_PACKET": ("socket", (17, 3, 0), "EAFNOSUPPORT"),
    "AF_PACKET with high bits": ("socket", (HIGH | 17, 3, 0), "EAFNOSUPPORT"),
    "AF_PACKET by SOCK_PACKET": ("socket", (2, 10, 0), "EPROTONOSUPPORT"),
    "MPTCP": ("socket", (2, 1, 262), "EPROTONOSUPPORT"),
    "NETLINK_NETFILTER": ("socket", (16, 3, 12), "EPROTONOSUPPORT"),
    "TIOCSTI": ("ioctl", (BAD, 0x5412, BAD_POINTER), "EPERM"),
    "TIOCSTI with high bits": ("ioctl", (BAD, HIGH | 0x5412, BAD_POINTER), "EPERM"),
    "TIOCLINUX": ("ioctl", (BAD, 0x541C, BAD_POINTER), "EPERM"),
    "limits of pid 1": ("prlimit64", (1, 7, BAD_POINTER, 0), "EPERM"),
    "limits of the parent": ("prlimit64", (os.getpid(), 7, BAD_POINTER, 0), "EPERM"),
    "signal 0 to pid 1": ("kill", (1, 0), "EPERM"),
    "whiteout": ("mknodat", (BAD, BAD_POINTER, 0x2000, 0), "EPERM"),
    "SHM_LOCK with high bits": ("shmctl", (BAD, HIGH | 11, 0), "EPERM"),
    "io_setup": ("io_setup", (1, BAD_POINTER), "ENOSYS"),
    "mseal": ("mseal", (0, 0, 0), "ENOSYS"),
    "pkey_alloc": ("pkey_alloc", (0, 0), "ENOSYS"),
    "landlock": ("landlock_create_ruleset", (0, 0, 1), "ENOSYS"),
    "memfd_secret": ("memfd_secret", (BAD,), "ENOSYS"),
}


def test_kernel_refuses_what_the_profile_closes(calls: Calls) -> None:
    answers = calls("calls", [(X86_64[name], *arguments) for name, arguments, _ in REFUSED.values()])
    got = {
        title: errno.errorcode.get(answer, "success") for title, answer in zip(REFUSED, answers, strict=True)
    }
    assert got == {title: expected for title, (_, _, expected) in REFUSED.items()}


def test_kernel_answers_itself_what_the_profile_opens(calls: Calls) -> None:
    opened = {
        "getpid": ((39,), 0),
        "socket unix": ((41, 1, 1, 0), 0),
        "socket udp": ((41, 2, 2, 0), 0),
        "getifaddrs": ((41, 16, 3, 0), 0),
        "personality": ((135, 0xFFFFFFFF), 0),
        "unshare files": ((272, 0x400), 0),
        "memfd_create": ((319, BAD_POINTER, 0), errno.EFAULT),
        "own limits": ((302, 0, 7, BAD_POINTER, 0), errno.EFAULT),
        "parent's limits, reading": ((302, os.getpid(), 7, 0, BAD_POINTER), errno.EFAULT),
        "tcgets": ((16, BAD, 0x5401, 0), errno.EBADF),
        "fifo": ((259, BAD, BAD_POINTER, 0x1000, 0), errno.EFAULT),
        "seccomp, actions": ((317, 2, 0, BAD_POINTER), errno.EFAULT),
    }
    answers = calls("calls", [request for request, _ in opened.values()])
    assert dict(zip(opened, answers, strict=True)) == {
        title: expected for title, (_, expected) in opened.items()
    }


def test_x32_and_unknown_numbers_do_not_exist(calls: Calls) -> None:
    numbers = [0x40000000, 0x40000000 | 39, 0x40000000 | 520, 512, 520, 547, 600, 2**31 - 1]
    assert calls("calls", [(number,) for number in numbers]) == [errno.ENOSYS] * len(numbers)


def test_init_of_ones_own_uid_cannot_be_touched_although_the_kernel_would_let(calls: Calls) -> None:
    """The child of a namespace's pid 1, of its uid and capabilities: more than a guest of a sandbox has."""
    attacks = [
        ("setpriority", (0, 1, 0)),
        ("setpriority", (2, 0, 0)),
        ("ioprio_set", (1, 1, 0x4004)),
        ("sched_setscheduler", (1, 3, BAD_POINTER)),
        ("pidfd_open", (1, 0)),
        ("kill", (1, 0)),
        ("tgkill", (1, 1, 0)),
        ("prlimit64", (1, 7, BAD_POINTER, 0)),
        ("get_robust_list", (1, BAD_POINTER, BAD_POINTER)),
        ("kcmp", (1, 1, 0, 0, 0)),
        ("migrate_pages", (1, 0, 0, 0)),
        ("process_vm_readv", (1, 0, 0, 0, 0, 0)),
        ("ptrace", (0x4206, 1, 0, BAD)),
    ]
    answers = calls("attack", [(X86_64[name], *arguments) for name, arguments in attacks])
    assert errno.EPERM not in answers["free"], "the kernel refuses this by itself: it proves nothing"
    assert answers["confined"] == [errno.EPERM] * len(attacks)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_entry_of_32_bit_programs_ends_the_process(confined: Confined, tmp_path: Path) -> None:
    source = tmp_path / "entry.c"
    source.write_text(
        """
        #include <stdio.h>
        int main(int argc, char **argv)
        {
            long answer;
            (void)argv;
            puts("before");
            fflush(stdout);
            /* i386 number 20: getpid. */
            __asm__ volatile("int $0x80" : "=a"(answer) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
            printf("after %d %d\\n", answer > 0, argc);
            return 0;
        }
        """,
        encoding="ascii",
    )
    subprocess.run(["gcc", "-O1", "-o", tmp_path / "entry", source], check=True)
    unfiltered = subprocess.run([tmp_path / "entry"], capture_output=True, text=True, check=False)
    if unfiltered.returncode == -signal.SIGSEGV:
        pytest.skip("this kernel has no 32-bit entry")
    assert "after 1" in unfiltered.stdout
    done = confined(tmp_path / "entry")
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "before\n")
