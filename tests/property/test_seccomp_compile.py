"""Whatever the profile, the compiled program answers as a plain reading of it does."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramet.seccomp import Action, Case, Condition, PolicyError, Profile, Rule, compile_profile
from ramet.seccomp.interpret import Program
from ramet.seccomp.policy import FULL
from unit.seccomp.evaluator import AUDIT_ARCH_I386, AUDIT_ARCH_X86_64, evaluate

NAMES = ("allow", "kill", "EPERM", "ENOSYS", "EACCES")
actions = st.sampled_from([Action.parse(name, "test") for name in NAMES])
words = st.one_of(
    st.integers(0, 3),
    st.sampled_from([2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]),
    st.integers(0, 2**64 - 1),
)


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    width = draw(st.sampled_from([32, 64]))
    full = FULL[width]
    mask = draw(st.one_of(st.just(full), words.map(lambda word: word & full or 1)))
    values = draw(st.lists(words.map(lambda word: word & mask), min_size=1, max_size=4, unique=True))
    return Condition(draw(st.integers(0, 5)), width, mask, tuple(values), negate=draw(st.booleans()))


@st.composite
def rules(draw: st.DrawFn, number: int) -> Rule:
    action = draw(actions)
    try:
        cases = tuple(
            Case(draw(actions), tuple(draw(st.lists(conditions(), min_size=1, max_size=3))))
            for _ in range(draw(st.integers(0, 3)))
        )
        return Rule(number, f"call{number}", action, cases)
    except PolicyError:  # drawn together by chance, they contradict each other
        return Rule(number, f"call{number}", action)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    numbers = draw(st.one_of(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 0x3FFFFFFF), max_size=8)))
    drawn = tuple(draw(rules(number)) for number in sorted(numbers))
    return Profile("drawn", "x86_64", drawn, draw(actions), draw(actions), draw(actions))


@given(profile=profiles(), data=st.data())
@settings(max_examples=150)
def test_compiled_program_answers_as_the_profile_reads(profile: Profile, data: st.DataObject) -> None:
    program = Program(compile_profile(profile))
    values = [
        value for rule in profile.rules for case in rule.cases for each in case.when for value in each.values
    ]
    arguments = st.one_of(st.sampled_from(values), words) if values else words
    near = [rule.number + step for rule in profile.rules for step in (-1, 0, 1) if rule.number + step >= 0]
    numbers = (
        st.one_of(st.sampled_from(near), st.integers(-2, 2**32 - 1)) if near else st.integers(-2, 2**32 - 1)
    )
    for _ in range(8):
        number = data.draw(numbers)
        given_arguments = data.draw(st.lists(arguments, min_size=6, max_size=6))
        for arch in (AUDIT_ARCH_X86_64, AUDIT_ARCH_I386):
            assert program.run(number, given_arguments, arch=arch) == evaluate(
                profile, number, given_arguments, arch
            )


@given(numbers=st.sets(st.integers(0, 2000), min_size=250, max_size=600), arguments=st.integers(0, 20))
@example(numbers=set(range(600)), arguments=7)
@settings(max_examples=8)
def test_programs_of_any_size_jump_right(numbers: set[int], arguments: int) -> None:
    """No two leaves are alike, so the program is as large as it can be and jumps go as far as they can."""
    drawn = tuple(
        Rule(
            number,
            f"call{number}",
            Action.errno(number % 4000 + 1),
            (
                Case(
                    Action.errno((number + 7) % 4000 + 1),
                    (Condition(number % 6, 32, FULL[32], (number % 20,)),),
                ),
            ),
        )
        for number in sorted(numbers)
    )
    profile = Profile("large", "x86_64", drawn, Action.errno(38), Action.errno(1), Action.errno(2))
    program = Program(compile_profile(profile))
    for number in range(2002):
        assert program.run(number, [arguments] * 6, arch=AUDIT_ARCH_X86_64) == evaluate(
            profile, number, [arguments] * 6
        )
