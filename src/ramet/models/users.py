"""Whose a command is, by numbers: names of accounts are not looked up inside."""

from __future__ import annotations

import re

from ramet.errors import InvalidRequest
from ramet.models.limits import shown

ROOT = (0, 0)
ID_MAX = 0xFFFFFFFE
_USER = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")


def parse_user(value: object) -> tuple[int, int]:
    """Uid and gid from a number, ``"UID"``, ``"UID:GID"`` or ``"root"``; a lone uid's group has its number.

    Raises InvalidRequest naming ``user``.
    """
    if value is None or value == "root":
        return ROOT
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    match = _USER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        text = f"{shown(value)} is no user: a uid, UID:GID, or root"
        raise InvalidRequest.of("user", text, hint="names of accounts are not looked up inside")
    uid = int(match[1])
    gid = uid if match[2] is None else int(match[2])
    if max(uid, gid) > ID_MAX:
        raise InvalidRequest.of("user", f"{shown(value)} is out of range", code="out_of_range")
    return uid, gid


def single_uid_error() -> InvalidRequest:
    """The refusal of another user where there is only one."""
    return InvalidRequest.of(
        "user", "only one user id exists in this sandbox", code="single_uid",
        hint="subordinate ids for this account (newuidmap), or a daemon of root, bring more",
    )  # fmt: skip
