"""Real programs under the default filter do what they do without it."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from unit.seccomp.conftest import Confined

# title: (program, the start of what it prints)
PYTHON = {
    "threads and queues": (
        """
        import concurrent.futures, threading
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            print(sum(pool.map(lambda n: n * n, range(100))), threading.active_count() > 1)
        """,
        "328350 True\n",
    ),
    "multiprocessing by fork": (
        """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(3) as pool:
            print(sum(pool.map(abs, range(-10, 0))))
        """,
        "55\n",
    ),
    "multiprocessing by spawn and shared memory": (
        """
        import multiprocessing, multiprocessing.shared_memory
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            memory = multiprocessing.shared_memory.SharedMemory(create=True, size=64)
            queue = context.Queue()
            child = context.Process(target=queue.put, args=(42,))
            child.start()
            print(queue.get(), memory.size >= 64)
            child.join()
            memory.close()
            memory.unlink()
        """,
        "42 True\n",
    ),
    "subprocesses": (
        """
        import subprocess
        done = subprocess.run("echo $((6*7)) | tr 4 5; exit 3", shell=True, capture_output=True)
        print(done.stdout, done.returncode)
        print(subprocess.run(["true"], start_new_session=True, close_fds=True).returncode)
        """,
        "b'52\\n' 3\n0\n",
    ),
    "sqlite": (
        """
        import sqlite3
        base = sqlite3.connect("file.db")
        base.execute("pragma journal_mode=wal")
        base.execute("create table t(n)")
        with base:
            base.executemany("insert into t values (?)", [(n,) for n in range(100)])
        print(base.execute("select sum(n) from t").fetchone())
        """,
        "(4950,)\n",
    ),
    "ssl, random numbers, hashes": (
        """
        import hashlib, secrets, ssl, uuid
        ssl.create_default_context()
        print(len(secrets.token_bytes(9)), uuid.uuid4().version, hashlib.sha256(b"").hexdigest()[:8])
        """,
        "9 4 e3b0c442\n",
    ),
    "asyncio, sockets and interfaces": (
        """
        import asyncio, socket
        async def handle(reader, writer):
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()
        async def main():
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\\n")
            print(await reader.readline(), len(socket.if_nameindex()) > 0)
            writer.close()
            server.close()
            process = await asyncio.create_subprocess_exec("echo", "sub", stdout=-1)
            print((await process.communicate())[0])
        asyncio.run(main())
        """,
        "b'hello\\n' True\nb'sub\\n'\n",
    ),
    "files, maps, locks, signals, limits": (
        """
        import fcntl, mmap, os, resource, signal, tempfile
        with tempfile.TemporaryFile(dir=".") as file, tempfile.TemporaryFile(dir=".") as other:
            file.truncate(8192)
            fcntl.lockf(file, fcntl.LOCK_EX)
            with mmap.mmap(file.fileno(), 8192) as area:
                area[0] = 7
                print(area[0], os.copy_file_range(file.fileno(), other.fileno(), 16))
        with open(os.memfd_create("m"), "wb") as memory:
            print(memory.write(b"abc"))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        print(signal.sigwait({signal.SIGALRM}) == signal.SIGALRM)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        print(resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(1) > 0, os.getpgid(0) > 0)
        os.mkfifo("fifo")
        os.rename("fifo", "pipe")
        print(os.path.exists("pipe"), len(os.sched_getaffinity(0)) > 0)
        """,
        "7 16\n3\nTrue\n(64, 64) True True\nTrue True\n",
    ),
}


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"no {program} here")
    return found


@pytest.mark.parametrize("title", PYTHON)
def test_python_program_runs_as_without_the_filter(title: str, confined: Confined, tmp_path: Path) -> None:
    program, expected = PYTHON[title]
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(program), encoding="utf-8")
    done = confined(sys.executable, script)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", expected)


def test_compiler_makes_a_program_that_runs(confined: Confined, tmp_path: Path) -> None:
    need("gcc")
    (tmp_path / "hello.c").write_text(
        '#include <stdio.h>\nint main(void) { puts("hello"); }\n', encoding="ascii"
    )
    assert confined("gcc", "-O2", "-pipe", "-flto", "-o", "hello", "hello.c").stderr == ""
    assert confined("./hello").stdout == "hello\n"


def test_shell_pipelines_substitutions_and_jobs_work(confined: Confined) -> None:
    line = (
        "set -o pipefail; seq 1 1000 | sort -rn | sed -n 1,2p; diff <(echo a) <(echo a) && "
        "(false || echo $(($(nproc) > 0))) & wait $!; ulimit -n 99"
    )
    done = confined(need("bash"), "-c", line)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1000\n999\n1\n", "")


def test_node_runs_workers_servers_and_children(confined: Confined) -> None:
    program = """
        const {Worker} = require("worker_threads");
        new Worker('require("worker_threads").parentPort.postMessage(42)', {eval: true}).on("message", m => {
            console.log(m);
            require("net").createServer().listen(0, "127.0.0.1", function () {
                this.close();
                console.log(require("child_process").execSync("echo sub").toString().trim());
            });
        });
    """
    done = confined(need("node"), "-e", program)
    assert (done.returncode, done.stdout) == (0, "42\nsub\n"), done.stderr


def test_java_starts_and_compiles(confined: Confined, tmp_path: Path) -> None:
    need("javac")
    (tmp_path / "T.java").write_text(
        "class T { public static void main(String[] a) throws Exception {"
        " Thread t = new Thread(() -> System.out.println(6 * 7)); t.start(); t.join();"
        ' System.out.println(new ProcessBuilder("true").start().waitFor()); } }',
        encoding="ascii",
    )
    done = confined(need("java"), "-Xshare:auto", "T.java")
    assert (done.returncode, done.stdout) == (0, "42\n0\n"), done.stderr


def test_rust_program_is_compiled_and_runs(confined: Confined, tmp_path: Path) -> None:
    (tmp_path / "t.rs").write_text(
        'fn main() { println!("{}", std::thread::spawn(|| 6 * 7).join().unwrap()); }\n', encoding="ascii"
    )
    rustc = need("rustc")
    if subprocess.run([rustc, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("rustc has no toolchain for this user")  # rustup's, with another HOME
    done = confined(rustc, "t.rs")
    assert done.returncode == 0, done.stderr
    assert confined("./t").stdout == "42\n"


def test_strace_follows_processes_inside(confined: Confined) -> None:
    done = confined(need("strace"), "-f", "-e", "trace=execve", "sh", "-c", "true; /bin/true")
    assert done.returncode == 0
    assert done.stderr.count("execve(") >= 2


def test_gdb_runs_a_program_inside(confined: Confined) -> None:
    done = confined(need("gdb"), "-q", "-nx", "-batch", "-ex", "run", "/bin/true")
    assert "exited normally" in done.stdout, done.stderr
    assert "randomization" not in done.stderr  # gdb may set ADDR_NO_RANDOMIZE


def test_network_tools_fall_back_where_netlink_is_closed(confined: Confined) -> None:
    done = confined(need("ss"), "-ltn")
    assert (done.returncode, "State" in done.stdout) == (0, True), done.stderr


def test_repository_and_archive_tools_work(confined: Confined) -> None:
    need("git")
    done = confined(
        need("bash"),
        "-ec",
        "git init -q r; cd r; echo a > a; git add a;"
        "git -c user.name=a -c user.email=a@b commit -qm m; git gc -q;"
        "git log --oneline | wc -l; cd ..; tar czf r.tgz r; mkdir x; tar xzf r.tgz -C x; cat x/r/a",
    )
    assert (done.returncode, done.stdout) == (0, "1\na\n"), done.stderr
