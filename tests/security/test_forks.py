"""A fork gives a child what its parent had open, and nothing of those who make it."""

import sys
from collections.abc import Iterator

import pytest

import ramet
from ramet.errors import Unforkable
from security.conftest import INSIDE
from system.sandbox._repl import PYTHON, ask, tell

OF_INIT = [
    *(
        f"/proc/1/{name}"
        for name in ("mem", "maps", "environ", "pagemap", "auxv", "exe", "root", "cwd", "syscall")
    ),
    *(f"/proc/1/{place}/{fd}" for place in ("fd", "fdinfo") for fd in range(24)),
    "/proc/1/ns/mnt",
    "/proc/1/ns/pid",
    "/proc/1/task/1/mem",
]
"""What would be init's memory, descriptors, program and namespaces."""
REACHED = """
def reached(path):
    look = (lambda path: attempt(os.listdir, path)) if os.path.isdir(path) else read
    return "" in (look(path), opened(path, os.O_RDWR), attempt(os.chdir, path))
"""
"""Some files refuse only who reads them."""
OPENED = "[path for path in places if reached(path)]"
READ = "[path for path in places if attempt(os.readlink, path) == '']"
QUEUE = """
O_RDWR_CREAT = 0o102
def queue(name):
    fd = call(240, name, O_RDWR_CREAT, 0o600, 0)
    assert fd > 2, fd
    return fd
"""


@pytest.fixture
def python() -> Iterator[ramet.Sandbox]:
    """A Python that answers lines, and knows `call` and its like (_inside.py)."""
    with ramet.Sandbox(command=PYTHON) as sandbox:
        tell(sandbox, INSIDE)
        yield sandbox


def test_nothing_of_init_can_be_opened_before_or_after_a_fork(python):
    tell(python, REACHED, f"places = {OF_INIT}")
    with python.fork(2) as children:
        for sandbox in (python, *children):
            assert ask(sandbox, OPENED) == "[]"
            assert ask(sandbox, READ) == "[]"
        with children[0].fork() as grandchild:
            assert ask(grandchild, OPENED) == "[]"


def test_nothing_of_init_can_be_opened_in_the_first_moments_of_a_child(python):
    """It tries all the time, in the child from its first instruction on."""
    tell(
        python,
        f"places = {[place for place in OF_INIT if '/fd/' in place]}",
        "import threading",
        "found = []",
        "def look():\n while True:\n  found.extend(path for path in places if opened(path) == '')",
        "threading.Thread(target=look, daemon=True).start()",
    )
    for _ in range(5):
        with python.fork(4) as children:
            assert [ask(child, "found") for child in children] == ["[]"] * 4


@pytest.mark.parametrize(
    "target", ["/proc/1/fd/7", "/proc/1/mem", "/proc/1/exe", "/proc/1/maps", "/proc/1/root", "/etc/passwd"]
)
def test_a_link_of_the_name_of_a_queue_gives_nothing_to_a_child(python, target):
    """/proc tells of a queue by a path of a mount that is not the sandbox's."""
    tell(python, QUEUE, f"os.symlink({target!r}, '/q')", "fd = queue('q')")
    with pytest.raises(Unforkable, match="is a message queue"):
        python.fork()
    tell(python, "os.close(fd)", "assert call(241, 'q') == 0", "held = open('/etc/passwd')")
    with python.fork() as child:
        assert ask(child, "os.readlink(f'/proc/self/fd/{held.fileno()}')") == "'/etc/passwd'"


@pytest.mark.parametrize(
    "path", ["/proc/1/status", "/proc/self/maps", "/proc/net/dev", "/proc/1", "/proc/self/fd"]
)
def test_a_file_of_proc_that_names_a_process_is_refused(python, path):
    tell(python, f"fd = os.open({path!r}, os.O_RDONLY)")
    with pytest.raises(Unforkable, match="is a file of /proc"):
        python.fork()
    tell(python, "os.close(fd)")
    python.fork().close()


def test_links_in_the_place_of_files_that_init_writes_lead_it_nowhere(python):
    """/etc and /tmp are the guest's own; init writes files there."""
    tell(
        python,
        "import shutil, tempfile",
        "os.makedirs('/aside')",
        "[open(f'/aside/{name}', 'w').write('as it was') for name in ('hostname', 'hosts', 'machine-id')]",
        "shutil.rmtree('/etc'), os.symlink('/aside', '/etc')",
        "f = tempfile.TemporaryFile(dir='.')",
        "f.write(b'kept'), f.flush()",
    )
    # Where the interpreter is shown there, it cannot be taken away.
    place = "/t" if sys.prefix.startswith("/tmp/") else "/#"
    if place == "/#":
        tell(python, "shutil.rmtree('/tmp'), os.symlink('/proc/1/root', '/tmp')")
    with python.fork() as child:
        assert ask(child, "open('/aside/machine-id').read()") == "'as it was'"
        assert ask(child, "open('/aside/hosts').read()") == "'as it was'"
        assert ask(child, "open('/aside/hostname').read()") == "'as it was'"
        assert ask(child, "f.seek(0), f.read()") == "(0, b'kept')"
        assert ask(child, "os.readlink(f'/proc/self/fd/{f.fileno()}')[:2]") == repr(place)
