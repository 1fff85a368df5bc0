"""Pid 1 of a sandbox collects what others leave, and takes nobody's exit code for it."""

import threading

import pytest

import ramet
from ramet.client import Client

ZOMBIES = """
import os, time
def zombies():
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                count += open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                pass
    return count
"""


def test_a_thousand_orphans_leave_no_zombie():
    """Field pain 7."""
    source = (
        ZOMBIES
        + """
for _ in range(1000):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(3)
        os._exit(0)
    os.wait()
end = time.monotonic() + 1
while zombies() and time.monotonic() < end:
    time.sleep(0.01)
print(zombies())
"""
    )
    assert ramet.run(["python3", "-S", "-c", source]).stdout == "0\n"


def test_children_of_a_command_that_does_not_wait_are_its_own_zombies_and_end_with_it():
    source = (
        ZOMBIES
        + """
for _ in range(100):
    os.fork() or os._exit(0)
while zombies() < 100:
    time.sleep(0.01)
print(zombies(), flush=True)
os._exit(4)
"""
    )
    result = ramet.run(["python3", "-S", "-c", source], timeout=20)
    assert (result.stdout, result.exit_code) == ("100\n", 4)


def test_fifty_children_in_a_row_work():
    """A namespace whose first child was taken for its init could fork only once."""
    result = ramet.run("i=0; while [ $i -lt 50 ]; do /bin/echo $i; i=$((i+1)); done")
    assert result.stdout.split() == [str(number) for number in range(50)]


def test_only_its_own_tree_is_seen():
    begun = "until [ $(cat /proc/$!/comm) = sleep ]; do :; done"
    lines = ramet.run(f"sleep 100 & {begun}; ps -eo pid,ppid,comm --no-headers").stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["ramet-init", "sh", "sleep", "ps"]


def test_a_thousand_concurrent_runs_have_the_right_exit_code_while_orphans_are_reaped():
    """Field pain 8."""
    numbers = iter(range(1000))
    lock = threading.Lock()
    wrong: list[tuple[int, object]] = []
    done: list[int] = []

    def work() -> None:
        with Client() as client:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                line = f"(true & true & true &) ; (exit 77) ; (sleep 0 &) ; exit {number % 256}"
                result = client.run(line, timeout=50)
                if result.exit_code != number % 256:
                    wrong.append((number, result))
                done.append(number)

    threads = [threading.Thread(target=work) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sorted(done) == list(range(1000))


async def test_a_thousand_concurrent_runs_of_the_async_client_have_the_right_exit_code():
    import asyncio

    gate = asyncio.Semaphore(200)

    async def one(client: ramet.AsyncClient, number: int) -> int:
        async with gate:
            return (await client.run(f"exit {number % 256}", timeout=50)).exit_code

    async with ramet.AsyncClient() as client:
        codes = await asyncio.gather(*(one(client, number) for number in range(1000)))
    assert codes == [number % 256 for number in range(1000)]


@pytest.mark.parametrize("code", [0, 1, 2, 63, 64, 100, 101, 111, 125, 126, 127, 128, 129, 200, 255])
def test_an_exit_code_is_passed_on(code):
    assert ramet.run(f"exit {code}").exit_code == code


def test_a_child_may_outlive_the_shell_that_started_it_but_not_the_command():
    result = ramet.run("sh -c 'sh -c \"sleep 0.1; echo late\" &'; sleep 0.4; echo end")
    assert result.stdout == "late\nend\n"
    assert ramet.run("sh -c 'sleep 5; echo late' & echo end").stdout == "end\n"
