"""Named snapshots across daemons, as users meet them."""

import os

import pytest

import ramet
from system._daemons import kill_hard, wait_gone
from system.sandbox._repl import PYTHON, ask, tell


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A store of one's own, which the daemons of this test inherit."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data/ramet"


def test_a_snapshot_outlives_its_daemon(own, data):
    with own.client() as client, ramet.Sandbox(command=PYTHON, client=client) as sandbox:
        tell(sandbox, "x = 41", "n = open('f', 'w').write('kept')")
        point = sandbox.snapshot("point")
        assert point.durable
        daemon = client.status().pid
        client.shutdown()
    wait_gone(daemon)
    with own.client() as client:
        assert ramet.snapshots.list(client=client) == (point,)
        with ramet.Sandbox("point", client=client) as child:
            assert ask(child, "(x, open('f').read())") == "(41, 'kept')"


def test_a_sandbox_that_the_next_daemon_took_over_can_be_kept(own, data):
    client = own.client()
    daemon, _ = own.pids()
    first = ramet.Sandbox(command=PYTHON, detach=True, name="first", client=client)
    tell(first, "x = 1")
    base = first.snapshot("ground")
    second = ramet.Sandbox("ground", detach=True, name="second", client=client)
    tell(second, "x = 2")
    kill_hard(daemon)
    wait_gone(daemon)
    from ramet.client import sandboxes

    with own.client() as later:
        assert sandboxes.snapshot("first", "first-later", client=later).parent is None
        assert sandboxes.snapshot("second", "second-later", client=later).parent == base.name
        for name, x in (("first-later", "1"), ("second-later", "2")):
            with ramet.Sandbox(name, client=later) as child:
                assert ask(child, "x") == x
        for name in ("first", "second"):
            sandboxes.kill(name, client=later)
    for sandbox in (first, second):
        sandbox.close()


def test_tools_variables_and_the_directory_of_commands_are_there_in_forks_and_snapshots(own, data, tmp_path):
    tool = tmp_path / "tool"
    (tool / "bin").mkdir(parents=True)
    (tool / "bin/greet").write_text("#!/bin/sh\necho hello $WHOM\n")
    for path in (tool, tool / "bin", tool / "bin/greet"):
        path.chmod(0o755)
    (tmp_path / "work").mkdir()
    options = {"tools": [tool], "env": {"WHOM": "world"}, "workspace": tmp_path / "work"}

    def greeted(sandbox):
        return sandbox.commands.run("greet; pwd").stdout

    with own.client() as client, ramet.Sandbox(command=PYTHON, client=client, **options) as sandbox:
        assert greeted(sandbox) == "hello world\n/workspace\n"
        assert sandbox.commands.run(["touch", str(tool / "new")]).exit_code == 1
        with sandbox.fork() as child:
            assert greeted(child) == "hello world\n/workspace\n"
        sandbox.snapshot("with-tools")
        daemon = client.status().pid
        client.shutdown()
    wait_gone(daemon)
    with own.client() as client, ramet.Sandbox("with-tools", client=client) as later:
        assert greeted(later) == "hello world\n/workspace\n"
    assert [path.name for path in tool.iterdir()] == ["bin"]


def test_nothing_is_made_on_the_disk_by_who_keeps_no_snapshot(own, data):
    with own.client() as client:
        client.run("true")
        assert ramet.snapshots.list(client=client) == ()
        with ramet.Sandbox(command=PYTHON, client=client) as sandbox, sandbox.fork() as child:
            assert ask(child, "1") == "1"
    # Only the place where pages go when memory is scarce, in files without names.
    assert [name for _, _, names in os.walk(data) for name in names if name != "lock"] == []
