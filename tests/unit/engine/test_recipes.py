"""A root's recipe comes back from bytes as it was, and nonsense is refused."""

import json
import sys

import pytest

from ramet.engine.recipes import decode_recipe, encode_recipe
from ramet.engine.root import (
    Bind,
    Dir,
    File,
    InterpreterFacts,
    RootSpec,
    Symlink,
    default_root,
    directory_root,
)


def test_the_default_root_comes_back_as_it_was():
    spec = default_root(InterpreterFacts(sys.prefix, sys.base_prefix, sys.executable))
    assert decode_recipe(encode_recipe(spec)) == spec


def test_a_directory_root_comes_back_as_it_was(tmp_path):
    spec = directory_root(tmp_path)
    assert decode_recipe(encode_recipe(spec)) == spec


def test_names_that_are_no_text_and_bytes_come_back():
    from pathlib import Path

    spec = RootSpec(
        entries=(Dir("/", 0o700), Symlink("/l\udcff", "\udcfe"), File("/f", 0o644, bytes(range(256)))),
        binds=(Bind(Path("/a\udcff"), "/b", read_only=False, recursive=True),),
        layers=(Path("/x"), Path("/y")),
        writable=False,
        identity="id",
        environment=(("A", "1"),),
    )
    assert decode_recipe(encode_recipe(spec)) == spec


def test_one_root_has_one_recipe():
    assert encode_recipe(default_root()) == encode_recipe(default_root())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"entries": [["x", "/", 1]]},
        {"entries": [["f", "/", 1, "not base64!"]]},
        {"entries": 7},
        {"binds": [["/a"]]},
        {"environment": [["A"]]},
        {"layers": None},
    ],
)
def test_nonsense_is_refused(change):
    data = json.loads(encode_recipe(default_root()))
    with pytest.raises(ValueError, match=r"recipe|unpack"):
        decode_recipe(json.dumps(data | change).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"7", b"\xff", b"[" * 100_000])
def test_what_is_no_recipe_is_refused(data):
    with pytest.raises(ValueError):  # noqa: PT011  of json, or ours
        decode_recipe(data)
