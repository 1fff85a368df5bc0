"""libseccomp as judge: what it makes of the same policy, run in our interpreter, must agree with ours.

libseccomp has no order among the rules of one call, so it judges in two halves: a whole program for what does
not depend on arguments, and for each case a program that says whether its conditions hold.
"""

import tempfile
from typing import Any

import pytest

from ramet.seccomp import Case, Condition, Profile, compile_profile, load_profile
from ramet.seccomp.interpret import Program
from ramet.seccomp.policy import FULL, RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS
from unit.seccomp.evaluator import AUDIT_ARCH_I386, AUDIT_ARCH_X86_64, grid

try:
    import pyseccomp  # type: ignore[import-untyped]  # it comes without types
except (ImportError, RuntimeError, OSError) as missing:
    pytest.skip(f"pyseccomp or libseccomp.so.2 is missing: {missing}", allow_module_level=True)

MET = RET_ERRNO | 77


def program(judge: Any) -> Program:
    with tempfile.TemporaryFile() as file:
        judge.export_bpf(file)
        file.seek(0)
        return Program(file.read())


def action(value: int) -> Any:
    named = {RET_ALLOW: pyseccomp.ALLOW, RET_KILL_PROCESS: pyseccomp.KILL_PROCESS}
    return named[value] if value in named else pyseccomp.ERRNO(value & 0xFFFF)


def as_alternatives(condition: Condition) -> list[Any]:
    """The comparisons any of which makes the condition hold; libseccomp has few but `equal under mask`."""
    if not condition.negate:
        return [
            pyseccomp.Arg(condition.arg, pyseccomp.MASKED_EQ, condition.mask, value)
            for value in condition.values
        ]
    assert condition.values == (0,), "the profile negates zero only"
    if condition.mask == FULL[64]:
        return [pyseccomp.Arg(condition.arg, pyseccomp.NE, 0)]
    bits = [1 << bit for bit in range(64) if condition.mask >> bit & 1]
    return [pyseccomp.Arg(condition.arg, pyseccomp.MASKED_EQ, bit, bit) for bit in bits]


def matcher(number: int, case: Case) -> Program:
    judge = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    combinations: list[list[Any]] = [[]]
    for condition in case.when:
        combinations = [[*before, each] for before in combinations for each in as_alternatives(condition)]
    for arguments in combinations:
        judge.add_rule(pyseccomp.ERRNO(77), number, *arguments)
    return program(judge)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("default")


@pytest.fixture(scope="module")
def ours(profile: Profile) -> Program:
    return Program(compile_profile(profile))


def test_libseccomp_agrees_about_calls_without_cases(profile: Profile, ours: Program) -> None:
    judge = pyseccomp.SyscallFilter(action(profile.unknown.value))
    judge.set_attr(pyseccomp.Attr.ACT_BADARCH, action(profile.foreign_arch.value))
    decided = [rule for rule in profile.rules if not rule.cases]
    for rule in decided:
        if rule.action != profile.unknown:
            judge.add_rule(action(rule.action.value), rule.number)
    theirs = program(judge)
    conditional = {rule.number for rule in profile.rules if rule.cases}
    for number in range(601):
        if number not in conditional:
            assert ours.run(number, arch=AUDIT_ARCH_X86_64) == theirs.run(number, arch=AUDIT_ARCH_X86_64), (
                number
            )
        assert ours.run(number, arch=AUDIT_ARCH_I386) == theirs.run(number, arch=AUDIT_ARCH_I386)


def test_libseccomp_agrees_about_every_case(profile: Profile, ours: Program) -> None:
    compared = 0
    for rule in profile.rules:
        matchers = [(case.action.value, matcher(rule.number, case)) for case in rule.cases]
        conditions = [condition for case in rule.cases for condition in case.when]
        for arguments in grid(conditions, limit=600) if matchers else ():
            held = (
                value
                for value, judge in matchers
                if judge.run(rule.number, arguments, arch=AUDIT_ARCH_X86_64) == MET
            )
            expected = next(held, rule.action.value)
            assert ours.run(rule.number, arguments, arch=AUDIT_ARCH_X86_64) == expected, (
                rule.name,
                arguments,
            )
            compared += 1
    assert compared > 1000
