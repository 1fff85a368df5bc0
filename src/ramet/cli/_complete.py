"""Words that stand for something of the user's: which there are, for a shell that completes them.

Nothing is started for that; a server that the line or the environment names is asked. Whatever goes wrong is
no completion.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

from ramet.cli._server import asked, known
from ramet.errors import RametError
from ramet.models.events import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ramet.client import Client

__all__ = ["complete"]


def _sandboxes(client: Client, _chosen: dict[str, Any]) -> list[str]:
    from ramet.client import sandboxes

    return [label for one in sandboxes.list(client=client) for label in (one.name, one.id) if label]


def _snapshots(client: Client, _chosen: dict[str, Any]) -> list[str]:
    from ramet.client import snapshots

    return [one.name for one in snapshots.list(client=client)]


def _templates(client: Client, _chosen: dict[str, Any]) -> Iterator[str]:
    from ramet.client import templates
    from ramet.models.snapshots import BUILT_IN

    yield from BUILT_IN  # which are there without a daemon
    yield from sorted({one.name for one in templates.all_built(client=client)} - set(BUILT_IN))


def _either(client: Client, chosen: dict[str, Any]) -> Iterator[str]:
    yield from _templates(client, chosen)
    yield from _snapshots(client, chosen)


def _commands(client: Client, chosen: dict[str, Any]) -> list[str]:
    from ramet.client import Commands

    sandbox = chosen.get("sandbox")
    return [str(one.id) for one in Commands(sandbox, client=client).list()] if sandbox else []


def _events(_client: Client, _chosen: dict[str, Any]) -> list[str]:
    return list(TYPES)


_Find: TypeAlias = "Callable[[Client, dict[str, Any]], Iterable[str]]"

# By the name of an argument or option, or where that says nothing by how its value is called in the help.
_OF_NAME: dict[str, _Find] = {
    "tag": _either,
    "tags": _either,
    "snapshot": _either,
    "over": _sandboxes,
    "other": _sandboxes,
    "target": _sandboxes,
    "types": _events,
}
_OF_METAVAR: dict[str, _Find] = {
    "SANDBOX": _sandboxes,
    "SANDBOX...": _sandboxes,
    "SNAPSHOT": _snapshots,
    "SNAPSHOT...": _snapshots,
    "TEMPLATE": _templates,
    "TEMPLATE...": _templates,
    "NUMBER": _commands,
}


def complete(params: Any) -> None:
    """Have those of `params` completed that stand for something."""
    for param in params:
        found = _OF_METAVAR.get(param.metavar or "")
        if found is None and param.metavar in {"NAME", "NAME...", "OTHER", "TARGET", "TYPE"}:
            found = _OF_NAME.get(param.name)
        if found is not None:
            param._custom_shell_complete = _begun(found)  # noqa: SLF001


def _begun(find: _Find) -> Callable[[Any, Any, str], list[str]]:
    def words(ctx: Any, _param: Any, begun: str) -> list[str]:
        found: list[str] = []
        with contextlib.suppress(RametError), asked(ctx.params), known() as client:
            found.extend(word for word in find(client, ctx.params) if word.startswith(begun))
        return found

    return words
