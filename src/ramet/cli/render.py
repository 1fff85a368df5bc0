"""Words and tables for people. Rich is imported where a table is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.models.limits import BY_NAME, GIB, KIB, MIB, TIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from ramet.doctor import Check
    from ramet.models.results import CommandResult
    from ramet.models.status import Finding

__all__ = ["age", "amount", "checks", "console", "end_note", "how_it_ended", "pairs", "size", "table"]

_SCALES = (("T", TIB), ("G", GIB), ("M", MIB), ("K", KIB))
_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def amount(value: float, unit: str) -> str:
    """A limit as one would type it: ``1G``, ``300s``, ``256``."""
    if unit == "seconds":
        return f"{value:g}s" if value < 86_400 else f"{value / 3600:g}h"
    if unit == "processors":
        return f"{value:g}"
    number = int(value)
    for letter, scale in _SCALES if unit == "bytes" and number else ():
        if number % scale == 0:
            return f"{number // scale}{letter}"
    return str(number)


def size(value: int) -> str:
    """A measured size, to three digits: ``11.4 MiB``."""
    for letter, scale in _SCALES:
        if value >= scale:
            return f"{value / scale:.3g} {letter}iB"
    return f"{value} B"


def age(seconds: float) -> str:
    """A span of time in its largest unit: ``12s``, ``5m``, ``3h``, ``2d``."""
    for letter, scale in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.0f}{letter}"
    return f"{max(0.0, seconds):.0f}s"


def how_it_ended(result: CommandResult) -> str:
    """The end of a command in a few words."""
    limit = BY_NAME.get(result.limit or "")
    if result.reason == "exit":
        return f"exit code {result.exit_code}" + (f" (limit {limit.option})" if limit else "")
    if result.reason == "timeout":
        return "out of time, every process killed"
    if result.reason == "idle":
        return "nothing in it ran for too long (--idle)"
    if result.reason in {"oom", "disk", "cpu"} and limit:
        value = amount(result.limit_value or 0, limit.unit)
        return f"more than its {limit.name} of {value} ({limit.option})"
    if result.reason == "signal":
        return f"ended by {result.signal}" + (f" (limit {limit.option})" if limit else "")
    return "its sandbox was ended from outside" if result.reason == "killed" else "its sandbox was lost"


def end_note(result: CommandResult, timeout: str | None) -> str | None:
    """What the exit code alone does not tell; None where it tells all. `timeout` as it was asked for."""
    if result.reason == "timeout":
        spec = BY_NAME["wall"]
        return f"the command ran longer than {timeout or amount(spec.default, spec.unit)} ({spec.option})"
    if result.reason in {"killed", "lost"} or result.limit:
        return f"the command: {how_it_ended(result)}"
    return None


def console() -> Console:
    """Standard output. Lines are as long as their text, so that commands can be copied from them."""
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


def pairs(values: Mapping[str, object]) -> None:
    """Names and values, one a line."""
    width = max(map(len, values))
    for name, value in values.items():
        print(f"{name:{width}}  {value}")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns under their heads, as wide as what stands in them."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        print("  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip())


def checks(found: Sequence[Check | Finding]) -> None:
    """The findings of `ramet doctor`, and the commands that mend what is not well."""
    from rich.table import Table
    from rich.text import Text

    out = console()
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    grid.add_column()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for one in found:
        grid.add_row(Text(one.status, _STYLES[one.status]), one.name, one.detail)
    out.print(grid, soft_wrap=False)
    counts = {status: sum(one.status == status for one in found) for status in _STYLES}
    out.print(f"\n{counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail")
    for one in found:
        if one.status != "pass" and one.fix:
            out.print(f"\n{one.status}: {one.name}. To mend it:", style=_STYLES[one.status])
            out.print(f"    {one.fix}")
