"""The one table of limits: finite defaults, sizes as people write them, and refusals that name the field."""

import math

import pytest

from ramet.errors import InvalidRequest, LimitUnsupported
from ramet.models.limits import (
    DEFAULT_LIMITS,
    ENFORCED_BY,
    GIB,
    LIMITS,
    MIB,
    Limits,
    check_enforceable,
    enforced_by,
    parse_size,
)


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


@pytest.mark.parametrize("name", ["memory_mb", "pids", "iops", "anything"])
def test_a_limit_that_is_not_in_the_table_is_refused_by_name(name):
    for make in (lambda: Limits(**{name: "1G"}), lambda: Limits.of({name: "1G"})):
        with pytest.raises(LimitUnsupported) as caught:
            make()
        assert caught.value.field == f"limits.{name}"
        assert "no such limit" in caught.value.message
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


def test_a_cgroup_enforces_what_it_has_a_controller_for_and_nothing_else():
    assert enforced_by("") == ENFORCED_BY
    found = enforced_by("2 memory pids")
    assert (found["memory"], found["cpus"], found["disk"]) == ("cgroup v2", "machine", "tmpfs")
    assert enforced_by("1 cpu memory")["cpus"] == "cgroup v1"


@pytest.mark.parametrize(
    "cgroups, cpus, refused",
    [
        ("", 0.5, True),
        ("", 4, False),
        ("2 memory", 3.9, True),
        ("2 cpu memory", 0.5, False),
        ("1 cpu", 0.01, False),
    ],
)
def test_fewer_processors_than_the_machine_has_need_a_cgroup(cgroups, cpus, refused):
    if not refused:
        check_enforceable(Limits(cpus=cpus), cgroups, 4)
        return
    with pytest.raises(LimitUnsupported) as caught:
        check_enforceable(Limits(cpus=cpus), cgroups, 4)
    assert caught.value.field == "limits.cpus"
    assert "doctor" in str(caught.value.hint)
    check_enforceable(DEFAULT_LIMITS, cgroups, 4)


@pytest.mark.parametrize("value", ["half", -1, 0, 1e9, float("nan"), float("inf"), True, "0,5", [1], 10**400])
def test_what_is_no_number_of_processors_is_refused_by_field(value):
    with pytest.raises(InvalidRequest) as caught:
        Limits(cpus=value)
    assert caught.value.field == "limits.cpus"


def test_what_is_written_is_a_part_of_memory():
    assert Limits(memory="64M").writable == 48 * MIB
    assert Limits(memory="64M", disk="60M").writable == 60 * MIB
    assert Limits(disk="8G").takeable == 11 * GIB
    assert Limits(disk="8G", memory="8G").takeable == 8 * GIB
    with pytest.raises(InvalidRequest) as caught:
        Limits(memory="64M", disk="65M")
    assert caught.value.field == "limits.disk"
