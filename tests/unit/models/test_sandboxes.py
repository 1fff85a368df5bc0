"""Requests for sandboxes check themselves, and what is told of sandboxes can be read."""

import json

import pytest

from ramet.errors import InvalidRequest, LimitUnsupported
from ramet.models.creation import CreateRequest
from ramet.models.forks import FORK_MAX, ForkRequest
from ramet.models.limits import Limits
from ramet.models.names import near
from ramet.models.runs import Python, RunEnd
from ramet.models.sandboxes import KernelRef, ListRequest, SandboxInfo, SandboxRequest
from ramet.models.snapshots import SnapshotName, SnapshotRequest

END = RunEnd(3, "exit", None, 1.5, 0.5, 1.0, 2.0, 3, 4, single_uid=True, lingering=False)


@pytest.mark.parametrize(
    "request_",
    [
        CreateRequest.of("repl"),
        CreateRequest.of(
            ["a", b"\xff"],
            env={"A": "b"},
            cwd="/tmp",
            root="/",
            limits={"disk": "64M"},
            timeout=2.5,
            python=Python("/usr/bin/python3", "/usr", "/usr"),
            name="web",
            detach=True,
            ttl=60,
            keep_on=["timeout"],
            user="1000:1001",
        ),
        ForkRequest.of(sandbox="web"),
        ForkRequest.of(sandbox="web", n=FORK_MAX, limits={"disk": "64M", "wall": 3}, detach=True, ttl=7),
        ForkRequest.of(snapshot="point", names=["kid"], timeout=2.5, keep_on=["timeout"]),
        ForkRequest.of(
            sandbox="web",
            n=2,
            names=["a", "b"],
            limits=[{"disk": "1M"}, None],
            metadata=[{"step": "1"}, {"step": "2"}],
        ),
        CreateRequest.of(["python3"], kernel=KernelRef("python", "packets"), metadata={"a": "b"}),
        SnapshotRequest.of("web", "point"),
        SnapshotRequest.of("web", "point", {"template": {"pip": ["numpy"]}}),
        SandboxRequest("web"),
        SnapshotName("point"),
        ListRequest(ended=True),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_request_arrives_as_it_left(request_):
    assert type(request_).from_wire(json.loads(json.dumps(request_.to_wire()))) == request_


def test_a_deadline_is_only_what_was_asked_for():
    assert CreateRequest.of("x").timeout is None
    assert CreateRequest.of("x", limits={"disk": "1M"}).timeout is None
    assert CreateRequest.of("x", limits={"wall": 300}).timeout == 300
    assert CreateRequest.of("x", limits=Limits(wall=5)).timeout == 5
    assert CreateRequest.of("x", limits={"wall": 5}, timeout="2m").timeout == 5


def test_a_detached_sandbox_has_a_finite_time_to_live():
    assert CreateRequest.of("x").ttl is None
    assert CreateRequest.of("x", detach=True).ttl == 300
    assert CreateRequest.of("x", detach=True, ttl="10m").ttl == 600


@pytest.mark.parametrize(
    "make, field",
    [
        (ForkRequest.of, "sandbox"),
        (lambda: ForkRequest.of(sandbox="a", snapshot="b"), "sandbox"),
        (lambda: ForkRequest.of(sandbox="a/b"), "sandbox"),
        (lambda: ForkRequest.of(snapshot=""), "snapshot"),
        (lambda: ForkRequest.of(sandbox="a", n=FORK_MAX + 1), "n"),
        (lambda: ForkRequest.of(sandbox="a", n=2, names=["kid"]), "names"),
        (lambda: ForkRequest.of(sandbox="a", n=2, names="kid"), "names"),
        (lambda: ForkRequest.of(sandbox="a", n=2, names=["kid", "kid"]), "names"),
        (lambda: ForkRequest.of(sandbox="a", n=2, limits=[None]), "limits"),
        (lambda: ForkRequest.of(sandbox="a", metadata={"a": 1}), "metadata"),
        (lambda: ForkRequest.of(sandbox="a", metadata={"a": "x" * 20_000}), "metadata"),
        (lambda: ForkRequest.of(sandbox="a", metadata={"a": "\u00e9" * 3_000}), "metadata"),
        (lambda: SnapshotRequest.of("a", "b", {"a": object()}), "metadata"),
        (lambda: SnapshotRequest.of("a", "b", {"a": "x" * (5 << 20)}), "metadata"),
        (lambda: ForkRequest.from_wire({"sandbox": "a"}), "children"),
        (lambda: ForkRequest.from_wire({"sandbox": "a", "children": [1]}), "children"),
        (lambda: ForkRequest.from_wire({"sandbox": "a", "children": []}), "n"),
        (lambda: ForkRequest.from_wire({"sandbox": "a", "children": [{"colour": 1}]}), "colour"),
        (lambda: CreateRequest.from_wire({"run": {"argv": ["a"]}, "kernel": ["a", "b"]}), "kernel"),
        (lambda: SnapshotRequest.from_wire({"sandbox": "a", "name": "b", "metadata": 1}), "metadata"),
        (lambda: ForkRequest.of(sandbox="a", limits=[1]), "limits"),
        (lambda: ForkRequest.of(sandbox="a", limits={3: 1}), "limits"),
        (lambda: ForkRequest.of(sandbox="a", limits={"disk": 1}), "limits.disk"),
        (lambda: ForkRequest.of(sandbox="a", timeout=1e9), "timeout"),
        (lambda: ForkRequest.from_wire({"sandbox": "a", "colour": 1}), "colour"),
        (lambda: CreateRequest.from_wire({}), "run"),
        (lambda: CreateRequest.from_wire({"run": {"argv": ["a"], "streams": [0]}}), "run"),
        (lambda: CreateRequest.from_wire({"run": {"argv": ["a"], "fault": "x"}}), "run"),
        (lambda: CreateRequest.from_wire({"run": {"argv": ["a"]}, "detach": 1}), "detach"),
        (lambda: CreateRequest.from_wire({"run": {"argv": ["a"]}, "ttl": 5}), "ttl"),
        (lambda: CreateRequest.of("x", detach=True, ttl=1e9), "ttl"),
        (lambda: CreateRequest.of("x", timeout=1, keep_on="timeout"), "keep_on"),
        (lambda: CreateRequest.of("x", user="nobody"), "user"),
        (lambda: CreateRequest.of("x", keep_on=["oom", "timeout"]), "keep_on"),
        (lambda: CreateRequest.from_wire({"run": {"argv": ["a"]}, "keep_on": ["timeout"]}), "keep_on"),
        (
            lambda: ForkRequest.from_wire({"sandbox": "a", "children": [{}], "keep_on": ["timeout"]}),
            "keep_on",
        ),
        (lambda: SnapshotRequest.from_wire({"sandbox": "a"}), "name"),
        (lambda: SnapshotRequest.of("a", "../b"), "name"),
        (lambda: SnapshotRequest.of("a", "python"), "name"),
        (lambda: SandboxRequest.from_wire({}), "sandbox"),
        (lambda: SandboxRequest.from_wire({"sandbox": 3}), "sandbox"),
        (lambda: SnapshotName.from_wire({"name": "a b"}), "snapshot"),
        (lambda: ListRequest.from_wire({"ended": "yes"}), "ended"),
    ],
)
def test_a_wrong_argument_is_named(make, field):
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert caught.value.field == field


def test_a_limit_that_is_none_is_refused_for_a_fork_in_the_words_of_the_table():
    with pytest.raises(LimitUnsupported, match="no such limit") as caught:
        ForkRequest.of(sandbox="a", limits={"memory_mb": 100})
    assert caught.value.field == "limits.memory_mb"
    assert "memory" in caught.value.hint


def test_names_that_are_alike_are_suggested():
    assert near("before_risk", ["before-risk", "other"]) == "did you mean 'before-risk'?"
    assert near("x", ["before-risk"]) is None


@pytest.mark.parametrize(
    "end, note, words",
    [
        (None, None, ""),
        (END, None, "exit code 3"),
        (END._replace(reason="signal", signal="SIGSEGV"), None, "SIGSEGV"),
        (END._replace(reason="timeout"), None, "its time was up"),
        (END._replace(reason="killed"), "its owner went", "killed: its owner went"),
        (END._replace(reason="lost"), None, "lost: nobody said why"),
    ],
)
def test_an_end_is_told_in_a_few_words(end, note, words):
    info = SandboxInfo("abc", None, "ended", 2, ("a",), 0.0, end=end, note=note)
    assert info.how_it_ended() == words
    assert (info.to_dict()["end"] or {}).get("exit_code") == (3 if end else None)
