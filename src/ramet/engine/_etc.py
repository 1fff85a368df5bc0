"""The /etc of the default root: what is written for it, and what is taken from the host.

Taken is only what programs of /usr read and everyone may know: an explicit list of names, and of these only
regular files that root owns and all may read. A file is left out rather than shortened. What often carries
a password (pip.conf, npmrc, gitconfig, wgetrc, apt, environment, profile.d) is not on the list whatever its
mode.
"""

import fnmatch
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ramet.engine._entries import Dir, File, Symlink, Tree

__all__ = ["BASICS", "HOME", "HostEtc", "fill"]

HOME = "/home/user"

# What every root has, a built one too.
BASICS = {
    "passwd": (
        f"root:x:0:0:root:{HOME}:/bin/sh\n"
        f"user:x:1000:1000:user:{HOME}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost ramet\n::1 localhost ip6-localhost ip6-loopback\n",
    "hostname": "ramet\n",
    "nsswitch.conf": (
        "passwd: files\ngroup: files\nshadow: files\ngshadow: files\n"
        "hosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n"
    ),
    "resolv.conf": "# No network here.\n",
}

# Empty, and so read as "not yet known"; a sandbox gets its own.
_MACHINE_ID = ""
# Looking again helps nobody where there is no network.
_PIP = "[global]\nretries = 0\ndisable-pip-version-check = true\n"
_PROFILE = "# The environment is the sandbox's own.\n"

_FILES = (
    *("alpine-release", "arch-release", "debian_version", "fedora-release", "lsb-release", "os-release"),
    *("redhat-release", "system-release"),
    *("ld.so.cache", "ld.so.conf", "ld-musl-*.path"),
    *("localtime", "timezone", "locale.alias"),
    *("ethertypes", "gai.conf", "host.conf", "netconfig", "protocols", "rpc", "services"),
    *("inputrc", "login.defs", "magic", "magic.mime", "mailcap", "mime.types", "mke2fs.conf", "shells"),
    "xattr.conf",
)
_TREES = (
    *("alternatives", "crypto-policies", "fonts", "ImageMagick-*", "java-*", "ld.so.conf.d", "perl"),
    *("maven/m2.conf", "maven/logging", "python[23]*", "R", "terminfo", "texmf"),
    *("pki/ca-trust/extracted", "pki/java", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf"),
    *("ssl/ca-bundle.pem", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf"),
)
# Wherever a distribution keeps its certificates, they are also where most programs look first.
_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_CA_SOURCES = (
    "pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "pki/tls/certs/ca-bundle.crt",
    "ssl/ca-bundle.pem",
    "ssl/cert.pem",
)

# A link from /usr into one of these is not followed, not even to a file that all may read.
_PRIVATE = frozenset(
    {"environment", "gshadow", "pam.d", "private", "security", "shadow", "ssh", "sudoers", "sudoers.d"}
)

_MAX_FILE = 1 << 20
_MAX_TOTAL = 8 << 20
_MAX_ENTRIES = 4096
_MAX_DEPTH = 5


@dataclass(slots=True)
class HostEtc:
    """The host's /etc, or a stand-in for it in a test.

    `covered` says of a real path whether the root shows it anyway; symlinks to there are kept as symlinks.
    """

    covered: Callable[[str], bool]
    directory: str = "/etc"
    owner: int = 0
    _bytes: int = 0
    _count: int = 0

    def entries(self) -> Iterator[Dir | File | Symlink]:
        for pattern in _FILES:
            for name in self._matches(pattern):
                yield from self._take(name, depth=_MAX_DEPTH)
        for pattern in _TREES:
            for name in self._matches(pattern):
                yield from self._take(name, depth=0)

    def linked_from(self, directory: str) -> Iterator[Dir | File | Symlink]:
        """The files of /etc that symlinks in `directory`, one of the host's own, lead to."""
        try:
            with os.scandir(directory) as found:
                links = [entry.path for entry in found if entry.is_symlink()]
        except OSError:
            return
        for link in links:
            target = os.path.normpath(os.path.join(directory, os.readlink(link)))
            name = target.removeprefix(self.directory + "/")
            if name != target and not _PRIVATE.intersection(name.split("/")):
                yield from self._take(name, depth=_MAX_DEPTH)

    def _matches(self, pattern: str) -> list[str]:
        if not any(mark in pattern for mark in "*["):
            return [pattern]
        try:
            return sorted(fnmatch.filter(os.listdir(self.directory), pattern))
        except OSError:
            return []

    def _take(self, name: str, *, depth: int) -> Iterator[Dir | File | Symlink]:
        """`name` with what is below it, a directory only while `depth` is less than the limit."""
        path = f"{self.directory}/{name}"
        try:
            status = os.lstat(path)
        except OSError:
            return
        if self._count >= _MAX_ENTRIES:
            return
        self._count += 1
        if stat.S_ISLNK(status.st_mode):
            yield from self._take_link(name, path)
        elif stat.S_ISDIR(status.st_mode):
            if depth < _MAX_DEPTH and status.st_mode & 0o5 == 0o5:
                yield Dir(f"/etc/{name}")
                for child in sorted(_names(path)):
                    yield from self._take(f"{name}/{child}", depth=depth + 1)
        else:
            yield from self._read(name, path)

    def _take_link(self, name: str, path: str) -> Iterator[File | Symlink]:
        target = os.readlink(path)
        # A symlink can only lead to what the root shows. That settles nearly all of them without a real path.
        beside = "/" in name and "/" not in target
        if beside or self.covered(os.path.normpath(target)):
            yield Symlink(f"/etc/{name}", target)
            return
        real = os.path.realpath(path)
        inside = real.startswith(f"{os.path.realpath(self.directory)}/")
        if self.covered(real) or (inside and os.path.isdir(real)):
            yield Symlink(f"/etc/{name}", target)
        elif inside:
            yield from self._read(name, real)

    def _read(self, name: str, path: str) -> Iterator[File]:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        try:
            status = os.fstat(fd)
            public = stat.S_ISREG(status.st_mode) and status.st_uid == self.owner and status.st_mode & 0o004
            room = min(_MAX_FILE, _MAX_TOTAL - self._bytes)
            if not public or status.st_size > room:
                return
            content = os.read(fd, room + 1)
        finally:
            os.close(fd)
        if len(content) <= room:
            self._bytes += len(content)
            yield File(f"/etc/{name}", 0o755 if status.st_mode & 0o001 else 0o644, content)


def fill(tree: Tree, host: HostEtc, linking: tuple[str, ...]) -> None:
    """Put a whole /etc into `tree`. `linking` are directories whose symlinks may lead into /etc."""
    tree.put(Dir("/etc"))
    for name, text in (
        *BASICS.items(),
        ("machine-id", _MACHINE_ID),
        ("xdg/pip/pip.conf", _PIP),
        ("profile", _PROFILE),
    ):
        tree.put(File(f"/etc/{name}", 0o644, text.encode()))
    tree.put(Symlink("/etc/mtab", "/proc/self/mounts"))
    for entry in host.entries():
        tree.offer(entry)
    for directory in linking:
        for entry in host.linked_from(directory):
            tree.offer(entry)
    for name in _CA_SOURCES:
        if f"/etc/{name}" in tree.items:
            tree.offer(Symlink(_CA_BUNDLE, f"/etc/{name}"))


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
