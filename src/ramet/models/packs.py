"""Snapshots as single files, to be carried elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from ramet.errors import InvalidRequest
from ramet.models.checks import only
from ramet.models.names import check_name, check_text


def _path(value: object) -> str:
    path = check_text(value, "path")
    if not path.startswith("/"):
        raise InvalidRequest.of("path", f"{path[:80]!r} is not an absolute path", code="not_absolute")
    return path


@dataclasses.dataclass(frozen=True, slots=True)
class PackRequest:
    """Have the snapshot `name`, and what it builds upon, in a new file of this user's."""

    name: str
    path: str

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming the field at fault."""
        only(data, ("name", "path"))
        name = check_name(check_text(data.get("name", ""), "snapshot"), "snapshot")
        return cls(name, _path(data.get("path", "")))


@dataclasses.dataclass(frozen=True, slots=True)
class UnpackRequest:
    """Have what is packed in a file as a snapshot: under `name`, else under the name that it had."""

    path: str
    name: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming the field at fault."""
        only(data, ("path", "name"))
        name = data.get("name")
        return cls(
            _path(data.get("path", "")), None if name is None else check_name(check_text(name, "name"))
        )
