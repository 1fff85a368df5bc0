"""What a guest sees of the host through core: nothing but what its root was given."""

import os
import re
import struct
from pathlib import Path

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _core, _payloads
from system.core._core import Core

HIGH = 1879048192
single = "0 1879048192 1" if os.geteuid() == 0 else f"0 {os.geteuid()} 1"
single_gid = "0 1879048192 1" if os.geteuid() == 0 else f"0 {os.getegid()} 1"


@pytest.fixture(scope="module")
def core(shared: Core) -> Core:
    return shared


def python(core: Core, program: str, **options: object) -> str:
    result = core.run([_payloads.PYTHON, "-I", "-S", "-c", program], **options)
    assert result.answer.exit_code == 0, result.stderr.decode()
    return result.stdout.decode()


# --- pid 1 -------------------------------------------------------------------------------------------------


def test_the_command_line_of_init_shows_a_title_and_no_argument_of_the_host(core):
    result = core.shell("cat /proc/1/cmdline /proc/1/comm")
    assert result.stdout.strip(b"\0\n").replace(b"\0", b"") == b"ramet-initramet-init"
    outside = Path(f"/proc/{core.pid}/cmdline").read_bytes()
    assert outside.strip(b"\0") == b"ramet-core"


@pytest.mark.parametrize(
    "name", ["environ", "mem", "maps", "smaps", "auxv", "stack", "syscall", "personality", "io", "pagemap"]
)
def test_the_memory_of_init_is_closed_to_guests(core, name):
    result = core.run(["cat", f"/proc/1/{name}"])
    assert result.answer.exit_code == 1
    assert b"Permission denied" in result.stderr or b"Operation not permitted" in result.stderr
    assert result.stdout == b""


@pytest.mark.parametrize("path", ["root", "cwd", "exe", "fd/0", "ns/mnt", "ns/user", "task/1/fd/0"])
def test_links_of_init_are_closed_to_guests(core, path):
    result = core.shell(f"readlink /proc/1/{path} || echo closed; cat /proc/1/{path}/. 2>&1")
    assert result.stdout.splitlines()[0] == b"closed"
    assert b"Permission denied" in result.stdout


@pytest.mark.parametrize("name", ["oom_score_adj", "coredump_filter", "clear_refs", "comm", "timerslack_ns"])
def test_files_of_init_cannot_be_written(core, name):
    """To the kernel they belong to uid 0 of the sandbox: the mode does not keep a guest out."""
    result = core.shell(f"[ ! -e /proc/1/{name} ] || echo 1 > /proc/1/{name}")
    assert not result.stderr or result.answer.exit_code
    assert result.answer.exit_code or not os.path.exists(f"/proc/1/{name}")


def test_guests_cannot_trace_init_or_read_its_memory(core):
    program = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
    print(libc.ptrace(request, 1, None, None), errno.errorcode[ctypes.get_errno()])
buffer = ctypes.create_string_buffer(8)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
mine, theirs = Part(ctypes.addressof(buffer), 8), Part(0x400000, 8)
read = libc.process_vm_readv(1, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
print(read, errno.errorcode[ctypes.get_errno()])
pidfd = os.pidfd_open(1)
print(libc.syscall(438, pidfd, 0, 0), errno.errorcode[ctypes.get_errno()])  # pidfd_getfd
"""
    assert python(core, program).splitlines() == ["-1 EPERM"] * 4


def test_no_descriptor_of_core_reaches_a_guest(core):
    program = """
import os
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")))
"""
    assert python(core, program) == "[0, 1, 2]\n"


# --- mounts ------------------------------------------------------------------------------------------------


def mount_table(core: Core) -> list[tuple[str, str, str, str, str]]:
    """(root, place, options, type, options of the file system) of each mount that a guest sees."""
    lines = core.run(["cat", "/proc/self/mountinfo"]).stdout.decode().splitlines()
    found = []
    for line in lines:
        left, right = line.split(" - ")
        words, rest = left.split(), right.split()
        found.append((words[3], words[4], words[5], rest[0], rest[2]))
    return found


def test_mountinfo_names_no_path_of_the_host_but_those_of_the_binds(core):
    binds = {"/usr", _payloads.interpreter_prefix()}
    devices = {"null", "zero", "full", "random", "urandom", "tty"}
    for root, place, _, kind, options in mount_table(core):
        if place in binds:
            continue
        assert root in {"/", "/1", "/sys", "/e", "/shm", "/meminfo", *(f"/{name}" for name in devices)}, (
            root,
            place,
        )
        assert place == "/" or place.split("/")[1] in {"proc", "dev"}, place
        paths = [word for word in re.split("[,=]", options) if word.startswith("/")]
        assert all(path.startswith("/proc/self/fd/") for path in paths), (kind, options)


def test_nothing_of_the_hosts_tree_is_mounted_anywhere(core):
    """One mount for each thing that the root names, and no old root below or above them."""
    places = [place for _, place, *_ in mount_table(core)]
    assert places.count("/") == 1
    assert len([place for place in places if not place.startswith(("/proc", "/dev"))]) == len(
        {"/", "/usr", _payloads.interpreter_prefix()} - {None}
    )


def test_binds_and_sysctls_are_read_only(core):
    options = {place: set(options.split(",")) for _, place, options, *_ in mount_table(core)}
    for place in ("/usr", "/proc/sys", "/dev"):
        assert "ro" in options[place], place
    result = core.shell("touch /usr/x; echo 1 > /proc/sys/net/ipv4/ip_forward; touch /dev/x")
    assert result.stderr.count(b"Read-only file system") == 3


def test_propagation_is_cut_both_ways(core):
    lines = core.run(["cat", "/proc/self/mountinfo"]).stdout.decode().splitlines()
    assert not [line for line in lines if "shared:" in line or "master:" in line]


def test_the_guests_root_holds_what_was_defined(core):
    expected = {"proc", "dev", "tmp", "home", "etc", "usr"}
    expected |= {name for name in ("bin", "lib", "lib32", "lib64", "sbin") if os.path.exists(f"/{name}")}
    if prefix := _payloads.interpreter_prefix():
        expected.add(prefix.split("/")[1])
    assert set(core.run(["ls", "/"]).stdout.decode().split()) == expected


# --- namespaces --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["user", "mnt", "pid", "ipc", "uts", "net", "cgroup"])
def test_each_namespace_is_the_sandboxes_own(core, kind):
    first = core.run(["readlink", f"/proc/self/ns/{kind}"]).stdout
    second = core.run(["readlink", f"/proc/self/ns/{kind}"]).stdout
    host = os.readlink(f"/proc/self/ns/{kind}").encode()
    cores = os.readlink(f"/proc/{core.pid}/ns/{kind}").encode()
    # The kernel may give a freed number again, so two runs need not differ by it; from the host both do.
    assert host not in {first.strip(), second.strip()}
    assert cores not in {first.strip(), second.strip()}


def test_two_sandboxes_that_live_at_once_share_no_namespace(core):
    sandboxes = [core.create() for _ in range(2)]
    for number, sandbox in enumerate(sandboxes):
        core.spawn(sandbox, ["sleep", "1000"], number=number)
    first, second = core.guests("sleep")
    names = os.listdir("/proc/self/ns")
    links = [[os.readlink(f"/proc/{one.pid}/ns/{name}") for name in names] for one in (first, second)]
    shared = {name for name, one, other in zip(names, *links, strict=True) if one == other}
    assert shared <= {"time", "time_for_children"}
    for sandbox in sandboxes:
        core.kill(sandbox)


def test_the_network_is_a_loopback_that_is_up(core):
    program = """
import socket
print([name for _, name in socket.if_nameindex()])
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.sendall(b"x"); print(server.accept()[0].recv(1))
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    print(error.errno)
"""
    lines = python(core, program).splitlines()
    assert "lo" in lines[0]
    assert lines[1:] == ["b'x'", "101"]  # ENETUNREACH


def test_the_host_name_is_the_plans(core):
    assert core.run(["uname", "-n"], hostname="a-box").stdout == b"a-box\n"
    assert core.run(["uname", "-n"], hostname="x" * p.NAME_MAX).stdout == b"x" * p.NAME_MAX + b"\n"
    assert os.uname().nodename.encode() not in core.shell("uname -n").stdout


# --- ids and privileges ------------------------------------------------------------------------------------


def status_lines(core: Core, *names: str, **options: object) -> list[list[str]]:
    result = core.run(["grep", "-E", f"^({'|'.join(names)}):", "/proc/self/status"], **options)
    return [line.split()[1:] for line in result.stdout.decode().splitlines()]


def test_a_guest_has_no_capability_and_cannot_gain_one(core):
    lines = status_lines(core, "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    assert lines == [["0" * 16]] * 5 + [["1"], ["2"]]


def test_another_user_has_none_either(starter):
    core = starter()
    if core.ready.found.u32(p.TAG_SINGLE_UID):
        pytest.skip("only one id is mapped here")
    lines = status_lines(core, "Uid", "Gid", "CapPrm", "CapEff", "CapBnd", uid=1000, gid=1001)
    assert lines == [["1000"] * 4, ["1001"] * 4] + [["0" * 16]] * 3


def test_a_guest_is_root_inside_and_nobody_of_the_hosts_outside(core):
    assert core.run(["id", "-u"]).stdout == b"0\n"
    running = core.start_run(["sleep", "1000"])
    _core.until(lambda: len(core.guests("sleep")) == 1, "the command")
    everyone = core.descendants()
    for one in everyone:
        status = Path(f"/proc/{one.pid}/status").read_text()
        lines = re.findall(r"^[UG]id:(.*)$", status, re.MULTILINE)
        ids = {int(word) for line in lines for word in line.split()}
        if os.geteuid() == 0:
            assert min(ids) >= HIGH, status
        else:
            assert 0 not in ids
    core.control.ok(p.KILL, frames.u64(p.TAG_SANDBOX, running.sandbox))
    core.finish(running)


@pytest.mark.root
def test_real_root_is_mapped_to_a_high_range_and_host_root_is_not(starter):
    core = starter()
    assert core.ready.found.u32(p.TAG_SINGLE_UID) == 0
    outside = Path(f"/proc/{core.pid}/uid_map").read_text().split()
    assert int(outside[0]) == 0
    assert int(outside[1]) >= HIGH
    assert int(outside[2]) == 65536
    assert core.run(["cat", "/proc/self/uid_map"]).stdout.split() == [b"0", b"0", b"65536"]
    # A file of the host's root is nobody's inside.
    assert core.run(["stat", "-c", "%u %g", "/usr/bin/env"]).stdout == b"65534 65534\n"


@pytest.mark.root
def test_any_id_of_the_range_can_run_and_own_files(starter):
    core = starter()
    line = "id -u; id -g; touch /tmp/mine; stat -c %u:%g /tmp/mine; id -G"
    result = core.shell(line, uid=65534, gid=100, cwd="/tmp")
    assert result.stdout == b"65534\n100\n65534:100\n100\n"
    assert core.run(["true"], uid=65536).answer.error[1] == "switch_user"


def test_with_one_id_core_says_so_and_refuses_every_other(starter):
    core = starter(maps=(single, single_gid))
    assert core.ready.found.u32(p.TAG_SINGLE_UID) == 1
    assert core.run(["id", "-u"]).stdout == b"0\n"
    for options in ({"uid": 1}, {"gid": 1}, {"uid": 65534, "gid": 65534}):
        result = core.shell("echo ran", **options)
        assert result.answer.error[:3] == ("isolation_failed", "switch_user", 22)
        assert result.stdout == b""
    assert core.run(["cat", "/proc/self/uid_map"]).stdout.split() == [b"0", b"0", b"1"]


def test_several_ranges_become_one_each_inside(starter):
    if os.geteuid() != 0:
        pytest.skip("needs a second range of ids")
    maps = f"0 {HIGH} 1,1 {HIGH + 100000} 500"
    core = starter(maps=(maps, maps))
    assert core.run(["cat", "/proc/self/uid_map"]).stdout.split() == [b"0", b"0", b"1", b"1", b"1", b"500"]
    assert core.run(["id", "-u"], uid=500).stdout == b"500\n"
    assert core.run(["true"], uid=501).answer.error[1] == "switch_user"


@pytest.mark.parametrize(
    "path", ["kcore", "keys", "key-users", "kallsyms", "kmsg", "sysrq-trigger", "timer_list", "interrupts"]
)
def test_files_of_proc_that_tell_of_the_host_are_hidden_or_closed(core, path):
    if not os.path.exists(f"/proc/{path}"):
        pytest.skip(f"this kernel has no /proc/{path}")
    result = core.shell(f"cat /proc/{path} 2>/dev/null | head -c 100")
    assert result.stdout == b""
    core.shell(f"echo x > /proc/{path}")


def test_the_filter_is_installed_last_and_holds(core):
    """Its program refuses chroot(2) alone, by ENOTTY: an errno that no other refusal has."""
    load, equal, ret = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("<HBBI", *instruction)
        for instruction in (
            (load, 0, 0, 0),
            (equal, 0, 1, 161),
            (ret, 0, 0, 0x00050000 | 25),
            (ret, 0, 0, 0x7FFF0000),
        )
    )
    payload = frames.u32(p.TAG_FILTER, 60) + frames.raw(p.TAG_BYTES, program)
    core.control.ok(p.DEFINE_FILTER, payload)
    script = """
import os
try:
    os.chroot("/")
except OSError as error:
    print(error.errno)
"""
    assert python(core, script, filter_id=60) == "25\n"
    assert python(core, script) == "1\n"
