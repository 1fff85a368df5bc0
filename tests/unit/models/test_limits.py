"""The one table of limits: finite defaults, sizes as people write them, and refusals that name the field."""

import math

import pytest

from ramet.errors import InvalidRequest, LimitUnsupported
from ramet.models.limits import DEFAULT_LIMITS, ENFORCED_BY, GIB, LIMITS, MIB, Limits, parse_size


def test_every_limit_has_a_finite_default_within_its_bounds_and_a_mechanism():
    for spec in LIMITS:
        assert math.isfinite(spec.default)
        assert spec.minimum <= spec.default <= spec.maximum
        assert spec.enforced_by
    assert {spec.name for spec in LIMITS} == set(ENFORCED_BY)


def test_limits_without_arguments_are_the_defaults_of_the_table():
    assert Limits() == DEFAULT_LIMITS
    assert DEFAULT_LIMITS.asked() == {}
    assert all(getattr(DEFAULT_LIMITS, spec.name) == spec.default for spec in LIMITS)


@pytest.mark.parametrize(
    "text, size",
    [("64M", 64 * MIB), ("1GiB", GIB), ("1g", GIB), ("1.5k", 1536), (" 10 kb ", 10240), ("0", 0), (7, 7)],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text, "disk") == size


@pytest.mark.parametrize("text", ["", "M", "1X", "-1", "1..5k", "1e9", True, 1.5, None, "9" * 30, "1 2"])
def test_what_is_no_size_is_refused_by_field(text):
    with pytest.raises(InvalidRequest) as caught:
        parse_size(text, "disk")
    assert caught.value.field == "disk"


@pytest.mark.parametrize(
    "limit",
    [
        {"processes": 0},
        {"processes": -5},
        {"processes": "many"},
        {"processes": True},
        {"open_files": 10**400},
        {"disk": "99999T"},
        {"disk": 1},
        {"wall": 0},
        {"wall": -1},
        {"wall": math.nan},
        {"wall": math.inf},
        {"wall": 10**400},
        {"wall": "soon"},
        {"cpu_seconds": 10**5000},
        {"output": "2G"},
    ],
    ids=lambda limit: next(iter(limit)),
)
def test_an_absurd_limit_is_refused_by_its_name(limit):
    with pytest.raises(InvalidRequest) as caught:
        Limits.of(limit)
    assert caught.value.field == f"limits.{next(iter(limit))}"
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("name", ["memory", "cpus", "shm", "io", "anything"])
def test_a_limit_that_is_not_in_the_table_is_refused_by_name(name):
    for make in (lambda: Limits(**{name: "1G"}), lambda: Limits.of({name: "1G"})):
        with pytest.raises(LimitUnsupported) as caught:
            make()
        assert caught.value.field == f"limits.{name}"
        assert "cgroup limits" in caught.value.message
        assert "processes" in str(caught.value.hint)


@pytest.mark.parametrize("value", [3, "disk", [1], {1: 2}])
def test_limits_of_a_wrong_kind_are_refused(value):
    with pytest.raises(InvalidRequest) as caught:
        Limits.of(value)
    assert caught.value.field == "limits"


@pytest.mark.parametrize("text, seconds", [("500ms", 0.5), ("10s", 10), ("2m", 120), ("1h", 3600), (3, 3)])
def test_times_are_read_as_people_write_them(text, seconds):
    assert Limits(wall=text).wall == seconds


def test_processor_time_is_rounded_up_to_whole_seconds():
    assert Limits(cpu_seconds=0.2).cpu_seconds == 1


def test_only_what_differs_from_the_table_is_asked_for():
    limits = Limits(disk="64M", processes=256)
    assert limits.asked() == {"disk": 64 * MIB}
    assert Limits.of(limits.asked()) == limits


def test_replacing_one_limit_keeps_the_others():
    limits = Limits(disk="64M").replace(wall=1)
    assert (limits.disk, limits.wall, limits.processes) == (64 * MIB, 1, 256)


def test_limits_are_frozen_and_fit_for_a_dictionary():
    with pytest.raises(AttributeError):
        Limits().disk = 3  # type: ignore[misc]
    assert len({Limits(), Limits(), Limits(disk="64M")}) == 2
