"""Everything Ramet raises on purpose.

The tree::

    RametError               code, message, field, step, errno, hint
     ├ InvalidRequest        the caller's argument `field` is wrong; nothing was started
     │  └ LimitUnsupported   a limit was asked for that nothing here can enforce
     ├ IsolationError        step `step` of making the sandbox failed with `errno`; nothing was left behind
     ├ DaemonError           the daemon, not the sandbox
     │  ├ DaemonStartError   it could not be started; the message ends with the tail of its log
     │  ├ DaemonLost         it, or core, went away while a request was running
     │  └ ProtocolMismatch   two versions of Ramet met; the message names both
     ├ CommandFailed         only with ``check=True``; `result` is the whole CommandResult
     └ InternalError         a defect of Ramet

A command that fails is no error: its exit code is in the result. `code` is stable and fit for programs,
`message` is for people and may change. Errors cross processes as JSON objects (`to_wire`, `from_wire`) and
arrive as the same class they left as.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from ramet.models.results import CommandResult

__all__ = [
    "CommandFailed",
    "DaemonError",
    "DaemonLost",
    "DaemonStartError",
    "InternalError",
    "InvalidRequest",
    "IsolationError",
    "LimitUnsupported",
    "ProtocolMismatch",
    "RametError",
]


class RametError(Exception):
    """Root of the tree.

    Attributes: `code` (stable name), `message`, `field` (argument at fault), `step` (core's name of the
    failed step), `errno` (the kernel's answer to that step), `hint` (what to do about it). All but the first
    two may be None.
    """

    default_code = "error"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str | None = None,
        step: str | None = None,
        errno: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.field = field
        self.step = step
        self.errno = errno
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __repr__(self) -> str:
        named = {"field": self.field, "step": self.step, "errno": self.errno}
        extra = "".join(f", {name}={value!r}" for name, value in named.items() if value is not None)
        return f"{type(self).__name__}({self.code!r}, {self.message!r}{extra})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.to_wire())

    def to_wire(self) -> dict[str, Any]:
        """The error as a JSON object; absent parts are left out."""
        parts = {
            "type": type(self).__name__,
            "code": self.code,
            "message": self.message,
            "field": self.field,
            "step": self.step,
            "errno": self.errno,
            "hint": self.hint,
        }
        return {name: value for name, value in parts.items() if value is not None}

    @staticmethod
    def from_wire(data: Mapping[str, Any]) -> RametError:
        """The error that `to_wire` wrote. An unknown class (a newer peer's) becomes a plain RametError."""
        cls = _CLASSES.get(str(data.get("type")), RametError)
        return _rebuild(cls, data)


def _rebuild(cls: type[RametError], data: Mapping[str, Any]) -> RametError:
    error = cls.__new__(cls)
    RametError.__init__(
        error,
        str(data.get("code", cls.default_code)),
        str(data.get("message", "")),
        field=data.get("field"),
        step=data.get("step"),
        errno=data.get("errno"),
        hint=data.get("hint"),
    )
    return error


class InvalidRequest(RametError):
    """An argument is wrong. `field` names it, and nothing was started."""

    default_code = "invalid_argument"

    @classmethod
    def of(cls, field: str, message: str, *, code: str | None = None, hint: str | None = None) -> Self:
        """An error about one argument; the message is prefixed with its name."""
        return cls(code or cls.default_code, f"{field}: {message}", field=field, hint=hint)


class LimitUnsupported(InvalidRequest):
    """A limit was asked for by name that nothing here can enforce. Ramet refuses rather than ignore it."""

    default_code = "limit_unsupported"


class IsolationError(RametError):
    """A step of making the sandbox failed. The creation was undone, and nothing ran outside of it."""

    default_code = "isolation_failed"


class DaemonError(RametError):
    """The daemon could not do its part."""

    default_code = "daemon_error"


class DaemonStartError(DaemonError):
    """The daemon could not be started on demand."""

    default_code = "daemon_start_failed"


class DaemonLost(DaemonError):
    """The daemon or core ended while a request was running. The kernel has ended the sandbox with it."""

    default_code = "daemon_lost"


class ProtocolMismatch(DaemonError):
    """Client, daemon and core do not speak one protocol version; the message names both versions."""

    default_code = "protocol_mismatch"


class CommandFailed(RametError):
    """A command ended otherwise than with exit code 0 and ``check=True`` was given."""

    default_code = "command_failed"

    def __init__(self, message: str, result: CommandResult) -> None:
        super().__init__(self.default_code, message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return CommandFailed, (self.message, self.result)


class InternalError(RametError):
    """A defect of Ramet itself."""

    default_code = "internal"


_CLASSES: dict[str, type[RametError]] = {
    cls.__name__: cls
    for cls in (
        RametError,
        InvalidRequest,
        LimitUnsupported,
        IsolationError,
        DaemonError,
        DaemonStartError,
        DaemonLost,
        ProtocolMismatch,
        InternalError,
    )
}
