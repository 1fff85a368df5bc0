"""Ramet: run untrusted commands in sandboxes, and fork those while they run, without root and without KVM.

    import ramet

    result = ramet.run("python3 -c 'print(6*7)'", timeout=0.5)
    result.stdout, result.exit_code, result.duration_ms

    with ramet.Sandbox(command=["python3", "-i"]) as sandbox:
        with sandbox.fork(2) as children: ...

Names are loaded when first used (PEP 562), so that `import ramet` costs next to nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ramet._version import __version__ as __version__
    from ramet.client import AsyncClient as AsyncClient
    from ramet.client import AsyncCommand as AsyncCommand
    from ramet.client import AsyncCommands as AsyncCommands
    from ramet.client import AsyncEvents as AsyncEvents
    from ramet.client import AsyncFiles as AsyncFiles
    from ramet.client import AsyncRollouts as AsyncRollouts
    from ramet.client import AsyncSandbox as AsyncSandbox
    from ramet.client import AsyncSandboxList as AsyncSandboxList
    from ramet.client import AsyncSupportsFork as AsyncSupportsFork
    from ramet.client import AsyncTerminal as AsyncTerminal
    from ramet.client import AsyncTerminals as AsyncTerminals
    from ramet.client import Client as Client
    from ramet.client import Command as Command
    from ramet.client import Commands as Commands
    from ramet.client import Events as Events
    from ramet.client import Files as Files
    from ramet.client import Rollouts as Rollouts
    from ramet.client import Sandbox as Sandbox
    from ramet.client import SandboxList as SandboxList
    from ramet.client import SupportsFork as SupportsFork
    from ramet.client import Terminal as Terminal
    from ramet.client import Terminals as Terminals
    from ramet.client import aconnect as aconnect
    from ramet.client import aevents as aevents
    from ramet.client import arollouts as arollouts
    from ramet.client import arun as arun
    from ramet.client import asandboxes as asandboxes
    from ramet.client import asnapshots as asnapshots
    from ramet.client import atemplates as atemplates
    from ramet.client import connect as connect
    from ramet.client import events as events
    from ramet.client import rollouts as rollouts
    from ramet.client import run as run
    from ramet.client import sandboxes as sandboxes
    from ramet.client import snapshots as snapshots
    from ramet.client import status as status
    from ramet.client import templates as templates
    from ramet.client.forkbox import Forkbox as Forkbox
    from ramet.errors import CodeFailed as CodeFailed
    from ramet.errors import CommandFailed as CommandFailed
    from ramet.errors import CommitConflict as CommitConflict
    from ramet.errors import DaemonError as DaemonError
    from ramet.errors import DaemonLost as DaemonLost
    from ramet.errors import DaemonStartError as DaemonStartError
    from ramet.errors import FileError as FileError
    from ramet.errors import ForkError as ForkError
    from ramet.errors import InternalError as InternalError
    from ramet.errors import InvalidRequest as InvalidRequest
    from ramet.errors import IsolationError as IsolationError
    from ramet.errors import LimitUnsupported as LimitUnsupported
    from ramet.errors import NoRoom as NoRoom
    from ramet.errors import ProtocolMismatch as ProtocolMismatch
    from ramet.errors import RametError as RametError
    from ramet.errors import SandboxEnded as SandboxEnded
    from ramet.errors import SnapshotDamaged as SnapshotDamaged
    from ramet.errors import SnapshotError as SnapshotError
    from ramet.errors import SnapshotUnusable as SnapshotUnusable
    from ramet.errors import TemplateError as TemplateError
    from ramet.errors import Unforkable as Unforkable
    from ramet.errors import WaitTimeout as WaitTimeout
    from ramet.models.commands import CommandInfo as CommandInfo
    from ramet.models.differences import Difference as Difference
    from ramet.models.differences import Process as Process
    from ramet.models.differences import ProcessChange as ProcessChange
    from ramet.models.events import Event as Event
    from ramet.models.executions import Execution as Execution
    from ramet.models.executions import Result as Result
    from ramet.models.files import Change as Change
    from ramet.models.files import FileEvent as FileEvent
    from ramet.models.files import FileInfo as FileInfo
    from ramet.models.limits import Limits as Limits
    from ramet.models.results import CommandResult as CommandResult
    from ramet.models.results import Usage as Usage
    from ramet.models.rollouts import Attempt as Attempt
    from ramet.models.sandboxes import ForkWay as ForkWay
    from ramet.models.sandboxes import Metrics as Metrics
    from ramet.models.sandboxes import SandboxInfo as SandboxInfo
    from ramet.models.snapshots import Snapshot as Snapshot
    from ramet.models.templates import Template as Template

_HOME = {
    "__version__": "ramet._version",
    **dict.fromkeys(
        (
            "AsyncClient",
            "AsyncCommand",
            "AsyncCommands",
            "AsyncEvents",
            "AsyncFiles",
            "AsyncRollouts",
            "AsyncSandbox",
            "AsyncSandboxList",
            "AsyncTerminal",
            "AsyncTerminals",
            "AsyncSupportsFork",
            "Client",
            "Command",
            "Commands",
            "Events",
            "Files",
            "Rollouts",
            "Sandbox",
            "SandboxList",
            "Terminal",
            "Terminals",
            "SupportsFork",
            "aconnect",
            "aevents",
            "arollouts",
            "arun",
            "asandboxes",
            "asnapshots",
            "atemplates",
            "connect",
            "events",
            "rollouts",
            "run",
            "sandboxes",
            "snapshots",
            "status",
            "templates",
        ),
        "ramet.client",
    ),
    **dict.fromkeys(
        (
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
        ),
        "ramet.errors",
    ),
    "Attempt": "ramet.models.rollouts",
    "CommandInfo": "ramet.models.commands",
    "Forkbox": "ramet.client.forkbox",
    "Event": "ramet.models.events",
    **dict.fromkeys(("Difference", "Process", "ProcessChange"), "ramet.models.differences"),
    **dict.fromkeys(("Change", "FileEvent", "FileInfo"), "ramet.models.files"),
    "Limits": "ramet.models.limits",
    **dict.fromkeys(("Execution", "Result"), "ramet.models.executions"),
    "Template": "ramet.models.templates",
    **dict.fromkeys(("CommandResult", "Usage"), "ramet.models.results"),
    **dict.fromkeys(("ForkWay", "Metrics", "SandboxInfo"), "ramet.models.sandboxes"),
    "Snapshot": "ramet.models.snapshots",
}

__all__ = sorted(_HOME)  # noqa: PLE0605  the table is the list


def __getattr__(name: str) -> "Any":
    if (home := _HOME.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
