"""What the reader of ELF files says a program needs, without running anything."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.engine.elf import ElfError, Libraries, read_elf
from unit.engine import elves

LOADER = "ld-linux-x86-64.so.2"


def program(directory: Path, **parts: object) -> Path:
    loader = elves.write(directory / "loader" / LOADER)
    return elves.write(directory / "bin/program", interpreter=str(loader), **parts)


def closure(path: Path, **options: object) -> list[str]:
    """The names of the libraries that are found, without the loader."""
    found = resolved(path, **options)
    assert not found.missing
    return [Path(one).name for one in found.paths[1:]]


def resolved(path: Path, **options: object):
    elf = read_elf(str(path))
    assert elf is not None
    return Libraries(**{"cache_file": "/nonexistent", **options}).closure(elf)


def test_a_file_that_is_not_elf_is_none(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert read_elf(str(script)) is None


def test_a_fifo_is_none_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert read_elf(str(tmp_path / "fifo")) is None


def test_a_static_program_needs_nothing(tmp_path):
    found = resolved(elves.write(tmp_path / "static"))
    assert found.paths == ()
    assert found.missing == ()


def test_libraries_are_found_through_runpath_and_origin(tmp_path):
    elves.write(tmp_path / "lib/liba.so.1", needed=("libb.so.2",), runpath="${ORIGIN}/deep")
    elves.write(tmp_path / "lib/deep/libb.so.2", soname="libb.so.2")
    assert closure(program(tmp_path, needed=("liba.so.1",), runpath="$ORIGIN/../lib")) == [
        "liba.so.1",
        "libb.so.2",
    ]


def test_origin_of_a_program_reached_by_a_symlink_is_where_the_file_is(tmp_path):
    elves.write(tmp_path / "lib/liba.so.1")
    real = program(tmp_path, needed=("liba.so.1",), runpath="$ORIGIN/../lib")
    link = tmp_path / "elsewhere"
    link.symlink_to(real)
    assert closure(link) == ["liba.so.1"]


def test_rpath_is_inherited_by_libraries_and_runpath_is_not(tmp_path):
    elves.write(tmp_path / "lib/liba.so.1", needed=("libb.so.2",))
    elves.write(tmp_path / "lib/libb.so.2")
    assert closure(program(tmp_path, needed=("liba.so.1",), rpath=str(tmp_path / "lib"))) == [
        "liba.so.1",
        "libb.so.2",
    ]
    found = resolved(program(tmp_path, needed=("liba.so.1",), runpath=str(tmp_path / "lib")))
    assert [(lost.name, Path(lost.needed_by).name) for lost in found.missing] == [("libb.so.2", "liba.so.1")]


def test_runpath_makes_the_loader_ignore_rpath(tmp_path):
    elves.write(tmp_path / "old/liba.so.1")
    both = program(
        tmp_path, needed=("liba.so.1",), rpath=str(tmp_path / "old"), runpath=str(tmp_path / "new")
    )
    assert [lost.name for lost in resolved(both).missing] == ["liba.so.1"]


def test_a_library_of_another_processor_is_passed_over(tmp_path):
    elves.write(tmp_path / "arm/liba.so.1", machine=elves.AARCH64)
    elves.write(tmp_path / "x86/liba.so.1")
    found = resolved(
        program(tmp_path, needed=("liba.so.1",), runpath=f"{tmp_path / 'arm'}:{tmp_path / 'x86'}")
    )
    assert found.paths[1] == str(tmp_path / "x86/liba.so.1")


@pytest.mark.parametrize("old_format_first", [False, True])
def test_the_loader_cache_is_read_in_both_of_its_formats(tmp_path, old_format_first):
    library = elves.write(tmp_path / "opt/libcached.so.1")
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(
        elves.cache([("libcached.so.1", str(library))], old_format_first=old_format_first),
    )
    assert closure(program(tmp_path, needed=("libcached.so.1",)), cache_file=str(cache)) == ["libcached.so.1"]


def test_nodeflib_makes_the_loader_ignore_its_cache(tmp_path):
    library = elves.write(tmp_path / "opt/libcached.so.1")
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(elves.cache([("libcached.so.1", str(library))]))
    strict = program(tmp_path, needed=("libcached.so.1",), flags=elves.NODEFLIB)
    assert resolved(strict, cache_file=str(cache)).missing


def test_a_library_loaded_before_satisfies_a_name_by_its_soname(tmp_path):
    elves.write(tmp_path / "lib/liba-1.2.so", soname="liba.so.1")
    elves.write(tmp_path / "lib/libb.so.1", needed=("liba.so.1",))
    both = program(tmp_path, needed=("liba-1.2.so", "libb.so.1"), runpath=str(tmp_path / "lib"))
    assert closure(both) == ["liba-1.2.so", "libb.so.1"]


def test_libraries_that_need_each_other_end_the_search(tmp_path):
    elves.write(tmp_path / "lib/liba.so.1", needed=("libb.so.1",), rpath="$ORIGIN")
    elves.write(tmp_path / "lib/libb.so.1", needed=("liba.so.1",), rpath="$ORIGIN")
    assert closure(program(tmp_path, needed=("liba.so.1",), runpath=str(tmp_path / "lib"))) == [
        "liba.so.1",
        "libb.so.1",
    ]


def test_a_missing_loader_is_named(tmp_path):
    lost = elves.write(tmp_path / "program", interpreter="/nonexistent/ld.so")
    assert [one.name for one in resolved(lost).missing] == ["/nonexistent/ld.so"]


def test_musl_serves_libc_itself_and_reads_its_own_path_file(tmp_path):
    loader = elves.write(tmp_path / "lib/ld-musl-x86_64.so.1")
    elves.write(tmp_path / "opt/libz.so.1")
    (tmp_path / "ld-musl-x86_64.path").write_text(f"/nowhere\n{tmp_path / 'opt'}\n")
    needed = ("libc.musl-x86_64.so.1", "libpthread.so.0", "libz.so.1")
    path = elves.write(tmp_path / "program", interpreter=str(loader), needed=needed)
    assert closure(path, musl_directory=str(tmp_path)) == ["libz.so.1"]


def test_a_library_found_by_two_programs_is_read_once(tmp_path):
    elves.write(tmp_path / "lib/liba.so.1")
    path = program(tmp_path, needed=("liba.so.1",), runpath=str(tmp_path / "lib"))
    libraries = Libraries(cache_file="/nonexistent")
    elf = read_elf(str(path))
    first = libraries.closure(elf)
    (tmp_path / "lib/liba.so.1").unlink()
    assert libraries.closure(elf) == first


def test_this_interpreter_needs_what_its_own_loader_maps():
    """The kernel's own list of this process's mappings is the judge."""
    elf = read_elf(str(Path(sys.executable).resolve()))
    found = Libraries().closure(elf)
    assert found.missing == ()
    mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    assert {str(Path(path).resolve()) for path in found.paths} <= mapped


@pytest.mark.skipif(shutil.which("ldd") is None, reason="needs ldd as judge")
@pytest.mark.parametrize("name", ["sh", "bash", "git", "tar", "openssl", "perl"])
def test_programs_of_this_host_need_what_ldd_says(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    elf = read_elf(path)
    if elf is None or elf.interpreter is None:
        pytest.skip(f"{name} is not a dynamic program here")
    words = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout.split()
    judged = {str(Path(word).resolve()) for word in words if word.startswith("/")}
    assert {str(Path(one).resolve()) for one in Libraries().closure(elf).paths} == judged


DAMAGED = {
    "cut off in the header": lambda data: data[:40],
    "program headers beyond the end": lambda data: data[:32] + struct.pack("<Q", 1 << 60) + data[40:],
    "more program headers than there can be": lambda data: data[:56] + b"\xff\xff" + data[58:],
    "no class of 32 or 64 bits": lambda data: data[:4] + b"\x07" + data[5:],
    "cut off in the strings": lambda data: data[:-3],
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    path = tmp_path / "damaged"
    path.write_bytes(damage(elves.image("/lib/ld.so", ("liba.so.1",), runpath="/lib")))
    with pytest.raises(ElfError):
        read_elf(str(path))


def test_a_damaged_library_is_named(tmp_path):
    library = tmp_path / "lib/liba.so.1"
    elves.write(library)
    library.write_bytes(library.read_bytes()[:50])
    path = program(tmp_path, needed=("liba.so.1",), runpath=str(tmp_path / "lib"))
    with pytest.raises(ElfError, match=r"liba\.so\.1"):
        resolved(path)


@given(st.data())
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    image = bytearray(
        elves.image("/lib/ld.so", ("liba.so.1", "libb.so"), soname="me.so", rpath="/r", runpath="/run")
    )
    for at in data.draw(st.lists(st.integers(4, len(image) - 1), max_size=6)):
        image[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(image)
    try:
        elf = read_elf(str(path))
    except ElfError:
        return
    assert elf is not None
    assert len(elf.needed) < 1 << 16
