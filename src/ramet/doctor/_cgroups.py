"""Control groups: what holds limits on memory, processors and disks here, and how to get more of it.

Nothing here fails but a setting that the daemon would refuse: without cgroups memory is held by another
mechanism, and what is not is refused when it is asked for.
"""

import os

from ramet.doctor._host import Host
from ramet.doctor._model import Check, failed, passed, warned
from ramet.native.disks import disks

__all__ = ["check_cgroups"]

_WANTED = ("cpu", "memory", "pids")
_OLD_NAMES = {"blkio": "io"}
_SETTING = "RAMET_CGROUPS"
_WITHOUT = "core's watcher holds memory; io, and fewer cpus than the machine's, are refused"
_TOP = "/sys/fs/cgroup"

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
    setting = host.environment.get(_SETTING) or "auto"
    if setting == "none":
        return warned("cgroups", f"{_WITHOUT}; switched off by {_SETTING}=none", f"unset {_SETTING}")
    if setting != "auto":
        detail = f"{_SETTING} is neither auto nor none: no daemon starts"
        return failed("cgroups", detail, f"unset {_SETTING}")
    check = _check_version(host)
    if check.status != "pass" or not _swap_is_lost(host):
        return check
    text = "but swap is not counted, so memory is held by core's watcher"
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
            return warned(name, f"{_WITHOUT}; no cgroup file system is mounted")
        return _check_legacy(host, legacy, "version 1")
    offered = _controllers(host, unified.point)
    if not any(controller in offered for controller in _WANTED):
        return _check_legacy(host, legacy, "hybrid: version 2 has no controller to give, version 1 has them")
    return _check_delegation(host, unified.point, unified.root)


def _held(host: Host, had: list[str]) -> str:
    """What controllers hold, and of disks that they do not, or that there is none."""
    named = [_OLD_NAMES.get(name, name) for name in had]
    if "io" in named and disks(host.path("/").rstrip("/")):
        return ", ".join(named)
    why = "there is no disk" if "io" in named else "no controller for it"
    return f"{', '.join(one for one in named if one != 'io')}; io is refused, {why}"


def _check_legacy(host: Host, legacy: list[str], version: str) -> Check:
    """Version 1 is not delegated by anybody: its cgroups are root's to make, or to give."""
    mounted = {name: mount for mount in legacy for name in mount.split(",")}
    had = [name for name in (*_WANTED, "blkio") if name in mounted]
    given = [name for name in had if _is_own(host, name, mounted[name])]
    mine = had if host.uid == 0 else given
    if "memory" in mine:
        return passed("cgroups", f"cgroup v1 holds {_held(host, mine)}")
    why = "only root can make cgroups there" if had else "without memory and cpu"
    fix = _boot_with(host, _UNIFY)
    if fix is None and "memory" in had:
        # The last one bounds nothing; it counts time.
        wanted = [*had, *(["cpuacct"] if "cpuacct" in mounted else [])]
        fix = _hand_over(host, [f"{_TOP}/{mounted[name]}" for name in wanted], "tasks")
    return warned("cgroups", f"{_WITHOUT}; {version} ({', '.join(legacy)}), {why}", fix)


def _is_own(host: Host, controller: str, mounted: str) -> bool:
    """Whether this process is in a cgroup of that hierarchy that is this user's."""
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return host.writable(f"{_TOP}/{mounted}{path}") and path != "/"
    return False


def _hand_over(host: Host, parents: list[str], *files: str) -> str:
    """Root makes a cgroup in each, gives it to this user and puts the shell into it that is told this."""
    given = " ".join(["$d", *(f"$d/{file}" for file in ("cgroup.procs", *files))])
    each = f"d=$p/ramet-{host.uid}; mkdir -p $d && chown {host.uid} {given} && echo '$$' >$d/cgroup.procs"
    return host.sudo(f"sh -c 'for p in {' '.join(dict.fromkeys(parents))}; do {each}; done'")


def _check_delegation(host: Host, point: str, mount_root: str) -> Check:
    name = "cgroups"
    own = _own_cgroup(host)
    directory = _own_directory(host, point, mount_root)
    if directory is None:
        unknown = "version 2, but /proc/self/cgroup does not say where this process is"
        return warned(name, f"{_WITHOUT}; {unknown}")
    delegated = None
    while directory.startswith(point):
        if not (host.writable(directory) and host.writable(f"{directory}/cgroup.procs")):
            break
        delegated = directory
        directory = os.path.dirname(directory)
    if delegated is None:
        detail = f"{_WITHOUT}; version 2, but {own} is not delegated to this user"
        return warned(name, detail, _how_to_get_one(host, point))
    given = _controllers(host, delegated)
    had = [controller for controller in (*_WANTED, "io") if controller in given]
    held = f"cgroup v2 holds {_held(host, had)}" if "memory" in had else _WITHOUT
    lacking = [controller for controller in _WANTED if controller not in had]
    if lacking:
        systemd = host.exists("/run/systemd/system")
        fix = host.sudo(_DELEGATE) if systemd else None
        return warned(name, f"{held}; delegated from {delegated} without {', '.join(lacking)}", fix)
    return passed(name, f"{held}; delegated from {delegated}")


def _how_to_get_one(host: Host, point: str) -> str | None:
    """How this user gets a cgroup of version 2: from systemd, or from root at the top of all."""
    if host.uid != 0 and host.exists("/run/systemd/system"):
        return _SCOPE
    # The root of a container's part of the hierarchy has a type, and processes, so it gives no controllers.
    if host.uid == 0 or host.exists(f"{point}/cgroup.type"):
        return None
    offered = [name for name in ("cpu", "io", "memory", "pids") if name in _controllers(host, point)]
    give = " ".join(f"+{name}" for name in offered)
    enable = f"sh -c 'echo \"{give}\" >{point}/cgroup.subtree_control'"
    return f"{host.sudo(enable)} && {_hand_over(host, [point], 'cgroup.subtree_control', 'cgroup.threads')}"


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
