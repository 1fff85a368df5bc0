"""The compiler against a plain reading of the policy."""

import struct

import pytest

from ramet.errors import InvalidRequest
from ramet.seccomp import (
    Action,
    Case,
    Condition,
    Profile,
    Rule,
    compile_profile,
    default_filter,
    explain,
    load_profile,
)
from ramet.seccomp.compile import JMP_JEQ_K, OFFSET_ARCH, OFFSET_NR, RET_K, _Assembler
from ramet.seccomp.interpret import InvalidProgram, Program, describe
from ramet.seccomp.policy import FULL
from unit.seccomp.evaluator import AUDIT_ARCH_I386, AUDIT_ARCH_X86_64, evaluate, grid

ALLOW = Action.parse("allow", "test")
KILL = Action.parse("kill", "test")
EPERM = Action.parse("EPERM", "test")
ENOSYS = Action.parse("ENOSYS", "test")

EDGES = (
    0x3FFFFFFF,
    0x40000000,
    0x40000001,
    0x40000200,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFE,
    0xFFFFFFFF,
    -1,
    -2,
)
RETURN_ALLOW = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)


def profile(*rules: Rule, unknown: Action = ENOSYS, x32: Action = ENOSYS) -> Profile:
    return Profile("test", "x86_64", rules, unknown, KILL, x32)


def agree(policy: Profile, numbers: range) -> None:
    program = Program(compile_profile(policy))
    rules = {rule.number: rule for rule in policy.rules}
    for number in (*numbers, *EDGES):
        conditions = (
            [condition for case in rules[number].cases for condition in case.when] if number in rules else []
        )
        for arguments in grid(conditions):
            expected = evaluate(policy, number, arguments)
            got = program.run(number, arguments, arch=AUDIT_ARCH_X86_64)
            assert got == expected, f"{number} {[hex(word) for word in arguments]}: {describe(got)}"


def test_default_program_answers_every_number_and_boundary_argument_as_the_profile_says() -> None:
    agree(load_profile("default"), range(601))


@pytest.mark.parametrize("number", [0, 59, 435, 600, 0x40000000, -1])
def test_foreign_architecture_gets_one_answer_whatever_the_number(number: int) -> None:
    assert Program(default_filter()).run(number, arch=AUDIT_ARCH_I386) == KILL.value


def test_tracers_that_skip_a_call_are_let_through() -> None:
    assert explain(-1) == "allow"
    assert explain(0xFFFFFFFF) == "allow"
    assert explain(-2) == "ENOSYS"


def test_default_program_is_short() -> None:
    assert len(default_filter()) // 8 < 350


def test_default_program_is_compiled_once() -> None:
    assert default_filter() is default_filter()


def test_calls_that_are_allowed_whatever_their_arguments_load_none() -> None:
    """The kernel spares such calls the program; it finds them by a run that ends at a load of an argument."""
    program = Program(default_filter())
    for rule in load_profile("default").rules:
        if not rule.cases:
            assert offsets_loaded(program, rule.number) <= {0, 4}, rule.name


def offsets_loaded(program: Program, number: int) -> set[int]:
    loaded: set[int] = set()
    accumulator = index = 0
    while True:
        operation, jump_true, jump_false, operand = program.instructions[index]
        index += 1
        if operation == 0x06:
            return loaded
        if operation == 0x20:
            loaded.add(operand)
            accumulator = AUDIT_ARCH_X86_64 if operand == 4 else number
        elif operation == 0x05:
            index += operand
        else:
            taken = accumulator == operand if operation == 0x15 else accumulator >= operand
            index += jump_true if taken else jump_false


@pytest.mark.parametrize(
    "conditions",
    [
        (Condition(0, 32, FULL[32], (5,)),),
        (Condition(0, 32, FULL[32], (5,), negate=True),),
        (Condition(0, 32, FULL[32], (0,)),),
        (Condition(3, 32, 0xF0, (0x10, 0x20)),),
        (Condition(3, 32, 0xF0, (0,), negate=True),),
        (Condition(3, 32, 0xF0, (0,)),),
        (Condition(5, 64, FULL[64], (0,)),),
        (Condition(5, 64, FULL[64], (0,), negate=True),),
        (Condition(5, 64, FULL[64], (0x100000001, 1, 0x100000000)),),
        (Condition(5, 64, 0xFF << 40, (1 << 40, 0)),),
        (Condition(5, 64, 0xFF, (1, 3), negate=True),),
        (Condition(5, 64, 1 << 63 | 1, (1 << 63, 1), negate=True),),
        (
            Condition(0, 32, FULL[32], (1, 2)),
            Condition(1, 64, FULL[64], (2**33,), negate=True),
            Condition(2, 32, 7, (4,)),
        ),
    ],
)
def test_conditions_compile_to_what_they_say(conditions: tuple[Condition, ...]) -> None:
    agree(profile(Rule(9, "nine", ALLOW, (Case(EPERM, conditions),))), range(8, 11))


def test_first_case_that_holds_answers() -> None:
    one = Condition(0, 32, FULL[32], (1,))
    low = Condition(0, 32, 0xF0, (0,))
    rule = Rule(9, "nine", KILL, (Case(EPERM, (one,)), Case(ALLOW, (low,))))
    agree(profile(rule), range(8, 11))
    program = compile_profile(profile(rule))
    assert [explain(9, [first], program=program) for first in (1, 2, 16)] == ["EPERM", "allow", "kill"]


@pytest.mark.parametrize(
    "rules",
    [
        (),
        (Rule(0, "first", ALLOW),),
        (Rule(0x3FFFFFFF, "last", ALLOW),),
        tuple(Rule(number, f"c{number}", ALLOW) for number in range(0, 40, 2)),
        tuple(Rule(number, f"c{number}", ENOSYS) for number in range(20)),
    ],
    ids=["none", "first", "last", "gaps", "as unknown"],
)
def test_ranges_end_where_the_profile_says(rules: tuple[Rule, ...]) -> None:
    agree(profile(*rules), range(50))
    agree(profile(*rules, unknown=ALLOW, x32=KILL), range(50))


def test_profile_of_one_answer_needs_no_search() -> None:
    policy = Profile("test", "x86_64", (), ALLOW, ALLOW, ALLOW)
    program = Program(compile_profile(policy))
    assert program.run(7, arch=AUDIT_ARCH_X86_64) == ALLOW.value
    assert len(program.instructions) <= 4


def test_calls_with_equal_tests_share_the_instructions_of_the_test() -> None:
    cases = (Case(EPERM, (Condition(0, 32, FULL[32], (1,)), Condition(1, 64, FULL[64], (2, 3)))),)
    one = len(compile_profile(profile(Rule(10, "a", ALLOW, cases)))) // 8
    two = len(compile_profile(profile(Rule(10, "a", ALLOW, cases), Rule(20, "b", ALLOW, cases)))) // 8
    assert two - one <= 2


@pytest.mark.parametrize("count", [120, 260, 500, 700])
def test_programs_larger_than_a_jump_reaches_are_right(count: int) -> None:
    """Jumps hold eight bits: every leaf here is unlike the others, so nothing can be shared or merged."""
    rules = tuple(
        Rule(
            number,
            f"c{number}",
            Action.errno(number % 90 + 1),
            (Case(Action.errno(number % 89 + 1001), (Condition(number % 6, 32, FULL[32], (number + 7,)),)),),
        )
        for number in range(count)
    )
    policy = profile(*rules)
    assert len(compile_profile(policy)) // 8 > 255
    agree(policy, range(count + 2))


@pytest.mark.parametrize("gap", range(250, 260))
def test_branch_reaches_targets_at_and_beyond_the_end_of_a_jump(gap: int) -> None:
    for swapped in (False, True):
        code = _Assembler()
        far = code.ret(1)
        fill(code, 300)
        near = code.load(OFFSET_NR, code.ret(2))  # not a return: it cannot be copied, only jumped to
        fill(code, gap)
        code.branch(JMP_JEQ_K, 0, *((far, near) if swapped else (near, far)))
        program = Program(code.assemble())
        met, unmet = (1, 2) if swapped else (2, 1)
        # The accumulator starts as zero, so the branch is taken.
        assert program.run(0, arch=AUDIT_ARCH_X86_64) == met
        code.load(OFFSET_ARCH, len(code) - 1)
        assert Program(code.assemble()).run(0, arch=AUDIT_ARCH_X86_64) == unmet


def fill(code: _Assembler, count: int) -> None:
    for _ in range(count):
        code._lay(RET_K, 0, 0, 99)


@pytest.mark.parametrize(
    "code,message",
    [
        (b"", "0 bytes"),
        (RETURN_ALLOW[:-1], "7 bytes"),
        (RETURN_ALLOW * 4097, "instructions"),
        (struct.pack("=HBBI", 0x20, 0, 0, 0), "does not end with a return"),
        (struct.pack("=HBBI", 0x15, 0, 1, 0) + RETURN_ALLOW, "past the end"),
        (struct.pack("=HBBI", 0x05, 0, 0, 0xFFFFFFFF) + RETURN_ALLOW, "past the end"),
        (struct.pack("=HBBI", 0x20, 0, 0, 64) + RETURN_ALLOW, "loads from 64"),
        (struct.pack("=HBBI", 0x20, 0, 0, 2) + RETURN_ALLOW, "loads from 2"),
        (struct.pack("=HBBI", 0x28, 0, 0, 0) + RETURN_ALLOW, "code 0x28"),
    ],
)
def test_interpreter_refuses_what_the_kernel_refuses(code: bytes, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        Program(code)


def test_explain_speaks_the_words_of_profiles() -> None:
    assert explain("kill", [1]) == "EPERM"
    assert explain("kill", [2]) == "allow"
    assert explain(435) == explain("clone3") == "ENOSYS"
    assert explain("read", program=RETURN_ALLOW) == "allow"
    assert describe(0x80000000) == "kill"
    assert describe(0x7FC00000) == "0x7fc00000"
    assert describe(0x00050FA0) == "errno 4000"
    with pytest.raises(InvalidRequest) as caught:
        explain("no_such_call")
    assert caught.value.field == "call"
