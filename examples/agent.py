"""An agent that repairs a program. The model is a script: put yours in its place, the rest stays as it is.

Before each step that may do harm the sandbox is forked; what goes wrong there is thrown away with the fork.
"""

from collections.abc import Generator

import ramet

PROGRAM = "def mean(numbers):\n    return sum(numbers) / len(numbers)\n"
TEST = "from stats import mean\nassert mean([1, 2, 3]) == 2\nassert mean([]) == 0\nprint('passed')\n"


def scripted_model() -> Generator[str, str, None]:
    """What a model would answer, a command a turn: it looks, breaks everything, then mends the program."""
    seen = yield "cat stats.py"
    if "def mean" in seen:
        seen = yield "rm -f *.py; python3 test.py"
    if "No such file" in seen:
        yield "sed -i 's|return .*|return sum(numbers) / (len(numbers) or 1)|' stats.py; python3 test.py"


def step(project: ramet.Sandbox, command: str) -> str:
    """Try a command in a fork, and take over what it did to files if it succeeded."""
    with project.fork() as trial:
        result = trial.commands.run(command, cwd="/workspace", timeout=20)
        if result.ok:
            trial.commit_to(project)
    output = result.stdout + result.stderr
    print(f"$ {command}\n{output.rstrip()}\n-> {'kept' if result.ok else 'thrown away'}\n")
    return output


with ramet.Sandbox(command=["sleep", "infinity"]) as project:
    project.files.write("/workspace/stats.py", PROGRAM)
    project.files.write("/workspace/test.py", TEST)
    model = scripted_model()
    command = next(model)
    try:
        while True:
            command = model.send(step(project, command))
    except StopIteration:
        pass
    project.commands.run("python3 test.py", cwd="/workspace", check=True)
    print(project.files.read("/workspace/stats.py"), end="")
