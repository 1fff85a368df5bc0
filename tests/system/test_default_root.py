"""The default root: this host's programs and this Python, and a world of its own around them."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import ramet

# What programs of a language model do all day; each prints "fine".
PROGRAMS = {
    "ssl": "import ssl; ssl.create_default_context(); print('fine' if ssl.OPENSSL_VERSION else 0)",
    "tempfile": "import tempfile\nwith tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile() as f: print('fine')",
    "sqlite3": "import sqlite3; print('fine' if sqlite3.connect('x.db').execute('select 1').fetchone() else 0)",
    "multiprocessing": (
        "import multiprocessing as m, os\n"
        "def f(x): return x * x\n"
        "if __name__ == '__main__':\n"
        "    with m.get_context('fork').Pool(3) as p: assert p.map(f, range(9))[8] == 64\n"
        "    q = m.get_context('fork').Queue(); q.put(1); assert q.get() == 1\n"
        "    a = m.Array('i', 5); l = m.Lock(); l.acquire(); print('fine')"
    ),
    "shared memory": (
        "from multiprocessing import shared_memory as s\n"
        "m = s.SharedMemory(create=True, size=1 << 20); m.buf[0] = 7; n = s.SharedMemory(m.name)\n"
        "print('fine' if n.buf[0] == 7 else 0); n.close(); m.close(); m.unlink()"
    ),
    "threads": "import threading as t; x = [t.Thread(target=print, args=('fine',)) for _ in range(1)]; [y.start() for y in x]",
    "asyncio": "import asyncio; asyncio.run(asyncio.sleep(0.01)); print('fine')",
    "asyncio subprocess": (
        "import asyncio\n"
        "async def f():\n"
        "    p = await asyncio.create_subprocess_exec('echo', 'fine', stdout=-1)\n"
        "    print((await p.communicate())[0].decode(), end='')\n"
        "asyncio.run(f())"
    ),
    "local server": (
        "import http.server, threading, urllib.request as u\n"
        "s = http.server.HTTPServer(('localhost', 0), http.server.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
        "assert u.urlopen(f'http://localhost:{s.server_port}/').status == 200; print('fine')"
    ),
    "unix socket": (
        "import socket; a = socket.socket(socket.AF_UNIX); a.bind('/tmp/s'); a.listen()\n"
        "b = socket.socket(socket.AF_UNIX); b.connect('/tmp/s'); print('fine')"
    ),
    "pty": "import os, pty; pid, fd = pty.fork(); print('fine') if pid == 0 else print(os.read(fd, 9).decode().strip())",
    "locale and zones": "import time, zoneinfo, locale; zoneinfo.ZoneInfo('Europe/Paris') if zoneinfo.TZPATH else 0; print('fine')",
    "users": "import pwd, os; assert pwd.getpwuid(os.getuid()).pw_dir == os.path.expanduser('~'); print('fine')",
    "file locks": "import fcntl; f = open('l', 'w'); fcntl.flock(f, 2); fcntl.lockf(f, 2); print('fine')",
    "links": "import os; open('a', 'w'); os.link('a', 'b'); os.symlink('a', 'c'); os.rename('b', 'd'); print('fine')",
    "sparse files": "f = open('s', 'wb'); f.truncate(1 << 30); print('fine')",
    "extended attributes": "import os; open('a', 'w'); os.setxattr('a', 'user.x', b'1'); print('fine')",
    "memfd": "import os; os.write(os.memfd_create('x'), b'1'); print('fine')",
    "virtual environment": "import venv, sys; venv.create('v'); import subprocess; subprocess.run(['v/bin/python', '-c', 'print(\"fine\")'])",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ordinary_programs_work(name):
    result = ramet.run(["python3", "-c", PROGRAMS[name]], timeout=30)
    if "Operation not supported" in result.stderr and name == "extended attributes":
        pytest.skip("no user attributes on a tmpfs of this kernel")
    assert (result.stdout.splitlines(), result.exit_code) == (["fine"], 0), result.stderr


def test_python_is_the_callers_interpreter_with_its_packages():
    """Where the sandbox can read it; this test's own environment holds Ramet's dependencies."""
    source = "import sys, anyio, rich; print(sys.version, sys.base_prefix, anyio.__file__)"
    result = ramet.run(["python3", "-c", source])
    if result.stdout.split()[:1] != [sys.version.split()[0]]:
        pytest.skip("this interpreter is of no use in a sandbox; the unit tests tell why")
    import anyio

    assert result.stdout.rstrip() == f"{sys.version} {sys.base_prefix} {anyio.__file__}"


def test_python_and_python3_are_the_same():
    result = ramet.run(
        "python -c 'import sys; print(sys.version)'; python3 -c 'import sys; print(sys.version)'"
    )
    if "not found" in result.stderr:
        pytest.skip("the host has no `python`")
    one, two = result.stdout.splitlines()
    assert one == two


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel of one module and a command, made by hand."""
    path = tmp_path / "greeting-1.0-py3-none-any.whl"
    files = {
        "greeting.py": "def main():\n    print('greetings')\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "greeting-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
    }
    rows = "".join(f"{name},,\n" for name in [*files, "greeting-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, "greeting-1.0.dist-info/RECORD": rows}.items():
            archive.writestr(name, content)
    return path


def test_pip_installs_into_the_home_without_a_network(wheel):
    has_pip = ramet.run("python3 -m pip --version").ok
    if not has_pip:
        pytest.skip("this Python has no pip")
    line = f"""
    cat >{wheel.name} && python3 -m pip install --quiet --no-index --no-deps ./{wheel.name} && greet
    python3 -c 'import greeting; print(greeting.__file__)'
    """
    result = ramet.run(line, stdin=wheel.read_bytes(), timeout=50)
    assert result.ok, result.stderr
    said, place = result.stdout.splitlines()
    assert said == "greetings"
    assert place.startswith("/home/user/")
    assert not ramet.run("greet").ok


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_a_compiler_of_the_host_works_inside():
    source = """
#include <math.h>
#include <stdio.h>
int main(int n, char **v) { printf("%.0f %s\\n", sqrt(n * 49), v[0]); return 3; }
"""
    result = ramet.run("cat >a.c; gcc -O2 -o a a.c -lm && ./a", stdin=source, timeout=30)
    assert (result.stdout, result.exit_code) == ("7 ./a\n", 3), result.stderr


@pytest.mark.parametrize("name", ["bash", "perl", "node", "git", "java", "ruby", "awk", "sed", "find", "tar"])
def test_programs_of_the_host_work_inside(name):
    lines = {
        "bash": "bash -c 'x=(1 2 3); echo ${#x[@]} <(true) >/dev/null; cat <<<fine'",
        "perl": "perl -MPOSIX -e 'print \"fine\\n\"'",
        "node": "node -e 'setTimeout(() => console.log(\"fine\"), 1)'",
        "git": "git init -q r && cd r && git -c user.name=a -c user.email=b commit -q --allow-empty -m fine && git log --format=%s",
        "java": "java -Xmx64m -XshowSettings:none -version 2>/dev/null; echo fine",
        "ruby": "ruby -e 'puts :fine'",
        "awk": "echo x | awk '{print \"fine\"}'",
        "sed": "echo bad | sed s/bad/fine/",
        "find": "touch fine; find . -name fine -printf '%f\\n'",
        "tar": "echo fine >f; tar cf t f; tar xOf t",
    }
    if shutil.which(name, path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip(f"the host has no {name} in /usr")
    result = ramet.run(lines[name], timeout=50)
    assert result.stdout == "fine\n", result.stderr


def test_writes_in_one_sandbox_reach_neither_the_host_nor_the_next():
    before = {name: Path(name).read_bytes() for name in ("/etc/hosts", "/etc/passwd") if os.path.exists(name)}
    line = "echo changed >/etc/hosts; echo x >>/etc/passwd; mkdir /new; rm -rf /var/tmp; cat /etc/hosts; ls -d /new"
    assert ramet.run(line).stdout == "changed\n/new\n"
    for name, content in before.items():
        assert Path(name).read_bytes() == content
    result = ramet.run("cat /etc/hosts; grep -c x /etc/passwd; ls -d /new /var/tmp")
    assert "changed" not in result.stdout
    assert "localhost" in result.stdout
    assert result.stdout.splitlines()[-1] == "/var/tmp"


def disk_usage(top: str) -> dict[str, tuple[int, int]]:
    found = {}
    for place, _, names in os.walk(top):
        for name in names:
            try:
                status = os.lstat(f"{place}/{name}")
            except FileNotFoundError:
                continue
            found[f"{place}/{name}"] = (status.st_ino, status.st_size)
    return found


def test_what_is_written_is_in_ram_and_no_file_of_the_host(own):
    """Neither while the command runs nor after it."""
    own.pids()
    places = [own.place, "/var/tmp", os.environ["XDG_DATA_HOME"], os.environ["XDG_STATE_HOME"]]
    before = {place: disk_usage(place) for place in places}
    during = []

    def look(_: bytes) -> None:
        during.append({place: set(disk_usage(place)) for place in places})

    line = "head -c 200M /dev/zero >/tmp/big; head -c 50M /dev/zero >/home/user/b; echo written; sleep 0.01"
    assert own.client().run(line, on_stdout=look).ok
    assert during == [{place: set(files) for place, files in before.items()}]
    after = {place: disk_usage(place) for place in places}
    assert {place: set(files) for place, files in after.items()} == during[0]


def test_the_memory_of_what_was_written_is_given_back():
    def shared() -> int:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("Shmem:"):
                return int(line.split()[1]) >> 10
        raise LookupError

    before = shared()
    for _ in range(5):
        ramet.run("head -c 300M /dev/zero >/tmp/big")
    # Others write to memory file systems too; five times 300 MiB would stand out.
    assert shared() < before + 900


def test_the_environment_is_small_and_its_own():
    text = ramet.run("env").stdout
    names = {line.split("=")[0] for line in text.splitlines()}
    assert {"PATH", "HOME", "USER", "LANG", "SHELL"} <= names
    assert names <= {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PWD", "OLDPWD", "SHLVL", "_"),
        *("VIRTUAL_ENV", "PIP_BREAK_SYSTEM_PACKAGES", "PIP_ROOT_USER_ACTION"),
    }


def test_home_and_temporary_directories_are_writable_and_empty():
    result = ramet.run(
        "pwd; ls; for d in ~ /tmp /var/tmp /dev/shm /run/lock; do echo x >$d/x && cat $d/x; done; umask"
    )
    assert result.stdout.splitlines() == ["/home/user", *["x"] * 5, "0022"]


def test_modes_of_new_files_are_the_usual():
    assert ramet.run("touch f; mkdir d; stat -c %a f d").stdout.split() == ["644", "755"]


def test_large_trees_can_be_made_and_removed():
    line = "for i in $(seq 100); do mkdir -p t/$i; for j in $(seq 20); do echo $j >t/$i/$j; done; done; find t -type f | wc -l; rm -r t; ls"
    assert ramet.run(line, timeout=30).stdout == "2000\n"


def test_a_program_may_replace_what_the_skeleton_brought():
    line = "rm /etc/hosts && ln -s /tmp/h /etc/hosts && echo new >/tmp/h && cat /etc/hosts; rm -r /srv /opt; mv /mnt /mnt2; ls /"
    result = ramet.run(line)
    assert result.stdout.splitlines()[0] == "new"
    assert {"srv", "opt", "mnt"} & {*result.stdout.split()} == set()
    assert {"srv", "opt", "mnt"} <= {*ramet.run("ls /").stdout.split()}


def test_the_files_of_usr_are_the_hosts_own():
    path = os.path.realpath("/usr/bin/env")
    result = ramet.run(["sha256sum", path])
    assert result.stdout.split()[0] == hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_a_host_that_is_upgraded_meanwhile_is_noticed(tmp_path, own):
    """A directory that is replaced by another of its name."""
    if not ramet.run(["python3", "-c", ""]).ok:
        pytest.skip("no Python inside")
    tmp_path.chmod(0o755)
    from system._daemons import build

    top = build(tmp_path / "root", "cat")
    client = own.client()
    (top / "version").write_text("1")
    assert client.run("cat /version", root=top).stdout == "1"
    shutil.move(top, tmp_path / "old")
    shutil.copytree(tmp_path / "old", top, symlinks=True)
    (top / "version").write_text("2")
    assert client.run("cat /version", root=top).stdout == "2"


def test_a_script_can_be_piped_in_as_with_any_shell():
    assert ramet.run("sh", stdin="echo one\necho two; exit 3\n").stdout == "one\ntwo\n"
    assert ramet.run(["python3", "-"], stdin="print(6 * 7)").stdout == "42\n"


def test_the_five_programs_of_the_quickstart_get_what_they_should(own):
    own.client().ping()  # what it makes, a template among it, stays with its daemon
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ramet", "quickstart"],
        env={**os.environ, "RAMET_RUNTIME_DIR": own.place},
        capture_output=True,
        check=False,
        timeout=55,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_client_with_another_interpreter_gets_that_one(rooted):
    """Roots are kept per interpreter."""
    system = shutil.which("python3", path="/usr/bin:/bin")
    if system is None or os.path.realpath(system) == os.path.realpath(sys.executable):
        pytest.skip("there is no second Python")
    from ramet.models.runs import Python, RunRequest

    request = RunRequest.of(
        ["python3", "-c", "import sys; print(sys.prefix)"],
        python=Python(system, "/usr", "/usr"),
        streams=(1, 2),
    )
    assert rooted.run_request(request).stdout == "/usr\n"
