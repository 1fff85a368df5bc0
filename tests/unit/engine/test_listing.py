"""A list that is asked for again tells of what has changed, and of all to who does not know the last one."""

import dataclasses

from ramet.engine.listing import Listing
from ramet.models.sandboxes import SandboxInfo

ONE, TWO, THREE = (
    SandboxInfo(id=name, name=None, status="running", pid=2, command=("sh",), created=at)
    for at, name in enumerate(("one", "two", "three"))
)


def test_who_asks_again_is_told_of_what_has_changed_and_who_is_left():
    listing = Listing()
    first = listing.since([ONE, TWO], "")
    assert (first.sandboxes, first.ids) == ((ONE, TWO), ("one", "two"))
    assert listing.since([ONE, TWO], first.mark).sandboxes == ()
    other = dataclasses.replace(TWO, note="other")
    changed = listing.since([ONE, other, THREE], first.mark)
    assert (changed.sandboxes, changed.ids) == ((other, THREE), ("one", "two", "three"))
    gone = listing.since([other, THREE], changed.mark)
    assert (gone.sandboxes, gone.ids) == ((), ("two", "three"))
    # Another who asked in between changes nothing for the first.
    assert listing.since([other, THREE], first.mark).sandboxes == (other, THREE)


def test_a_mark_that_is_none_of_this_daemons_asks_for_all():
    foreign = Listing().since([ONE], "").mark
    listing = Listing()
    listing.since([ONE, TWO], "")
    for mark in (foreign, "", "x", "-1", f"{foreign}9"):
        assert listing.since([ONE, TWO], mark).sandboxes == (ONE, TWO)
