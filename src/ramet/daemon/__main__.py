"""The daemon as a program: ``python -P .../ramet/daemon/__main__.py --runtime-dir DIR [--ready FD]``.

Clients run it by path, so that it is of the same installation as they are wherever that was imported from.
With ``--ready`` it detaches: the process that was started ends at once, and its child says ``ready`` on the
descriptor, or what went wrong as JSON. Without, it stays in the foreground (for a service manager or a
debugger).
"""

from __future__ import annotations

import os
import sys


def _import_own_package() -> None:
    """Import `ramet` from where this file is.

    Its parent goes to the end of the search path afterwards: site-packages at the front would shadow the
    standard library.
    """
    parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, parent)
    import ramet  # noqa: F401

    sys.path.remove(parent)
    if parent not in sys.path:
        sys.path.append(parent)


def main() -> None:
    """Read the options, detach, and serve until the end."""
    import argparse

    parser = argparse.ArgumentParser(prog="ramet-daemon", description="serve the sandboxes of one user")
    parser.add_argument("--runtime-dir", help="where to meet clients; by default the user's own place")
    parser.add_argument("--ready", type=int, metavar="FD", help="detach, and tell FD how the start went")
    parser.add_argument(
        "--idle", type=float, metavar="S", help="end after so many idle seconds (default: 900)"
    )
    parser.add_argument("--data", metavar="DIR", help="where snapshots are; by default the user's own place")
    options = parser.parse_args()
    if options.ready is not None:
        detach(options.ready)
    from ramet.daemon.lifespan import serve

    sys.exit(serve(options.runtime_dir, ready=options.ready, idle_s=options.idle, data=options.data))


def detach(ready: int) -> None:
    """Leave the session, the directory and the terminal of the caller, whose process ends here."""
    os.set_inheritable(ready, False)  # noqa: FBT003
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)


if __name__ == "__main__":
    _import_own_package()
    main()
