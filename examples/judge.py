"""Judges solutions of an exercise: each is a program that somebody else wrote, and gets one second."""

import ramet

EXERCISE = [("2 3", "5"), ("10 -4", "6")]
SOLUTIONS = {
    "right": "a, b = map(int, input().split()); print(a + b)",
    "wrong": "a, b = map(int, input().split()); print(a * b)",
    "endless": "while True: pass",
    "greedy": "open('/tmp/fill', 'wb').write(bytes(64 << 20))",
    "broken": "print(undefined)",
}


def judge(program: str) -> str:
    """The verdict on one solution."""
    for given, wanted in EXERCISE:
        result = ramet.run(["python3", "-c", program], stdin=given, timeout=1, limits={"disk": "16M"})
        if result.timed_out:
            return "too slow"
        if not result.ok:
            return f"failed: {result.stderr.strip().splitlines()[-1]}"
        if result.stdout.strip() != wanted:
            return f"wrong answer to {given!r}: {result.stdout.strip()}"
    return "passed"


for name, program in SOLUTIONS.items():
    print(f"{name:8} {judge(program)}")
