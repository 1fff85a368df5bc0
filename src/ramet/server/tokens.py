"""Who may do what: the token file.

It is either one line with a token, whose holder is the tenant ``default`` and may do everything, or TOML::

    [tenants.alice]
    sandboxes = 100
    tokens = [
        { name = "ci", token = "...", scopes = ["read", "run"] },
        { name = "laptop", sha256 = "..." },
    ]

It is read anew when it changes, so tokens are rotated by replacing the file (write another and rename it). A
changed file that is wrong is refused, and what held before goes on to hold. No token is kept in memory: only
its SHA-256, and all of them are compared with what came, each in constant time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import stat
import tomllib
from typing import TYPE_CHECKING, Any

from ramet.errors import InvalidRequest
from ramet.models.names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

SCOPES = ("read", "run", "admin")
"""Each includes those before it."""
TOKEN_MIN = 16
TOKEN_MAX = 1024
FILE_MAX = 1 << 20
PLACEHOLDERS = ("REPLACE_ME", "CHANGE_ME", "CHANGEME", "YOUR_TOKEN", "EXAMPLE", "<")
DEFAULT_TENANT = "default"


@dataclasses.dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may have at once."""

    sandboxes: int = 1000
    snapshots: int = 1000
    requests_per_second: float = 1000.0
    streams: int = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Who asks: the tenant, the name of the token, and what it allows."""

    tenant: str
    token: str
    scope: str
    quota: Quota = Quota()

    def may(self, scope: str) -> bool:
        """Whether it allows what needs `scope`."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


NOBODY = Identity(DEFAULT_TENANT, "none", "admin")
"""Who asks where there are no tokens."""


class Tokens:
    """The tokens of a file, as it is now."""

    def __init__(self, path: str, warn: Callable[[str], object] = lambda _: None) -> None:
        """Raises InvalidRequest naming ``token-file``. `warn` hears of changed files that are wrong."""
        self._path = path
        self._warn = warn
        self._mark: tuple[int, ...] = ()
        self._known: tuple[tuple[bytes, Identity], ...] = ()
        self._read()

    @property
    def tenants(self) -> frozenset[str]:
        """Who has tokens."""
        self._look()
        return frozenset(one.tenant for _, one in self._known)

    def identify(self, token: str) -> Identity | None:
        """Whose token it is. All are compared, whatever was found before."""
        self._look()
        presented = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for digest, identity in self._known:
            if hmac.compare_digest(digest, presented):
                found = identity
        return found

    def _look(self) -> None:
        try:
            now = _mark(os.stat(self._path))
        except OSError as error:
            self._refuse_change((), f"it cannot be read: {error.strerror}")
            return
        if now == self._mark:
            return
        try:
            self._read()
        except InvalidRequest as error:
            # The mark of before it was read: what was written since is looked at again.
            self._refuse_change(now, error.message)

    def _refuse_change(self, mark: tuple[int, ...], why: str) -> None:
        if self._mark:
            self._warn(f"{self._path} has changed and is not heeded: {why}")
        self._mark = mark

    def _read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                content = file.read(FILE_MAX + 1)
        except OSError as error:
            raise _wrong(f"{self._path} cannot be read: {error.strerror}") from None
        if stat.S_ISREG(status.st_mode) and status.st_mode & 0o022:
            raise _wrong(
                f"{self._path} can be written by others than its owner", "chmod go-w takes that away"
            )
        if len(content) > FILE_MAX:
            raise _wrong(f"{self._path} has more than {FILE_MAX} bytes")
        self._known = parse(content)
        self._mark = _mark(status)


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _wrong(text: str, hint: str | None = None) -> InvalidRequest:
    return InvalidRequest.of("token-file", text, hint=hint)


def parse(content: bytes) -> tuple[tuple[bytes, Identity], ...]:
    """Digests of tokens and who has them. Raises InvalidRequest."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _wrong("is not UTF-8") from None
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise _wrong(
            "holds no token", "python3 -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        )
    if len(lines) == 1 and not lines[0].startswith("["):
        return ((_digest_of(lines[0], "the token"), Identity(DEFAULT_TENANT, "token", "admin")),)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _wrong(f"is neither one token nor TOML: {error}") from None
    if extra := data.keys() - {"tenants"}:
        raise _wrong(f"has {min(extra)!r}, which is not known")
    tenants = data.get("tenants")
    if not isinstance(tenants, dict) or not tenants:
        raise _wrong("has no tenants")
    found = [one for name, tenant in tenants.items() for one in _tenant(name, tenant)]
    if len({digest for digest, _ in found}) < len(found):
        raise _wrong("has one token twice")
    return tuple(found)


def _tenant(name: str, data: object) -> list[tuple[bytes, Identity]]:
    check_name(name, "token-file")
    if not isinstance(data, dict):
        raise _wrong(f"tenants.{name} is no table")
    told = {field.name: field.type for field in dataclasses.fields(Quota)}
    if extra := data.keys() - {"tokens", *told}:
        raise _wrong(f"tenants.{name}.{min(extra)} is not known")
    quota = Quota(**{key: _number(data[key], f"tenants.{name}.{key}") for key in told if key in data})
    tokens = data.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise _wrong(f"tenants.{name} has no tokens")
    return [_token(one, f"tenants.{name}.tokens[{number}]", name, quota) for number, one in enumerate(tokens)]


def _number(value: object, where: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 10**6:
        raise _wrong(f"{where} is no number from 0 to 1000000")
    return value


def _token(data: object, where: str, tenant: str, quota: Quota) -> tuple[bytes, Identity]:
    if not isinstance(data, dict) or data.keys() - {"token", "sha256", "scopes", "name"}:
        raise _wrong(f"{where} is no table of token or sha256, scopes and name")
    if ("token" in data) == ("sha256" in data):
        raise _wrong(f"{where} has neither or both of token and sha256")
    digest = _digest_of(data["token"], where) if "token" in data else _digest(data["sha256"], where)
    # admin is over the whole server, other tenants' sandboxes included: it has to be written down.
    scopes = data.get("scopes", ["read", "run"])
    if not isinstance(scopes, list) or not scopes or not set(scopes) <= set(SCOPES):
        raise _wrong(f"{where}.scopes must be some of {', '.join(SCOPES)}")
    name = data.get("name") or where.rpartition(".")[2]
    if not isinstance(name, str):
        raise _wrong(f"{where}.name is no text")
    return digest, Identity(tenant, name[:64], max(scopes, key=SCOPES.index), quota)


def _digest(value: object, where: str) -> bytes:
    try:
        digest = bytes.fromhex(value if isinstance(value, str) else "")
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise _wrong(f"{where}.sha256 is no SHA-256 in hexadecimal")
    return digest


def _digest_of(token: object, where: str) -> bytes:
    if not isinstance(token, str) or not token.isprintable() or not token.isascii() or " " in token:
        raise _wrong(f"{where} is not one word of printable ASCII")
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX:
        raise _wrong(f"{where} has not {TOKEN_MIN} to {TOKEN_MAX} characters")
    if token.upper().startswith(PLACEHOLDERS) or len(set(token)) < 4:
        raise _wrong(f"{where} is a placeholder")
    return hashlib.sha256(token.encode()).digest()
