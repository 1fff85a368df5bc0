"""Best of n: eight drafts from one warm state, side by side; the best one's files and state are kept.

The model is a script that gives a different draft for each temperature.
"""

import ramet

DRAFT = """\
def root(x):
    guess = x
    for _ in range({steps}):
        guess = (guess + x / guess) / 2
    return guess
"""


def scripted_model(temperature: float) -> str:
    """A draft of a function for square roots."""
    return DRAFT.format(steps=int(temperature * 10))


def attempt(child: ramet.Sandbox) -> float:
    """Write the draft, load it into the warm kernel, and measure how wrong it is."""
    draft = scripted_model(float(child.info.metadata["temperature"]))
    child.files.write("/home/user/root.py", draft)
    child.run_code(draft).check()
    return float(child.run_code("max(abs(root(x) - math.sqrt(x)) for x in cases)").text)


with ramet.Sandbox("python") as state:
    state.run_code("import math; cases = [2.0, 10.0, 99.0]")  # shared by all attempts, paid for once
    noted = [{"temperature": f"{number / 8:.3f}"} for number in range(1, 9)]
    with ramet.rollouts(state, 8, attempt, best=lambda error: -error, metadata=noted) as found:
        for one in found.attempts:
            mark = " <- best" if one is found.winner else ""
            print(f"attempt {one.number}: wrong by {one.value:.2e}{mark}")
        print("taken over:", *[change.path for change in found.committed])
        if found.sandbox is not None:
            print("the best one's state goes on:", found.sandbox.run_code("round(root(2.0), 6)").text)
    print("in the parent:", state.files.read("/home/user/root.py").splitlines()[2].strip())
