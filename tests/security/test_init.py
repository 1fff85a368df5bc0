"""Pid 1 of a sandbox is Ramet's: a command can neither read, stop, trace, limit nor outwit it."""

import signal

import pytest

import ramet
from ramet.wire.places import runtime_path

PRIO_PROCESS, PRIO_PGRP, PRIO_USER = 0, 1, 2
HIGH = 1 << 32
"""Above the 32 bits at which the kernel reads a pid: a filter that compares 64 would be passed."""

ON_PID_1 = {
    "kill 0": ("kill", 1, 0),
    "kill -9": ("kill", 1, 9),
    "kill, high bits": ("kill", HIGH | 1, 9),
    "tkill": ("tkill", 1, 9),
    "tgkill": ("tgkill", 1, 1, 9),
    "tgkill of a thread": ("tgkill", 0, 1, 9),
    "rt_sigqueueinfo": ("rt_sigqueueinfo", 1, 35, [0] * 128),
    "rt_tgsigqueueinfo": ("rt_tgsigqueueinfo", 1, 1, 35, [0] * 128),
    "pidfd_open": ("pidfd_open", 1, 0),
    "ptrace attach": ("ptrace", 16, 1, 0, 0),
    "ptrace seize": ("ptrace", 0x4206, 1, 0, 0),
    "ptrace, high bits": ("ptrace", 0x4206, HIGH | 1, 0, 0),
    "process_vm_readv": ("process_vm_readv", 1, [0] * 16, 1, [0] * 16, 1, 0),
    "process_vm_writev": ("process_vm_writev", 1, [0] * 16, 1, [0] * 16, 1, 0),
    "kcmp with pid 1": ("kcmp", 1, 1, 0, 0, 0),
    "kcmp with pid 1 second": ("kcmp", 0, 1, 0, 0, 0),
    "get_robust_list": ("get_robust_list", 1, [0] * 8, [0] * 8),
    "migrate_pages": ("migrate_pages", 1, 64, [1] + [0] * 7, [1] + [0] * 7),
    "move_pages": ("move_pages", 1, 0, 0, 0, 0, 0),
    "prlimit64, files": ("prlimit64", 1, 7, [0] * 16, 0),
    "prlimit64, processes": ("prlimit64", 1, 6, [0] * 16, 0),
    "prlimit64, high bits": ("prlimit64", HIGH | 1, 7, [0] * 16, 0),
    "setpriority": ("setpriority", PRIO_PROCESS, 1, 19),
    "setpriority, high bits": ("setpriority", HIGH, HIGH | 1, 19),
    "setpriority of the group": ("setpriority", PRIO_PGRP, 1, 19),
    "setpriority of the user": ("setpriority", PRIO_USER, 0, 19),
    "ioprio_set": ("ioprio_set", 1, 1, 3 << 13),
    "ioprio_set of the group": ("ioprio_set", 2, 1, 3 << 13),
    "ioprio_set of the user": ("ioprio_set", 3, 0, 3 << 13),
    "sched_setscheduler": ("sched_setscheduler", 1, 5, [0] * 4),
    "sched_setparam": ("sched_setparam", 1, [0] * 4),
    "sched_setattr": ("sched_setattr", 1, [48, 0, 0, 0] + [0] * 44, 0),
    "sched_setaffinity": ("sched_setaffinity", 1, 8, [1] + [0] * 7),
    "setpgid of pid 1": ("setpgid", 1, 0),
    "joining its group": ("setpgid", 0, 1),
    "core scheduling": ("prctl", 62, 1, 1, 0, 0),
}
NOT_THERE = {
    "process_madvise": ("process_madvise", -1, [0] * 16, 1, 4, 0),
    "process_mrelease": ("process_mrelease", -1, 0),
}


def test_no_call_that_takes_a_pid_works_on_pid_1(calls):
    assert calls(ON_PID_1) == dict.fromkeys(ON_PID_1, "EPERM")
    assert calls(NOT_THERE) == dict.fromkeys(NOT_THERE, "ENOSYS")


def test_the_same_calls_work_on_a_process_of_the_command(calls):
    """Else the test above would prove nothing about pid 1."""
    own = {
        "kill": ("kill", 2, 0),
        "tgkill": ("tgkill", 2, 2, 0),
        "pidfd_open": ("pidfd_open", 2, 0),
        "kcmp": ("kcmp", 2, 2, 0, 0, 0),
        "prlimit64": ("prlimit64", 0, 7, 0, [0] * 16),
        "setpriority": ("setpriority", PRIO_PROCESS, 2, 5),
        "setpriority of the group": ("setpriority", PRIO_PGRP, 2, 5),
        "ioprio_set": ("ioprio_set", 1, 2, 3 << 13),
        "sched_setaffinity": ("sched_setaffinity", 2, 8, [1] + [0] * 7),
        "get_robust_list": ("get_robust_list", 2, [0] * 8, [0] * 8),
    }
    assert calls(own) == dict.fromkeys(own, "")


def test_files_of_pid_1_that_tell_secrets_cannot_be_read(told):
    names = ["auxv", "environ", "io", "maps", "mem", "numa_maps", "pagemap", "smaps", "stack", "syscall"]
    found = told("tell({name: read(f'/proc/1/{name}') for name in sys.argv[1:]})", *names)
    assert {name: answer for name, answer in found.items() if answer not in {"EACCES", "EPERM"}} == {}
    links = ["cwd", "exe", "root", "fd/0", "fd/1", "fd/2", "ns/mnt", "ns/user", "ns/pid"]
    source = """
    tell([attempt(os.readlink, f"/proc/1/{name}") for name in sys.argv[1:]]
         + [opened(f"/proc/1/{name}", os.O_PATH) for name in sys.argv[1:]])
    """
    assert set(told(source, *links)) <= {"EACCES", "EPERM", "ENOENT"}
    assert told("tell(attempt(os.listdir, '/proc/1/map_files'))") in {"EACCES", "EPERM"}


def test_no_file_of_pid_1_can_be_written(told):
    """Nor that of its only thread; timerslack_ns opens for everybody, and then refuses."""
    source = """
    found = {}
    for top in ("/proc/1", "/proc/1/task/1"):
        for name in os.listdir(top):
            path = f"{top}/{name}"
            if os.path.isfile(path) and not os.path.islink(path):
                found[path] = written(path)
    tell(found)
    """
    found = told(source)
    assert {"/proc/1/mem", "/proc/1/oom_score_adj", "/proc/1/task/1/comm"} <= found.keys()
    assert {
        path: answer for path, answer in found.items() if answer not in {"EACCES", "EPERM", "EROFS"}
    } == {}


def test_what_can_be_read_of_pid_1_names_nothing_of_the_host(told):
    source = """
    texts = []
    for name in ("cmdline", "comm", "stat", "status", "limits", "mounts", "mountinfo", "sched", "cgroup"):
        texts.append(open(f"/proc/1/{name}", errors="replace").read())
    tell(texts)
    """
    texts = told(source)
    assert texts[0].rstrip("\0") == "ramet-init"
    # The interpreter's own directories are shown at their own paths; nothing else of the host is.
    assert all("RAMET_" not in text and runtime_path() not in text for text in texts)
    assert {line.rpartition(":")[2] for line in texts[-1].splitlines()} == {"/"}


def test_pid_1_survives_every_signal_and_still_reaps(told):
    """/proc/1 serves as a pidfd, which no filter tells from another: here the kernel alone protects init."""
    source = """
    import signal
    init = os.open("/proc/1", os.O_RDONLY | os.O_DIRECTORY)
    sent = {}
    for number in range(65):
        sent[number] = attempt(signal.pidfd_send_signal, init, number)
    for _ in range(5000):
        signal.pidfd_send_signal(init, signal.SIGCHLD)
    reader, writer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)  # an orphan
        os._exit(0)
    os.wait()
    os.close(writer)
    os.read(reader, 1)  # the orphan has ended, and let go of the pipe
    while [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]:
        os.sched_yield()
    state = open("/proc/1/stat").read().rpartition(")")[2].split()[0]
    tell([sorted(set(sent.values())), state])
    """
    answers, state = told(source)
    assert set(answers) <= {"", "EINVAL"}
    assert state in {"R", "S"}
    assert ramet.run("exit 5").exit_code == 5


@pytest.mark.parametrize("target", [-1, 0])
def test_a_signal_to_everybody_does_not_reach_pid_1(python, target):
    """kill(-1) spares init and the caller; the caller's own group is the command's."""
    source = f"""
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGSTOP) if {target} else (signal.SIGTERM,):
        attempt(os.kill, {target}, number)
    os._exit(9)
    """
    assert python(source).exit_code == 9


@pytest.mark.parametrize(
    "end, code",
    [
        ("os._exit(7)", 7),
        ("os.execv('/bin/sh', ['sh', '-c', 'exit 8'])", 8),
        ("os.execv('/bin/sh', ['sh', '-c', 'kill -TERM $$'])", 128 + signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGTERM)", 128 + signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
        ("os.abort()", 128 + signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGTRAP); os._exit(9)", 9),
        ("signal.raise_signal(signal.SIGCHLD); os._exit(10)", 10),
        ("os.fork() or os._exit(3); os.wait(); os._exit(11)", 11),
    ],
)
def test_a_command_that_makes_init_its_tracer_ends_as_any_other(python, end, code):
    """PTRACE_TRACEME by a child of init: its stops are init's to answer, who must not wait for it."""
    result = python(f"import signal\nassert call(101, 0, 0, 0, 0) == 0\n{end}", timeout=20)
    assert (result.exit_code, result.timed_out) == (code, False)


def test_a_thread_or_an_orphan_that_makes_init_its_tracer_hinders_nothing(python):
    source = """
    import signal, threading
    def traced():
        call(101, 0, 0, 0, 0)
        signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    thread = threading.Thread(target=traced)
    thread.start()
    thread.join()
    reader, writer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            while os.getppid() != 1:
                os.sched_yield()
            os.write(writer, b"x" if call(101, 0, 0, 0, 0) == 0 else b"-")
            signal.raise_signal(signal.SIGSTOP)
            signal.pause()
        os._exit(0)
    os.wait()
    assert os.read(reader, 1) == b"x"
    os._exit(12)
    """
    result = python(source, timeout=20)
    assert (result.exit_code, result.timed_out) == (12, False), result.stderr


def test_a_command_that_its_own_child_traces_ends_at_its_deadline_at_the_latest(python):
    """The kernel shows a traced process's end to its tracer first, which here never looks."""
    source = """
    import signal
    reader, writer = os.pipe()
    victim = os.getpid()
    if os.fork() == 0:
        os.write(writer, b"x" if call(101, 0x4206, victim, 0, 0) == 0 else b"-")
        signal.pause()
    os.read(reader, 1)
    os._exit(13)
    """
    result = python(source, timeout=0.7)
    assert (result.exit_code, result.reason) in {(13, "exit"), (124, "timeout")}
    assert not result.lingering


def test_children_by_clone_parent_become_inits_and_change_no_exit_code(python):
    source = """
    for _ in range(20):
        if call(56, 0x8000 | 17, 0, 0, 0, 0) == 0:
            os._exit(99)
    os._exit(14)
    """
    assert python(source).exit_code == 14


def test_the_command_is_no_child_of_anything_outside(told):
    assert told("tell([os.getpid(), os.getppid(), os.getsid(0) == os.getpid()])") == [2, 1, True]
