#!/usr/bin/env python3
"""Writes Python's copy of the protocol's numbers from the C header.

    gen_protocol.py            write src/ramet/native/_protocol.py from core/include/ramet/protocol.h
    gen_protocol.py --check    write nothing; exit 1 if the copy is stale

The header promises one macro or enumerator a line; a line of either kind that cannot be read is an error.
Names keep their place without the prefix RAMET_. For enumerations whose names are shown to people there is
also a table from number to name, in lower case and without the enumeration's own prefix ("pivot_root").
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "core/include/ramet/protocol.h"
TARGET = ROOT / "src/ramet/native/_protocol.py"
INTRO = '''"""Numbers of core's protocol.

Generated from {source} by scripts/gen_protocol.py. Do not edit.
"""

from types import MappingProxyType
'''
# Enumeration: prefix of its members, and the name of the table to write for it.
TABLES = {
    "ramet_kind": ("RAMET_", "KIND_NAMES"),
    "ramet_step": ("RAMET_STEP_", "STEP_NAMES"),
    "ramet_reason": ("RAMET_REASON_", "REASON_NAMES"),
    "ramet_tag": ("RAMET_TAG_", "TAG_NAMES"),
}
MACRO = re.compile(r"#define RAMET_(\w+) (0x[0-9a-f]+|[0-9]+)(?:\s*/\*.*)?")
MEMBER = re.compile(r"(RAMET_\w+) = ([0-9]+),(?:\s*/\*.*)?")


class Unreadable(Exception):
    """A line of the header that this program does not understand."""


def parse(text: str) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Macros, and the members of each enumeration, by name.

    Raises:
        Unreadable: a macro with a value or an enumerator is not in the form that the header promises, or two
            enumerators have one number.
    """
    macros: dict[str, int] = {}
    enums: dict[str, dict[str, int]] = {}
    members: dict[str, int] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if opened := re.fullmatch(r"enum (\w+) \{", line):
            members = enums.setdefault(opened[1], {})
        elif line.startswith("}"):
            members = None
        elif line.startswith("#define RAMET_") and line != "#define RAMET_PROTOCOL_H":
            if not (macro := MACRO.fullmatch(line)):
                raise Unreadable(f"line {number}: {line}")
            macros[macro[1]] = int(macro[2], 0)
        elif members is not None and line and not line.startswith(("/*", "*")):
            if not (member := MEMBER.fullmatch(line)):
                raise Unreadable(f"line {number}: {line}")
            if int(member[2]) in members.values():
                raise Unreadable(f"line {number}: the number is taken: {line}")
            members[member[1]] = int(member[2])
    return macros, enums


def render(text: str, source: str) -> str:
    """The Python module for the header `text`."""
    macros, enums = parse(text)
    lines = [INTRO.format(source=source)]
    lines += [
        f"{name} = {value:#x}" if "MAGIC" in name else f"{name} = {value}" for name, value in macros.items()
    ]
    for enum, members in enums.items():
        lines += ["", f"# enum {enum}"]
        lines += [f"{name.removeprefix('RAMET_')} = {value}" for name, value in members.items()]
    for enum, (prefix, table) in TABLES.items():
        names = {value: name.removeprefix(prefix).lower() for name, value in enums[enum].items()}
        rows = ", ".join(f'{value}: "{name}"' for value, name in names.items())
        lines += ["", f"{table} = MappingProxyType({{{rows},}})"]
    return "\n".join(lines) + "\n"


def tidy(text: str) -> str:
    """Format as the rest of the project."""
    import subprocess

    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main(arguments: list[str] | None = None) -> int:
    """Write, or with --check compare."""
    parser = argparse.ArgumentParser(description="generate the protocol's numbers")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the copy is stale")
    options = parser.parse_args(arguments)
    try:
        text = tidy(render(HEADER.read_text(), str(HEADER.relative_to(ROOT))))
    except Unreadable as error:
        print(f"{HEADER}: {error}", file=sys.stderr)
        return 1
    if options.check:
        if not TARGET.exists() or TARGET.read_text() != text:
            print(f"{TARGET}: stale; run scripts/gen_protocol.py", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
