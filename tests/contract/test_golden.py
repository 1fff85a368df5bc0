"""Golden frames: what stands in golden/*.bin is what Python writes, and reads as frames.json says."""

import json
import sys
from pathlib import Path

import pytest

from ramet.native import _protocol as p
from ramet.native import frames

GOLDEN = Path(__file__).resolve().parent / "golden"
WRITERS = {
    "u32": frames.u32,
    "u64": lambda tag, value: frames.u64(tag, int(value)),
    "text": frames.text,
    "hex": lambda tag, value: frames.raw(tag, bytes.fromhex(value)),
}


def samples():
    """What the files hold: name, then the frame as JSON. u64 as text, which JSON's numbers cannot hold."""
    return json.loads((GOLDEN / "frames.json").read_text())


def encoded(sample):
    """The bytes of a sample."""
    payload = b"".join(
        WRITERS[kind](getattr(p, f"TAG_{tag}"), value) for tag, kind, value in sample["attributes"]
    )
    return frames.encode(getattr(p, sample["kind"]), int(sample["request"]), payload, sample["fds"])


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample["file"])
def test_python_writes_the_golden_bytes(sample):
    assert encoded(sample) == (GOLDEN / sample["file"]).read_bytes()


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample["file"])
def test_python_reads_the_golden_bytes(sample):
    data = (GOLDEN / sample["file"]).read_bytes()
    frame = frames.parse(data, len(data), [0] * sample["fds"])
    assert p.KIND_NAMES[frame.kind] == sample["kind"].lower()
    assert frame.request == int(sample["request"])
    found = frames.decode(frame.payload)
    assert [p.TAG_NAMES[tag].upper() for tag, _ in found] == [tag for tag, _, _ in sample["attributes"]]
    for (tag, value), (_, kind, wanted) in zip(found, sample["attributes"], strict=True):
        assert WRITERS[kind](tag, wanted) == frames.raw(tag, value)


def test_every_golden_file_is_described_and_every_description_has_its_file():
    assert {sample["file"] for sample in samples()} == {path.name for path in GOLDEN.glob("*.bin")}


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    for one in samples():
        (GOLDEN / one["file"]).write_bytes(encoded(one))
