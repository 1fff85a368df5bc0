# Generated from _async/templates.py by scripts/unasync.py. Do not edit.
"""Templates: kernels that are warm, kept as snapshots.

A built-in one is made on its first use and kept under a name that tells of its inputs, so that two versions
of an interpreter have one each.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramet.client._backends._sync import in_thread, poll
from ramet.client._packages import SITE, download, fingerprint, own_packages, pack
from ramet.client._start import base_interpreter, interpreter
from ramet.client._sync.api import current
from ramet.client._sync.client import Client
from ramet.client._sync.sandbox import Sandbox
from ramet.errors import DaemonLost, InvalidRequest, TemplateError, Unforkable
from ramet.kernels import get as get_kernel
from ramet.models.names import check_name, check_text, near
from ramet.models.runs import Python
from ramet.models.snapshots import BUILT_IN, Snapshot, SnapshotList, SnapshotName
from ramet.models.templates import KEY, Recipe, Template

LOG_MAX = 65536
WARM_TIMEOUT_S = 600.0
KEEPING_S = 30.0
BUILD_PATIENCE_S = 1800.0
# What the first piece of code would else import.
_WARM = {"python": "import json, re, asyncio, traceback, textwrap, collections, math, random, time"}
# Else the first collection in each child, due at any moment, would write into every page with an object.
_SETTLE = {"python": "__import__('gc').collect(); __import__('gc').freeze()"}
_UNPACK = {
    "python": "import tarfile as _t\n"
    "with open(0, 'rb', closefd=False) as _f, _t.open(fileobj=_f, mode='r|') as _a:\n"
    "    _a.extractall('/')\ndel _t, _f, _a",
    "bash": "tar -xf - -C /",
    "node": "require('child_process')"
    ".execFileSync('tar', ['-xf', '-', '-C', '/'], {stdio: ['inherit', 1, 2]}); 0",
}


def ensure(name: str, client: Client, *, fresh: bool = False) -> str:
    """The snapshot of the built-in template `name`, built if it is not there; with `fresh` in any case."""
    known = client.templates.get(name)
    if known is not None and not fresh:
        return known
    kernel = BUILT_IN[name]
    recipe = Recipe.of(kernel=kernel, warm=_WARM.get(kernel))
    python = interpreter()
    kept = f"{kernel}-{recipe.hash(python, '', get_kernel(kernel).source)[:12]}"
    if fresh:
        try:
            client.ask("snapshot.remove", SnapshotName.from_wire({"name": kept}).to_wire())
        except InvalidRequest as error:
            if error.code != "unknown_snapshot":
                raise
    _built(kept, name, recipe, python=python, client=client, progress=lambda _: None)
    client.templates[name] = kept
    return kept


def build(
    name: str,
    from_: str | None = "python",
    *,
    pip: Sequence[str] = (),
    from_venv: bool = False,
    files: Mapping[str, str | bytes] | None = None,
    env: Mapping[str, str] | None = None,
    warm: str | None = None,
    kernel: str = "python",
    warm_children: int = 0,
    on_progress: Callable[[str], object] | None = None,
    client: Client | None = None,
) -> Template:
    """Build a template, or find it built of the same inputs.

    Args:
        name: to be forked by: ``Sandbox(name)``.
        from_: the template that it builds upon; None, or another `kernel` than Python: a fresh kernel.
        pip: requirements, fetched by pip on the host as wheels; nothing of them runs there.
        from_venv: take the packages of the caller's virtual environment, without any download.
        files: contents by absolute path.
        env: variables of the kernel's environment.
        warm: code that the kernel runs before it is kept.
        kernel: the language.
        warm_children: how many children are kept forked ahead.
        on_progress: called with each thing that begins.
        client: whose daemon to use; by default the user's own.

    Raises:
        InvalidRequest: an argument is wrong, `name` is another template's or snapshot's.
        TemplateError: a step failed: the message has the guest's traceback, `log` all that it wrote.
    """
    asked = client or current()
    if kernel != "python" and from_ == "python":
        from_ = None
    if from_ in BUILT_IN:
        _check_same(from_, BUILT_IN[from_], kernel)
    recipe = Recipe.of(
        kernel=kernel,
        source=None if from_ in BUILT_IN else from_,
        pip=pip,
        from_venv=from_venv,
        files=files,
        env=env,
        warm=warm,
        warm_children=warm_children,
    )
    if check_name(check_text(name, "name")) in BUILT_IN:
        raise InvalidRequest.of("name", f"{name!r} is a built-in template", code="name_taken")
    if asked.remote is not None:
        return _built_there(name, recipe, from_, asked)
    python = base_interpreter() if recipe.from_venv or recipe.pip else interpreter()
    return _built(name, name, recipe, python=python, client=asked, progress=on_progress or (lambda _: None))


def _built_there(name: str, recipe: Recipe, source: str | None, client: Client) -> Template:
    """Have a server build it, of what it has; it tells nothing before the end."""
    if recipe.from_venv:
        raise InvalidRequest.of(
            "from_venv", "is of this machine's packages, and the server has its own", code="not_remote",
            hint="pip= names packages that the server fetches",
        )  # fmt: skip
    asked = {
        "name": name,
        "from": source,
        "pip": list(recipe.pip),
        "files": dict(recipe.files),
        "env": dict(recipe.env),
        "warm": recipe.warm,
        "kernel": recipe.kernel,
        "warm_children": recipe.warm_children,
    }
    told = client.ask("template.build", asked, patience=BUILD_PATIENCE_S)
    template = Template.from_snapshot(Snapshot.from_wire(told))
    if template is None:
        raise DaemonLost("malformed", "the server answered without a template")
    return template


def all_built(*, client: Client | None = None) -> tuple[Template, ...]:
    """All that are built, by name."""
    told = SnapshotList.from_wire((client or current()).ask("snapshot.list")).snapshots
    found = [Template.from_snapshot(one) for one in told]
    return tuple([one for one in found if one is not None])


def get(name: str, *, client: Client | None = None) -> Template:
    """The template of that name. Raises InvalidRequest with near names when there is none."""
    known = all_built(client=client)
    for one in known:
        if name in {one.name, one.snapshot.name}:
            return one
    names = [one.name for one in known] + [*BUILT_IN]
    hint = near(name, names)
    raise InvalidRequest.of("template", f"there is no template {name!r}", code="not_found", hint=hint)


def remove(name: str, *, client: Client | None = None) -> Template:
    """Forget one; what was forked from it goes on. A built-in one is built again when it is next used."""
    template = get(name, client=client)
    request = SnapshotName.from_wire({"name": template.snapshot.name})
    (client or current()).ask("snapshot.remove", request.to_wire())
    return template


def _built(
    kept: str,
    name: str,
    recipe: Recipe,
    *,
    python: Python | None,
    client: Client,
    progress: Callable[[str], object],
) -> Template:
    source = "" if recipe.source is None else _content_of(recipe.source, recipe.kernel, client)
    packages = in_thread(lambda: fingerprint(own_packages())) if recipe.from_venv else None
    wanted = recipe.hash(python, source, get_kernel(recipe.kernel).source, packages)
    found = _find(kept, client)
    if found is not None:
        template = Template.from_snapshot(found)
        if template is not None and template.hash == wanted and found.damage is None:
            return template
        if template is None:
            raise InvalidRequest.of("name", f"there is a snapshot {kept!r} already", code="name_taken")
        client.ask("snapshot.remove", SnapshotName.from_wire({"name": kept}).to_wire())
    build = _Build(kept, name, recipe, python=python, wanted=wanted, client=client, progress=progress)
    return build.run()


def _find(name: str, client: Client) -> Snapshot | None:
    told = SnapshotList.from_wire(client.ask("snapshot.list")).snapshots
    return next((one for one in told if one.name == name), None)


def _check_same(source: str, its: str | None, kernel: str) -> None:
    if its is None:
        raise InvalidRequest.of("from_", f"{source!r} has no kernel, and a template has one")
    if its != kernel:
        text = f"{source!r} has the kernel {its}, and what builds upon it has that too"
        raise InvalidRequest.of("from_", text, hint=f"give kernel={its!r}")


def _content_of(source: str, kernel: str, client: Client) -> str:
    found = _find(source, client)
    if found is None:
        told = SnapshotList.from_wire(client.ask("snapshot.list")).snapshots
        hint = near(source, [*BUILT_IN, *[one.name for one in told]])
        raise InvalidRequest.of("from_", f"there is no template {source!r}", code="not_found", hint=hint)
    _check_same(source, found.kernel and found.kernel.name, kernel)
    template = Template.from_snapshot(found)
    return f"{found.created}" if template is None else f"{template.hash} {found.created}"


class _Build:
    """One build."""

    def __init__(
        self,
        kept: str,
        name: str,
        recipe: Recipe,
        *,
        python: Python | None,
        wanted: str,
        client: Client,
        progress: Callable[[str], object],
    ) -> None:
        self._kept = kept
        self._name = name
        self._recipe = recipe
        self._python = python
        self._wanted = wanted
        self._client = client
        self._progress = progress
        self._log: list[str] = []
        self._began = time.perf_counter()

    def run(self) -> Template:
        recipe = self._recipe
        self._say(f"starting {recipe.kernel if recipe.source is None else recipe.source}")
        with self._start() as sandbox:
            self._unpack(sandbox)
            if recipe.warm is not None:
                self._say("warming up")
                self._run(sandbox, recipe.warm, "warm")
            settling = _SETTLE.get(recipe.kernel)
            if settling is not None:
                self._run(sandbox, settling, "warm")
            self._say("keeping it")
            try:
                taken = sandbox.snapshot(self._kept, metadata={KEY: self._told()})
            except InvalidRequest as error:
                found = self._of_another() if error.code == "name_taken" else None
                if found is None:
                    raise
                taken = found
            except Unforkable as error:
                text = f"warm: it cannot be kept: {error.message}"
                raise TemplateError("template_failed", text, field="warm", log=self._text()) from None
        made = Template.from_snapshot(taken, cached=False)
        assert made is not None  # noqa: S101  it was just said
        return made

    def _of_another(self) -> Snapshot | None:
        """What another has built of the same inputs meanwhile, or is just keeping under this name."""
        deadline = time.monotonic() + KEEPING_S
        with select.epoll() as nothing:
            while time.monotonic() < deadline:
                found = _find(self._kept, self._client)
                if found is not None:
                    built = Template.from_snapshot(found)
                    return found if built is not None and built.hash == self._wanted else None
                poll(nothing, 0.02)
        return None

    def _start(self) -> Sandbox:
        recipe = self._recipe
        if recipe.source is None:
            return Sandbox(
                kernel=recipe.kernel, env=recipe.env or None, python=self._python, client=self._client
            )
        return Sandbox(recipe.source, env=recipe.env or None, client=self._client)

    def _unpack(self, sandbox: Sandbox) -> None:
        recipe = self._recipe
        if not (recipe.pip or recipe.from_venv or recipe.files):
            return
        with contextlib.ExitStack() as using:
            directories = []
            if recipe.from_venv:
                directories.append(own_packages())
            if recipe.pip:
                self._say(f"fetching {', '.join(recipe.pip)}")
                fetched = in_thread(lambda: download(recipe.pip, self._log.append))
                directories.append(using.enter_context(fetched))
            self._say("copying files")
            home = "/home/user"
            data = in_thread(lambda: pack(directories, recipe.files, home))
        unpacking = _UNPACK.get(recipe.kernel)
        if unpacking is None:
            raise InvalidRequest.of("files", f"cannot be given to a kernel of {recipe.kernel}")
        self._run(sandbox, unpacking, "files", stdin=data)
        if directories:
            site = f"{home}/{SITE}"
            code = f"import os as _o, sys as _s\n_s.path.insert(1, {site!r})\n"
            code += f"_o.environ['PYTHONPATH'] = {site!r}\ndel _o, _s"
            self._run(sandbox, code, "pip")

    def _run(self, sandbox: Sandbox, code: str, field: str, *, stdin: bytes | None = None) -> None:
        done = sandbox.run_code(
            code, timeout=WARM_TIMEOUT_S, on_stdout=self._note, on_stderr=self._note, stdin=stdin
        )
        end = sandbox.info.end
        if done.reason == "died" and (end is None or end.reason == "lost"):
            # No fault of the recipe's.
            raise DaemonLost("core_lost", f"core ended while the template {self._name} was built")
        if not done.ok:
            text = f"{field}: {done.error or f'the code ended: {done.reason}, exit code {done.exit_code}'}"
            raise TemplateError("template_failed", text, field=field, log=self._text())

    def _note(self, data: bytes) -> None:
        self._log.append(data.decode(errors="replace"))

    def _say(self, text: str) -> None:
        self._log.append(f"[{time.perf_counter() - self._began:7.3f}] {text}\n")
        self._progress(text)

    def _text(self) -> str:
        return "".join(self._log)[-LOG_MAX:]

    def _told(self) -> dict[str, Any]:
        recipe = self._recipe
        return {
            "name": self._name,
            "kernel": recipe.kernel,
            "hash": self._wanted,
            "source": recipe.source,
            "pip": [*recipe.pip],
            "warm": recipe.warm,
            "warm_children": recipe.warm_children,
            "interpreter": None if self._python is None else self._python.executable,
            "build_ms": round((time.perf_counter() - self._began) * 1e3, 1),
            "log": self._text(),
        }
