"""What users of docker and e2b type, and how that is said here."""

from __future__ import annotations

__all__ = ["COMMANDS", "OPTIONS"]

COMMANDS = {
    "attach": "ramet sandbox attach SANDBOX NUMBER",
    "build": "ramet template build NAME",
    "commit": "ramet snapshot create SANDBOX NAME; ramet sandbox commit takes files over to another sandbox",
    "connect": "ramet sandbox shell SANDBOX",
    "cp": "ramet sandbox cp",
    "create": "ramet sandbox create COMMAND",
    "diff": "ramet sandbox diff SANDBOX",
    "images": "ramet template ls, and ramet snapshot ls",
    "inspect": "ramet ls --json",
    "list": "ramet ls",
    "pause": "ramet sandbox pause SANDBOX",
    "port": "ramet sandbox forward SANDBOX PORT",
    "ps": "ramet ls lists the sandboxes, and ramet sandbox ps SANDBOX what runs in one",
    "resume": "ramet sandbox resume SNAPSHOT",
    "rm": "ramet kill SANDBOX; ramet rmi NAME forgets a snapshot or template",
    "shell": "ramet sandbox shell SANDBOX",
    "start": "ramet sandbox resume SNAPSHOT; ramet daemon start",
    "stats": "ramet sandbox stats SANDBOX",
    "stop": "ramet kill SANDBOX; ramet daemon stop",
    "top": "ramet sandbox ps SANDBOX",
    "unpause": "ramet sandbox resume SNAPSHOT",
}
"""By a word that is no command."""

_TERMINAL = "ramet sandbox shell SANDBOX opens a terminal"
_FILES = (
    "--workspace DIR takes a copy of a directory along, --tools DIR shows one read-only; "
    "none is shared for writing"
)
OPTIONS = {
    "-t": _TERMINAL,
    "--tty": _TERMINAL,
    "--interactive": "standard input is passed on unless it is a terminal; -i has it passed on always",
    "--rm": "what ramet run makes is gone when it ends",
    "-v": _FILES,
    "--volume": _FILES,
    "--mount": _FILES,
    "-p": "ramet sandbox forward SANDBOX PORT reaches a server in a sandbox",
    "--publish": "ramet sandbox forward SANDBOX PORT reaches a server in a sandbox",
    "-w": "--cwd PATH",
    "--workdir": "--cwd PATH",
}
"""By an option that the command does not have."""
