"""Errors on their way out: the status of each, and one JSON body for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from ramet.errors import (
    DaemonError,
    FileError,
    ForkError,
    InvalidRequest,
    NoRoom,
    RametError,
    SandboxEnded,
    SnapshotError,
    TemplateError,
    Unforkable,
    WaitTimeout,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# The first class that fits counts. What is dead is as gone as what never was: 404, as forkd has it.
_BY_CLASS: tuple[tuple[type[RametError], int], ...] = (
    (SandboxEnded, 404),
    (NoRoom, 429),
    (Unforkable, 409),
    (WaitTimeout, 504),
    (SnapshotError, 409),
    (TemplateError, 422),
    (DaemonError, 503),
    (FileError, 409),
    (InvalidRequest, 400),
)
_BY_CODE: Mapping[str, int] = {
    "unknown_sandbox": 404,
    "unknown_snapshot": 404,
    "unknown_command": 404,
    "unknown_workspace": 404,
    "not_found": 404,
    "name_taken": 409,
    "exists": 409,
    "snapshot_writing": 409,
    "has_dependents": 409,
    "kernel_busy": 409,
    "kernel_elsewhere": 409,
    "no_kernel": 409,
    "stdin_closed": 409,
    "command_ended": 409,
    "single_uid": 409,
    "capturing": 409,
    "read_only": 403,
    "not_permitted": 403,
    "forbidden": 403,
    "no_space": 507,
    "connection_refused": 502,
    "quota": 429,
    "busy": 429,
    "draining": 503,
}
RETRY_AFTER_S = 1
_UNREAD = frozenset({"too_large", "slow_body"})
"""What is left of the body would be read as the next request, or never come."""
_RETRIED = frozenset({429, 503})


class Refused(RametError):
    """What the server refuses before anything is asked of a daemon. `status` is the answer's."""

    default_code = "refused"

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        hint: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(code, message, field=field, hint=hint)
        self.status = status
        self.retry_after = retry_after


def status_of(error: RametError) -> int:
    """The status that an error is told with."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, ForkError) and error.errors:
        return status_of(next(iter(error.errors.values())))
    known = _BY_CODE.get(error.code)
    if known is not None:
        return known
    return next((status for cls, status in _BY_CLASS if isinstance(error, cls)), 500)


def body_of(error: RametError) -> dict[str, Any]:
    """An error as JSON. `error` is for people, `code` for programs; `type` lets our own clients raise it."""
    told = error.to_wire()
    return {"error": told.pop("message"), **told}


def response_of(error: RametError) -> JSONResponse:
    """The answer that tells of an error."""
    status = status_of(error)
    headers = {}
    if status in _RETRIED:
        seconds = getattr(error, "retry_after", None) or RETRY_AFTER_S
        headers["retry-after"] = str(max(1, round(seconds)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.code in _UNREAD:
        headers["connection"] = "close"
    return JSONResponse(body_of(error), status, headers)
