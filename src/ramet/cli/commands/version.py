"""`ramet version`."""

import json
import platform

import typer

from ramet._version import __version__


def version(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> None:
    """Show the versions of Ramet and of the Python that runs it."""
    if as_json:
        print(json.dumps({"version": __version__, "python": platform.python_version()}))
    else:
        print(f"ramet {__version__} (Python {platform.python_version()})")
