"""Made-up interpreters on disk: as much of one as the choice of a root looks at."""

from pathlib import Path

from ramet.engine.root import InterpreterFacts
from unit.engine import elves


def base(prefix: Path, version: str = "3.11", **parts: object) -> InterpreterFacts:
    """An interpreter of its own, statically linked unless `parts` say otherwise."""
    elves.write(prefix / f"bin/python{version}", **parts)
    (prefix / "bin/python3").symlink_to(f"python{version}")
    (prefix / f"lib/python{version}").mkdir(parents=True)
    (prefix / f"lib/python{version}/os.py").write_text("")
    return InterpreterFacts(str(prefix), str(prefix), f"{prefix}/bin/python3")


def environment(prefix: Path, under: InterpreterFacts, *, home: str | None = None) -> InterpreterFacts:
    """A virtual environment of `under`, with pip."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python3").symlink_to(under.executable)
    (prefix / "lib/python3.11/site-packages/pip").mkdir(parents=True)
    home = home or f"{under.prefix}/bin"
    (prefix / "pyvenv.cfg").write_text(
        f"home = {home}\ninclude-system-site-packages = false\nversion = 3.11.7\nprompt = mine\n"
    )
    return InterpreterFacts(str(prefix), under.prefix, f"{prefix}/bin/python3")
