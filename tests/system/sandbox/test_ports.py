"""`Sandbox.ports`: servers in a sandbox that has no network but its own loopback."""

import contextlib
import errno
import os
import resource
import socket
import urllib.error
import urllib.request

import pytest

import ramet
from system.sandbox._repl import PATIENCE_S

ECHO = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 8000), family=family)
print("ready", flush=True)
while True:
    near, _ = server.accept()
    with near:
        while piece := near.recv(65536):
            near.sendall(piece.upper())
"""


@pytest.fixture
def sandbox():
    with ramet.Sandbox(command=["sleep", "10000"]) as made:
        yield made
    made.commands.forget()


def serving(sandbox, address="127.0.0.1"):
    sandbox.files.write("echo.py", ECHO)
    server = sandbox.commands.start(["python3", "echo.py", address])
    assert server.stdout.readline(PATIENCE_S) == b"ready\n", server.stderr.read()
    return server


def answer_of(connected):
    with connected:
        connected.settimeout(PATIENCE_S)
        connected.sendall(b"hello")
        connected.shutdown(socket.SHUT_WR)
        return connected.makefile("rb").read()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_server_in_a_sandbox_is_reached_without_any_network(sandbox, address):
    with serving(sandbox, address):
        assert answer_of(sandbox.ports.connect(8000)) == b"HELLO"


def test_a_port_of_this_machine_leads_into_the_sandbox_until_it_is_closed(sandbox):
    sandbox.files.write("www/index.html", "served")
    server = sandbox.commands.start(["python3", "-m", "http.server", "8000", "-d", "www", "-b", "127.0.0.1"])
    with sandbox.ports.forward(8000) as forward, server:
        while True:  # until it listens
            try:
                with urllib.request.urlopen(forward.url, timeout=PATIENCE_S) as page:
                    assert page.read() == b"served"
                break
            except (ConnectionError, urllib.error.URLError):
                assert server.running
        address = forward.address
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=PATIENCE_S)


def test_a_program_with_many_descriptors_forwards_and_one_with_none_left_does_so_later(sandbox):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(sandbox), contextlib.ExitStack() as using, open(os.devnull) as null:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, before[1]), before[1]))
        using.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        held = using.enter_context(contextlib.ExitStack())
        while True:
            number = os.dup(null.fileno())
            held.callback(os.close, number)
            if number > 1100:
                break
        with sandbox.ports.forward(8000) as forward:
            assert answer_of(socket.create_connection(forward.address)) == b"HELLO"
            late = socket.socket()
            with contextlib.suppress(OSError):
                while True:
                    held.callback(os.close, os.dup(null.fileno()))
            late.connect(forward.address)
            held.close()
            assert answer_of(late) == b"HELLO"


def test_each_fork_has_ports_of_its_own(sandbox):
    with sandbox.fork() as child, serving(sandbox):
        assert answer_of(sandbox.ports.connect(8000)) == b"HELLO"
        with pytest.raises(ramet.RametError) as caught:
            child.ports.connect(8000)
    assert caught.value.code == "connection_refused"


@pytest.mark.parametrize("port", [0, 65536, "80", True])
def test_what_is_no_port_is_refused(sandbox, port):
    with pytest.raises(ramet.InvalidRequest) as caught:
        sandbox.ports.connect(port)
    assert caught.value.field == "port"


def test_a_dead_sandbox_and_a_port_in_use_are_told():
    with ramet.Sandbox(command=["sleep", "10000"]) as made, socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ramet.InvalidRequest) as caught:
            made.ports.forward(8000, local=taken.getsockname()[1])
        assert caught.value.field == "local"
        assert caught.value.message.endswith(f":{taken.getsockname()[1]}: {os.strerror(errno.EADDRINUSE)}")
    with pytest.raises(ramet.SandboxEnded):
        made.ports.connect(8000)


def test_a_dead_sandbox_is_not_forwarded_to_but_says_of_what_it_died():
    with ramet.Sandbox(command="read x; exit 3") as made:
        ports = made.ports
        ports.forward(8000).close()
        made.stdin.write("\n")
        assert made.wait(PATIENCE_S).exit_code == 3
        with pytest.raises(ramet.SandboxEnded, match="exit code 3"):
            ports.forward(8000)
