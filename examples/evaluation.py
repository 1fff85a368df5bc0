"""An evaluation: each task in a fork of the same warm state, so that none sees what another left behind.

Every task is tried three times with seeds of its own, and can be repeated exactly. The model is a script.
"""

import ramet

TASKS = {
    "roll": ("random.randint(1, 6)", lambda text: 1 <= int(text) <= 6),
    "leak": ("len(seen.append(1) or seen)", lambda text: text == "1"),
    "slow": ("[None for _ in iter(int, 1)]", lambda _: False),
}


def scripted_model(task: str) -> str:
    """The code that a model would write for a task."""
    return TASKS[task][0]


def judged(task: str, child: ramet.Sandbox) -> str:
    """One try: the code of the model, and what became of it."""
    done = child.run_code(scripted_model(task), timeout=0.5)
    if not done.ok:
        return done.reason
    return "passed" if TASKS[task][1](done.text) else f"wrong: {done.text}"


with ramet.Sandbox("python") as state:
    state.run_code("import random; seen = []")
    for task in TASKS:
        runs = [
            ramet.rollouts(state, 3, lambda child, task=task: judged(task, child), seed=[1, 2, 3])
            for _ in range(2)
        ]
        first, again = ([one.value for one in run.attempts] for run in runs)
        print(f"{task:5} {first}", "(the same again)" if first == again else f"(then {again})")
