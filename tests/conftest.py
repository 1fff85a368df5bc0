"""What every test stands on: directories and a daemon of its own, and the ledger of what is left."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest

import _ledger

# Folders whose tests start real sandboxes; the ledger is kept for these.
KERNEL_FOLDERS = ("system", "security")
HERE = Path(__file__).resolve().parent

# Other tests run beside: time says nothing, that of generating input neither.
_TIMELESS = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("here", **_TIMELESS)
# The same examples each time: more of them would find nothing that the first run did not.
hypothesis.settings.register_profile("ci", max_examples=30, derandomize=True, print_blob=True, **_TIMELESS)
hypothesis.settings.load_profile("here")  # --hypothesis-profile=ci takes the other

# nohup and background jobs of a shell ignore these, and every program that a test starts would inherit that.
for _number, _action in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _action)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs another user than this one."""
    unfit, why = ("rootless", "needs an ordinary user") if os.geteuid() == 0 else ("root", "needs root")
    for item in items:
        if item.get_closest_marker(unfit):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The daemon and its clients run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def runtime_directory() -> Iterator[Path]:
    """Directories of this session alone, so that its daemon is nobody else's; it must leave nothing.

    Under /tmp whatever TMPDIR says: the path of a unix socket has at most 107 bytes.
    """
    _ledger.adopt_orphans()
    home = Path(tempfile.mkdtemp(prefix="ramet-t-", dir="/tmp"))
    runtime = home / "run"
    runtime.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAMET_URL", "RAMET_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("RAMET_RUNTIME_DIR", str(runtime))
        for name in ("DATA", "STATE", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
        yield runtime
        left = stop_daemon(runtime)
    shutil.rmtree(home)
    if left:
        pytest.fail("left at the end of the session: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="module", autouse=True)
def ledger(request: pytest.FixtureRequest, runtime_directory: Path) -> Iterator[None]:
    """Fail a module of kernel tests after which there is more of anything than before it."""
    folder = request.path.relative_to(HERE).parts[0]
    if folder not in KERNEL_FOLDERS:
        yield
        return

    def look() -> _ledger.Record:
        _ledger.reap_adopted()
        return _ledger.observe(runtime_directory)

    warm_up()
    before = _ledger.settle(look)
    yield
    cool_down()
    warm_up()  # core keeps mounts ready for the root that was used last: the same as before
    if found := _ledger.drift(before, look):
        pytest.fail(f"{request.path.name} left behind: " + "; ".join(found), pytrace=False)


def warm_up() -> None:
    """Have the daemon running, its pool full, its store and lineage open: they belong to the state before."""
    import ramet
    from ramet.client import sandboxes

    for _ in range(2):  # the second opens a lane
        ramet.run("true")
    with ramet.Sandbox(command=["cat"]):  # the daemon opens its store with the first
        sandboxes.lineage()


def cool_down() -> None:
    """Close what the shared clients keep for the next run, which is more after many at once."""
    from ramet.client._async.api import shared as asynchronous
    from ramet.client._sync.api import shared as synchronous

    synchronous.close()
    if asynchronous._lanes is not None:
        asynchronous._lanes.close()
    while asynchronous._core_links:
        asynchronous._core_links.pop().close()
    for kept in (asynchronous._idle, asynchronous._core_links):
        while kept:
            kept.pop().close()


def stop_daemon(runtime: Path) -> list[str]:
    """Stop the session's daemon as a user would; what remains of it, one sentence each, is then killed."""
    if any(runtime.iterdir()):
        program = "from ramet.cli.main import main; main()"
        subprocess.run([sys.executable, "-c", program, "daemon", "stop"], check=True, timeout=30)
    nothing = _ledger.Record(
        processes=_ledger.Counter(),
        descriptors=_ledger.Counter({_ledger.SELF: sys.maxsize}),
        mounts=_ledger.Counter(),
        targets=_ledger.Counter(),
        host_mounts=frozenset(_ledger.mount_lines("self")),
        namespaces=frozenset(),
        entries=frozenset(),
    )

    def look() -> _ledger.Record:
        _ledger.reap_adopted()
        return _ledger.observe(runtime)

    left = _ledger.drift(nothing, look)
    for process in _ledger.descendants(os.getpid()):
        left.append(f"{process.name} ({process.pid})")
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return left
