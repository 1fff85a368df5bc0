"""What a piece of code leaves behind that a kernel ran."""

from __future__ import annotations

import base64
import dataclasses
import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ramet.errors import CodeFailed
from ramet.models.results import Captured, brief

if TYPE_CHECKING:
    from collections.abc import Mapping

ExecutionReason = Literal["ok", "error", "interrupted", "timeout", "exit", "died"]


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One thing that code showed: the same in one or more formats, by MIME type.

    Formats that are no text are base64. `main` marks the value of the last expression. `left_out` are formats
    that were too large together (16 MiB), with their lengths.
    """

    data: Mapping[str, str]
    main: bool = False
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """As plain text."""
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        """As HTML."""
        return self.data.get("text/html")

    @property
    def markdown(self) -> str | None:
        """As Markdown."""
        return self.data.get("text/markdown")

    @property
    def latex(self) -> str | None:
        """As LaTeX."""
        return self.data.get("text/latex")

    @property
    def svg(self) -> str | None:
        """As SVG."""
        return self.data.get("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """As the bytes of a PNG file."""
        return self._binary("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """As the bytes of a JPEG file."""
        return self._binary("image/jpeg")

    @property
    def json(self) -> Any:
        """As what the JSON of it stands for; None where there is none."""
        text = self.data.get("application/json")
        return None if text is None else json.loads(text)

    def _binary(self, kind: str) -> bytes | None:
        text = self.data.get(kind)
        return None if text is None else base64.b64decode(text)


@dataclasses.dataclass(frozen=True, slots=True)
class ExecutionError:
    """The exception that ended a piece of code: its class, its text, the lines that a traceback has."""

    name: str
    value: str
    traceback: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.traceback) or (f"{self.name}: {self.value}" if self.value else self.name)


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """What became of one piece of code.

    `text` is the value of its last expression, as Python's repr() writes it, None where there is none.
    `results` are all things that it showed, that value among them. `reason` says how it ended: ``ok``,
    ``error`` (see `error`), ``interrupted`` (on request), ``timeout``, ``exit`` (it asked to end: the kernel
    goes on), ``died`` (the kernel is dead, and so is the sandbox; `error` says of what). `state_kept` is
    false when the kernel's state went with it. `exit_code` is of languages that have one for a piece of code.

    `duration_ms` counts from the request to the end. `epoch` tells in which life of the kernel it ended: a
    piece of code that runs at a fork ends in the parent and in each child, in each with its own.

    `text_length` is the length of the whole value where `text` is its first MiB; else None. Of more than 1000
    results `results_left_out` is how many are missing; callbacks had them.
    """

    id: str
    reason: ExecutionReason = "ok"
    text: str | None = None
    results: tuple[Result, ...] = ()
    error: ExecutionError | None = None
    exit_code: int | None = None
    duration_ms: float = 0.0
    epoch: int = 0
    state_kept: bool = True
    text_length: int | None = None
    results_left_out: int = 0
    out: Captured = dataclasses.field(default_factory=Captured, repr=False)
    err: Captured = dataclasses.field(default_factory=Captured, repr=False)

    @property
    def ok(self) -> bool:
        """True when it ended by itself and without an error."""
        return self.reason == "ok"

    @property
    def stdout(self) -> str:
        """What was written to standard output while it ran, as text."""
        return self.out.text()

    @property
    def stderr(self) -> str:
        """What was written to standard error while it ran, as text."""
        return self.err.text()

    @property
    def truncated(self) -> bool:
        """True when something is missing: of the output (limit ``output``), of `text`, or of `results`."""
        cut = self.text_length is not None or any(one.left_out for one in self.results)
        return bool(cut or self.results_left_out or self.out.left_out or self.err.left_out)

    def __repr__(self) -> str:
        return brief(self, ("id", "reason", "text", "stdout", "stderr"))

    def check(self) -> Execution:
        """Itself. Raises CodeFailed unless it is `ok`."""
        if not self.ok:
            raise CodeFailed(self)
        return self

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        error = self.error
        return {
            "id": self.id,
            "reason": self.reason,
            "text": self.text,
            "results": [{"data": dict(one.data), "main": one.main} for one in self.results],
            "error": error and {"name": error.name, "value": error.value, "traceback": [*error.traceback]},
            "exit_code": self.exit_code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "truncated": self.truncated,
            "duration_ms": self.duration_ms,
            "epoch": self.epoch,
            "state_kept": self.state_kept,
            "text_length": self.text_length,
            "results_left_out": self.results_left_out,
        }


def result_from(data: Mapping[str, Any]) -> Result:
    """The result of a kernel's event. All of it is hostile: raises ValueError for what is none."""
    formats = data.get("data")
    if not isinstance(formats, dict) or not all(isinstance(text, str) for text in formats.values()):
        raise ValueError("a result is no mapping of MIME types to text")
    dropped = data.get("dropped")
    left_out = dropped if isinstance(dropped, dict) else {}
    if not all(isinstance(length, int) for length in left_out.values()):
        raise ValueError("a result does not say how much of it was left out")
    return Result(MappingProxyType(formats), data.get("main") is True, MappingProxyType(left_out))


def error_from(data: object) -> ExecutionError | None:
    """The error of a kernel's event. Raises ValueError for what is none."""
    if data is None:
        return None
    if not isinstance(data, dict):
        raise ValueError("an error is no object")  # noqa: TRY004  it is content, not a caller's type
    lines = data.get("traceback", [])
    texts = [data.get("name"), data.get("value"), *(lines if isinstance(lines, list) else [None])]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("an error is not made of text")
    return ExecutionError(texts[0], texts[1], tuple(texts[2:]))
