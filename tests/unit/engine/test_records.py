"""Records of sandboxes that clients had made: what they say, and what children of one snapshot share."""

import json

import pytest

from ramet.engine.records import Origin, read_record
from ramet.engine.standing import Sandbox
from ramet.models.limits import Limits
from ramet.models.sandboxes import KernelRef


def told(metadata=None):
    """What a record says, as the daemon writes it."""
    origin = Origin(
        ("python",), 2, "abc", "point", kernel=KernelRef("python", "packets"), metadata=metadata or {}
    )
    return Sandbox(None, 7, origin, limits=Limits(disk="1M")).told()


def by_client(metadata, created=12.5, ttl=None, more=""):
    """The same as a client writes it: what is a child's own comes last."""
    data = json.loads(json.dumps(told()))
    rest = {name: value for name, value in data.items() if name not in {"origin", "created", "ttl"}}
    origin = {name: value for name, value in data["origin"].items() if name != "metadata"}
    own = f'{json.dumps(metadata)}}},"created":{created!r},"ttl":{json.dumps(ttl)}{more}}}'
    common = f'{json.dumps(rest)[:-1]},"origin":{json.dumps(origin)[:-1]}'
    return f'{common},"metadata":{own}'.encode()


@pytest.mark.parametrize(
    "metadata",
    [{}, {"a": "b"}, {"metadata": "x"}, {"a": "1", "metadata": "{}"}, {'"': ',"metadata":{}},"created":0'}],
)
def test_a_record_says_the_same_whoever_wrote_it(metadata):
    daemons = json.dumps({**told(metadata), "created": 12.5, "ttl": 60.0}).encode()
    assert read_record(by_client(metadata, ttl=60)) == read_record(daemons)
    assert read_record(daemons).origin.metadata == metadata


def test_children_of_a_snapshot_share_what_they_have_in_common_and_no_more():
    one = read_record(by_client({}))
    other = read_record(by_client({}, created=13.5, ttl=9))
    noted = read_record(by_client({"job": "7"}))
    assert other.origin is one.origin
    assert noted.ground is one.ground
    assert (one.created, one.ttl, other.created, other.ttl) == (12.5, None, 13.5, 9.0)
    assert (one.origin.metadata, noted.origin.metadata) == ({}, {"job": "7"})


def test_what_comes_after_a_childs_own_counts():
    assert read_record(by_client({}, more=',"name":"web"')).name == "web"


@pytest.mark.parametrize(
    "record",
    [
        by_client({})[:-1],
        by_client({}) + b"}",
        by_client({}, created="soon"),
        by_client(5),
        by_client({}).replace(b'"version": 1', b'"version": 2'),
        by_client({}).replace(b'"disk": 1048576', b'"disk": "much"'),
        b"[" * 60_000,
        b"\xff",
    ],
)
def test_nonsense_is_no_record(record):
    assert read_record(record) is None
