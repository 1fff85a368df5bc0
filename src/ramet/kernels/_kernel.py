"""The kernels that there are."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from ramet.errors import InvalidRequest
from ramet.kernels import _codec
from ramet.models.names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """How a kernel is started and spoken to."""

    name: str
    argv: tuple[str, ...]
    """What starts it in a root, with the channel at descriptor 3 and RAMET_CHANNEL=3 in the environment."""
    channel: Literal["packets", "lines"]
    source: bytes
    """Its program, sent as the first message; empty if `argv` needs none."""
    loader: bytes = b""
    """For packets: a packet before the source, for programs too long for `argv`."""
    requests: Literal["json", "fields"] = "json"
    interrupt: Literal["process", "group"] = "process"
    """Whether SIGINT goes to the kernel's process, or to its process group, as from a terminal."""

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises InvalidRequest."""
        check_name(self.name, "kernel")
        if not self.argv:
            raise InvalidRequest.of("argv", "must name a program")
        if self.channel == "packets" and self.requests == "fields":
            raise InvalidRequest.of("requests", "fields are for channels of lines")

    def opening(self) -> list[bytes]:
        """What is sent before everything else, write by write."""
        if not self.source:
            return []
        if self.channel == "packets":
            return [*(_codec.packets(self.loader) if self.loader else ()), *_codec.packets(self.source)]
        if self.requests == "fields":
            return [_codec.escape(self.source.decode()).encode() + b"\n"]
        return [_codec.as_json({"op": "load", "source": self.source.decode()}) + b"\n"]

    def request(self, message: Mapping[str, Any]) -> list[bytes]:
        """`message` as it is sent, write by write."""
        if self.channel == "packets":
            return _codec.packets(_codec.as_json(message), first=message["op"] == "forked")
        write = _codec.as_fields if self.requests == "fields" else _codec.as_json
        return [write(message) + b"\n"]

    def fresh(self, forked: Mapping[str, Any]) -> list[bytes]:
        """What a fresh channel begins with: the message `forked`, safe from what was under way."""
        sent = self.request(forked)
        return sent if self.channel == "packets" else [_codec.FRESH, *sent]


_PYTHON_START = "import os;exec(os.read(int(os.environ['RAMET_CHANNEL']),32768)[1:])"

# The kernel has names of its own for the builtins, which code may delete.
_PYTHON_LOADER = b"""\
import builtins, linecache, os, sys, types
number, source, more = int(os.environ.pop("RAMET_CHANNEL")), b"", 1
while more:
    packet = os.read(number, 32768)
    more, source = packet[0] & 1, source + packet[1:]
module = sys.modules["ramet_kernel"] = types.ModuleType("ramet_kernel")
module.__dict__["__builtins__"] = dict(vars(builtins))
text = source.decode()
linecache.cache["<ramet_kernel>"] = len(text), None, text.splitlines(True), "<ramet_kernel>"
exec(compile(text, "<ramet_kernel>", "exec"), module.__dict__)
module.main(number)
"""

# An interactive shell survives errors that end another one, and goes on after an interrupt; each prompt runs
# PROMPT_COMMAND, and no prompt is ever seen. Without a terminal it complains while it starts.
_BASH_START = (
    "exec 9>&2; PS1= PS2= PROMPT_COMMAND='IFS= read -r __ramet_source <&$RAMET_CHANNEL;"
    'printf -v __ramet_source %b "$__ramet_source"; eval "$__ramet_source"\' '
    "exec bash --noprofile --norc -i 2>/dev/null"
)

# In a block: what a script declares at its top, no cell could declare again.
_NODE_START = (
    "{const f=require('fs'),n=+process.env.RAMET_CHANNEL,b=Buffer.alloc(1),s=[];"
    "while(f.readSync(n,b,0,1)&&b[0]!==10)s.push(b[0]);"
    "require('vm').runInThisContext(JSON.parse(Buffer.from(s).toString()).source,"
    "{filename:'<ramet_kernel>',importModuleDynamically:(m)=>import(m)})(require,n)}"
)

# OpenSSL knows a fork by another pid, and that of a forked sandbox is the same. Nothing in node reseeds it,
# and an engine that is set later is not asked. So random bytes come from the processor, and from the start,
# where it and OpenSSL can. Elsewhere the kernel says after each fork that they repeat.
_NODE_SHELL = """\
config='nodejs_conf=node
[node]
engines=engines
[engines]
rdrand=rdrand
[rdrand]
engine_id=rdrand
default_algorithms=RAND
init=1'
if printf '%s\\n' "$config" | node --openssl-config=/dev/stdin -e 0 >/dev/null 2>&1
then exec node --openssl-config=/dev/fd/9 --expose-internals -e "$1" 9<<END
$config
END
fi
exec node --expose-internals -e "$1"
"""


def _source(path: str) -> bytes:
    return resources.files("ramet.kernels").joinpath(path).read_bytes()


def _python() -> Kernel:
    return Kernel(
        name="python",
        argv=("python3", "-c", _PYTHON_START),
        channel="packets",
        loader=_PYTHON_LOADER,
        source=_source("python/ramet_kernel.py"),
    )


def _bash() -> Kernel:
    return Kernel(
        name="bash",
        argv=("bash", "-c", _BASH_START),
        channel="lines",
        requests="fields",
        interrupt="group",
        source=_source("bash/ramet_kernel.bash"),
    )


def _node() -> Kernel:
    return Kernel(
        name="node",
        argv=("sh", "-c", _NODE_SHELL, "sh", _NODE_START),
        channel="lines",
        source=_source("node/ramet_kernel.js"),
    )


_known: dict[str, Callable[[], Kernel]] = {
    "python": functools.cache(_python),
    "bash": functools.cache(_bash),
    "node": functools.cache(_node),
}


def names() -> list[str]:
    """Names of all kernels."""
    return sorted(_known)


def get(name: str) -> Kernel:
    """The kernel of that name. Raises InvalidRequest."""
    made = _known.get(name)
    if made is None:
        near = difflib.get_close_matches(name, _known, 1)
        hint = f"did you mean {near[0]!r}?" if near else None
        raise InvalidRequest.of(
            "kernel", f"there is no {name[:80]!r}; there are {', '.join(names())}", hint=hint
        )
    return made()


def register(kernel: Kernel) -> None:
    """Add a kernel of one's own. Raises InvalidRequest when there is one of that name."""
    if kernel.name in _known:
        raise InvalidRequest.of("kernel", f"there is a {kernel.name!r} already")
    _known[kernel.name] = lambda: kernel
