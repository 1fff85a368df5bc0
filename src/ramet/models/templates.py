"""Templates: named recipes, and the snapshots that they gave."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, Self

from ramet._version import __version__
from ramet.errors import InvalidRequest
from ramet.models.names import check_environment, check_name, check_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ramet.models.runs import Python
    from ramet.models.snapshots import Snapshot

WARM_CHILDREN_MAX = 64
KEY = "template"
"""Where a snapshot's metadata tell of its template."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """What a template is made of. Made by `of`, which checks it.

    `source` is the template or snapshot that it builds upon, None for a fresh kernel. `files` are contents by
    absolute path.
    """

    kernel: str
    source: str | None = None
    pip: tuple[str, ...] = ()
    from_venv: bool = False
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warm: str | None = None
    warm_children: int = 0

    @classmethod
    def of(
        cls,
        *,
        kernel: str,
        source: str | None = None,
        pip: Sequence[str] = (),
        from_venv: bool = False,
        files: Mapping[str, str | bytes] | None = None,
        env: Mapping[str, str] | None = None,
        warm: str | None = None,
        warm_children: int = 0,
    ) -> Self:
        """The checked recipe. Raises InvalidRequest naming the argument at fault."""
        if isinstance(pip, (str, bytes)):
            raise InvalidRequest.of("pip", "must be a list of requirements, not text")
        if type(warm_children) is not int or not 0 <= warm_children <= WARM_CHILDREN_MAX:
            text = f"{warm_children!r:.40} is out of range: from 0 to {WARM_CHILDREN_MAX}"
            raise InvalidRequest.of("warm_children", text, code="out_of_range")
        if kernel != "python" and (pip or from_venv):
            raise InvalidRequest.of("pip" if pip else "from_venv", f"is for Python, not for {kernel}")
        return cls(
            check_name(check_text(kernel, "kernel"), "kernel"),
            None if source is None else check_name(check_text(source, "from_"), "from_"),
            tuple([_requirement(one) for one in pip]),
            bool(from_venv),
            {_path(path): _content(path, data) for path, data in (files or {}).items()},
            check_environment(env),
            None if warm is None else check_text(warm, "warm"),
            warm_children,
        )

    def hash(self, python: Python | None, source: str, kernel: bytes, packages: str | None = None) -> str:
        """What tells templates apart: the recipe, the interpreter, what it builds upon, this version.

        `packages` tells of those that are taken of the caller's environment.
        """
        parts = {
            "ramet": __version__,
            "kernel": [self.kernel, hashlib.sha256(kernel).hexdigest()],
            "source": source,
            "python": None if python is None else python.to_wire(),
            "pip": self.pip,
            "packages": packages,
            "files": {path: hashlib.sha256(data).hexdigest() for path, data in sorted(self.files.items())},
            "env": dict(sorted(self.env.items())),
            "warm": self.warm,
            "warm_children": self.warm_children,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _requirement(value: object) -> str:
    text = check_text(value, "pip").strip()
    if not text or text.startswith("-"):
        raise InvalidRequest.of("pip", f"{text[:80]!r} is no requirement")
    return text


def _path(value: object) -> str:
    path = check_text(value, "files")
    if not path.startswith("/") or path.endswith("/") or ".." in path.split("/"):
        raise InvalidRequest.of("files", f"{path[:80]!r} is no absolute path of a file")
    return path


def _content(path: str, data: object) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes):
        return data
    raise InvalidRequest.of(
        "files", f"the content of {path[:80]} is {type(data).__name__}, not text or bytes"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """A template that is built: its snapshot, and what it was made of.

    `hash` is of all its inputs, `build_ms` how long it took; `cached` is true when it was there already.
    `log` holds what the build wrote.
    """

    name: str
    snapshot: Snapshot
    kernel: str
    hash: str
    source: str | None = None
    pip: tuple[str, ...] = ()
    warm: str | None = None
    warm_children: int = 0
    interpreter: str | None = None
    build_ms: float = 0.0
    cached: bool = False
    log: str = dataclasses.field(default="", repr=False)

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, *, cached: bool = True) -> Self | None:
        """The template that a snapshot was built for; None for any other snapshot."""
        told = snapshot.metadata.get(KEY)
        if not isinstance(told, dict):
            return None
        return cls(
            name=told.get("name", snapshot.name),
            snapshot=snapshot,
            kernel=told.get("kernel", ""),
            hash=told.get("hash", ""),
            source=told.get("source"),
            pip=tuple(told.get("pip", ())),
            warm=told.get("warm"),
            warm_children=told.get("warm_children", 0),
            interpreter=told.get("interpreter"),
            build_ms=told.get("build_ms", 0.0),
            cached=cached,
            log=told.get("log", ""),
        )

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
                "snapshot": self.snapshot.to_wire()}  # fmt: skip
