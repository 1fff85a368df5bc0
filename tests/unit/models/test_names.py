"""Names and text from outside."""

import pathlib

import pytest

from ramet.errors import InvalidRequest
from ramet.models.names import check_name, check_text, check_variable


@pytest.mark.parametrize("name", ["a", "A9", "0", "a.b-c_d", "x" * 64])
def test_legal_names_pass(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "x" * 65, "a/b", "a b", "a\n", "é", "a\0", "../x"])
def test_other_names_are_refused_by_field(name):
    with pytest.raises(InvalidRequest) as caught:
        check_name(name, "snapshot")
    assert caught.value.field == "snapshot"


def test_text_may_be_bytes_or_a_path():
    assert check_text(b"caf\xe9", "command") == "caf\udce9"
    assert check_text(pathlib.Path("/a"), "cwd") == "/a"


@pytest.mark.parametrize("value", ["a\0b", b"\0", 3, None, ["a"]])
def test_text_with_nul_or_of_another_kind_is_refused(value):
    with pytest.raises(InvalidRequest) as caught:
        check_text(value, "command")
    assert caught.value.field == "command"


@pytest.mark.parametrize("name", ["", "A=B", "=", "A\0"])
def test_a_name_that_no_environment_can_hold_is_refused(name):
    with pytest.raises(InvalidRequest) as caught:
        check_variable(name)
    assert caught.value.field == "env"
