"""Runs classic BPF programs as the kernel would, for tests and to answer "what would this call get?".

The kernel checks a program before taking it (net/core/filter.c bpf_check_classic, kernel/seccomp.c
seccomp_check_filter); so does this, as far as the instructions go that seccomp programs are made of.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from typing import Final

from ramet.errors import InvalidRequest
from ramet.seccomp.compile import INSTRUCTION, MAX_INSTRUCTIONS, default_filter
from ramet.seccomp.policy import ARCHITECTURES, RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS

# struct seccomp_data: number, architecture, instruction pointer, six arguments
_DATA: Final = struct.Struct("<IIQ6Q")
_WORD: Final = 0xFFFF_FFFF
_RETURN: Final = 0x06
_LOAD: Final = 0x20
_JUMP: Final = 0x05
# BPF_JMP: equal, greater, greater or equal, any bit set
_BRANCHES: Final = {0x15, 0x25, 0x35, 0x45}
_AND: Final = 0x54


class InvalidProgram(ValueError):
    """The kernel would not take this program."""


class Program:
    """A checked program. Raises InvalidProgram for one that the kernel or this interpreter does not take."""

    def __init__(self, code: bytes) -> None:
        if not code or len(code) % INSTRUCTION.size or len(code) > MAX_INSTRUCTIONS * INSTRUCTION.size:
            raise InvalidProgram(f"{len(code)} bytes are not 1 to {MAX_INSTRUCTIONS} instructions")
        self.instructions: list[tuple[int, int, int, int]] = list(INSTRUCTION.iter_unpack(code))
        for index in range(len(self.instructions)):
            self._check(index)
        if self.instructions[-1][0] != _RETURN:
            raise InvalidProgram("does not end with a return")

    def _check(self, index: int) -> None:
        operation, jump_true, jump_false, operand = self.instructions[index]
        if operation in _BRANCHES:
            targets = [index + 1 + jump_true, index + 1 + jump_false]
        elif operation == _JUMP:
            targets = [index + 1 + operand]
        elif operation in {_RETURN, _AND}:
            targets = []
        elif operation == _LOAD:
            targets = []
            if operand % 4 or operand >= _DATA.size:
                raise InvalidProgram(f"instruction {index} loads from {operand}")
        else:
            raise InvalidProgram(f"instruction {index} has code {operation:#x}")
        if any(target >= len(self.instructions) for target in targets):
            raise InvalidProgram(f"instruction {index} jumps past the end")

    def run(self, number: int, arguments: Sequence[int] = (), *, arch: int, pointer: int = 0) -> int:
        """The SECCOMP_RET_… value for a call; negative numbers and arguments are as registers hold them."""
        padded = [argument & 0xFFFF_FFFF_FFFF_FFFF for argument in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
        data = struct.unpack("<16I", _DATA.pack(number & _WORD, arch, pointer, *padded))
        accumulator = index = 0
        while True:
            operation, jump_true, jump_false, operand = self.instructions[index]
            index += 1
            if operation == _RETURN:
                return operand
            if operation == _LOAD:
                accumulator = data[operand // 4]
            elif operation == _AND:
                accumulator &= operand
            elif operation == _JUMP:
                index += operand
            else:
                index += jump_true if _taken(operation, accumulator, operand) else jump_false


def _taken(operation: int, accumulator: int, operand: int) -> bool:
    if operation == 0x15:
        return accumulator == operand
    if operation == 0x25:
        return accumulator > operand
    if operation == 0x35:
        return accumulator >= operand
    return bool(accumulator & operand)


def describe(value: int) -> str:
    """A return value in the words of profiles: `allow`, `kill`, or the name of an errno."""
    if value == RET_ALLOW:
        return "allow"
    if value == RET_KILL_PROCESS:
        return "kill"
    if value & 0xFFFF_0000 == RET_ERRNO:
        number = value & 0xFFFF
        return errno.errorcode.get(number, f"errno {number}")
    return f"{value:#010x}"


def explain(call: int | str, arguments: Sequence[int] = (), *, program: bytes | None = None) -> str:
    """What a guest's system call gets: `allow`, `kill`, or the name of an errno.

    `call` is a number or a name; missing arguments are 0; `program` is the default filter unless given.
    Raises InvalidRequest for a name that the architecture does not have.
    """
    arch, numbers = ARCHITECTURES["x86_64"]
    number = numbers.get(call) if isinstance(call, str) else call
    if number is None:
        raise InvalidRequest.of("call", f"{call!r} is no system call of x86_64")
    return describe(Program(program or default_filter()).run(number, arguments, arch=arch))
