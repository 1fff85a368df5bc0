"""How messages of kernels are cut into packets and lines. What comes from a kernel is hostile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKET = 1 << 15
"""Bytes of the largest packet, its mark included."""

EVENT_MAX = 1 << 26
"""Bytes of the largest event."""

MORE, FIRST = 1, 2

FRESH = b"\x18\n"
"""What a fresh channel of lines begins with: whatever half line was read before becomes none at all."""

# json.dumps() makes an encoder for each call with separators.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
SEPARATOR, END = "\x1f", "end"
_FIELDS = {
    "run": ("id", "context", "code"),
    "ping": ("id",),
    "end_context": ("context",),
    "forked": ("epoch", "sandbox", "hostname", "seed"),
}


class BadEvent(ValueError):
    """A kernel sent what is no event."""


def packets(message: bytes, *, first: bool = False) -> list[bytes]:
    """`message` in packets; with `first`, the first one has whatever was gathered before thrown away."""
    room = PACKET - 1
    cut = [message[place : place + room] for place in range(0, len(message), room)] or [b""]
    marks = [MORE] * (len(cut) - 1) + [0]
    if first:
        marks[0] |= FIRST
    return [bytes((mark,)) + part for mark, part in zip(marks, cut, strict=True)]


def as_json(message: Mapping[str, Any]) -> bytes:
    """`message` on one line."""
    return _encode(message).encode("ascii")


def as_fields(message: Mapping[str, Any]) -> bytes:
    """`message` for a shell: escaped fields, and a mark at the end that no part of a line can have."""
    values = [message["op"], *(message.get(name) for name in _FIELDS[message["op"]])]
    for name, value in (message.get("env") or {}).items():
        values.append(name if value is None else f"{name}={value}")
    return SEPARATOR.join([*map(escape, values), END]).encode("utf-8", "surrogateescape")


def escape(value: object) -> str:
    """`value` as printf's %b reads it back. Raises InvalidRequest for NUL, which no shell can hold."""
    text = "" if value is None else str(value)
    if "\0" in text:
        raise InvalidRequest.of("code", "contains a NUL character", code="nul_in_text")
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace(SEPARATOR, "\\x1f")


class Decoder:
    """Gathers events from what is read of a channel; `fresh` if it was given to a kernel by a fork."""

    def __init__(self, channel: Literal["packets", "lines"], *, fresh: bool = False) -> None:
        self.feed = self._packet if channel == "packets" else self._bytes
        self._fresh = fresh
        self._parts: list[bytes] = []
        self._size = 0

    def _packet(self, packet: bytes) -> list[dict[str, Any]]:
        """Events that are complete with `packet`: none or one. Raises BadEvent."""
        if not packet or packet[0] > MORE | FIRST:
            raise BadEvent("a packet without a mark")
        mark = packet[0]
        if mark & FIRST:
            self._drop()
        elif not self._parts:
            return []  # the rest of a message that went to the parent's channel
        self._gather(packet[1:])
        if mark & MORE:
            return []
        return [_event(self._take())]

    def _bytes(self, data: bytes) -> list[dict[str, Any]]:
        """Events that are complete with `data`. Raises BadEvent."""
        events = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._gather(line)
            whole = self._take()
            if not whole.strip():
                continue
            try:
                events.append(_event(whole))
            except BadEvent:
                # The rest of a line that went to the parent's channel; there can be but one.
                if not self._fresh:
                    raise
            self._fresh = False
        if rest:
            self._gather(rest)
        return events

    def _gather(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > EVENT_MAX:
            raise BadEvent(f"an event of more than {EVENT_MAX} bytes")
        self._parts.append(part)

    def _take(self) -> bytes:
        whole = b"".join(self._parts)
        self._drop()
        return whole

    def _drop(self) -> None:
        self._parts.clear()
        self._size = 0


def _event(message: bytes) -> dict[str, Any]:
    try:
        event = _decode(message.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise BadEvent(f"not JSON: {message[:80]!r}") from None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise BadEvent(f"not an event: {message[:80]!r}")
    return event
