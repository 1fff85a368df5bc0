"""Core itself, and the root that sandboxes get by default."""

from ramet._version import __version__
from ramet.doctor._host import Host
from ramet.doctor._model import Check, failed, passed, warned

__all__ = ["check_default_root", "check_program"]

_REINSTALL = "pip install --force-reinstall ramet"


def check_program(host: Host) -> Check:
    if host.program is None:
        return failed("program", host.program_fault or "ramet-core is missing", _REINSTALL)
    fault = _fault(host, str(host.program))
    if fault:
        return failed("program", f"{host.program} {fault}", _REINSTALL)
    return passed("program", f"{host.program}, static, {host.program_version}")


def _fault(host: Host, program: str) -> str | None:
    from ramet.engine.elf import ElfError, read_elf

    try:
        elf = read_elf(program)
    except (ElfError, OSError) as error:
        return f"cannot be read: {error}"
    if elf is None:
        return "is no program"
    if elf.interpreter or elf.needed:
        # It runs where no library of the host is: inside of any root.
        return f"is not static: it needs {elf.interpreter or elf.needed[0]}"
    if host.probe.fault:
        return f"does not answer: {host.probe.fault}"
    if host.program_version != __version__:
        return f"is of version {host.program_version or '?'}, Ramet of {__version__}"
    return None


def check_default_root(host: Host) -> Check:
    """Whether sandboxes have a shell and a Python, and which."""
    from ramet.engine.root import InterpreterFacts, default_root

    del host
    name = "default-root"
    spec = default_root(InterpreterFacts.current())
    notes = " ".join(spec.notes)
    if spec.python is None:
        return warned(name, f"sandboxes have no python3. {notes}".strip())
    if notes:
        return warned(name, f"python3 is {spec.python}. {notes}")
    return passed(name, f"python3 is {spec.python}; shown: {', '.join(bind.target for bind in spec.binds)}")
