"""What of the host's /etc comes into the default root, and what never does."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.engine._etc import HostEtc
from ramet.engine.root import Dir, Entry, File, Symlink, default_root


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    directory = tmp_path / "etc"
    directory.mkdir()
    return directory


@pytest.fixture
def entries(etc: Path) -> Callable[[], dict[str, Entry]]:
    """The /etc of a root made on a host whose own is `etc`."""

    def make() -> dict[str, Entry]:
        host = HostEtc(covered=lambda path: path.startswith("/usr/"), directory=str(etc), owner=os.geteuid())
        return {
            entry.path: entry for entry in default_root(etc=host).entries if entry.path.startswith("/etc")
        }

    return make


def write(path: Path, text: str = "x\n", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_public_file_is_copied(etc, entries):
    write(etc / "services", "ssh 22/tcp\n")
    assert entries()["/etc/services"] == File("/etc/services", 0o644, b"ssh 22/tcp\n")


@pytest.mark.parametrize(
    "name",
    [
        *("shadow", "gshadow", "sudoers", "ssh/ssh_host_ed25519_key", "ssl/private/key.pem"),
        *("pip.conf", "npmrc", "gitconfig", "wgetrc", "environment", "apt/auth.conf", "profile.d/x.sh"),
        *("krb5.keytab", "NetworkManager/system-connections/home", "wireguard/wg0.conf", "fstab"),
    ],
)
def test_a_file_that_is_not_on_the_list_stays_outside(etc, entries, name):
    write(etc / name, "secret\n")
    assert not [
        path for path, entry in entries().items() if isinstance(entry, File) and entry.content == b"secret\n"
    ]


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_file_that_not_everyone_may_read_stays_outside(etc, entries, mode):
    write(etc / "services", mode=mode)
    write(etc / "python3.11/sitecustomize.py", mode=mode)
    found = entries()
    assert "/etc/services" not in found
    assert "/etc/python3.11/sitecustomize.py" not in found


def test_a_directory_that_not_everyone_may_enter_stays_outside(etc, entries):
    write(etc / "perl/Net/libnet.cfg")
    (etc / "perl/Net").chmod(0o700)
    assert "/etc/perl/Net" not in entries()


def test_a_file_of_another_owner_stays_outside(etc):
    write(etc / "services")
    host = HostEtc(covered=lambda _: False, directory=str(etc), owner=os.geteuid() + 1)
    assert list(host.entries()) == []


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_only_regular_files_are_copied(etc, entries, kind):
    path = etc / "services"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        write(path / "inner")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    assert "/etc/services" not in entries()


def test_a_file_too_large_stays_outside_whole(etc, entries):
    write(etc / "mime.types", "x" * (1 << 20))
    write(etc / "services", "x" * ((1 << 20) + 1))
    found = entries()
    assert "/etc/mime.types" in found
    assert "/etc/services" not in found


def test_the_copies_together_are_bounded(etc, entries):
    for number in range(20):
        write(etc / f"fonts/{number:02}.conf", "x" * (1 << 20))
    total = sum(len(entry.content) for entry in entries().values() if isinstance(entry, File))
    assert total < 9 << 20


def test_a_deep_tree_ends(etc, entries):
    write(etc / "fonts" / "/".join("abcdefghij") / "deep.conf")
    assert "/etc/fonts/a/b/c/d" in entries()
    assert "/etc/fonts/a/b/c/d/e/f/g" not in entries()


def test_alternatives_stay_symlinks(etc, entries):
    (etc / "alternatives").mkdir()
    (etc / "alternatives/awk").symlink_to("/usr/bin/mawk")
    (etc / "alternatives/evil").symlink_to("/home/me/.ssh/id_ed25519")
    found = entries()
    assert found["/etc/alternatives/awk"] == Symlink("/etc/alternatives/awk", "/usr/bin/mawk")
    assert "/etc/alternatives/evil" not in found


def test_a_symlink_to_another_file_of_etc_becomes_a_copy(etc, entries):
    write(etc / "pki/here/real", "UTC\n")
    (etc / "localtime").symlink_to("pki/here/real")
    assert entries()["/etc/localtime"] == File("/etc/localtime", 0o644, b"UTC\n")


def test_a_symlink_to_a_secret_of_etc_is_no_way_round(etc, entries):
    write(etc / "shadow", mode=0o600)
    (etc / "localtime").symlink_to("shadow")
    assert "/etc/localtime" not in entries()


def test_certificates_keep_their_hashed_names(etc, entries):
    certs = etc / "ssl/certs"
    certs.mkdir(parents=True)
    (certs / "root.pem").symlink_to("/usr/share/ca-certificates/root.crt")
    (certs / "12345678.0").symlink_to("root.pem")
    write(certs / "ca-certificates.crt", "CERTIFICATE\n")
    found = entries()
    assert found["/etc/ssl/certs/12345678.0"] == Symlink("/etc/ssl/certs/12345678.0", "root.pem")
    assert isinstance(found["/etc/ssl/certs/ca-certificates.crt"], File)


def test_certificates_kept_elsewhere_are_also_where_most_programs_look(etc, entries):
    """As on Fedora, where /etc/ssl/certs is a symlink."""
    write(etc / "pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "CERTIFICATE\n")
    (etc / "pki/tls/certs").mkdir(parents=True)
    (etc / "pki/tls/certs/ca-bundle.crt").symlink_to(etc / "pki/ca-trust/extracted/pem/tls-ca-bundle.pem")
    (etc / "ssl").mkdir()
    (etc / "ssl/certs").symlink_to("../pki/tls/certs")
    found = entries()
    assert found["/etc/ssl/certs"] == Symlink("/etc/ssl/certs", "../pki/tls/certs")
    bundle = found["/etc/pki/tls/certs/ca-certificates.crt"]
    assert bundle == Symlink(bundle.path, "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem")


def test_what_links_of_usr_lead_to_is_copied(etc, tmp_path):
    write(etc / "tool/tool.conf", "conf\n")
    write(etc / "ssh/ssh_config", "secret\n")
    write(etc / "closed.conf", mode=0o600)
    usr = tmp_path / "usr"
    usr.mkdir()
    for number, target in enumerate(("tool/tool.conf", "ssh/ssh_config", "closed.conf", "missing")):
        (usr / str(number)).symlink_to(etc / target)
    (usr / "relative").symlink_to("../etc/tool/tool.conf")
    host = HostEtc(covered=lambda _: False, directory=str(etc), owner=os.geteuid())
    assert {entry.path for entry in host.linked_from(str(usr))} == {"/etc/tool/tool.conf"}


def test_a_made_file_is_never_the_hosts(etc, entries):
    for name in (
        "passwd",
        "group",
        "hosts",
        "hostname",
        "resolv.conf",
        "nsswitch.conf",
        "machine-id",
        "profile",
    ):
        write(etc / name, "host\n")
    found = entries()
    assert not [entry for entry in found.values() if isinstance(entry, File) and entry.content == b"host\n"]
    assert found["/etc/hostname"] == File("/etc/hostname", 0o644, b"ramet\n")


def test_an_empty_etc_of_the_host_is_enough(entries):
    found = entries()
    assert found["/etc"] == Dir("/etc")
    assert {"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/mtab"} <= set(found)
