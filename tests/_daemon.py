"""A daemon in this process: the real server on a thread's event loop, over a core made of Python."""

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from _fake_core import FakeCore
from ramet.client import Client
from ramet.daemon import lifespan
from ramet.engine import cores
from ramet.errors import DaemonLost
from ramet.native.launch import Launched


class QuietLog:
    """Keeps events instead of writing them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def bound(self) -> None:
        """Nothing grows here."""

    def names(self) -> list[str]:
        """Which events there were."""
        return [event for event, _ in self.events]


class Daemon:
    """Serves in the directory `place` until `stop`. Each start of core is answered by `make_core`."""

    def __init__(
        self, place: Path, make_core: Callable[[], FakeCore] = FakeCore, idle_s: float = 600
    ) -> None:
        self.place = str(place)
        self.cores: list[FakeCore] = []
        self.log = QuietLog()
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._make_core = make_core
        self._idle_s = idle_s
        self._data = tempfile.TemporaryDirectory(prefix="ramet-data-")
        self._ready, self._word = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "Daemon":
        """Return when it serves."""
        self._thread.start()
        self.word = os.read(self._ready, 4096)
        return self

    def client(self) -> Client:
        """A client of this daemon, which starts no other."""
        return Client(self.place, start=False)

    @property
    def core(self) -> FakeCore:
        """The core that was started last."""
        return self.cores[-1]

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        with suppress(DaemonLost), self.client() as client:
            client.shutdown()
        assert self.ended.wait(10)
        self._thread.join(10)
        os.close(self._ready)
        self._data.cleanup()

    def _launch(self) -> Launched:
        core = self._make_core()
        self.cores.append(core)
        return core.launched()

    def _run(self) -> None:
        directory = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        settings = cores.Settings(
            directory,
            self.place,
            2,
            1000,
            private=(self.place,),
            program=Path("/bin/true"),
            data=f"{self._data.name}/ramet",
            lends=False,
        )
        try:
            asyncio.run(self._serve(settings))
        except BaseException as error:  # noqa: BLE001  shown to the test
            self.error = error
        finally:
            os.close(directory)
            for core in self.cores:
                core.close()
            self.ended.set()

    async def _serve(self, settings: cores.Settings) -> None:
        made = cores.Cores

        class Faked(made):  # type: ignore[misc,valid-type]
            _launch = staticmethod(self._launch)

        starter = lifespan.Starter(self._word)
        await lifespan.live(settings, self.log, starter, self._idle_s, make_cores=Faked)
