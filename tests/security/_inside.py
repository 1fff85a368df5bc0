"""Runs inside a sandbox, before the source of a test: system calls by number, and how to tell what came."""

import ctypes
import errno
import json
import os
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
HELD = []  # what the kernel was given pointers to


def word(value):
    """An argument as the register it goes into: text as a pointer to it, a list as one to that many bytes."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, list):
        value = bytes(value)
    if isinstance(value, bytes):
        HELD.append(ctypes.create_string_buffer(value, len(value) + 1))
        value = ctypes.addressof(HELD[-1])
    return ctypes.c_ulong(value % 2**64)


def call(number, *arguments):
    """What the system call returned, -errno when it failed."""
    words = [word(each) for each in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    answer = LIBC.syscall(ctypes.c_long(number), *words)
    return -ctypes.get_errno() if answer == -1 else answer


def outcome(number, *arguments):
    """The name of the errno of a system call, "" when it succeeded."""
    answer = call(number, *arguments)
    return errno.errorcode.get(-answer, str(answer)) if answer < 0 else ""


def attempt(function, *arguments):
    """The name of the errno that a Python call raised, "" when it succeeded."""
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return ""


def opened(path, flags=os.O_RDONLY):
    """As `attempt`, for opening a file."""
    return attempt(lambda: os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)))


def read(path):
    """As `attempt`, for opening and reading a file; some refuse only the reader."""

    def read_once():
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            os.read(fd, 64)
        finally:
            os.close(fd)

    return attempt(read_once)


def written(path, data=b"0"):
    """As `attempt`, for writing to a file that exists."""

    def write():
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    return attempt(write)


def tell(value):
    json.dump(value, sys.stdout)
    sys.stdout.flush()
