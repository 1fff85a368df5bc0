"""Requests check themselves, by the same words on both sides of the wire."""

import json
import subprocess
import sys

import pytest

from ramet.errors import InvalidRequest
from ramet.models.limits import Limits
from ramet.models.runs import TEXT_MAX, LaneRequest, Python, RunRequest


def across_the_wire(request):
    return RunRequest.from_wire(json.loads(json.dumps(request.to_wire())))


def test_text_is_a_line_for_the_shell_and_a_sequence_is_a_program():
    assert RunRequest.of("echo hi").argv == ("/bin/sh", "-c", "echo hi")
    assert RunRequest.of(["echo", b"\xff"]).argv == ("echo", "\udcff")
    assert RunRequest.of(iter(["echo"])).argv == ("echo",)


def test_a_request_arrives_as_it_left(tmp_path):
    request = RunRequest.of(
        ["echo", b"\xff"],
        timeout=0.25,
        env={"A": "b=c"},
        cwd="/tmp//x/.",
        root=tmp_path,
        limits={"disk": "64M"},
        python=Python("/usr/bin/python3", "/usr", "/usr"),
        streams=(0, 1, 2),
    )
    assert across_the_wire(request) == request
    assert request.cwd == "/tmp/x"
    assert request.limits == Limits(disk="64M", wall=0.25)


def test_a_plain_request_is_short_on_the_wire():
    assert RunRequest.of("true").to_wire() == {"argv": ("/bin/sh", "-c", "true")}


@pytest.mark.parametrize(
    "field, arguments",
    [
        ("command", {"command": ""}),
        ("command", {"command": "  \n"}),
        ("command", {"command": []}),
        ("command", {"command": [""]}),
        ("command", {"command": b"true"}),
        ("command", {"command": {"true": 1}}),
        ("command", {"command": 3}),
        ("command", {"command": None}),
        ("command", {"command": ["a", 3]}),
        ("command", {"command": "a\0b"}),
        ("command", {"command": ["a", "b\0"]}),
        ("command", {"command": ["a", "x" * (TEXT_MAX + 1)]}),
        ("command", {"command": ["a", "é" * (TEXT_MAX // 2 + 1)]}),
        ("command", {"command": ["a", *["x" * 100_000] * 70]}),
        ("env", {"env": {"A": "\0"}}),
        ("env", {"env": {"": "x"}}),
        ("env", {"env": {"A=B": "x"}}),
        ("env", {"env": {"A": 3}}),
        ("env", {"env": {3: "A"}}),
        ("env", {"env": ["A"]}),
        ("env", {"env": {"A": "x" * TEXT_MAX}}),
        ("cwd", {"cwd": "relative"}),
        ("cwd", {"cwd": ""}),
        ("cwd", {"cwd": "/a/../b"}),
        ("cwd", {"cwd": "/a\0"}),
        ("cwd", {"cwd": "/" + "x" * 300}),
        ("cwd", {"cwd": "/x" * 3000}),
        ("root", {"root": "/does/not/exist"}),
        ("root", {"root": "/etc/passwd"}),
        ("root", {"root": "relative"}),
        ("timeout", {"timeout": -1}),
        ("timeout", {"timeout": 0}),
        ("timeout", {"timeout": float("nan")}),
        ("timeout", {"timeout": float("inf")}),
        ("timeout", {"timeout": 1e12}),
        ("timeout", {"timeout": [1]}),
        ("limits.memory", {"limits": {"memory": "1K"}}),
        ("limits.disk", {"limits": {"disk": -1}}),
        ("limits", {"limits": 3}),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(field, arguments):
    with pytest.raises(InvalidRequest) as caught:
        RunRequest.of(**{"command": "true", **arguments})
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize(
    "data, field",
    [
        ({}, "command"),
        ({"argv": "true"}, "command"),
        ({"argv": ["true"], "colour": 1}, "colour"),
        ({"argv": ["true"], "python": ["/usr"]}, "python"),
        ({"argv": ["true"], "streams": 5}, "streams"),
        ({"argv": ["true"], "streams": [3]}, "streams"),
        ({"argv": ["true"], "streams": [1, 1]}, "streams"),
        ({"argv": ["true"], "streams": [True]}, "streams"),
        ({"argv": ["true"], "fault": 5}, "fault"),
        ({"argv": ["true"], "limits": {"wall": "x"}}, "limits.wall"),
    ],
)
def test_a_malformed_request_on_the_wire_is_refused_by_name(data, field):
    with pytest.raises(InvalidRequest) as caught:
        RunRequest.from_wire(data)
    assert caught.value.field == field


def test_the_longest_string_that_linux_takes_is_taken():
    assert RunRequest.of(["a", "x" * TEXT_MAX])
    assert RunRequest.of("true", env={"A": "x" * (TEXT_MAX - 2)})


@pytest.mark.parametrize(
    "name, models",
    [
        ("run", {"limits", "names", "results", "runs"}),
        ("sandboxes", {"checks", "limits", "names", "results", "runs", "sandboxes"}),
    ],
)
def test_a_call_imports_the_models_that_it_needs_and_no_others(name, models):
    program = f"import sys, ramet.client; ramet.client.{name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = {one.removeprefix("ramet.models.") for one in done.stdout.split() if "ramet.models." in one}
    assert found == models


def test_a_request_for_a_lane_arrives_as_it_left_and_what_is_wrong_in_it_is_named():
    asked = LaneRequest(Python("/usr/bin/python3", "/usr", "/usr"), Limits.of({"disk": "9M"}), socket=False)
    assert LaneRequest.from_wire(json.loads(json.dumps(asked.to_wire()))) == asked
    for field, wrong in {"socket": 1, "python": ["x"], "more": 1}.items():
        with pytest.raises(InvalidRequest) as caught:
            LaneRequest.from_wire({field: wrong})
        assert caught.value.field == field


def test_of_a_timeout_and_the_limit_wall_the_smaller_counts():
    assert RunRequest.of("x", timeout=5, limits={"wall": 0.5}).limits.wall == 0.5
    assert RunRequest.of("x", timeout=0.5, limits={"wall": 5}).limits.wall == 0.5
    assert RunRequest.of("x", timeout=600).limits.wall == 600


def test_half_of_a_character_is_refused_by_name():
    with pytest.raises(InvalidRequest) as caught:
        RunRequest.of(["true", "\ud800"])
    assert caught.value.field == "command"
