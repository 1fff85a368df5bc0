"""How several commands tell what they brought."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ramet.cli import _errors
from ramet.cli._streams import passing_on, writer
from ramet.cli.render import end_note

if TYPE_CHECKING:
    from collections.abc import Callable

    from ramet.models.results import CommandResult
    from ramet.models.sandboxes import SandboxInfo


def passed(call: Callable[..., CommandResult], timeout: str | None) -> int:
    """The exit code of a command whose output goes to this process's."""

    def work() -> int:
        result = call(on_stdout=writer(1), on_stderr=writer(2))
        if note := end_note(result, timeout):
            _errors.say(note)
        return result.exit_code

    return passing_on(work)


def json_of(result: CommandResult) -> dict[str, Any]:
    """The result. Bytes that are no UTF-8 come along in base64, since text cannot hold them."""
    import base64

    data = result.to_dict()
    for name, kept in (("stdout", result.stdout_bytes), ("stderr", result.stderr_bytes)):
        try:
            kept.decode()
        except UnicodeDecodeError:
            data[f"{name}_base64"] = base64.b64encode(kept).decode()
    return data


def tell_made(made: list[SandboxInfo], *, as_json: bool) -> None:
    """Print the ids of new sandboxes, or all that is known of them."""
    if as_json:
        print(json.dumps({"sandboxes": [one.to_dict() for one in made]}))
    else:
        for one in made:
            print(one.id)
