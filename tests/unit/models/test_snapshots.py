"""Which state a sandbox that was paused goes on from."""

import pytest

from ramet.models.snapshots import PAUSED, Snapshot, paused_as


def kept(name: str, sandbox: str, created: float, paused: str | None) -> Snapshot:
    metadata = {} if paused is None else {PAUSED: paused}
    return Snapshot(name, sandbox, created, 0.5, 4096, 0, metadata=metadata)


KNOWN = (
    kept("paused-aa", "aa", 1.0, "worker"),
    kept("later", "bb", 3.0, "worker"),
    kept("earlier", "bb", 2.0, "worker"),
    kept("nameless", "cc", 4.0, ""),
    kept("plain", "dd", 5.0, None),
    kept("paused-ee", "ee", 6.0, "plain"),
)


@pytest.mark.parametrize(
    "asked, found",
    [
        ("paused-aa", "paused-aa"),
        ("aa", "paused-aa"),
        ("worker", "later"),
        ("bb", "later"),
        ("earlier", "earlier"),
        ("cc", "nameless"),
        ("ee", "paused-ee"),
        ("dd", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_a_state_is_found_by_its_name_or_by_the_sandboxes(asked, found):
    state = paused_as(asked, KNOWN)
    assert (state and state.name) == found


def test_a_snapshot_of_that_name_that_nobody_paused_to_is_no_such_state():
    assert paused_as("plain", KNOWN) is None
    assert paused_as("plain", reversed(KNOWN)) is None
