"""Names, lineage and what is kept: the store as its callers see it."""

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from ramet.errors import InvalidRequest, SnapshotDamaged, SnapshotError
from ramet.store import Base, ParentRef, Store
from ramet.store.saving import write_flat
from unit.store.material import (
    BASE,
    PAGE,
    content,
    exported,
    image_of,
    left_in,
    loaded_pages,
    memory,
    page,
    pages,
    save,
)


def test_what_is_loaded_is_what_was_saved(store):
    saved = save(store, "first", pages(1, 2, 0, 3), description=b"registers", metadata={"command": ["sh"]})
    with store.load("first") as loaded:
        assert content(loaded.description) == b"registers"
        assert content(loaded.pages) == pages(1, 2, 0, 3)
        assert loaded.uppers == []
        assert loaded.base.recipe == BASE.recipe
        assert loaded.base.identity == BASE.identity
        assert loaded.info == saved
        assert loaded.info.metadata == {"command": ["sh"]}
        assert loaded.info.filter_hash == "filter"
        assert loaded.info.memory_bytes == 4 * PAGE


def test_a_snapshot_is_still_there_for_the_next_store(store):
    saved = save(store, "first", pages(1))
    with Store(store.root) as other:
        assert other.info("first") == saved
        assert loaded_pages(other, "first") == pages(1)


def test_the_page_file_keeps_its_exact_size(store):
    save(store, "odd", pages(1, 2) + b"tail")
    assert loaded_pages(store, "odd") == pages(1, 2) + b"tail"
    save(store, "nothing", b"")
    assert loaded_pages(store, "nothing") == b""


def test_pages_of_zeros_are_neither_stored_nor_given_memory(store):
    info = save(store, "zeros", pages(0, 0, 1, 0, 0, 0))
    assert info.page_bytes == PAGE
    with store.load("zeros") as loaded:
        assert content(loaded.pages) == pages(0, 0, 1, 0, 0, 0)
        assert os.fstat(loaded.pages).st_blocks * 512 == PAGE


def test_holes_of_the_page_file_are_not_read(store):
    fd = memory(pages(1))
    os.ftruncate(fd, 1 << 40)
    with exported() as given:
        wide = type(given)(given.description, fd, [])
        info = store.save("wide", wide, base=BASE, filter_hash="")
    os.close(fd)
    assert info.memory_bytes == 1 << 40
    assert info.stored_bytes < 1 << 20
    with store.load("wide") as loaded:
        assert os.pread(loaded.pages, PAGE, 0) == page(1)
        assert os.lseek(loaded.pages, PAGE, os.SEEK_HOLE) == PAGE


# --- deltas -----------------------------------------------------------------------------------------------


def test_a_child_stores_the_pages_that_its_parent_has_not(store):
    parent = save(store, "parent", pages(*range(1, 101)))
    child = save(store, "child", pages(*range(1, 50), 777, *range(51, 101)), parent=parent)
    assert child.page_bytes == PAGE
    assert child.parent == parent.ref
    assert loaded_pages(store, "child") == pages(*range(1, 50), 777, *range(51, 101))


def test_pages_that_have_moved_are_still_the_parents(store):
    parent = save(store, "parent", pages(1, 2, 3, 4))
    child = save(store, "child", pages(9, 4, 3, 2, 1, 3), parent=parent)
    assert child.page_bytes == PAGE
    assert loaded_pages(store, "child") == pages(9, 4, 3, 2, 1, 3)


def test_a_page_that_only_a_grandparent_has_is_stored_again(store):
    grandparent = save(store, "g", pages(1, 2))
    parent = save(store, "p", pages(3, 2), parent=grandparent)
    child = save(store, "c", pages(1, 2), parent=parent)
    assert child.page_bytes == PAGE
    assert loaded_pages(store, "c") == pages(1, 2)


def test_the_recipe_of_the_root_is_stored_once_in_a_lineage(store):
    base = Base("id", b"r" * 100_000)
    parent = save(store, "parent", base=base)
    child = save(store, "child", base=base, parent=parent)
    other = save(store, "other", base=Base("id", b"s" * 100_000), parent=parent)
    assert parent.stored_bytes > 100_000 > child.stored_bytes
    assert other.stored_bytes > 100_000
    with store.load("child") as loaded:
        assert loaded.base.recipe == base.recipe


@pytest.mark.parametrize("parent", [ParentRef("gone", "0" * 32), ParentRef("base", "0" * 32)])
def test_a_parent_that_is_gone_or_another_by_now_is_done_without(store, parent):
    save(store, "base", pages(1))
    child = save(store, "child", pages(1), parent=parent)
    assert child.parent is None
    assert loaded_pages(store, "child") == pages(1)


def test_a_lineage_that_grows_too_deep_begins_anew(store):
    info = save(store, "n0", pages(1, 2, 3))
    flat = 0
    for number in range(1, 40):
        info = save(store, f"n{number}", pages(1, 2, 100 + number), parent=info)
        flat += info.parent is None
    assert flat == 1
    assert loaded_pages(store, "n39") == pages(1, 2, 139)


def test_a_damaged_parent_does_not_take_its_children_along(store):
    parent = save(store, "parent", pages(1))
    image_of(store, "parent").write_bytes(b"nonsense")
    assert save(store, "child", pages(1), parent=parent).parent is None


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "a b", "x" * 65, "a\0"])
def test_what_is_no_name_is_refused(store, name):
    for call in (store.info, store.load, store.remove, store.verify, store.flatten):
        with pytest.raises(InvalidRequest) as caught:
            call(name)
        assert caught.value.field == "snapshot"
    with pytest.raises(InvalidRequest) as caught:
        save(store, name)
    assert caught.value.field == "name"


def test_templates_and_snapshots_share_their_names(store):
    save(store, "python", kind="template")
    with pytest.raises(InvalidRequest) as caught:
        save(store, "python")
    assert (caught.value.code, caught.value.field) == ("name_taken", "name")
    assert store.info("python").kind == "template"


def test_a_name_that_is_taken_while_it_is_saved_is_refused_and_nothing_is_left(store, monkeypatch):
    def write(fd, draft):
        monkeypatch.undo()
        save(store, "x", pages(2))

    monkeypatch.setattr("ramet.store.store.write_image", write)
    with pytest.raises(InvalidRequest) as caught:
        save(store, "x", pages(1))
    assert caught.value.code == "name_taken"
    assert left_in(store) == []
    assert loaded_pages(store, "x") == pages(2)


def test_an_unknown_name_is_answered_with_those_that_are_like_it(store):
    save(store, "before-risk")
    with pytest.raises(InvalidRequest) as caught:
        store.load("before-rick")
    assert caught.value.code == "unknown_snapshot"
    assert "'before-risk'" in (caught.value.hint or "")


def test_snapshots_are_listed_by_name_and_a_damaged_one_with_its_damage(store):
    for name in ("b", "c", "a"):
        save(store, name)
    image_of(store, "b").write_bytes(b"")
    listed = store.list()
    assert [info.name for info in listed] == ["a", "b", "c"]
    assert [bool(info.damage) for info in listed] == [False, True, False]


# --- removing ---------------------------------------------------------------------------------------------


def test_a_removed_snapshot_is_gone_and_its_name_is_free(store):
    save(store, "x", pages(1))
    store.remove("x")
    assert store.list() == ()
    assert left_in(store) == []
    save(store, "x", pages(2))
    assert loaded_pages(store, "x") == pages(2)


def test_what_others_build_upon_is_not_removed_and_they_are_named(store):
    parent = save(store, "parent", pages(1))
    save(store, "one", parent=parent)
    save(store, "two", parent=parent)
    with pytest.raises(SnapshotError) as caught:
        store.remove("parent")
    assert (caught.value.code, caught.value.snapshot) == ("snapshot_in_use", "parent")
    assert "'one', 'two'" in caught.value.message
    store.remove("one")
    store.remove("two")
    store.remove("parent")
    assert store.names() == ()


def test_a_damaged_snapshot_can_be_removed(store):
    save(store, "x")
    image_of(store, "x").write_bytes(b"nonsense")
    assert store.remove("x").damage
    assert store.names() == ()


def test_a_flattened_snapshot_builds_upon_nothing_and_has_the_same_content(store):
    parent = save(store, "parent", pages(1, 2, 0, 3))
    child = save(store, "child", pages(1, 9, 0, 3), parent=parent)
    grandchild = save(store, "grandchild", pages(1, 9, 8, 3), parent=child)
    flat = store.flatten("child")
    assert flat.parent is None
    assert flat.content == child.content
    assert flat.page_bytes == 3 * PAGE
    store.remove("parent")
    assert loaded_pages(store, "child") == pages(1, 9, 0, 3)
    assert store.info("grandchild") == grandchild
    assert loaded_pages(store, "grandchild") == pages(1, 9, 8, 3)
    assert store.flatten("child") == flat


def test_a_parent_that_is_removed_while_its_child_is_saved_is_not_left_dangling(store, monkeypatch):
    from ramet.store import store as module

    parent = save(store, "parent", pages(1))
    write = module.write_image

    def write_slowly(fd, draft):
        store.remove("parent")
        return write(fd, draft)

    monkeypatch.setattr(module, "write_image", write_slowly)
    with pytest.raises(SnapshotError, match="removed meanwhile"):
        save(store, "child", pages(1), parent=parent)
    assert store.names() == ()


# --- the disk ---------------------------------------------------------------------------------------------


def test_a_full_disk_is_told_by_its_number_and_leaves_nothing(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(SnapshotError) as caught:
        save(store, "x", pages(1))
    assert (caught.value.code, caught.value.errno, caught.value.snapshot) == ("snapshot_not_saved", 28, "x")
    assert store.names() == ()
    assert left_in(store) == []


def test_nothing_is_promised_before_it_is_on_the_disk(store, monkeypatch):
    steps = []
    fsync, rename = os.fsync, os.rename
    kinds = {True: "directory", False: "file"}

    def note_fsync(fd):
        steps.append(f"fsync {kinds[os.path.isdir(f'/proc/self/fd/{fd}')]}")
        fsync(fd)

    def note_rename(*args, **options):
        steps.append("rename")
        rename(*args, **options)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    save(store, "x", pages(1))
    assert steps == ["fsync file", "fsync directory", "rename", "fsync directory"]


def test_work_of_the_dead_is_swept_away_and_that_of_the_living_is_not(store):
    tmp = Path(store.root) / "tmp"
    (tmp / "dead").mkdir()
    (tmp / "dead/image").write_bytes(b"half")
    (tmp / "stray").write_bytes(b"")
    save(store, "x", pages(1))
    with store.load("x") as loaded, Store(store.root):
        assert len(os.listdir(tmp)) == 1
        assert content(loaded.pages) == pages(1)


def test_threads_may_save_at_once(store):
    failures = []

    def work(number):
        try:
            save(store, f"t{number}", pages(number, number + 1))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all(loaded_pages(store, f"t{number}") == pages(number, number + 1) for number in range(8))


def test_threads_that_list_at_once_each_see_every_name(store):
    # Enough that the kernel tells them in more than one piece.
    for number in range(1500):
        os.mkdir(Path(store.root) / "snapshots" / f"{number:0>60}")
    wrong = []

    def look():
        for _ in range(50):
            wrong.extend(len(names) for names in [store.names()] if len(names) != 1500)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_snapshot_without_its_file_is_listed_as_damaged_and_can_be_removed(store):
    save(store, "lost", pages(1, 2))
    os.unlink(image_of(store, "lost"))
    (found,) = store.list()
    assert "missing" in found.damage
    assert store.remove("lost").name == "lost"
    assert store.names() == ()


# --- several stores ---------------------------------------------------------------------------------------


def test_a_linked_snapshot_is_the_same_file_and_stays_when_the_first_goes(store, tmp_path):
    with Store(str(tmp_path / "other")) as other:
        parent = save(other, "parent", pages(1, 2, 3), metadata={"command": ["sh"]})
        save(other, "child", pages(1, 7, 3), parent=parent)
        flat = other.copy("child", other, "flat")
        assert (flat.parent, flat.content) == (None, other.info("child").content)
        assert store.link("flat", other) == flat
        files = [os.stat(f"{one.root}/snapshots/flat/image") for one in (store, other)]
        assert files[0].st_ino == files[1].st_ino
        other.remove("flat")
    assert loaded_pages(store, "flat") == pages(1, 7, 3)
    built = save(store, "upon", pages(1, 7, 9), parent=flat)
    assert (built.page_bytes, built.parent) == (PAGE, flat.ref)


def test_only_what_builds_upon_nothing_is_linked_and_under_a_name_that_is_free(store, tmp_path):
    with Store(str(tmp_path / "other")) as other:
        parent = save(other, "parent", pages(1, 2, 3))
        save(other, "child", pages(1, 7, 3), parent=parent)
        with pytest.raises(SnapshotError, match="builds upon 'parent'"):
            store.link("child", other)
        save(store, "parent", pages(5))
        for take in (lambda: store.link("parent", other), lambda: store.copy("child", other, "parent")):
            with pytest.raises(InvalidRequest) as caught:
                take()
            assert caught.value.code == "name_taken"
        with pytest.raises(InvalidRequest) as caught:
            store.link("absent", other)
        assert caught.value.code == "unknown_snapshot"
    assert loaded_pages(store, "parent") == pages(5)


@pytest.mark.parametrize("name", ["../../etc/x", "/etc/x", ".hidden", "a/b", ""])
def test_the_name_that_a_pack_gives_itself_is_no_path(store, tmp_path, name):
    save(store, "first", pages(1, 2))
    pack = tmp_path / "pack"
    with store._opened("first") as image, pack.open("wb+") as file:
        image.header = dataclasses.replace(image.header, name=name)
        write_flat(file.fileno(), image)
    for named in (None, "good"):
        with pytest.raises(InvalidRequest) as refused:
            store.unpack(str(pack), named)
        assert refused.value.field == "name"
    assert store.names() == ("first",)


def test_a_pack_that_builds_upon_another_is_none(store, tmp_path):
    parent = save(store, "parent", pages(1, 2, 3))
    save(store, "child", pages(1, 7, 3), parent=parent)
    with pytest.raises(SnapshotDamaged, match="builds upon another"):
        store.unpack(f"{store.root}/snapshots/child/image", "taken")
    assert store.names() == ("child", "parent")
