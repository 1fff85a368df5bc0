"""Profiles: what guests may ask of the kernel, read from TOML and checked before anything is compiled.

A profile answers each system call with an action. A rule has a list of cases; the first whose conditions all
hold answers, else the rule's own action does. Whatever a reader could misjudge is an error here rather than a
surprise in the kernel: a name unknown on the architecture, a call in two groups, a comparison that can never
hold, or a case that an earlier one always forestalls.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from ramet.errors import InvalidRequest
from ramet.seccomp import _syscalls

# linux/seccomp.h
RET_KILL_PROCESS: Final = 0x8000_0000
RET_ERRNO: Final = 0x0005_0000
RET_ALLOW: Final = 0x7FFF_0000

# linux/audit.h, and the table of call numbers
ARCHITECTURES: Final[Mapping[str, tuple[int, Mapping[str, int]]]] = {
    "x86_64": (0xC000_003E, _syscalls.X86_64),
}

SCHEMA: Final = 1
FULL: Final = {32: 0xFFFF_FFFF, 64: 0xFFFF_FFFF_FFFF_FFFF}
_T = TypeVar("_T")
_PROFILE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class PolicyError(InvalidRequest):
    """A profile is wrong. `field` is the place in it, as ``group[2].cases[0].when[1].width``."""

    default_code = "invalid_profile"


@dataclass(frozen=True, slots=True)
class Action:
    """An answer to a call: `value` is what the program returns to the kernel, `name` what profiles write."""

    value: int
    name: str = field(compare=False)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def errno(cls, number: int) -> Self:
        """Refuse with an errno, 1 to 4095 (the kernel cuts larger ones off)."""
        if not 1 <= number <= 4095:
            raise PolicyError.of("action", f"errno {number} is not between 1 and 4095")
        return cls(RET_ERRNO | number, errno.errorcode.get(number, f"errno {number}"))

    @classmethod
    def parse(cls, name: object, where: str) -> Self:
        """`allow`, `kill` (the whole process, by SIGSYS) or the name of an errno."""
        if name == "allow":
            return cls(RET_ALLOW, "allow")
        if name == "kill":
            return cls(RET_KILL_PROCESS, "kill")
        number = getattr(errno, name, None) if isinstance(name, str) and name.startswith("E") else None
        if not isinstance(number, int):
            raise PolicyError.of(where, f"{name!r} is neither allow, kill nor the name of an errno")
        return cls.errno(number)


@dataclass(frozen=True, slots=True)
class Condition:
    """``argument & mask``, of the argument's low `width` bits, is one of `values`; with `negate`, none."""

    arg: int
    width: int
    mask: int
    values: tuple[int, ...]
    negate: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.arg <= 5:
            raise PolicyError.of("arg", f"{self.arg} is not an argument: they are numbered 0 to 5")
        if self.width not in FULL:
            raise PolicyError.of("width", f"{self.width} is neither 32 nor 64")
        if not 0 < self.mask <= FULL[self.width]:
            raise PolicyError.of("mask", f"{self.mask:#x} is zero or wider than {self.width} bits")
        if not self.values or len(set(self.values)) != len(self.values):
            raise PolicyError.of("values", "no value, or one given twice")
        for value in self.values:
            if value & ~self.mask:
                raise PolicyError.of(
                    "values", f"{value:#x} has bits outside of {self.mask:#x}: it can never be met"
                )

    def excludes(self, other: Condition) -> bool:
        """Whether the two can never hold together, as far as conditions on the same bits show."""
        if (self.arg, self.width, self.mask) != (other.arg, other.width, other.mask):
            return False
        mine, theirs = set(self.values), set(other.values)
        if self.negate and other.negate:
            return False
        if self.negate:
            return theirs <= mine
        return mine <= theirs if other.negate else not mine & theirs


@dataclass(frozen=True, slots=True)
class Case:
    """`action` answers when all conditions of `when` hold."""

    action: Action
    when: tuple[Condition, ...]

    def __post_init__(self) -> None:
        if not self.when:
            raise PolicyError.of("when", "no condition: this would always answer")
        for index, condition in enumerate(self.when):
            if any(condition.excludes(other) for other in self.when[:index]):
                raise PolicyError.of(f"when[{index}]", "cannot hold together with an earlier condition")


@dataclass(frozen=True, slots=True)
class Rule:
    """The answer to one system call: the first case that holds, else `action`."""

    number: int
    name: str
    action: Action
    cases: tuple[Case, ...] = ()
    group: str = ""

    def __post_init__(self) -> None:
        if self.cases and all(case.action == self.action for case in self.cases):
            raise PolicyError.of("cases", "every case has the action of the group: they have no effect")
        for index, case in enumerate(self.cases):
            if any(set(earlier.when) <= set(case.when) for earlier in self.cases[:index]):
                raise PolicyError.of(f"cases[{index}]", "an earlier case always answers before")


@dataclass(frozen=True, slots=True)
class Profile:
    """A whole policy. `rules` are in the order of call numbers; `unknown` answers numbers that have none."""

    name: str
    arch: str
    rules: tuple[Rule, ...]
    unknown: Action
    foreign_arch: Action
    x32: Action

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise PolicyError.of("arch", f"{self.arch!r} is not one of {', '.join(ARCHITECTURES)}")
        numbers = [rule.number for rule in self.rules]
        if numbers != sorted(set(numbers)):
            raise PolicyError.of("rules", "not in the order of call numbers, or two rules for one call")

    @property
    def audit_arch(self) -> int:
        return ARCHITECTURES[self.arch][0]


def load_profile(source: str | os.PathLike[str]) -> Profile:
    """The profile of that name (``default``) that comes with Ramet, or the one in a file (given as a path).

    Raises PolicyError when there is none or it is wrong.
    """
    if isinstance(source, str) and _PROFILE_NAME.fullmatch(source):
        name, file = source, resources.files("ramet.seccomp") / "profiles" / f"{source}.toml"
        if not file.is_file():
            raise PolicyError.of("profile", f"no profile named {source!r} comes with Ramet")
    else:
        name, file = Path(source).stem, Path(source)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise PolicyError.of("profile", f"{source}: {error}") from error
    return parse_profile(text, name)


def parse_profile(text: str, name: str) -> Profile:
    """The profile that the TOML `text` describes. Raises PolicyError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError.of("profile", f"{name}: {error}") from error
    _keys(
        document,
        "profile",
        needed={"schema", "arch", "unknown", "foreign_arch", "x32", "group"},
        allowed={"constants"},
    )
    if document["schema"] != SCHEMA:
        raise PolicyError.of("schema", f"{document['schema']!r}: this Ramet reads schema {SCHEMA}")
    arch = document["arch"]
    if arch not in ARCHITECTURES:
        raise PolicyError.of("arch", f"{arch!r} is not one of {', '.join(ARCHITECTURES)}")
    reader = _Reader(ARCHITECTURES[arch][1], _constants(document.get("constants", {})))
    for index, group in enumerate(_list(document["group"], "group")):
        reader.group(group, f"group[{index}]")
    return Profile(
        name=name,
        arch=arch,
        rules=tuple(sorted(reader.rules.values(), key=lambda rule: rule.number)),
        unknown=Action.parse(document["unknown"], "unknown"),
        foreign_arch=Action.parse(document["foreign_arch"], "foreign_arch"),
        x32=Action.parse(document["x32"], "x32"),
    )


class _Reader:
    """Turns the groups of one document into rules, keeping the place for errors."""

    def __init__(self, numbers: Mapping[str, int], constants: Mapping[str, int]) -> None:
        self.numbers = numbers
        self.constants = constants
        self.rules: dict[str, Rule] = {}

    def group(self, group: object, where: str) -> None:
        table = _keys(
            group, where, needed={"name", "reason", "action", "syscalls"}, allowed={"optional", "cases"}
        )
        title = _text(table["name"], f"{where}.name")
        _text(table["reason"], f"{where}.reason")
        action = Action.parse(table["action"], f"{where}.action")
        cases = tuple(
            self.case(case, f"{where}.cases[{index}]")
            for index, case in enumerate(_list(table.get("cases", []), f"{where}.cases"))
        )
        optional = _names(table.get("optional", []), f"{where}.optional")
        for name in _names(table["syscalls"], f"{where}.syscalls"):
            if name not in self.numbers:
                raise PolicyError.of(where, f"{name!r} is no system call here (list it under `optional`?)")
            self.rule(name, title, action, cases, where)
        for name in optional:
            if name in self.numbers:
                self.rule(name, title, action, cases, where)

    def rule(self, name: str, title: str, action: Action, cases: tuple[Case, ...], where: str) -> None:
        if name in self.rules:
            raise PolicyError.of(where, f"{name} is in group {self.rules[name].group!r} already")
        self.rules[name] = _placed(
            where, lambda: Rule(self.numbers[name], name, action, cases=cases, group=title)
        )

    def case(self, case: object, where: str) -> Case:
        table = _keys(case, where, needed={"action", "when"})
        action = Action.parse(table["action"], f"{where}.action")
        when = tuple(
            self.condition(condition, f"{where}.when[{index}]")
            for index, condition in enumerate(_list(table["when"], f"{where}.when"))
        )
        return _placed(where, lambda: Case(action, when))

    def condition(self, condition: object, where: str) -> Condition:
        table = _keys(condition, where, needed={"arg", "width"}, allowed={"mask", "eq", "ne"})
        if ("eq" in table) == ("ne" in table):
            raise PolicyError.of(where, "needs either `eq` or `ne`")
        arg, width = (self.integer(table[key], f"{where}.{key}") for key in ("arg", "width"))
        if width not in FULL:
            raise PolicyError.of(f"{where}.width", f"{width} is neither 32 nor 64")
        operator = "eq" if "eq" in table else "ne"
        given = table[operator] if isinstance(table[operator], list) else [table[operator]]
        values = tuple(self.integer(value, f"{where}.{operator}") for value in given)
        mask = self.integer(table["mask"], f"{where}.mask") if "mask" in table else FULL[width]
        return _placed(where, lambda: Condition(arg, width, mask, values, negate=operator == "ne"))

    def integer(self, value: object, where: str) -> int:
        """A number, or the name of a constant."""
        if isinstance(value, str):
            if value not in self.constants:
                raise PolicyError.of(where, f"{value!r} is not among the constants")
            return self.constants[value]
        return _unsigned(value, where)


def _placed(where: str, make: Callable[[], _T]) -> _T:
    """What `make` makes; the place is put before the field of its error."""
    try:
        return make()
    except PolicyError as error:
        raise PolicyError.of(
            f"{where}.{error.field}", error.message.removeprefix(f"{error.field}: ")
        ) from error


def _keys(
    value: object, where: str, *, needed: set[str], allowed: AbstractSet[str] = frozenset()
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PolicyError.of(where, "is not a table")
    missing, extra = needed - value.keys(), value.keys() - needed - allowed
    if missing or extra:
        problems = [f"lacks {key!r}" for key in sorted(missing)] + [
            f"knows no {key!r}" for key in sorted(extra)
        ]
        raise PolicyError.of(where, ", ".join(problems))
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise PolicyError.of(where, "is not a list")
    return value


def _names(value: object, where: str) -> list[str]:
    return [_text(name, where) for name in _list(value, where)]


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise PolicyError.of(where, f"{value!r} is not a non-empty string")
    return value


def _unsigned(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= FULL[64]:
        raise PolicyError.of(where, f"{value!r} is not an unsigned 64-bit number")
    return value


def _constants(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise PolicyError.of("constants", "is not a table")
    return {name: _unsigned(number, f"constants.{name}") for name, number in value.items()}
