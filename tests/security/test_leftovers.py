"""What the kernel keeps for a sandbox serves the next one only if it is as good as new."""

import fcntl
import os
from collections.abc import Callable
from typing import Any

import pytest

import ramet

ROUNDS = 24
GET_NETWORK = 0xFF04
"""PIDFD_GET_NET_NAMESPACE of ioctl(2), from Linux 6.11 on."""

# SO_NETNS_COOKIE: no two network namespaces ever have the same. The socket is gone before anything is read.
READ = r"""
import re, socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    cookie = int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, 71, 8), "little")
def counted():
    # Settings that the kernel lists among the counters: forwarding, a time to live, bounds of a timer.
    settings = {("Ip:", "Forwarding"), ("Ip:", "DefaultTTL"), *(("Tcp:", n) for n in ("RtoAlgorithm", "RtoMin", "RtoMax", "MaxConn"))}
    lines = open("/proc/net/snmp").read().splitlines()
    for names, values in zip(lines[::2], lines[1::2]):
        layer, *names = names.split()
        yield from (f"{layer}{n}" for n, v in zip(names, values.split()[1:]) if (layer, n) not in settings and v != "0")
    yield from (line.split()[0] for line in open("/proc/net/snmp6") if line.split()[1] != "0")
    yield from re.findall(r"lo:.*[1-9].*", open("/proc/net/dev").read())
    yield from open("/proc/net/ip6_flowlabel").read().splitlines()[1:]
"""  # noqa: E501  -- a program for the sandbox stays whole

USES = {
    "a packet": "import socket\na = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "a.bind(('127.0.0.1', 0))\na.sendto(b'x', a.getsockname())",
    "a packet of version 6": "import socket\na = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n"
    "a.bind(('::1', 0))\na.sendto(b'x', a.getsockname())",
    "a packet that goes nowhere": "import socket\na = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "attempt(a.sendto, b'x', ('192.0.2.1', 9))",
    "a connection": "import socket\na = socket.create_server(('127.0.0.1', 0))\n"
    "b = socket.create_connection(a.getsockname())\nb.close()",
    # IPV6_FLOWLABEL_MGR: get, and create, one that anybody may share and that lasts for a minute.
    "a flow label": "import socket, struct\na = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n"
    "one = socket.inet_pton(socket.AF_INET6, '::1') + struct.pack('>I', 0xabcde)"
    " + struct.pack('=BBHHHI', 0, 255, 1, 60, 60, 0)\nattempt(a.setsockopt, socket.IPPROTO_IPV6, 32, one)",
}


@pytest.fixture
def network_is_kept() -> None:
    """Skips where the kernel does not give a process's network namespace by its pidfd."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        os.close(fcntl.ioctl(pidfd, GET_NETWORK, 0))
    except OSError as error:
        pytest.skip(f"PIDFD_GET_NET_NAMESPACE: {error}")
    finally:
        os.close(pidfd)


def test_a_network_that_nobody_used_serves_again(told: Callable[..., Any], network_is_kept: None) -> None:
    cookies = [told(READ + "tell(cookie)") for _ in range(ROUNDS)]
    assert len({*cookies}) < ROUNDS


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_network_that_was_used_never_serves_again(told: Callable[..., Any], use: str) -> None:
    used = {told(f"{use}\n{READ}tell(cookie)") for _ in range(4)}
    after = [told(READ + "tell([cookie, *counted()])") for _ in range(ROUNDS)]
    assert not used & {cookie for cookie, *_ in after}
    assert [counts for _, *counts in after if counts] == []


def test_no_run_is_told_of_the_memory_that_others_took() -> None:
    for limit in ("64MiB", "512MiB"):
        hog = ramet.run("head -c 1G /dev/zero | tail", limits={"memory": limit}, timeout=30)
        assert hog.usage.oom_kills >= 1
    after = [ramet.run("true", timeout=30) for _ in range(ROUNDS)]
    assert max(one.usage.peak_memory_bytes for one in after) < 16 << 20
    assert {one.usage.oom_kills for one in after} == {0}
    assert {one.reason for one in after} == {"exit"}


def test_each_run_has_its_own_limits_whatever_the_one_before_had() -> None:
    line = "head -c 200M /dev/zero | tail | wc -c"
    for _ in range(ROUNDS // 4):
        small, large = (
            ramet.run(["sh", "-c", line], limits={"memory": limit}, timeout=30) for limit in ("64MiB", "1GiB")
        )
        assert small.usage.oom_kills >= 1
        assert (large.usage.oom_kills, large.stdout.strip()) == (0, str(200 << 20))
        many = ramet.run(
            "for i in 1 2 3 4 5 6; do sleep 5 & done; echo made", limits={"processes": 3}, timeout=30
        )
        assert "made" not in many.stdout
        enough = ramet.run("for i in 1 2 3 4 5 6; do sleep 0 & done; wait; echo made", timeout=30)
        assert enough.stdout.strip() == "made"
