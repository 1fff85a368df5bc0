#!/usr/bin/env python3
"""Writes the reference of the Python library from its signatures and docstrings: docs/reference/python.md.

gen_reference.py            write it
gen_reference.py --check    write nothing; exit 1 if it is stale
"""

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ramet
from ramet import client
from ramet.client._sync import streams

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/python.md"
WIDTH = 100
HEAD = """# Python

<!-- written by scripts/gen_reference.py -->

Every public name of `import ramet`. [The guides](../README.md) tell what to do with them; what commands of
the shell do is in [commands](cli.md), what is raised, code by code, in [errors](errors.md).

Each class has an asynchronous twin with `Async` before its name, each function and module one with `a` before
it: the same arguments, awaited; `with` is `async with`, `for` is `async for`. Twins are not listed again.

"""
# Chapter, and what stands in it.
CHAPTERS: dict[str, tuple[str, ...]] = {
    "One command": ("run", "CommandResult", "Usage", "Limits"),
    "Sandboxes": (
        "Sandbox",
        "SandboxList",
        "sandboxes",
        "SandboxInfo",
        "ForkWay",
        "Metrics",
        "Writer",
        "Reader",
    ),
    "Commands": ("Commands", "Command", "CommandInfo"),
    "Code": ("Execution", "Result"),
    "Files": ("Files", "FileInfo", "FileEvent", "Change", "Difference", "Process", "ProcessChange"),
    "Terminals": ("Terminals", "Terminal"),
    "Ports": ("Ports",),
    "Snapshots and templates": ("snapshots", "Snapshot", "templates", "Template"),
    "Rollouts": ("rollouts", "Rollouts", "Attempt", "SupportsFork"),
    "Events": ("events", "Events", "Event"),
    "The daemon, and servers": ("status", "Client", "connect"),
    "For programs of others": ("Forkbox",),
}
# Not among the names of `ramet`: what users only get from other objects.
GIVEN = {"Ports": client.Ports, "Reader": streams.Reader, "Writer": streams.Writer}
# For the library's own parts, which meet at these; not for users.
INNER = {
    "Client": {
        "ask",
        "fork_live_past_daemon",
        "fork_past_daemon",
        "give_back_link",
        "idle_link",
        "open_link",
        "run_request",
        "wait_link",
    },
    "Commands": {"ask_core", "known", "unknown", "wait_link", "why_gone"},
    "Event": {"from_wire", "to_wire"},
    "ForkWay": {"from_wire", "parse"},
    "Files": {"base", "commit_to", "compare", "has_content_of", "infos", "processes", "usage"},
    "Sandbox": {"ask_end", "let_go"},
    "SandboxInfo": {"from_wire", "to_wire"},
    "Snapshot": {"from_wire", "to_wire"},
    "Template": {"from_snapshot"},
    "Terminal": {"follow", "typing"},
    "Limits": {"asked", "of", "takeable", "without_deadline", "writable"},
    "templates": {"ensure"},
}
STARS: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
SECTION = re.compile(r"^(Args|Raises|Returns|Yields|Attributes|Note|Example):$")
TITLES = {"Args": "Arguments"}


# --- docstrings --------------------------------------------------------------------------------------------


def text_of(thing: object) -> str:
    """A docstring as Markdown."""
    doc = inspect.getdoc(thing)
    if not doc:
        raise SystemExit(f"{thing!r} has no docstring")
    lines: list[str] = []
    section = ""
    for line in doc.replace("``", "`").splitlines():
        if match := SECTION.match(line):
            section = match[1]
            lines += [f"**{TITLES.get(section, section)}**", ""]
        elif section and (entry := re.match(r" {4}(\S[^:]*): (.*)", line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif section and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            section = section if line.startswith(" ") else ""
            lines.append(line.strip() if section else line)
    return "\n".join(lines).rstrip() + "\n"


# --- signatures --------------------------------------------------------------------------------------------


def signature_of(name: str, call: Callable[..., Any], *, bound: bool) -> str:
    """A call as one writes it, a line each argument where one line is too short."""
    try:
        signature = inspect.signature(call)
    except ValueError:
        raise SystemExit(f"{name} has no signature") from None
    values = list(signature.parameters.values())[1 if bound else 0 :]
    parts = []
    keyword = False
    for value in values:
        if value.kind is value.KEYWORD_ONLY and not keyword:
            keyword = True
            parts.append("*")
        stars = STARS.get(value.kind, "")
        keyword = keyword or stars == "*"
        parts.append(f"{stars}{value.name}{_annotation(value.annotation)}{_default(value)}")
    returns = signature.return_annotation
    end = "" if returns is signature.empty or name[:1].isupper() else f" -> {_type(returns)}"
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


def _type(annotation: object) -> str:
    # As the compiler keeps it, which has quotes of its own liking.
    return (
        annotation.replace("'", '"')
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )


def _annotation(annotation: object) -> str:
    return "" if annotation is inspect.Parameter.empty else f": {_type(annotation)}"


def _default(value: inspect.Parameter) -> str:
    if value.default is value.empty:
        return ""
    shown = re.sub(r"<(\w+) object at 0x[0-9a-f]+>", r"<\1>", repr(value.default))
    return f" = {shown}" if value.annotation is not value.empty else f"={shown}"


# --- parts of the page -------------------------------------------------------------------------------------


def block(text: str) -> str:
    """Signatures: coloured, and no program."""
    return f"```py\n{text}\n```\n"


def members(cls: type) -> Iterator[tuple[str, object]]:
    """What users find in a class, in its own order, with what it inherits from ours."""
    names: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("ramet."):
            names.update({name: value for name, value in vars(base).items() if not name.startswith("_")})
    inner = INNER.get(cls.__name__, set())
    if inner - set(names):
        raise SystemExit(f"{cls.__name__} has no {', '.join(sorted(inner - set(names)))}")
    fields = {one.name for one in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name, value in names.items():
        described = callable(value) or isinstance(value, (property, classmethod, staticmethod))
        if described and name not in inner and name not in fields:
            yield name, value


def class_part(name: str, cls: type) -> str:
    """A class: what it is, how it is made, its fields, properties and methods."""
    parts = [f"### {name}\n\n{text_of(cls)}\n"]
    if dataclasses.is_dataclass(cls):
        rows = [f"{one.name}: {_type(one.type)}" for one in dataclasses.fields(cls) if one.name[0] != "_"]
        parts.append(block("\n".join(rows)) + "\n")
    elif name not in GIVEN and (make := vars(cls).get("__init__")) and inspect.getdoc(make):
        parts.append(block(signature_of(name, make, bound=True)) + "\n" + text_of(make) + "\n")
    properties, methods = [], []
    for member, value in members(cls):
        if isinstance(value, property):
            properties.append(f"- `{member}`: {' '.join(text_of(value).split())}\n")
            continue
        call = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if not callable(call):
            raise SystemExit(f"{name}.{member} cannot be called")
        whose = f"{name}." if isinstance(value, (classmethod, staticmethod)) else ""
        shown = signature_of(f"{whose}{member}", call, bound=not isinstance(value, staticmethod))
        methods.append(f"#### {name}.{member}\n\n{block(shown)}\n{text_of(call)}\n")
    if properties:
        parts.append("".join(properties) + "\n")
    return "".join(parts + methods)


def module_part(name: str, module: ModuleType) -> str:
    """A module of functions, which are called by its name."""
    parts = [f"### ramet.{name}\n\n{text_of(module)}\n"]
    inner = INNER.get(name, set())
    for member, value in vars(module).items():
        own = inspect.isfunction(value) and value.__module__ == module.__name__
        if own and not member.startswith("_") and member not in inner:
            shown = signature_of(f"ramet.{name}.{member}", value, bound=False)
            parts.append(f"#### {name}.{member}\n\n{block(shown)}\n{text_of(value)}\n")
    return "".join(parts)


def part(name: str) -> str:
    """Whatever has this name."""
    thing = GIVEN.get(name) or getattr(ramet, name)
    if inspect.isclass(thing):
        return class_part(name, thing)
    if inspect.ismodule(thing):
        return module_part(name, thing)
    shown = signature_of(f"ramet.{name}", thing, bound=False)
    return f"### ramet.{name}\n\n{block(shown)}\n{text_of(thing)}\n"


def errors_part() -> str:
    """The tree of exceptions, root first."""
    lines = ["## Errors\n\nEach is under the one above it that stands further left.\n\n"]

    def walk(cls: type[ramet.RametError], depth: int) -> None:
        own = [one for one in cls.extra if one not in cls.__mro__[1].__dict__.get("extra", ())]
        fields = f" (`{'`, `'.join(own)}`)" if own else ""
        lines.append(f"{'  ' * depth}- `{cls.__name__}`{fields}: {' '.join(text_of(cls).split())}\n")
        for below in cls.__subclasses__():
            if below.__module__ == cls.__module__:
                walk(below, depth + 1)

    walk(ramet.RametError, 0)
    return "".join(lines)


def page() -> str:
    """All of it. Every public name has its place."""
    errors = {name for name in ramet.__all__ if _is_error(name)}
    named = {name for names in CHAPTERS.values() for name in names}
    twins = {f"Async{name}" for name in named} | {f"a{name}" for name in named}
    if lost := set(ramet.__all__) - named - twins - errors - {"__version__"}:
        raise SystemExit(f"no chapter has {', '.join(sorted(lost))}")
    chapters = [f"## {title}\n\n{''.join(map(part, names))}" for title, names in CHAPTERS.items()]
    text = HEAD + "".join(chapters) + errors_part()
    return re.sub(r"\n{3,}", "\n\n", text)


def _is_error(name: str) -> bool:
    value = getattr(ramet, name)
    return inspect.isclass(value) and issubclass(value, ramet.RametError)


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description="write docs/reference/python.md")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    if options.check:
        print("docs/reference/python.md is stale: scripts/gen_reference.py writes it")
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
