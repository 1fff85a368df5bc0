"""A client that does whatever can be done, in random order. A program, with words: seed, seconds, threads.

It says "begun" when all its threads are at work, and at its end one line of JSON: how often each operation
was carried out, and what was refused, by operation and code. Whatever else is raised ends it by a traceback.
"""

import collections
import contextlib
import json
import os
import random
import sys
import threading
import time
import traceback

import ramet
from ramet.client import Client, Sandbox, fork, sandboxes, snapshots
from ramet.errors import DaemonError, ForkError, InvalidRequest, NoRoom, RametError, SandboxEnded

PATIENCE_S = 60.0
# Somebody ended the daemon or core, or the machine is full: no fault of what was asked for.
LOST = (DaemonError, SandboxEnded, NoRoom)


class Worker:
    """One client and its random operations."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.client = Client(os.environ["RAMET_RUNTIME_DIR"])
        self.done: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()
        self.label = f"soak-{os.getpid()}-{seed}"
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"{self.label}-{self.count}"

    def run(self) -> None:
        word = self.choice.choice(
            ["true", "exit 3", "head -c 100K /dev/zero", "sleep 1000 & exit 0", "kill -9 $$"]
        )
        assert self.client.run(word, timeout=PATIENCE_S).reason in {"exit", "signal", "lost"}

    def late(self) -> None:
        result = self.client.run("sleep 1000", timeout=self.choice.random() / 10 + 0.01)
        assert result.reason in {"timeout", "lost"}, result

    def commands(self) -> None:
        with Sandbox(command=["sleep", "1000"], client=self.client) as sandbox:
            started = sandbox.commands.start("for n in 1 2 3; do echo $n; done; cat")
            result = sandbox.commands.run("echo $PPID; exit 5")
            started.close()
            assert result.exit_code == 5 or result.reason != "exit", result

    def files(self) -> None:
        with Sandbox(command=["sleep", "1000"], client=self.client) as sandbox:
            size = self.choice.choice([0, 10, 100_000])
            sandbox.files.write("/tmp/a/b", b"x" * size)
            assert len(sandbox.files.read_bytes("/tmp/a/b")) == size
            sandbox.files.list("/tmp")
            sandbox.diff()

    def code(self) -> None:
        with Sandbox("python", client=self.client) as parent:
            parent.run_code("x = 1", timeout=PATIENCE_S)
            with parent.fork(self.choice.choice([1, 2, 4])) as children:
                for child in children:
                    done = child.run_code("x + 1", timeout=PATIENCE_S)
                    assert done.text == "2" or not done.ok, done

    def rollouts(self) -> None:
        with (
            Sandbox(command=["sleep", "1000"], client=self.client) as parent,
            ramet.rollouts(
                parent, 3, lambda child: child.commands.run("echo done >/tmp/done"), first_success=True
            ),
        ):
            pass

    def snapshot(self) -> None:
        name = self.name()
        with Sandbox(command=["sleep", "1000"], client=self.client) as parent:
            parent.snapshot(name)
            try:
                with fork(snapshot=name, n=2, client=self.client):
                    pass
            finally:
                snapshots.remove(name, client=self.client)

    def pause(self) -> None:
        with Sandbox(command=["sleep", "1000"], client=self.client) as parent:
            paused = parent.pause(self.name())
        try:
            with Sandbox.resume(paused, client=self.client):
                pass
        except BaseException:
            # A daemon that dies in the middle may have used it up.
            with contextlib.suppress(InvalidRequest):
                snapshots.remove(paused, client=self.client)
            raise

    def detached(self) -> None:
        with Sandbox(command=["sleep", "1000"], detach=True, ttl=20, client=self.client) as made:
            pass
        with Sandbox.connect(made.id, client=self.client) as again:
            again.commands.run("true")
        sandboxes.kill(made.id, client=self.client)

    def forgotten(self) -> None:
        Sandbox(command=["sleep", "1000"], client=self.client).let_go()

    def look(self) -> None:
        sandboxes.list(ended=True, client=self.client)
        snapshots.list(client=self.client)
        for _ in ramet.events("start", follow=False, client=self.client):
            pass

    OPERATIONS = (run, run, late, commands, files, code, rollouts, snapshot, pause, detached, forgotten, look)

    def work(self, until: float) -> None:
        try:
            while time.monotonic() < until:
                operation = self.choice.choice(self.OPERATIONS)
                try:
                    operation(self)
                    self.done[operation.__name__] += 1
                except ForkError as error:
                    known = all(isinstance(one, LOST) for one in error.errors.values())
                    self.refused[f"{'' if known else 'unexpected: '}{operation.__name__}: {error}"] += 1
                except LOST as error:
                    self.refused[f"{operation.__name__}: {type(error).__name__} {error.code}"] += 1
                except RametError as error:
                    line = traceback.extract_tb(error.__traceback__)[1].lineno
                    what = f"{operation.__name__} in line {line}: {type(error).__name__} {error}"
                    self.refused[f"unexpected: {what}"] += 1
        finally:
            self.client.close()


def main() -> None:
    seed, seconds, threads = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    workers = [Worker(seed + number) for number in range(threads)]
    raised: list[BaseException] = []

    def one(worker: Worker) -> None:
        try:
            worker.work(time.monotonic() + seconds)
        except BaseException as error:  # noqa: BLE001  raised again below
            raised.append(error)

    running = [threading.Thread(target=one, args=(worker,)) for worker in workers]
    for thread in running:
        thread.start()
    print("begun", flush=True)
    for thread in running:
        thread.join()
    if raised:
        raise raised[0]
    done = sum([worker.done for worker in workers], collections.Counter())
    refused = sum([worker.refused for worker in workers], collections.Counter())
    print(json.dumps({"done": done, "refused": refused}), flush=True)


if __name__ == "__main__":
    main()
