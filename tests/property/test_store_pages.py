"""Whatever the pages and however they change, a chain of deltas gives back what each snapshot had."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.store import Store
from unit.store.material import BASE, PAGE, exported, left_in, page

# Few contents, so that pages repeat, move, come back, and meet those of the parent at other places.
contents = st.integers(0, 9)
layouts = st.lists(st.tuples(contents, st.integers(1, 40)), max_size=12)
tails = st.binary(max_size=100)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """What is on the disk after a power cut is not asked here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@contextmanager
def stores() -> Iterator[Store]:
    """A store for one example."""
    with tempfile.TemporaryDirectory() as directory, Store(directory) as store:
        yield store
        assert left_in(store) == []


def laid_out(layout: list[tuple[int, int]]) -> list[int]:
    """Page numbers of a layout of runs."""
    return [number for content, count in layout for number in [content] * count]


def bytes_of(numbers: list[int]) -> bytes:
    return b"".join([page(number) for number in numbers])


@st.composite
def generations(draw: st.DrawFn) -> list[bytes]:
    """Page files, each of which was made from the one before by some changes. At most a depth of six."""
    numbers = laid_out(draw(layouts))
    files = [bytes_of(numbers) + draw(tails)]
    for generation in range(1, draw(st.integers(1, 7))):
        for _ in range(draw(st.integers(0, 6))):
            at = draw(st.integers(0, len(numbers)))
            end = draw(st.integers(at, min(at + 20, len(numbers))))
            change = draw(st.sampled_from(["write", "insert", "remove", "move"]))
            if change == "write":
                numbers[at:end] = [100 * generation + draw(contents)] * (end - at)
            elif change == "insert":
                numbers[at:at] = laid_out(draw(st.lists(st.tuples(contents, st.integers(1, 9)), max_size=2)))
            elif change == "remove":
                del numbers[at:end]
            else:
                moved = numbers[at:end]
                del numbers[at:end]
                place = draw(st.integers(0, len(numbers)))
                numbers[place:place] = moved
        files.append(bytes_of(numbers) + draw(tails))
    return files


def read(store: Store, name: str) -> bytes:
    with store.load(name) as loaded:
        return os.pread(loaded.pages, os.fstat(loaded.pages).st_size, 0)


@given(generations())
def test_a_chain_of_deltas_equals_what_stands_alone(files):
    with stores() as store:
        parent = None
        for number, data in enumerate(files):
            for name, ref in ((f"delta{number}", parent), (f"alone{number}", None)):
                with exported(data) as given_:
                    store.save(name, given_, base=BASE, filter_hash="", parent=ref)
            parent = store.info(f"delta{number}").ref
        for number, data in enumerate(files):
            delta, alone = store.info(f"delta{number}"), store.info(f"alone{number}")
            assert read(store, delta.name) == read(store, alone.name) == data
            assert delta.content == alone.content
            assert delta.page_bytes <= alone.page_bytes
        # Once the oldest stand by themselves, the youngest do not notice.
        for number in range(len(files)):
            store.flatten(f"delta{number}")
            assert read(store, f"delta{len(files) - 1}") == files[-1]
        assert [store.verify(info.name).parent for info in store.list()] == [None] * 2 * len(files)


@given(layouts, st.sets(st.integers(0, 200)), tails)
def test_holes_are_pages_of_zeros_and_take_no_room(layout, holes, tail):
    from ramet.store import Exported
    from unit.store.material import memory

    numbers = laid_out(layout)
    data = bytes_of([0 if at in holes else number for at, number in enumerate(numbers)]) + tail
    fds = [memory(b"d"), memory(data, sorted(holes & set(range(len(numbers)))))]
    with stores() as store:
        info = store.save("x", Exported(fds[0], fds[1], []), base=BASE, filter_hash="")
        assert read(store, "x") == data
        kept = {at for at in range(0, len(data), PAGE) if data[at : at + PAGE].strip(b"\0")}
        assert info.page_bytes <= len(kept) * PAGE
        with store.load("x") as loaded:
            assert os.fstat(loaded.pages).st_blocks * 512 <= len(kept) * PAGE
    for fd in fds:
        os.close(fd)


@given(generations())
def test_a_delta_stores_no_page_that_its_parent_has(files):
    with stores() as store:
        parent, before = None, set()
        for number, data in enumerate(files):
            with exported(data) as given_:
                info = store.save(f"n{number}", given_, base=BASE, filter_hash="", parent=parent)
            now = {data[at : at + PAGE].ljust(PAGE, b"\0") for at in range(0, len(data), PAGE)}
            new = [
                at
                for at in range(0, len(data), PAGE)
                if data[at : at + PAGE].ljust(PAGE, b"\0") not in before
            ]
            assert info.page_bytes <= len(new) * PAGE
            parent, before = info.ref, now
