"""What every request goes through before its route, and what is noted of it afterwards.

In this order: a number for the request, whose token it is, whether the tenant asks too often, how large the
body is and how slowly it comes. Routes find the tenant and the identity in ``request.state``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from ramet.errors import InternalError, RametError
from ramet.server.faults import Refused, response_of
from ramet.server.settings import Settings
from ramet.server.tenants import Tenants, new_id
from ramet.server.tokens import NOBODY, Identity, Tokens

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ramet.server.direct import Direct

OPEN_PATHS = frozenset({"/healthz", "/healthz/"})
TUNNEL = "/v1/tunnel"
LARGE_BODIES = "/files/content"
"""Where requests end whose body is a file."""
BESIDE_STREAMS = 500
"""Requests of a tenant that may be under way beside its streams."""
BODY_PACE = 500
"""Bytes a second that a body has to come with, once its time has passed."""
PATH_NOTED = 1024
"""Characters of a path in the audit log: who has no token can have lines written, too."""

log = structlog.get_logger("ramet.server")


class Audit:
    """One line of JSON for each request: who, what, and what came of it. Never a query, a body or a token."""

    def __init__(self, path: str | None) -> None:
        """Raises OSError. The file is opened anew on SIGHUP, after a rotation."""
        self._path = path
        self._fd = -1
        self._torn = self._failing = False
        self.lost = 0
        """Requests that could not be noted."""
        self.reopen()

    def reopen(self) -> None:
        """Write to the file that has the name now."""
        if self._path is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fresh = os.open(self._path, flags, 0o600)
        self.close()
        self._fd = fresh

    def heed_hangup(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have SIGHUP reopen it; where that fails the file that is open goes on to be written."""

        def reopen() -> None:
            try:
                self.reopen()
            except OSError as error:
                log.error("audit log cannot be opened", path=self._path, error=error.strerror)  # noqa: TRY400

        loop.add_signal_handler(signal.SIGHUP, reopen)

    def __call__(self, **fields: Any) -> None:
        """Note one request."""
        if self._fd < 0:
            return
        line = (json.dumps(fields, separators=(",", ":")) + "\n").encode()
        if self._torn:
            line = b"\n" + line
        why = "there was room for a part of a line alone"
        try:
            # One write(2) with O_APPEND: lines of two servers do not mix.
            written = os.write(self._fd, line)
        except OSError as error:
            written, why = 0, error.strerror or str(error)
        if written == len(line):
            self._torn = self._failing = False
            return
        self._torn = self._torn or written > 0
        self.lost += 1
        if not self._failing:
            self._failing = True
            log.error("audit log cannot be written", path=self._path, error=why)

    def close(self) -> None:
        """Stop."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Bucket:
    """At most so many requests a second, and as many at once."""

    def __init__(self) -> None:
        self._left = -1.0
        self._at = 0.0

    def take(self, rate: float) -> float:
        """0, or how many seconds to wait."""
        now = time.monotonic()
        self._left = rate if self._left < 0 else min(rate, self._left + (now - self._at) * rate)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / rate if rate > 0 else 60.0


class Counts:
    """What Prometheus is told."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.seconds: dict[str, float] = {}
        self.active = 0

    def count(self, method: str, status: int, seconds: float) -> None:
        """One request has been answered."""
        key = method, status
        self.requests[key] = self.requests.get(key, 0) + 1
        self.seconds[method] = self.seconds.get(method, 0.0) + seconds


class Guard:
    """The outermost application."""

    def __init__(
        self, serve: Direct, settings: Settings, tenants: Tenants, tokens: Tokens | None, audit: Audit
    ) -> None:
        self._serve = serve
        self._app = serve.app
        self._settings = settings
        self.tenants = tenants
        self._tokens = tokens
        self.audit = audit
        self._buckets: dict[str, Bucket] = {}
        self._asked: dict[str, int] = {}
        self.counts = Counts()

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the server is to end."""
        found: asyncio.Event = self._app.state.stopping
        return found

    def description(self) -> dict[str, Any]:
        """What the application answers, as OpenAPI."""
        described: dict[str, Any] = self._app.openapi()
        return described

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        state = scope.setdefault("state", {})
        state["request_id"] = number = new_id("req")
        answered = _Answered(send, number)
        self.counts.active += 1
        identity: Identity | None = None
        try:
            identity = self._identify(scope)
            if identity is not None:
                self.bound_rate(identity)
                state["identity"] = identity
                state["tenant"] = self.tenants.of(identity)
            bounded = _Body(scope, receive, self._settings)
            with self._asking(scope, identity):
                if scope.get("method") == "HEAD":
                    await _answer_head(self._serve, scope, bounded, answered)
                else:
                    await self._serve(scope, bounded if scope["type"] == "http" else receive, answered)
        except RametError as error:
            await answered.refuse(scope, receive, error)
        except Exception as error:  # a defect must not end the connection without a word
            log.exception("defect", request_id=number, path=scope["path"])
            told = InternalError("internal", f"a defect of Ramet: {type(error).__name__}")
            await answered.refuse(scope, receive, told)
        finally:
            self.counts.active -= 1
            self._note(scope, answered, identity, time.perf_counter() - began)

    def _identify(self, scope: Scope) -> Identity | None:
        """Who asks; None where that does not matter. Raises Refused."""
        if scope["path"] in OPEN_PATHS:
            return None
        if self._tokens is None:
            _refuse_pages(scope, self._settings.host)
            return NOBODY
        presented = _bearer(scope)
        if presented is None:
            raise Refused(401, "unauthenticated", "missing bearer token")
        identity = self._tokens.identify(presented)
        if identity is None:
            raise Refused(401, "unauthenticated", "invalid bearer token")
        # What goes through a tunnel is looked at operation by operation.
        reads = scope.get("method") in {"GET", "HEAD", "OPTIONS"} or scope["path"] == TUNNEL
        needed = "read" if reads else "run"
        if not identity.may(needed):
            raise Refused(403, "forbidden", f"this token has not the scope {needed}")
        return identity

    def bound_rate(self, identity: Identity) -> None:
        """Raises Refused for a tenant that asks too often."""
        wait = self._buckets.setdefault(identity.tenant, Bucket()).take(identity.quota.requests_per_second)
        if wait:
            raise Refused(429, "rate", "the tenant asks too often", retry_after=wait)

    @contextlib.contextmanager
    def _asking(self, scope: Scope, identity: Identity | None) -> Iterator[None]:
        """Room for one more request, of a client that has gone too. Raises Refused."""
        if identity is None or scope.get("method") == "DELETE":  # so that a tenant can make room
            yield
            return
        tenant, now = identity.tenant, self._asked.get(identity.tenant, 0)
        if now >= identity.quota.streams + BESIDE_STREAMS:
            raise Refused(429, "quota", f"the tenant {tenant} has {now} requests under way", retry_after=1)
        self._asked[tenant] = now + 1
        try:
            yield
        finally:
            self._asked[tenant] -= 1

    def _note(self, scope: Scope, answered: _Answered, identity: Identity | None, seconds: float) -> None:
        method = scope.get("method", "WEBSOCKET")
        self._write(scope, identity, (method, scope["path"]), answered.status, seconds)

    def note_operation(
        self, scope: Scope, identity: Identity, operation: str, status: int, seconds: float
    ) -> None:
        """What was asked through a tunnel."""
        self._write(scope, identity, ("TUNNEL", operation), status, seconds)

    def _write(
        self, scope: Scope, identity: Identity | None, asked: tuple[str, str], status: int, seconds: float
    ) -> None:
        method, path = asked
        self.counts.count(method, status, seconds)
        peer = scope.get("client")
        told = dict(scope["headers"])
        self.audit(
            ts=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            request_id=scope["state"]["request_id"],
            tenant=identity and identity.tenant,
            token=identity and identity.token,
            remote=peer and peer[0],
            forwarded=_noted(told.get(b"x-forwarded-for")),
            method=method,
            path=path[:PATH_NOTED],
            status=status,
            latency_us=round(seconds * 1e6),
            ua=_noted(told.get(b"user-agent", b"")),
        )


async def _answer_head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """What GET would answer, without the body: that is not waited for, it may neither begin nor end."""
    told = asyncio.Event()

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body"})
            told.set()

    working = asyncio.ensure_future(app({**scope, "method": "GET"}, receive, tell))
    done = asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait([working, done], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for one in (working, done):
            one.cancel()
        await asyncio.gather(working, done, return_exceptions=True)


def _noted(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")[:200]


def _refuse_pages(scope: Scope, own: str | None) -> None:
    """Where no token is needed, have no page of a browser ask. Raises Refused.

    A page of another origin may send simple requests and open web sockets (Fetch, section 4.9; RFC 6455,
    section 10.2), and one whose name was made to lead to this address counts as this server's own.
    """
    told = dict(scope["headers"])
    host = told.get(b"host", b"").decode("latin-1").lower()
    origin = told.get(b"origin", b"").decode("latin-1").lower()
    try:
        name = urlsplit(f"//{host}").hostname or ""
        foreign = bool(origin) and urlsplit(origin).netloc != host
    except ValueError:
        name, foreign = "", True
    # A unix socket has no client's address, and no browser reaches it.
    if scope.get("client") and host and name not in {"localhost", own}:
        try:
            foreign = foreign or not ipaddress.ip_address(name).is_loopback
        except ValueError:
            foreign = True
    if foreign:
        text = "this server has no tokens, and is asked under its own address alone"
        raise Refused(403, "foreign_page", text)


def _bearer(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" and token.strip() else None
    return None


class _Answered:
    """Watches what is answered."""

    def __init__(self, send: Send, number: str) -> None:
        self._send = send
        self.number = number
        self.status = 499
        """As of a client that went before there was an answer."""
        self.began = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.began = True
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.number.encode())]
        elif message["type"] == "websocket.accept":
            self.began = True
            self.status = 101
        elif message["type"] == "websocket.close" and not self.began:
            self.began = True
            self.status = 403
        await self._send(message)

    async def refuse(self, scope: Scope, receive: Receive, error: RametError) -> None:
        """Tell of an error, where nothing was told yet."""
        if self.began:
            return
        response = response_of(error)
        if scope["type"] == "websocket":
            if "websocket.http.response" not in scope.get("extensions", {}):
                await self({"type": "websocket.close", "code": 1008, "reason": error.message[:100]})
                return
            self.began, self.status = True, response.status_code
        await response(scope, receive, self if scope["type"] == "http" else self._send)


class _Body:
    """The body as it comes, unless it is too large or too slow."""

    def __init__(self, scope: Scope, receive: Receive, settings: Settings) -> None:
        """Raises Refused for a length that is said to be too large."""
        large = scope["path"].endswith(LARGE_BODIES)
        self._most = settings.file_max if large else settings.body_max
        self._patience = settings.body_s
        self._waited = 0.0
        self._receive = receive
        self._size = 0
        self._over = False
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._most:
                raise self._too_large()

    async def __call__(self) -> Message:
        if self._over:
            return await self._receive()
        # A byte now and then is as good as none: all of the waiting counts, and what came in it.
        allowed = self._patience + self._size / BODY_PACE - self._waited
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(self._patience, allowed))):
                message = await self._receive()
        except TimeoutError:
            raise Refused(408, "slow_body", "the rest of the body did not come in time") from None
        self._waited += time.monotonic() - began
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._over = not message.get("more_body", False)
            if self._size > self._most:
                raise self._too_large()
        return message

    def _too_large(self) -> Refused:
        return Refused(413, "too_large", f"the body has more than {self._most} bytes")
