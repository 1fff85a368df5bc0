"""A command over several names does what it can for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ramet.errors import RametError

__all__ = ["each"]


def each(names: Iterable[str], act: Callable[[str], object]) -> RametError | None:
    """Have `act` done for each name; the first error of those for which it failed."""
    failed = None
    for name in names:
        try:
            act(name)
        except RametError as error:
            failed = failed or error
    return failed
