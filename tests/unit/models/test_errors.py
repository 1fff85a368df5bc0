"""Errors keep their class and parts across processes, and every class has its place in the drawn tree."""

import json
import pickle

import pytest

import ramet
from ramet import errors
from ramet.models.results import CommandResult

SAMPLES = [
    errors.InvalidRequest.of("cwd", "is relative", hint="give an absolute one"),
    errors.LimitUnsupported("limit_unsupported", "no memory limit", field="limits.memory"),
    errors.IsolationError("isolation_failed", "pivot_root: no", step="pivot_root", errno=22),
    errors.Unforkable("pid 2 sh: fd 9 is a lock", pid=2, process="sh", what="fd 9 is a lock"),
    errors.SandboxEnded("dead", sandbox="abc", reason="signal", exit_code=139, signal="SIGSEGV"),
    errors.WaitTimeout("wait_timeout", "not yet"),
    errors.SnapshotError("snapshot_in_use", "in use", snapshot="base", hint="remove those first"),
    errors.SnapshotDamaged("snapshot_damaged", "block 17 of pages", snapshot="base"),
    errors.SnapshotUnusable("vdso_differs", "another kernel", snapshot="base"),
    errors.DaemonLost("daemon_lost", "gone"),
    errors.DaemonStartError("daemon_start_failed", "no"),
    errors.ProtocolMismatch("protocol_mismatch", "1 and 2"),
    errors.InternalError("internal", "a defect"),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_the_class_it_left_as(error):
    again = errors.RametError.from_wire(json.loads(json.dumps(error.to_wire())))
    assert type(again) is type(error)
    assert again.to_wire() == error.to_wire()
    assert str(again) == str(error)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.to_wire() == error.to_wire()


def test_an_error_of_an_unknown_class_becomes_the_root_of_the_tree():
    error = errors.RametError.from_wire({"type": "FutureError", "code": "future", "message": "m"})
    assert type(error) is errors.RametError
    assert error.code == "future"


def test_absent_parts_are_left_out_of_the_wire():
    assert errors.DaemonLost("c", "m").to_wire() == {"type": "DaemonLost", "code": "c", "message": "m"}


def test_the_hint_is_part_of_what_people_read_but_not_of_the_message():
    error = errors.InvalidRequest.of("cwd", "is relative", hint="do this")
    assert error.message == "cwd: is relative"
    assert str(error) == "cwd: is relative (do this)"


def test_a_failed_command_carries_its_result_through_pickling():
    error = errors.CommandFailed("failed", CommandResult(exit_code=3))
    assert pickle.loads(pickle.dumps(error)).result.exit_code == 3


def test_the_drawn_tree_shows_every_class_under_its_parent():
    depth = {}
    for line in (errors.__doc__ or "").splitlines():
        words = line.lstrip(" │├└─").split()
        if words and hasattr(errors, words[0]):
            depth[words[0]] = len(line) - len(line.lstrip(" │├└─"))
    classes = {name: getattr(errors, name) for name in errors.__all__}
    assert depth.keys() == classes.keys()
    for name, cls in classes.items():
        if name != "RametError":
            assert depth[cls.__mro__[1].__name__] < depth[name]


def test_every_error_of_the_tree_is_a_public_name():
    assert set(errors.__all__) <= set(ramet.__all__)
    assert all(getattr(ramet, name) is getattr(errors, name) for name in errors.__all__)
