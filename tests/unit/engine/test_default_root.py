"""The root that sandboxes get by default: what it holds, what it never holds, and that Python works in it."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.engine.root import (
    Dir,
    Entry,
    File,
    InterpreterFacts,
    RootSpec,
    Symlink,
    default_environment,
    default_root,
)
from ramet.errors import InvalidRequest
from unit.engine import interpreters


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the user in which interpreters may lie."""
    path = tmp_path / "home/me"
    path.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(path))
    for name in ("DATA", "CONFIG", "CACHE", "STATE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    return path


def by_path(spec: RootSpec) -> dict[str, Entry]:
    return {entry.path: entry for entry in spec.entries}


def targets(spec: RootSpec) -> list[str]:
    return [bind.target for bind in spec.binds]


def own_targets(spec: RootSpec) -> list[str]:
    """The binds beside those that every root has."""
    return [target for target in targets(spec) if target not in targets(default_root())]


# --- its shape


@pytest.fixture(scope="module")
def here() -> RootSpec:
    """The root for the interpreter that runs the tests."""
    return default_root(InterpreterFacts.current())


def test_every_entry_comes_after_the_directory_it_is_in(here):
    seen: set[str] = set()
    for entry in here.entries:
        assert entry.path not in seen
        assert entry.path == "/" or os.path.dirname(entry.path) in seen
        if isinstance(entry, Dir):
            seen.add(entry.path)
    assert here.entries[0] == Dir("/")


def test_paths_of_entries_are_normal(here):
    assert all(os.path.normpath(entry.path) == entry.path for entry in here.entries)


def test_every_bind_has_its_directory_and_nothing_lies_under_one(here):
    entries = by_path(here)
    for target in targets(here):
        assert isinstance(entries[target], Dir)
        assert not [path for path in entries if path.startswith(f"{target}/")]


def test_binds_are_read_only_and_at_their_own_paths(here):
    assert all(bind.read_only and str(bind.source) == bind.target for bind in here.binds)
    assert "/usr" in targets(here)


def test_usr_is_merged_as_on_this_host(here):
    entries = by_path(here)
    for name in ("/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(name):
            assert entries[name] == Symlink(name, os.readlink(name))
        elif os.path.isdir(name):
            assert name in targets(here)


def test_it_has_the_directories_that_programs_expect(here):
    entries = by_path(here)
    assert entries["/tmp"] == Dir("/tmp", 0o1777)
    assert entries["/var/tmp"] == Dir("/var/tmp", 0o1777)
    assert {"/dev", "/proc", "/run", "/home/user", "/opt", "/var/lib", "/var/log"} <= set(entries)
    assert {name for name in entries if name.startswith("/sys/")} == {"/sys/fs", "/sys/fs/cgroup"}


def test_accounts_are_its_own(here):
    entries = by_path(here)
    passwd = entries["/etc/passwd"]
    assert isinstance(passwd, File)
    rows = [line.split(":") for line in passwd.content.decode().splitlines()]
    assert [(row[0], row[2], row[5]) for row in rows] == [
        ("root", "0", "/home/user"),
        ("user", "1000", "/home/user"),
        ("nobody", "65534", "/nonexistent"),
    ]
    assert "/etc/shadow" not in entries
    assert entries["/etc/machine-id"] == File("/etc/machine-id", 0o644, b"")


def test_nothing_under_the_home_is_the_users(here):
    beneath = [entry for entry in here.entries if entry.path.startswith("/home/user/")]
    assert all(entry.path.startswith("/home/user/.python") for entry in beneath)


def test_no_variable_of_the_host_is_in_the_environment(monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    environment = default_environment(default_root())
    assert "SECRET" not in environment
    assert environment["HOME"] == "/home/user"
    assert environment["LANG"] == "C.UTF-8"
    assert environment["PATH"].endswith("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


def test_the_identity_is_stable_and_follows_the_interpreter(tmp_path):
    facts = interpreters.base(tmp_path / "py")
    first = default_root(facts, others=False)
    assert default_root(facts, others=False).identity == first.identity
    assert default_root().identity != first.identity
    os.utime(tmp_path / "py/bin/python3.11", ns=(5, 5))
    assert default_root(facts, others=False).identity != first.identity


# --- which interpreter


def test_without_an_interpreter_only_the_system_is_shown():
    spec = default_root()
    assert own_targets(spec) == []
    assert spec.notes == ()


def test_an_interpreter_of_the_system_needs_no_bind_of_its_own():
    spec = default_root(InterpreterFacts("/usr", "/usr", "/usr/bin/python3"))
    assert own_targets(spec) == []


def test_exactly_the_interpreters_directory_is_shown(home):
    facts = interpreters.base(home / ".pyenv/versions/3.11.7")
    spec = default_root(facts, others=False)
    assert own_targets(spec) == [facts.prefix]
    assert spec.python == f"{facts.prefix}/bin/python3"
    assert f"{facts.prefix}/bin" in spec.search_path
    assert by_path(spec)[str(home)] == Dir(str(home), 0o755)


def test_an_environment_and_what_it_stands_on_are_shown(home, tmp_path):
    base = interpreters.base(home / ".pyenv/versions/3.11.7")
    facts = interpreters.environment(tmp_path / "project/.venv", base)
    spec = default_root(facts, others=False)
    assert own_targets(spec) == sorted([base.prefix, facts.prefix])


def test_an_environment_inside_of_its_base_is_shown_once(tmp_path):
    base = interpreters.base(tmp_path / "py")
    facts = interpreters.environment(tmp_path / "py/envs/one", base)
    assert own_targets(default_root(facts, others=False)) == [base.prefix]


def test_the_home_has_an_environment_on_top_in_which_pip_can_install(tmp_path):
    base = interpreters.base(tmp_path / "py")
    facts = interpreters.environment(tmp_path / "venv", base)
    spec = default_root(facts, others=False)
    entries = by_path(spec)
    assert spec.python == "/home/user/.python/bin/python3"
    assert spec.search_path[0] == "/home/user/.python/bin"
    assert entries[spec.python] == Symlink(spec.python, facts.executable)
    config = entries["/home/user/.python/pyvenv.cfg"]
    assert isinstance(config, File)
    assert config.content.decode().splitlines() == [
        f"home = {base.prefix}/bin",
        "include-system-site-packages = false",
        "version = 3.11.7",
    ]
    assert "/home/user/.python/bin/pip" in entries
    assert default_environment(spec)["VIRTUAL_ENV"] == "/home/user/.python"


def test_only_a_numbered_python_is_found_by_its_usual_name(tmp_path):
    facts = interpreters.base(tmp_path / "py")
    (tmp_path / "py/bin/python3").unlink()
    facts = InterpreterFacts(facts.prefix, facts.prefix, f"{facts.prefix}/bin/python3.11")
    spec = default_root(facts, others=False)
    assert by_path(spec)["/home/user/.local/bin/python3"] == Symlink(
        "/home/user/.local/bin/python3", facts.executable
    )


def resolve(spec: RootSpec, path: str) -> str:
    """Where `path` leads inside, to the bind it ends in."""
    entries = by_path(spec)
    for _ in range(40):
        at = ""
        for name in path.strip("/").split("/"):
            at = f"{at}/{name}"
            if at in targets(spec):
                return path
            entry = entries.get(at)
            if isinstance(entry, Symlink):
                path = os.path.normpath(os.path.join(os.path.dirname(at), entry.target)) + path[len(at) :]
                break
            assert entry is not None, f"{at} is not there"
        else:
            return path
    raise AssertionError("a loop")


def test_a_prefix_behind_a_symlinked_parent_is_there_under_both_names(tmp_path):
    real = interpreters.base(tmp_path / "disk/versions/3.11.7")
    (tmp_path / "spelled").symlink_to("disk")
    spelled = f"{tmp_path}/spelled/versions/3.11.7"
    spec = default_root(InterpreterFacts(spelled, spelled, f"{spelled}/bin/python3"), others=False)
    assert own_targets(spec) == [real.prefix]
    assert resolve(spec, f"{spelled}/bin/python3") == f"{real.prefix}/bin/python3"
    assert spec.python == f"{spelled}/bin/python3"


def test_an_environment_made_through_a_symlinked_version_finds_its_base(tmp_path):
    """As uv lays it out: the environment knows its base by a name without the patch level."""
    base = interpreters.base(tmp_path / "uv/cpython-3.11.7")
    (tmp_path / "uv/cpython-3.11").symlink_to("cpython-3.11.7")
    alias = f"{tmp_path}/uv/cpython-3.11"
    facts = interpreters.environment(tmp_path / "venv", base, home=f"{alias}/bin")
    Path(facts.executable).unlink()
    Path(facts.executable).symlink_to(f"{alias}/bin/python3.11")
    spec = default_root(facts, others=False)
    assert own_targets(spec) == sorted([base.prefix, facts.prefix])
    assert resolve(spec, f"{alias}/bin/python3.11") == f"{base.prefix}/bin/python3.11"


def refused(facts: InterpreterFacts, **options: object) -> str:
    """The notes of a root that shows nothing of `facts`."""
    spec = default_root(facts, **{"others": False, **options})
    assert own_targets(spec) == []
    assert spec.python in ("/usr/local/bin/python3", "/usr/bin/python3", None)
    return " ".join(spec.notes)


def test_a_prefix_that_is_the_home_is_refused(home):
    assert f"contains {home}" in refused(interpreters.base(home))


def test_a_prefix_above_the_home_is_refused(home):
    assert f"contains {home}" in refused(interpreters.base(home.parent))


@pytest.mark.parametrize("place", [".local", ".config"])
def test_a_prefix_with_the_users_settings_in_it_is_refused(home, place):
    assert "contains" in refused(interpreters.base(home / place))


def test_a_prefix_with_the_runtime_directory_in_it_is_refused(tmp_path):
    facts = interpreters.base(tmp_path / "py")
    assert "py/run" in refused(facts, private=[tmp_path / "py/run"])


def test_a_home_that_is_an_environment_leaves_its_base(home, tmp_path):
    base = interpreters.base(tmp_path / "py")
    spec = default_root(interpreters.environment(home, base), others=False)
    assert own_targets(spec) == [base.prefix]
    assert spec.python == f"{base.prefix}/bin/python3"
    assert f"contains {home}" in spec.notes[0]


@pytest.mark.parametrize(
    "prefix", ["/", "/etc", "/home", "/tmp", "/var", "/opt", "/proc/self/root", "/dev/shm"]
)
def test_a_prefix_that_is_half_the_host_is_refused(prefix):
    assert "The Python of" in refused(InterpreterFacts(prefix, prefix, f"{prefix}/bin/python3"))


@pytest.mark.parametrize("prefix", ["", "relative", "/a\0b", "/nonexistent/python"])
def test_a_prefix_that_is_no_directory_is_refused(prefix):
    assert refused(InterpreterFacts(prefix, prefix, f"{prefix}/bin/python3"))


def test_a_directory_without_a_python_is_refused(tmp_path):
    (tmp_path / "py/bin").mkdir(parents=True)
    assert "holds no Python" in refused(
        InterpreterFacts(str(tmp_path / "py"), str(tmp_path / "py"), str(tmp_path / "py/bin/python3"))
    )


@pytest.mark.parametrize("closed", ["", "bin", "bin/python3.11", "lib/python3.11", "lib/python3.11/os.py"])
def test_an_interpreter_that_others_cannot_read_is_refused_where_ids_are_others(tmp_path, closed):
    facts = interpreters.base(tmp_path / "py")
    (tmp_path / "py" / closed).chmod(0o700)
    assert "could not read" in refused(facts, others=True)


def test_an_interpreter_that_others_can_read_is_shown(tmp_path):
    facts = interpreters.base(tmp_path / "py")
    assert own_targets(default_root(facts, others=True)) == [facts.prefix]


def test_an_interpreter_that_needs_a_library_from_elsewhere_is_refused(tmp_path):
    from unit.engine import elves

    elves.write(tmp_path / "brew/lib/libssl.so.3")
    facts = interpreters.base(tmp_path / "py", needed=("libssl.so.3",), runpath=str(tmp_path / "brew/lib"))
    notes = refused(facts)
    assert f"needs {tmp_path}/brew/lib/libssl.so.3" in notes
    assert "outside" in notes


def test_an_executable_outside_of_its_prefix_is_refused(tmp_path):
    facts = interpreters.base(tmp_path / "py")
    other = interpreters.base(tmp_path / "other")
    assert "is outside of" in refused(InterpreterFacts(facts.prefix, facts.prefix, other.executable))


# --- that it works


def lay_out(spec: RootSpec, top: Path) -> None:
    for entry in spec.entries:
        path = f"{top}{entry.path}"
        match entry:
            case Dir():
                os.makedirs(path, exist_ok=True)
                os.chmod(path, entry.mode | 0o200)
            case Symlink():
                os.symlink(entry.target, path)
            case File():
                Path(path).write_bytes(entry.content)
                os.chmod(path, entry.mode)


@pytest.fixture(scope="module")
def inside(here, tmp_path_factory):
    """Runs a command in the root, made with plain binds instead of core's overlay."""
    unshare = shutil.which("unshare")
    chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin")
    if not (unshare and chroot):
        pytest.skip("needs the programs unshare and chroot")
    if subprocess.run([unshare, "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel makes no user namespace for us")
    top = tmp_path_factory.mktemp("root")
    lay_out(here, top)
    mounts = "".join(
        f"mount --rbind {shlex.quote(str(bind.source))} {shlex.quote(f'{top}{bind.target}')} && "
        for bind in here.binds
    )

    def run(*command: str) -> str:
        line = f"{mounts} exec {chroot} {shlex.quote(str(top))} {shlex.join(command)}"
        done = subprocess.run(
            [unshare, "-Urm", "/bin/sh", "-c", line],
            env=default_environment(here),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_python3_inside_is_the_interpreter_that_runs_the_tests(here, inside):
    if here.notes:
        pytest.skip(" ".join(here.notes))
    program = "import sys, platform; print(platform.python_version(), sys.base_prefix)"
    assert inside("python3", "-c", program).split() == [
        ".".join(map(str, sys.version_info[:3])),
        sys.base_prefix,
    ]


def test_packages_of_the_environment_are_importable_inside(here, inside):
    if here.notes:
        pytest.skip(" ".join(here.notes))
    assert inside("python3", "-c", "import pytest; print(pytest.__version__)").strip() == pytest.__version__


def test_pip_installs_into_the_home(here, inside):
    if here.notes or sys.prefix == sys.base_prefix:
        pytest.skip("the tests run in no environment that can be shown")
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    assert inside("python3", "-c", program).startswith("/home/user/.python/lib/")


def test_the_shell_and_its_tools_run_inside(inside):
    assert inside("sh", "-c", "cd; pwd; echo a b | tr a-z A-Z").split() == ["/home/user", "A", "B"]


def test_links_through_etc_lead_somewhere_inside(inside):
    if not os.path.lexists("/etc/alternatives/awk"):
        pytest.skip("awk is not chosen by /etc/alternatives here")
    assert inside("awk", "BEGIN { print 6 * 7 }") == "42\n"


# --- tools


def test_tools_are_shown_read_only_and_first_in_the_path(tmp_path):
    (tmp_path / "tool/bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "tool")
    spec = default_root(tools=[str(tmp_path / "link"), str(tmp_path / "tool"), "/usr/share"], others=False)
    (bind,) = [bind for bind in spec.binds if bind.target in own_targets(spec)]
    assert (bind.target, bind.read_only) == (str(tmp_path / "tool"), True)
    assert spec.search_path[0] == f"{tmp_path}/tool/bin"
    assert spec.identity != default_root().identity


def test_a_tool_takes_the_place_of_what_lies_in_it(tmp_path):
    (tmp_path / "tools/inner").mkdir(parents=True)
    spec = default_root(tools=[str(tmp_path / "tools/inner"), str(tmp_path / "tools")], others=False)
    assert own_targets(spec) == [str(tmp_path / "tools")]


@pytest.mark.parametrize("path", ["/", "/home", "/tmp", "/var", "/etc/ssl", "/proc/self", "/run/user"])
def test_what_a_sandbox_has_of_its_own_is_no_tool(path):
    with pytest.raises(InvalidRequest) as caught:
        default_root(tools=[path])
    assert caught.value.field == "tools"


def test_what_is_private_missing_or_cannot_be_read_is_no_tool(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "file").touch()
    for path, private in (("closed", ()), ("file", ()), ("none", ()), ("", (tmp_path / "closed",))):
        with pytest.raises(InvalidRequest) as caught:
            default_root(tools=[str(tmp_path / path)], private=private, others=True)
        assert caught.value.field == "tools"
