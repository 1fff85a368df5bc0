"""From a profile to the classic BPF program that the kernel runs at every system call.

The program tests the architecture, then searches the call number among ranges of equal answers, then, where
a rule has cases, tests arguments. x32 needs no test of its own: its numbers have bit 30 set, so they are one
more range.

Why ranges: at installation the kernel runs the program once for each call number in a restricted interpreter,
to learn which calls are allowed whatever their arguments; those never run the program again. Installation is
on the path of every sandbox and every fork, so short programs and short searches pay. That interpreter gives
up at the first load of anything but number and architecture: arguments are loaded in the leaves only.

Instructions are laid down backwards, the last one first, so that every target stands when a jump to it is
made. Jumps hold eight bits; a target that has drifted too far away gets a copy close by (a return), or a long
jump.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final

from ramet.seccomp.policy import FULL, RET_ALLOW, Condition, PolicyError, Profile, Rule, load_profile

# linux/bpf_common.h; all that the compiler uses
LD_W_ABS: Final = 0x20
ALU_AND_K: Final = 0x54
JMP_JA: Final = 0x05
JMP_JEQ_K: Final = 0x15
JMP_JGE_K: Final = 0x35
JMP_JSET_K: Final = 0x45
RET_K: Final = 0x06

# struct sock_filter
INSTRUCTION: Final = struct.Struct("=HBBI")
# linux/bpf_common.h BPF_MAXINSNS
MAX_INSTRUCTIONS: Final = 4096

# struct seccomp_data, on a little-endian machine
OFFSET_NR: Final = 0
OFFSET_ARCH: Final = 4
OFFSET_ARGS: Final = 16

X32_BIT: Final = 0x4000_0000
# The number -1: a tracer has told the kernel to skip the call. Nothing runs, and refusing would overwrite the
# result that the tracer left in the register.
SKIPPED: Final = 0xFFFF_FFFF

_JUMP_REACH: Final = 255


@cache
def default_filter() -> bytes:
    """The program of the profile `default`, compiled once per process."""
    return compile_profile(load_profile("default"))


def compile_profile(profile: Profile) -> bytes:
    """The program as an array of struct sock_filter, eight bytes each.

    Raises PolicyError when the kernel would not take a program of that length.
    """
    code = _Assembler()
    ranges = _ranges(profile)
    search = _search(code, ranges, 0, len(ranges) - 1)
    known = code.load(OFFSET_NR, search)
    foreign = code.ret(profile.foreign_arch.value)
    code.load(OFFSET_ARCH, code.branch(JMP_JEQ_K, profile.audit_arch, known, foreign))
    if len(code) > MAX_INSTRUCTIONS:
        raise PolicyError.of(
            "profile", f"compiles to {len(code)} instructions; the kernel takes {MAX_INSTRUCTIONS}"
        )
    return code.assemble()


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a call gets: a return value, unless one of the cases (value, conditions) holds."""

    value: int
    cases: tuple[tuple[int, tuple[Condition, ...]], ...] = ()

    @classmethod
    def of(cls, rule: Rule) -> _Answer:
        return cls(rule.action.value, tuple((case.action.value, case.when) for case in rule.cases))


@dataclass(frozen=True, slots=True)
class _Range:
    first: int
    answer: _Answer


def _ranges(profile: Profile) -> list[_Range]:
    """All 2**32 numbers as ranges in order, equal neighbours merged; each ends where the next begins."""
    unknown = _Answer(profile.unknown.value)
    steps = [_Range(0, unknown)]
    for rule in profile.rules:
        steps += [_Range(rule.number, _Answer.of(rule)), _Range(rule.number + 1, unknown)]
    steps += [_Range(X32_BIT, _Answer(profile.x32.value)), _Range(SKIPPED, _Answer(RET_ALLOW))]
    filled = [step for step, after in pairwise(steps) if step.first != after.first] + steps[-1:]
    return filled[:1] + [step for before, step in pairwise(filled) if before.answer != step.answer]


def _search(code: _Assembler, ranges: Sequence[_Range], low: int, high: int) -> int:
    """Where the search for the number in the accumulator among ranges[low..high] starts."""
    if low == high:
        return _answer(code, ranges[low].answer)
    if high - low == 2 and ranges[low].answer == ranges[high].answer:
        number = ranges[low + 1].first
        if ranges[high].first == number + 1:
            outside = _answer(code, ranges[low].answer)
            return code.branch(JMP_JEQ_K, number, _answer(code, ranges[low + 1].answer), outside)
    middle = (low + high + 1) // 2
    above = _search(code, ranges, middle, high)
    below = _search(code, ranges, low, middle - 1)
    return code.branch(JMP_JGE_K, ranges[middle].first, above, below)


def _answer(code: _Assembler, answer: _Answer) -> int:
    otherwise = code.ret(answer.value)
    for value, when in reversed(answer.cases):
        start = code.ret(value)
        for condition in reversed(when):
            start = _test(code, condition, start, otherwise)
        otherwise = start
    return otherwise


def _test(code: _Assembler, condition: Condition, met: int, unmet: int) -> int:
    """Where the test of one condition starts, which goes on at `met` or `unmet`."""
    found, lost = (unmet, met) if condition.negate else (met, unmet)
    low_word, high_word = OFFSET_ARGS + 8 * condition.arg, OFFSET_ARGS + 8 * condition.arg + 4
    low_mask, high_mask = condition.mask & FULL[32], condition.mask >> 32
    if not high_mask:
        return _test_word(code, low_word, low_mask, condition.values, found=found, lost=lost)
    start = lost
    for value in reversed(condition.values):
        # High word first: one that differs must go on to the next value, never to this one's low word.
        low = found
        if low_mask:
            low = _test_word(code, low_word, low_mask, (value & FULL[32],), found=found, lost=start)
        start = _test_word(code, high_word, high_mask, (value >> 32,), found=low, lost=start)
    return start


def _test_word(
    code: _Assembler, offset: int, mask: int, values: tuple[int, ...], *, found: int, lost: int
) -> int:
    if found == lost:
        return found
    if mask != FULL[32] and values == (0,):
        return code.load(offset, code.branch(JMP_JSET_K, mask, lost, found))
    start = lost
    for value in reversed(values):
        start = code.branch(JMP_JEQ_K, value, found, start)
    if mask != FULL[32]:
        start = code.mask(mask, start)
    return code.load(offset, start)


class _Assembler:
    """Lays instructions down backwards. A position is an index into that order, and never changes.

    Equal instructions with equal targets share one position, whatever block they were made for: a test of one
    argument for one value exists once, however many calls need it.
    """

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []
        self._shared: dict[tuple[int, int, int, int], int] = {}
        # Of a position that has been copied, the latest copy, which is the nearest.
        self._nearest: dict[int, int] = {}
        self._branches: dict[int, tuple[int, int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._code)

    def assemble(self) -> bytes:
        return b"".join(INSTRUCTION.pack(*instruction) for instruction in reversed(self._code))

    def ret(self, value: int) -> int:
        key = (RET_K, value, 0, 0)
        if key not in self._shared:
            self._shared[key] = self._lay(RET_K, 0, 0, value)
        return self._shared[key]

    def branch(self, operation: int, operand: int, then: int, otherwise: int) -> int:
        if then == otherwise:
            return then
        key = (operation, operand, then, otherwise)
        if key not in self._shared:
            self._shared[key] = self._lay_branch(key)
        return self._shared[key]

    def load(self, offset: int, following: int) -> int:
        """Load a word of seccomp_data, go on at `following`."""
        return self._fall_through(LD_W_ABS, offset, following)

    def mask(self, bits: int, following: int) -> int:
        return self._fall_through(ALU_AND_K, bits, following)

    def _lay(self, operation: int, jump_true: int, jump_false: int, operand: int) -> int:
        self._code.append((operation, jump_true, jump_false, operand))
        return len(self._code) - 1

    def _lay_branch(self, branch: tuple[int, int, int, int]) -> int:
        operation, operand, then, otherwise = branch
        # Bringing the second target near may lay one instruction between the first and this branch.
        then = self._near(then, room=1)
        otherwise = self._near(otherwise, room=0)
        here = len(self._code)
        position = self._lay(operation, here - then - 1, here - otherwise - 1, operand)
        self._branches[position] = branch
        return position

    def _fall_through(self, operation: int, operand: int, following: int) -> int:
        key = (operation, operand, following, following)
        if key not in self._shared:
            if following != len(self._code) - 1:
                # A copy of a branch or a return costs the same as a long jump to it, and runs one less.
                if following in self._branches:
                    self._lay_branch(self._branches[following])
                else:
                    self._copy(following)
            self._shared[key] = self._lay(operation, 0, 0, operand)
        return self._shared[key]

    def _near(self, target: int, room: int) -> int:
        """The target or a copy of it that a branch can reach, with `room` more instructions between."""
        nearest = self._nearest.get(target, target)
        if len(self._code) + room - nearest - 1 <= _JUMP_REACH:
            return nearest
        self._nearest[target] = self._copy(target)
        return self._nearest[target]

    def _copy(self, target: int) -> int:
        operation, _, _, operand = self._code[target]
        if operation == RET_K:
            return self._lay(RET_K, 0, 0, operand)
        return self._lay(JMP_JA, 0, 0, len(self._code) - target - 1)
