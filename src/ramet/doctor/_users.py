"""Subordinate ids: what a sandbox needs to have more than one user."""

import os
import stat

from ramet.doctor._host import Host
from ramet.doctor._model import Check, passed, warned
from ramet.native.ids import HELPER_DIRECTORIES, RANGE, subordinate_range

__all__ = ["check_subuids"]

_FIRST = 100000
_HELPERS = ("newuidmap", "newgidmap")
_PACKAGES = (
    ("/usr/bin/apt-get", "apt-get install -y uidmap"),
    ("/usr/bin/dnf", "dnf install -y shadow-utils"),
    ("/usr/bin/zypper", "zypper install -y shadow"),
    ("/usr/bin/pacman", "pacman -S --noconfirm shadow"),
    ("/sbin/apk", "apk add shadow-subids"),
)
_CONSEQUENCE = "sandboxes have one user only (single_uid)"


def check_subuids(host: Host) -> Check:
    name = "subuids"
    if host.uid == 0:
        return passed(name, "started as root: sandboxes get an unused high range of ids")
    names = {host.user, str(host.uid)}
    missing = [
        path for path in ("/etc/subuid", "/etc/subgid") if subordinate_range(host.path(path), names) is None
    ]
    if missing:
        first = _free_range(host)
        last = first + RANGE - 1
        fix = f"usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {host.user}"
        return warned(
            name, f"{' and '.join(missing)} give {host.user} no ids: {_CONSEQUENCE}", host.sudo(fix)
        )
    if host.status_field("NoNewPrivs") == "1":
        return warned(name, f"no_new_privs is set, which takes newuidmap its rights: {_CONSEQUENCE}")
    faults = {helper: _fault(host, helper) for helper in _HELPERS}
    broken = [f"{helper} {fault}" for helper, fault in faults.items() if fault]
    if broken:
        return warned(name, f"{'; '.join(broken)}: {_CONSEQUENCE}", _repair(host, faults))
    count = (subordinate_range(host.path("/etc/subuid"), names) or (0, 0))[1]
    return passed(name, f"{count} ids for {host.user}")


def _free_range(host: Host) -> int:
    """The first id above every range that is given to anyone."""
    end = _FIRST
    for path in ("/etc/subuid", "/etc/subgid"):
        for line in (host.text(path) or "").splitlines():
            numbers = line.split(":")[1:]
            if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
                end = max(end, int(numbers[0]) + int(numbers[1]))
    return end


def _fault(host: Host, helper: str) -> str | None:
    """What is wrong with a helper, by the first of it that there is."""
    for directory in HELPER_DIRECTORIES:
        path = host.path(f"{directory}/{helper}")
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        if mode & stat.S_ISUID:
            return None
        try:
            capable = bool(os.getxattr(path, "security.capability"))
        except OSError:
            capable = False
        return None if capable else "is neither set-user-id nor has it a file capability"
    return "is not installed"


def _repair(host: Host, faults: dict[str, str | None]) -> str | None:
    if "is not installed" in faults.values():
        return next((host.sudo(command) for tool, command in _PACKAGES if host.exists(tool)), None)
    broken = [helper for helper, fault in faults.items() if fault]
    places = [
        next(
            f"{directory}/{helper}"
            for directory in HELPER_DIRECTORIES
            if host.exists(f"{directory}/{helper}")
        )
        for helper in broken
    ]
    return host.sudo(f"chmod u+s {' '.join(places)}")
