"""What core says when it refuses: an ERROR frame becomes an exception."""

from __future__ import annotations

import os

from ramet.errors import InternalError, InvalidRequest, IsolationError, NoRoom, ProtocolMismatch, RametError
from ramet.native import _protocol as p
from ramet.native import frames

_NO_ROOM = {
    "no_memory": "end sandboxes or other programs, or lower RAMET_MEMORY_RESERVE",
    "too_many_sandboxes": "end some",
    **{
        f"total_{name}": f"end some sandboxes, ask for smaller limits, or raise RAMET_TOTAL_{name.upper()}"
        for name in ("memory", "cpus", "processes", "sandboxes")
    },
}


def error_of(frame: frames.Frame) -> RametError:
    """The exception for an ERROR frame: the class follows the code, step and errno are carried along."""
    found = frames.attributes(frame.payload)
    code = found.text(p.TAG_CODE, "internal")
    message = found.text(p.TAG_TEXT) or code
    field = found.text(p.TAG_FIELD) or None
    number = found.u32(p.TAG_ERRNO)
    step = found.u32(p.TAG_STEP)
    name = p.STEP_NAMES.get(step, str(step)) if step else None
    if step:
        reason = os.strerror(number) if number else ""
        text = f"{name}: {message}" if reason in message else f"{name}: {message}: {reason}"
        return IsolationError(code, text, step=name, errno=number or None, field=field)
    if code == "version":
        theirs = found.u32(p.TAG_VERSION)
        return ProtocolMismatch(
            "protocol_mismatch",
            f"core speaks protocol {theirs or 'unknown'}, this daemon speaks {p.PROTOCOL_VERSION}: {message}",
        )
    if code == "malformed":
        return InternalError("internal", f"core refused a frame: {message}", field=field)
    if code in _NO_ROOM:
        return NoRoom(code, message, hint=_NO_ROOM[code])
    if field:
        return InvalidRequest(code, message, field=field)
    return RametError(code, message, errno=number or None)
