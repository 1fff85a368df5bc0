"""The audit log where it cannot be written."""

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ramet.server.guard import Audit


def test_what_cannot_be_noted_is_counted_and_said_once() -> None:
    audit = Audit("/dev/full")
    with capture_logs() as said:
        for number in range(3):
            audit(number=number)
    audit.close()
    assert audit.lost == 3
    assert [(one["event"], one["error"]) for one in said] == [
        ("audit log cannot be written", os.strerror(28)),
    ]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Have no file grow beyond that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heeded = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heeded)


def test_after_a_part_of_a_line_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(str(path))
    with capture_logs() as said, room_for(8):
        audit(text="too long for it")
    audit(number=2)
    audit.close()
    torn, whole = path.read_bytes().splitlines()
    assert (len(torn), json.loads(whole), audit.lost, len(said)) == (8, {"number": 2}, 1, 1)


def test_where_it_cannot_be_opened_anew_the_one_that_is_open_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "logs/audit"
    path.parent.mkdir()
    audit = Audit(str(path))
    moved = path.parent.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError):
        audit.reopen()
    audit(number=1)
    audit.close()
    assert json.loads((moved / "audit").read_text()) == {"number": 1}
