"""What a result says of a command, and what it says of output that was not kept."""

import pytest

from ramet.errors import CommandFailed
from ramet.models.executions import Execution, ExecutionError, result_from
from ramet.models.results import Captured, CommandResult, signal_name


def test_a_command_that_exits_with_zero_is_ok():
    result = CommandResult(exit_code=0)
    assert result.ok
    assert result.check() is result


@pytest.mark.parametrize(
    "result",
    [
        CommandResult(exit_code=1),
        CommandResult(exit_code=124, reason="timeout"),
        CommandResult(exit_code=139, reason="signal", signal="SIGSEGV"),
        CommandResult(exit_code=137, reason="killed"),
        CommandResult(exit_code=0, reason="lost"),
    ],
    ids=lambda result: result.reason,
)
def test_any_other_end_fails_a_check(result):
    assert not result.ok
    with pytest.raises(CommandFailed) as caught:
        result.check()
    assert caught.value.result is result


def test_the_limit_that_ended_a_command_is_named_where_it_is_known():
    assert CommandResult(exit_code=124, reason="timeout").limit == "wall"
    assert CommandResult(exit_code=153, reason="signal", signal="SIGXFSZ").limit is None
    result = CommandResult(exit_code=153, reason="signal", signal="SIGXFSZ", reached="file_size")
    assert result.limit == "file_size"
    assert CommandResult(exit_code=135, reason="disk", reached="shm").limit == "shm"
    assert CommandResult(exit_code=137, reason="signal", signal="SIGKILL").limit is None
    assert CommandResult(exit_code=168, reason="signal", signal="SIG40").limit is None
    assert CommandResult(exit_code=1).limit is None


def test_output_below_the_limit_is_identical_and_not_truncated():
    result = CommandResult(exit_code=0, out=Captured(b"a\xff\n", 3, 3))
    assert result.stdout_bytes == b"a\xff\n"
    assert result.stdout == "a\ufffd\n"
    assert not result.truncated


def test_left_out_bytes_are_counted_and_marked_by_a_line_of_their_own():
    captured = Captured(b"head\ntail\n", 1_000_010, 5)
    result = CommandResult(exit_code=0, out=captured)
    assert result.truncated
    assert result.stdout == "head\n[... 1000000 bytes left out ...]\ntail\n"
    assert result.stdout_bytes == b"head\ntail\n"
    assert result.stdout_total == 1_000_010


def test_the_mark_begins_a_line_even_where_the_head_does_not_end_one():
    assert Captured(b"hetl", 10, 2).text() == "he\n[... 6 bytes left out ...]\ntl"
    assert Captured(b"tl", 10, 0).text() == "[... 8 bytes left out ...]\ntl"


def test_text_is_decoded_once():
    captured = Captured(b"abc", 3, 3)
    assert captured.text() is captured.text()


def test_results_are_frozen_and_compare_by_value():
    with pytest.raises(AttributeError):
        CommandResult(exit_code=0).exit_code = 1  # type: ignore[misc]
    one, two = (CommandResult(exit_code=0, out=Captured(b"a", 1, 1)) for _ in range(2))
    assert one.stdout == "a"
    assert one == two


def test_a_result_becomes_one_json_object_with_every_fact():
    data = CommandResult(exit_code=124, reason="timeout", duration_ms=500.5).to_dict()
    assert data["timed_out"] is True
    assert data["limit"] == "wall"
    assert data["enforced_by"]["wall"] == "core watchdog"
    assert data["usage"]["peak_rss_bytes"] == 0


def test_signals_have_names_also_where_the_system_has_none():
    assert signal_name(11) == "SIGSEGV"
    assert signal_name(40) == "SIG40"


def test_a_result_that_is_printed_shows_its_output_and_what_is_not_as_usual():
    result = CommandResult(exit_code=3, out=Captured(b"so\n", 3), limit_value=5.0)
    assert repr(result).startswith(
        "CommandResult(exit_code=3, reason='exit', stdout='so\\n', stderr='', limit_value=5.0"
    )
    assert "signal" not in repr(result)
    shown = repr(Execution("1", text="x" * 10**6, out=Captured(b"so\n", 3)))
    assert "[999600 more]" in shown
    assert "stdout='so\\n'" in shown
    assert len(shown) < 1000


def test_code_of_which_anything_was_left_out_is_marked():
    assert not Execution("1", text="x").truncated
    assert Execution("1", text="x", text_length=2).truncated
    assert Execution("1", results_left_out=1).truncated
    dropped = result_from({"data": {"text/plain": "x"}, "dropped": {"text/html": 20_000_000}})
    assert dropped.left_out == {"text/html": 20_000_000}
    assert Execution("1", results=(dropped,)).truncated
    with pytest.raises(ValueError, match="left out"):
        result_from({"data": {}, "dropped": {"text/html": "many"}})
    assert str(ExecutionError("Interrupted", "")) == "Interrupted"
