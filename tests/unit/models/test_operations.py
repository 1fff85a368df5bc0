"""Requests check themselves, by the same words on both sides of the wire."""

import json
import subprocess
import sys

import pytest

from ramet.errors import InvalidRequest
from ramet.models.commands import SandboxLane
from ramet.models.events import Event, EventBatch
from ramet.models.limits import Limits
from ramet.models.lineage import LineageNode, LineageTree
from ramet.models.operations import (
    OPERATIONS,
    TEXT_MAX,
    CoreStatus,
    DaemonStatus,
    Empty,
    Finding,
    LaneInfo,
    LaneRequest,
    Pong,
    Python,
    Report,
    RunEnd,
    RunRequest,
)
from ramet.models.sandboxes import (
    ForkLaneInfo,
    ForkReport,
    ForkWay,
    SandboxInfo,
    SandboxList,
    Snapshot,
    SnapshotList,
)


def across_the_wire(request):
    return RunRequest.from_wire(json.loads(json.dumps(request.to_wire())))


def test_text_is_a_line_for_the_shell_and_a_sequence_is_a_program():
    assert RunRequest.of("echo hi").argv == ("/bin/sh", "-c", "echo hi")
    assert RunRequest.of(["echo", b"\xff"]).argv == ("echo", "\udcff")
    assert RunRequest.of(iter(["echo"])).argv == ("echo",)


def test_a_request_arrives_as_it_left(tmp_path):
    request = RunRequest.of(
        ["echo", b"\xff"],
        timeout=0.25,
        env={"A": "b=c"},
        cwd="/tmp//x/.",
        root=tmp_path,
        limits={"disk": "64M"},
        python=Python("/usr/bin/python3", "/usr", "/usr"),
        streams=(0, 1, 2),
    )
    assert across_the_wire(request) == request
    assert request.cwd == "/tmp/x"
    assert request.limits == Limits(disk="64M", wall=0.25)


def test_a_plain_request_is_short_on_the_wire():
    assert RunRequest.of("true").to_wire() == {"argv": ("/bin/sh", "-c", "true")}


@pytest.mark.parametrize(
    "field, arguments",
    [
        ("command", {"command": ""}),
        ("command", {"command": "  \n"}),
        ("command", {"command": []}),
        ("command", {"command": [""]}),
        ("command", {"command": b"true"}),
        ("command", {"command": {"true": 1}}),
        ("command", {"command": 3}),
        ("command", {"command": None}),
        ("command", {"command": ["a", 3]}),
        ("command", {"command": "a\0b"}),
        ("command", {"command": ["a", "b\0"]}),
        ("command", {"command": ["a", "x" * (TEXT_MAX + 1)]}),
        ("command", {"command": ["a", "é" * (TEXT_MAX // 2 + 1)]}),
        ("command", {"command": ["a", *["x" * 100_000] * 70]}),
        ("env", {"env": {"A": "\0"}}),
        ("env", {"env": {"": "x"}}),
        ("env", {"env": {"A=B": "x"}}),
        ("env", {"env": {"A": 3}}),
        ("env", {"env": {3: "A"}}),
        ("env", {"env": ["A"]}),
        ("env", {"env": {"A": "x" * TEXT_MAX}}),
        ("cwd", {"cwd": "relative"}),
        ("cwd", {"cwd": ""}),
        ("cwd", {"cwd": "/a/../b"}),
        ("cwd", {"cwd": "/a\0"}),
        ("cwd", {"cwd": "/" + "x" * 300}),
        ("cwd", {"cwd": "/x" * 3000}),
        ("root", {"root": "/does/not/exist"}),
        ("root", {"root": "/etc/passwd"}),
        ("root", {"root": "relative"}),
        ("timeout", {"timeout": -1}),
        ("timeout", {"timeout": 0}),
        ("timeout", {"timeout": float("nan")}),
        ("timeout", {"timeout": float("inf")}),
        ("timeout", {"timeout": 1e12}),
        ("timeout", {"timeout": [1]}),
        ("limits.memory", {"limits": {"memory": "1K"}}),
        ("limits.disk", {"limits": {"disk": -1}}),
        ("limits", {"limits": 3}),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(field, arguments):
    with pytest.raises(InvalidRequest) as caught:
        RunRequest.of(**{"command": "true", **arguments})
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize(
    "data, field",
    [
        ({}, "command"),
        ({"argv": "true"}, "command"),
        ({"argv": ["true"], "colour": 1}, "colour"),
        ({"argv": ["true"], "python": ["/usr"]}, "python"),
        ({"argv": ["true"], "streams": 5}, "streams"),
        ({"argv": ["true"], "streams": [3]}, "streams"),
        ({"argv": ["true"], "streams": [1, 1]}, "streams"),
        ({"argv": ["true"], "streams": [True]}, "streams"),
        ({"argv": ["true"], "fault": 5}, "fault"),
        ({"argv": ["true"], "limits": {"wall": "x"}}, "limits.wall"),
    ],
)
def test_a_malformed_request_on_the_wire_is_refused_by_name(data, field):
    with pytest.raises(InvalidRequest) as caught:
        RunRequest.from_wire(data)
    assert caught.value.field == field


def test_the_longest_string_that_linux_takes_is_taken():
    assert RunRequest.of(["a", "x" * TEXT_MAX])
    assert RunRequest.of("true", env={"A": "x" * (TEXT_MAX - 2)})


def test_an_operation_without_arguments_refuses_any():
    assert Empty.from_wire({}) == Empty()
    with pytest.raises(InvalidRequest) as caught:
        Empty.from_wire({"force": True})
    assert caught.value.field == "force"


def sandbox_results():
    end = RunEnd(3, "exit", None, 1.5, 0.5, 1.0, 2.0, 3, 4, single_uid=True, lingering=False)
    running = SandboxInfo(
        "abc", "web", "running", 2, ("a", "b"), 1.5, parent="def", pause_ms=1.5, by_twin=True,
        ways=ForkWay.parse("2 twin - 0 a name\n3 copied has_parent 4096 \n"),
    )  # fmt: skip
    ended = SandboxInfo("abc", None, "ended", 2, ("a",), 1.5, ended=2.5, end=end, note="by request", ttl=3.0)
    point = Snapshot("point", "abc", 1.5, 0.5, 4096, 0, stem_ms=1.5, ways=running.ways)
    return {
        "sandbox.create": running,
        "sandbox.fork": ForkReport(1.5, 4096, 0, by_twin=False, errors=((3, {"code": "busy"}),)),
        "sandbox.lane": ForkLaneInfo("c0de", 7, "AAAA", running, {"origin": {}}, ahead=True, told=True),
        "sandbox.snapshot": point,
        "sandbox.kill": ended,
        "sandbox.list": SandboxList((running, ended)),
        "sandbox.attach": running,
        "sandbox.begin": running,
        "sandbox.rollback": running,
        "sandbox.promote": running,
        "sandbox.commands": SandboxLane("c0de", 7, {"HOME": "/"}, "/", single_uid=True, limits={"disk": 5}),
        "events": EventBatch((Event("c0de-1", 1.5, "ended", sandbox="abc", reason="oom"),), "c0de-1"),
        "lineage": LineageTree((LineageNode("abc", "sandbox", "web", None, 1.5),), "made anew"),
        "snapshot.list": SnapshotList((point,)),
        "snapshot.compact": point,
        "snapshot.import": point,
        "snapshot.pack": point,
        "snapshot.unpack": point,
        "snapshot.remove": point,
    }


def test_no_name_of_a_process_is_taken_for_more_than_a_name():
    names = ["", "two words", "\u2028\x85", "9 twin - 0 x"]
    ways = ForkWay.parse("".join([f"{pid} frozen exec 8192 {name}\n" for pid, name in enumerate(names)]))
    assert ways == tuple([(pid, name, "frozen", "exec", 8192) for pid, name in enumerate(names)])


def test_every_result_of_the_table_arrives_as_it_left():
    core = CoreStatus(1, "c0de", "0.1", 1, "single", 8, 7, 0, 1, 2, 3, 0.5)
    samples = {
        "run": RunEnd(139, "signal", "SIGSEGV", 1.5, 0.5, 1.0, 2.0, 3, 4, single_uid=True, lingering=False),
        "status": DaemonStatus(1, "0.1", 1, 1.0, 0.5, 1, 0, "/run", core, (core,)),
        "lane": LaneInfo("c0de", "AAAA", {"HOME": "/home/user"}, "/home/user", single_uid=True),
        "ping": Pong("0.1", 1),
        "shutdown": Pong("0.1", 1),
        "hand_over": Pong("0.1", 1),
        "doctor": Report((Finding("kernel", "pass", "6.1"),)),
    }
    samples |= sandbox_results()
    assert samples.keys() == OPERATIONS.keys()
    for name, result in samples.items():
        assert OPERATIONS[name].result.from_wire(json.loads(json.dumps(result.to_wire()))) == result


def test_only_operations_that_start_nothing_may_be_sent_again():
    once = {name for name, operation in OPERATIONS.items() if not operation.idempotent}
    made = {f"sandbox.{name}" for name in ("begin", "create", "fork", "promote", "rollback", "snapshot")}
    kept = {f"snapshot.{name}" for name in ("import", "pack", "remove", "unpack")}
    assert once == {"run", *made, *kept, "events"}


def test_a_run_needs_nothing_of_what_is_told_of_sandboxes():
    """Its start would pay for their classes."""
    program = "import sys, ramet.client; ramet.client.run; sys.exit('ramet.models.sandboxes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_report_with_a_failed_check_is_not_ok():
    assert Report((Finding("a", "warn", ""),)).ok
    assert not Report((Finding("a", "pass", ""), Finding("b", "fail", ""))).ok


def test_a_request_for_a_lane_arrives_as_it_left_and_what_is_wrong_in_it_is_named():
    asked = LaneRequest(Python("/usr/bin/python3", "/usr", "/usr"), Limits.of({"disk": "9M"}), socket=False)
    assert LaneRequest.from_wire(json.loads(json.dumps(asked.to_wire()))) == asked
    for field, wrong in {"socket": 1, "python": ["x"], "more": 1}.items():
        with pytest.raises(InvalidRequest) as caught:
            LaneRequest.from_wire({field: wrong})
        assert caught.value.field == field


def test_of_a_timeout_and_the_limit_wall_the_smaller_counts():
    assert RunRequest.of("x", timeout=5, limits={"wall": 0.5}).limits.wall == 0.5
    assert RunRequest.of("x", timeout=0.5, limits={"wall": 5}).limits.wall == 0.5
    assert RunRequest.of("x", timeout=600).limits.wall == 600


def test_half_of_a_character_is_refused_by_name():
    with pytest.raises(InvalidRequest) as caught:
        RunRequest.of(["true", "\ud800"])
    assert caught.value.field == "command"
