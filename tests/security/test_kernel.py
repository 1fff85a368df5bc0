"""The parts of the kernel that no command needs are out of reach, by the answers that the policy gives."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import json
import signal

import pytest

import ramet

HIGH = 0xABCD << 32
POINTER = [0] * 256

REFUSED = {
    "add_key": ("add_key", "user", "name", "x", 1, -4),
    "keyctl": ("keyctl", 0, -4, 1),
    "keyctl, joining a session": ("keyctl", 1, 0),
    "request_key": ("request_key", "user", "name", 0, -4),
    "bpf, a map": ("bpf", 0, [1, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1] + [0] * 64, 72),
    "bpf, a program": ("bpf", 5, POINTER, 72),
    "perf_event_open": ("perf_event_open", [0, 0, 0, 0, 128] + [0] * 123, 0, -1, -1, 0),
    "userfaultfd": ("userfaultfd", 1),
    "io_uring_setup": ("io_uring_setup", 1, POINTER),
    "io_uring_enter": ("io_uring_enter", 0, 1, 0, 0, 0, 0),
    "io_uring_register": ("io_uring_register", 0, 0, 0, 0),
    "kexec_load": ("kexec_load", 0, 0, 0, 0),
    "kexec_file_load": ("kexec_file_load", 0, 0, 0, 0, 0),
    "init_module": ("init_module", POINTER, 1, ""),
    "finit_module": ("finit_module", 0, "", 0),
    "delete_module": ("delete_module", "none", 0),
    "swapon": ("swapon", "/tmp/swap", 0),
    "swapoff": ("swapoff", "/tmp/swap"),
    "clock_settime": ("clock_settime", 0, [0] * 16),
    "settimeofday": ("settimeofday", [0] * 16, 0),
    "clock_adjtime": ("clock_adjtime", 0, POINTER),
    "adjtimex": ("adjtimex", POINTER),
    "reboot": ("reboot", 0xFEE1DEAD, 0x28121969, 0x1234567),
    "reboot, off": ("reboot", 0xFEE1DEAD, 0x28121969, 0x4321FEDC),
    "quotactl": ("quotactl", 0x800007 << 8, "/dev/vda", 0, POINTER),
    "quotactl_fd": ("quotactl_fd", 0, 0x800007 << 8, 0, POINTER),
    "acct": ("acct", "/tmp/acct"),
    "syslog": ("syslog", 3, POINTER, 100),
    "sethostname": ("sethostname", "x", 1),
    "setdomainname": ("setdomainname", "x", 1),
    "iopl": ("iopl", 3),
    "ioperm": ("ioperm", 0x80, 1, 1),
    "fcntl, a lease": ("fcntl", 0, 1024, 1),
    "vhangup": ("vhangup",),
    "fanotify_init": ("fanotify_init", 0, 0),
    "lookup_dcookie": ("lookup_dcookie", 1, POINTER, 100),
    "personality": ("personality", 0x0400000),
    "TIOCSTI": ("ioctl", 0, 0x5412, "x"),
    "TIOCSTI, high bits": ("ioctl", 0, HIGH | 0x5412, "x"),
    "TIOCLINUX": ("ioctl", 0, 0x541C, "\x02"),
    "TIOCSETD": ("ioctl", 0, 0x5423, [2, 0, 0, 0]),
}
ABSENT = {
    "clone3": ("clone3", POINTER, 88),
    "landlock": ("landlock_create_ruleset", 0, 0, 1),
    "memfd_secret": ("memfd_secret", 0),
    "mseal": ("mseal", 0, 0, 0),
    "statmount": ("statmount", POINTER, POINTER, 256, 0),
    "listmount": ("listmount", POINTER, POINTER, 1, 0),
    "modify_ldt": ("modify_ldt", 0, POINTER, 16),
    "_sysctl": ("_sysctl", POINTER),
    "number 600": (600,),
    "x32 getpid": (0x40000000 | 39,),
    "x32 ptrace": (0x40000000 | 521, 0, 0, 0, 0),
    "x32 execve": (0x40000000 | 520, 0, 0, 0),
    "x32 ioctl": (0x40000000 | 514, 0, 0x5412, "x"),
}


def test_calls_on_the_machine_are_refused(calls):
    assert calls(REFUSED) == dict.fromkeys(REFUSED, "EPERM")


def test_calls_that_programs_can_do_without_are_absent(calls):
    assert calls(ABSENT) == dict.fromkeys(ABSENT, "ENOSYS")


@pytest.mark.parametrize("arguments", [(0x5412,), (HIGH | 0x5412,)])
def test_nothing_can_be_typed_into_a_terminal_of_the_sandbox_itself(told, arguments):
    source = """
    import pty, tty
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    answer = outcome(16, theirs, int(sys.argv[1]), "x")
    os.set_blocking(theirs, False)
    tell([answer, attempt(os.read, theirs, 1)])
    """
    assert told(source, str(arguments[0])) == ["EPERM", "EAGAIN"]


FAMILIES = {
    "AF_INET": 2,
    "AF_INET6": 10,
    "AF_KEY": 15,
    "AF_NETLINK": 16,
    "AF_PACKET": 17,
    "AF_RDS": 21,
    "AF_CAN": 29,
    "AF_TIPC": 30,
    "AF_BLUETOOTH": 31,
    "AF_ALG": 38,
    "AF_VSOCK": 40,
    "AF_QIPCRTR": 42,
    "AF_XDP": 44,
}


@pytest.mark.parametrize(
    "domain, kind, protocol, answer",
    [
        ("AF_VSOCK", 1, 0, "EAFNOSUPPORT"),
        ("AF_PACKET", 3, 0x300, "EAFNOSUPPORT"),
        ("AF_ALG", 5, 0, "EAFNOSUPPORT"),
        ("AF_KEY", 3, 2, "EAFNOSUPPORT"),
        ("AF_BLUETOOTH", 3, 1, "EAFNOSUPPORT"),
        ("AF_CAN", 3, 1, "EAFNOSUPPORT"),
        ("AF_RDS", 5, 0, "EAFNOSUPPORT"),
        ("AF_TIPC", 1, 0, "EAFNOSUPPORT"),
        ("AF_XDP", 3, 0, "EAFNOSUPPORT"),
        ("AF_QIPCRTR", 2, 0, "EAFNOSUPPORT"),
        ("AF_NETLINK", 3, 12, "EPROTONOSUPPORT"),  # netfilter
        ("AF_NETLINK", 3, 9, "EPROTONOSUPPORT"),  # audit
        ("AF_NETLINK", 3, 6, "EPROTONOSUPPORT"),  # xfrm
        ("AF_NETLINK", 3, 16, "EPROTONOSUPPORT"),  # generic
        ("AF_NETLINK", 3, 15, "EPROTONOSUPPORT"),  # kobject uevents
        ("AF_INET", 10, 0x300, "EPROTONOSUPPORT"),  # SOCK_PACKET
        ("AF_INET", 1, 132, "EPROTONOSUPPORT"),  # SCTP
        ("AF_INET", 1, 262, "EPROTONOSUPPORT"),  # MPTCP
        ("AF_INET", 3, 255, "EPERM"),  # raw: the kernel's own answer
        ("AF_INET6", 3, 58, "EPERM"),
    ],
)
def test_sockets_of_unusual_kinds_cannot_be_made(calls, domain, kind, protocol, answer):
    number = FAMILIES[domain]
    table = {
        "plain": ("socket", number, kind, protocol),
        "high bits": ("socket", HIGH | number, HIGH | kind, HIGH | protocol),
    }
    assert calls(table) == {"plain": answer, "high bits": answer}


def test_the_32_bit_entry_ends_the_program(compiled, run_binary):
    program = compiled(
        """
        #include <stdio.h>
        int main(void)
        {
            long answer;
            puts("before");
            fflush(stdout);
            __asm__ volatile("int $0x80" : "=a"(answer) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
            printf("after %ld\\n", answer);
            return 0;
        }
        """
    )
    result = run_binary(program)
    if result.signal == "SIGSEGV":
        pytest.skip("this kernel has no 32-bit entry")
    assert (result.stdout, result.signal, result.exit_code) == ("before\n", "SIGSYS", 128 + signal.SIGSYS)


def test_a_32_bit_program_is_ended_at_its_first_call(tmp_path, run_binary):
    """Hand-made: an ELF file of the other class whose whole code is exit(7)."""
    code = bytes.fromhex("b801000000bb07000000cd80")
    start = 0x8048000
    header = b"\x7fELF\x01\x01\x01" + bytes(9)
    header += b"".join(
        number.to_bytes(size, "little")
        for number, size in [
            (2, 2),
            (3, 2),
            (1, 4),
            (start + 84, 4),
            (52, 4),
            (0, 4),
            (0, 4),
            (52, 2),
            (32, 2),
            (1, 2),
            (0, 2),
            (0, 2),
            (0, 2),
        ]
    )
    segment = [1, 0, start, start, 84 + len(code), 84 + len(code), 5, 4096]
    program = tmp_path / "small"
    program.write_bytes(header + b"".join(number.to_bytes(4, "little") for number in segment) + code)
    result = run_binary(program)
    assert result.exit_code != 7
    assert result.signal in {"SIGSYS", None}
    if result.signal is None:
        assert result.exit_code == 126  # this kernel runs no 32-bit programs at all


def test_settings_of_the_kernel_cannot_be_changed(told):
    """Those of ipc belong to uid 0 inside by mode: only the read-only mount keeps them from being written."""
    source = """
    found = {}
    for top, _, names in os.walk("/proc/sys"):
        for name in names:
            found[f"{top}/{name}"] = written(f"{top}/{name}")
    asked = ["kernel/core_pattern", "kernel/shmmax", "net/ipv4/ip_forward", "user/max_user_namespaces"]
    tell([found, [opened("/proc/sys/" + name, os.O_WRONLY | os.O_TRUNC) for name in asked]])
    """
    found, cut = told(source)
    assert len(found) > 500
    assert {
        path: answer for path, answer in found.items() if answer not in {"EROFS", "EACCES", "EPERM"}
    } == {}
    assert cut == ["EROFS"] * 4


def test_other_files_of_proc_cannot_be_written(told):
    source = """
    skipped = {"sys", "self", "thread-self", "pressure"}
    covered = {line.split()[4] for line in open("/proc/self/mountinfo")}
    found = {}
    for name in os.listdir("/proc"):
        path = "/proc/" + name
        if name.isdigit() or name in skipped or path in covered:
            continue
        for top, _, names in os.walk(path) if os.path.isdir(path) else [("/proc", None, [name])]:
            for each in names:
                if not os.path.islink(f"{top}/{each}"):
                    found[f"{top}/{each}"] = written(f"{top}/{each}")
    tell(found)
    """
    found = told(source)
    assert len(found) > 20
    assert {
        path: answer for path, answer in found.items() if answer not in {"EACCES", "EPERM", "EROFS", "EIO"}
    } == {}


MASKED = (
    *("acpi", "bus", "fs", "irq", "driver", "scsi", "asound"),
    *(
        "kcore",
        "keys",
        "key-users",
        "kallsyms",
        "kmsg",
        "iomem",
        "ioports",
        "interrupts",
        "latency_stats",
        "mtrr",
    ),
    *("pagetypeinfo", "sched_debug", "slabinfo", "sysrq-trigger", "timer_list", "vmallocinfo"),
    *("kpagecgroup", "kpagecount", "kpageflags"),
)


@pytest.mark.parametrize("name", MASKED)
def test_a_file_of_proc_that_no_namespace_makes_private_is_empty_or_closed(told, name):
    source = """
    path = "/proc/" + sys.argv[1]
    if not os.path.lexists(path):
        tell("absent")
    elif os.path.isdir(path):
        tell(os.listdir(path) or "empty")
    elif opened(path):
        tell(opened(path))
    else:
        tell(open(path, "rb").read(100).decode("latin-1") or "empty")
    """
    assert told(source, name) in {"absent", "empty", "EACCES", "ENOENT"}


def test_what_is_written_to_a_masked_file_is_lost(told):
    found = told(
        """
        tell([written(f"/proc/{name}", b"b") for name in ("sysrq-trigger", "mtrr", "interrupts", "acpi/x", "irq/default")])
        """
    )
    assert set(found) <= {"", "EACCES", "ENOENT", "ENOTDIR"}
    assert found[0] in {"EACCES", "ENOENT"}


def test_a_filter_of_the_commands_own_only_narrows(told):
    """Returning "allow" for everything from a second filter opens nothing."""
    source = """
    import struct
    program = struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000)
    HELD.append(ctypes.create_string_buffer(program, 8))
    filters = struct.pack("<HxxxxxxQ", 1, ctypes.addressof(HELD[-1]))
    installed = outcome(317, 1, 0, filters)
    tell([installed, outcome(165, "none", "/tmp", "tmpfs", 0, 0), outcome(250, 0, 0)])
    """
    assert told(source) == ["", "EPERM", "EPERM"]


def test_a_new_listener_that_says_go_on_opens_nothing(told):
    """SECCOMP_USER_NOTIF_FLAG_CONTINUE lets the other filters decide, and they say no."""
    source = """
    import struct, threading, fcntl
    # mount(2) to the listener, everything else allowed.
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 165), (6, 0, 0, 0x7FC00000), (6, 0, 0, 0x7FFF0000)]
    program = b"".join(struct.pack("<HBBI", *row) for row in code)
    HELD.append(ctypes.create_string_buffer(program, len(program)))
    filters = struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(HELD[-1]))
    listener = call(317, 1, 1 << 3, filters)
    if listener < 0:
        tell(errno.errorcode[-listener])
        sys.exit()
    def answer():
        heard = bytearray(80)
        fcntl.ioctl(listener, 0xC0502100, heard)
        fcntl.ioctl(listener, 0xC0182101, heard[:8] + struct.pack("<qiI", 0, 0, 1))
    threading.Thread(target=answer, daemon=True).start()
    tell(outcome(165, "none", "/tmp", "tmpfs", 0, 0))
    """
    assert told(source) in {"EPERM", "EBUSY"}


def test_the_tables_above_hold_in_a_root_of_another_kind(rooted, tmp_path):
    """The filter is the sandbox's, not the root's."""
    from pathlib import Path

    from ramet.seccomp._syscalls import X86_64
    from system._daemons import build

    tmp_path.chmod(0o755)
    top = build(tmp_path / "root", "python3")
    inside = Path(__file__).with_name("_inside.py").read_text()
    rows = [(X86_64[name], *arguments) for name, *arguments in REFUSED.values()]
    source = inside + "\ntell([outcome(*row) for row in json.load(sys.stdin)])"
    result = rooted.run(["python3", "-c", source], root=top, stdin=json.dumps(rows))
    assert json.loads(result.stdout) == ["EPERM"] * len(rows), result.stderr


def test_no_command_runs_without_a_filter():
    result = ramet.run("grep -h Seccomp: /proc/self/status /proc/$$/status")
    assert result.stdout.split() == ["Seccomp:", "2"] * 2
