"""unasync writes the sync client, tells when it is stale, and refuses rules that have become idle."""

from collections import Counter

import pytest

from _repository import ROOT, load

unasync = load("scripts/unasync.py")

ASYNC = '''"""Use `await client.run()` and AsyncClient."""

from ramet.client._async._base import AsyncBase


class AsyncClient(AsyncBase):
    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        async with self.lock:
            async for _ in self.things():
                awaited = await (await self.first()).second(a_rather_long_name_of_an_argument, another=1)
        asyncio_like = _async_thing = awaited
'''
SYNC = '''# Generated from _async/_client.py by scripts/unasync.py. Do not edit.
"""Use `client.run()` and Client."""

from ramet.client._sync._base import Base


class Client(Base):
    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self.lock:
            for _ in self.things():
                awaited = (self.first()).second(a_rather_long_name_of_an_argument, another=1)
        asyncio_like = _async_thing = awaited
'''
RULES = {
    "async def": "def",
    "async with": "with",
    "async for": "for",
    "await ": "",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "_async": "_sync",
}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(unasync, "WORDS", RULES)
    source, target = tmp_path / "_async", tmp_path / "_sync"
    source.mkdir()
    (source / "_client.py").write_text(ASYNC)
    return source, target


def arguments(folders, *more):
    return [*more, "--source", str(folders[0]), "--target", str(folders[1])]


def test_every_async_word_goes_and_whole_words_only(folders):
    assert unasync.main(arguments(folders)) == 0
    assert (folders[1] / "_client.py").read_text() == SYNC


def test_check_passes_on_what_was_just_written(folders):
    unasync.main(arguments(folders))
    assert unasync.main(arguments(folders, "--check")) == 0


def test_check_writes_nothing_and_names_missing_stale_and_left_over_files(folders, capsys):
    assert unasync.main(arguments(folders, "--check")) == 1
    assert "_client.py: missing" in capsys.readouterr().err
    assert not folders[1].exists()
    unasync.main(arguments(folders))
    (folders[1] / "_client.py").write_text("changed by hand\n")
    (folders[1] / "_old.py").write_text("")
    assert unasync.main(arguments(folders, "--check")) == 1
    told = capsys.readouterr().err
    assert "_client.py: stale" in told
    assert "_old.py: left over" in told


def test_writing_removes_files_whose_source_has_gone(folders):
    folders[1].mkdir()
    (folders[1] / "_old.py").write_text("")
    unasync.main(arguments(folders))
    assert [path.name for path in folders[1].iterdir()] == ["_client.py"]


def test_a_rule_that_matches_nothing_is_an_error(folders, monkeypatch, capsys):
    monkeypatch.setattr(unasync, "WORDS", {**RULES, "trio": "threading"})
    assert unasync.main(arguments(folders)) == 1
    assert "rules that match nothing" in capsys.readouterr().err
    assert not folders[1].exists()


def test_text_that_is_no_python_is_refused(folders, capsys):
    (folders[0] / "_client.py").write_text(ASYNC + "def broken(:\n")
    assert unasync.main(arguments(folders)) == 1
    assert "ruff refuses" in capsys.readouterr().err


def test_a_longer_word_is_left_alone():
    rules = unasync.compile_rules({"aclose": "close"}, {})
    assert (
        unasync.translate("aclose() acloser() xaclose()", rules, Counter()) == "close() acloser() xaclose()"
    )


def test_the_committed_sync_client_is_as_generated():
    if not list((ROOT / "src/ramet/client/_async").glob("*.py")):
        pytest.skip("there is no client yet")
    assert unasync.main(["--check"]) == 0
