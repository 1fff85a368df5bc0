"""Whether this is a container, and what its profile takes away.

Three things of a usual profile stand in the way: a seccomp filter that refuses clone and unshare with
namespace flags, an AppArmor profile that refuses mount, and masks over parts of /proc, with which the
kernel refuses a new /proc (`mnt_already_visible`: it would uncover what they hide).
"""

from ramet.doctor._host import Host
from ramet.doctor._model import Check, failed, passed, warned

__all__ = ["check_container"]

_DOCKER = {
    "seccomp": "--security-opt seccomp=unconfined",
    "apparmor": "--security-opt apparmor=unconfined",
    "proc": "--security-opt systempaths=unconfined",
}
_PODMAN = {
    "seccomp": "--security-opt seccomp=unconfined",
    "apparmor": "--security-opt apparmor=unconfined",
    "proc": "--security-opt unmask=ALL",
}
_KUBERNETES = {
    "seccomp": '"seccompProfile":{"type":"Unconfined"}',
    "apparmor": '"appArmorProfile":{"type":"Unconfined"}',
    "proc": '"procMount":"Unmasked"',
}
_WORDS = {
    "seccomp": "its seccomp filter refuses namespaces",
    "apparmor": "its AppArmor profile refuses mounts",
    "proc": "masked parts of /proc make a new /proc impossible",
}


def check_container(host: Host) -> Check:
    name = "container"
    kind = _kind(host)
    if kind is None:
        return passed(name, "not in a container")
    lacking = _lacking(host)
    if not lacking:
        untried = f" ({host.probe.fault})" if host.probe.fault else ""
        return passed(name, f"in a container ({kind}); its profile lacks nothing that can be seen{untried}")
    detail = f"in a container ({kind}): " + "; ".join(_WORDS[part] for part in lacking)
    fix = _fix(kind, lacking)
    return warned(name, detail, fix) if host.probe.fault else failed(name, detail, fix)


def _kind(host: Host) -> str | None:
    if "KUBERNETES_SERVICE_HOST" in host.environment or host.exists("/run/secrets/kubernetes.io"):
        return "kubernetes"
    if host.exists("/run/.containerenv"):
        return "podman"
    if host.exists("/.dockerenv"):
        return "docker"
    cgroup = host.text("/proc/1/cgroup") or ""
    for mark, kind in (
        ("kubepods", "kubernetes"),
        ("libpod", "podman"),
        ("docker", "docker"),
        ("lxc", "lxc"),
    ):
        if mark in cgroup:
            return kind
    return host.environment.get("container") or None


def _lacking(host: Host) -> list[str]:
    """Which of the three stand in the way: seen directly, and of those only what a probe met."""
    probe = host.probe
    filtered = host.status_field("Seccomp") == "2"
    confined = _is_confined(host)
    # systemd's automount of binfmt_misc lies over an empty directory and hides nothing.
    masked = any(
        mount.point.startswith("/proc/") and mount.point != "/proc/sys/fs/binfmt_misc"
        for mount in host.mounts()
    )
    if probe.fault:
        seen = {"seccomp": filtered, "apparmor": confined, "proc": masked}
        return [part for part, there in seen.items() if there]
    namespaces = bool(probe.refused("userns", "mntns", "pidns", "netns"))
    mounting = bool(
        probe.refused("private-mounts", "tmpfs", "overlay", "overlay-userxattr", "proc", "devpts")
    )
    # After a refused user namespace nothing else could be tried: then all that is seen is named at once.
    blind = bool(probe.refused("userns", "id-map"))
    met = {
        "seccomp": filtered and namespaces,
        "apparmor": confined and (mounting or blind),
        "proc": masked and (probe.ok("proc") is False or blind),
    }
    return [part for part, there in met.items() if there]


def _is_confined(host: Host) -> bool:
    for path in ("/proc/self/attr/apparmor/current", "/proc/self/attr/current"):
        label = (host.text(path) or "").strip("\0\n ")
        # SELinux answers in the same file, with colons.
        if label and ":" not in label:
            return not label.startswith("unconfined")
    return False


def _fix(kind: str, lacking: list[str]) -> str | None:
    if kind == "docker":
        return "docker run " + " ".join(_DOCKER[part] for part in lacking) + " IMAGE"
    if kind == "podman":
        return "podman run " + " ".join(_PODMAN[part] for part in lacking) + " IMAGE"
    if kind != "kubernetes":
        return None
    context = ",".join(_KUBERNETES[part] for part in lacking)
    pod = '"hostUsers":false,' if "proc" in lacking else ""  # procMount is refused without it
    patch = (
        f'{{"spec":{{"template":{{"spec":{{{pod}"containers":[{{"name":"CONTAINER",'
        f'"securityContext":{{{context}}}}}]}}}}}}}}'
    )
    return f"kubectl patch deployment NAME --patch '{patch}'"
