"""Made-up machines for the doctor: a healthy one, and functions that take something from it."""

import os
from dataclasses import replace
from pathlib import Path

from ramet._version import __version__
from ramet.doctor import Host, Probe
from unit.engine import elves

EVERYTHING = (
    *("userns", "id-map", "mntns", "pidns", "netns", "ipcns", "utsns", "cgroupns"),
    *("private-mounts", "tmpfs", "tmpfs-xattr", "overlay-userxattr", "proc", "devpts"),
    *("seccomp-filter", "close-range", "pidfd", "pagemap-scan"),
    *("new-mount-api", "mount-setattr", "move-mount-detached"),
)
USER_CGROUP = "/user.slice/user-1000.slice/user@1000.service"


def probe(**refused: str) -> Probe:
    """A core that finds everything but `refused`, whose names have _ for -."""
    answers = dict.fromkeys(EVERYTHING, ("ok", ""))
    answers |= {name.replace("_", "-"): (answer, "refused") for name, answer in refused.items()}
    return Probe(answers)


def write(host: Host, path: str, text: str) -> None:
    file = Path(host.path(path))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def healthy(root: Path) -> Host:
    """Linux 6.18 of today, an ordinary user with subordinate ids and a delegated cgroup."""
    uid = os.geteuid() or 1000
    host = Host(
        root=root,
        environment={"HOME": "/home/me"},
        uid=uid,
        user="me",
        release="6.18.2-generic",
        processes=(60000, 60000),
        program=elves.write(root / "ramet-core"),
        program_version=__version__,
        probe=probe(),
    )
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        write(host, f"/proc/sys/user/max_{kind}_namespaces", "60000\n")
    write(host, "/proc/sys/kernel/seccomp/actions_avail", "kill_process errno user_notif log allow\n")
    write(host, "/proc/filesystems", "nodev\tproc\nnodev\toverlay\n\text4\n")
    write(host, "/proc/self/status", "Name:\tpython\nNoNewPrivs:\t0\nSeccomp:\t0\n")
    write(host, "/proc/self/ns/user", "")
    write(host, "/proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")
    write(host, "/proc/self/cgroup", f"0::{USER_CGROUP}/app.slice/x.scope\n")
    write(
        host,
        "/proc/self/mountinfo",
        "20 1 0:5 / /proc rw,nosuid - proc proc rw\n"
        "22 1 0:7 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n"
        "21 1 0:6 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
    )
    write(host, "/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")
    for directory in (USER_CGROUP, f"{USER_CGROUP}/app.slice", f"{USER_CGROUP}/app.slice/x.scope"):
        for name in ("cgroup.procs", "cgroup.controllers"):
            write(host, f"/sys/fs/cgroup{directory}/{name}", "cpu io memory pids\n")
            own(host, f"/sys/fs/cgroup{directory}/{name}")
        own(host, f"/sys/fs/cgroup{directory}")
    write(host, "/etc/subuid", "other:100000:65536\nme:165536:65536\n")
    write(host, "/etc/subgid", "other:100000:65536\nme:165536:65536\n")
    for helper in ("newuidmap", "newgidmap"):
        write(host, f"/usr/bin/{helper}", "")
        os.chmod(host.path(f"/usr/bin/{helper}"), 0o4755)
    write(host, "/run/systemd/system/x", "")
    write(host, "/sys/block/vda/size", "100\n")
    write(host, "/sys/block/vda/dev", "254:0\n")
    Path(host.path("/tmp")).mkdir()
    return host


def own(host: Host, path: str) -> None:
    """Make `path` the user's. Without root everything is already, and `uid` is the runner's."""
    if os.geteuid() == 0:
        os.chown(host.path(path), host.uid, host.uid)


def disown(host: Host) -> Host:
    """The same machine, seen by a user whom nothing in it belongs to."""
    return replace(host, uid=host.uid + 1)


def untried(host: Host) -> Host:
    """The same machine with no core to ask."""
    return replace(host, program=None, program_fault="it is missing", probe=Probe(fault="it is missing"))


def ubuntu(host: Host) -> Host:
    """Ubuntu 24.04, which takes the namespaces' capabilities from programs without a profile."""
    write(host, "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    write(host, "/etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n')
    return replace(host, probe=probe(id_map="EPERM"))


def docker(host: Host) -> Host:
    """`docker run` with its default profile."""
    write(host, "/.dockerenv", "")
    write(host, "/proc/self/status", "NoNewPrivs:\t0\nSeccomp:\t2\n")
    write(host, "/proc/self/attr/current", "docker-default (enforce)\n")
    mounts = host.text("/proc/self/mountinfo")
    write(host, "/proc/self/mountinfo", f"{mounts}30 20 0:9 / /proc/kcore rw - tmpfs tmpfs rw\n")
    return replace(host, probe=Probe({"userns": ("EPERM", "refused")}))
