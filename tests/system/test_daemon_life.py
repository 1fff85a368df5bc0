"""The daemon comes when it is needed, goes when it is not, and leaves nothing however it goes."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import contextlib
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import _ledger
from ramet.client import Client
from ramet.errors import DaemonError, DaemonLost
from system._daemons import Own, kill_hard, marked, none_left, wait_gone

PATIENCE_S = 30
RUN = "import ramet; print(ramet.run('echo $$').stdout.strip(), ramet.status().pid)"


def events(own: Own, name: str) -> list[dict[str, object]]:
    lines = Path(own.place, "daemon.log").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record.get("event") == name]


class Running:
    """A command in a thread, from the moment that it has begun."""

    def __init__(self, own: Own, line: str = "echo begun; setsid sleep 1000 & sleep 1000") -> None:
        self.mark = f"mark-{secrets.token_hex(6)}"
        self.outcome: object = None
        self._begun = threading.Event()
        self._client = own.client()
        self._line = line
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        assert self._begun.wait(PATIENCE_S)

    def _work(self) -> None:
        try:
            command = ["sh", "-c", self._line, self.mark]
            self.outcome = self._client.run(command, on_stdout=lambda _: self._begun.set(), timeout=100)
        except Exception as error:  # noqa: BLE001
            self.outcome = error

    def ended(self) -> object:
        """What came of it."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.outcome


def test_twenty_clients_at_once_start_one_daemon(own):
    programs = [own.program(RUN) for _ in range(20)]
    said = [program.communicate(timeout=55) for program in programs]
    assert [err for _, err in said if err] == []
    pids = {out.split()[1] for out, _ in said}
    assert len(pids) == 1
    assert len(events(own, "daemon started")) == 1
    assert len(events(own, "core started")) == 1
    assert own.entries() - {"cgroups"} == {"daemon.sock", "daemon.lock", "daemon.log", "core.sock"}


def test_twenty_threads_at_once_start_one_daemon(own):
    pids: list[int] = []
    gate = threading.Barrier(20)

    def work() -> None:
        with Client(own.place) as client:
            gate.wait()
            client.run("true")
            pids.append(client.ping().pid)

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(pids), len({*pids})) == (20, 1)


def test_a_client_that_is_told_not_to_start_one_says_that_there_is_none(own):
    with pytest.raises(DaemonLost) as caught:
        own.client(start=False).run("true")
    assert own.place in caught.value.message
    assert own.entries() == set()


def test_the_end_of_a_client_is_the_end_of_its_run_and_of_no_other(own):
    other = Running(own)
    mark = f"mark-{secrets.token_hex(6)}"
    source = """
import os, sys, ramet
command = ["sh", "-c", "echo begun; setsid sleep 1000 & trap '' TERM HUP; sleep 1000", sys.stdin.readline().strip()]
ramet.run(command, on_stdout=lambda _: print("begun", flush=True))
"""
    program = own.program(source)
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{mark}\n".encode())
    assert program.stdout.readline() == b"begun\n"
    assert marked(mark)
    program.kill()
    program.wait()
    assert none_left(mark)
    assert marked(other.mark)
    assert own.client().run("echo served").stdout == "served\n"
    own.end()
    assert isinstance(other.ended(), DaemonLost)


def test_a_daemon_that_is_killed_takes_the_runs_along_and_the_next_adopts_core(own):
    runs = [Running(own) for _ in range(5)]
    daemon, core = own.pids()
    kill_hard(daemon)
    for run in runs:
        assert isinstance(run.ended(), DaemonLost)
        assert none_left(run.mark)
    assert own.client().run("echo next").stdout == "next\n"
    again, core_again = own.pids()
    assert again != daemon
    assert core_again == core
    assert own.entries() - {"cgroups"} == {"daemon.sock", "daemon.lock", "daemon.log", "core.sock"}
    assert (own.client().status().core or pytest.fail("no core")).sandboxes == 0


def test_a_core_that_is_killed_takes_the_runs_along_and_the_daemon_starts_another(own):
    runs = [Running(own) for _ in range(5)]
    daemon, core = own.pids()
    kill_hard(core)
    for run in runs:
        assert isinstance(run.ended(), DaemonLost)
        assert none_left(run.mark)
    assert own.client().run("echo next").stdout == "next\n"
    again, core_again = own.pids()
    assert again == daemon
    assert core_again != core


def test_both_killed_leave_names_that_the_next_start_takes_away(own):
    run = Running(own)
    daemon, core = own.pids()
    kill_hard(daemon)
    kill_hard(core)
    assert isinstance(run.ended(), DaemonLost)
    assert none_left(run.mark)
    assert "daemon.sock" in own.entries()
    assert own.client().run("echo next").stdout == "next\n"
    assert own.entries() - {"cgroups"} == {"daemon.sock", "daemon.lock", "daemon.log", "core.sock"}
    own.end()
    assert own.entries() == set()


def test_core_ends_by_itself_when_no_daemon_comes(own, monkeypatch):
    monkeypatch.setenv("RAMET_CORE_GRACE_S", "0.2")
    run = Running(own)
    daemon, core = own.pids()
    inits = [process.pid for process in _ledger.descendants(core)]
    assert inits
    kill_hard(daemon)
    wait_gone(core)
    for pid in inits:
        wait_gone(pid)
    assert isinstance(run.ended(), DaemonLost)
    assert marked(run.mark) == []


def test_an_idle_daemon_ends_and_removes_everything(own, monkeypatch):
    monkeypatch.setenv("RAMET_DAEMON_IDLE_S", "2")
    client = own.client()
    client.run("true")
    _, core = (client.status().pid, client.status().core)
    assert core is not None
    daemon = client.ping().pid
    wait_gone(daemon)
    wait_gone(core.pid)
    assert own.entries() == set()
    assert client.run("echo again").stdout == "again\n"


def test_a_daemon_with_a_run_is_not_idle(own, monkeypatch):
    monkeypatch.setenv("RAMET_DAEMON_IDLE_S", "0.5")
    assert own.client().run("sleep 2; echo done").stdout == "done\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_in_order(own, number):
    run = Running(own)
    daemon, core = own.pids()
    os.kill(daemon, number)
    wait_gone(daemon)
    assert isinstance(run.ended(), DaemonLost)
    assert marked(run.mark) == []
    wait_gone(core)
    assert own.entries() == set()


def test_a_place_that_ramet_chose_is_removed_too(tmp_path):
    tmp_path.chmod(0o700)
    environment = {name: value for name, value in os.environ.items() if name != "RAMET_RUNTIME_DIR"}
    environment["XDG_RUNTIME_DIR"] = str(tmp_path)
    source = """
import os, ramet
ramet.run("true")
print(ramet.status().runtime_dir, oct(os.stat(ramet.status().runtime_dir).st_mode & 0o7777))
from ramet.client import Client
pid = os.pidfd_open(Client().shutdown().pid)
import select
select.select([pid], [], [], 30)
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=55,
    )
    assert done.stdout.split() == [f"{tmp_path}/ramet", "0o700"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fault", ["mode", "link", "file", "dangling link", "owner", "parent missing"])
def test_a_runtime_directory_that_is_not_ones_own_is_refused_and_not_repaired(tmp_path, fault):
    place = tmp_path / "run"
    if fault == "mode":
        place.mkdir()
        place.chmod(0o755)
    elif fault == "link":
        (tmp_path / "real").mkdir(mode=0o700)
        place.symlink_to("real")
    elif fault == "dangling link":
        place.symlink_to("nowhere")
    elif fault == "file":
        place.write_text("")
    elif fault == "owner":
        if os.geteuid() == 0:
            place.mkdir(mode=0o700)
            os.chown(place, 12345, 12345)
        else:
            place = Path("/etc")
    else:
        place = tmp_path / "no" / "such" / "place"
    with Client(str(place)) as client, pytest.raises(DaemonError) as caught:
        client.run("true")
    assert caught.value.code == "runtime_dir"
    assert str(place) in caught.value.message
    assert caught.value.hint
    if fault == "mode":
        assert stat.S_IMODE(place.stat().st_mode) == 0o755
        assert os.listdir(place) == []
    if fault == "link":
        assert os.listdir(tmp_path / "real") == []


def test_what_the_starter_of_the_daemon_ignores_is_not_ignored_by_commands(own):
    """With SIGCHLD ignored the kernel would collect children itself, and no end be heard of."""
    source = """
import signal
for number in signal.valid_signals():
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
import ramet
for name in ("HUP", "INT", "USR1", "ALRM", "TERM", "PIPE"):
    result = ramet.run(f"kill -{name} $$; echo alive", timeout=20)
    assert (result.stdout, result.signal) == ("", "SIG" + name), (name, result)
text = ramet.run(["cat", "/proc/self/status"]).stdout
print([line for line in text.splitlines() if line.startswith(("SigIgn", "SigBlk"))])
"""
    out, err = own.program(source).communicate(timeout=55)
    assert out.decode() == "['SigBlk:\\t0000000000000000', 'SigIgn:\\t0000000000000000']\n", err.decode()
    daemon, _ = own.pids()
    os.kill(daemon, signal.SIGTERM)
    wait_gone(daemon)


def test_a_caller_without_standard_streams_can_start_it(own):
    line = f'"{sys.executable}" -c "import ramet; raise SystemExit(ramet.run(\'exit 7\').exit_code)" <&- >&- 2>&-'
    environment = {**os.environ, "RAMET_RUNTIME_DIR": own.place}
    assert subprocess.run(["sh", "-c", line], env=environment, check=False, timeout=50).returncode == 7
    assert own.client().run("echo next").stdout == "next\n"


@pytest.mark.parametrize("mask", [0o000, 0o027, 0o077])
def test_the_callers_umask_changes_nothing(own, mask):
    source = f"import os; os.umask({mask}); import ramet; print(ramet.run('umask; touch f; stat -c %a f').stdout.split())"
    out, err = own.program(source).communicate(timeout=50)
    assert out.decode() == "['0022', '644']\n", err.decode()
    daemon, _ = own.pids()
    for name in ("daemon.sock", "core.sock"):
        assert stat.S_IMODE(os.stat(f"{own.place}/{name}").st_mode) == 0o600
    assert daemon


def test_a_caller_in_a_directory_that_is_gone_can_start_it(own, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    source = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); import ramet; print(ramet.run('pwd').stdout)"
    out, err = own.program(source).communicate(timeout=50)
    assert out.split() == [b"/home/user"], err.decode()
    daemon, _ = own.pids()
    assert os.readlink(f"/proc/{daemon}/cwd") == "/"


def test_the_daemon_has_left_the_session_of_its_starter(own):
    """A terminal that is closed, or a process group that is signalled, does not end it."""
    program = own.program(
        "import os, sys, ramet; ramet.run('true'); print(os.getsid(0), flush=True); sys.stdin.read()"
    )
    assert program.stdout is not None
    session = int(program.stdout.readline())
    daemon, core = own.pids()
    assert os.getsid(daemon) == daemon != session
    assert os.getpgid(core) not in {os.getpgid(program.pid), os.getpgid(0)}
    program.kill()
    program.wait()
    assert own.client().ping().pid == daemon


def test_a_client_that_is_stopped_holds_up_nobody(own):
    """With a run whose output nobody takes: its pipes fill, and that is all."""
    source = "import ramet; ramet.run('echo begun >&2; cat /dev/zero', on_stderr=lambda _: print('begun', flush=True))"
    program = own.program(source)
    assert program.stdout is not None
    assert program.stdout.readline() == b"begun\n"
    program.send_signal(signal.SIGSTOP)
    client = own.client()
    for number in range(20):
        assert client.run(f"exit {number}").exit_code == number
    program.kill()
    program.wait()


def test_a_run_goes_on_while_the_daemon_is_stopped(own):
    """Core and the pipes need it for nothing; only the end waits for it."""
    run = Running(own, "echo begun; sleep 0.1; exit 3")
    daemon, _ = own.pids()
    os.kill(daemon, signal.SIGSTOP)
    assert none_left(run.mark)
    os.kill(daemon, signal.SIGCONT)
    assert getattr(run.ended(), "exit_code", None) == 3


def test_few_descriptors_are_a_clear_error_and_no_end(own):
    """The caller's soft limit; the daemon raises its own."""
    source = """
import resource, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (150, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import ramet
errors, codes = [], []
def work(number):
    for _ in range(5):
        try:
            codes.append(ramet.run("exit 3").exit_code)
        except (OSError, ramet.RametError) as error:
            errors.append(error)
threads = [threading.Thread(target=work, args=(n,)) for n in range(30)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert {*codes} <= {3}, codes
print(len(codes) + len(errors), ramet.run("echo after").stdout.strip())
"""
    out, err = own.program(source).communicate(timeout=55)
    assert out.split() == [b"150", b"after"], err.decode()


def test_a_daemon_of_another_protocol_is_refused_by_both_versions(own):
    """A server that answers every request with another version."""
    import socket

    from ramet.errors import ProtocolMismatch
    from ramet.wire import messages

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{own.place}/daemon.sock")
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.send(messages.HEADER.pack(messages.MAGIC, messages.VERSION + 7, 0, 2) + b"{}")

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(ProtocolMismatch) as caught:
            own.client(start=False).ping()
        server.join()
    assert str(messages.VERSION + 7) in caught.value.message
    assert str(messages.VERSION) in caught.value.message
    os.unlink(f"{own.place}/daemon.sock")


def test_a_daemon_can_be_stopped_while_clients_come(own):
    """Each request is served, by this daemon or the next, or told that its daemon ended; none hangs."""
    stop = threading.Event()
    wrong: list[object] = []
    served: list[int] = []

    def work() -> None:
        with Client(own.place) as client:
            while not stop.is_set():
                try:
                    served.append(client.run("exit 3", timeout=30).exit_code)
                except DaemonLost:
                    pass
                except Exception as error:  # noqa: BLE001
                    wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        with contextlib.suppress(DaemonLost), Client(own.place) as client:
            client.run("true")
            wait_gone(client.shutdown().pid)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert wrong == []
    assert {*served} <= {3}
    assert served


def test_a_daemon_that_dies_at_its_start_is_a_clear_error_and_the_next_start_works(own):
    """Killed as soon as it can be seen."""
    for _ in range(5):
        program = own.program("import ramet; print(ramet.run('echo served').stdout)")
        end = time.monotonic() + PATIENCE_S
        while program.poll() is None and time.monotonic() < end:
            found = [
                process.pid
                for process in _ledger.descendants(program.pid)
                if b"daemon/__main__.py" in command_line(process.pid)
            ]
            if found:
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                break
        out, err = program.communicate(timeout=PATIENCE_S)
        if b"served" not in out:
            assert b"DaemonStartError" in err or b"DaemonLost" in err, err.decode()
    assert own.client().run("echo served").stdout == "served\n"


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
