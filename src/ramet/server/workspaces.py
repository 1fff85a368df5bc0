"""Workspaces: sandboxes with a name, put away and taken out again with the options they were made with.

What is known of them is one file of the tenant's, replaced as a whole.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ramet.errors import InvalidRequest
from ramet.server import notes

Status = Literal["running", "suspended", "stale"]


@dataclasses.dataclass(slots=True)
class Workspace:
    """One. `options` are those of its first sandbox, which each later one gets too."""

    id: str
    name: str
    source_snapshot_tag: str
    status: Status
    created_at_unix: int
    last_active_unix: int
    current_state_tag: str | None = None
    live_sandbox_id: str | None = None
    last_branch_memory_path: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


class Workspaces:
    """A tenant's."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: dict[str, Workspace] | None = None

    def all(self) -> dict[str, Workspace]:
        """By name. Raises RametError when the file is not what was written."""
        if self._known is None:
            try:
                self._known = {row["name"]: Workspace(**row) for row in notes.read(self._path, [])}
            except (TypeError, KeyError) as error:
                raise notes.unusable(f"the file of workspaces holds something else: {error}") from None
        return self._known

    def get(self, name: str) -> Workspace:
        """The one of that name. Raises InvalidRequest."""
        found = self.all().get(name)
        if found is None:
            raise InvalidRequest.of("name", f"there is no workspace {name!r}", code="unknown_workspace")
        return found

    def put(self, workspace: Workspace) -> None:
        """Have one on disk. Raises RametError; then nothing has changed."""
        self._write({**self.all(), workspace.name: workspace})

    def remove(self, name: str) -> None:
        """Forget one."""
        self._write({key: one for key, one in self.all().items() if key != name})

    def _write(self, known: dict[str, Workspace]) -> None:
        notes.write(self._path, [dataclasses.asdict(one) for one in known.values()])
        self._known = known
