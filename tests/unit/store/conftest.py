"""A store of one's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.store import Store
from unit.store import material


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store, that must be left without work in progress."""
    with Store(str(tmp_path / "store")) as made:
        yield made
        assert material.left_in(made) == []
