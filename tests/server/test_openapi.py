"""The description of the server, and what comes of requests made up from it."""

import json
import re
from pathlib import Path

import httpx
import pytest

from _repository import ROOT
from server._server import ALICE, Server, told


def test_the_served_description_is_the_committed_one(api: httpx.Client) -> None:
    served = told(api.get("/v1/openapi.json"), 200)
    assert served == json.loads(Path(ROOT, "spec/openapi.json").read_text())
    for path, methods in served["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)


def test_requests_made_up_from_the_description_are_answered_as_it_says(
    server: Server, api: httpx.Client, shell: str
) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="PyPI's schemathesis is not installed")
    import hypothesis

    schema = schemathesis.openapi.from_dict(told(api.get("/v1/openapi.json"), 200))
    schema.config.update(base_url=server.url)
    headers = {"authorization": f"Bearer {ALICE}"}
    tried = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in LEFT_OUT:
            continue
        tried.add(operation.label)

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=2, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        def check(case: object) -> None:
            for name in case.path_parameters or {}:
                if name == "sandbox_id":
                    case.path_parameters[name] = shell
            case.headers = {**(case.headers or {}), **headers}
            answer = case.call(timeout=30)
            assert answer.status_code < 500, (case.as_curl_command(), answer.content[:500])
            case.validate_response(
                answer,
                excluded_checks=[
                    schemathesis.checks.unsupported_method,
                    schemathesis.checks.positive_data_acceptance,
                    schemathesis.checks.negative_data_rejection,
                    schemathesis.checks.ignored_auth,
                ],
            )

        check()
    assert len(tried) > 40


# What would end the server's sandboxes, or waits for what does not come.
LEFT_OUT = {"/v1/drain", "/v1/sandboxes/{sandbox_id}"}


def test_each_code_of_the_server_is_asked_for_by_a_test() -> None:
    page = Path(ROOT, "docs/reference/rest.md").read_text().partition("## Codes of the server")[2]
    codes = {
        code
        for row in page.splitlines()
        if row.startswith("| `") and row.split("|")[2].strip()
        for code in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    tests = "".join(path.read_text() for path in Path(ROOT, "tests/server").glob("*.py"))
    assert len(codes) > 15
    assert {code for code in codes if f'"{code}"' not in tests} == set()
