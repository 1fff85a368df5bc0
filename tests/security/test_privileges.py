"""A command has no privilege, and nothing that it can execute gives it one."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import resource

import pytest

import ramet

LOCKED = 0xF
"""Securebits: a set-user-id root program and uid 0 give nothing (NOROOT, NO_SETUID_FIXUP), both locked."""


def capabilities(text: str) -> set[str]:
    return {line.split()[1] for line in text.splitlines() if line.startswith("Cap")}


def test_no_thread_of_any_process_has_a_capability(told):
    source = """
    import subprocess, threading
    hold = threading.Event()
    for _ in range(3):
        threading.Thread(target=hold.wait, daemon=True).start()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    texts = []
    for pid in [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]:
        for thread in os.listdir(f"/proc/{pid}/task"):
            texts.append(open(f"/proc/{pid}/task/{thread}/status").read())
    child.communicate()
    tell(texts)
    """
    texts = told(source)
    assert len(texts) >= 5
    for text in texts:
        assert capabilities(text) == {"0" * 16}
        assert "NoNewPrivs:\t1" in text


def test_the_first_program_has_none_before_it_does_anything():
    result = ramet.run(["cat", "/proc/self/status"])
    assert capabilities(result.stdout) == {"0" * 16}
    assert "NoNewPrivs:\t1\n" in result.stdout
    assert "Seccomp:\t2\n" in result.stdout


def test_set_user_id_programs_of_the_host_give_nothing():
    result = ramet.run(
        "find /usr/bin /usr/sbin -perm -4000 -o -perm -2000 2>/dev/null | head -n 3; mount -t tmpfs x /mnt"
    )
    assert result.exit_code != 0
    assert "x" not in ramet.run("mount -t tmpfs x /mnt; grep -c /mnt /proc/self/mounts").stdout


def test_a_set_user_id_program_made_inside_gives_nothing(told):
    """Also where other ids exist: the mount is nosuid, and no_new_privs says the same again."""
    source = """
    import shutil, subprocess
    shutil.copy("/usr/bin/id", "/tmp/id")
    attempt(os.chown, "/tmp/id", 12, 34)
    os.chmod("/tmp/id", 0o6755)
    first = subprocess.run(["/tmp/id", "-u"], capture_output=True, text=True).stdout.strip()
    changed = attempt(os.setuid, 1000)
    second = subprocess.run(["/tmp/id", "-u"], capture_output=True, text=True).stdout.strip()
    tell([first, changed, second, str(os.getuid())])
    """
    first, _, second, own = told(source)
    assert (first, second) == ("0", own)


def test_file_capabilities_cannot_be_given(told):
    source = """
    import shutil, struct
    shutil.copy("/usr/bin/id", "/tmp/id")
    marks = [struct.pack("<5I", 0x2000001, 1, 0, 0, 0), struct.pack("<6I", 0x3000001, 1, 0, 0, 0, 0)]
    tell([attempt(os.setxattr, "/tmp/id", "security.capability", mark) for mark in marks])
    """
    assert set(told(source)) <= {"EPERM", "EOPNOTSUPP"}


def test_capabilities_cannot_be_raised_again(told):
    source = """
    import struct
    header = struct.pack("<II", 0x20080522, 0)
    answers = [outcome(126, header, struct.pack("<6I", *[1 << 21] * 6))]
    answers += [outcome(157, 47, 2, number, 0, 0) for number in (0, 1, 7, 21)]
    answers += [outcome(157, 28, 0), outcome(157, 38, 0, 0, 0, 0)]
    tell([answers, call(157, 27), call(157, 39, 0, 0, 0, 0)])
    """
    answers, securebits, no_new_privs = told(source)
    assert answers == ["EPERM"] * 6 + ["EINVAL"]
    assert securebits & LOCKED == LOCKED
    assert no_new_privs == 1


def test_limits_cannot_be_raised(told):
    source = """
    import resource
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    answers = {}
    for name in names:
        number = getattr(resource, name)
        soft, hard = resource.getrlimit(number)
        if hard == resource.RLIM_INFINITY:
            answers[name] = "infinite"
            continue
        try:
            resource.setrlimit(number, (soft, hard + 1))
            answers[name] = "raised"
        except (OSError, ValueError):
            answers[name] = "refused"
    tell(answers)
    """
    found = told(source)
    assert "raised" not in found.values()
    for name in ("NPROC", "NOFILE", "FSIZE", "AS", "CPU", "CORE", "NICE", "RTPRIO", "MEMLOCK"):
        assert found[f"RLIMIT_{name}"] == "refused", name


def test_neither_real_time_nor_a_better_priority_is_given(told):
    """Whatever the daemon's user may: RLIMIT_RTPRIO and RLIMIT_NICE of a desktop often allow both."""
    source = """
    def fifo():
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    tell([attempt(fifo), attempt(os.setpriority, os.PRIO_PROCESS, 0, -1), attempt(os.nice, 1), os.getpriority(0, 0)])
    """
    assert told(source)[:3] == ["EPERM", "EACCES", ""]


@pytest.mark.root
def test_limits_of_the_daemons_user_are_no_limits_of_commands(own):
    """A daemon that root starts with everything allowed."""
    program = own.program(
        """
import resource, ramet
for name in ("RTPRIO", "NICE", "CORE", "MEMLOCK"):
    number = getattr(resource, "RLIMIT_" + name)
    try:
        resource.setrlimit(number, (resource.RLIM_INFINITY,) * 2)
    except ValueError:
        print("may not")
        raise SystemExit
print(ramet.run("ulimit -r; ulimit -e; ulimit -Hc; chrt -f 1 true; nice -n -5 true").stdout)
"""
    )
    out, err = program.communicate(timeout=50)
    if out == b"may not\n":
        pytest.skip("this root may not raise limits (CAP_SYS_RESOURCE)")
    assert out.split() == [b"0", b"0", b"0"], err


def test_a_crash_writes_no_core_and_starts_no_handler_of_the_host():
    """core(5): only the limit 1 keeps a core_pattern that begins with a pipe from being started."""
    source = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))"
    assert ramet.run(["python3", "-c", source]).stdout == "(1, 1)\n"
    result = ramet.run("cd /tmp; sh -c 'kill -SEGV $$'; ls")
    assert "core" not in result.stdout


def test_memory_cannot_be_locked_beyond_the_daemons_own_limit(told):
    bound = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    source = """
    import mmap, resource
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    area = mmap.mmap(-1, limit + (1 << 20))
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    tell([limit, outcome(149, address, limit + (1 << 20)), outcome(149, address, 4096)])
    """
    limit, over, under = told(source)
    assert limit <= (64 << 20 if bound == resource.RLIM_INFINITY else bound)
    assert over in {"ENOMEM", "EPERM"}
    assert under == ""
