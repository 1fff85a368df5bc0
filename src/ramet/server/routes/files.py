"""Files of a sandbox: content with ranges, names, what changed."""

from __future__ import annotations

import asyncio
import io
import os
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from ramet.errors import InvalidRequest
from ramet.server import schemas
from ramet.server.faults import Refused
from ramet.server.routes.common import ERRORS, Asker, Json

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", responses=ERRORS, tags=["files"])
CHUNK = 1 << 18
Path = Annotated[str, Query(description="Absolute, or from the sandbox's home on.")]
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The content"},
    206: {"content": {"application/octet-stream": {}}, "description": "A part of the content"},
    416: {"model": schemas.ErrorBody, "description": "No such part"},
}


@router.get("/files/content", response_class=StreamingResponse, responses=CONTENT)
async def read(sandbox_id: str, path: Path, request: Request, tenant: Asker) -> Response:
    """The content of a file, or the part that ``Range`` asks for."""
    file = await (await tenant.files(sandbox_id)).open(path)
    try:
        size = os.fstat(file.fileno()).st_size
        first, last = _part(request.headers.get("range"), size)
    except BaseException:
        file.close()
        raise
    headers = {"accept-ranges": "bytes"}
    status = 200
    if first is not None:
        status = 206
        headers["content-range"] = f"bytes {first}-{last}/{size}"
        headers["content-length"] = str(last - first + 1)
        file.seek(first)
    return StreamingResponse(
        _pieces(file, None if first is None else last - first + 1),
        status,
        headers,
        media_type="application/octet-stream",
    )


def _part(header: str | None, size: int) -> tuple[int | None, int]:
    """First and last byte that are asked for; None for all. What is no range is not heeded (RFC 9110)."""
    match = _RANGE.fullmatch(header or "")
    if match is None or match[1] == match[2] == "":
        return None, 0
    if match[1] == "":
        first, last = max(size - int(match[2]), 0), size - 1
        empty = int(match[2]) == 0
    else:
        first, last = int(match[1]), min(int(match[2] or size - 1), size - 1)
        empty = bool(match[2]) and int(match[2]) < first
        if empty:
            return None, 0
    if empty or first >= size:
        raise Refused(416, "range", f"the file has {size} bytes", field="Range")
    return first, last


async def _pieces(file: io.RawIOBase, most: int | None) -> AsyncIterator[bytes]:
    with file:
        while most is None or most > 0:
            size = CHUNK if most is None else min(CHUNK, most)
            # In a thread: a file on disk blocks, and the server has others to serve.
            piece = await asyncio.to_thread(file.read, size)
            if not piece:
                return
            if most is not None:
                most -= len(piece)
            yield piece


@router.put("/files/content", status_code=201)
async def write(
    sandbox_id: str,
    path: Path,
    request: Request,
    tenant: Asker,
    append: bool = False,
    mode: Annotated[str | None, Query(description="Permissions of a new file, octal.")] = None,
) -> Response:
    """The body is the file's content, whatever its length. Directories above it are made."""
    files = await tenant.files(sandbox_id)
    permissions = 0o644 if mode is None else _octal(mode)
    file = await files.open(path, "ab" if append else "wb", permissions=permissions)
    with file:
        async with tenant.kept(sandbox_id):
            async for piece in request.stream():
                await _write(file, piece, path)
    return Json((await files.stat(path)).to_dict(), 201)


def _octal(text: str) -> int:
    if not re.fullmatch(r"0?o?[0-7]{1,4}", text):
        raise InvalidRequest.of("mode", f"{text[:20]!r} is no octal number of permissions")
    return int(text.removeprefix("0o"), 8)


async def _write(file: io.RawIOBase, piece: bytes, path: str) -> None:
    from ramet.client._files import file_error

    left = memoryview(piece)
    while left:
        try:
            left = left[await asyncio.to_thread(file.write, left) :]
        except OSError as error:
            raise file_error(path, error.errno or 0, f"write: {error.strerror}") from None


@router.delete("/files/content", status_code=204)
async def remove(sandbox_id: str, path: Path, tenant: Asker, recursive: bool = False) -> Response:
    """Remove a file, an empty directory, or with `recursive` all that is in one."""
    await (await tenant.files(sandbox_id)).remove(path, recursive=recursive)
    return Response(status_code=204)


@router.get("/files/stat")
async def stat(sandbox_id: str, path: Path, tenant: Asker, follow: bool = True) -> Response:
    """What is known of a file."""
    return Json((await (await tenant.files(sandbox_id)).stat(path, follow=follow)).to_dict())


@router.get("/files/list")
async def list_directory(
    sandbox_id: str,
    tenant: Asker,
    path: Path = ".",
    depth: Annotated[int, Query(ge=0, le=256)] = 1,
) -> Response:
    """What is in a directory."""
    found = await (await tenant.files(sandbox_id)).list(path, depth=depth)
    return Json([one.to_dict() for one in found])


@router.post("/files/make-dir", status_code=204)
async def make_dir(sandbox_id: str, body: schemas.PathRequest, tenant: Asker) -> Response:
    """Make a directory."""
    files = await tenant.files(sandbox_id)
    await files.make_dir(body.path, parents=body.parents, mode=0o755 if body.mode is None else body.mode)
    return Response(status_code=204)


def _to(body: schemas.PathRequest) -> str:
    if body.to is None:
        raise Refused(422, "missing", "to: missing", field="to")
    return body.to


@router.post("/files/rename", status_code=204)
async def rename(sandbox_id: str, body: schemas.PathRequest, tenant: Asker) -> Response:
    """Give a file another name or place."""
    await (await tenant.files(sandbox_id)).rename(body.path, _to(body), replace=body.replace)
    return Response(status_code=204)


@router.post("/files/copy", status_code=204)
async def copy(sandbox_id: str, body: schemas.PathRequest, tenant: Asker) -> Response:
    """Copy a file, or with `recursive` a directory."""
    files = await tenant.files(sandbox_id)
    await files.copy(body.path, _to(body), recursive=body.recursive, replace=body.replace)
    return Response(status_code=204)


@router.post("/files/symlink", status_code=204)
async def symlink(sandbox_id: str, body: schemas.PathRequest, tenant: Asker) -> Response:
    """Make a link at `path` that says `to`."""
    await (await tenant.files(sandbox_id)).symlink(body.path, _to(body))
    return Response(status_code=204)


@router.get("/diff")
async def diff(sandbox_id: str, tenant: Asker) -> Response:
    """The files that are otherwise than when it was made, or forked."""
    return Json([one.to_dict() for one in await (await tenant.files(sandbox_id)).diff()])


@router.get("/patch", response_class=Response, responses={200: {"content": {"text/x-diff": {}}}})
async def patch(sandbox_id: str, tenant: Asker, path: Path = "/") -> Response:
    """The same as a patch that ``git apply`` takes."""
    return Response(await (await tenant.files(sandbox_id)).patch(path), media_type="text/x-diff")
