"""Makes children as the fork engine does: copies of a process that see the same pid, and no fork hook run.

Each is process 1 of a pid namespace of its own. Prints, for each child, a JSON list of first values.
Arguments: the file of the kernel, how many children, the seed or "none", and whether to do the duties.
"""

import ctypes
import importlib.util
import json
import os
import random
import signal
import socket
import ssl
import sys
import tempfile
import uuid

CLONE = 56
CLONE_NEWPID, CLONE_NEWUSER = 0x20000000, 0x10000000
FLAGS = CLONE_NEWPID | (0 if os.geteuid() == 0 else CLONE_NEWUSER) | signal.SIGCHLD
REFUSED = 77

try:
    import numpy as np
except ImportError:
    np = None


def clone():
    made = ctypes.CDLL(None, use_errno=True).syscall(CLONE, FLAGS, 0, 0, 0, 0)
    if made < 0:
        os._exit(REFUSED)
    return made


def first_values():
    import secrets

    values = {
        "urandom": os.urandom(8).hex(),
        "uuid4": str(uuid.uuid4()),
        "uuid1": str(uuid.uuid1()),
        "random": random.random(),
        "instance": instance.random(),
        "secrets": secrets.token_hex(8),
        "ssl": ssl.RAND_bytes(8).hex(),
        "tempfile": tempfile.mktemp(),
    }
    if np is not None:
        values["numpy"] = float(np.random.random())
        values["generator"] = float(generator.random())
        values["later generator"] = float(np.random.default_rng().random())
    return values


path, count, seed, duties = sys.argv[1:]
if clone():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))

assert os.getpid() == 1
spec = importlib.util.spec_from_file_location("ramet_kernel", path)
module = sys.modules["ramet_kernel"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
kernel = module._kernel = module.Kernel(theirs.detach())
kernel.install()
instance = random.Random()
generator = None if np is None else np.random.default_rng()
first_values()
for _ in range(int(count)):
    reading, writing = os.pipe()
    if clone() == 0:
        assert os.getpid() == 1
        if duties == "yes":
            number = None if seed == "none" else int(seed)
            kernel.forked({"epoch": 1, "sandbox": "sb", "hostname": "h", "seed": number, "env": {}})
            assert json.loads(ours.recv(1 << 16)[1:])["errors"] == []
        os.write(writing, json.dumps(first_values()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        print(answer.read(), flush=True)
    os.wait()
os._exit(0)
