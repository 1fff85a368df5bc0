"""Everything Ramet raises on purpose.

The tree::

    RametError               code, message, field, step, errno, hint
     ├ InvalidRequest        the caller's argument `field` is wrong; nothing was started
     │  └ LimitUnsupported   a limit was asked for that nothing here can enforce
     ├ NoRoom                the machine, or core, has no room for another sandbox now; nothing was started
     ├ IsolationError        step `step` of making the sandbox failed with `errno`; nothing was left behind
     ├ Unforkable            the process `process` (`pid`) holds `what` no fork can carry; nothing was changed
     ├ ForkError             children were not made: `errors` by number; `sandboxes` are those that were kept
     ├ SandboxEnded          the sandbox is dead; `reason`, `exit_code` and `signal` say of what
     ├ FileError             a file in a sandbox: `path` names it, `errno` and `code` say what about it
     ├ CommitConflict        two sandboxes have changed the same files: `paths`; nothing was written
     ├ WaitTimeout           a wait with a timeout was in vain, and changed nothing; also a TimeoutError
     ├ SnapshotError         a snapshot on disk: `snapshot` names it
     │  ├ SnapshotDamaged    bytes of it, or of what it builds upon, are not those that were written
     │  └ SnapshotUnusable   it is whole, and cannot run here: kernel, processor, files or format differ
     ├ TemplateError         a template could not be built: at `field`; `log` is what the build wrote
     ├ DaemonError           the daemon, not the sandbox
     │  ├ DaemonStartError   it could not be started; the message ends with the tail of its log
     │  ├ DaemonLost         it, or core, went away while a request was running
     │  └ ProtocolMismatch   two versions of Ramet met; the message names both
     ├ CodeFailed            only on `Execution.check()`; `execution` is the whole Execution
     ├ CommandFailed         only with ``check=True``; `result` is the whole CommandResult
     └ InternalError         a defect of Ramet

A command that fails is no error: its exit code is in the result. `code` is stable and fit for programs,
`message` is for people and may change. Errors cross processes as JSON objects (`to_wire`, `from_wire`) and
arrive as the same class they left as.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, ClassVar, Self

    from ramet.models.executions import Execution
    from ramet.models.results import CommandResult

__all__ = [
    "CodeFailed",
    "CommandFailed",
    "CommitConflict",
    "DaemonError",
    "DaemonLost",
    "DaemonStartError",
    "FileError",
    "ForkError",
    "InternalError",
    "InvalidRequest",
    "IsolationError",
    "LimitUnsupported",
    "NoRoom",
    "ProtocolMismatch",
    "RametError",
    "SandboxEnded",
    "SnapshotDamaged",
    "SnapshotError",
    "SnapshotUnusable",
    "TemplateError",
    "Unforkable",
    "WaitTimeout",
]


class RametError(Exception):
    """Root of the tree.

    Attributes: `code` (stable name), `message`, `field` (argument at fault), `step` (core's name of the
    failed step), `errno` (the kernel's answer to that step), `hint` (what to do about it). All but the first
    two may be None.
    """

    default_code = "error"
    extra: ClassVar[tuple[str, ...]] = ()
    """Names of what a class has besides, which crosses processes with it."""

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
            **{name: getattr(self, name, None) for name in self.extra},
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
    for name in cls.extra:
        setattr(error, name, data.get(name))
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


class NoRoom(RametError):
    """There is no room for another sandbox now: of memory, or in core's list. Nothing was started.

    Asking again later may be in vain or not; ending sandboxes helps.
    """

    default_code = "no_memory"


class Unforkable(RametError):
    """The sandbox holds something that no fork can carry. It was told before anything changed, and runs on.

    `pid` (inside the sandbox) and `process` say where, `what` says what; the first two are None where there
    is no process at all.
    """

    default_code = "unforkable"
    extra = ("pid", "process", "what")

    def __init__(
        self, message: str, *, pid: int | None = None, process: str | None = None, what: str | None = None
    ) -> None:
        super().__init__(self.default_code, message)
        self.pid = pid
        self.process = process
        self.what = what


class SandboxEnded(RametError):
    """What was asked for needs a living sandbox, and this one is dead.

    `sandbox` is its id; `reason`, `exit_code` and `signal` are those of its result.
    """

    default_code = "sandbox_ended"
    extra = ("sandbox", "reason", "exit_code", "signal")

    def __init__(
        self,
        message: str,
        *,
        sandbox: str | None = None,
        reason: str | None = None,
        exit_code: int | None = None,
        signal: str | None = None,
    ) -> None:
        super().__init__(self.default_code, message)
        self.sandbox = sandbox
        self.reason = reason
        self.exit_code = exit_code
        self.signal = signal


class ForkError(RametError):
    """Some children of a fork could not be made.

    `errors` holds what happened by the child's number, from 0. `sandboxes` are the children that live: none
    unless ``on_error="keep"`` was given. `step`, `errno` and `field` are those of the first error.
    """

    default_code = "fork_failed"

    def __init__(
        self, message: str, sandboxes: Sequence[Any] = (), errors: Mapping[int, RametError] | None = None
    ) -> None:
        self.sandboxes = list(sandboxes)
        self.errors = dict(errors or {})
        first = next(iter(self.errors.values()), None)
        super().__init__(
            self.default_code,
            message,
            field=first.field if first else None,
            step=first.step if first else None,
            errno=first.errno if first else None,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A sandbox belongs to its process.
        return ForkError, (self.message, (), self.errors)


class FileError(RametError):
    """What was asked of a file in a sandbox cannot be done. `path` is the file, inside the sandbox."""

    default_code = "file_error"
    extra = ("path",)

    def __init__(
        self,
        code: str,
        message: str,
        *,
        path: str | None = None,
        errno: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(code, message, errno=errno, hint=hint)
        self.path = path


class CommitConflict(RametError):
    """Two sandboxes have changed the same files, each in its way; nothing was written. `paths` are those."""

    default_code = "commit_conflict"
    extra = ("paths",)

    def __init__(
        self, code: str, message: str, *, paths: Sequence[str] = (), hint: str | None = None
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.paths = tuple(paths)

    @classmethod
    def of_paths(cls, paths: Sequence[str]) -> Self:
        """The error for these, one at least."""
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return cls(
            cls.default_code,
            f"both sandboxes have changed {paths[0]}{more}",
            paths=paths,
            hint="on_conflict: overwrite takes these files, keep leaves them as they are there",
        )


class WaitTimeout(RametError, TimeoutError):
    """What was waited for did not come in time. Nothing is lost: wait again, read again, or kill."""

    default_code = "wait_timeout"


class SnapshotError(RametError):
    """A snapshot on disk cannot be written, read or removed. `snapshot` is its name."""

    default_code = "snapshot_error"
    extra = ("snapshot",)

    def __init__(
        self,
        code: str,
        message: str,
        *,
        snapshot: str | None = None,
        errno: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(code, message, errno=errno, hint=hint)
        self.snapshot = snapshot


class TemplateError(RametError):
    """A template could not be built. `field` names the part of its recipe, `log` is what the build wrote."""

    default_code = "template_failed"
    extra = ("log",)

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str | None = None,
        log: str = "",
        errno: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(code, message, field=field, errno=errno, hint=hint)
        self.log = log


class SnapshotDamaged(SnapshotError):
    """What is on disk is not what was written; the message names the place. Nothing was loaded."""

    default_code = "snapshot_damaged"


class SnapshotUnusable(SnapshotError):
    """The snapshot is whole, and the machine or its files are not those it was taken on. Nothing runs."""

    default_code = "snapshot_unusable"


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


class CodeFailed(RametError):
    """A piece of code ended otherwise than `ok`, and was checked."""

    default_code = "code_failed"

    def __init__(self, execution: Execution) -> None:
        super().__init__(self.default_code, str(execution.error or f"the code ended: {execution.reason}"))
        self.execution = execution

    def __reduce__(self) -> tuple[Any, ...]:
        return CodeFailed, (self.execution,)


class InternalError(RametError):
    """A defect of Ramet itself."""

    default_code = "internal"


_CLASSES: dict[str, type[RametError]] = {
    cls.__name__: cls
    for cls in (
        RametError,
        InvalidRequest,
        LimitUnsupported,
        NoRoom,
        IsolationError,
        Unforkable,
        SandboxEnded,
        FileError,
        CommitConflict,
        WaitTimeout,
        TemplateError,
        SnapshotError,
        SnapshotDamaged,
        SnapshotUnusable,
        DaemonError,
        DaemonStartError,
        DaemonLost,
        ProtocolMismatch,
        InternalError,
    )
}
