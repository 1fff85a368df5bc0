"""What a profile may say, and how a wrong one is refused."""

from pathlib import Path

import pytest

from ramet.errors import InvalidRequest
from ramet.seccomp import Action, Case, Condition, PolicyError, Profile, Rule, compile_profile, load_profile
from ramet.seccomp.policy import FULL, parse_profile

HEAD = """
schema = 1
arch = "x86_64"
unknown = "ENOSYS"
foreign_arch = "kill"
x32 = "ENOSYS"
[constants]
INIT = 1
"""
ALLOW = Action.parse("allow", "test")
EPERM = Action.parse("EPERM", "test")


def profile(*groups: str) -> Profile:
    return parse_profile(HEAD + "\n".join("[[group]]\n" + group for group in groups), "test")


def group(**parts: str) -> str:
    """A group in TOML; each part is given as TOML, and `-` leaves it out."""
    whole = {"name": '"g"', "reason": '"r"', "action": '"allow"', "syscalls": '["kill"]'} | parts
    return "\n".join(f"{key} = {value}" for key, value in whole.items() if value != "-") + "\n"


def cases(*cases: str) -> str:
    return f"[{', '.join(cases)}]"


def test_group_gives_each_of_its_calls_the_action_and_the_cases() -> None:
    rules = profile(
        group(
            syscalls='["kill", "tkill"]',
            cases=cases('{ action = "EPERM", when = [{ arg = 0, width = 32, eq = "INIT" }] }'),
        )
    ).rules
    expected = Case(EPERM, (Condition(0, 32, FULL[32], (1,)),))
    assert [(rule.name, rule.number, rule.action, rule.cases) for rule in rules] == [
        ("kill", 62, ALLOW, (expected,)),
        ("tkill", 200, ALLOW, (expected,)),
    ]


def test_mask_and_list_and_ne_are_read_as_written() -> None:
    text = (
        '{ action = "ENOENT", when = [{ arg = 5, width = 64, mask = 0xff00000000, ne = [0x100000000, 0] }] }'
    )
    (rule,) = profile(group(cases=cases(text))).rules
    assert rule.cases[0].when == (Condition(5, 64, 0xFF00000000, (0x100000000, 0), negate=True),)


def test_optional_name_that_the_architecture_lacks_is_left_out() -> None:
    rules = profile(group(syscalls='["read"]', optional='["write", "call_of_tomorrow"]')).rules
    assert [rule.name for rule in rules] == ["read", "write"]


@pytest.mark.parametrize(
    "groups,field,message",
    [
        ([group(syscalls='["killl"]')], "group[0]", "'killl' is no system call"),
        ([group(), group(action='"EPERM"')], "group[1]", "kill is in group 'g' already"),
        ([group(syscalls='["kill", "kill"]')], "group[0]", "already"),
        ([group(action='"deny"')], "group[0].action", "neither allow, kill nor the name of an errno"),
        ([group(action='"EVERYTHING"')], "group[0].action", "neither allow, kill nor the name of an errno"),
        ([group(action="7")], "group[0].action", "neither allow, kill nor the name of an errno"),
        ([group(reason='""')], "group[0].reason", "not a non-empty string"),
        ([group(reason="-")], "group[0]", "lacks 'reason'"),
        ([group(sycalls='["read"]')], "group[0]", "knows no 'sycalls'"),
        ([group(syscalls='"kill"')], "group[0].syscalls", "not a list"),
    ],
)
def test_wrong_group_is_refused_by_its_place(groups: list[str], field: str, message: str) -> None:
    with pytest.raises(PolicyError, match="group") as caught:
        profile(*groups)
    assert caught.value.field == field
    assert message in caught.value.message


@pytest.mark.parametrize(
    "condition,field,message",
    [
        ("{ arg = 6, width = 32, eq = 1 }", ".when[0].arg", "numbered 0 to 5"),
        ("{ arg = 0, width = 16, eq = 1 }", ".when[0].width", "neither 32 nor 64"),
        ("{ arg = 0, eq = 1 }", ".when[0]", "lacks 'width'"),
        ("{ arg = 0, width = 32 }", ".when[0]", "either `eq` or `ne`"),
        ("{ arg = 0, width = 32, eq = 1, ne = 2 }", ".when[0]", "either `eq` or `ne`"),
        ("{ arg = 0, width = 32, gt = 1, eq = 2 }", ".when[0]", "knows no 'gt'"),
        ("{ arg = 0, width = 32, eq = [] }", ".when[0].values", "no value"),
        ("{ arg = 0, width = 32, eq = [1, 1] }", ".when[0].values", "given twice"),
        ("{ arg = 0, width = 32, eq = 0x100000000 }", ".when[0].values", "can never be met"),
        ("{ arg = 0, width = 32, mask = 0xf0, eq = 1 }", ".when[0].values", "can never be met"),
        ("{ arg = 0, width = 32, mask = 0, eq = 0 }", ".when[0].mask", "zero or wider"),
        ("{ arg = 0, width = 32, mask = 0x100000000, eq = 0 }", ".when[0].mask", "zero or wider"),
        ("{ arg = 0, width = 32, eq = -1 }", ".when[0].eq", "unsigned"),
        ("{ arg = 0, width = 32, eq = true }", ".when[0].eq", "unsigned"),
        ('{ arg = 0, width = 32, eq = "ONE" }', ".when[0].eq", "not among the constants"),
        (
            "{ arg = 0, width = 32, eq = 1 }, { arg = 0, width = 32, eq = 2 }",
            ".when[1]",
            "cannot hold together",
        ),
        (
            "{ arg = 0, width = 32, eq = 1 }, { arg = 0, width = 32, ne = 1 }",
            ".when[1]",
            "cannot hold together",
        ),
        (
            "{ arg = 0, width = 32, ne = [1, 2] }, { arg = 0, width = 32, eq = 2 }",
            ".when[1]",
            "cannot hold together",
        ),
    ],
)
def test_condition_that_cannot_be_meant_is_refused_by_its_place(
    condition: str, field: str, message: str
) -> None:
    with pytest.raises(PolicyError, match="group") as caught:
        profile(group(cases=cases(f'{{ action = "EPERM", when = [{condition}] }}')))
    assert caught.value.field == "group[0].cases[0]" + field
    assert message in caught.value.message


@pytest.mark.parametrize(
    "given,message",
    [
        (['{ action = "EPERM", when = [] }'], "no condition"),
        (['{ action = "allow", when = [{ arg = 0, width = 32, eq = 1 }] }'], "no effect"),
        (['{ action = "EPERM", when = [{ arg = 0, width = 32, eq = 1 }] }'] * 2, "always answers before"),
        (
            [
                '{ action = "EPERM", when = [{ arg = 0, width = 32, eq = 1 }] }',
                '{ action = "ENOSYS", when = [{ arg = 1, width = 32, eq = 1 }, EARLIER] }',
            ],
            "always answers before",
        ),
    ],
)
def test_case_that_can_never_matter_is_refused(given: list[str], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        profile(group(cases=cases(*given).replace("EARLIER", "{ arg = 0, width = 32, eq = 1 }")))


@pytest.mark.parametrize(
    "text,message",
    [
        ("schema = ", "Invalid value"),
        (HEAD.replace("schema = 1", "schema = 2") + "[[group]]\n" + group(), "this Ramet reads schema 1"),
        (HEAD.replace("x86_64", "vax") + "[[group]]\n" + group(), "'vax' is not one of x86_64"),
        (HEAD, "lacks 'group'"),
        (HEAD.replace("INIT = 1", 'INIT = "1"') + "[[group]]\n" + group(), "constants.INIT"),
        (HEAD.replace('unknown = "ENOSYS"', 'unknown = "no"') + "[[group]]\n" + group(), "unknown"),
    ],
)
def test_wrong_document_is_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse_profile(text, "test")


def test_profile_is_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + "[[group]]\n" + group(), encoding="utf-8")
    assert load_profile(path).name == load_profile(str(path)).name == "mine"


@pytest.mark.parametrize("source", ["none-such", "../default", "/none/such.toml", "a\0b", Path("/")])
def test_missing_profile_is_an_error_that_names_the_argument(source: str | Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_profile(source)
    assert caught.value.field == "profile"
    assert caught.value.code == "invalid_profile"


def test_profile_made_by_hand_must_be_in_order_and_of_a_known_architecture() -> None:
    read, write = (Rule(number, name, ALLOW) for number, name in ((0, "read"), (1, "write")))
    for arch, rules in (("x86_64", (write, read)), ("x86_64", (read, read)), ("vax", (read,))):
        with pytest.raises(PolicyError):
            Profile("test", arch, rules, EPERM, EPERM, EPERM)


@pytest.mark.parametrize("number", [0, 4096])
def test_errno_that_the_kernel_would_cut_is_refused(number: int) -> None:
    with pytest.raises(PolicyError):
        Action.errno(number)


def test_program_that_the_kernel_would_not_take_is_refused() -> None:
    rules = tuple(
        Rule(
            number,
            f"call{number}",
            ALLOW,
            (Case(Action.errno(number % 4000 + 1), (Condition(0, 32, FULL[32], (number,)),)),),
        )
        for number in range(2000)
    )
    with pytest.raises(PolicyError, match="the kernel takes 4096"):
        compile_profile(Profile("test", "x86_64", rules, EPERM, EPERM, EPERM))
