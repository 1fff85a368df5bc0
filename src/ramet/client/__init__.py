"""The client: `run` and friends for any program, `arun` for asynchronous ones, and the classes behind them.

Names are loaded when first used: the synchronous side needs neither asyncio nor anyio.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ramet.client._async.api import doctor as adoctor
    from ramet.client._async.api import ping as aping
    from ramet.client._async.api import run as arun
    from ramet.client._async.api import shutdown as ashutdown
    from ramet.client._async.api import status as astatus
    from ramet.client._async.client import AsyncClient
    from ramet.client._sync.api import doctor, ping, run, shutdown, status
    from ramet.client._sync.client import Client

__all__ = [
    "AsyncClient",
    "Client",
    "adoctor",
    "aping",
    "arun",
    "ashutdown",
    "astatus",
    "doctor",
    "ping",
    "run",
    "shutdown",
    "status",
]

_CALLS = ("doctor", "ping", "run", "shutdown", "status")
_HOME = {
    "AsyncClient": ("_async.client", "AsyncClient"),
    "Client": ("_sync.client", "Client"),
    **{name: ("_sync.api", name) for name in _CALLS},
    **{f"a{name}": ("_async.api", name) for name in _CALLS},
}


def __getattr__(name: str) -> "Any":
    if (home := _HOME.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{home[0]}"), home[1])
    return value
