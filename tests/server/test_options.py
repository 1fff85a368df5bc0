"""What a request for a sandbox may say is what the library takes, or is refused by the option's name."""

import inspect
from typing import Any

import httpx
import pytest

from ramet import AsyncSandbox
from ramet.client._async import sandbox as sandboxes
from ramet.client._async import templates
from ramet.client._async.client import AsyncClient
from ramet.client._async.commands import AsyncCommands
from ramet.client._async.terminals import AsyncTerminals
from ramet.server import schemas
from server._server import BOB, Server, refusal, told

OF_CALLS = {"client", "encoding", "check", "on_progress", "on_stdout", "on_stderr", "on_result", "background"}
"""Of a call in a program, not of what it is about."""
OTHERWISE = {"source": "snapshot_tag", "snapshot": "snapshot_tag", "size": "rows", "from_": "from_"}
OF_THE_PATH = {"sandbox"}


@pytest.mark.parametrize(
    "call, body, named",
    [
        (AsyncSandbox.__init__, schemas.SpawnRequest, {"name": "names"}),
        (sandboxes.fork, schemas.SpawnRequest, {"on_unsupported": None, "on_error": None}),
        (sandboxes.fork, schemas.ForkRequest, {"snapshot": None}),
        (AsyncClient.run, schemas.RunRequest, {}),
        (AsyncCommands.run, schemas.ExecRequest, {"command": "args", "timeout": "timeout_secs"}),
        (AsyncCommands.start, schemas.ProcessRequest, {}),
        (AsyncTerminals.create, schemas.TerminalRequest, {}),
        (AsyncSandbox.run_code, schemas.CodeRequest, {}),
        (AsyncSandbox.snapshot, schemas.BranchRequest, {"name": "tag"}),
        (templates.build, schemas.TemplateRequest, {}),
    ],
)
def test_the_body_of_a_request_has_every_option_of_the_call(
    call: Any, body: type[schemas.Asked], named: dict[str, str | None]
) -> None:
    options = set(inspect.signature(call).parameters) - OF_CALLS - OF_THE_PATH - {"self"}
    names = {named.get(one, OTHERWISE.get(one, one)) for one in options} - {None}
    assert names <= set(body.model_fields)


@pytest.mark.parametrize(
    "path, body, status, code, field",
    [
        ("", {"snapshot_tag": "python", "detach": False}, 400, "unsupported", "detach"),
        ("", {"snapshot_tag": "python", "workspace": "/home"}, 400, "unsupported", "workspace"),
        ("", {"snapshot_tag": "python", "python": ["/a", "/b", "/c"]}, 400, "unsupported", "python"),
        ("", {"snapshot_tag": "python", "user": 7}, 400, "invalid_argument", "user"),
        ("", {"snapshot_tag": "python", "tools": ["/opt"]}, 400, "invalid_argument", "tools"),
        ("", {"command": "id", "tools": ["/opt"]}, 403, "forbidden", "tools"),
        ("", {"command": "id", "user": "nobody"}, 400, "invalid_argument", "user"),
        ("", {"command": "id", "kernel": "python"}, 422, "missing", "snapshot_tag"),
        ("", {"command": "id", "seed": 7}, 400, "invalid_argument", "seed"),
        ("", {"command": "id", "n": 2}, 400, "invalid_argument", "n"),
        ("", {"kernel": "perl"}, 400, "invalid_argument", "kernel"),
        ("", {"snapshot_tag": "python", "keep_on": ["timeout"]}, 400, "invalid_argument", "keep_on"),
        ("", {"snapshot_tag": "python", "keep_on": ["never"], "timeout": 9}, 400, "invalid_argument",
         "keep_on"),
        ("", {"snapshot_tag": "python", "n": 2, "children": [{}, {}]}, 400, "invalid_argument", "n"),
        ("", {"snapshot_tag": "python", "seed": 1, "children": [{}]}, 400, "invalid_argument", "seed"),
        ("", {"snapshot_tag": "python", "children": []}, 400, "out_of_range", "children"),
        ("", {"snapshot_tag": "python", "n": 2, "names": ["a"]}, 400, "invalid_argument", "names"),
        ("/SHELL/fork", {"detach": False}, 400, "unsupported", "detach"),
        ("/SHELL/fork", {"children": [{"name": "a"}, {}]}, 400, "invalid_argument", "children"),
        ("/SHELL/fork", {"n": 1, "children": [{}]}, 400, "invalid_argument", "n"),
        ("/SHELL/fork", {"seed": 1}, 400, "invalid_argument", "seed"),
        ("/SHELL/fork", {"n": 0}, 400, "out_of_range", "n"),
        ("/../run", {"command": "id", "root": "/"}, 403, "forbidden", "root"),
        ("/../templates", {"name": "x", "from_venv": True}, 400, "unsupported", "from_venv"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_heeded_is_refused_by_its_name(
    api: httpx.Client, shell: str, *, path: str, body: dict[str, Any], status: int, code: str, field: str
) -> None:
    place = "/v1" + path[3:] if path.startswith("/..") else "/v1/sandboxes" + path.replace("SHELL", shell)
    told_of = refusal(api.post(place, json=body), status)
    assert (told_of["code"], told_of["field"]) == (code, field)


def test_a_kernel_is_started_afresh_and_has_no_input(api: httpx.Client) -> None:
    made = told(api.post("/v1/sandboxes", json={"kernel": "python", "env": {"WHO": "me"}}), 201)[0]["id"]
    body = {"code": "import os; os.environ['WHO']"}
    given = api.post(f"/v1/sandboxes/{made}/code", json=body | {"stdin": "for nobody"})
    assert refusal(given, 409)["code"] == "stdin_closed"
    assert told(api.post(f"/v1/sandboxes/{made}/code", json=body), 200)["text"] == "'me'"
    told(api.delete(f"/v1/sandboxes/{made}"), 204)


def test_children_of_one_call_each_have_their_own(api: httpx.Client) -> None:
    children = [{"name": f"own-{one}", "env": {"WHO": one}, "seed": 7} for one in "ab"]
    made = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python", "children": children}), 201)
    code = {"code": "import os, random; os.environ['WHO'], random.random()"}
    rows = [
        told(api.post(f"/v1/sandboxes/{one}/eval", json=code), 200)["result"] for one in ("own-a", "own-b")
    ]
    assert [row[2] for row in rows] == ["a", "b"]
    assert rows[0][3:] == rows[1][3:]
    for one in made:
        told(api.delete(f"/v1/sandboxes/{one['id']}"), 204)


def test_what_a_timeout_ends_is_kept_where_that_was_asked_for(api: httpx.Client) -> None:
    body = {"snapshot_tag": "python", "timeout": 1.5, "keep_on": ["timeout"]}
    made = told(api.post("/v1/sandboxes", json=body), 201)[0]["id"]
    told(api.post(f"/v1/sandboxes/{made}/eval", json={"code": "kept = 6 * 7"}), 200)
    cursor, ended = "start", None
    while ended is None:
        page = told(api.get("/v1/events", params={"cursor": cursor, "wait": 20, "sandbox": made}), 200)
        cursor = page["cursor"]
        ended = next((one for one in page["events"] if one["type"] == "ended"), None)
    assert ended["reason"] == "timeout"
    again = told(api.post("/v1/sandboxes", json={"snapshot_tag": f"kept-{made}"}), 201)[0]["id"]
    assert told(api.post(f"/v1/sandboxes/{again}/eval", json={"code": "kept"}), 200)["result"] == "42"
    told(api.delete(f"/v1/sandboxes/{again}"), 204)
    told(api.delete(f"/v1/snapshots/kept-{made}"), 204)


def test_a_command_of_another_user_is_that_users(api: httpx.Client, shell: str) -> None:
    single = told(api.get(f"/v1/sandboxes/{shell}"), 200)["single_uid"]
    answer = api.post("/v1/sandboxes", json={"command": "id -u; sleep 100", "user": "7:7"})
    if single:
        assert refusal(answer, 409)["code"] == "single_uid"
        return
    made = told(answer, 201)[0]["id"]
    assert told(api.post(f"/v1/sandboxes/{made}/exec", json={"args": ["id", "-u"]}), 200)["stdout"] == "7\n"
    told(api.delete(f"/v1/sandboxes/{made}"), 204)


def test_to_wait_for_a_command_takes_the_place_of_a_stream(server: Server) -> None:
    few = "few-token-0123456789abc"
    with (
        server.with_tokens(
            f'[tenants.bob]\nstreams = 0\ntokens = [{{ token = "{BOB}" }}, {{ token = "{few}" }}]'
        ),
        server.client(few) as api,
    ):
        made = told(api.post("/v1/sandboxes", json={"command": "sleep 100"}), 201)[0]["id"]
        place = f"/v1/sandboxes/{made}/processes"
        one = told(api.post(place, json={"command": "sleep 100"}), 201)["id"]
        assert told(api.get(f"{place}/{one}"), 200)["status"] == "running"
        assert refusal(api.get(f"{place}/{one}?wait=9"), 429)["code"] == "quota"
        told(api.delete(f"/v1/sandboxes/{made}"), 204)
