"""Core lives for weeks: what a run takes it gives back."""

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _core, _payloads

RUNS = 1000
SLACK_KIB = 256


def resident(core: _core.Core) -> int:
    core.settle()
    return core.resident_kib()


def test_a_thousand_runs_leave_no_descriptor_and_no_memory(core):
    for _ in range(200):
        core.run(["true"])
    core.settle()
    descriptors, memory = core.descriptors(), resident(core)
    for _ in range(RUNS):
        assert core.run(["true"]).answer.exit_code == 0
    core.settle()
    assert core.descriptors() == descriptors
    if not _core.is_sanitized():  # it keeps what was freed for a while
        assert resident(core) <= memory + SLACK_KIB
    assert core.control.status().u64(p.TAG_RUNS) == RUNS + 200


@pytest.mark.parametrize("what", ["failing", "refused", "standing", "roots", "timeout", "malformed"])
def test_what_goes_wrong_leaves_nothing_either(core, what):
    def once(turn: int) -> None:
        if what == "failing":
            core.run(["true"], fault=p.STEP_PIVOT_ROOT)
        elif what == "refused":
            core.run(["true"], root=77)
        elif what == "standing":
            sandbox = core.create(record=b"x" * 1000)
            core.spawn(sandbox, ["true"])
            core.control.event(p.EXITED, sandbox)
            core.kill(sandbox)
        elif what == "roots":
            assert core.define(5).kind == p.OK
            core.control.ok(p.DROP_ROOT, frames.u32(p.TAG_ROOT, 5))
        elif what == "timeout":
            core.run(["sleep", "1000"], wall_s=0.001)
        else:
            core.control.ask(p.RUN, b"\0" * 50000)

    for turn in range(50):
        once(turn)
    core.settle()
    descriptors, memory = core.descriptors(), resident(core)
    for turn in range(200):
        once(turn)
    core.settle()
    assert core.descriptors() == descriptors
    if not _core.is_sanitized():
        assert resident(core) <= memory + SLACK_KIB


def test_mounts_of_dropped_roots_are_gone_and_their_places_are_used_again(core):
    """The store has room for a few thousand; many more roots than that are defined in a core's life."""
    payload = frames.u32(p.TAG_ROOT, 5) + b"".join(
        _payloads.directory(f"/{n}") + _payloads.bind("/usr", f"/{n}") for n in range(p.BINDS_MAX)
    )
    for _ in range(150):
        core.control.ok(p.DEFINE_ROOT, payload)
        core.control.ok(p.DROP_ROOT, frames.u32(p.TAG_ROOT, 5))
    assert core.run(["true"]).answer.exit_code == 0
