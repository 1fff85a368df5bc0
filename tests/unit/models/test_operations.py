"""The table of operations: what each answers arrives as it left."""

import json

import pytest

from ramet.errors import InvalidRequest
from ramet.models.commands import SandboxLane
from ramet.models.events import Event, EventBatch
from ramet.models.forks import ForkLaneInfo, ForkReport
from ramet.models.lineage import LineageNode, LineageTree
from ramet.models.operations import OPERATIONS
from ramet.models.runs import LaneInfo, RunEnd
from ramet.models.sandboxes import ForkWay, SandboxInfo, SandboxList
from ramet.models.snapshots import Snapshot, SnapshotList
from ramet.models.status import CoreStatus, DaemonStatus, Empty, Finding, Pong, Report


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


def test_a_report_with_a_failed_check_is_not_ok():
    assert Report((Finding("a", "warn", ""),)).ok
    assert not Report((Finding("a", "pass", ""), Finding("b", "fail", ""))).ok
