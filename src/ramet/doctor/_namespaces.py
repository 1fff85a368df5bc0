"""User namespaces, what forbids them, and what is made inside of one."""

import shlex
from importlib import resources

from ramet.doctor._host import Host
from ramet.doctor._model import Check, failed, passed, warned

__all__ = ["check_apparmor", "check_limits", "check_namespaces", "check_overlay", "check_user_namespaces"]

_RESTRICTED = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
_KINDS = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_MADE = ("userns", "id-map")
_INSIDE = (
    *("mntns", "pidns", "netns", "ipcns", "utsns", "cgroupns"),
    *("private-mounts", "tmpfs", "proc", "devpts"),
)
_OVERLAYS = ("overlay", "overlay-userxattr")

_MANY_NAMESPACES = 16384
_FEW_NAMESPACES = 1024
_FEW_PROCESSES = 1024
_TOO_FEW_PROCESSES = 64


def check_user_namespaces(host: Host) -> Check:
    name = "user-namespaces"
    refused = host.probe.refused(*_MADE)
    if host.probe.ok("userns") and not refused:
        return passed(name, "one was made")
    detail, fix = _forbidden(host)
    if not refused:
        if detail:
            return failed(name, detail, fix)
        return warned(name, f"nothing forbids them, but none could be tried: {host.probe.fault}")
    detail = detail or "the kernel refuses one; a container's seccomp filter, or a chroot, may be why"
    return failed(name, f"{detail} ({refused[0]})", fix)


def _forbidden(host: Host) -> tuple[str | None, str | None]:
    """What is known to forbid user namespaces here, and what mends it."""
    if host.number("/proc/sys/user/max_user_namespaces") == 0:
        fix = host.sudo(f"sysctl -w user.max_user_namespaces={_MANY_NAMESPACES}")
        return "switched off by user.max_user_namespaces = 0", fix
    if host.number(_CLONE) == 0 and host.uid != 0:
        fix = host.sudo("sysctl -w kernel.unprivileged_userns_clone=1")
        return "switched off for ordinary users by kernel.unprivileged_userns_clone = 0", fix
    if not host.exists("/proc/self/ns/user"):
        return "the kernel is built without CONFIG_USER_NS: another kernel is needed", None
    if is_restricted(host):
        return "AppArmor forbids them to programs without a profile", apparmor_fix(host)
    return None, None


def is_restricted(host: Host) -> bool:
    """Whether AppArmor takes user namespaces from programs without a profile (Ubuntu 23.10 and later)."""
    return host.uid != 0 and host.number(_RESTRICTED) == 1


def apparmor_fix(host: Host) -> str:
    """The command that installs core at the system path with its profile."""
    from ramet.native.locate import PACKAGED_PROGRAM

    script = str(resources.files("ramet.doctor") / "data" / "apparmor" / "install")
    return host.sudo(shlex.join(["sh", script, str(PACKAGED_PROGRAM)]))


def check_apparmor(host: Host) -> Check:
    name = "apparmor"
    if not is_restricted(host):
        return passed(name, "user namespaces are not restricted")
    # Under the restriction a namespace can be made but has no capabilities: the first mount in it fails.
    if host.probe.ok("userns") and not host.probe.refused(*_MADE, *_INSIDE):
        return passed(name, f"restricts user namespaces, and allows them to {host.program}")
    detail = (
        "kernel.apparmor_restrict_unprivileged_userns = 1 takes user namespaces from every program without a "
        "profile; the command installs ramet-core at a path that only root can write, and a profile for it"
    )
    if host.probe.fault:
        detail += f" (not tried: {host.probe.fault})"
    return failed(name, detail, apparmor_fix(host))


def check_namespaces(host: Host) -> Check:
    name = "namespaces"
    if host.probe.fault:
        return warned(name, f"could not be tried: {host.probe.fault}")
    if host.probe.refused(*_MADE):
        return warned(name, "could not be tried without a user namespace")
    lacking = host.probe.refused(*_INSIDE)
    if lacking:
        fix = apparmor_fix(host) if is_restricted(host) else None
        return failed(name, "; ".join(lacking), fix)
    return passed(name, ", ".join(probe for probe in _INSIDE if probe in host.probe.results))


def check_overlay(host: Host) -> Check:
    name = "overlay"
    probe = host.probe
    if probe.refused(*_MADE):
        return warned(name, "could not be tried without a user namespace")
    known = "overlay" in (host.text("/proc/filesystems") or "").split()
    # mount(2) in a user namespace loads no module: it finds what is registered.
    fix = None if known else host.sudo("modprobe overlay")
    refused = probe.refused(*_OVERLAYS)
    if any(probe.ok(one) for one in _OVERLAYS):
        partly = [*refused, *probe.refused("tmpfs-xattr")]
        if partly:
            return warned(name, "works; deleted and renamed directories are costly: " + "; ".join(partly))
        return passed(name, "works in a user namespace")
    if refused:
        return failed(name, "; ".join(refused), fix)
    if known:
        return warned(
            name, f"the kernel has it, but it could not be tried: {probe.fault or 'core did not say'}"
        )
    return warned(name, "is not loaded", fix)


def check_limits(host: Host) -> Check:
    """How many namespaces and processes this user may have."""
    name = "limits"
    found = {kind: host.number(f"/proc/sys/user/max_{kind}_namespaces") for kind in _KINDS}
    low = {kind: count for kind, count in found.items() if count is not None and count < _FEW_NAMESPACES}
    if low:
        kind, count = min(low.items(), key=lambda item: item[1])
        settings = " ".join(f"user.max_{one}_namespaces={_MANY_NAMESPACES}" for one in low)
        detail = f"user.max_{kind}_namespaces = {count}: each sandbox needs one of every kind"
        fix = host.sudo(f"sysctl -w {settings}")
        return failed(name, detail, fix) if count == 0 else warned(name, detail, fix)
    soft, hard = host.processes
    if 0 <= soft < _FEW_PROCESSES:
        detail = f"at most {soft} processes for this user (ulimit -u)"
        wanted = hard if hard >= _FEW_PROCESSES else 8192
        within = hard < 0 or hard >= wanted
        fix = f"ulimit -u {wanted}" if within else f"sudo prlimit --pid $$ --nproc={wanted}"
        return failed(name, detail, fix) if soft < _TOO_FEW_PROCESSES else warned(name, detail, fix)
    return passed(
        name, f"processes: {'unlimited' if soft < 0 else soft}; namespaces: {_least(found)} of each kind"
    )


def _least(found: dict[str, int | None]) -> str:
    counts = [count for count in found.values() if count is not None]
    return str(min(counts)) if counts else "an unknown number"
