"""A command has a loopback interface of its own, and no way to any other network or socket."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ramet.client import Client


def host_addresses() -> list[str]:
    """Addresses of this host that a packet could go to."""
    found = []
    for address in ("192.0.2.1", "198.51.100.7"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.connect((address, 9))
            found.append(probe.getsockname()[0])
    return sorted({*found})


@pytest.fixture
def listeners(tmp_path: Path) -> Iterator[dict[str, object]]:
    """Sockets of the host that would answer."""
    name = f"ramet-test-{secrets.token_hex(8)}"
    tmp_path.chmod(0o755)
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind("\0" + name)
        abstract.listen()
        path = str(tmp_path / "socket")
        named = stack.enter_context(socket.socket(socket.AF_UNIX))
        named.bind(path)
        named.listen()
        os.chmod(path, 0o777)
        yield {
            "tcp": tcp.getsockname()[1],
            "udp": udp,
            "abstract": name,
            "path": path,
        }


CONNECT = """
import socket
def connected(family, kind, address):
    with socket.socket(family, kind) as sock:
        sock.settimeout(10)
        return attempt(sock.connect, address)
"""


def test_a_listener_on_the_hosts_loopback_is_another_loopback(told, listeners):
    source = CONNECT + "tell(connected(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', int(sys.argv[1]))))"
    with socket.create_connection(("127.0.0.1", listeners["tcp"])):
        pass
    assert told(source, str(listeners["tcp"])) == "ECONNREFUSED"


def test_there_is_no_route_to_anywhere_else(told, listeners):
    addresses = [
        "192.0.2.1",
        "8.8.8.8",
        "169.254.169.254",
        "10.0.0.1",
        "172.17.0.1",
        "224.0.0.1",
        *host_addresses(),
    ]
    addresses = [address for address in addresses if not address.startswith("127.")]
    source = CONNECT + (
        "tell([connected(socket.AF_INET, kind, (address, int(sys.argv[1])))"
        " for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) for address in sys.argv[2:]])"
    )
    found = told(source, str(listeners["tcp"]), *addresses)
    assert set(found) == {"ENETUNREACH"}
    source = CONNECT + "tell([connected(socket.AF_INET6, socket.SOCK_STREAM, (a, 53)) for a in sys.argv[1:]])"
    assert set(told(source, "2001:db8::1", "fe80::1", "ff02::1")) <= {
        "ENETUNREACH",
        "EADDRNOTAVAIL",
        "EINVAL",
    }


def test_a_datagram_does_not_arrive(told, listeners):
    udp = listeners["udp"]
    assert isinstance(udp, socket.socket)
    source = """
    import socket
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    tell([sock.sendto(b"x", ("127.0.0.1", int(sys.argv[1]))), attempt(sock.sendto, b"x", ("255.255.255.255", 9))])
    """
    sent, broadcast = told(source, str(udp.getsockname()[1]))
    assert sent == 1
    assert broadcast in {"EACCES", "ENETUNREACH"}
    with pytest.raises(BlockingIOError):
        udp.recv(10)


def test_unix_sockets_of_the_host_cannot_be_reached(told, listeners):
    source = CONNECT + (
        "tell([connected(socket.AF_UNIX, socket.SOCK_STREAM, '\\0' + sys.argv[1]),"
        " connected(socket.AF_UNIX, socket.SOCK_STREAM, sys.argv[2])])"
    )
    assert told(source, listeners["abstract"], listeners["path"]) == ["ECONNREFUSED", "ENOENT"]


def test_the_reservation_of_ids_cannot_be_reached(told):
    """Core of real root holds an abstract socket by this name."""
    source = CONNECT + "tell(connected(socket.AF_UNIX, socket.SOCK_SEQPACKET, '\\0ramet-ids-0'))"
    assert told(source) == "ECONNREFUSED"


def test_the_only_interface_is_a_loopback_that_works(told):
    source = """
    import socket
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        client.send(b"ping")
        said = peer.recv(10).decode()
        peer.close()
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        address = server.getsockname()[0]
    tell([[name for _, name in socket.if_nameindex()], said, address, sorted(os.listdir("/proc/net/dev_snmp6"))])
    """
    assert told(source) == [["lo"], "ping", "::1", ["lo"]]


def test_neither_interfaces_nor_routes_can_be_added(told):
    source = """
    import fcntl, socket, struct
    def request(kind, flags, payload):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            sock.bind((0, 0))
            sock.send(struct.pack("<IHHII", 16 + len(payload), kind, flags, 1, 0) + payload)
            answer = sock.recv(4096)
            code = -struct.unpack_from("<i", answer, 16)[0]
            return errno.errorcode.get(code, str(code))
    # A dummy link; the loopback down; an address; a default route by it.
    info = struct.pack("<HH", 12, 18) + struct.pack("<HH", 9, 1) + b"dummy\\0\\0\\0"
    link = struct.pack("<BxHiII", 0, 0, 0, 0, 0) + info
    down = struct.pack("<BxHiII", 0, 0, 1, 0, 1)
    address = struct.pack("<BBBBI", 2, 24, 0, 0, 1) + struct.pack("<HH4s", 8, 2, bytes([10, 0, 0, 2]))
    route = struct.pack("<BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("<HHI", 8, 4, 1)
    answers = [request(16, 0x605, link), request(16, 5, down), request(20, 0x605, address), request(24, 0x605, route)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answers.append(attempt(fcntl.ioctl, sock, 0x8914, struct.pack("<16sh", b"lo", 0)))
        answers.append(attempt(fcntl.ioctl, sock, 0x8916, struct.pack("<16sHH4s8x", b"lo", 2, 0, bytes(4))))
    tell(answers)
    """
    assert told(source) == ["EPERM"] * 6


def test_two_sandboxes_bind_the_same_port_and_do_not_meet():
    both = threading.Barrier(2, timeout=20)
    said: list[str] = []
    source = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", 4711))
named = socket.socket(socket.AF_UNIX)
named.bind("\\0the-same")
print("bound", flush=True)
sys.stdin.read()
server.setblocking(False)
try:
    server.accept()
    print("met")
except BlockingIOError:
    print("alone")
"""

    def run() -> None:
        with Client() as client:
            arrived = threading.Event()

            def bound(_: bytes) -> None:
                if not arrived.is_set():
                    arrived.set()
                    both.wait()

            said.append(client.run(["python3", "-c", source], stdin=b"", on_stdout=bound, timeout=20).stdout)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["bound\nalone\n"] * 2


def test_names_are_not_resolved(told):
    source = """
    import socket
    try:
        socket.getaddrinfo("example.com", 80)
        tell("resolved")
    except socket.gaierror as error:
        tell("unknown")
    """
    assert told(source) == "unknown"
    assert told("import socket; tell(socket.gethostbyname('localhost'))") == "127.0.0.1"
