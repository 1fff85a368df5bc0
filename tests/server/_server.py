"""A server of its own as a program, and what it leaves behind taken away."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from ramet.client import Client
from ramet.errors import DaemonLost
from system._daemons import wait_gone

PATIENCE_S = 60.0
ALICE, ALICE_RUNS, ALICE_READS = "alice-token-0123456789", "alice-runs-0123456789", "alice-reads-0123456789"
BOB = "bob-token-0123456789abc"
BUSY = "busy-token-0123456789"
TOKENS = f"""
[tenants.alice]
tokens = [
    {{ token = "{ALICE}", name = "boss", scopes = ["admin"] }},
    {{ token = "{ALICE_RUNS}", scopes = ["read", "run"] }},
    {{ token = "{ALICE_READS}", scopes = ["read"] }},
]
[tenants.bob]
sandboxes = 2
snapshots = 1
tokens = [{{ token = "{BOB}", scopes = ["admin"] }}]
[tenants.busy]
requests_per_second = 1
tokens = [{{ token = "{BUSY}" }}]
"""


class Server:
    """A running `ramet serve`."""

    def __init__(self, home: Path, *options: str, tokens: str | None = TOKENS) -> None:
        self.home = home
        self.data = home / "srv"
        self.token_file = home / "tokens"
        self.audit = home / "audit"
        self.options = [*options, "--data", str(self.data), "--audit-log", str(self.audit)]
        if tokens is not None:
            self.write_tokens(tokens)
            self.options += ["--token-file", str(self.token_file)]

    def write_tokens(self, text: str) -> None:
        """Replace the token file, as one rotates tokens."""
        beside = self.token_file.with_suffix(".new")
        beside.write_text(text)
        beside.chmod(0o600)
        beside.rename(self.token_file)

    @contextmanager
    def with_tokens(self, text: str) -> Iterator[None]:
        """Have other tokens for the time of a `with` block."""
        self.write_tokens(text)
        try:
            yield
        finally:
            self.write_tokens(TOKENS)

    def start(self) -> "Server":
        """Start it, and return when it listens."""
        program = "from ramet.cli.main import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", "--port", "0", *self.options],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        self.log: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.decode())
            if b'"serving"' in line:
                self.port = int(json.loads(line)["at"][0].rpartition(":")[2])
                return self
        self.process.wait(PATIENCE_S)
        self.process.stderr.close()
        raise AssertionError("it did not start: " + "".join(self.log))

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str | None = ALICE) -> httpx.Client:
        """A client with a token."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        # Without `verify` all that are trusted are read in each time: 40 ms, for what is no TLS.
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S, verify=False)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it alone; daemons and sandboxes stay."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        assert self.process.stderr is not None
        self.log += [line.decode() for line in self.process.stderr]
        self.process.stderr.close()
        return code

    def audited(self, request_id: str) -> dict[str, object]:
        """What was noted of a request, which is when it was answered."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for line in self.audit.read_text().splitlines():
                if (noted := json.loads(line))["request_id"] == request_id:
                    return noted
        raise AssertionError(f"{request_id} was not noted")

    def end(self) -> None:
        """End it with all that it has."""
        if self.process.poll() is None:
            self.stop()
        end_tenants(self.data)


def end_tenants(data: Path) -> None:
    """End the daemons below a server's directory."""
    for tenant in [*(data / "tenants").glob("*/run"), *data.glob("public/run")]:
        with suppress(DaemonLost), Client(str(tenant), start=False) as client:
            wait_gone(client.shutdown().pid)


@contextmanager
def running(*options: str, tokens: str | None = TOKENS) -> Iterator[Server]:
    """A server for the time of a `with` block."""
    # Under /tmp, as the path of a unix socket has at most 107 bytes.
    home = Path(tempfile.mkdtemp(prefix="ramet-srv-", dir="/tmp"))
    server = Server(home, *options, tokens=tokens)
    try:
        yield server.start()
    finally:
        server.end()
        shutil.rmtree(home)


def told(response: httpx.Response, status: int) -> object:
    """The body of an answer that has to have this status."""
    assert response.status_code == status, (response.status_code, response.text)
    return response.json() if response.content else None


def refusal(response: httpx.Response, status: int) -> Mapping[str, str]:
    """The body of an error: always JSON with an error and a code."""
    body = told(response, status)
    assert response.headers["content-type"] == "application/json"
    assert isinstance(body, dict)
    assert isinstance(body["error"], str), body
    assert isinstance(body["code"], str), body
    return body
