"""The directory in which clients and daemon of this user meet."""

import os
import shlex

from ramet.doctor._host import Host
from ramet.doctor._model import Check, failed, passed
from ramet.wire.places import fault_of, runtime_path

__all__ = ["check_runtime_directory"]

_OWN = 'mkdir -pm 700 "$HOME/.ramet-run" && export RAMET_RUNTIME_DIR="$HOME/.ramet-run"'


def check_runtime_directory(host: Host) -> Check:
    """Whether a daemon can be met there: no other user may be able to put another in its place."""
    name = "runtime-directory"
    path = runtime_path(host.environment, host.uid)
    try:
        status = os.lstat(host.path(path))
    except FileNotFoundError:
        return _judge_parent(host, path)
    except OSError as error:
        return failed(name, f"{path} cannot be looked at: {error.strerror}", _OWN)
    fault = fault_of(status, host.uid)
    if fault is None:
        return passed(name, path)
    mend = f"chmod 700 {shlex.quote(path)}" if "mode" in fault else _OWN
    return failed(name, f"{path} {fault}: no daemon is started or asked there", mend)


def _judge_parent(host: Host, path: str) -> Check:
    """A daemon makes the directory, and none above it."""
    parent = os.path.dirname(path)
    if not os.path.isdir(host.path(parent)):
        return failed("runtime-directory", f"{path} cannot be made: there is no {parent}", _OWN)
    if not os.access(host.path(parent), os.W_OK | os.X_OK):
        return failed("runtime-directory", f"{path} cannot be made: {parent} is closed to this user", _OWN)
    return passed("runtime-directory", f"{path}, made by the first daemon")
