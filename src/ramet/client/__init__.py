"""The client: `run` and friends for any program, `arun` for asynchronous ones, and the classes behind them.

Names are loaded when first used: the synchronous side needs neither asyncio nor anyio.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ramet.client._async import sandboxes as asandboxes
    from ramet.client._async import snapshots as asnapshots
    from ramet.client._async import templates as atemplates
    from ramet.client._async.api import doctor as adoctor
    from ramet.client._async.api import ping as aping
    from ramet.client._async.api import run as arun
    from ramet.client._async.api import shutdown as ashutdown
    from ramet.client._async.api import status as astatus
    from ramet.client._async.client import AsyncClient
    from ramet.client._async.commands import AsyncCommand, AsyncCommands
    from ramet.client._async.connect import connect as aconnect
    from ramet.client._async.events import AsyncEvents
    from ramet.client._async.events import events as aevents
    from ramet.client._async.files import AsyncFiles
    from ramet.client._async.ports import AsyncPorts
    from ramet.client._async.rollouts import AsyncRollouts, AsyncSupportsFork
    from ramet.client._async.rollouts import rollouts as arollouts
    from ramet.client._async.sandbox import AsyncSandbox, AsyncSandboxList
    from ramet.client._async.sandbox import fork as afork
    from ramet.client._async.terminals import AsyncTerminal, AsyncTerminals
    from ramet.client._sync import sandboxes, snapshots, templates
    from ramet.client._sync.api import doctor, ping, run, shutdown, status
    from ramet.client._sync.client import Client
    from ramet.client._sync.commands import Command, Commands
    from ramet.client._sync.connect import connect
    from ramet.client._sync.events import Events, events
    from ramet.client._sync.files import Files
    from ramet.client._sync.ports import Ports
    from ramet.client._sync.rollouts import Rollouts, SupportsFork, rollouts
    from ramet.client._sync.sandbox import Sandbox, SandboxList, fork
    from ramet.client._sync.terminals import Terminal, Terminals

__all__ = [
    "AsyncClient",
    "AsyncCommand",
    "AsyncCommands",
    "AsyncEvents",
    "AsyncFiles",
    "AsyncPorts",
    "AsyncRollouts",
    "AsyncSandbox",
    "AsyncSandboxList",
    "AsyncSupportsFork",
    "AsyncTerminal",
    "AsyncTerminals",
    "Client",
    "Command",
    "Commands",
    "Events",
    "Files",
    "Ports",
    "Rollouts",
    "Sandbox",
    "SandboxList",
    "SupportsFork",
    "Terminal",
    "Terminals",
    "aconnect",
    "adoctor",
    "aevents",
    "afork",
    "aping",
    "arollouts",
    "arun",
    "asandboxes",
    "ashutdown",
    "asnapshots",
    "astatus",
    "atemplates",
    "connect",
    "doctor",
    "events",
    "fork",
    "ping",
    "rollouts",
    "run",
    "sandboxes",
    "shutdown",
    "snapshots",
    "status",
    "templates",
]

_CALLS = ("doctor", "ping", "run", "shutdown", "status")
_HOME = {
    "AsyncClient": ("_async.client", "AsyncClient"),
    "Client": ("_sync.client", "Client"),
    **{name: ("_async.commands", name) for name in ("AsyncCommand", "AsyncCommands")},
    **{name: ("_sync.commands", name) for name in ("Command", "Commands")},
    **{name: ("_async.rollouts", name) for name in ("AsyncRollouts", "AsyncSupportsFork")},
    **{name: ("_sync.rollouts", name) for name in ("Rollouts", "SupportsFork", "rollouts")},
    **{name: ("_async.sandbox", name) for name in ("AsyncSandbox", "AsyncSandboxList")},
    **{name: ("_sync.sandbox", name) for name in ("Sandbox", "SandboxList", "fork")},
    **{name: ("_async.terminals", name) for name in ("AsyncTerminal", "AsyncTerminals")},
    **{name: ("_sync.terminals", name) for name in ("Terminal", "Terminals")},
    "AsyncEvents": ("_async.events", "AsyncEvents"),
    "Events": ("_sync.events", "Events"),
    "AsyncFiles": ("_async.files", "AsyncFiles"),
    "Files": ("_sync.files", "Files"),
    "AsyncPorts": ("_async.ports", "AsyncPorts"),
    "Ports": ("_sync.ports", "Ports"),
    "aconnect": ("_async.connect", "connect"),
    "connect": ("_sync.connect", "connect"),
    "aevents": ("_async.events", "events"),
    "events": ("_sync.events", "events"),
    "afork": ("_async.sandbox", "fork"),
    "arollouts": ("_async.rollouts", "rollouts"),
    "asandboxes": ("_async.sandboxes", ""),
    "sandboxes": ("_sync.sandboxes", ""),
    "snapshots": ("_sync.snapshots", ""),
    "asnapshots": ("_async.snapshots", ""),
    "templates": ("_sync.templates", ""),
    "atemplates": ("_async.templates", ""),
    **{name: ("_sync.api", name) for name in _CALLS},
    **{f"a{name}": ("_async.api", name) for name in _CALLS},
}


def __getattr__(name: str) -> "Any":
    if (home := _HOME.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{home[0]}")
    value = globals()[name] = getattr(module, home[1]) if home[1] else module
    return value
