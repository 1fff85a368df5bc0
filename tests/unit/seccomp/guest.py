"""What tests run under a filter. A program of its own: the test process stays free of filters and of forks.

    guest.py FILTER exec COMMAND…   confine, then run COMMAND
    guest.py FILTER calls           confine, then do the system calls given on standard input as JSON
                                    [[number, argument…], …]; writes a JSON list of errnos, 0 for success
    guest.py FILTER attack          become pid 1 of a namespace; do such calls in a child, first without the
                                    filter, then with it; writes {"free": […], "confined": […]}, or exits
                                    with 77 where there are no user namespaces

FILTER is a file with the program; it is installed as core does: no_new_privs, the filter, nothing after.
"""

import ctypes
import json
import os
import sys

PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
NO_NAMESPACES = 77

LIBC = ctypes.CDLL(None, use_errno=True)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def confine(code):
    instructions = ctypes.create_string_buffer(code, len(code))
    program = Program(len(code) // 8, ctypes.addressof(instructions))
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def call(number, *arguments):
    """The errno of a system call, 0 when it succeeded."""
    ctypes.set_errno(0)
    words = [ctypes.c_ulong(word % 2**64) for word in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    return ctypes.get_errno() if LIBC.syscall(ctypes.c_long(number), *words) == -1 else 0


def in_child(calls, code):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if code:
            confine(code)
        os.write(writer, json.dumps([call(*each) for each in calls]).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        results = json.loads(answer.read())
    os.waitpid(child, 0)
    return results


def attack(calls, code):
    if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0:
        return NO_NAMESPACES
    init = os.fork()
    if init == 0:
        free = in_child(calls, b"")
        json.dump({"free": free, "confined": in_child(calls, code)}, sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])


def main():
    with open(sys.argv[1], "rb") as file:
        code = file.read()
    if sys.argv[2] == "exec":
        confine(code)
        os.execvp(sys.argv[3], sys.argv[3:])
    calls = json.load(sys.stdin)
    if sys.argv[2] == "attack":
        sys.exit(attack(calls, code))
    confine(code)
    json.dump([call(*each) for each in calls], sys.stdout)


if __name__ == "__main__":
    main()
