"""How a server runs, and what it refuses before it listens."""

from __future__ import annotations

import dataclasses
import ipaddress
import os

from ramet.errors import InvalidRequest

HOST = "127.0.0.1"
PORT = 8889
"""Where forkd's clients look by default."""
TTL_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What `ramet serve` was told.

    `data` is where tenants' sandboxes are met and their snapshots are kept. `ttl` is how long a sandbox lives
    that nobody asks for anything, unless its maker says otherwise. `roots` are directories of the host that
    an administrator may name as a root. `body_max` bounds requests but those that write files, `file_max`
    those. `head_s` is the time for a request's head, `body_s` for each next piece of its body, and
    for all of it that comes slower than `guard.BODY_PACE`.
    """

    data: str
    host: str | None = HOST
    port: int = PORT
    socket: str | None = None
    forkbox_socket: str | None = None
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    audit_log: str | None = None
    ttl: float = TTL_S
    roots: tuple[str, ...] = ()
    body_max: int = 2 << 20
    file_max: int = 16 << 30
    head_s: float = 10.0
    body_s: float = 30.0
    connections: int = 4096
    branches: int = 4
    stop_s: float = 30.0

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the option at fault."""
        if self.host is None and self.socket is None:
            raise InvalidRequest.of("host", "there is neither an address nor a socket to listen at")
        if not 0 <= self.port <= 65535:
            raise InvalidRequest.of("port", f"{self.port} is no port")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest.of("tls-key", "--tls-cert and --tls-key come together or not at all")
        if self.public and self.token_file is None:
            raise InvalidRequest.of(
                "host", f"{self.host} can be reached from other machines, and nobody would need a token",
                code="unauthenticated", hint="give --token-file, or listen at 127.0.0.1",
            )  # fmt: skip
        for number, option in ((self.branches, "branch-concurrency"), (self.connections, "connections")):
            if number < 1:
                raise InvalidRequest.of(option, f"{number} is no number from 1 on")

    @property
    def public(self) -> bool:
        """Whether other machines may reach it. A name counts as one that they know."""
        if self.host is None or self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True


def default_data(environment: dict[str, str] | None = None) -> str:
    """Where tenants are, by default."""
    known = dict(os.environ) if environment is None else environment
    if named := known.get("RAMET_SERVER_DATA"):
        return os.path.abspath(named)
    if os.geteuid() == 0 and not known.get("XDG_DATA_HOME"):
        return "/var/lib/ramet"
    shared = known.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local/share")
    return os.path.join(shared, "ramet-server")
