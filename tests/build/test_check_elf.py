"""check_elf accepts a static program and names each thing that would make core one that it must not be."""

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from _repository import load

check_elf = load("scripts/check_elf.py")

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_GNU_STACK = 1, 2, 3, 0x6474E551
R, W, X = 4, 2, 1
STACK = (PT_GNU_STACK, R | W, b"")


def elf(*segments, kind=3, machine=62, sections=()):
    """A minimal ELF file: header, program headers, their contents, then sections [(name, type, info)]."""
    offset = 64 + 56 * len(segments)
    table, contents = b"", b""
    for p_type, flags, data in segments:
        table += struct.pack(
            "<IIQQQQQQ", p_type, flags, offset + len(contents), 0, 0, len(data), len(data), 1
        )
        contents += data
    names, headers = b"\0", b""
    for name, sh_type, info in sections:
        headers += struct.pack("<IIQQQQIIQQ", len(names), sh_type, 0, 0, 0, 0, 0, info, 0, 0)
        names += name.encode() + b"\0"
    if sections:
        headers += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, offset + len(contents), len(names), 0, 0, 1, 0)
    shoff = offset + len(contents) + len(names)
    count = len(sections) + bool(sections)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(ident, kind, machine, 1, 0, 64, shoff, 0, 64, 56, len(segments), 64, count, max(count - 1, 0)),
    )
    return header + table + contents + names + headers


def faults_of(blob):
    return check_elf.faults(check_elf.parse(blob))


def dynamic(*tags):
    return (PT_DYNAMIC, R | W, b"".join(struct.pack("<qQ", tag, 0) for tag in tags))


def test_a_static_program_has_no_faults():
    assert faults_of(elf((PT_LOAD, R | X, b"code"), STACK, kind=2)) == []


def test_a_static_pie_may_have_a_dynamic_section_that_needs_nothing():
    assert faults_of(elf((PT_LOAD, R | X, b"code"), dynamic(12, 7, 0), STACK)) == []


@pytest.mark.parametrize(
    "blob,fault",
    [
        (elf((PT_INTERP, R, b"/lib64/ld.so\0"), STACK), "linked dynamically"),
        (elf(dynamic(1, 0), STACK), "needs shared libraries"),
        (elf(dynamic(22, 0), STACK), "relocations in its code"),
        (elf((PT_LOAD, R | X, b"code")), "no PT_GNU_STACK"),
        (elf((PT_GNU_STACK, R | W | X, b"")), "executable stack"),
        (elf((PT_LOAD, R | W | X, b"code"), STACK), "both writable and executable"),
        (elf(STACK, machine=183), "machine 183"),
        (elf(STACK, kind=1), "not a program"),
    ],
)
def test_each_fault_is_named(blob, fault):
    (found,) = faults_of(blob)
    assert fault in found


def test_tags_after_the_end_of_the_dynamic_section_do_not_count():
    assert faults_of(elf(dynamic(0, 1), STACK)) == []


def test_a_relocation_against_the_restorer_is_a_fault_and_one_against_data_is_none():
    sections = [
        ("", 0, 0),
        ("ramet_restorer", 1, 0),
        (".data", 1, 0),
        (".rela.x", 4, 1),
        (".rela.data", 4, 2),
    ]
    (found,) = faults_of(elf(STACK, sections=sections))
    assert "relocations against ramet_restorer" in found


def built_restorer(tmp_path, more="", *flags):
    """The restorer's object, compiled from core/pie with the flags that meson.build gives it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    core = Path(__file__).resolve().parents[2] / "core"
    text = (core / "meson.build").read_text()
    listed = text.partition("restorer_args = ")[2].partition("])")[0]
    listed_flags = re.findall(r"'(-[^']+)'", listed)
    source = tmp_path / "restorer.c"
    source.write_text(f'#include "{core}/pie/restorer.c"\n{more}')
    made = tmp_path / "restorer.o"
    words = [compiler, "-c", "-std=gnu11", "-fPIE", *listed_flags, *flags, f"-I{core}/include"]
    subprocess.run([*words, "-o", made, source], check=True)
    return check_elf.parse(made.read_bytes())


def test_the_restorer_refers_to_nothing_outside(tmp_path):
    assert check_elf.restorer_faults(built_restorer(tmp_path)) == []


def test_relocations_of_debug_sections_are_no_fault_of_the_restorer(tmp_path):
    object_file = built_restorer(tmp_path, "", "-g")
    assert any(section.name == ".rela.debug_info" for section in object_file.sections)
    assert check_elf.restorer_faults(object_file) == []


@pytest.mark.parametrize(
    "more,fault",
    [
        (
            "int outside(void);\nPIE_CODE int calls(void);\nPIE_CODE int calls(void) { return outside(); }",
            "relocations",
        ),
        ("int kept = 7;", "bytes in .data"),
        ('const char text[] = "text";', "bytes in .rodata"),
        ("int apart(void);\nint apart(void) { return 1; }", "bytes in .text"),
    ],
)
def test_what_the_restorer_must_not_hold_is_named(tmp_path, more, fault):
    found = check_elf.restorer_faults(built_restorer(tmp_path, more))
    assert any(fault in one for one in found), found


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"#!/bin/sh\n",
        b"\x7fELF\x01\x01" + bytes(80),
        elf(STACK)[:70],
        elf(STACK, sections=[("", 0, 0)])[:-1],
    ],
)
def test_what_is_no_whole_elf_file_is_refused(blob):
    with pytest.raises(check_elf.Malformed):
        check_elf.parse(blob)


def test_the_program_names_the_file_and_fails(tmp_path, capsys):
    (tmp_path / "good").write_bytes(elf(STACK))
    assert check_elf.main([str(tmp_path / "good")]) == 0
    assert check_elf.main([str(tmp_path / "good"), sys.executable, str(tmp_path / "none")]) == 1
    told = capsys.readouterr().err
    assert f"{sys.executable}: has an interpreter" in told
    assert "none: [Errno 2]" in told or "No such file" in told
    assert "good" not in told


def test_the_built_core_has_no_faults():
    program = Path(pytest.importorskip("ramet.native.locate").find_program())
    assert faults_of(program.read_bytes()) == []
