"""What an image needs of a machine: its vdso, which processes have mapped, and instructions they have chosen.

A process finds out once what the processor can do and keeps pointers to fitting code; on a machine that lacks
an instruction it would die of SIGILL somewhere. The vdso holds code whose addresses the process remembers.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import re
from pathlib import Path
from typing import Any, Self

from ramet.errors import SnapshotUnusable
from ramet.store.blocks import Malformed, digest

# Flags of /proc/cpuinfo that stand for instructions of user space. The others (mitigations, virtualization,
# timers) come and go with kernels and hypervisors and mean nothing to a process.
_INSTRUCTIONS = re.compile(
    r"3dnow\w*|abm|adx|aes|amx_\w+|apx\w*|avx\w*|bmi\d|cldemote|clflush(?:opt)?|clwb|clzero|cmov|cmpccxadd|cx8|cx16"
    r"|enqcmd|erms|f16c|fma4?|fsgsbase|fsr[cm]|fxsr|fzrm|gfni|hle|lahf_lm|lwp|mmx\w*|movbe|movdir\w+|ospke|pclmulqdq"
    r"|pku|pni|popcnt|prefetchi|rd(?:pid|pru|rand|seed|tscp)|rtm|serialize|sha_ni|sha512|sm[34]|sse\w*|ssse3|tbm"
    r"|tsxldtrk|uintr|user_shstk|vaes|vpclmulqdq|waitpkg|xop|xsave\w*|xgetbv1"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """`vdso` is a hash of its code, `kernel` the release, which is only told and never compared."""

    arch: str
    kernel: str
    vdso: str
    features: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**dataclasses.asdict(self), "features": list(self.features)}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """From JSON. Raises Malformed."""
        if not isinstance(data, dict) or data.keys() != {"arch", "kernel", "vdso", "features"}:
            raise Malformed("the machine is not described")
        features = data["features"]
        texts = [
            data["arch"],
            data["kernel"],
            data["vdso"],
            *(features if isinstance(features, list) else [0]),
        ]
        if not all(isinstance(text, str) for text in texts):
            raise Malformed("the machine is not described in words")
        return cls(data["arch"], data["kernel"], data["vdso"], tuple(features))

    def refuse_others(self, here: Machine, name: str) -> None:
        """Raise SnapshotUnusable when `here` is no machine that an image of this one runs on."""
        if here.arch != self.arch:
            raise SnapshotUnusable(
                "processor_lacks",
                f"the snapshot {name!r} is of a {self.arch} machine, this is {here.arch}",
                snapshot=name,
            )
        if missing := sorted(set(self.features) - set(here.features)):
            raise SnapshotUnusable(
                "processor_lacks",
                f"the snapshot {name!r} needs what this processor lacks: {', '.join(missing)}",
                snapshot=name,
                hint="take it on the oldest machine that it shall run on",
            )
        if here.vdso != self.vdso:
            raise SnapshotUnusable(
                "vdso_differs",
                f"the snapshot {name!r} was taken under Linux {self.kernel}, and the vdso of this kernel,"
                f" {here.kernel}, is another",
                snapshot=name,
                hint="make it anew under this kernel",
            )


@functools.cache
def here() -> Machine:
    """This machine. Read once: nothing of it changes while the kernel runs."""
    uname = os.uname()
    return Machine(uname.machine, uname.release, digest(vdso()).hex(), processor_features())


def vdso() -> bytes:
    """The code that the kernel has mapped into this process. Empty where it maps none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            start, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                return memory.read(end - start)
    return b""


def processor_features(cpuinfo: str | None = None) -> tuple[str, ...]:
    """What every processor here can do that a program may use, sorted."""
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    lists = re.findall(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
    common = set.intersection(*[set(line.split()) for line in lists]) if lists else set()
    if platform.machine() == "x86_64" or "flags" in text:
        common = {flag for flag in common if _INSTRUCTIONS.fullmatch(flag)}
    return tuple(sorted(common))
