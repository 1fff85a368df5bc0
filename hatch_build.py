"""Builds core/ with meson and puts the program into the wheel.

Runs inside pip's build environment, so it may import only hatchling and what `build-system.requires` names.
As a program, `python hatch_build.py`, it builds into build/core and installs the program into the checkout.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TAG = "py3-none-manylinux_2_17_x86_64.musllinux_1_1_x86_64"
PROGRAM = "ramet-core"
RESTORER = "librestorer.a.p/pie_restorer.c.o"
CHECK = Path(__file__).resolve().parent / "scripts/check_elf.py"
ZIG_REQUIREMENT = "ziglang>=0.13"
ZIG_TARGET = "x86_64-linux-musl"


def links_static(compiler: list[str]) -> bool:
    """Whether `compiler` runs and can link a static x86-64 program, which needs a static libc beside it."""
    with tempfile.TemporaryDirectory(prefix="ramet-cc-") as scratch:
        source = Path(scratch, "probe.c")
        source.write_text(
            '#include <stdio.h>\n#include <linux/types.h>\nint main(void) { return puts("") < 0; }\n'
        )
        probe = [*compiler, "-m64", "-static", "-o", str(source.with_suffix("")), str(source)]
        try:
            return subprocess.run(probe, capture_output=True, timeout=120, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False


def system_compiler() -> list[str] | None:
    """The C compiler at hand, None where there is none. A $CC that does not serve is an error, not a hint."""
    if named := os.environ.get("CC"):
        if not links_static(shlex.split(named)):
            sys.exit(f"CC={named} cannot link a static x86-64 program: install its static libc or unset CC")
        return shlex.split(named)
    return next(
        ([name] for name in ("cc", "gcc", "clang") if shutil.which(name) and links_static([name])), None
    )


def native_file(directory: Path) -> Path:
    """A meson file that names the tools: the compiler at hand, else the ziglang wheel with its musl."""
    if compiler := system_compiler():
        tools = {"c": compiler}
    else:
        zig = [sys.executable, "-m", "ziglang"]
        tools = {"c": [*zig, "cc", "-target", ZIG_TARGET], "ar": [*zig, "ar"], "ranlib": [*zig, "ranlib"]}
    path = directory / "tools.ini"
    path.write_text("[binaries]\n" + "".join(f"{name} = {words!r}\n" for name, words in tools.items()))
    return path


def build_core(source: Path, build: Path, *, incremental: bool = False) -> Path:
    """Compile `source` in `build`; return the program, without symbols."""
    build.mkdir(parents=True, exist_ok=True)
    scripts = sysconfig.get_path("scripts")
    cache = str(build / "zig-cache")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((scripts, os.environ.get("PATH", os.defpath))),
        # Without these zig leaves 80 MB in the user's home.
        "ZIG_GLOBAL_CACHE_DIR": cache,
        "ZIG_LOCAL_CACHE_DIR": cache,
    }
    environment.pop("CC", None)  # already in the native file; meson would let it win
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    steps = []
    if not (incremental and (build / "build.ninja").exists()):
        tools = str(native_file(build))
        options = ["--buildtype=release", "-Dwerror=false", "-Dc_link_args=-s", f"--native-file={tools}"]
        steps.append([*meson, "setup", *options, str(build), str(source)])
    steps.append([*meson, "compile", "-C", str(build), PROGRAM])
    # Not seen in the linked program: a constant that the compiler put beside the restorer kills each fork.
    steps.append([sys.executable, str(CHECK), "--restorer", str(build / RESTORER)])
    for step in steps:
        # No traceback: it would push the compiler's words out of sight.
        if status := subprocess.run(step, env=environment, check=False).returncode:
            words = " ".join(step[1:4])
            sys.exit(f"core could not be built; what the tools said is above ({words}: exit status {status})")
    return build / PROGRAM


def install(program: Path, directory: Path) -> Path:
    """Copy by rename: the program that stands there may be running, and then cannot be written (ETXTBSY)."""
    directory.mkdir(parents=True, exist_ok=True)
    fresh, target = directory / f".{PROGRAM}.{os.getpid()}", directory / PROGRAM
    shutil.copyfile(program, fresh)
    fresh.chmod(0o755)
    fresh.replace(target)
    return target


class CoreBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `ramet/_native/ramet-core`, and the platform tag that a static program deserves."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What pip must add to the build environment."""
        return [] if system_compiler() else [ZIG_REQUIREMENT]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before the wheel is written; `version` is "standard" or "editable"."""
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            sys.exit(f"Ramet runs on Linux x86-64; this is {sys.platform} {platform.machine()}")
        root = Path(self.root)
        self.scratch = tempfile.TemporaryDirectory(prefix="ramet-build-")
        # A copy beside the build directory gives the compiler the same relative paths everywhere, so that two
        # builds of one commit are equal byte for byte; and the source tree may be read-only.
        source = shutil.copytree(root / "core", Path(self.scratch.name, "core"))
        program = build_core(source, Path(self.scratch.name, "build"))
        build_data["pure_python"] = False
        build_data["tag"] = TAG
        if version == "editable":
            install(program, root / "src/ramet/_native")
        else:
            build_data["force_include"][str(program)] = f"ramet/_native/{PROGRAM}"

    def finalize(self, *_: object) -> None:
        """Remove the scratch directory, which had to live until the wheel was written."""
        self.scratch.cleanup()


if __name__ == "__main__":
    checkout = Path(__file__).resolve().parent
    built = build_core(checkout / "core", checkout / "build/core", incremental=True)
    install(built, checkout / "src/ramet/_native")
