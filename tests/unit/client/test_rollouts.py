"""Who wins, what is ended, what becomes of errors, with sandboxes that only note what was asked of them."""

import threading

import pytest

import ramet
from ramet.errors import InvalidRequest
from ramet.models.files import Change

PATIENCE_S = 20.0
TAKEN = (Change("/a", "added"),)


class Fake:
    """What can be forked, and nothing else."""

    def __init__(self, number=None):
        self.number = number
        self.id = f"fake-{number}"
        self.children = []
        self.options = {}
        self.ended = threading.Event()
        self.closed = self.let = 0
        self.committed = []

    def fork(self, n, **options):
        self.options = options
        self.children = [type(self)(number) for number in range(n)]
        return self.children

    def commit_to(self, other, /):
        other.committed.append(self.number)
        return TAKEN

    def ask_end(self):
        self.ended.set()

    def let_go(self):
        self.let += 1

    def close(self):
        self.closed += 1


def outcomes(found):
    return [one.outcome for one in found.attempts]


def alive(source):
    return [one.number for one in source.children if not one.ended.is_set()]


def test_a_fake_is_what_can_be_forked_and_a_number_is_not():
    assert isinstance(Fake(), ramet.SupportsFork)
    with pytest.raises(InvalidRequest, match="int cannot be forked"):
        ramet.rollouts(3, 2, lambda _: None)


def test_without_a_contest_every_value_is_told_and_every_child_ended():
    source = Fake()
    with ramet.rollouts(source, 3, lambda child: child.number, metadata={"a": "b"}) as found:
        assert [one.value for one in found.attempts] == [0, 1, 2]
        assert outcomes(found) == ["failure", "success", "success"]
        assert (found.winner, found.sandbox, found.committed) == (None, None, ())
    assert alive(source) == []
    assert [one.closed for one in source.children] == [1, 1, 1]
    assert source.options["metadata"] == {"a": "b"}
    assert source.committed == []


def test_the_first_success_ends_those_that_run_and_is_kept_with_its_files():
    source = Fake()

    def work(child):
        if child.number == 1:
            return "found"
        assert child.ended.wait(PATIENCE_S)  # as a call in a sandbox that ends
        raise RuntimeError("my sandbox ended")

    found = ramet.rollouts(source, 3, work, first_success=True)
    assert outcomes(found) == ["given_up", "success", "given_up"]
    assert (found.winner.value, found.winner.sandbox, found.sandbox.number) == ("found", "fake-1", 1)
    assert (found.committed, source.committed) == (TAKEN, [1])
    assert alive(source) == [1]
    found.close()
    assert [one.closed for one in source.children] == [1, 1, 1]


def test_a_result_that_is_not_ok_is_no_success_and_a_function_may_say_otherwise():
    class Bad:
        ok = False

    found = ramet.rollouts(Fake(), 2, lambda _: Bad(), first_success=True)
    assert (outcomes(found), found.winner) == (["failure", "failure"], None)
    found = ramet.rollouts(Fake(), 2, lambda _: Bad(), first_success=lambda _: True, commit=False)
    assert found.winner.outcome == "success"
    assert found.committed == ()


def test_the_best_wins_and_the_first_of_equals():
    source = Fake()
    found = ramet.rollouts(source, 4, lambda child: child.number, best=lambda value: min(value, 2))
    assert [one.score for one in found.attempts] == [0, 1, 2, 2]
    assert (found.winner.number, source.committed, alive(source)) == (2, [2], [2])


@pytest.mark.parametrize("kept", [False, True])
def test_what_the_function_raises_ends_all_of_them_or_is_the_error_of_its_attempt(kept):
    source = Fake()

    def work(child):
        if child.number == 0:
            raise ValueError("no")
        if not kept:
            assert child.ended.wait(PATIENCE_S)
        return child.number

    if not kept:
        with pytest.raises(ValueError, match="no"):
            ramet.rollouts(source, 3, work)
        assert alive(source) == []
        assert [one.let for one in source.children] == [1, 1, 1]
        return
    found = ramet.rollouts(source, 3, work, best=float, on_error="keep")
    assert outcomes(found) == ["error", "success", "success"]
    assert str(found.attempts[0].error) == "no"
    assert (found.attempts[0].score, found.winner.number) == (None, 2)


def test_what_says_who_succeeds_may_fail_as_well():
    source = Fake()
    with pytest.raises(ZeroDivisionError):
        ramet.rollouts(source, 2, lambda _: 1, first_success=lambda value: value / 0)
    assert alive(source) == []


def test_an_interrupt_in_an_attempt_is_that_of_the_call():
    source = Fake()

    def work(child):
        if child.number == 1:
            raise KeyboardInterrupt
        assert child.ended.wait(PATIENCE_S)

    with pytest.raises(KeyboardInterrupt):
        ramet.rollouts(source, 2, work)
    assert [one.let for one in source.children] == [1, 1]


def test_a_commit_that_fails_leaves_no_child():
    class Full(Fake):
        def commit_to(self, other, /):
            raise OSError("full")

    source = Full()
    with pytest.raises(OSError, match="full"):
        ramet.rollouts(source, 2, lambda child: child.number, best=float)
    assert alive(source) == []


@pytest.mark.parametrize(
    "field, options",
    [
        ("best", {"best": float, "first_success": True}),
        ("best", {"best": 3}),
        ("first_success", {"first_success": "yes"}),
        ("on_error", {"on_error": "ignore"}),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_forked(field, options):
    source = Fake()
    with pytest.raises(InvalidRequest) as caught:
        ramet.rollouts(source, 2, lambda _: None, **options)
    assert (caught.value.field, source.children) == (field, [])
