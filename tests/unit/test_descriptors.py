"""Descriptors that are sent while the user has many in flight."""

import errno
import os
import resource
import socket

import pytest

from ramet._descriptors import received, send_with


class Full:
    """A socket as the kernel has it for a process whose soft limit others have used up."""

    def __init__(self, sock: socket.socket, most: int, error: int = errno.ETOOMANYREFS) -> None:
        self.sock, self.most, self.error = sock, most, error

    def sendmsg(self, *arguments: object) -> int:
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= self.most:
            raise OSError(self.error, os.strerror(self.error))
        return self.sock.sendmsg(*arguments)


@pytest.fixture
def pair():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        yield near, far


@pytest.fixture
def soft_limit():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = before[1] - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_program_with_a_low_limit_sends_at_its_hard_one_and_keeps_its_own(pair, soft_limit):
    near, far = pair
    send_with(Full(near, soft_limit), b"x", [0])
    data, ancillary, _, _ = far.recvmsg(1, 100)
    descriptors = received(ancillary)
    for descriptor in descriptors:
        os.close(descriptor)
    assert (data, len(descriptors)) == (b"x", 1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft_limit


def test_what_is_refused_at_the_hard_limit_too_is_told(pair, soft_limit):
    with pytest.raises(OSError, match=os.strerror(errno.ETOOMANYREFS)):
        send_with(Full(pair[0], soft_limit + 1), b"x", [0])
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft_limit


def test_another_refusal_is_told_at_once(pair, soft_limit):
    with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
        send_with(Full(pair[0], soft_limit, errno.EPERM), b"x", [0])
