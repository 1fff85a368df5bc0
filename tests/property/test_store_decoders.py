"""Images whose hashes are right and whose content is not: readers refuse them by name, or read them.

A hash finds what a disk has changed. What somebody has written with a program of their own has right hashes,
so every decoder behind them gets nonsense here.
"""

import copy
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.errors import RametError
from ramet.store import Store
from ramet.store.blocks import PAGE
from ramet.store.container import Container, Writer
from unit.store.material import left_in, pages, plant, save

Parts = tuple[dict[str, Any], dict[str, bytes]]
FUZZ_S = float(os.environ.get("RAMET_FUZZ_S", "4"))


@pytest.fixture(scope="module")
def lineage(tmp_path_factory):
    """A store with a parent and a child, both with everything."""
    top = tmp_path_factory.mktemp("decoders")
    layer = top / "layer"
    layer.mkdir()
    plant(layer)
    own = top / "own"
    own.mkdir()
    (own / "f").write_text("x")
    with Store(str(top / "store")) as store:
        parent = save(
            store, "parent", pages(*range(1, 20), 0, 0, 3), uppers=[layer], metadata={"a": [1, {"b": None}]}
        )
        save(store, "child", pages(*range(1, 9), 0, 100, 101, 3), uppers=[own, layer], parent=parent)
        yield store


@pytest.fixture(scope="module")
def originals(lineage) -> dict[str, Parts]:
    return {name: taken_apart(path(lineage, name)) for name in lineage.names()}


def path(store: Store, name: str) -> Path:
    return Path(store.root) / "snapshots" / name / "image"


def taken_apart(file: Path) -> Parts:
    container = Container(os.open(file, os.O_RDONLY), file.parent.name)
    sections = {}
    for name in container.sections:
        sections[name] = b"".join([bytes(chunk) for chunk in container.chunks(name)])
    header = {key: value for key, value in container.header.items() if key != "sections"}
    container.close()
    return header, sections


def put_together(file: Path, parts: Parts) -> None:
    """Write an image, all of whose hashes are right."""
    header, sections = parts
    file.unlink(missing_ok=True)
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    writer = Writer(fd)
    for name, data in sections.items():
        is_pages = name == "pages"
        section = writer.section(name, block=PAGE, align=PAGE) if is_pages else writer.section(name)
        section.write(data)
        section.close()
    writer.finish(header)
    os.close(fd)


def survives(store: Store, name: str = "child") -> bool:
    """Whether it can be read; whatever is wrong must be told as an error of ours."""
    try:
        store.list()
        store.load(name).close()
        store.verify(name)
    except RametError:
        return False
    finally:
        assert left_in(store) == []
    return True


def test_what_is_put_together_from_its_parts_is_read(lineage, originals):
    for name, parts in originals.items():
        put_together(path(lineage, name), parts)
    assert survives(lineage)


# --- values of the header ---------------------------------------------------------------------------------

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 5),
        st.sampled_from([2**31, 2**62, 2**64, -(2**70), 0.5, 1e308]),
        st.text(max_size=5),
        st.sampled_from(["parent", "child", "0" * 32, "f" * 32, "../parent"]),
    ),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3),
    max_leaves=5,
)


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything in a JSON value."""
    found = [above] if above else []
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in rows:
        found += places(below, (*above, key))
    return found


@settings(max_examples=150)
@given(st.data())
def test_headers_with_other_values(lineage, originals, data):
    name = data.draw(st.sampled_from(["child", "parent"]))
    header, sections = copy.deepcopy(originals[name])
    for _ in range(data.draw(st.integers(1, 2))):
        *above, last = data.draw(st.sampled_from(places(header)))
        at = header
        for key in above:
            at = at[key]
        if data.draw(st.booleans()) or not isinstance(at, dict):
            at[last] = data.draw(values)
        else:
            del at[last]
        if not header:
            break
    put_together(path(lineage, name), (header, sections))
    survives(lineage, name)
    put_together(path(lineage, name), originals[name])


def test_an_image_that_is_its_own_parent_is_refused(lineage, originals):
    header, sections = copy.deepcopy(originals["parent"])
    header["parent"] = ["parent", header["content"]]
    put_together(path(lineage, "parent"), (header, sections))
    with pytest.raises(RametError, match="more snapshots than any may"):
        lineage.load("parent")
    put_together(path(lineage, "parent"), originals["parent"])


# --- bytes of the sections --------------------------------------------------------------------------------


def mutated(data: bytes, chance: random.Random) -> bytes:
    """`data` with a few changes of the kinds that have broken decoders before."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0:
                del changed[at : at + chance.choice([1, 4, 8, 16, 1000])]
            case 1:
                changed[at:at] = changed[at : at + chance.choice([1, 8, 16, 100])]
            case 2:
                changed[at : at + 8] = chance.choice([0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]).to_bytes(
                    8, "little"
                )
            case 3:
                changed[at : at + 4] = chance.choice([0, 1, 2**16, 2**31, 2**32 - 1]).to_bytes(4, "little")
            case 4:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case _:
                changed[at:at] = chance.randbytes(chance.choice([1, 4, 40]))
    return bytes(changed)


def renewed(parts: Parts) -> Parts:
    """The hashes of hashes in the header are right as well, so that readers go on behind them."""
    from ramet.store.blocks import count_blocks, digests
    from ramet.store.container import content_hash
    from ramet.store.header import Header
    from ramet.store.pages import PageHashes, PageIndex

    header, sections = copy.deepcopy(parts)
    for number, layer in enumerate(header["layers"]):
        if layer[2] is None:
            layer[1] = content_hash(sections[f"layer-{number}"])
    if not header["inherits_base"]:
        header["base"] = content_hash(sections["base"])
    if header["parent"] is None:
        try:
            own = b"".join(digests(sections["pages"], PAGE))
            count = count_blocks(header["page_bytes"], PAGE)
            index = PageIndex.decode(sections["extents"], count=count, own=len(own) // 16, parent=0)
        except ValueError:
            return header, sections
        read = Header.from_json({**header, "sections": []})
        hashes = [content_hash(sections[name]) for name in ("description", "files")]
        header["content"] = read.content_of(*hashes, index.hashes(own, PageHashes()))
    return header, sections


def test_sections_with_other_bytes(lineage, originals):
    chance = random.Random(20261129)
    end = time.monotonic() + FUZZ_S
    rounds = read = 0
    while time.monotonic() < end:
        name = chance.choice(["child", "parent"])
        header, sections = originals[name]
        section = chance.choice([one for one in sections if one != "pages"])
        parts = header, {**sections, section: mutated(sections[section], chance)}
        put_together(path(lineage, name), renewed(parts) if chance.randrange(4) else parts)
        rounds += 1
        read += survives(lineage, name)
        put_together(path(lineage, name), originals[name])
    assert rounds > 20
    assert read < rounds


def test_lists_of_files_with_other_values(lineage, originals):
    header, sections = originals["parent"]
    for rows in (
        [],
        [None],
        [["a"]],
        [["a", "b", [1, 2, 3, 4, 5], 7]],
        "text",
        {"a": 1},
        [["/a", "/b", [1, 2, 3, 4], ""]],
    ):
        changed = {**sections, "files": json.dumps({"files": rows}).encode()}
        put_together(path(lineage, "parent"), renewed((header, changed)))
        try:
            lineage.load("parent").close()
        except RametError:
            continue
        assert rows == []
    put_together(path(lineage, "parent"), originals["parent"])
