"""The checks in the order in which they are shown: what everything stands on first."""

from collections.abc import Callable

from ramet.doctor import _cgroups, _container, _kernel, _namespaces, _program, _resources, _runtime, _users
from ramet.doctor._host import Host
from ramet.doctor._model import Check, failed

__all__ = ["CHECKS", "run_checks"]

CHECKS: tuple[tuple[str, Callable[[Host], Check]], ...] = (
    ("kernel", _kernel.check_kernel),
    ("architecture", _kernel.check_architecture),
    ("program", _program.check_program),
    ("user-namespaces", _namespaces.check_user_namespaces),
    ("apparmor", _namespaces.check_apparmor),
    ("namespaces", _namespaces.check_namespaces),
    ("overlay", _namespaces.check_overlay),
    ("seccomp", _kernel.check_seccomp),
    ("kernel-features", _kernel.check_features),
    ("container", _container.check_container),
    ("subuids", _users.check_subuids),
    ("limits", _namespaces.check_limits),
    ("cgroups", _cgroups.check_cgroups),
    ("runtime-directory", _runtime.check_runtime_directory),
    ("default-root", _program.check_default_root),
    ("memory", _resources.check_memory),
    ("disk", _resources.check_disk),
)


def run_checks(
    host: Host | None = None, checks: tuple[tuple[str, Callable[[Host], Check]], ...] = CHECKS
) -> list[Check]:
    """Look at `host`, by default this machine. Every check answers, also one that is itself broken."""
    host = host or Host.here()
    return [_isolated(name, check, host) for name, check in checks]


def _isolated(name: str, check: Callable[[Host], Check], host: Host) -> Check:
    try:
        return check(host)
    except Exception as error:  # noqa: BLE001 -- a defect of one check must not hide the others
        return failed(name, f"the check itself broke: {type(error).__name__}: {error}")
