"""The one validator for names and text that come from outside."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NAME = re.compile(NAME_PATTERN)


def check_name(value: str, field: str = "name") -> str:
    """`value` if it is a legal name: 1 to 64 of ``A-Z a-z 0-9 . _ -``, the first a letter or digit.

    Raises InvalidRequest naming `field`.
    """
    if not _NAME.fullmatch(value):
        raise InvalidRequest.of(field, f"{value[:80]!r} is not a name ({NAME_PATTERN})")
    return value


def check_text(value: object, field: str) -> str:
    """`value` as text the kernel can take: str, bytes or a path, without NUL.

    Bytes that are not UTF-8 are carried as surrogates, as `os.fsdecode` does. Raises InvalidRequest naming
    `field`.
    """
    if type(value) is not str:
        value = _as_text(value, field)
    if "\0" in value:
        raise InvalidRequest.of(field, "contains a NUL character", code="nul_in_text")
    if not value.isascii():
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidRequest.of(field, "contains half of a character (a lone surrogate)") from None
    return value


def _as_text(value: object, field: str) -> str:
    import os

    if isinstance(value, (str, bytes, os.PathLike)):
        return os.fsdecode(value)
    raise InvalidRequest.of(field, f"must be text, not {type(value).__name__}")


def check_variable(name: object) -> str:
    """`name` if the environment can hold a variable of that name. Raises InvalidRequest naming ``env``."""
    text = check_text(name, "env")
    if not text or "=" in text:
        raise InvalidRequest.of("env", f"{text[:80]!r} cannot be the name of a variable")
    return text


def check_environment(env: object) -> dict[str, str]:
    """`env`, a mapping or pairs, as variables; None are none. Raises InvalidRequest naming ``env``."""
    try:
        pairs = {} if env is None else dict(env)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        kind = type(env).__name__
        raise InvalidRequest.of("env", f"must be a mapping of text to text, not {kind}") from None
    return {check_variable(name): check_text(value, "env") for name, value in pairs.items()}


def near(name: str, known: Iterable[str]) -> str | None:
    """A hint with the names that are most like `name`; None when none is."""
    import difflib

    found = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else None
