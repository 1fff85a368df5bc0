"""What takes long says so, on standard error and only where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["working"]


@contextlib.contextmanager
def working(text: str | None) -> Iterator[Callable[[str], object]]:
    """Show `text`, with the time that has passed, until the block ends. What is yielded changes it.

    None: nothing that takes long.
    """
    if text is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield lambda now: shown.update(task, description=now)
