"""The token file: what it may hold, what is refused, how it is rotated."""

import hashlib
from pathlib import Path

import pytest

from ramet.errors import InvalidRequest
from ramet.server.tokens import Tokens, parse

TOKEN = "a-token-0123456789"


def file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "", "# nothing\n", "short", "x" * 40, "REPLACE_ME_with_a_secret", "CHANGE_ME_0123456789",
        "a" * 2000 + "bcd",
        "two words 0123456789 abc", "[tenants]", "[tenants.a]", "[tenants.a]\ntokens = []", "[other]\na = 1",
        '[tenants."../x"]\ntokens = [{ token = "a-token-0123456789" }]',
        '[tenants.a]\nsandboxes = -1\ntokens = [{ token = "a-token-0123456789" }]',
        '[tenants.a]\nunknown = 1\ntokens = [{ token = "a-token-0123456789" }]',
        '[tenants.a]\ntokens = [{ token = "a-token-0123456789", scopes = ["all"] }]',
        '[tenants.a]\ntokens = [{ token = "a-token-0123456789", scopes = [] }]',
        '[tenants.a]\ntokens = [{ token = "a-token-0123456789", sha256 = "00" }]',
        '[tenants.a]\ntokens = [{ sha256 = "00" }]',
        '[tenants.a]\ntokens = [{ token = "short" }]',
        '[tenants.a]\ntokens = [{ token = "a-token-0123456789" }, { token = "a-token-0123456789" }]',
    ],
)  # fmt: skip
def test_a_file_that_would_let_anybody_in_or_nobody_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(text.encode())
    assert caught.value.field == "token-file"


def test_one_line_is_the_token_of_one_tenant_who_may_do_everything(tmp_path: Path) -> None:
    tokens = Tokens(str(file(tmp_path / "t", f"# of forkd\n{TOKEN}\n")))
    identity = tokens.identify(TOKEN)
    assert identity is not None
    assert identity.may("admin")
    assert tokens.identify(TOKEN + "x") is None
    assert tokens.identify("") is None


def test_tokens_belong_to_tenants_with_scopes_and_quotas(tmp_path: Path) -> None:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    text = (
        f'[tenants.a]\nsandboxes = 3\ntokens = [{{ sha256 = "{digest}", scopes = ["read"], name = "ci" }}]\n'
    )
    identity = Tokens(str(file(tmp_path / "t", text))).identify(TOKEN)
    assert identity is not None
    assert (identity.tenant, identity.token, identity.quota.sandboxes) == ("a", "ci", 3)
    assert identity.may("read")
    assert not identity.may("run")


def test_a_replaced_file_holds_at_once_and_a_wrong_one_never(tmp_path: Path) -> None:
    warnings: list[str] = []
    path = file(tmp_path / "t", TOKEN)
    tokens = Tokens(str(path), warnings.append)
    file(tmp_path / "new", "another-token-0123456789").rename(path)
    assert tokens.identify(TOKEN) is None
    assert tokens.identify("another-token-0123456789") is not None
    file(tmp_path / "new", "short").rename(path)
    assert tokens.identify("another-token-0123456789") is not None
    assert tokens.identify("short") is None
    assert len(warnings) == 1
    path.unlink()
    assert tokens.identify("another-token-0123456789") is not None
    file(path, TOKEN)
    assert tokens.identify(TOKEN) is not None


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path / "t", TOKEN)
    path.chmod(0o622)
    with pytest.raises(InvalidRequest, match="written by others"):
        Tokens(str(path))


def test_every_known_digest_is_compared_with_what_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("ramet.server.tokens.hmac.compare_digest", compare)
    rows = ", ".join(f'{{ token = "{TOKEN}{number}" }}' for number in range(3))
    tokens = Tokens(str(file(tmp_path / "t", f"[tenants.a]\ntokens = [{rows}]")))
    for presented in (f"{TOKEN}0", f"{TOKEN}2", "x", "x" * 1000):
        compared.clear()
        tokens.identify(presented)
        assert len(compared) == 3
        # Of equal length whatever came: what is compared are digests.
        assert {len(part) for pair in compared for part in pair} == {32}
