"""`ramet sandbox cp|diff|commit`: files of sandboxes that stay."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import posixpath
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import typer

from ramet.cli._progress import working
from ramet.cli._streams import passing_on, writer
from ramet.errors import FileError, InvalidRequest

if TYPE_CHECKING:
    from ramet.client import Files
    from ramet.models.differences import Difference
    from ramet.models.files import Change, OnConflict

STREAM = "-"
JSON = typer.Option(False, "--json", help="Print one JSON object.")


def cp(
    source: str | None = typer.Argument(None, metavar="FROM", help="A path, or SANDBOX:PATH."),
    target: str | None = typer.Argument(None, metavar="TO", help="A path, or SANDBOX:PATH."),
    as_json: bool = JSON,
) -> int:
    """Copy files and directories into a sandbox or out of it: one of the two is SANDBOX:PATH.

    Into a directory that is there, or a TO that ends in /, it is copied under its name, as cp does. What is
    copied to this host must not be there yet. With - in the place of the host's path it is a tar stream: from
    standard input, unpacked in the directory PATH, or to standard output.
    """
    if source is None or target is None:
        raise InvalidRequest.of("path", "two are needed: from where, and to where")
    inside, outside = _parted(source), _parted(target)
    if (inside is None) == (outside is None):
        raise InvalidRequest.of("path", "one of the two has to be SANDBOX:PATH")
    if inside is not None and target == STREAM:
        return passing_on(lambda: _stream_out(*inside, as_json=as_json))
    with working(f"copying {'standard input' if source == STREAM else source}"):
        if inside is not None:
            count = _download(*inside, target)
        else:
            assert outside is not None  # noqa: S101  one of them is
            count = _upload(source, *outside)
    if as_json:
        print(json.dumps({"files": count}))
    return 0


def _download(sandbox: str, path: str, target: str) -> int:
    if target.endswith("/") or os.path.isdir(target):
        target = _under(target, path)
    return _files(sandbox).download(path, target)


def _under(directory: str, path: str) -> str:
    """Where `path` goes in `directory`: under its name, and if it has none, as that directory."""
    name = posixpath.basename(path.rstrip("/"))
    return directory if name in {"", ".", ".."} else f"{directory.rstrip('/')}/{name}"


def _stream_out(sandbox: str, path: str, *, as_json: bool) -> int:
    if as_json:
        raise InvalidRequest.of("json", "would be in the middle of the tar stream")
    if os.isatty(1):
        raise InvalidRequest.of(
            "path", "a tar stream is not for a terminal", hint="send it to a file, or to tar x"
        )
    write = writer(1)
    for piece in _files(sandbox).download_tar(path):
        write(piece)
    return 0


def _upload(source: str, sandbox: str, path: str) -> int:
    files = _files(sandbox)
    if source != STREAM:
        if path.endswith("/") or _is_directory(files, path):
            path = _under(path, source)
        return files.upload(source, path)
    if os.isatty(0):
        raise InvalidRequest.of(
            "path", "no tar stream comes from a terminal", hint="tar c . | ramet sandbox cp - …"
        )
    with open(0, "rb", closefd=False) as stream:
        return files.upload_tar(stream, path)


def _is_directory(files: Files, path: str) -> bool:
    """Whether it is one in the sandbox, or a link to one."""
    with contextlib.suppress(FileError):
        return files.stat(f"{path}/.").is_dir
    return False


def export(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name."),
    local: str | None = typer.Argument(None, metavar="DIRECTORY", help="Where to: what is not there yet."),
    path: str | None = typer.Option(
        None, "--path", metavar="PATH", help="What to copy. Default: its workspace, or else its home."
    ),
    as_json: bool = JSON,
) -> int:
    """Copy a sandbox's workspace, with what was done to it, to a new directory of this host."""
    if sandbox is None or local is None:
        raise InvalidRequest.of("sandbox" if sandbox is None else "directory", "is missing")
    with working(f"copying to {local}"):
        count = _files(sandbox).export(local, path)
    print(json.dumps({"files": count}) if as_json else f"{count} files")
    return 0


def diff(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name."),
    other: str | None = typer.Argument(None, metavar="OTHER", help="Another one, to compare it with."),
    path: str = typer.Option("/", "--path", metavar="PATH", help="Only what is below this directory."),
    git: bool = typer.Option(False, "--git", help="As a patch for git apply, with names below --path."),
    as_json: bool = JSON,
) -> int:
    """Show which files changed since a sandbox was made or forked.

    With OTHER: which files and processes are otherwise in SANDBOX than in OTHER.
    """
    if sandbox is None:
        raise InvalidRequest.of("sandbox", "is missing: which one")
    files = _files(sandbox)
    if other is not None:
        if git:
            raise InvalidRequest.of("git", "is for changes of one sandbox alone")
        _tell_difference(files.compare(_files(other)), files.absolute(path), as_json=as_json)
        return 0
    if git:
        sys.stdout.buffer.write(files.patch(path))
        sys.stdout.buffer.flush()
        return 0
    _tell(_below(files.absolute(path), files.diff()), as_json=as_json)
    return 0


def _below(path: str, changes: Iterable[Change]) -> list[Change]:
    base = path.rstrip("/") + "/"
    return [one for one in changes if one.path.startswith(base)]


def _tell_difference(found: Difference, path: str, *, as_json: bool) -> None:
    found = dataclasses.replace(found, files=tuple(_below(path, found.files)))
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    _tell(found.files, as_json=False)
    for one in found.processes:
        shown = one.now or one.was
        assert shown is not None  # noqa: S101  it is in one of the two
        words = " ".join(shown.command or (f"[{shown.name}]",)).replace("\n", " ")
        print(f"{one.change:<9} process {one.pid}: {words:.60}")


def commit(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="Whose files, by its id or name."),
    target: str | None = typer.Argument(None, metavar="TARGET", help="The sandbox that is to have them."),
    on_conflict: str = typer.Option(
        "refuse", "--on-conflict", metavar="WHAT", help="refuse, overwrite, or keep what TARGET did."
    ),
    as_json: bool = JSON,
) -> int:
    """Do to the files of TARGET what was done to those of SANDBOX since it was forked."""
    for value, name in ((sandbox, "sandbox"), (target, "target")):
        if value is None:
            raise InvalidRequest.of(name, "is missing: whose files, and who is to have them")
    changes = _files(str(sandbox)).commit_to(_files(str(target)), on_conflict=cast("OnConflict", on_conflict))
    _tell(changes, as_json=as_json)
    return 0


def _tell(changes: Iterable[Change], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"changes": [one.to_dict() for one in changes]}))
    else:
        for one in changes:
            print(f"{one.change:<9} {one.path}")


def _parted(text: str) -> tuple[str, str] | None:
    """Sandbox and path; None for a path of this host, which has a slash before any colon."""
    name, colon, path = text.partition(":")
    return (name, path or ".") if colon and name and "/" not in name else None


def _files(sandbox: str) -> Files:
    from ramet.client import Commands
    from ramet.client import Files as Those

    return Those(Commands(sandbox))
