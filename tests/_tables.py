"""Writes the tables that pages take from the code. `python tests/_tables.py` rewrites them in place.

A table stands between `<!-- NAME: ... -->` and `<!-- end -->`.
"""

import re
import sys
from pathlib import Path

from ramet.cli.render import amount
from ramet.models.limits import LIMITS
from ramet.native._protocol import STEP_NAMES

ROOT = Path(__file__).resolve().parent.parent
UNITS = {"count": "count", "bytes": "size", "seconds": "time"}
STAGES = (
    (1, "the launcher"),
    (10, "core, at its start"),
    (20, "core, when it learns a root"),
    (30, "core, at the birth of a pool entry"),
    (40, "init, before hand-out"),
    (50, "core, at hand-out"),
    (60, "init, at hand-out"),
    (80, "the command's process, before exec"),
    (100, "the tracer, during a snapshot"),
    (120, "a stem, when it is built"),
    (140, "a fork's process, before it goes on"),
)


def limits() -> str:
    """The limits, as options and as names."""
    rows = ["| limit | option | default | enforced by |", "|---|---|---|---|"]
    for spec in LIMITS:
        default = amount(spec.default, spec.unit)
        who = f"cgroup, or {spec.enforced_by}" if spec.controller else spec.enforced_by
        rows.append(f"| {spec.summary} | `{spec.name}`, `{spec.option}` | {default} | {who} |")
    return "\n".join(rows)


def steps() -> str:
    """The named steps, by who performs them."""
    rows = ["| who | steps |", "|---|---|"]
    bounds = [first for first, _ in STAGES[1:]] + [sys.maxsize]
    for (first, who), end in zip(STAGES, bounds, strict=True):
        names = [f"`{name}`" for number, name in sorted(STEP_NAMES.items()) if first <= number < end]
        rows.append(f"| {who} | {', '.join(names)} |")
    return "\n".join(rows)


TABLES = {"limits": limits, "steps": steps}
PLACE = re.compile(r"(<!-- (limits|steps): [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


def written(text: str) -> str:
    """The page with its tables as they should be."""
    return PLACE.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", text)


def pages() -> list[Path]:
    """The pages with a table."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(page for page in found if PLACE.search(page.read_text()))


if __name__ == "__main__":
    for page in pages():
        page.write_text(written(page.read_text()))
