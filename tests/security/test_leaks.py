"""Nothing of the caller, its user or other sandboxes is visible: variables, files, descriptors, processes."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import ctypes
import os
import pty
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import _ledger
import ramet
from ramet.client import Client
from system._daemons import marked

SECRET = "s3cret-" + secrets.token_hex(8)

# Everything text that a command can reach about processes and mounts, after which it looks for a word.
SEARCH = r"""
cat /proc/*/environ /proc/*/cmdline /proc/*/mountinfo /proc/*/mounts /proc/*/maps /proc/*/cgroup 2>/dev/null | tr '\0' '\n'
ls -l /proc/self/fd /proc/self/cwd /proc/self/root 2>/dev/null
env; pwd; hostname
"""


def test_neither_variables_nor_directory_nor_descriptors_of_the_caller_are_visible(own, tmp_path):
    """Of the client that starts the daemon, so that both have them."""
    place = tmp_path / SECRET
    place.mkdir()
    held = place / "held"
    held.write_text(SECRET)
    program = own.program(
        f"""
import os, sys, ramet
os.chdir({str(place)!r})
for number in (3, 4, 50):
    os.dup2(os.open("held", os.O_RDWR), number, inheritable=True)
result = ramet.run({SEARCH!r})
assert result.ok, result.stderr
print(result.stdout)
print("fds", ramet.run("ls /proc/self/fd; ls /proc/$$/fd").stdout.split())
""",
        SECRET,
        SECRET_TOKEN=SECRET,
        **{f"LC_{SECRET.replace('-', '_')}": "1"},
    )
    out, err = program.communicate(timeout=50)
    assert program.returncode == 0, err.decode()
    text = out.decode()
    assert SECRET not in text
    assert SECRET.replace("-", "_") not in text
    # 3 is the directory that ls reads.
    assert text.splitlines()[-1] == f"fds {['0', '1', '2', '3', '0', '1', '2']}"


def test_the_terminal_of_the_caller_cannot_be_opened(own):
    """Client and daemon are started by the leader of a session with a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        code = 1
        try:
            with Client(own.place) as client:
                source = """
import os
def attempt():
    try:
        os.open("/dev/tty", os.O_RDWR)
    except OSError as error:
        return error.errno
stats = [open(f"/proc/{name}/stat").read() for name in os.listdir("/proc") if name.isdigit()]
print(attempt(), {stat.rpartition(")")[2].split()[4] for stat in stats}, os.isatty(0), os.isatty(1), os.isatty(2))
"""
                said = client.run(
                    ["python3", "-c", source], stdin=os.fdopen(0, "rb", closefd=False, buffering=0)
                )
                os.write(1, said.stdout.encode() + said.stderr.encode())
            code = 0
        finally:
            os._exit(code)
    os.write(terminal, b"typed\n\x04")
    seen = b""
    while b"False False False" not in seen and (part := read_terminal(terminal)):
        seen += part
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, seen
    assert b"6 {'0'} False False False" in seen  # ENXIO: there is no controlling terminal


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # EIO: the other side has closed
        return b""


def test_the_home_of_the_user_is_not_there(told):
    homes = {os.path.expanduser("~"), os.environ.get("HOME", "/root")}
    names = ["", "/.ssh", "/.ssh/id_ed25519", "/.bash_history", "/.config", "/.aws/credentials", "/.netrc"]
    paths = [home + name for home in homes for name in names]
    source = """
    found = {}
    for path in sys.argv[1:]:
        try:
            found[path] = os.listdir(path) if os.path.isdir(path) else open(path).read()
        except OSError as error:
            found[path] = None
    tell(found)
    """
    for path, content in told(source, *paths).items():
        # Directories on the way to the interpreter exist, with nothing in them but the way.
        shown = [os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)]
        for name in content or ():
            assert any(Path(prefix).is_relative_to(f"{path}/{name}") for prefix in shown), (path, content)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/etc/shadow",
            "/etc/gshadow",
            "/etc/sudoers",
            "/etc/ssh",
            "/etc/ssl/private",
            "/etc/fstab",
            "/etc/crontab",
        ),
        *("/etc/apt", "/etc/pip.conf", "/etc/environment", "/etc/NetworkManager", "/etc/subuid"),
        *("/boot", "/var/run/docker.sock", "/run/docker.sock", "/run/dbus", "/run/user", "/run/systemd"),
        *("/var/log/syslog", "/var/lib/dpkg", "/var/spool/cron", "/proc/1/root/etc/shadow"),
    ],
)
def test_files_of_the_host_are_not_there(told, path):
    assert told("tell(opened(sys.argv[1]))", path) in {"ENOENT", "EACCES"}


def test_files_of_etc_hold_nothing_of_the_hosts_own_accounts_and_names(told):
    names = ["passwd", "group", "hosts", "hostname", "resolv.conf", "machine-id", "mtab"]
    texts = told("tell({name: open('/etc/' + name).read() for name in sys.argv[1:]})", *names)
    host = (
        Path("/etc/hostname").read_text().strip() if os.path.exists("/etc/hostname") else socket.gethostname()
    )
    for name in ("hosts", "hostname"):
        assert host not in texts[name].split()
    assert [line.split(":")[0] for line in texts["passwd"].splitlines()] == ["root", "user", "nobody"]
    assert "nameserver" not in texts["resolv.conf"]
    assert texts["machine-id"].strip() == ""


def test_the_name_of_the_host_is_not_told(told):
    assert told("import socket; tell([socket.gethostname(), os.uname().nodename])") == ["ramet", "ramet"]


def test_temporary_files_and_shared_memory_of_the_host_are_not_there(told):
    names = [f"/tmp/{SECRET}", f"/var/tmp/{SECRET}", f"/dev/shm/{SECRET}"]
    made = []
    try:
        for name in names:
            Path(name).write_text(SECRET)
            made.append(name)
        assert told("tell([opened(name) for name in sys.argv[1:]])", *names) == ["ENOENT"] * 3
    finally:
        for name in made:
            Path(name).unlink()


def test_system_v_objects_of_the_host_are_not_there(calls):
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x52414D54
    segment = libc.shmget(key, 4096, 0o1666)
    queue = libc.msgget(key, 0o1666)
    assert segment >= 0
    assert queue >= 0
    try:
        table = {
            "segment by key": ("shmget", key, 4096, 0),
            "queue by key": ("msgget", key, 0),
            "segment by number": ("shmat", segment, 0, 0),
        }
        found = calls(table)
        assert (found["segment by key"], found["queue by key"]) == ("ENOENT", "ENOENT")
        assert found["segment by number"] in {"EINVAL", "EIDRM"}
        assert ramet.run("ipcs | grep -c 0x52414d54").stdout == "0\n"
    finally:
        libc.shmctl(segment, 0, None)
        libc.msgctl(queue, 0, None)


def test_the_runtime_directory_is_not_there(told):
    with Client() as client:
        place = client.status().runtime_dir
    assert told("tell(opened(sys.argv[1]))", place) == "ENOENT"


def test_no_process_but_its_own_is_visible_and_none_can_be_signalled(told):
    """Neither by the numbers that processes have on the host, this one and the daemon among them."""
    with Client() as client:
        status = client.status()
    assert status.core is not None
    source = """
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    tell([sorted(pids), [attempt(os.kill, int(pid), 0) for pid in sys.argv[1:]]])
    """
    pids, answers = told(source, *map(str, (os.getpid(), status.pid, status.core.pid)))
    assert pids == [1, 2]
    assert answers == ["ESRCH"] * 3


@contextmanager
def held_open() -> Iterator[tuple[int, Callable[[], None]]]:
    """An input that does not end before the function is called."""
    reader, writer = os.pipe()
    writers = [writer]

    def end() -> None:
        if writers:
            os.close(writers.pop())

    try:
        yield reader, end
    finally:
        end()
        os.close(reader)


def test_another_sandbox_is_not_visible():
    """Two at once: files, processes and unix sockets of the one are nothing to the other."""
    mark = f"mark-{secrets.token_hex(6)}"
    seen: list[ramet.CommandResult] = []
    with Client() as one, Client() as other, held_open() as (reader, end):

        def look(_: bytes) -> None:
            if not seen:
                assert marked(mark)
                line = "ps -ef; ls -a /tmp /dev/shm /home/user; cat /proc/net/unix; cat /tmp/mark* /dev/shm/mark*"
                seen.append(other.run(line))
                end()

        script = (
            f"for place in /tmp /dev/shm .; do echo {mark} >$place/{mark}; done; echo ready; read x; ls /tmp"
        )
        result = one.run(["sh", "-c", script, mark], stdin=reader, on_stdout=look, timeout=20)
    assert mark in result.stdout
    assert seen[0].exit_code != 0
    assert mark not in seen[0].stdout + seen[0].stderr


def test_memory_of_a_sandbox_that_ended_is_not_in_the_next(told):
    ramet.run(
        [
            "python3",
            "-c",
            f"open('/dev/shm/x', 'w').write('{SECRET}' * 100000); open('y', 'w').write('{SECRET}')",
        ]
    )
    source = "tell([os.listdir('/dev/shm'), os.listdir('.'), os.listdir('/tmp')])"
    shm, home, tmp = told(source)
    assert shm == []
    assert not {"x", "y"} & {*home, *tmp}


def test_the_processes_of_a_sandbox_hold_no_descriptor_but_their_streams():
    """Seen from the host."""
    mark = f"mark-{secrets.token_hex(6)}"
    seen: list[list[str]] = []
    with Client() as client, held_open() as (reader, end):

        def look(_: bytes) -> None:
            seen.extend(_ledger.links(f"/proc/{pid}/fd") for pid in marked(mark))
            end()

        client.run(["sh", "-c", "echo ready; read x", mark], stdin=reader, on_stdout=look)
    assert len(seen) == 1
    assert len(seen[0]) == 3
    assert all(name.startswith("pipe:") for name in seen[0])
