"""The Python kernel: runs cells in a sandbox and keeps their state. docs/reference/kernels.md: its contract.

One file, however long: it is sent over the channel into roots in which nothing of ours is installed. It needs
the standard library of CPython 3.9 or later, and imports little of it, because each page it touches is a page
of every fork.

A fork of the sandbox is no fork(2). Pid, threads and memory go on, and only the channel and the pipes are
others. So no fork hook of CPython fires, and those of `threading` must not: its threads are alive.
"""

from __future__ import annotations

import _socket
import ast
import builtins
import contextlib
import fcntl
import functools
import json
import linecache
import os
import re
import signal
import sys
import threading
import time
import traceback
import types
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["StdinNotImplementedError", "UsageError", "display", "epoch", "on_fork", "sandbox", "seed"]

FILENAME = "<ramet_kernel>"
PACKET = 1 << 15
MORE, FIRST = 1, 2
REQUEST_MAX = 1 << 26
NAME_MAX = 1 << 10
NAMED_MAX = 1 << 8
TEXT_MAX = 1 << 20
DATA_MAX = 1 << 24
SOURCES_MAX = 1 << 25
CHANNEL_CLOSED = 113
"""Exit code when a cell has closed the channel: nobody can be told otherwise."""

_FUTURES = 0x1FF0000
_COROUTINE = 0x80
_ASYNC_GENERATOR = 0x200
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
# Names of the kernel's own for what it cannot be without: code may put anything in their places.
_quote = json.encoder.encode_basestring_ascii
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
# By position: no circles are looked for, repr for what is unknown, no indent; unsorted, no key skipped, NaN.
_chunks: Any = sys.modules["_json"].make_encoder(None, repr, _quote, None, ":", ",", 0, 0, 1)
_read, _write, _getpid, _exit = os.read, os.write, os.getpid, os._exit
_get_limit, _set_limit = sys.getrecursionlimit, sys.setrecursionlimit
_sources = linecache.cache
# Below signal.getsignal(), which makes an enum of each answer.
_getsignal: Callable[[int], Any] = sys.modules["_signal"].getsignal
_setsignal: Callable[[int, Any], Any] = sys.modules["_signal"].signal
_SIGINT, _SIGURG = int(signal.SIGINT), int(signal.SIGURG)
_type_name = type.__dict__["__name__"].__get__
_plain = str.__str__
"""An exact str, also of a subclass, whose methods are the code's."""
_PLAIN = frozenset({int, float, str, bytes, bool, list, tuple, dict, set, frozenset, complex, type})


def _encode(value: Any) -> str:
    return "".join(_chunks(value, 0))


def _decode(text: str) -> Any:
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than JSON")
    return value


class StdinNotImplementedError(NotImplementedError):
    """The code asked for input, and nobody is there to type it."""


class UsageError(Exception):
    """A magic was used wrongly."""


class ForkInfo:
    """What a hook of `on_fork` is told: `epoch`, `sandbox`, `hostname`, and its `seed` or None."""

    __slots__ = ("epoch", "hostname", "sandbox", "seed")

    def __init__(self, epoch: int, sandbox: str, hostname: str, seed: int | None) -> None:
        self.epoch = epoch
        self.sandbox = sandbox
        self.hostname = hostname
        self.seed = seed

    def __repr__(self) -> str:
        return f"ForkInfo(epoch={self.epoch}, sandbox={self.sandbox!r}, seed={self.seed})"


# --- the channel ------------------------------------------------------------------------------------------


class Channel:
    """Whole messages over a SEQPACKET socket, at one number, which code does not use."""

    def __init__(self, descriptor: int) -> None:
        """Takes `descriptor`."""
        for lowest in (1000, 200, 40, 10):
            try:
                self.number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
                break
            except OSError:  # above the limit of open files
                continue
        else:
            self.number = os.dup(descriptor)
        os.close(descriptor)
        self.socket = _socket.socket(fileno=self.number)
        self.pid = _getpid()
        self.epoch = 0
        self.gathered: list[bytes] = []
        self.lock = threading.RLock()
        self.sending = False
        self.deferred: list[bytes] = []

    def receive(self) -> bytes | None:
        """The next message; None at the end of the channel."""
        size = 0
        while True:
            try:
                packet = _read(self.number, PACKET + 1)
            except ConnectionResetError:
                return None
            except OSError as error:
                raise self.lost(error) from None
            if not packet:
                return None
            mark = packet[0]
            if mark & FIRST:
                self.gathered.clear()
                size = 0
            elif not self.gathered and not mark & MORE:
                return packet[1:]
            size += len(packet)
            if size <= REQUEST_MAX:
                self.gathered.append(packet[1:])
            if not mark & MORE:
                message = b"".join(self.gathered) if size <= REQUEST_MAX else b""
                self.gathered.clear()
                return message

    def fork_is_told(self) -> bool:
        """Whether the next packet begins a `forked` message, and is there already."""
        try:
            return bool(self.socket.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)[0] & FIRST)
        except (OSError, IndexError):
            return False

    def send(self, event: dict[str, Any]) -> None:
        """Send one event; nothing in a process that a cell has forked off."""
        if _getpid() != self.pid:
            return
        self.send_encoded(_encode(event), urgent=event["event"] == "forked")

    def send_encoded(self, text: str, *, urgent: bool = False) -> None:
        """Send one event that is JSON already."""
        message = text.encode("ascii")
        with self.lock:
            # A signal handler of the code may call display() amid a message; a `forked` must go at once.
            if self.sending and not urgent:
                self.deferred.append(message)
                return
            before, self.sending = self.sending, True
            try:
                self._send(message)
            finally:
                self.sending = before
            while self.deferred and not before:
                self._send(self.deferred.pop(0))

    def _send(self, message: bytes) -> None:
        if len(message) < PACKET:
            self._write(b"\2" + message)
            return
        room = PACKET - 1
        place = 0
        epoch = self.epoch
        while place < len(message):
            rest = MORE if place + room < len(message) else 0
            mark = rest | (0 if place else FIRST)
            self._write(bytes((mark,)) + message[place : place + room])
            place += room
            if self.epoch != epoch:  # the first packets went to the parent's reader
                epoch, place = self.epoch, 0

    def _write(self, packet: bytes) -> None:
        try:
            _write(self.number, packet)
        except (BrokenPipeError, ConnectionResetError):
            raise SystemExit(0) from None
        except OSError as error:
            raise self.lost(error) from None

    def lost(self, error: OSError) -> NoReturn:
        """End the process: the channel was closed by what runs in it."""
        try:
            _write(2, f"ramet_kernel: the code has closed the kernel's channel ({error})\n".encode())
        finally:
            _exit(CHANNEL_CLOSED)

    def leave(self) -> None:
        """Close the channel in a process that a cell has forked off."""
        self.pid = -1
        self.socket.close()


# --- what a value looks like ------------------------------------------------------------------------------

_METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


def _note(text: str) -> None:
    try:
        sys.stderr.write(text + "\n")
    except KeyboardInterrupt:
        raise
    except BaseException:  # the code may have put anything there
        os.write(2, (text + "\n").encode("utf-8", "replace"))


def _as_text(mime: str, data: Any) -> str:
    """`data` as a message can carry it: base64 for bytes, JSON for what is not text."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        if mime.startswith("text/") or mime.endswith("+xml"):
            return bytes(data).decode("utf-8", "replace")
        import base64

        return base64.b64encode(data).decode("ascii")
    if isinstance(data, str):
        return _plain(data)
    return json.dumps(data, default=repr)


def _rich(value: Any) -> dict[str, str]:
    """Every representation of `value` but its repr; those that fail are noted and left out."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, type):
        return {}
    bundle: dict[str, str] = {}
    # Looked up on the class: an instance with a greedy __getattr__ has every method.
    if getattr(kind, "_repr_mimebundle_", None) is not None:
        try:
            found = value._repr_mimebundle_(include=None, exclude=None)
            for mime, data in ((found[0] if isinstance(found, tuple) else found) or {}).items():
                bundle[_plain(str(mime))] = _as_text(str(mime), data)
        except Exception as error:
            _note(f"_repr_mimebundle_ of {kind.__name__} failed: {_last_line(error)}")
    for name, mime in _METHODS:
        if mime in bundle or getattr(kind, name, None) is None:
            continue
        try:
            data = getattr(value, name)()
            if isinstance(data, tuple) and len(data) == 2:  # with metadata
                data = data[0]
            if data is not None:
                bundle[mime] = _as_text(mime, data)
        except Exception as error:
            _note(f"{name} of {kind.__name__} failed: {_last_line(error)}")
    if kind.__name__ == "Figure" and kind.__module__ == "matplotlib.figure":
        bundle["image/png"] = _picture(value)
    return bundle


def _bounded(data: dict[str, str]) -> dict[str, Any]:
    """`data` as the fields of a `result` event, without the largest of it if all is too large for one."""
    # Quoted, a character takes twelve bytes at most.
    if len(data) <= NAMED_MAX and sum(map(len, [*data, *data.values()])) <= DATA_MAX // 12:
        return {"data": data}
    sizes = {mime: len(_quote(mime)) + len(_quote(text)) - 4 for mime, text in data.items()}
    kept, total = dict(data), sum(sizes.values())
    for mime in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= DATA_MAX and len(kept) <= NAMED_MAX:
            break
        total -= sizes[mime]
        del kept[mime]
    dropped = [(mime, len(text)) for mime, text in data.items() if mime not in kept]
    named = {mime[:NAME_MAX]: length for mime, length in dropped[:NAMED_MAX]}
    if len(dropped) > NAMED_MAX:
        rest = dropped[NAMED_MAX:]
        named[f"{len(rest)} more"] = sum(length for _, length in rest)
    return {"data": kept, "dropped": named} if named else {"data": kept}


def _picture(figure: Any) -> str:
    import io

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return _as_text("image/png", buffer.getvalue())


def display(*values: Any, raw: bool = False, **_: Any) -> None:
    """Show each value among the results of the cell; with `raw`, values are dicts of MIME type to data."""
    _flush()
    for value in values:
        if raw:
            data = {_plain(str(mime)): _as_text(str(mime), content) for mime, content in value.items()}
        else:
            data = {"text/plain": _plain(repr(value)), **_rich(value)}
        _kernel.emit(data, main=False)


def _show_figures(*_: Any, **__: Any) -> None:
    """Show all open figures of pyplot among the results, and close them."""
    pyplot = sys.modules["matplotlib.pyplot"]
    managers: Any = sys.modules["matplotlib._pylab_helpers"].Gcf.get_all_fig_managers()
    if not managers:
        return
    _flush()
    try:
        for manager in managers:
            figure = manager.canvas.figure
            try:
                _kernel.emit({"image/png": _picture(figure), "text/plain": repr(figure)}, main=False)
            except Exception as error:
                _note(f"a figure could not be drawn: {_last_line(error)}")
    finally:
        pyplot.close("all")


# --- errors -----------------------------------------------------------------------------------------------


def _last_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip().rpartition("\n")[2]


def _name(error: BaseException) -> str:
    # Below the metaclass, which is the code's.
    return _plain(_type_name(type(error)))[:NAME_MAX]


def _str(value: Any) -> str:
    try:
        return _plain(_call(str, value))
    except BaseException:  # of a user's class, or an interrupt of one that does not end
        return "<exception str() failed>"


def _only_the_users(root: Any) -> None:
    """Take the kernel's frames, and those of the event loop that it called, out of a TracebackException."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        todo += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]
        stack = one.stack
        if stack and stack[0].filename == FILENAME:
            first = next((i for i, frame in enumerate(stack) if frame.filename.startswith("<cell ")), 0)
            del stack[:first]
        stack[:] = [frame for frame in stack if frame.filename != FILENAME]


def _format(error: BaseException) -> list[str]:
    if isinstance(error, SyntaxError) and error.text is None and error.lineno:
        error.text = linecache.getline(error.filename or "", error.lineno) or None
    whole = traceback.TracebackException(type(error), error, error.__traceback__)
    _only_the_users(whole)
    related = whole.__cause__ or (None if whole.__suppress_context__ else whole.__context__)
    if not whole.stack and related is None and getattr(whole, "exceptions", None) is None:
        return "".join(whole.format_exception_only()).splitlines()
    return "".join(whole.format()).splitlines()


def _describe(error: BaseException) -> dict[str, Any]:
    """What a `done` event says of `error`."""
    try:
        lines = _bounded_lines(_call(_format, error))
    except BaseException as second:  # out of memory, classes that cannot be formatted, an interrupt
        lines = [f"{_name(error)} (its traceback could not be formatted: {_name(second)})"]
    return {"name": _name(error), "value": _str(error)[:TEXT_MAX], "traceback": lines}


def _bounded_lines(lines: list[str]) -> list[str]:
    """`lines` up to TEXT_MAX characters, and then one that says how many were left out."""
    room = TEXT_MAX
    for index, line in enumerate(lines):
        if len(line) >= room:
            left = sum(map(len, lines[index:])) - room
            return [*lines[:index], line[:room], f"[{left} characters more]"]
        room -= len(line) + 1  # lines may be empty, and many
    return lines


# --- cells: from text to code -----------------------------------------------------------------------------

_ASSIGNED = re.compile(r"(?P<target>[\w.,\s\[\]'\"*]+?)\s*=\s*(?P<mark>[!%])(?P<rest>(?!=).*)", re.DOTALL)
_MAGIC = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*(?P<line>.*)", re.DOTALL)
_ASKED = re.compile(r"(?P<before>\?{0,2})\s*(?P<name>%{0,2}[A-Za-z_][\w.]*)(?P<after>\?{0,2})")
_CALL = '__import__("ramet_kernel").'


def _asked(text: str) -> str | None:
    """Python for a line as `x?`, `x??` or `?x`."""
    found = _ASKED.fullmatch(text) if "?" in text else None
    marks = max(found["before"], found["after"]) if found else ""
    return f"{_CALL}describe({found['name']!r}, source={len(marks) == 2})" if found and marks else None


def _call_of(mark: str, text: str, *, assigned: bool) -> str | None:
    """Python for the command or magic in `text`."""
    if mark == "!":
        if text.startswith("!"):  # !!cmd
            assigned, text = True, text[1:]
        return f"{_CALL}{'capture' if assigned else 'system'}({text.strip()!r})"
    found = _MAGIC.fullmatch(text.strip())
    return f"{_CALL}magic({found['name']!r}, {found['line']!r})" if found else None


def _skip_line(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Depth of brackets, and quotes of an open string, after `line`, which began with the ones given."""
    place = 0
    while place < len(line):
        char = line[place]
        if quote:
            if char == "\\":
                place += 2
                continue
            if line.startswith(quote, place):
                place += len(quote)
                quote = ""
                continue
        elif char == "#":
            break
        elif char in "'\"":
            quote = char * 3 if line.startswith(char * 3, place) else char
            place += len(quote)
            continue
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth = max(0, depth - 1)
        place += 1
    # A string of one quote goes over the line only behind a backslash.
    if len(quote) == 1 and not line.rstrip("\r\n").endswith("\\"):
        quote = ""
    return depth, quote


def transform(code: str) -> str | None:
    """`code` with its shell commands and magics as calls; None if it has none. Lines keep their numbers."""
    if code.lstrip().startswith("%%") and _asked(code.strip()) is None:
        blank = code[: len(code) - len(code.lstrip())].count("\n")
        head, _, body = code.lstrip().partition("\n")
        found = _MAGIC.fullmatch(head[2:].strip())
        if found is None:
            return None
        return (
            "\n" * blank + f"{_CALL}cell_magic({found['name']!r}, {found['line']!r}, {body!r}, {blank + 1})"
        )
    lines = code.splitlines(keepends=True)
    made: list[str] = []
    changed = False
    depth, quote, continued = 0, "", False
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        text = line.strip()
        if not depth and not quote and not continued and text:
            indent = line[: len(line) - len(line.lstrip())]
            if (help_call := _asked(text)) is not None:
                made.append(indent + help_call + "\n")
                changed = True
                continue
            assigned = _ASSIGNED.fullmatch(text)
            mark, rest = (assigned["mark"], assigned["rest"]) if assigned else (text[0], text[1:])
            if mark in "!%":
                extra = 0
                while rest.endswith("\\") and at < len(lines):
                    rest = rest[:-1] + lines[at].rstrip("\r\n")
                    at += 1
                    extra += 1
                call = _call_of(mark, rest, assigned=bool(assigned))
                if call is not None:
                    target = f"{assigned['target']} = " if assigned else ""
                    made.append(indent + target + call + "\n" * (extra + 1))
                    changed = True
                    continue
        depth, quote = _skip_line(line, depth, quote)
        continued = not quote and line.rstrip("\r\n").endswith("\\")
        made.append(line)
    return "".join(made) if changed else None


class Code:
    """A compiled cell: `body`, and the expression `last`, whose value is shown."""

    __slots__ = ("body", "last", "looped", "silent")

    def __init__(self) -> None:
        self.body: types.CodeType | None = None
        self.last: types.CodeType | None = None
        self.silent = False
        self.looped = False


def _ends_silent(source: str, node: ast.expr) -> bool:
    """Whether a semicolon follows the last expression."""
    lines = source.encode("utf-8", "surrogatepass").splitlines()
    rest = lines[(node.end_lineno or 1) - 1][node.end_col_offset or 0 :].strip()
    return rest.startswith(b";")


# The first line of code is indented.
_INDENTED = re.compile(r"(?:[ \t]*(?:#.*)?\r?\n)*[ \t]+[^\s#]")


def _parse(source: str, filename: str, flags: int) -> Any:
    """The tree of `source`, which may be indented as a whole, as notebooks take it. Raises SyntaxError."""
    flags |= ast.PyCF_ONLY_AST | _AWAIT
    if not _INDENTED.match(source):
        return compile(source, filename, "exec", flags, dont_inherit=True)
    # Taking the indentation away would change strings of several lines, and move the carets of tracebacks.
    try:
        tree = compile("if 1:\n" + source, filename, "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        error.lineno = (error.lineno or 1) - 1
        error.end_lineno = (getattr(error, "end_lineno", None) or 1) - 1
        raise
    whole = tree.body[0]
    if whole.orelse:  # an `else` of nothing: told as what it is
        return compile(source, filename, "exec", flags, dont_inherit=True)
    tree.body[:1] = whole.body
    return ast.increment_lineno(tree, -1)


_NEEDS_LOOP = ("create_task(", "ensure_future(", "get_running_loop(")


def compile_cell(source: str, filename: str, flags: int) -> Code:
    """Compile `source`. Raises SyntaxError."""
    tree: Any = None
    try:
        tree = compile(source, filename, "exec", ast.PyCF_ONLY_AST | _AWAIT | flags, dont_inherit=True)
    except SyntaxError:
        changed = transform(source)
        if changed is None and not _INDENTED.match(source):
            raise
        source = changed or source
    if tree is None:
        tree = _parse(source, filename, flags)
    code = Code()
    body = tree.body
    if not body:
        return code
    last = body[-1]
    if isinstance(last, ast.Expr):
        body.pop()
        code.silent = ";" in source and _ends_silent(source, last.value)
    if body:
        code.body = compile(tree, filename, "exec", _AWAIT | flags, dont_inherit=True)
        flags |= code.body.co_flags & _FUTURES
    if isinstance(last, ast.Expr):
        code.last = compile(ast.Expression(last.value), filename, "eval", _AWAIT | flags, dont_inherit=True)
    code.looped = any(part is not None and part.co_flags & _COROUTINE for part in (code.body, code.last))
    if not code.looped and ("asyncio" in sys.modules or "asyncio" in source):
        # Notebooks run every cell in a loop, so that tasks can be made in cells that await nothing.
        code.looped = any(word in source for word in _NEEDS_LOOP) and not any(
            word in source for word in ("asyncio.run(", "run_until_complete(", "Runner(")
        )
    return code


# --- shell commands and magics ----------------------------------------------------------------------------

_EXPANDED = re.compile(
    r"\$\$|\$\{[^}]*\}|\$(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|\{\{|\}\}|\{(?P<expression>[^{}]+)\}"
)


def expand(text: str, frame: types.FrameType) -> str:
    """`text` with `$name` and `{expression}` replaced where the code knows them; others are the shell's."""
    scope = {**frame.f_globals, **frame.f_locals}

    def value(found: re.Match[str]) -> str:
        whole = found[0]
        if whole == "$$":
            return "$"
        if whole in {"{{", "}}"}:
            return whole[0]
        expression = found["name"] or found["expression"]
        if expression is None or (found["name"] and expression.partition(".")[0] not in scope):
            return whole
        try:
            return str(eval(expression, scope))
        except Exception:  # as for awk '{print $1}'
            return whole

    return _EXPANDED.sub(value, text)


def _shell() -> str:
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(path)), "/bin/sh")


def _stop(process: Any) -> None:
    """End the process group of `process`, which runs for a cell that was interrupted."""
    for number, patience in ((signal.SIGINT, 1.0), (signal.SIGTERM, 0.5), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
        except OSError:
            return
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if process.poll() is not None:
                return
            time.sleep(0.005)


def _execute(argv: list[str], *, capture: bool = False) -> tuple[int, str]:
    """Run `argv` on the real streams, or with its output captured; an interrupt of the cell is passed on."""
    _flush()
    # An interrupt amid Popen() would leave a child that nobody knows, and one amid an import may come to
    # nothing: callbacks of weak references, which the import system has, drop what they raise.
    _kernel.holding = True
    try:
        import subprocess

        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.STDOUT if capture else None,
            start_new_session=True,
        )
    except BaseException:
        _kernel.holding = False
        raise
    output = []
    try:
        _kernel.release()
        if process.stdout is not None:
            while chunk := os.read(process.stdout.fileno(), 1 << 16):
                output.append(chunk)
        # Popen.wait() would wait a while before it lets KeyboardInterrupt through.
        try:
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        except ChildProcessError:  # the code ignores SIGCHLD
            process.returncode = 0
    except BaseException:
        _stop(process)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
    return process.returncode, b"".join(output).decode("utf-8", "surrogateescape")


def system(command: str) -> None:
    """`!command`."""
    frame = sys._getframe(1)
    frame.f_globals["_exit_code"] = _execute([_shell(), "-c", expand(command, frame)])[0]


def capture(command: str) -> list[str]:
    """`x = !command`: the lines that it wrote."""
    frame = sys._getframe(1)
    status, output = _execute([_shell(), "-c", expand(command, frame)], capture=True)
    frame.f_globals["_exit_code"] = status
    return output.splitlines()


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _timed(source: str, frame: types.FrameType, line: int = 0) -> Any:
    filename = frame.f_code.co_filename
    begun, before = time.perf_counter(), os.times()
    try:
        return _kernel.nested("\n" * line + source, filename, frame.f_globals)
    finally:
        wall, after = time.perf_counter() - begun, os.times()
        user = after.user - before.user + after.children_user - before.children_user
        kernel = after.system - before.system + after.children_system - before.children_system
        print(
            f"CPU times: user {_duration(user)}, sys: {_duration(kernel)}, "
            f"total: {_duration(user + kernel)}\nWall time: {_duration(wall)}"
        )


def _time(line: str, frame: types.FrameType) -> Any:
    """%time STATEMENT."""
    return _timed(line, frame, frame.f_lineno - 1)


def _timeit(line: str, frame: types.FrameType, body: str = "") -> None:
    """%timeit [-n LOOPS] [-r RUNS] STATEMENT."""
    import timeit

    loops, runs = 0, 7
    while found := re.match(r"-([nr])\s*(\d+)\s*", line):
        loops, runs = (int(found[2]), runs) if found[1] == "n" else (loops, int(found[2]))
        line = line[found.end() :]
    statement, setup = (body, line or "pass") if body else (line, "pass")
    timer = timeit.Timer(statement or "pass", setup, globals=frame.f_globals)
    if not loops:
        loops = timer.autorange()[0]
    each = [seconds / loops for seconds in timer.repeat(max(1, runs), loops)]
    mean = sum(each) / len(each)
    spread = (sum((one - mean) ** 2 for one in each) / len(each)) ** 0.5
    print(
        f"{_duration(mean)} ± {_duration(spread)} per loop "
        f"(mean ± std. dev. of {len(each)} run{'s' * (len(each) != 1)}, "
        f"{loops:,} loop{'s' * (loops != 1)} each)"
    )


def _pip(line: str, frame: types.FrameType) -> None:
    """%pip ARGUMENTS: pip of this interpreter; what it installs can be imported at once."""
    import importlib
    import shlex
    import site

    words = shlex.split(expand(line, frame))
    status, _ = _execute([sys.executable, "-m", "pip", *words])
    frame.f_globals["_exit_code"] = status
    if status and words[:1] == ["install"] and _is_offline():
        _note(
            "%pip: there is no network here. ramet.templates.build(NAME, pip=[...]) makes a template with it."
        )
    if site.ENABLE_USER_SITE:
        users = site.getusersitepackages()
        if users not in sys.path and os.path.isdir(users):
            site.addsitedir(users)
    importlib.invalidate_caches()


def _is_offline() -> bool:
    """Whether nothing but this sandbox itself can be reached."""
    try:
        with open("/proc/net/route", encoding="ascii") as routes:
            return len(routes.readlines()) <= 1
    except OSError:
        return False


_directories: list[str] = []


def _cd(line: str, frame: types.FrameType) -> None:
    """%cd [DIRECTORY | -]."""
    target = expand(line, frame).strip().strip("'\"") or "~"
    if target == "-":
        if not _directories:
            raise UsageError("%cd -: there is no previous directory")
        target = _directories[-1]
    before = os.getcwd()
    os.chdir(os.path.expanduser(target))
    _directories[:] = [before]
    print(os.getcwd())


def _env(line: str, frame: types.FrameType) -> Any:
    """%env [NAME | NAME=VALUE | NAME VALUE]."""
    if not line:
        return dict(os.environ)
    name, mark, value = line.partition("=") if "=" in line.partition(" ")[0] else line.partition(" ")
    if not mark:
        if name not in os.environ:
            raise UsageError(f"%env: there is no variable {name}")
        return os.environ[name]
    os.environ[name] = expand(value, frame).strip()
    print(f"env: {name}={os.environ[name]}")
    return None


def _made(frame: types.FrameType) -> dict[str, Any]:
    """What the code has made, by name."""
    return {
        name: value
        for name, value in sorted(frame.f_globals.items())
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def _who(_: str, frame: types.FrameType) -> None:
    """%who: the names that the code has made."""
    print("\t".join(_made(frame)) or "Interactive namespace is empty.")


def _whos(_: str, frame: types.FrameType) -> None:
    """%whos: the names that the code has made, with the type of each and what it is."""
    rows = [("Variable", "Type", "Data/Info")]
    for name, value in _made(frame).items():
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            told = f"shape {shape}"
        elif type(value) in {list, tuple, dict, set, frozenset}:
            told = f"n={len(value)}"
        else:
            told = " ".join(repr(value).split())
        rows.append((name, type(value).__name__, told if len(told) <= 60 else f"{told[:57]}..."))
    if len(rows) == 1:
        print("Interactive namespace is empty.")
        return
    widths = [max(len(row[column]) for row in rows) + 3 for column in (0, 1)]
    for one, kind, what in rows:
        print(f"{one:<{widths[0]}}{kind:<{widths[1]}}{what}")


def _run(line: str, frame: types.FrameType) -> None:
    """%run [-i] FILE [ARGUMENTS]: run a program; what it defines is there afterwards. With -i it sees all."""
    import shlex

    words = shlex.split(expand(line, frame))
    inside = words[:1] == ["-i"]
    words = words[inside:]
    if not words or words[0].startswith("-"):
        raise UsageError("%run needs the name of a file; its one option is -i")
    path = os.path.expanduser(words[0])
    if not os.path.exists(path) and os.path.exists(path + ".py"):
        path += ".py"
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    except OSError as error:
        raise UsageError(f"%run: {path}: {error.strerror}") from None
    module = types.ModuleType("__main__")
    names = frame.f_globals if inside else module.__dict__
    names["__file__"] = path
    argv, main = sys.argv, sys.modules.get("__main__")
    directory = os.path.dirname(os.path.abspath(path))
    sys.argv = [path, *words[1:]]
    sys.path.insert(0, directory)
    if not inside:
        sys.modules["__main__"] = module
    try:
        exec(code, names)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    finally:
        sys.argv = argv
        if sys.path[:1] == [directory]:
            del sys.path[0]
        if main is not None:
            sys.modules["__main__"] = main
        if not inside:
            frame.f_globals.update(
                {name: value for name, value in names.items() if not name.startswith("__")}
            )


def _history(_: str, __: types.FrameType) -> None:
    """%history: the cells until now, but the oldest where they are many."""
    for filename, _size in _kernel.kept:
        print("".join(linecache.getlines(filename)), end="")


def _extension(line: str, _: types.FrameType) -> None:
    """%load_ext autoreload. Extensions of IPython need IPython."""
    name = line.strip()
    if name != "autoreload":
        raise UsageError(
            f"%load_ext {name}: extensions of IPython need IPython, which is not what runs here; "
            "import the library and call it"
        )
    _autoreload("", _)


def _autoreload(_: str, __: types.FrameType) -> None:
    """%autoreload: says how modules are loaded again."""
    _note("%autoreload: modules are not loaded again by themselves; importlib.reload(MODULE) does it")


def _config(line: str, _: types.FrameType) -> None:
    """%config: says that there is nothing to configure."""
    _note(f"%config {line}: has no effect here")


def _of_shell(name: str) -> Callable[[str, types.FrameType], None]:
    def call(line: str, frame: types.FrameType) -> None:
        frame.f_globals["_exit_code"] = _execute([_shell(), "-c", f"{name} {expand(line, frame)}"])[0]

    call.__doc__ = f"%{name} [ARGUMENTS]: the command of this name."
    return call


def _source_of(value: Any) -> str | None:
    import inspect

    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return None


def describe(name: str, *, source: bool) -> None:
    """`name?`: what is known of an object or a magic; with `source`, also how it is written."""
    import inspect

    frame = sys._getframe(1)
    if name.startswith("%"):
        value: Any = _MAGICS.get(name.lstrip("%"))
        if value is None:
            raise _unknown(name)
        print(inspect.getdoc(value))
        return
    first, *rest = name.split(".")
    try:
        value = {**vars(builtins), **frame.f_globals, **frame.f_locals}[first]
        for one in rest:
            value = getattr(value, one)
    except (KeyError, AttributeError):
        print(f"Object `{name}` not found.")
        return
    told = []
    if callable(value):
        with contextlib.suppress(ValueError, TypeError):
            told.append(("Signature", f"{rest[-1] if rest else first}{inspect.signature(value)}"))
    else:
        text = repr(value)
        told.append(("String form", text if len(text) <= 500 else f"{text[:497]}..."))
    told.append(("Type", type(value).__name__))
    written = _source_of(value) if source else None
    if written is not None:
        told.append(("Source", f"\n{written.rstrip()}"))
    elif doc := inspect.getdoc(value):
        told.append(("Docstring", f"\n{doc}" if "\n" in doc else doc))
    with contextlib.suppress(TypeError):
        told.append(("File", inspect.getfile(value)))
    for title, text in told:
        print(f"{title + ':':<13}{text}")


def _pwd(_: str, __: types.FrameType) -> str:
    """%pwd."""
    return os.getcwd()


def _matplotlib(_: str, __: types.FrameType) -> None:
    """%matplotlib [BACKEND]: figures are shown among the results, whatever is asked for."""


_MAGICS: dict[str, Callable[[str, types.FrameType], Any]] = {
    "autoreload": _autoreload,
    "cd": _cd,
    "config": _config,
    "env": _env,
    "history": _history,
    "load_ext": _extension,
    "matplotlib": _matplotlib,
    "pip": _pip,
    "pwd": _pwd,
    "reload_ext": _extension,
    "run": _run,
    "set_env": _env,
    "time": _time,
    "timeit": _timeit,
    "who": _who,
    "whos": _whos,
    **{name: _of_shell(name) for name in ("cat", "cp", "ls", "mkdir", "mv", "rm", "rmdir")},
}
_SHOWN_AS = {"html": "text/html", "latex": "text/latex", "markdown": "text/markdown", "svg": "image/svg+xml"}
_CELL_MAGICS = ("bash", "capture", *_SHOWN_AS, "sh", "time", "timeit", "writefile")


class _Captured:
    """What a cell under `%%capture` wrote and showed."""

    def __init__(self) -> None:
        self.stdout = self.stderr = ""
        self.outputs: list[dict[str, str]] = []

    def show(self) -> None:
        """Write and show it now."""
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for data in self.outputs:
            display(data, raw=True)

    __call__ = show

    def emit(self, data: dict[str, str], *, main: bool) -> None:
        """As that of the kernel."""
        del main
        self.outputs.append(data)

    def __str__(self) -> str:
        return self.stdout


def _capture(line: str, frame: types.FrameType, body: str, first: int) -> None:
    """%%capture [NAME]: nothing of what the cell writes and shows is passed on; NAME has it then."""
    name = line.strip()
    if name and not name.isidentifier():
        raise UsageError("%%capture takes the name of one variable, and no options")
    captured = _Captured()
    _flush()
    kept = [(number, os.dup(number), os.memfd_create("captured")) for number in (1, 2)]
    try:
        for number, _, fd in kept:
            os.dup2(fd, number)
        _kernel.emit = captured.emit  # type: ignore[method-assign]
        _kernel.nested("\n" * first + body, frame.f_code.co_filename, frame.f_globals)
    finally:
        _flush()
        _kernel.__dict__.pop("emit", None)
        for number, before, _ in kept:
            os.dup2(before, number)
            os.close(before)
        texts = []
        for _, _, fd in kept:
            with open(fd, encoding="utf-8", errors="replace") as file:
                file.seek(0)
                texts.append(file.read())
        captured.stdout, captured.stderr = texts
        if name:
            frame.f_globals[name] = captured


def _unknown(name: str) -> UsageError:
    lines, cells = ", ".join(f"%{one}" for one in _MAGICS), ", ".join(f"%%{one}" for one in _CELL_MAGICS)
    return UsageError(f"there is no magic {name}; there are {lines}, and for whole cells {cells}")


def magic(name: str, line: str) -> Any:
    """`%name line`."""
    found = _MAGICS.get(name)
    if found is None:
        raise _unknown("%" + name)
    return found(line, sys._getframe(1))


def cell_magic(name: str, line: str, body: str, first: int) -> Any:
    """`%%name line` above `body`, whose first line is the cell's line after `first`."""
    frame = sys._getframe(1)
    if name in {"bash", "sh"}:
        argv = [_shell() if name == "bash" else "/bin/sh", "-c", body, name, *line.split()]
        frame.f_globals["_exit_code"] = status = _execute(argv)[0]
        if status:
            raise UsageError(f"%%{name}: the script ended with exit code {status}")
        return None
    if name == "capture":
        return _capture(line, frame, body, first)
    if name in _SHOWN_AS:
        return display({_SHOWN_AS[name]: body}, raw=True)
    if name == "time":
        return _timed(body, frame, first)
    if name == "timeit":
        return _timeit(line, frame, body)
    if name == "writefile":
        words = line.split()
        append = words[:1] in (["-a"], ["--append"])
        path = os.path.expanduser(" ".join(words[append:]))
        if not path:
            raise UsageError("%%writefile needs the name of a file")
        print(f"{'Appending to' if append else 'Overwriting' if os.path.exists(path) else 'Writing'} {path}")
        with open(path, "a" if append else "w", encoding="utf-8") as file:
            file.write(body)
        return None
    raise _unknown("%%" + name)


# --- what notebooks import --------------------------------------------------------------------------------


class _Shown:
    """What the classes of IPython.display have in common: data, or the file that it is in."""

    def __init__(self, data: Any = None, url: Any = None, filename: Any = None, **_: Any) -> None:
        if url is None and isinstance(data, str) and data.startswith(("http://", "https://")):
            url = data
        if url is not None:
            raise UsageError(f"{type(self).__name__}: fetch {url} first, and give its content")
        if data is None and filename is not None:
            with open(filename, "rb") as file:
                data = self._read(file.read())
        self.data = data

    @staticmethod
    def _read(content: bytes) -> Any:
        return content.decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"<IPython.core.display.{type(self).__name__} object>"


class _Image(_Shown):
    """IPython.display.Image: a file, or its bytes."""

    _KINDS = (
        (b"\x89PNG", "image/png"),
        (b"\xff\xd8", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"RIFF", "image/webp"),
    )

    def __init__(self, data: Any = None, url: Any = None, filename: Any = None, **more: Any) -> None:
        if isinstance(data, os.PathLike) or (isinstance(data, str) and os.path.exists(data)):
            data, filename = None, data
        super().__init__(data, url, filename, **more)

    @staticmethod
    def _read(content: bytes) -> Any:
        return content

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        data = bytes(self.data)
        return {mime: data for magic, mime in self._KINDS if data.startswith(magic)}


def _clear_output(*_: Any, **__: Any) -> None:
    """As IPython's, for which there is nothing to do: what was shown stays among the results."""


def _after_ipython(module: Any) -> None:
    """Have an installed IPython show things here: without a shell of its own it prints their names."""
    module.display, module.clear_output = display, _clear_output


_SHOWN: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("HTML", "_repr_html_", lambda self: self.data),
    ("JSON", "_repr_json_", lambda self: self.data),
    ("Javascript", "_repr_javascript_", lambda self: self.data),
    ("Latex", "_repr_latex_", lambda self: self.data),
    ("Markdown", "_repr_markdown_", lambda self: self.data),
    ("Math", "_repr_latex_", lambda self: f"$\\displaystyle {self.data.strip('$')}$"),
    ("SVG", "_repr_svg_", lambda self: self.data),
)


class _IPython:
    """Last on sys.meta_path: what code for notebooks imports of IPython, where that is not installed."""

    _PACKAGES = ("IPython", "IPython.core")
    _MODULES = ("IPython.display", "IPython.core.display")

    @classmethod
    def find_spec(cls, name: str, *_: Any) -> Any:
        if name not in cls._PACKAGES and name not in cls._MODULES:
            return None
        import importlib.machinery

        return importlib.machinery.ModuleSpec(name, cls, is_package=name in cls._PACKAGES)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: Any) -> None:
        """As the import system does."""

    @classmethod
    def exec_module(cls, module: Any) -> None:
        if module.__name__ in cls._PACKAGES:
            module.get_ipython = lambda: None  # as where no shell of IPython's runs
            return
        module.display, module.clear_output, module.Image = display, _clear_output, _Image
        for name, method, shown in _SHOWN:
            setattr(module, name, type(name, (_Shown,), {method: shown}))


# --- what is done once a module is there ------------------------------------------------------------------


class _Finder:
    """First on sys.meta_path: has something done after the import of the few modules of `_AFTER_IMPORT`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        action = _AFTER_IMPORT.get(name)
        if action is None:
            return None
        for finder in sys.meta_path:
            if finder is _Finder or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _follow(spec.loader, action)
                return spec
        return None


def _follow(loader: Any, action: Callable[[Any], None]) -> None:
    """Call `action` with the module once `loader`, which is made for it alone, has executed it."""
    original = loader.exec_module

    def exec_module(module: Any) -> None:
        original(module)
        try:
            action(module)
        except Exception as error:  # a version of the module that is built otherwise
            _note(f"ramet_kernel: {module.__name__} is not prepared for forks: {_last_line(error)}")

    try:
        loader.exec_module = exec_module
    except AttributeError:  # built in, or frozen: its loader is a class
        return


def _refuse_input(prompt: Any = "", *_: Any, **__: Any) -> str:
    raise StdinNotImplementedError(
        f"input was asked for ({str(prompt)[:80]!r}), but nobody is there to answer: run_code has no "
        "standard input. Assign the value in the code, or read it from a file or from the environment."
    )


def _after_getpass(module: Any) -> None:
    module.getpass = module.unix_getpass = module.fallback_getpass = _refuse_input


def _after_pyplot(module: Any) -> None:
    original = module.show

    def show(*args: Any, **kwargs: Any) -> Any:
        return (_show_figures if module.get_backend().lower() == "agg" else original)(*args, **kwargs)

    module.show = show


class _Seeds:
    """Generators of random numbers: who was seeded by nobody, and what they are seeded with after a fork."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self.reseed: Any = None
        self.randoms: dict[int, weakref.ref[Any]] = {}
        self.entropies: set[int] = set()
        self.entropy: Any = None
        self.fresh = False
        self.generators: list[Any] = []
        self.uuid_source: Any = None

    def source(self, label: str) -> Any:
        """A generator of random.Random for `label`: of the seed if there is one."""
        import random

        return random.Random(os.urandom(32) if self.seed is None else f"{self.seed}:{label}")

    # random

    def after_random(self, module: Any) -> None:
        self.reseed = module.Random.seed

        # Called by the constructor too.
        def seed(instance: Any, a: Any = None, version: int = 2) -> None:
            self.reseed(instance, a, version)
            self.randoms.pop(id(instance), None)
            if a is None:
                self.keep(instance)

        module.Random.seed = functools.update_wrapper(seed, self.reseed)
        if self.seed is not None:
            self.random()

    def keep(self, instance: Any) -> None:
        """Renew `instance` of random.Random at forks."""
        if len(self.randoms) >= 64:
            self.randoms = {name: one for name, one in self.randoms.items() if one() is not None}
        self.randoms[id(instance)] = weakref.ref(instance)

    def random(self) -> None:
        if self.seed is None and "random" not in sys.modules:
            return
        import random

        module: Any = random
        # The function that was replaced: what it seeds is still nobody's.
        self.reseed(module._inst, self.seed)
        for index, one in enumerate(self.randoms.values()):
            instance = one()
            if instance is not None and instance is not module._inst:
                self.reseed(instance, None if self.seed is None else f"{self.seed}:random:{index}")

    # numpy: every generator that nobody seeded took its entropy from one function, which is replaced

    def after_numpy(self, module: Any) -> None:
        bits = module.bit_generator
        original = bits.randbits

        def randbits(k: int) -> int:
            drawn = int(original(k) if self.entropy is None else self.entropy.getrandbits(k))
            self.entropies.add(drawn)
            self.fresh = True
            return drawn

        bits.randbits = randbits
        if self.seed is not None:
            self.numpy()

    def find_generators(self) -> None:
        """Look for the generators that were made unseeded; they take no weak references."""
        import gc

        base = sys.modules["numpy.random"].bit_generator.BitGenerator
        # Two references are ours: the list, and the argument of getrefcount.
        known = self.generators
        self.generators = []
        while known:
            one = known.pop(0)
            if sys.getrefcount(one) > 2:
                self.generators.append(one)
        one = None  # else it would be found again
        held = {id(one) for one in self.generators}
        for one in gc.get_objects():
            # Not isinstance(): it reads __class__, which is the code's where the object is a proxy.
            if (
                issubclass(type(one), base)
                and id(one) not in held
                and self._entropy_of(one) in self.entropies
            ):
                self.generators.append(one)
        self.entropies = {self._entropy_of(one) for one in self.generators}
        self.fresh = False

    @staticmethod
    def _entropy_of(generator: Any) -> Any:
        sequence = getattr(generator, "seed_seq", None) or getattr(generator, "_seed_seq", None)
        entropy = getattr(sequence, "entropy", None)
        return entropy if isinstance(entropy, int) else None

    def numpy(self) -> None:
        module: Any = sys.modules.get("numpy.random")
        if module is None:
            return
        if self.fresh:
            self.find_generators()
        self.entropy = None if self.seed is None else self.source("numpy")
        if self.seed is None:
            words = memoryview(os.urandom(32)).cast("I")
            module.seed(list(words))
        else:
            module.seed(self.seed % (1 << 32))
        for index, one in enumerate(self.generators):
            if self.seed is None:
                sequence = module.SeedSequence(int.from_bytes(os.urandom(16), "little"))
            else:
                sequence = module.SeedSequence([self.seed % (1 << 128), index])
            one.state = type(one)(sequence).state

    # uuid, tempfile, ssl

    def uuid(self) -> None:
        module: Any = sys.modules.get("uuid")
        if module is None:
            return
        # libuuid's own state is that of the parent. Without it, a clock sequence is drawn for each call.
        module._generate_time_safe = None
        module._node = self.source("uuid.node").getrandbits(48) | (1 << 40)
        for name in ("_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7"):
            if hasattr(module, name):
                setattr(module, name, None)
        if self.seed is None:
            module.os = os
            return
        module.os = types.ModuleType("os")
        module.os.__dict__.update(os.__dict__)
        module.os.urandom = self.source("uuid").randbytes

    def tempfile(self) -> None:
        module: Any = sys.modules.get("tempfile")
        if module is None:
            return
        module._name_sequence = None
        if self.seed is not None:
            module._name_sequence = names = module._RandomNameSequence()
            names._rng, names._rng_pid = self.source("tempfile"), os.getpid()

    def ssl(self) -> None:
        """OpenSSL knows a fork by its pid, and ours is the same. Adding reseeds all."""
        module: Any = sys.modules.get("_ssl")
        if module is not None:
            module.RAND_add(os.urandom(48), 48.0)

    @staticmethod
    def after_ssl(module: Any) -> None:
        """OpenSSL makes its generators when they are first asked, in 1 ms: each child would do it anew."""
        module.RAND_bytes(1)

    def if_seeded(self, duty: Callable[[], None]) -> Callable[[Any], None]:
        """An action for after an import: what was promised at the fork holds for modules that come later."""
        return lambda _: None if self.seed is None else duty()


_seeds = _Seeds()
_AFTER_IMPORT: dict[str, Callable[[Any], None]] = {
    "IPython.core.display_functions": _after_ipython,
    "getpass": _after_getpass,
    "matplotlib.pyplot": _after_pyplot,
    "numpy.random": _seeds.after_numpy,
    "random": _seeds.after_random,
    "ssl": _seeds.after_ssl,
    "tempfile": _seeds.if_seeded(_seeds.tempfile),
    "uuid": _seeds.if_seeded(_seeds.uuid),
}


# --- streams ----------------------------------------------------------------------------------------------


def _stream(number: int) -> Any:
    # closefd: sys.stdout.close() must not let the next file that is opened become standard output.
    return open(number, "w", buffering=1, encoding="utf-8", errors="surrogateescape", closefd=False)


class _Streams:
    """Standard output and error of the process; the code may replace what `sys` has."""

    def __init__(self) -> None:
        # Dropped, these would close their descriptors.
        self.originals = (sys.stdout, sys.stderr, sys.stdin)
        self.out: Any = None
        self.err: Any = None
        self.stdio: Any = None
        self.renew()

    def renew(self) -> None:
        for name, number, old in (("stdout", 1, self.out), ("stderr", 2, self.err)):
            if old is not None and not old.closed:
                continue
            new = _stream(number)
            now = getattr(sys, name, None)
            if now is old or now is self.originals[number - 1]:
                setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)
            setattr(self, name[3:], new)

    def flush(self) -> None:
        streams: tuple[Any, ...] = (
            getattr(sys, "stdout", None),
            getattr(sys, "stderr", None),
            self.out,
            self.err,
        )
        for stream in {id(one): one for one in streams}.values():
            try:
                stream.flush()
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: S112 - closed, None, or of the code's own making
                continue
        if "_ctypes" in sys.modules:
            self._flush_stdio()

    def _flush_stdio(self) -> None:
        try:
            if self.stdio is None:
                import ctypes

                libc = ctypes.CDLL(None)
                self.stdio = libc.fflush, ctypes.c_void_p.in_dll(libc, "stdout")
            self.stdio[0](self.stdio[1])
        except Exception:  # a libc without that name
            self.stdio = (bool, False)


class _Quitter:
    """`exit` and `quit`. Those of `site` close standard input as well."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{self.name}() ends this cell; the kernel goes on"

    def __call__(self, code: Any = None) -> None:
        raise SystemExit(code)


# --- the kernel -------------------------------------------------------------------------------------------


class Context:
    """One namespace of cells."""

    __slots__ = ("flags", "last", "module", "name")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = builtins
        self.flags = 0
        self.last: Any = None


class Cell:
    """One execution."""

    __slots__ = ("context", "error", "filename", "id", "source", "text", "truncated")

    def __init__(self, request: dict[str, Any], context: Context, number: int) -> None:
        self.id: str = request["id"]
        self.source: str = request["code"]
        self.context = context
        self.filename = f"<cell {number}>"
        self.text: str | None = None
        self.truncated = 0
        self.error: BaseException | None = None


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call what an interrupt may end. The handler of SIGINT looks for this frame."""
    return function(*arguments)


class Kernel:
    """Answers one request after another."""

    def __init__(self, descriptor: int) -> None:
        """Takes `descriptor`: the channel."""
        self.channel = Channel(descriptor)
        self.main = Context(None)
        self.contexts: dict[str, Context] = {}
        self.cells = 0
        self.cell: Cell | None = None
        self.busy = False
        self.begun = False
        self.interrupted = False
        self.holding = False
        self.in_duties = False
        self.sandbox = os.environ.get("RAMET_SANDBOX_ID", "")
        self.hooks: list[Callable[[ForkInfo], Any]] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: Any = None
        self.cancelled = False
        self.streams = _Streams()
        self.kept: list[tuple[str, int]] = []
        self.kept_size = 0
        self.builtins: dict[str, Any] = {}

    # requests

    def serve(self) -> None:
        """Answer requests until the channel ends."""
        self.install()
        version = ".".join(map(str, sys.version_info[:3]))
        self.channel.send({"event": "ready", "language": "python", "version": version, "pid": _getpid()})
        while True:
            message = self.channel.receive()
            if message is None:
                return
            self.interrupted = self.begun = False
            self.busy = True
            try:
                self.answer_after_all(message)
            except KeyboardInterrupt:  # raised by code that the kernel called in passing, such as a flush
                continue
            finally:
                self.busy = False

    def answer_after_all(self, message: bytes) -> None:
        """Answer one request, also where the kernel needs what the code has deleted. No cell runs twice."""
        try:
            self.answer(message)
            return
        except Exception:
            self.restore_builtins()
            if self.begun:
                self.end_poorly()
                return
        try:
            self.answer(message)
        except Exception:
            if self.cell is None:
                raise
            self.end_poorly()

    def answer(self, message: bytes) -> None:
        """Answer one request."""
        try:
            request = _decode(message.decode())
            operation = request["op"]
        except (ValueError, TypeError, LookupError, RecursionError):
            self.channel.send({"event": "refused", "id": None, "message": "not a request"})
            return
        name = request.get("id")
        if operation == "run":
            self.run(request)
        elif operation == "forked":
            self.forked(request)
        elif operation == "ping":
            self.channel.send({"event": "pong", "id": name, "epoch": self.channel.epoch})
        elif operation == "end_context":
            ended = self.contexts.pop(str(request.get("context")), None) is not None
            self.channel.send({"event": "context_ended", "context": request.get("context"), "existed": ended})
        else:
            self.refuse(name, f"there is no operation {str(operation)[:80]!r}")

    def refuse(self, name: Any, message: str) -> None:
        """Tell that a request was not understood."""
        name = name if isinstance(name, str) else None
        self.channel.send({"event": "refused", "id": name, "message": message})

    # running cells

    def run(self, request: dict[str, Any]) -> None:
        """Run one cell, and tell its end."""
        name, where = request.get("id"), request.get("context")
        if not isinstance(name, str) or not isinstance(request.get("code"), str):
            self.refuse(name, "run needs id and code, both text")
            return
        if where is not None and not isinstance(where, str):
            self.refuse(name, "context must be text or null")
            return
        context = self.main if where is None else self.contexts.get(where)
        if context is None:
            context = self.contexts[str(where)] = Context(where)
        self.cells += 1
        self.cell = cell = Cell(request, context, self.cells)
        self.keep_source(cell)
        if where is not None:
            sys.modules["__main__"] = context.module
        try:
            try:
                _call(self.evaluate, cell)
            except BaseException as error:
                cell.error = error
            if "matplotlib.pyplot" in sys.modules:
                self.guarded(_show_figures)
        finally:
            self.end(cell)

    def end(self, cell: Cell) -> None:
        """Tell the end of `cell`, whatever stands in the way."""
        try:
            self.finish(cell)
        except KeyboardInterrupt:  # by a handler of the code, in the instant before it was replaced
            self.finish(cell)
        except (AttributeError, NameError, TypeError):
            self.restore_builtins()
            self.finish(cell)
        except MemoryError as error:
            cell.error = error
            self.end_poorly()

    def end_poorly(self) -> None:
        """Tell the end of the cell with what cannot fail: all else has. Nothing if it was told already."""
        cell, self.cell = self.cell, None
        if cell is None:
            return
        name = "KernelError" if cell.error is None else _name(cell.error)
        error = {"name": name, "value": "the end of the cell could not be told in full", "traceback": []}
        self.channel.send(
            {"event": "done", "id": cell.id, "reason": "error", "text": None, "error": error}
            | {"epoch": self.channel.epoch}
        )

    def guarded(self, function: Callable[[], None]) -> None:
        try:
            _call(function)
        except BaseException as error:
            if self.cell is not None and self.cell.error is None:
                self.cell.error = error

    def evaluate(self, cell: Cell) -> None:
        """Compile and run `cell`; its value becomes its text."""
        self.begun = True
        self.release()
        context = cell.context
        code = compile_cell(cell.source, cell.filename, context.flags)
        if code.body is not None:
            context.flags |= code.body.co_flags & _FUTURES
        namespace = context.module.__dict__
        value = self.execute(code, namespace)
        shown = namespace.get("_")
        if shown is not context.last:
            context.last = None
        if value is None or code.silent:
            return
        if shown is context.last or shown is None:  # else the code uses the name, as for gettext
            namespace["_"] = context.last = value
        text = _plain(repr(value))
        data = _rich(value)
        if len(text) > TEXT_MAX:
            cell.truncated = len(text)
            text = text[:TEXT_MAX]
        cell.text = text
        if data:
            self.streams.flush()
            self.emit({"text/plain": text, **data}, main=True)
            if type(value).__module__ == "matplotlib.figure" and "matplotlib.pyplot" in sys.modules:
                sys.modules["matplotlib.pyplot"].close(value)

    def execute(self, code: Code, namespace: dict[str, Any]) -> Any:
        """Run `code`; the value of its last expression."""
        if code.looped:
            return self.wait(self.drive(code, namespace))
        if code.body is not None:
            exec(code.body, namespace)
        return None if code.last is None else eval(code.last, namespace)

    def nested(self, source: str, filename: str, namespace: dict[str, Any]) -> Any:
        """Run `source` for a magic."""
        return self.execute(compile_cell(source, filename, 0), namespace)

    @staticmethod
    async def drive(code: Code, namespace: dict[str, Any]) -> Any:
        """Run `code` in the event loop."""
        value = None
        for part in (code.body, code.last):
            if part is not None:
                value = eval(part, namespace)
                if part.co_flags & _COROUTINE:
                    value = await value
        return None if code.last is None else value

    def wait(self, coroutine: Any) -> Any:
        """Run `coroutine` in the one event loop, in which tasks of earlier cells go on."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        loop = self.loop
        asyncio.set_event_loop(loop)
        self.cancelled = False
        self.task = task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError as error:
            if self.cancelled:
                raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
            raise
        finally:
            self.task = None
            if not task.done():  # an interrupt or SystemExit came out of another task
                task.cancel()
                with contextlib.suppress(BaseException):  # what it says on its way out did not end the cell
                    loop.run_until_complete(task)

    def finish(self, cell: Cell) -> None:
        """Put right what the code may have left, and tell the end of `cell`."""
        limit = _get_limit()
        if limit < 1000:
            _set_limit(1000)
        error = cell.error
        if _getpid() != self.channel.pid:
            self.end_of_child(error)
        if _getsignal(_SIGINT) != self.on_interrupt:
            _setsignal(_SIGINT, self.on_interrupt)
        if _getsignal(_SIGURG) != self.on_urgent:
            _setsignal(_SIGURG, self.on_urgent)
        if sys.modules.get("__main__") is not self.main.module:
            sys.modules["__main__"] = self.main.module
        self.streams.flush()
        self.streams.renew()
        if _seeds.fresh:
            self.find_generators()
        if error is None and not cell.truncated:  # the usual end, without the cost of an encoder
            self.cell = None
            text = "null" if cell.text is None else _quote(cell.text)
            self.channel.send_encoded(
                f'{{"event":"done","id":{_quote(cell.id)},"reason":"ok","text":{text},"error":null,'
                f'"epoch":{self.channel.epoch}}}'
            )
        else:
            self.finish_otherwise(cell, error)
        if limit < 1000:
            _set_limit(limit)

    @staticmethod
    def find_generators() -> None:
        """Look for generators of numpy that are to be renewed at a fork."""
        try:
            _seeds.find_generators()
        except Exception as error:  # classes of the code's own, below one of numpy's
            _seeds.fresh = False
            _note(f"ramet_kernel: generators of numpy may repeat after a fork: {_last_line(error)}")

    def finish_otherwise(self, cell: Cell, error: BaseException | None) -> None:
        """Tell the end of a cell that failed, or whose value was too long."""
        described = None if error is None else _describe(error)
        event: dict[str, Any] = {
            "event": "done",
            "id": cell.id,
            "reason": "ok",
            "text": cell.text,
            "error": None,
            "epoch": self.channel.epoch,
        }
        if cell.truncated:
            event["truncated"] = cell.truncated
        if error is not None:
            event["reason"], event["error"] = "error", described
            if isinstance(error, KeyboardInterrupt):
                event["reason"] = "interrupted"
            elif isinstance(error, SystemExit):
                event.update(_exit_of(error, described or {}))
        self.cell = cell.error = None
        self.channel.send(event)

    def end_of_child(self, error: BaseException | None) -> None:
        """End a process that a cell has forked off and that ran out of code."""
        status = 0
        if isinstance(error, SystemExit):
            status = _exit_of(error, {})["exit_code"]
        elif error is not None:
            _note("\n".join(_format(error)))
            status = 1
        self.streams.flush()
        _exit(status)

    def emit(self, data: dict[str, str], *, main: bool) -> None:
        """Send a result of the running cell."""
        name = None if self.cell is None else self.cell.id
        self.channel.send({"event": "result", "id": name, "main": main, **_bounded(data)})

    def keep_source(self, cell: Cell) -> None:
        """Let tracebacks find the lines of `cell`; the oldest are dropped when there are too many."""
        source = cell.source
        # Without its newline, the last line gets its carets one column off.
        lines = (source + "\n").splitlines(keepends=True)
        _sources[cell.filename] = (len(source), None, lines, cell.filename)
        self.kept.append((cell.filename, len(source)))
        self.kept_size += len(source) + 200
        while self.kept_size > SOURCES_MAX and len(self.kept) > 1:
            filename, size = self.kept.pop(0)
            self.kept_size -= size + 200
            _sources.pop(filename, None)

    # signals

    def on_interrupt(self, _: int, frame: types.FrameType | None) -> None:
        """SIGINT: ends the code that runs, never the kernel's own, and nothing when there is none."""
        if self.holding:
            self.interrupted = True
            return
        top, duties = frame, Kernel.forked.__code__
        while frame is not None and frame.f_code is not _call.__code__ and frame.f_code is not duties:
            frame = frame.f_back
        if frame is None or frame is top or frame.f_code is duties:
            self.interrupted = self.busy  # before its first line, or amid duties: kept until they are done
            return
        if self.task is not None and not self.cancelled and top is not None and _is_of_the_loop(top):
            self.cancelled = True
            self.loop.call_soon_threadsafe(self.task.cancel)  # type: ignore[union-attr]
            return
        raise KeyboardInterrupt

    def release(self) -> None:
        """Let interrupts through again; one that came meanwhile is raised now."""
        self.holding = False
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt

    def on_urgent(self, number: int, frame: types.FrameType | None) -> None:
        """SIGURG: the sandbox was forked, perhaps. An idle kernel reads of it next anyway."""
        if not self.busy or self.in_duties or _getpid() != self.channel.pid:
            return
        while self.channel.fork_is_told():
            message = self.channel.receive()
            if message is not None:
                self.answer(message)
        if self.interrupted and self.cell is not None:
            self.interrupted = False
            self.on_interrupt(number, frame)

    # forks

    def forked(self, request: dict[str, Any]) -> None:
        """Become another than the twin, and tell so."""
        self.in_duties = True
        errors: list[str] = []
        try:
            epoch, seed = request.get("epoch"), request.get("seed")
            if isinstance(epoch, int) and epoch < self.channel.epoch:
                # This process was forked when it had read this, and not begun: the signal told it of its own.
                # A child that was made ahead is told of the same life again, with what its owner adds.
                return
            self.channel.epoch = epoch if isinstance(epoch, int) else self.channel.epoch + 1
            self.sandbox = str(request.get("sandbox") or "")
            _seeds.seed = seed if isinstance(seed, int) else None
            hostname = str(request.get("hostname") or "")
            info = ForkInfo(self.channel.epoch, self.sandbox, hostname, _seeds.seed)
            duties: list[tuple[str, Callable[[], Any]]] = [
                ("environment", lambda: self.update_environment(request.get("env") or {}, hostname)),
                ("random", _seeds.random),
                ("numpy", _seeds.numpy),
                ("uuid", _seeds.uuid),
                ("tempfile", _seeds.tempfile),
                ("ssl", _seeds.ssl),
            ]
            for hook in list(self.hooks):
                name = getattr(hook, "__qualname__", None) or repr(hook)
                duties.append((f"hook {name}", functools.partial(_call, hook, info)))
            for name, duty in duties:
                try:
                    duty()
                except BaseException as error:  # a child that is half prepared is better told than dead
                    errors.append(f"{name}: {_last_line(error)}")
        finally:
            self.in_duties = False
        running = None if self.cell is None else self.cell.id
        told = {"event": "forked", "epoch": self.channel.epoch, "running": running, "errors": errors}
        self.channel.send(told)

    def update_environment(self, env: dict[str, str | None], hostname: str) -> None:
        """Set or, with None, remove variables, and those that name the sandbox."""
        if hostname and "HOSTNAME" in os.environ:
            os.environ["HOSTNAME"] = hostname
        for name, value in env.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if "TZ" in env:
            time.tzset()
        os.environ["RAMET_SANDBOX_ID"] = self.sandbox
        os.environ["RAMET_EPOCH"] = str(self.channel.epoch)

    # start

    def install(self) -> None:
        """Make the process a notebook's."""
        sys.modules["__main__"] = self.main.module
        sys.argv = [""]
        builtins.input = _refuse_input
        builtins.display = display  # type: ignore[attr-defined]
        for name in ("exit", "quit"):
            setattr(builtins, name, _Quitter(name))
        os.environ.setdefault("MPLBACKEND", "agg")
        sys.meta_path.insert(0, _Finder)
        sys.meta_path.append(_IPython)
        for name, action in _AFTER_IMPORT.items():
            if name in sys.modules:
                action(sys.modules[name])
        os.register_at_fork(after_in_child=self.channel.leave)
        _setsignal(_SIGINT, self.on_interrupt)
        _setsignal(_SIGURG, self.on_urgent)
        self.builtins = dict(vars(builtins))

    def restore_builtins(self) -> None:
        """Give the standard library its builtins back. The kernel's own names are a copy."""
        vars(builtins).update(self.builtins)


def _exit_of(error: SystemExit, described: dict[str, Any]) -> dict[str, Any]:
    """Reason, exit code and error of a cell that raised SystemExit."""
    code = error.code
    status = 0 if code is None else code if isinstance(code, int) else 1
    described["value"], described["traceback"] = "" if code is None else _str(code)[:TEXT_MAX], []
    return {"reason": "exit", "exit_code": status & 0xFF, "error": described if status else None}


def _is_of_the_loop(frame: types.FrameType) -> bool:
    """Whether `frame` is the event loop's own, so that no code of a cell is under way."""
    name = frame.f_code.co_filename
    return name.endswith("selectors.py") or f"{os.sep}asyncio{os.sep}" in name


# --- names for users --------------------------------------------------------------------------------------

_kernel: Kernel


def _flush() -> None:
    _kernel.streams.flush()


def on_fork(hook: Callable[[ForkInfo], Any]) -> Callable[[ForkInfo], Any]:
    """Call `hook` in each sandbox forked from this one, before it runs anything else. A decorator too."""
    if not callable(hook):
        raise TypeError("on_fork needs something to call")
    call = hook.func if isinstance(hook, functools.partial) else hook
    # inspect.iscoroutinefunction() would import inspect, for the flag that it reads.
    for one in (call, type(call).__call__):
        if getattr(getattr(one, "__code__", None), "co_flags", 0) & (_COROUTINE | _ASYNC_GENERATOR):
            raise TypeError("on_fork needs a synchronous function: a coroutine would never be awaited")
    _kernel.hooks.append(hook)
    return hook


def epoch() -> int:
    """How many forks lie between this sandbox and the start of its kernel."""
    return _kernel.channel.epoch


def sandbox() -> str:
    """The id of this sandbox."""
    return _kernel.sandbox


def seed() -> int | None:
    """The seed that this sandbox was forked with."""
    return _seeds.seed


def main(descriptor: int) -> None:
    """Serve the channel at `descriptor` until it ends."""
    global _kernel  # noqa: PLW0603 - there is one per process
    _kernel = Kernel(descriptor)
    _kernel.serve()
