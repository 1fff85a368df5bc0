"""The kernel, the processor, and what of the kernel's interfaces is there."""

import re

from ramet.doctor._host import Host
from ramet.doctor._model import Check, failed, passed, warned

__all__ = ["check_architecture", "check_features", "check_kernel", "check_seccomp"]

REQUIRED = (5, 15)
# What a kernel below a version lacks, newest last. None of it is needed by `run`.
_LATER = (
    ((6, 1), "MADV_COLLAPSE: forked sandboxes touch their memory in small pages"),
    ((6, 3), "idmapped mounts of tmpfs"),
    ((6, 6), "user extended attributes on tmpfs: a writable layer in RAM marks no opaque directories"),
    ((6, 7), "PAGEMAP_SCAN: snapshots find changed pages by the slower pagemap"),
)

_NEEDED = ("new-mount-api", "mount-setattr", "move-mount-detached", "close-range", "pidfd")
_USEFUL = ("idmapped-mount", "pagemap-scan")
# Saves some microseconds where it is there; not worth a warning where it is not.
_FASTER = ("detached-layers",)
# Probes that other checks report.
_ELSEWHERE = frozenset(
    {"userns", "id-map", "mntns", "pidns", "netns", "ipcns", "utsns", "cgroupns"}
    | {"private-mounts", "tmpfs", "tmpfs-xattr", "overlay", "overlay-userxattr", "proc", "devpts"}
    | {"seccomp-filter"}
)
_ACTIONS = ("kill_process", "errno", "user_notif", "allow")

_UPGRADES = {
    "ubuntu": "apt-get install -y linux-generic-hwe-{version}",
    "debian": "apt-get install -y -t {codename}-backports linux-image-amd64",
    "fedora": "dnf upgrade -y kernel",
    "arch": "pacman -Syu linux",
}


def check_kernel(host: Host) -> Check:
    numbers = re.match(r"(\d+)\.(\d+)", host.release)
    if numbers is None:
        return warned("kernel", f"{host.release!r} is no version of Linux that can be read")
    version = (int(numbers[1]), int(numbers[2]))
    missing = [f"{what} ({major}.{minor})" for (major, minor), what in _LATER if version < (major, minor)]
    lacks = "; without " + ", ".join(missing) if missing else ""
    if version < REQUIRED:
        detail = f"Linux {host.release}: sandboxes need {REQUIRED[0]}.{REQUIRED[1]}{lacks}"
        return failed("kernel", detail, _upgrade(host))
    if missing:
        return warned("kernel", f"Linux {host.release}: enough to run commands{lacks}", _upgrade(host))
    return passed("kernel", f"Linux {host.release}")


def _upgrade(host: Host) -> str | None:
    release = dict(
        line.split("=", 1) for line in (host.text("/etc/os-release") or "").splitlines() if "=" in line
    )
    words = {key: value.strip("\"'") for key, value in release.items()}
    command = _UPGRADES.get(words.get("ID", ""))
    version, codename = words.get("VERSION_ID", ""), words.get("VERSION_CODENAME", "")
    if command is None or not re.fullmatch(r"[\w.]*", version + codename):
        return None
    return host.sudo(command.format(version=version, codename=codename))


def check_architecture(host: Host) -> Check:
    if host.machine == "x86_64":
        return passed("architecture", "x86_64")
    return failed("architecture", f"{host.machine}: the program in C is made for x86_64 only, so far")


def check_features(host: Host) -> Check:
    name = "kernel-features"
    probe = host.probe
    if probe.fault:
        return warned(name, f"could not be tried: {probe.fault}")
    lacking = probe.refused(*_NEEDED)
    if lacking:
        return failed(name, "sandboxes need " + "; ".join(lacking), _upgrade(host))
    known = _ELSEWHERE.union(_NEEDED, _USEFUL, _FASTER)
    rest = probe.refused(*_USEFUL, *(other for other in probe.results if other not in known))
    if rest:
        return warned(name, "commands run, the fork engine has less: " + "; ".join(rest))
    there = [feature for feature in (*_NEEDED, *_USEFUL, *_FASTER) if probe.ok(feature)]
    return passed(name, ", ".join(there) or "nothing was tried")


def check_seccomp(host: Host) -> Check:
    lacking = host.probe.refused("seccomp-filter")
    if lacking:
        return failed("seccomp", f"the kernel refuses a filter: {lacking[0]}")
    actions = (host.text("/proc/sys/kernel/seccomp/actions_avail") or "").split()
    if not actions and not host.probe.ok("seccomp-filter"):
        return failed(
            "seccomp", "the kernel is built without CONFIG_SECCOMP_FILTER: another kernel is needed"
        )
    absent = [action for action in _ACTIONS if actions and action not in actions]
    if absent:
        return failed("seccomp", f"the kernel lacks the actions {', '.join(absent)}", _upgrade(host))
    return passed("seccomp", "filters can be set" if host.probe.ok("seccomp-filter") else "filters are known")
