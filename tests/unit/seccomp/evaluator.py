"""A second reading of a profile, obvious rather than fast, that compiled programs are compared with."""

from collections.abc import Iterator, Sequence
from itertools import product

from ramet.seccomp import Condition, Profile

AUDIT_ARCH_X86_64 = 0xC000003E
AUDIT_ARCH_I386 = 0x40000003
RET_ALLOW = 0x7FFF0000


def evaluate(profile: Profile, number: int, arguments: Sequence[int], arch: int = AUDIT_ARCH_X86_64) -> int:
    """The value the kernel must get for a call, straight from the words of the policy."""
    if arch != AUDIT_ARCH_X86_64:
        return profile.foreign_arch.value
    if number in {-1, 0xFFFFFFFF}:
        return RET_ALLOW
    if not 0 <= number < 0x40000000:
        return profile.x32.value
    for rule in profile.rules:
        if rule.number == number:
            for case in rule.cases:
                if all(holds(condition, arguments) for condition in case.when):
                    return case.action.value
            return rule.action.value
    return profile.unknown.value


def holds(condition: Condition, arguments: Sequence[int]) -> bool:
    seen = (arguments[condition.arg] % 2**condition.width) & condition.mask
    return (seen not in condition.values) if condition.negate else (seen in condition.values)


def grid(conditions: Sequence[Condition], limit: int = 4000) -> Iterator[tuple[int, ...]]:
    """Arguments around everything that the conditions look at, at most about `limit` of them.

    For each argument: the values, their neighbours, each with a bit of the mask turned or the upper half set.
    """
    interesting: list[list[int]] = []
    for argument in range(6):
        points = {0, 1, 2**31, 2**32, 2**64 - 1} if any(each.arg == argument for each in conditions) else {0}
        for condition in conditions:
            if condition.arg != argument:
                continue
            bits = [1 << bit for bit in range(64) if condition.mask >> bit & 1]
            for value in condition.values:
                points |= {value, value + 1, value - 1, value | 2**32, value | 2**63, value + 2**64 - 2**32}
                points |= {
                    value ^ bits[0],
                    value ^ bits[-1],
                    value | (condition.mask ^ (2**condition.width - 1)),
                }
            if len(condition.values) == 1:
                points |= set(bits)
        interesting.append(sorted(point % 2**64 for point in points))
    total = 1
    for points_of_argument in interesting:
        total *= len(points_of_argument)
    step = max(1, total // limit) | 1  # odd, so that it does not run in step with the inner lists
    for index, arguments in enumerate(product(*interesting)):
        if index % step == 0:
            yield arguments
