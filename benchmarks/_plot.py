"""A picture of medians over sizes, both axes logarithmic: SVG, written by hand."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 82, 56
COLOURS = ("#0b6e4f", "#c1440e", "#1f5aa6", "#6f6f6f", "#8a3ffc", "#a56a00")
LABEL_HEIGHT = 15
FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"
CONVERTERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("rsvg-convert", ("--zoom=2", "--output", "{png}", "{svg}")),
    ("inkscape", ("--export-type=png", "--export-dpi=192", "--export-filename={png}", "{svg}")),
    ("magick", ("-density", "192", "{svg}", "{png}")),
    ("convert", ("-density", "192", "{svg}", "{png}")),
)
"""Programs that make a PNG of an SVG, best first."""


@dataclass
class Line:
    """Points (x, y), both above 0, in order of x."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from `low` to `high`, drawn from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """An axis that shows all values, its ends at 1, 2 or 5 times a power of ten."""
        least, most = min(values), max(values)
        low = max(step for step in _steps(least) if step <= least * 1.0001)
        high = min(step for step in _steps(most) if step >= most * 0.9999)
        return cls(low, high if high > low else low * 10, start, end)

    def at(self, value: float) -> float:
        """The pixel of a value."""
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.start + share * (self.end - self.start)

    def marks(self) -> list[float]:
        """Where lines are drawn."""
        decades = math.log10(self.high / self.low)
        marks = [
            step
            for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
            if self.low * 0.999 <= step <= self.high * 1.001
        ]
        return marks if decades < 3.1 else [mark for mark in marks if f"{mark:e}"[0] == "1"]


def _steps(value: float) -> list[float]:
    power = math.floor(math.log10(value))
    return [digit * 10.0**exponent for exponent in (power, power + 1) for digit in (1, 2, 5)]


def picture(title: str, subtitle: str, axes: tuple[str, str], lines: Sequence[Line]) -> str:
    """The picture as SVG. `axes` are the words beside x and y."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    across = Axis.over(xs, LEFT, WIDTH - RIGHT)
    upward = Axis.over(ys, HEIGHT - BOTTOM, TOP)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 26, title, size=16, weight="bold"),
        _text(LEFT, 45, subtitle, colour="#555555"),
    ]
    for mark in across.marks():
        x = across.at(mark)
        parts.append(_rule(x, TOP, x, HEIGHT - BOTTOM))
        parts.append(_text(x, HEIGHT - BOTTOM + 18, f"{mark:g}", anchor="middle"))
    for mark in upward.marks():
        y = upward.at(mark)
        parts.append(_rule(LEFT, y, WIDTH - RIGHT, y))
        parts.append(_text(LEFT - 8, y + 4, f"{mark:g}", anchor="end"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 14, axes[0], anchor="middle", colour="#555555"))
    parts.append(_text(LEFT - 8, TOP - 12, axes[1], anchor="end", colour="#555555"))
    names = _spread([upward.at(line.points[-1][1]) for line in lines])
    for line, name_y, colour in zip(lines, names, COLOURS, strict=False):
        parts += _line(line, across, upward, colour)
        parts.append(_text(WIDTH - RIGHT + 10, name_y + 4, line.name, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _line(line: Line, across: Axis, upward: Axis, colour: str) -> list[str]:
    at = [(across.at(x), upward.at(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>']
    for (x, y), (_, value) in zip(at, line.points, strict=True):
        tip = escape(f"{line.name}: {value:.3g}")
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{tip}</title></circle>')
    return parts


def _spread(wanted: Sequence[float]) -> list[float]:
    """Places of labels near those that are wanted, none on another."""
    placed = list(wanted)
    order = sorted(range(len(placed)), key=lambda index: placed[index])
    for above, below in pairwise(order):
        placed[below] = max(placed[below], placed[above] + LABEL_HEIGHT)
    return placed


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    colour: str = "#222222",
    size: int = 12,
    weight: str = "normal",
) -> str:
    style = f'text-anchor="{anchor}" fill="{colour}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _convert(program: str, words: tuple[str, ...], svg: str, png: Path) -> str | None:
    """Make a PNG; what went wrong, or None."""
    file, name = tempfile.mkstemp(suffix=".svg")
    try:
        with os.fdopen(file, "w") as source:
            source.write(svg)
        arguments = [word.format(svg=name, png=png) for word in words]
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.unlink(name)
    if done.returncode or not png.exists():
        return f"{program}: {done.stderr.strip() or done.returncode}"
    return None


def converter() -> tuple[str, tuple[str, ...]] | None:
    """A program that makes PNG, tried out, and its arguments; None where there is none.

    One that is installed may still lack what it needs for SVG.
    """
    probe = picture("", "", ("", ""), [Line("", [(1, 1), (10, 10)])])
    with tempfile.TemporaryDirectory() as directory:
        for name, words in CONVERTERS:
            path = shutil.which(name)
            if path and _convert(path, words, probe, Path(directory, "probe.png")) is None:
                return path, words
    return None


def refusal(path: Path) -> str | None:
    """Why no picture can be written to `path`; None when it can."""
    if path.suffix == ".svg":
        return None
    if path.suffix != ".png":
        return f"{path}: the name of a picture ends with .svg or .png"
    if converter() is None:
        names = ", ".join(name for name, _ in CONVERTERS)
        return f"{path}: none of {names} makes a PNG here; an .svg needs none of them"
    return None


def write(path: Path, svg: str) -> None:
    """Write the picture, as what the name ends with. Raises RuntimeError when that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        path.write_text(svg)
        return
    found = converter()
    failed = _convert(*found, svg, path.absolute()) if found else refusal(path)
    if failed:
        raise RuntimeError(failed)
