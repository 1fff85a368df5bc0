"""The server's life: what is checked before it listens, the listening, and a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
import ssl
import sys
from collections.abc import Iterator
from types import FrameType

import structlog
import uvicorn

from ramet._version import __version__
from ramet.errors import InvalidRequest, IsolationError
from ramet.models.limits import MACHINE, WATCHER, enforced_by
from ramet.server.app import make_app
from ramet.server.forkbox import Forkbox
from ramet.server.guard import Audit, Guard
from ramet.server.listening import Patient, protocol_of
from ramet.server.settings import Settings
from ramet.server.sockets import BACKLOG, listeners
from ramet.server.tenants import Tenants
from ramet.server.tokens import Tokens

log = structlog.get_logger("ramet.server")
KEEP_ALIVE_S = 75
"""That a connection may idle: longer than clients and proxies use one again (most for 60 s at most), or a
request could meet its end."""


def serve(settings: Settings, *, announce: bool = False) -> int:
    """Serve until a signal. Raises RametError for what is wrong before that.

    `announce`: say on standard output where it listens, as JSON, once it does.
    """
    _write_logs_as_json()
    tokens = None if settings.token_file is None else Tokens(settings.token_file, _warn)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        audit = Audit(settings.audit_log)
    except OSError as error:
        text = f"{settings.audit_log} cannot be opened: {error.strerror}"
        raise InvalidRequest.of("audit-log", text) from None
    guard = make_app(settings, tokens, audit)
    with contextlib.ExitStack() as using:
        using.callback(audit.close)
        sockets = using.enter_context(listeners(settings))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_live(settings, guard, audit, sockets, announce=announce))
    return 0


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def _warn(text: str) -> None:
    log.warning("token file", error=text)


def _write_logs_as_json() -> None:
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    for name in ("asyncio", "uvicorn", "websockets"):
        logging.getLogger(name).handlers = [_AsJson()]
    # Its warnings are of what clients do wrong: anybody could fill a log with them.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


class _AsJson(logging.Handler):
    """Has what libraries log be lines as our own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        structlog.get_logger().log(
            record.levelno, record.getMessage().strip(), logger=record.name, exc_info=record.exc_info
        )


async def _live(
    settings: Settings, guard: Guard, audit: Audit, sockets: list[socket.socket], *, announce: bool
) -> None:
    tenants = guard.tenants
    try:
        if settings.public:
            await check_enforced(tenants)
        config = uvicorn.Config(
            guard,
            http=protocol_of(settings),
            ws=Patient,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anybody on this machine could say them: the audit log has them apart
            timeout_graceful_shutdown=int(settings.stop_s),
            timeout_keep_alive=KEEP_ALIVE_S,
            ws_max_size=settings.body_max,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        if settings.tls_cert is not None:
            config.load()
            assert config.ssl is not None  # noqa: S101  there is a certificate
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        for tenant in await tenants.standing():
            if await tenant.upgrade():
                log.info("daemon upgraded", tenant=tenant.name)
        server = _Server(config, settings, guard.stopping)
        audit.heed_hangup(asyncio.get_running_loop())
        async with contextlib.AsyncExitStack() as using:
            if settings.forkbox_socket is not None:
                forkbox = Forkbox(tenants)
                await using.enter_async_context(forkbox.serving(settings.forkbox_socket))
            where = [_shown(one) for one in sockets]
            log.info("serving", version=__version__, at=where)
            if announce:
                sys.stdout.write(json.dumps({"version": __version__, "at": where, "pid": os.getpid()}) + "\n")
                sys.stdout.flush()
            await server.serve(sockets=sockets)
        log.info("ended")
    finally:
        await tenants.aclose()


class _Server(uvicorn.Server):
    """uvicorn's, which would raise the signal again that ended it: this program ends with 0 then."""

    def __init__(self, config: uvicorn.Config, settings: Settings, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._settings = settings
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. With TLS a client has no longer for its part of the handshake than for a head."""
        await super().startup(sockets=[])
        loop, config = asyncio.get_running_loop(), self.config

        def connection() -> asyncio.Protocol:
            found: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return found

        patience = self._settings.head_s if config.ssl else None
        for one in sockets or ():
            listening = await loop.create_server(
                connection, sock=one, ssl=config.ssl, backlog=BACKLOG, ssl_handshake_timeout=patience
            )
            self.servers.append(listening)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End; who only waits for something is answered now."""
        self._stopping.set()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Have SIGTERM and SIGINT end it; a second one at once."""
        import signal

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


async def check_enforced(tenants: Tenants) -> None:
    """That core can bound memory and processors. Raises IsolationError."""
    tenant = tenants.named(min(tenants.names()))
    await tenant.client.run("true")
    core = (await tenant.client.status()).core
    kept = enforced_by("" if core is None else core.cgroups)
    lacking = [
        name for name, weak in (("memory", WATCHER), ("cpus", MACHINE)) if kept.get(name) in {None, weak}
    ]
    if lacking:
        raise IsolationError(
            "unenforced",
            f"other machines could use up this one: no cgroup enforces {' and '.join(lacking)} here",
            hint="run it as a service with Delegate=yes (packaging/systemd), or listen at 127.0.0.1",
        )


def _shown(listener: socket.socket) -> str:
    address = listener.getsockname()
    if isinstance(address, str):
        return address
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
