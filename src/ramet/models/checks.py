"""What arguments of several requests are held against. Each raises InvalidRequest naming the argument."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ramet.errors import InvalidRequest
from ramet.models.limits import BY_NAME, parse_limit, parse_seconds, shown
from ramet.models.names import check_name, check_text

if TYPE_CHECKING:
    from collections.abc import Iterable

OnUnsupported = Literal["refuse", "drop"]
"""What becomes of what a fork cannot carry."""
TTL_S = 300.0
"""How long a detached sandbox lives that nobody is attached to and nobody asks for anything."""
TTL_MAX_S = 7 * 86400.0
METADATA_MAX = 16384
"""Most bytes of what is noted of a sandbox, as JSON in ASCII."""


def checked_ttl(value: object, *, detach: bool) -> float | None:
    """Seconds; None for a sandbox that ends with its owner."""
    if not detach:
        if value is not None:
            raise InvalidRequest.of("ttl", "is for detached sandboxes; this one ends with its owner")
        return None
    if value is None:
        return TTL_S
    seconds = parse_seconds(value, "ttl")
    if not 1 <= seconds <= TTL_MAX_S:
        text = f"{shown(value)} is out of range: from 1 to {TTL_MAX_S:g} seconds"
        raise InvalidRequest.of("ttl", text, code="out_of_range")
    return float(seconds)


def checked_timeout(value: object) -> float | None:
    """Seconds; None for no end."""
    return None if value is None else float(parse_limit(BY_NAME["wall"], value, "timeout"))


def smaller(one: float | None, other: float | None) -> float | None:
    """The smaller of two times, of which None is none."""
    return min([float(value) for value in (one, other) if value is not None], default=None)


def flag(value: object, field: str) -> bool:
    """`value` if it is true or false."""
    if not isinstance(value, bool):
        raise InvalidRequest.of(field, f"{shown(value)} is neither true nor false")
    return value


def only(data: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse what this version does not know."""
    if unknown := data.keys() - set(known):
        raise InvalidRequest.of(min(unknown), "is not known to this version", code="unknown_option")


def check_sandbox(value: object, field: str = "sandbox") -> str:
    """`value` as an id or a name of a sandbox. Raises InvalidRequest naming `field`."""
    return check_name(check_text(value, field), field)


def given(**values: object) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_on_unsupported(value: object, *, taken: bool = False) -> OnUnsupported:
    """What is to become of what cannot be carried. Raises InvalidRequest naming ``on_unsupported``."""
    if value == "refuse":
        return "refuse"
    if value != "drop":
        raise InvalidRequest.of("on_unsupported", f"{shown(value)} is neither 'refuse' nor 'drop'")
    if taken:
        raise InvalidRequest.of("on_unsupported", "is for what runs: a snapshot has been taken already")
    return "drop"


def check_metadata(value: object) -> dict[str, str]:
    """`value` as what a user notes of a sandbox. Raises InvalidRequest naming ``metadata``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest.of("metadata", f"must be a mapping of text to text, not {type(value).__name__}")
    found = {check_text(name, "metadata"): check_text(text, "metadata") for name, text in value.items()}
    check_metadata_size(found, METADATA_MAX)
    return found


def check_metadata_size(found: Mapping[str, Any], most: int) -> None:
    """Refuse what takes more than `most` bytes."""
    # As it is kept, in core's record of a sandbox and in a snapshot's header: JSON in ASCII.
    try:
        size = len(json.dumps(found))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest.of("metadata", f"cannot be told as JSON: {error}") from None
    if size > most:
        text = f"takes more than {most} bytes as JSON in ASCII"
        raise InvalidRequest.of("metadata", text, code="too_long")
