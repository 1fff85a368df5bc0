"""Overlays of attached layers, as on kernels before 6.15, give the same sandboxes as those of detached."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import os

import pytest

from ramet.native.locate import find_program
from system._daemons import build, own_daemon


@pytest.fixture(scope="module")
def attached(tmp_path_factory):
    """A client whose core was told to attach layers."""
    place = tmp_path_factory.mktemp("core")
    place.chmod(0o755)
    program = place / "ramet-core"
    real = find_program()
    program.write_text(f'#!/bin/sh\n[ "$1" = serve ] || exec {real} "$@"\nexec {real} "$@" --attach-layers\n')
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, own_daemon() as daemon:
        patch.setenv("RAMET_CORE", str(program))
        yield daemon.client()


def test_a_command_runs_and_its_writes_go_away(attached):
    result = attached.run("echo x >/etc/hosts; cat /etc/hosts; echo y >file; cat file; exit 3")
    assert (result.stdout, result.exit_code) == ("x\ny\n", 3)
    assert "localhost" in attached.run("cat /etc/hosts; ls").stdout


def test_both_kinds_show_the_same(attached, rooted):
    line = "ls -la --time-style=+ / | grep -v proc; ls -la --time-style=+ /etc /dev /home /tmp; env; cat /proc/self/uid_map; ls -l /usr | head"
    assert attached.run(line).stdout == rooted.run(line).stdout


def test_a_directory_of_the_host_serves_as_root(attached, tmp_path):
    tmp_path.chmod(0o755)
    top = build(tmp_path / "root", "cat", "rm")
    (top / "note").write_text("as it was\n")
    result = attached.run("cat /note; echo changed >/note; rm /usr/bin/rm; cat /note", root=top, cwd="/")
    assert result.stdout == "as it was\nchanged\n", result.stderr
    assert (top / "note").read_text() == "as it was\n"
    assert (top / "usr" / "bin" / "rm").exists() or os.path.lexists(top / "bin" / "rm")


def test_limits_deadlines_and_isolation_hold(attached):
    result = attached.run("head -c 5M /dev/zero >file; stat -c %s file", limits={"disk": "1M"})
    assert int(result.stdout) <= 1 << 20
    assert attached.run("sleep 1000", timeout=0.3).timed_out
    assert attached.run("mount -t tmpfs x /mnt").exit_code != 0
    text = attached.run("cat /proc/self/mountinfo").stdout
    assert "/run" not in {line.split()[4] for line in text.splitlines()}


def test_many_runs_leave_the_store_as_it_was(attached):
    for number in range(50):
        assert attached.run(f"echo {number} >f; exit {number}").exit_code == number
    core = attached.status().core
    assert core is not None
    assert core.sandboxes == 0
