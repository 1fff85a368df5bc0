"""The machine as the checks see it: a facade, so that a test can show them another one."""

import errno
import os
import pwd
import resource
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ramet.errors import RametError

__all__ = ["Host", "Mount", "Probe"]

_PROBE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Probe:
    """What `ramet-core probe` answered: for each name "ok" or the name of an errno, and a text.

    `fault` says why there is no answer; `results` is empty then.
    """

    results: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    fault: str | None = None

    @classmethod
    def parse(cls, output: str) -> "Probe":
        """Read lines of ``name<TAB>ok|errno<TAB>text``, errno by number or name; others are skipped."""
        results = {}
        for line in output.splitlines():
            name, tab, rest = line.partition("\t")
            answer, _, text = rest.partition("\t")
            if answer.isdecimal():
                answer = errno.errorcode.get(int(answer), answer)
            if tab and name and answer:
                results[name] = (answer, text)
        return cls(results) if results else cls(fault="it said nothing")

    @classmethod
    def run(cls, program: Path) -> "Probe":
        """Ask the program. Never raises: a program that fails is a finding."""
        try:
            done = _ask(program, "probe")
        except (OSError, subprocess.TimeoutExpired) as error:
            return cls(fault=str(error))
        probe = cls.parse(done.stdout)
        if probe.fault and done.returncode:
            words = done.stderr.strip().splitlines()
            return cls(fault=words[-1] if words else f"it ended with {done.returncode}")
        return probe

    def ok(self, name: str) -> bool | None:
        """Whether `name` was found to work, None when it was not asked."""
        answer = self.results.get(name)
        return None if answer is None else answer[0] == "ok"

    def refused(self, *names: str) -> list[str]:
        """Those of `names` that were tried and do not work, as ``name: ERRNO text``."""
        return [
            f"{name}: {' '.join(part for part in self.results[name] if part)}"
            for name in names
            if self.ok(name) is False
        ]


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo. `root` is what of the file system `point` shows."""

    root: str
    point: str
    type: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Host:
    """Where the checks look. The methods take absolute paths of the host and put `root` before them.

    `processes` are soft and hard RLIMIT_NPROC, -1 for none. `program` is core as it would be started, None
    where `program_fault` says why there is none, and `program_version` what it calls itself.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: int = 1000
    user: str = "user"
    release: str = ""
    machine: str = "x86_64"
    processes: tuple[int, int] = (-1, -1)
    program: Path | None = None
    program_fault: str | None = None
    program_version: str = ""
    probe: Probe = Probe(fault="it was not asked")

    @classmethod
    def here(cls) -> "Host":
        """This machine; starts core to ask it."""
        from ramet.native.locate import find_program

        program: Path | None = None
        fault: str | None = None
        try:
            program = find_program()
        except RametError as error:
            fault = str(error)
        uname = os.uname()
        return cls(
            environment=dict(os.environ),
            uid=os.geteuid(),
            user=_user_name(os.geteuid()),
            release=uname.release,
            machine=uname.machine,
            processes=resource.getrlimit(resource.RLIMIT_NPROC),
            program=program,
            program_fault=fault,
            program_version=_version(program) if program else "",
            probe=Probe.run(program) if program else Probe(fault="there is no ramet-core to ask"),
        )

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def text(self, path: str) -> str | None:
        """The content of a small file, None when it cannot be read."""
        try:
            with open(self.path(path), encoding="utf-8", errors="replace") as file:
                return file.read(1 << 20)
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The integer in a file such as those of /proc/sys, None when there is none."""
        text = self.text(path)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))

    def status_field(self, name: str) -> str | None:
        """A line of /proc/self/status."""
        for line in (self.text("/proc/self/status") or "").splitlines():
            key, colon, value = line.partition(":")
            if colon and key == name:
                return value.strip()
        return None

    def mounts(self) -> list[Mount]:
        mounts = []
        for line in (self.text("/proc/self/mountinfo") or "").splitlines():
            words = line.split(" ")
            if "-" not in words[6:]:
                continue
            kind = words[words.index("-", 6) + 1]
            mounts.append(Mount(words[3], words[4], kind, "ro" in words[5].split(",")))
        return mounts

    def writable(self, path: str) -> bool:
        """Whether `uid` may write at `path`; by ownership alone, as groups do not delegate."""
        try:
            status = os.stat(self.path(path))
            read_only = os.statvfs(self.path(path)).f_flag & os.ST_RDONLY
        except OSError:
            return False
        owner = status.st_uid == self.uid and bool(status.st_mode & stat.S_IWUSR)
        return not read_only and (self.uid == 0 or owner)

    def free_bytes(self, path: str) -> tuple[str, int] | None:
        """The nearest existing directory at or above `path`, and the bytes that may be written there."""
        while not self.exists(path) and path != "/":
            path = os.path.dirname(path)
        try:
            status = os.statvfs(self.path(path))
        except OSError:
            return None
        return path, status.f_bavail * status.f_frsize

    def sudo(self, command: str) -> str:
        """`command` as this user would give it."""
        return command if self.uid == 0 else f"sudo {command}"


def _ask(program: Path, verb: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, verb],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PROBE_SECONDS,
        check=False,
        errors="replace",
    )


def _version(program: Path) -> str:
    """The second word of "ramet-core 1.2.3 protocol 4"; empty when it does not say."""
    try:
        return " ".join(_ask(program, "version").stdout.split()[1:2])
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
