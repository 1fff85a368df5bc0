"""Which files of the host a snapshot depends on."""

import os
import re
from pathlib import Path

import pytest

from _repository import ROOT
from ramet.engine import mapped
from ramet.engine.mapped import host_files, mapped_paths
from ramet.engine.root import Bind, RootSpec
from ramet.native.frames import FrameError, raw


def mapping(path: bytes, backing: int = mapped.BACKING_FILE) -> bytes:
    return raw(mapped.TAG_MAPPING, mapped.MAPPING.pack(0x1000, 0x2000, 0, 5, backing, 0, 0) + path)


def spec(*binds: tuple[str, str], layers: tuple[Path, ...] = ()) -> RootSpec:
    return RootSpec(
        entries=(),
        binds=tuple(Bind(Path(source), target) for source, target in binds),
        layers=layers,
        writable=True,
        identity="",
    )


def test_files_are_found_once_and_nothing_else_is():
    description = raw(1, b"header") + mapping(b"/usr/lib/b.so") + mapping(b"/usr/lib/a.so") * 2
    description += mapping(b"[heap]", 0) + mapping(b"[vdso]", 4) + raw(6, bytes(24))
    assert mapped_paths(description) == ["/usr/lib/a.so", "/usr/lib/b.so"]


@pytest.mark.parametrize("data", [b"x", raw(mapped.TAG_MAPPING, b"short")])
def test_what_is_no_description_is_refused(data):
    with pytest.raises(FrameError):
        mapped_paths(data)


def test_files_of_binds_are_the_hosts_at_the_innermost_source():
    root = spec(("/usr", "/usr"), ("/opt/python", "/usr/local/python"))
    found = host_files(["/usr/lib/x.so", "/usr/local/python/y.so", "/usrlib/z.so"], root, [])
    assert found == (("/usr/lib/x.so", "/usr/lib/x.so"), ("/usr/local/python/y.so", "/opt/python/y.so"))


def test_files_of_writable_layers_are_part_of_the_snapshot(tmp_path):
    host = tmp_path / "host"
    (host / "lib").mkdir(parents=True)
    (host / "lib/both.so").touch()
    (host / "lib/only.so").touch()
    upper = tmp_path / "layer"
    (upper / "upper/lib").mkdir(parents=True)
    (upper / "upper/lib/both.so").touch()
    fd = os.open(upper, os.O_RDONLY)
    found = host_files(["/lib/both.so", "/lib/only.so", "/lib/none.so"], spec(layers=(host,)), [fd])
    os.close(fd)
    assert found == (("/lib/only.so", f"{host}/lib/only.so"),)


def test_the_layout_is_that_of_core():
    text = (ROOT / "core/src/image.h").read_text()
    assert re.search(rf"IMAGE_TAG_MAPPING = {mapped.TAG_MAPPING},", text)
    assert re.search(rf"IMAGE_FILE = {mapped.BACKING_FILE},", text)
    assert re.search(rf"IMAGE_SHARED_FILE = {mapped.BACKING_SHARED_FILE},", text)
    struct = re.search(r"struct image_mapping \{(.*?)\};", text, re.DOTALL)
    assert struct is not None
    fields = re.findall(r"(u?int\d+_t) ([\w, ]+);", struct[1])
    kinds = {"uint64_t": "Q", "uint32_t": "I"}
    layout = "<" + "".join(kinds[kind] * len(names.split(",")) for kind, names in fields)
    assert layout == mapped.MAPPING.format
    names = [name.strip() for _, row in fields for name in row.split(",")]
    assert names.index("backing") == 4
