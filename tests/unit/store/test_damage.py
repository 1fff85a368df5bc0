"""A wrong byte anywhere is refused, with the place; so is a parent that is missing or another."""

import json
import os
import shutil
import struct

import pytest

from ramet.errors import RametError, SnapshotDamaged, SnapshotError, SnapshotUnusable
from ramet.store.container import MAGIC, Container
from unit.store.material import flip, image_of, left_in, loaded_pages, pages, save


@pytest.fixture
def lineage(store, tmp_path):
    """Two snapshots with everything that images can hold."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "file").write_bytes(os.urandom(200_000))
    own = tmp_path / "own"
    own.mkdir()
    (own / "other").write_text("x")
    parent = save(store, "parent", pages(*range(1, 40)), uppers=[layer])
    save(store, "child", pages(*range(1, 20), 100, 101), uppers=[own, layer], parent=parent)
    return store


def sections(store, name):
    container = Container(os.open(image_of(store, name), os.O_RDONLY), name)
    found = dict(container.sections)
    container.close()
    return found


def complaint(call, *args):
    with pytest.raises(SnapshotDamaged) as caught:
        call(*args)
    return caught.value


@pytest.mark.parametrize(
    "section, block, words",
    [
        ("pages", 17, "pages: block 17: hash differs"),
        ("pages", 0, "pages: block 0: hash differs"),
        ("description", 0, "description: block 0: hash differs"),
        ("extents", 0, "extents: block 0: hash differs"),
        ("base", 0, "base: block 0: hash differs"),
        ("files", 0, "files: block 0: hash differs"),
        ("layer-0", 2, "layer 0: block 2: hash differs"),
    ],
)
def test_a_wrong_byte_is_refused_with_its_place(lineage, section, block, words):
    where = sections(lineage, "parent")[section]
    flip(image_of(lineage, "parent"), where.offset + block * where.block + min(where.length - 1, 5))
    for call in (lineage.load, lineage.verify):
        error = complaint(call, "parent")
        assert words in error.message
        assert error.snapshot == "parent"
    assert left_in(lineage) == []


def test_a_wrong_byte_in_a_table_of_hashes_is_refused(lineage):
    for name, where in sections(lineage, "parent").items():
        flip(image_of(lineage, "parent"), where.table)
        assert "differs" in complaint(lineage.verify, "parent").message, name
        flip(image_of(lineage, "parent"), where.table)
    lineage.verify("parent")


def test_a_wrong_byte_between_the_sections_is_refused(lineage):
    path = image_of(lineage, "parent")
    flip(path, 4000)
    assert "preamble" in complaint(lineage.info, "parent").message
    flip(path, 4000)
    where = sections(lineage, "parent")
    ends = sorted([one.offset + one.length for one in where.values()])
    gap = next(end for end in ends if end % 8)
    flip(path, gap)
    assert "between the sections" in complaint(lineage.info, "parent").message


def test_every_flipped_bit_of_an_image_is_refused_by_load(lineage):
    path = image_of(lineage, "child")
    size = path.stat().st_size
    # Each byte of what is small, and some of the pages.
    where = sections(lineage, "child")["pages"]
    inside = range(where.offset + 100, where.offset + where.length, 997)
    positions = [at for at in range(size) if not where.offset <= at < where.offset + where.length] + [*inside]
    passed = []
    for number, position in enumerate(positions[::7]):
        flip(path, position, number % 8)
        try:
            lineage.load("child").close()
            passed.append(position)
        except (SnapshotDamaged, SnapshotUnusable):
            pass
        flip(path, position, number % 8)
    assert passed == []
    lineage.verify("child")


@pytest.mark.parametrize("size", [0, 1, 55, 4095, 4096, 5000, -1])
def test_an_image_that_was_cut_off_is_refused(lineage, size):
    path = image_of(lineage, "parent")
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    complaint(lineage.load, "parent")


def test_an_image_to_which_something_was_added_is_refused(lineage):
    with image_of(lineage, "parent").open("ab") as file:
        file.write(b"\0")
    assert "not as long" in complaint(lineage.load, "parent").message


def test_a_file_that_is_no_image_is_refused(lineage):
    image_of(lineage, "parent").write_bytes(b"x" * 10_000)
    assert "does not begin" in complaint(lineage.load, "parent").message


def test_a_newer_format_is_refused_with_both_numbers(lineage):
    with image_of(lineage, "parent").open("r+b") as file:
        file.write(MAGIC + struct.pack("<I", 99))
    with pytest.raises(SnapshotUnusable, match="format 99, this version reads 1") as caught:
        lineage.load("parent")
    assert caught.value.code == "snapshot_format"
    assert lineage.list()[1].damage


# --- parents ----------------------------------------------------------------------------------------------


def test_a_damaged_page_of_a_parent_is_refused_by_the_parents_name(lineage):
    where = sections(lineage, "parent")["pages"]
    flip(image_of(lineage, "parent"), where.offset + 3 * where.block)
    error = complaint(lineage.load, "child")
    assert error.snapshot == "parent"
    assert "pages: block 3" in error.message


def test_a_page_of_the_parent_that_the_child_does_not_have_is_not_looked_at(lineage):
    where = sections(lineage, "parent")["pages"]
    flip(image_of(lineage, "parent"), where.offset + 38 * where.block)
    assert loaded_pages(lineage, "child") == pages(*range(1, 20), 100, 101)
    assert "block 38" in complaint(lineage.verify, "child").message


def test_a_missing_parent_is_named(lineage):
    shutil.rmtree(image_of(lineage, "parent").parent)
    error = complaint(lineage.load, "child")
    assert error.snapshot == "child"
    assert "'parent', which it builds upon, is missing" in error.message


def test_another_snapshot_in_the_parents_place_is_refused_by_name(lineage):
    shutil.rmtree(image_of(lineage, "parent").parent)
    save(lineage, "parent", pages(*range(1, 40)), description=b"another")
    error = complaint(lineage.load, "child")
    assert "'parent', which it builds upon, is not what it was" in error.message


def test_a_snapshot_under_another_name_is_refused(lineage):
    os.rename(image_of(lineage, "parent").parent, image_of(lineage, "renamed").parent)
    assert "says that it is the snapshot 'parent'" in complaint(lineage.load, "renamed").message


def test_a_link_in_the_images_place_is_not_followed(lineage):
    path = image_of(lineage, "parent")
    os.rename(path, path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    complaint(lineage.load, "parent")


def test_what_is_wrong_crosses_processes(lineage):
    image_of(lineage, "parent").write_bytes(b"")
    error = complaint(lineage.load, "parent")
    again = RametError.from_wire(json.loads(json.dumps(error.to_wire())))
    assert isinstance(again, SnapshotDamaged)
    assert isinstance(again, SnapshotError)
    assert again.snapshot == "parent"
