#!/usr/bin/env python3
"""Writes what `ramet serve` answers, from its routes: spec/openapi.json, and a page of it for people.

gen_openapi.py            write both
gen_openapi.py --check    write nothing; exit 1 if one is stale
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# REST

<!-- written by scripts/gen_openapi.py -->

What `ramet serve` answers, by subject; [the guide](../guides/serve.md) tells how to run it. Every path but
`/healthz` needs `Authorization: Bearer TOKEN` where the server has tokens. Bodies are JSON but where content
of files goes. Fields of forkd are as it has them; unknown fields are ignored.

An error is `{"error": …, "code": …, "field": …, "hint": …}`, the last two where they make sense; `code` is
stable, and one of [those](errors.md) that the library raises or of [these](#codes-of-the-server).

"""
TAIL = """## Streams

`GET /v1/sandboxes/{sandbox_id}/processes/{process_id}/ws` (web socket) sends the events of `…/stream` as
JSON, and takes `{"stdin": BASE64}`, `{"eof": true}`, `{"signal": NAME}`, `{"kill": true}`.
`GET /v1/sandboxes/{sandbox_id}/terminals/{terminal_id}/ws?cursor=N&scrollback=N` (web socket) sends
`output` (base64, with the `cursor` after it), `gap`, `error` and `exit` as JSON, from the cursor on or of the
last 65536 bytes, and takes `{"input": BASE64}`, `{"resize": [ROWS, COLUMNS]}`, `{"signal": NAME}`,
`{"kill": true}`.
`GET /v1/sandboxes/{sandbox_id}/ports/{port}` (web socket) is a connection to that port: its bytes as binary
messages.
`GET /v1/tunnel` (web socket) is what `ramet.connect` asks: [tunnels](../internals/tunnel.md).

## Codes of the server

| code | status | when |
|---|---|---|
| `unauthenticated` | 401 | no token, or none that is known; at the start: nobody would need one |
| `forbidden` | 403 | the token has not the scope, or the directory is not allowed |
| `method` | 405 | the path has not that method |
| `slow_head`, `slow_body` | 408 | the head or the body did not come in time |
| `unknown_workspace` | 404 | there is no such workspace |
| `has_dependents` | 409 | snapshots build upon it: `cascade` or `force` |
| `snapshot_writing` | 409 | the snapshot is not on disk yet |
| `foreign_page` | 403 | a server without tokens is asked by a page, or under another name |
| `idempotency_key` | 409 | the key came with another request before |
| `unfinished` | | of a child of a fork that came twice: the server ended while that was made |
| `not_running`, `already_running` | 400 | of workspaces |
| `too_large` | 413, 431 | the body or the head is too large |
| `content_type` | 415 | the body is no `application/json` |
| `range` | 416 | the file has no such part |
| `missing`, `invalid_type` | 422 | a field is missing, or of another type |
| `quota`, `rate` | 429 | it has all it may have, or asks too often: `Retry-After` says when to come again |
| `refused` | | what the framework refuses otherwise |
| `draining` | 503 | the server takes no more sandboxes |
| `notes_unusable` | 500 | a file of the server's cannot be read or written |
| `unsupported` | 400, 409 | what needs the caller's machine, or more tenants; Forkbox's network |
| `read_only` | 403 | the template is public |
| `unenforced` | | at the start: no cgroup bounds memory and processors for other machines |
| `not_remote` | 400 | through a tunnel: it names what is the server's own |
| `server_unreachable` | | of `ramet drain`, `ramet.connect`: nothing answers there, or no server of Ramet |
| `extra_missing` | | at the start: `pip install 'ramet[server]'` |
"""


def description() -> dict[str, Any]:
    """What the application says of itself."""
    from ramet.server.app import make_app
    from ramet.server.guard import Audit
    from ramet.server.settings import Settings

    with tempfile.TemporaryDirectory() as data:
        return make_app(Settings(data), None, Audit(None)).description()


def page_of(described: dict[str, Any]) -> str:
    """The page for people."""
    subjects: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            rows = subjects.setdefault(operation["tags"][0], [])
            told = " ".join(operation["description"].split())
            rows.append(
                f"| `{method.upper()} {path}` | {told} | {_asked(operation)} | {_success(operation)} |"
            )
    parts = [HEAD]
    for subject, rows in subjects.items():
        lines = ["| request | what it does | asks for | answers |", "|---|---|---|---|", *rows]
        parts.append(f"## {subject.capitalize()}\n\n" + "\n".join(lines) + "\n\n")
    parts.append("## Bodies\n\n| body | fields |\n|---|---|\n")
    for name, schema in described["components"]["schemas"].items():
        if name.endswith("Request"):
            parts.append(f"| {name} | {_fields(schema)} |\n")
    return "".join(parts) + "\n" + TAIL


def _asked(operation: dict[str, Any]) -> str:
    query = [f"`{one['name']}`" for one in operation.get("parameters", ()) if one["in"] == "query"]
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    return ", ".join(filter(None, [schema.rpartition("/")[2], *query]))


def _success(operation: dict[str, Any]) -> str:
    return ", ".join(code for code in operation["responses"] if code.startswith("2"))


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    shown = []
    for name, one in schema["properties"].items():
        default = "" if name in required or one.get("default") is None else f" = {json.dumps(one['default'])}"
        shown.append(f"**`{name}`**" if name in required else f"`{name}`{default}")
    return ", ".join(shown)


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description="write spec/openapi.json and docs/reference/rest.md")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    described = description()
    texts = {
        ROOT / "spec/openapi.json": json.dumps(described, indent=1, sort_keys=True) + "\n",
        ROOT / "docs/reference/rest.md": page_of(described),
    }
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"{path.relative_to(ROOT)} is stale: scripts/gen_openapi.py writes it")
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts[path])
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
