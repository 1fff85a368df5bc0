"""Control groups: which version, and what of it is ours to hand out.

Nothing here fails: without cgroups memory is held by another mechanism, and what is not is refused when it is
asked for.
"""

import os

from ramet.doctor._host import Host
from ramet.doctor._model import Check, passed, warned

__all__ = ["check_cgroups"]

_WANTED = ("cpu", "memory", "pids")
_WITHOUT = "memory is held by core's watcher, and fewer cpus than the machine's are refused"

_UNIFY = "systemd.unified_cgroup_hierarchy=1"
_COUNT_SWAP = "swapaccount=1"
_DELEGATE = (
    "sh -c 'mkdir -p /etc/systemd/system/user@.service.d && "
    'printf "[Service]\\nDelegate=cpu cpuset io memory pids\\n" '
    "> /etc/systemd/system/user@.service.d/delegate.conf && systemctl daemon-reload'"
)
# A shell of its own in a delegated scope: what is started from it, the daemon too, may hand out cgroups.
_SCOPE = 'systemd-run --user --scope --property=Delegate=yes "$SHELL"'


def check_cgroups(host: Host) -> Check:
    check = _check_version(host)
    if check.status != "pass" or not _swap_is_lost(host):
        return check
    text = "swap is not counted, so memory is held by core's watcher"
    return warned("cgroups", f"{check.detail}; {text}", _boot_with(host, _COUNT_SWAP))


def _swap_is_lost(host: Host) -> bool:
    """Whether there is swap, and the kernel keeps no account of whose it is."""
    if len((host.text("/proc/swaps") or "").splitlines()) < 2:
        return False
    for mount in host.mounts():
        if mount.type == "cgroup" and "memory" in mount.point.rpartition("/")[2].split(","):
            return not host.exists(f"{mount.point}/memory.memsw.limit_in_bytes")
    unified = next((mount for mount in host.mounts() if mount.type == "cgroup2"), None)
    directory = None if unified is None else _own_directory(host, unified.point, unified.root)
    while unified is not None and directory is not None and directory.startswith(unified.point):
        # The root of all has neither, nor has who is not given the controller.
        if host.exists(f"{directory}/memory.max"):
            return not host.exists(f"{directory}/memory.swap.max")
        directory = os.path.dirname(directory)
    return False


def _own_directory(host: Host, point: str, mount_root: str) -> str | None:
    own = _own_cgroup(host)
    if own is None:
        return None
    # In a container the mount may show only a part of the hierarchy.
    inside = own.removeprefix(mount_root) if mount_root != "/" else own
    return os.path.normpath(f"{point}/{inside}")


def _check_version(host: Host) -> Check:
    name = "cgroups"
    mounts = host.mounts()
    unified = next((mount for mount in mounts if mount.type == "cgroup2"), None)
    legacy = sorted({mount.point.rpartition("/")[2] for mount in mounts if mount.type == "cgroup"})
    if unified is None:
        if not legacy:
            return warned(name, f"no cgroup file system is mounted: {_WITHOUT}")
        return _check_legacy(host, legacy, "version 1")
    offered = _controllers(host, unified.point)
    if not any(controller in offered for controller in _WANTED):
        return _check_legacy(host, legacy, "hybrid: version 2 has no controller to give, version 1 has them")
    return _check_delegation(host, unified.point, unified.root)


def _check_legacy(host: Host, legacy: list[str], version: str) -> Check:
    """Version 1 is not delegated: its cgroups are root's to make."""
    had = [name for name in _WANTED if any(name in mounted.split(",") for mounted in legacy)]
    if host.uid == 0 and "memory" in had:
        return passed("cgroups", f"{version}; for each sandbox: {', '.join(had)}")
    why = "only root can make cgroups there" if had else "without memory and cpu"
    return warned("cgroups", f"{version} ({', '.join(legacy)}), {why}: {_WITHOUT}", _boot_with(host, _UNIFY))


def _check_delegation(host: Host, point: str, mount_root: str) -> Check:
    name = "cgroups"
    own = _own_cgroup(host)
    directory = _own_directory(host, point, mount_root)
    if directory is None:
        return warned(name, "version 2, but /proc/self/cgroup does not say where this process is")
    delegated = None
    while directory.startswith(point):
        if not (host.writable(directory) and host.writable(f"{directory}/cgroup.procs")):
            break
        delegated = directory
        directory = os.path.dirname(directory)
    if delegated is None:
        systemd = host.exists("/run/systemd/system") and host.uid != 0
        return warned(
            name,
            f"version 2, but {own} is not delegated to this user: {_WITHOUT}",
            _SCOPE if systemd else None,
        )
    had = _controllers(host, delegated)
    lacking = [controller for controller in _WANTED if controller not in had]
    if lacking:
        systemd = host.exists("/run/systemd/system")
        fix = host.sudo(_DELEGATE) if systemd else None
        return warned(name, f"version 2, delegated from {delegated} without {', '.join(lacking)}", fix)
    return passed(name, f"version 2, delegated from {delegated}: {', '.join(had)}")


def _own_cgroup(host: Host) -> str | None:
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return None


def _controllers(host: Host, directory: str) -> list[str]:
    return (host.text(f"{directory}/cgroup.controllers") or "").split()


def _boot_with(host: Host, word: str) -> str | None:
    if host.exists("/usr/sbin/grubby"):
        return host.sudo(f"grubby --update-kernel=ALL --args={word}")
    if host.exists("/etc/default/grub"):
        edit = f'sed -i "s/^GRUB_CMDLINE_LINUX=\\"/&{word} /" /etc/default/grub && update-grub'
        return host.sudo(f"sh -c '{edit}'")
    return None
