"""The decisions of the default profile, call by call, in the words of the system-call manual."""

import pytest

from ramet.seccomp import Profile, explain, load_profile
from ramet.seccomp._syscalls import X86_64

HIGH = 0xABCD << 32  # what a caller may leave above a 32-bit argument
AF = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16, "packet": 17, "rds": 21, "can": 29, "tipc": 30}
AF |= {
    "bluetooth": 31,
    "alg": 38,
    "nfc": 39,
    "vsock": 40,
    "kcm": 41,
    "qipcrtr": 42,
    "smc": 43,
    "xdp": 44,
    "key": 15,
}
CLONE_NEW = {
    "time": 0x80,
    "ns": 0x20000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("default")


def test_every_known_call_is_decided(profile: Profile) -> None:
    assert {rule.name for rule in profile.rules} == X86_64.keys()


@pytest.mark.parametrize(
    "names",
    [
        "acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init",
        "fanotify_mark finit_module fsconfig fsmount fsopen fspick init_module io_uring_enter",
        "io_uring_register io_uring_setup ioperm iopl kexec_file_load kexec_load keyctl",
        "lookup_dcookie mount mount_setattr move_mount open_by_handle_at open_tree open_tree_attr",
        "perf_event_open pivot_root quotactl quotactl_fd reboot request_key setdomainname sethostname",
        "setns settimeofday swapoff swapon syslog umount2 userfaultfd vhangup",
    ],
)
def test_dangerous_call_gets_eperm(names: str) -> None:
    assert {name: explain(name) for name in names.split()} == dict.fromkeys(names.split(), "EPERM")


@pytest.mark.parametrize(
    "names",
    [
        "clone3 landlock_add_rule landlock_create_ruleset landlock_restrict_self map_shadow_stack",
        "memfd_secret mseal pkey_alloc pkey_free pkey_mprotect cachestat listmount statmount",
        "lsm_get_self_attr lsm_list_modules lsm_set_self_attr modify_ldt process_madvise",
        "process_mrelease nfsservctl uselib sysfs _sysctl io_setup io_submit",
    ],
)
def test_call_that_programs_do_without_gets_enosys(names: str) -> None:
    assert {name: explain(name) for name in names.split()} == dict.fromkeys(names.split(), "ENOSYS")


@pytest.mark.parametrize(
    "number", [337, 423, 470, 471, 512, 520, 547, 548, 5000, 0x40000000, 0x40000000 | 520]
)
def test_unknown_and_x32_numbers_get_enosys(number: int) -> None:
    assert explain(number) == "ENOSYS"


def test_what_the_fork_engine_injects_is_allowed() -> None:
    injected = [
        ("prctl", (40, 0x7000)),  # PR_GET_TID_ADDRESS
        ("rt_sigaction", (17, 0, 0x7000, 8)),
        ("rt_sigprocmask", (0, 0x7000, 0x7000, 8)),
        ("sigaltstack", (0, 0x7000)),
        ("brk", (0,)),
        ("getitimer", (0, 0x7000)),
        ("timer_gettime", (0, 0x7000)),
        ("clone", (0x100,)),  # CLONE_VM, no signal
        ("clone", (0x8000,)),  # CLONE_PARENT
        ("wait4", (-1, 0, 0x40000000, 0)),
        ("mmap", (0, 4096, 3, 0x22, -1, 0)),
        ("munmap", (0x7000, 4096)),
        ("mremap", (0x7000, 4096, 4096, 3, 0x9000)),
        ("restart_syscall", ()),
        ("exit", ()),
    ]
    assert [explain(name, arguments) for name, arguments in injected] == ["allow"] * len(injected)


@pytest.mark.parametrize("kind", CLONE_NEW)
def test_new_namespace_of_any_kind_is_refused(kind: str) -> None:
    flag = CLONE_NEW[kind]
    assert explain("unshare", [flag]) == "EPERM"
    assert explain("unshare", [flag | 0x400]) == "EPERM"
    # In clone(2) the bit of CLONE_NEWTIME belongs to the exit signal.
    assert explain("clone", [flag | 17]) == ("allow" if kind == "time" else "EPERM")
    assert explain("clone", [HIGH | flag]) == ("allow" if kind == "time" else "EPERM")


def test_threads_forks_and_own_tables_are_allowed() -> None:
    pthread_create = 0x3D0F00
    assert explain("clone", [pthread_create]) == explain("clone", [0x01200011]) == explain("fork") == "allow"
    # int flags with CLONE_IO are sign-extended by libc: the upper half is all ones.
    assert explain("clone", [-0x80000000 | 17]) == "allow"
    for flags in (0, 0x200, 0x400, 0x40000, 0x40600):
        assert explain("unshare", [flags]) == "allow"
    for flags in (0x100000, 1 << 33, 1 << 63):  # not known today
        assert explain("unshare", [flags]) == "EPERM"


@pytest.mark.parametrize("pid", [1, HIGH | 1], ids=["1", "1 with high bits"])
def test_init_is_out_of_reach_of_every_call_that_takes_a_pid(pid: int) -> None:
    other, any_pointer = 7, 0x7000
    calls = [
        *((name, (pid,)) for name in ("kill", "tkill", "rt_sigqueueinfo", "pidfd_open", "get_robust_list")),
        *(
            (name, (pid, 4096))
            for name in ("process_vm_readv", "process_vm_writev", "migrate_pages", "move_pages")
        ),
        *(
            (name, (pid, any_pointer))
            for name in ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
        ),
        *(
            (name, pair)
            for name in ("tgkill", "rt_tgsigqueueinfo", "kcmp")
            for pair in ((pid, other), (other, pid))
        ),
        ("setpgid", (pid, 0)),
        ("setpgid", (0, pid)),
        *(("ptrace", (request, pid)) for request in (1, 16, 0x4206)),
        ("setpriority", (0, pid, 5)),
        ("setpriority", (1, pid, 5)),
        ("setpriority", (HIGH, pid, 5)),
        ("ioprio_set", (1, pid, 5)),
        ("ioprio_set", (2, pid, 5)),
        ("prlimit64", (pid, 7, any_pointer, 0)),
    ]
    assert [(name, explain(name, arguments)) for name, arguments in calls] == [
        (name, "EPERM") for name, _ in calls
    ]


def test_other_processes_are_within_reach() -> None:
    calls = [
        *((name, (7,)) for name in ("kill", "tkill", "pidfd_open", "process_vm_readv", "sched_setaffinity")),
        ("kill", (0, 15)),
        ("kill", (-1, 15)),
        ("kill", (-7, 15)),
        ("tgkill", (7, 8, 9)),
        ("ptrace", (0x4206, 7)),
        ("ptrace", (0, 0)),  # PTRACE_TRACEME
        ("setpgid", (0, 0)),
        ("setpgid", (7, 8)),
        ("setpriority", (0, 0, 5)),
        ("ioprio_set", (1, 0, 5)),
        ("getpgid", (1,)),
        ("sched_getaffinity", (1,)),
        ("getpriority", (0, 1)),
    ]
    assert [(name, explain(name, arguments)) for name, arguments in calls] == [
        (name, "allow") for name, _ in calls
    ]


def test_priority_of_a_whole_user_is_refused_since_init_may_be_one_of_his() -> None:
    assert explain("setpriority", (2, 0, 5)) == explain("setpriority", (HIGH | 2, 1000, 5)) == "EPERM"
    assert explain("ioprio_set", (3, 0, 5)) == "EPERM"


def test_limits_are_set_for_oneself_and_read_for_others() -> None:
    pointer = 0x7000
    assert explain("prlimit64", (0, 7, pointer, pointer)) == "allow"
    assert explain("prlimit64", (HIGH, 7, pointer, 0)) == "allow"  # pid 0 to the kernel
    assert explain("prlimit64", (7, 7, 0, pointer)) == "allow"
    assert explain("prlimit64", (7, 7, pointer, 0)) == "EPERM"
    assert explain("prlimit64", (7, 7, 1 << 40, 0)) == "EPERM"  # a pointer whose low half is zero


def test_the_limit_by_which_init_knows_a_command_is_read_and_never_set() -> None:
    mark, pointer = 15, 0x7000
    assert explain("setrlimit", (7, pointer)) == "allow"
    assert explain("setrlimit", (mark, pointer)) == "EPERM"
    assert explain("setrlimit", (HIGH | mark, pointer)) == "EPERM"  # the kernel reads the lower half
    assert explain("prlimit64", (0, mark, pointer, 0)) == "EPERM"
    assert explain("prlimit64", (0, mark, 1 << 40, 0)) == "EPERM"
    assert explain("prlimit64", (0, mark, 0, pointer)) == "allow"
    assert explain("getrlimit", (mark, pointer)) == "allow"


def test_sockets_of_ordinary_programs_are_allowed() -> None:
    cloexec = 0x80000
    for arguments in (
        *((AF["unix"], kind, 0) for kind in (1, 2, 5)),
        *((family, 1 | cloexec, protocol) for family in (AF["inet"], AF["inet6"]) for protocol in (0, 6)),
        *(
            (family, 2 | cloexec, protocol)
            for family in (AF["inet"], AF["inet6"])
            for protocol in (0, 17, 1, 58)
        ),
        (AF["inet"], 3, 1),
        (AF["netlink"], 3 | cloexec, 0),
        (HIGH | AF["netlink"], 2, HIGH),
    ):
        assert explain("socket", arguments) == "allow", arguments
    assert explain("socketpair", (AF["unix"], 5)) == "allow"


@pytest.mark.parametrize("family", sorted(AF.keys() - {"unix", "inet", "inet6", "netlink"}))
def test_other_families_are_not_supported(family: str) -> None:
    assert explain("socket", (AF[family], 3, 0)) == "EAFNOSUPPORT"
    assert explain("socket", (HIGH | AF[family], 1, 0)) == "EAFNOSUPPORT"


def test_back_doors_into_other_families_and_protocols_are_shut() -> None:
    sock_packet = 10  # (AF_INET, SOCK_PACKET) is AF_PACKET to the kernel
    assert explain("socket", (AF["inet"], sock_packet, 0x300)) == "EPROTONOSUPPORT"
    assert explain("socket", (AF["inet"], 0x80000 | sock_packet, 0x300)) == "EPROTONOSUPPORT"
    for protocol in (132, 136, 256, 262, 115):  # SCTP, UDP-Lite, SMC, MPTCP, L2TP
        assert explain("socket", (AF["inet"], 1, protocol)) == "EPROTONOSUPPORT"
        assert explain("socket", (AF["inet6"], 2, protocol)) == "EPROTONOSUPPORT"
    for protocol in range(1, 23):  # SOCK_DIAG, NETFILTER, AUDIT, UEVENT, GENERIC, CRYPTO …
        assert explain("socket", (AF["netlink"], 3, protocol)) == "EPROTONOSUPPORT"
    assert explain("socketpair", (AF["tipc"], 1)) == "EAFNOSUPPORT"


@pytest.mark.parametrize("command", [0x5412, 0x541C, 0x5423], ids=["TIOCSTI", "TIOCLINUX", "TIOCSETD"])
def test_terminal_input_cannot_be_pushed_whatever_stands_above_the_command(command: int) -> None:
    assert explain("ioctl", (0, command)) == explain("ioctl", (0, HIGH | command)) == "EPERM"
    assert explain("ioctl", (0, command + 1)) == "allow"
    assert explain("ioctl", (command, 0x5401)) == "allow"


def test_personality_knows_linux_the_query_and_gdb() -> None:
    for persona in (0, 0x40000, 0xFFFFFFFF, -1, HIGH):
        assert explain("personality", [persona]) == "allow"
    for persona in (8, 0x20000, 0x100000, 0x400000, 0x440000, 0x40001):
        assert explain("personality", [persona]) == "EPERM"


def test_nodes_that_mean_deleted_to_overlayfs_cannot_be_made() -> None:
    for kind, answer in (
        (0x2000, "EPERM"),
        (0x6000, "EPERM"),
        (0x1000, "allow"),
        (0x8000, "allow"),
        (0, "allow"),
    ):
        assert (
            explain("mknod", (0, kind | 0o644, 0)) == explain("mknodat", (-100, 0, kind | 0o644, 0)) == answer
        )
        assert explain("mknod", (0, HIGH | kind | 0x10000, 0)) == answer
    assert (
        explain("renameat2", (-100, 0, -100, 0, 4)) == explain("renameat2", (-100, 0, -100, 0, 5)) == "EPERM"
    )
    assert (
        explain("renameat2", (-100, 0, -100, 0, 1)) == explain("renameat2", (-100, 0, -100, 0, 2)) == "allow"
    )


def test_attributes_of_other_processes_and_shadow_stacks_are_closed() -> None:
    assert explain("prctl", (62, 1, 1)) == explain("prctl", (HIGH | 62, 0)) == "EPERM"
    assert explain("prctl", (15, 0x7000)) == "allow"
    assert explain("arch_prctl", (0x5001, 1)) == "EINVAL"
    assert explain("arch_prctl", (0x1002, 0x7000)) == "allow"  # ARCH_SET_FS


def test_arguments_are_compared_at_the_width_the_kernel_reads(profile: Profile) -> None:
    """Only these are 64 bits wide in the kernel. A 32-bit one compared at 64 is a way round the filter."""
    wide = {("prlimit64", 2), ("unshare", 0)}
    compared = {
        (rule.name, condition.arg)
        for rule in profile.rules
        for case in rule.cases
        for condition in case.when
        if condition.width == 64
    }
    assert compared == wide
