"""Which commands there are: the name of each, where it is, and the first line of its help."""

from __future__ import annotations

from ramet.cli._command import Converted, Group, Later, LocalCommand, RunCommand

__all__ = ["COMMANDS"]

_LS = Later("ls", "sandbox:ls", "List the sandboxes that stay.")
_KILL = Later("kill", "sandbox:kill", "End sandboxes, and return when they have ended.")

_DAEMON = (
    Later("start", "daemon:start", "Start the daemon, if it is not running yet.", LocalCommand),
    Later(
        "stop",
        "daemon:stop",
        "End the daemon, and with it every sandbox; return when all of it is gone.",
        LocalCommand,
    ),
    Later(
        "upgrade",
        "daemon:upgrade",
        "Have a daemon of this version take over from the one that runs, "
        "with the sandboxes that are detached.",
        LocalCommand,
    ),
    Later(
        "status",
        "daemon:own_status",
        "Show the daemon of this machine as ramet status does, whatever server is asked otherwise.",
        LocalCommand,
    ),
)
_ROOT = (
    Later(
        "build",
        "root:build",
        "Make a root directory that holds a few programs and exactly what they need.",
        LocalCommand,
    ),
)
_SANDBOX = (
    Later(
        "create",
        "sandbox:create",
        "Start a command in a sandbox that stays, and print the sandbox's id.",
        RunCommand,
    ),
    _LS,
    _KILL,
    Later(
        "cp",
        "files:cp",
        "Copy files and directories into a sandbox or out of it: one of the two is SANDBOX:PATH.",
    ),
    Later("diff", "files:diff", "Show which files changed since a sandbox was made or forked."),
    Later(
        "commit",
        "files:commit",
        "Do to the files of TARGET what was done to those of SANDBOX since it was forked.",
    ),
    Later(
        "export",
        "files:export",
        "Copy a sandbox's workspace, with what was done to it, to a new directory of this host.",
    ),
    Later(
        "rollback",
        "snapshot:rollback",
        "Have a detached sandbox be again as it was in a snapshot, under the same id.",
    ),
    Later(
        "promote",
        "snapshot:promote",
        "Have a detached fork take the place of the sandbox that it was forked from, under that one's id.",
    ),
    Later(
        "pause",
        "snapshot:pause",
        "Keep a sandbox's state under a name, and end it; ramet sandbox resume goes on from there.",
    ),
    Later(
        "resume",
        "snapshot:resume",
        "Go on from where a sandbox was paused, under its name, and print the new id.",
    ),
    Later(
        "forward",
        "ports:forward",
        "Listen on a port of this machine and pass connections on into a sandbox, until interrupted.",
    ),
    Later("stats", "sandbox:stats", "Show what a sandbox uses at the moment."),
    Later("shell", "shell:shell", "Open a terminal in a sandbox, with a shell.", RunCommand),
    Later(
        "ps",
        "processes:ps",
        "List the commands of a sandbox: those that run, and those that ended in the last minutes.",
    ),
    Later(
        "attach",
        "processes:attach",
        "Show what a command writes, from its beginning, until it ends; the exit code is its own.",
    ),
    Later(
        "signal",
        "processes:send_signal",
        "Send a command a signal. KILL reaches every process of it, wherever it went.",
    ),
)
_SNAPSHOT = (
    Later("create", "snapshot:create", "Keep the state of a running sandbox under a name; it runs on."),
    Later("ls", "snapshot:ls", "List the snapshots."),
    Later("rm", "snapshot:rm", "Forget snapshots; what was forked from them goes on."),
)
_TEMPLATE = (
    Later("build", "template:build", "Build a template: start a kernel, fill it, warm it up, keep it."),
    Later("ls", "template:ls", "List the templates that are built."),
    Later("show", "template:show", "Tell all of one template, with the log of its build."),
    Later("rm", "template:rm", "Forget templates; what was forked from them goes on."),
)

COMMANDS = (
    Later("run", "run:run", "Run a command in a sandbox made for it and gone after it.", RunCommand),
    Later(
        "doctor",
        "doctor:doctor",
        "Check this machine, and show the one command that mends each thing it lacks.",
    ),
    Later(
        "quickstart",
        "quickstart:quickstart",
        "Run five untrusted programs, show what each of them got, and fork a Python a hundred times.",
    ),
    Later(
        "status",
        "daemon:status",
        "Show the daemon and its core, without starting them. The exit code is 3 when none is running.",
    ),
    Later(
        "bench",
        "bench:bench",
        "Measure what Ramet promises on this machine, and show each number beside its bound.",
    ),
    Later(
        "serve",
        "serve:serve",
        "Serve sandboxes over HTTP: forkd's REST v1 and more. Needs `pip install 'ramet[server]'`.",
        Converted,
    ),
    Later(
        "drain",
        "drain:drain",
        "Have a server take no more sandboxes, wait until all have ended, "
        "and end what is left at the deadline.",
        LocalCommand,
    ),
    Later(
        "version",
        "version:version",
        "Show the versions of Ramet and of the Python that runs it.",
        LocalCommand,
    ),
    Later(
        "fork", "sandbox:fork", "Fork a running sandbox, or a snapshot, and print the ids of the children."
    ),
    _LS,
    _KILL,
    Later(
        "events",
        "events:events",
        "Show what befalls sandboxes and snapshots, from now on or from an earlier place.",
    ),
    Later("exec", "processes:exec_", "Run a command in a sandbox that stays.", RunCommand),
    Later(
        "logs",
        "processes:logs",
        "Show what a command has written, also when it has ended or others read it too.",
    ),
    Later("spawn", "forkd:spawn", "Fork a snapshot or template, and print the ids of the children."),
    Later(
        "ping",
        "processes:ping",
        "Ask who speaks forkd's guest protocol at an address, $FORKD_TARGET by default.",
        LocalCommand,
    ),
    Later(
        "eval",
        "forkd:eval_",
        "Run code in the kernel of a detached sandbox, which keeps its state from one call to the next.",
    ),
    Later("rmi", "forkd:rmi", "Forget snapshots and templates; what was forked from them goes on."),
    Later("snapshot-info", "forkd:snapshot_info", "Tell all of one snapshot."),
    Later(
        "snapshot-compact",
        "forkd:snapshot_compact",
        "Have a snapshot build upon no other, so that its ancestors can be removed.",
    ),
    Later("pack", "pack:pack", "Write a snapshot, with all that it builds upon, into one file."),
    Later("unpack", "pack:unpack", "Make a snapshot of what ramet pack wrote, here or on another machine."),
    Later(
        "completion",
        "completion:completion",
        "Print a script that has a shell complete words of ramet.",
        LocalCommand,
    ),
    Group(name="daemon", help="The daemon of this user; it starts by itself when needed.", commands=_DAEMON),
    Group(name="root", help="Roots: what a sandbox sees as /.", commands=_ROOT),
    Group(
        name="sandbox",
        help="Sandboxes that stay until their command ends, or nobody asks for them.",
        commands=_SANDBOX,
    ),
    Group(name="snapshot", help="States of sandboxes, kept to be forked.", commands=_SNAPSHOT),
    Group(name="template", help="Warm kernels, kept to be forked.", commands=_TEMPLATE),
)
