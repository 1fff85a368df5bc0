"""`ramet serve`."""

from __future__ import annotations

import typer

from ramet.errors import RametError


def serve(
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen at."),
    port: int = typer.Option(8889, "--port", help="Port to listen at; 0: any."),
    socket: str = typer.Option(None, "--socket", metavar="PATH", help="Listen at this unix socket too."),
    no_tcp: bool = typer.Option(False, "--no-tcp", help="Listen at the socket alone."),
    forkbox_socket: str = typer.Option(
        None, "--forkbox-socket", metavar="PATH", help="Speak Forkbox's protocol at this unix socket."
    ),
    token_file: str = typer.Option(
        None, "--token-file", metavar="FILE", envvar="RAMET_TOKEN_FILE", help="Who may do what."
    ),
    tls_cert: str = typer.Option(None, "--tls-cert", metavar="FILE", help="Certificate chain, PEM."),
    tls_key: str = typer.Option(None, "--tls-key", metavar="FILE", help="Its key, PEM."),
    data: str = typer.Option(
        None, "--data", metavar="DIR", envvar="RAMET_SERVER_DATA", help="Where tenants' state is."
    ),
    audit_log: str = typer.Option(
        None, "--audit-log", metavar="FILE", help="A line of JSON for each request."
    ),
    ttl: float = typer.Option(
        300.0, "--ttl", help="Seconds that a sandbox lives that nobody asks for anything."
    ),
    allow_root: list[str] = typer.Option(
        [], "--allow-root", metavar="DIR", help="A directory below which administrators may name roots."
    ),
    branch_concurrency: int = typer.Option(4, "--branch-concurrency", help="Snapshots at once, per tenant."),
    connections: int = typer.Option(4096, "--connections", help="Connections at once."),
    head_timeout: float = typer.Option(10.0, "--head-timeout", help="Seconds for a request's head."),
    body_timeout: float = typer.Option(
        30.0,
        "--body-timeout",
        help="Seconds for the next piece of a body, and for all that is slower than 500 bytes a second.",
    ),
    stop_timeout: float = typer.Option(
        30.0, "--stop-timeout", help="Seconds that a stop waits for requests."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object when it listens."),
) -> int:
    """Serve sandboxes over HTTP: forkd's REST v1 and more. Needs `pip install 'ramet[server]'`."""
    import os

    try:
        from ramet.server.serve import serve as run
        from ramet.server.settings import Settings, default_data
    except ImportError as error:
        text = f"the server needs {error.name}"
        raise RametError("extra_missing", text, hint="pip install 'ramet[server]'") from None
    return run(
        Settings(
            data=os.path.realpath(data or default_data()),
            host=None if no_tcp else host,
            port=port,
            socket=socket,
            forkbox_socket=forkbox_socket,
            token_file=token_file,
            tls_cert=tls_cert,
            tls_key=tls_key,
            audit_log=audit_log,
            ttl=ttl,
            roots=tuple([os.path.realpath(one) for one in allow_root]),
            branches=branch_concurrency,
            connections=connections,
            head_s=head_timeout,
            body_s=body_timeout,
            stop_s=stop_timeout,
        ),
        announce=as_json,
    )
