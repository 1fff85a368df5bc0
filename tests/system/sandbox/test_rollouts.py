"""Rollouts of real sandboxes: side by side, decided, and nothing left of them but what was to be kept."""

import asyncio
import gc

import pytest

import ramet
from _stepping import cancelled_at_each_await
from ramet.client import sandboxes
from system.sandbox._repl import PATIENCE_S


@pytest.fixture
def source():
    with ramet.Sandbox(command=["sleep", "10000"]) as made:
        made.files.write("/tmp/number", "0")
        yield made


def attempt(child):
    """Children differ by what was noted of them."""
    number = child.info.metadata["number"]
    child.files.write("/tmp/number", number)
    return child.commands.run(
        f"test {number} -eq 2 || sleep {1000 if number == '1' else 0}; test {number} -eq 2"
    )


NUMBERS = [{"number": str(number)} for number in range(3)]


def test_the_first_success_ends_a_command_that_hangs_and_its_files_are_taken_over(source):
    with ramet.rollouts(source, 3, attempt, first_success=True, metadata=NUMBERS) as found:
        assert [one.outcome for one in found.attempts][1:] == ["given_up", "success"]
        assert found.winner.value.ok
        assert {one.id for one in sandboxes.list()} == {source.id, found.sandbox.id}
        assert [change.path for change in found.committed] == ["/tmp/number"]
        assert source.files.read("/tmp/number") == "2"
    assert [one.id for one in sandboxes.list()] == [source.id]


def test_an_exception_leaves_no_child(source):
    def work(child):
        if child.info.metadata["number"] == "0":
            raise ValueError("no")
        return child.commands.run("sleep 1000")

    with pytest.raises(ValueError, match="no"):
        ramet.rollouts(source, 3, work, metadata=NUMBERS)
    nothing_but(source.id)


def nothing_but(kept):
    gc.collect()
    asyncio.run(_only(kept))


async def _only(*kept):
    async with asyncio.timeout(PATIENCE_S):
        while {one.id for one in sandboxes.list()} != {*kept}:  # noqa: ASYNC110  the daemon sees to it
            await asyncio.sleep(0.002)


async def test_rollouts_can_be_cancelled_at_any_await():
    async with ramet.AsyncSandbox(command=["sleep", "10000"]) as parent:

        async def work(child):
            # No command: core keeps the output of one that nobody heard the end of for a while.
            await child.files.write("/tmp/done", "done")
            return True

        async def session(_):
            async with await ramet.arollouts(parent, 2, work, first_success=True) as found:
                assert found.winner.outcome == "success"

        async def clean():
            gc.collect()
            await _only(parent.id)

        assert await cancelled_at_each_await(session, clean) >= 8
