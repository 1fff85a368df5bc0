"""What a server refuses before it listens."""

import pytest

from ramet.errors import InvalidRequest
from ramet.server.settings import Settings, default_data


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_nobody_is_let_in_from_other_machines_without_a_token(host: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Settings("/data", host=host)
    assert caught.value.code == "unauthenticated"
    assert Settings("/data", host=host, token_file="/tokens").public


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", None])
def test_this_machine_alone_needs_no_token(host: str | None) -> None:
    assert not Settings("/data", host=host, socket="/s").public


@pytest.mark.parametrize(
    "options, field",
    [
        ({"host": None}, "host"),
        ({"port": 70000}, "port"),
        ({"tls_cert": "/c"}, "tls-key"),
        ({"tls_key": "/k"}, "tls-key"),
        ({"branches": 0}, "branch-concurrency"),
        ({"connections": 0}, "connections"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Settings("/data", **options)
    assert caught.value.field == field


def test_the_data_are_below_the_users_own_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_data({"XDG_DATA_HOME": "/x"}) == "/x/ramet-server"
    assert default_data({"RAMET_SERVER_DATA": "/y", "XDG_DATA_HOME": "/x"}) == "/y"
