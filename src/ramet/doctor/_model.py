"""The answer of one check."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "Status", "failed", "passed", "warned"]

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    `fail`: sandboxes do not work here. `warn`: they work, with less. `fix` is one shell command, None where
    all is well or where no command helps; `detail` then says what would.
    """

    name: str
    status: Status
    detail: str
    fix: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """The finding as a JSON object."""
        return {"name": self.name, "status": self.status, "detail": self.detail, "fix": self.fix}


def passed(name: str, detail: str) -> Check:
    return Check(name, "pass", detail)


def warned(name: str, detail: str, fix: str | None = None) -> Check:
    return Check(name, "warn", detail, fix)


def failed(name: str, detail: str, fix: str | None = None) -> Check:
    return Check(name, "fail", detail, fix)
