"""Control frames that are none, or say too much: refused by name, without effect; the connection goes on."""

import itertools
import os
import random
import select
import socket
import struct

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _payloads
from system.core._core import Core, until

REQUEST = 4711
NO_STREAMS = (None, None, None)


def header(
    kind: int = p.STATUS,
    *,
    magic: int = p.FRAME_MAGIC,
    version: int = p.PROTOCOL_VERSION,
    length: int = 0,
    fds: int = 0,
    flags: int = 0,
) -> bytes:
    return struct.pack("<IHHQIHH", magic, version, kind, REQUEST, length, fds, flags)


def framed(kind: int, payload: bytes) -> bytes:
    return header(kind, length=len(payload)) + payload


def run_with(more: bytes) -> bytes:
    return framed(p.RUN, _payloads.plan(5) + _payloads.command(["true"], streams=NO_STREAMS) + more)


@pytest.fixture(scope="module")
def core(shared: Core) -> Core:
    return shared


def is_at_rest(core: Core) -> bool:
    """Entries and mounts are made ahead some milliseconds after the last request; none for longer now."""
    before = core.descriptors()
    select.select([], [], [], 0.012)
    return core.descriptors() == before


def refused(core: Core, data: bytes, fds: tuple[int, ...] = (), *, request: int = REQUEST) -> tuple[str, str]:
    """Send these bytes; the code and field of the refusal, after which everything is as it was."""
    until(lambda: is_at_rest(core), "a core that makes nothing ahead")
    before = core.control.status()
    socket_fds = core.descriptors()
    if fds:
        socket.send_fds(core.control.sock, [data], list(fds))
    else:
        core.control.sock.send(data)
    answer = core.control.answer(request) if request else core.control.receive()
    assert answer is not None
    assert answer.request == request
    code, step, number, field = answer.error
    assert (step, number) == ("none", 0)
    assert core.control.listing() == {}
    assert core.control.status() == before
    assert core.descriptors() == socket_fds
    return code, field


@pytest.fixture(autouse=True)
def usable_afterwards(core):
    core.settle()
    yield
    assert core.run(["true"]).answer.exit_code == 0
    assert not core.control.events


@pytest.mark.parametrize("size", [1, 4, 23])
def test_fewer_bytes_than_a_header(core, size):
    assert refused(core, header()[:size], request=0) == ("malformed", "frame")


def test_another_magic_number(core):
    assert refused(core, header(magic=1), request=0) == ("malformed", "magic")


def test_another_version(core):
    assert refused(core, header(version=2)) == ("version", "")


def test_an_unknown_kind(core):
    for kind in (0, 63, p.OK, p.READY, p.INIT_RUN, p.INIT_EXITED, 65535):
        assert refused(core, header(kind)) == ("malformed", "kind")


def test_a_length_that_does_not_agree(core):
    assert refused(core, header(length=1)) == ("malformed", "length")
    assert refused(core, header() + b"x") == ("malformed", "length")
    assert refused(core, header(length=p.PAYLOAD_MAX + 1)) == ("malformed", "length")


def test_a_message_longer_than_a_frame(core):
    size = p.FRAME_BYTES + 1 - frames.HEADER.size
    assert refused(core, header(length=size) + bytes(size)) == ("malformed", "length")


def test_unknown_flags(core):
    assert refused(core, header(flags=2)) == ("malformed", "flags")


def test_descriptors_that_were_not_announced_or_did_not_come(core):
    assert refused(core, header(), (0,)) == ("malformed", "fds")
    assert refused(core, header(fds=1)) == ("malformed", "fds")
    assert refused(core, header(fds=1), (0, 1)) == ("malformed", "fds")


def test_more_descriptors_than_a_frame_carries(core):
    fds = (0,) * (p.FRAME_FDS + 20)
    assert refused(core, header(fds=len(fds)), fds) == ("malformed", "length")


def test_a_payload_file_that_can_still_change(core):
    memory = os.memfd_create("payload", os.MFD_ALLOW_SEALING)
    os.write(memory, bytes(64))
    assert refused(core, header(length=64, flags=p.FLAG_PAYLOAD_FD), (memory,)) == ("malformed", "payload")
    os.close(memory)


@pytest.mark.parametrize(
    "more, field",
    [
        (b"x", "payload"),
        (b"\x1e\0\0\0\xff\xff\xff\xff", "payload"),
        (frames.ATTR.pack(p.TAG_ENV, 1, 0), "payload"),
        (frames.u32(9999, 1), "payload"),
        (frames.u32(p.TAG_ROOT, 1), "payload"),
        (frames.raw(p.TAG_BYTES, b"12345678"), "payload"),
        (frames.text(p.TAG_BIND, "/usr"), "payload"),
        (frames.raw(p.TAG_ARG, b"a\0b"), "arg"),
        (frames.raw(p.TAG_ENV, b"novalue"), "env"),
        (frames.raw(p.TAG_ENV, b"A=\0"), "env"),
        (frames.u32(p.TAG_STDIN, 0), "stdin"),
        (frames.u32(p.TAG_STDOUT, 63), "stdout"),
        (frames.raw(p.TAG_RLIMIT, struct.pack("<IIQQ", 99, 0, 1, 1)), "rlimit"),
        (frames.raw(p.TAG_RLIMIT, struct.pack("<IIQQ", 7, 0, 2, 1)), "rlimit"),
        (frames.raw(p.TAG_RLIMIT, b""), "rlimit"),
        (frames.raw(p.TAG_STDERR, b"\0"), "stderr"),
    ],
    ids=itertools.count(),
)
def test_a_plan_with_a_bad_attribute(core, more, field):
    assert refused(core, run_with(more)) == ("malformed", field)


@pytest.mark.parametrize(
    "tag", [p.TAG_SANDBOX, p.TAG_ROOT, p.TAG_FILTER, p.TAG_DISK_BYTES, p.TAG_DISK_INODES]
)
def test_a_plan_without_what_it_needs(core, tag):
    names = {p.TAG_DISK_BYTES: "disk", p.TAG_DISK_INODES: "disk"}
    payload = _payloads.plan(5) + _payloads.command(["true"], streams=NO_STREAMS)
    kept = b"".join(frames.raw(one, value) for one, value in frames.decode(payload) if one != tag)
    assert refused(core, framed(p.RUN, kept)) == ("malformed", names.get(tag, p.TAG_NAMES[tag].lower()))


def test_a_command_without_a_word(core):
    assert refused(core, framed(p.RUN, _payloads.plan(5))) == ("malformed", "arg")


def test_a_create_takes_no_command(core):
    payload = _payloads.plan(5) + _payloads.command(["true"], streams=NO_STREAMS)
    assert refused(core, framed(p.CREATE, payload)) == ("malformed", "payload")


@pytest.mark.parametrize(
    "entry",
    [
        frames.raw(p.TAG_DIR, b"abc"),
        _payloads.directory("relative"),
        _payloads.directory("/a/../b"),
        _payloads.directory("/a\0b"),
        frames.raw(p.TAG_LINK, struct.pack("<I", 99) + b"/a"),
        frames.raw(p.TAG_LINK, struct.pack("<I", 0) + b"/a"),
        frames.raw(p.TAG_FILE, struct.pack("<II", 0o644, 99) + b"/a"),
        frames.raw(p.TAG_FILE, b"1234567"),
        frames.raw(p.TAG_BIND, b"short"),
        frames.raw(p.TAG_BIND, struct.pack("<III", 1, p.FD_NONE, 99) + b"/usr/usr"),
        _payloads.bind("/usr", "/usr", flags=128),
        _payloads.bind("/usr", "/"),
        _payloads.bind("usr", "/usr"),
        _payloads.bind("", "/usr", index=0),
        _payloads.layer("", index=7),
        _payloads.layer("not/absolute"),
        frames.raw(p.TAG_LAYER, b"123"),
    ],
    ids=itertools.count(),
)
def test_a_root_with_a_bad_entry(core, entry):
    code, field = refused(core, framed(p.DEFINE_ROOT, frames.u32(p.TAG_ROOT, 8) + entry))
    assert (code, field) == ("malformed", "root")


def test_a_root_without_a_number_or_with_one_that_is_taken(core):
    assert refused(core, framed(p.DEFINE_ROOT, _payloads.directory("/a"))) == ("malformed", "root")
    assert refused(core, framed(p.DEFINE_ROOT, frames.u32(p.TAG_ROOT, 0))) == ("malformed", "root")
    assert refused(core, framed(p.DEFINE_ROOT, frames.u32(p.TAG_ROOT, _payloads.ROOT))) == (
        "malformed",
        "root",
    )


def test_a_skeleton_entry_does_not_follow_an_earlier_link_out_of_it(core):
    payload = frames.u32(p.TAG_ROOT, 8) + _payloads.link("/out", "/") + _payloads.directory("/out/made")
    code, step, _, _ = core.control.ask(p.DEFINE_ROOT, payload).error
    assert (code, step) == ("isolation_failed", "root_skeleton")
    payload = frames.u32(p.TAG_ROOT, 8) + _payloads.link("/file", "/etc/x") + _payloads.file("/file", b"x")
    code, step, _, _ = core.control.ask(p.DEFINE_ROOT, payload).error
    assert (code, step) == ("isolation_failed", "root_skeleton")


def test_more_binds_than_a_root_may_have(core):
    entries = _payloads.directory("/a") + _payloads.bind("/usr", "/a") * (p.BINDS_MAX + 1)
    assert refused(core, framed(p.DEFINE_ROOT, frames.u32(p.TAG_ROOT, 8) + entries)) == ("malformed", "root")


@pytest.mark.parametrize(
    "kind, payload",
    [
        (p.DROP_ROOT, frames.u32(p.TAG_FILTER, 1)),
        (p.DROP_ROOT, frames.u32(p.TAG_ROOT, 1) + frames.u32(p.TAG_ROOT, 1)),
        (p.KILL, frames.u64(p.TAG_SANDBOX, 1) + frames.u32(p.TAG_ROOT, 1)),
        (p.KILL, frames.raw(p.TAG_SANDBOX, b"123")),
        (p.SET_POOL, frames.raw(p.TAG_POOL_SIZE, b"")),
        (p.RECORD, b"\0"),
        (p.SHUTDOWN, frames.u32(p.TAG_ROOT, 1)),
        (p.LIST, frames.u32(p.TAG_ROOT, 1)),
        (p.STATUS, frames.u32(p.TAG_ROOT, 1)),
        (p.HELLO, frames.u32(p.TAG_ROOT, 1)),
    ],
    ids=itertools.count(),
)
def test_a_small_request_with_what_it_does_not_take(core, kind, payload):
    code, _ = refused(core, framed(kind, payload))
    assert code == "malformed"


def test_a_number_too_large_for_a_root_names_none(core):
    answer = core.control.ask(p.DROP_ROOT, frames.u64(p.TAG_ROOT, 2**32 + _payloads.ROOT))
    assert answer.error[0] in {"malformed", "unknown_root"}
    assert core.control.status().u32(p.TAG_ROOTS) == 1


def test_the_kernel_judges_a_filter_when_it_is_used_and_nothing_runs_without(core):
    """An instruction that is none: core does not interpret programs, a command under it does not start."""
    nonsense = frames.u32(p.TAG_FILTER, 50) + frames.raw(p.TAG_BYTES, b"\xff" * 8)
    core.control.ok(p.DEFINE_FILTER, nonsense)
    result = core.shell("echo ran", filter_id=50)
    assert result.answer.error == ("isolation_failed", "seccomp", 22, "")
    assert result.stdout == b""


def test_noise_of_every_kind_is_survived(core):
    """Random frames with a right header: each is answered, the last request as well as the first."""
    noise = random.Random(1)
    for _ in range(2000):
        kind = noise.choice([n for n in p.KIND_NAMES if n != p.SHUTDOWN])
        payload = noise.randbytes(noise.randrange(0, 64))
        if noise.random() < 0.5:
            payload = b"".join(
                frames.raw(noise.choice(list(p.TAG_NAMES)), noise.randbytes(noise.choice([0, 1, 4, 8, 24])))
                for _ in range(noise.randrange(1, 6))
            )
        core.control.sock.send(framed(kind, payload))
        answer = core.control.answer(REQUEST)
        if kind == p.LIST and not payload:
            continue
        if kind not in {p.HELLO, p.STATUS, p.SET_POOL} or payload:
            assert answer.kind in {p.ERROR, p.OK}
    core.control.ok(p.SET_POOL, frames.u32(p.TAG_POOL_SIZE, core.options.pool))
