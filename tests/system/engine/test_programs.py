"""Real programs, which were never meant to be forked: interpreters, and NumPy in the middle of a product."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.core import _payloads
from system.engine import _engine
from system.engine._engine import Engine

BLAS = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "32"
try:
    import numpy
except ImportError:
    print("missing: NumPy", flush=True)
    sys.exit()
import ctypes, threading, time

# As many as there are processors are made at first, whatever the environment says.
for line in open("/proc/self/maps"):
    if "openblas" in line:
        blas = ctypes.CDLL(line.split()[-1])
        names = [f"{front}openblas_set_num_threads{back}" for front in ("scipy_", "") for back in ("64_", "")]
        for name in names:
            if hasattr(blas, name):
                getattr(blas, name)(32)
                break
        break

a = numpy.random.default_rng(1).random((200, 200))
b = a[::-1].copy()
wanted = sum(numpy.outer(a[:, i], b[i]) for i in range(200))
rounds, wrong, stop = 0, 0, False

def work():
    global rounds, wrong
    while not stop:
        wrong += not numpy.allclose(a @ b, wanted, rtol=1e-12, atol=0)
        rounds += 1
        time.sleep(0.02)  # for the others

worker = threading.Thread(target=work)
worker.start()
while rounds < 2:
    time.sleep(0.001)
count = len(os.listdir("/proc/self/task"))
print("READY" if count >= 32 else f"missing: BLAS with threads, there are {count}", flush=True)
sys.stdin.readline()
before = rounds
while rounds < before + 3:
    time.sleep(0.001)
stop = True
worker.join()
left = len(os.listdir("/proc/self/task"))  # one that was joined may be about to go
same = count - 1 <= left <= count
print("OK" if not wrong and same else f"{wrong} of {rounds} wrong, {left} threads of {count}", flush=True)
"""
NODE = """
const crypto = require("crypto");
const squares = new Map();
for (let i = 0; i < 20000; i++) squares.set(i, i * i);
const text = Buffer.alloc(1 << 20, "node");
const digest = (data) => crypto.createHash("sha256").update(data).digest("hex");
const wanted = digest(text);
let ticks = 0, sum = 0;
setInterval(() => ticks++, 5);
for (const square of squares.values()) sum += square;
process.stdin.on("data", () => {
    const before = ticks;
    let again = 0;
    for (const square of squares.values()) again += square;
    // By a thread of its pool.
    crypto.pbkdf2("a", "b", 1000, 32, "sha256", (error, key) => {
        const right = crypto.pbkdf2Sync("a", "b", 1000, 32, "sha256").equals(key);
        const wait = () => {
            if (ticks < before + 3) return setTimeout(wait, 2);
            console.log(!error && right && again === sum && digest(text) === wanted ? "OK" : "wrong");
            process.exit();
        };
        wait();
    });
});
crypto.pbkdf2("c", "d", 10, 32, "sha256", () => console.log("READY"));
"""
BASH = """
declare -A words; list=()
for i in {1..2000}; do words[w$i]=$((i * i)); list+=($i); done
printf 'one\\ntwo\\n' > /tmp/lines; exec 6</tmp/lines
read -r first <&6
trap 'heard=yes' USR1
fails() { return 3; }
echo READY
read -r go
kill -USR1 $$; fails; code=$?
read -r second <&6
sum=0; for i in "${list[@]}"; do ((sum += words[w$i] - i * i)); done
state="$heard $code $first $second $sum ${#words[@]} $(echo in a subshell)"
[ "$state" = "yes 3 one two 0 2000 in a subshell" ] && echo OK || echo "$state"
"""
PERL = """
$| = 1;
my %squares = map { $_ => $_ ** 2 } 1 .. 20000;
my $count = 0;
my $next = sub { ++$count };
$next->() for 1 .. 5;
open(my $file, "+>", "/tmp/lines") or die; print $file "one\\ntwo\\n"; seek($file, 0, 0);
my $first = <$file>;
local $SIG{USR1} = sub { $count += 100 };
print "READY\\n";
my $go = <STDIN>;
kill USR1 => $$;
my $second = <$file>;
my $wrong = grep { $squares{$_} != $_ ** 2 } keys %squares;
my @state = ($next->(), $wrong, scalar(keys %squares), $first, $second, `echo child`);
my $state = join(" ", @state) =~ s/\\n/,/gr;
print $state eq "106 0 20000 one, two, child," ? "OK\\n" : "$state\\n";
"""
JOBS = """
(read -r word <&7; exit 3) 7< <(sleep 1000) & sleeper=$!
{ echo unread; exec sleep 1000; } > /tmp/out & writer=$!
(exit 5) & ended=$!
coproc double { while read -r n; do echo $((n + n)); done; }
until [ -s /tmp/out ]; do :; done
while [ -d /proc/$ended ] && ! grep -q Z /proc/$ended/stat; do :; done
echo READY
read -r go
echo 21 >&${double[1]}; read -r doubled <&${double[0]}
kill $sleeper $writer
wait $ended; a=$?; wait $sleeper; b=$?; wait $writer; c=$?
state="$doubled $a $b $c $(cat /tmp/out)"
[ "$state" = "42 5 143 143 unread" ] && echo OK || echo "$state"
"""
DRIVES = """
import subprocess, sys
text = "for line in iter(input, 'end'): print(eval(line), flush=True)"
child = subprocess.Popen([sys.executable, "-I", "-c", "x = 40\\n" + text], stdin=-1, stdout=-1, text=True)
def ask(line):
    print(line, file=child.stdin, flush=True)
    return child.stdout.readline().strip()
assert ask("x + 1") == "41"
print("'asked before'", file=child.stdin, flush=True)
print("READY", flush=True)
sys.stdin.readline()
state = [child.stdout.readline().strip(), ask("x + 2"), ask("__import__('os').getppid()")]
print("end", file=child.stdin, flush=True)
state += [child.wait(), subprocess.run(["echo", "new"], capture_output=True).stdout]
import os
wanted = ["asked before", "42", str(os.getpid()), 0, b"new\\n"]
print("OK" if state == wanted else state, flush=True)
"""
SERVES = """
import http.client, os, subprocess, sys, time
os.mkdir("/tmp/served")
open("/tmp/served/page", "w").write("text")
argv = [sys.executable, "-I", "-m", "http.server", "8000", "--bind", "127.0.0.1", "-d", "/tmp/served"]
server = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
def get():
    for _ in range(2000):
        connection = http.client.HTTPConnection("127.0.0.1", 8000)
        try:
            connection.request("GET", "/page")
            return connection.getresponse().read()
        except ConnectionRefusedError:
            time.sleep(0.005)
assert get() == b"text"
print("READY", flush=True)
sys.stdin.readline()
open("/tmp/served/page", "w").write("later")
state = [get(), server.poll()]
server.terminate()
state.append(server.wait())
print("OK" if state == [b"later", None, -15] else state, flush=True)
"""
POOL = """
import multiprocessing, os, sys
def square(n):
    counter.value += 1
    return n * n, os.getpid()
def run(pool, n):
    results = pool.map(square, range(n), chunksize=1)
    right = sum(square for square, _ in results) == sum(i * i for i in range(n))
    return right and len({pid for _, pid in results}) <= 3
counter = multiprocessing.Value("i", 0)
with multiprocessing.get_context("fork").Pool(3) as pool:
    right = run(pool, 30)
    before = counter.value
    slow = pool.apply_async(__import__("time").sleep, (0.05,))
    print("READY", flush=True)
    sys.stdin.readline()
    right = right and run(pool, 60) and slow.get(10) is None
    state = [right, before, counter.value > before]
print("OK" if state[0] and state[2] else state, flush=True)
"""
SQLITE = """
import os, sqlite3, subprocess, sys
other = '''
import sqlite3
db = sqlite3.connect("/tmp/data", timeout=0, isolation_level=None)
while True:
    try:
        print(db.execute(input()).fetchone(), flush=True)
    except sqlite3.OperationalError as error:
        print(error, flush=True)
'''
def ask(text):
    print(text, file=child.stdin, flush=True)
    return child.stdout.readline().strip()
COUNT = "select count(*) from t"
db = sqlite3.connect("/tmp/data", isolation_level=None)
db.execute(f"pragma journal_mode={sys.argv[1]}")
db.execute("pragma cache_size=5")
db.execute("create table t (n integer primary key, text)")
db.executemany("insert into t values (?, hex(randomblob(200)))", [(n,) for n in range(500)])
child = subprocess.Popen([sys.executable, "-I", "-c", other], stdin=-1, stdout=-1, text=True)
assert ask(COUNT) == "(500,)"
db.execute("begin immediate")
db.execute("update t set text = 'x' || text where n % 3 = 0")
db.executemany("insert into t values (?, hex(randomblob(200)))", [(n,) for n in range(500, 600)])
print("READY", flush=True)
sys.stdin.readline()
state = [ask("begin immediate")]
try:
    db.executemany("insert into t values (?, 'later')", [(n,) for n in range(600, 700)])
    db.execute("commit")
    state += [ask(COUNT)]
    db.execute("begin immediate")
    db.execute("delete from t where n >= 650")
    db.execute("rollback")
    db.execute("insert into t values (700, 'last')")
    state += [ask(COUNT), db.execute("pragma integrity_check").fetchone()[0]]
    state += [db.execute("select count(*) from t where text like 'x%'").fetchone()[0]]
    state += [ask("insert into t values (701, 'of the other')"), db.execute(COUNT).fetchone()[0]]
except sqlite3.OperationalError as error:
    state += [str(error), getattr(error, "sqlite_errorname", "")]
wanted = ["database is locked", "(700,)", "(701,)", "ok", 167, "None", 702]
print("OK" if state == wanted else state, flush=True)
"""
TERMINAL = """
import fcntl, os, pty, select, struct, sys, termios
name, argv = sys.argv[1], sys.argv[2:]
os.environ.update(TERM="vt100", PS1="> ", HOME="/tmp")
pid, master = pty.fork()
if pid == 0:
    os.execv(argv[0], argv)
heard = b""
def hear(word):
    global heard
    while word.encode() not in heard:
        if not select.select([master], [], [], 20)[0]:
            raise SystemExit(f"no {word!r} in {heard!r}")
        heard += os.read(master, 4096)
    heard = heard.partition(word.encode())[2]
def say(text, word):
    os.write(master, text.encode())
    return hear(word)
def resize(rows):
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
def prepare_bash():
    hear("> ")
    say("trap 'echo resized $(stty size)' WINCH; n=7; sleep 1000 &\\n", "[1]")
    say("echo pre''pared\\n", "prepared")
    hear("> ")
    os.write(master, b"echo half")
    hear("echo half")
def check_bash():
    say("-line $n $(tty)\\n", "half-line 7 /dev/pts/0")
    say("jobs\\n", "Running")
    resize(30)
    say("\\n", "resized 30 80")
    say("printf 'as''k: '; read -r word; echo got $word\\n", "ask: ")
    say("typed\\n", "got typed")
    say("sh -c 'echo be''gun; exec sleep 1000'\\n", "begun")
    say("\\x03", "> ")
    say("echo interrupted $?; kill %1; wait %1; echo ended $?\\n", "interrupted 130")
    hear("ended 143")
    say("exit 3\\n", "exit")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
def prepare_python():
    hear(">>> ")
    say("import os, threading; x = 40\\n", ">>> ")
    say("def f(n):\\n", "... ")
    say("    return x +", "+")
def check_python():
    say(" n\\n", "... ")
    say("\\n", ">>> ")
    say("f(2), os.ttyname(0)\\n", "(42, '/dev/pts/0')")
    say("import time\\n", ">>> ")
    say("exec('print(chr(98) + str(1))\\\\nwhile 1: time.sleep(.01)')\\n", "b1")
    say("\\x03", "KeyboardInterrupt")
    say("exit(4)\\n", "exit(4)")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
def prepare_vi():
    hear("[New")
    say("ione\\rtwo", "two")
def check_vi():
    resize(12)
    say(" and more\\x1b", "more")
    say(":wq\\r", "written")
    os.waitpid(pid, 0)
    return open("/tmp/text").read() == "one\\ntwo and more\\n"
globals()["prepare_" + name]()
print("READY", flush=True)
sys.stdin.readline()
try:
    print("OK" if globals()["check_" + name]() else "wrong", flush=True)
except (SystemExit, OSError) as error:
    print(error, flush=True)
"""


@pytest.fixture(scope="module")
def shared_engine(victims_dir: Path, ledger: None) -> Iterator[Engine]:
    """A core whose root has the interpreter."""
    engine = _engine.start_engine(victims_dir, python=True)
    yield engine
    engine.core.shut_down()
    engine.core.discard()


def check(engine: Engine, argv: list[str], *, asleep: bool = False) -> None:
    source = engine.start(argv)
    try:
        source.ready()
    except _engine.Missing as missing:
        pytest.skip(str(missing))
    _engine.all_right(_engine.family(engine, source, asleep=asleep), asleep=asleep)


def test_numpy_in_32_threads_of_blas_computes_what_it_should_in_every_fork(engine: Engine) -> None:
    check(engine, [_payloads.PYTHON, "-I", "-c", BLAS])


@pytest.mark.parametrize(
    "name, flag, text",
    [("node", "-e", NODE), ("bash", "-c", BASH), ("perl", "-e", PERL)],
    ids=["node", "bash", "perl"],
)
def test_an_interpreter_goes_on_in_every_fork(engine: Engine, name: str, flag: str, text: str) -> None:
    path = shutil.which(name, path="/usr/bin:/bin")
    if path is None:
        pytest.skip(f"there is no {name}")
    check(engine, [path, flag, text])


def test_a_shell_has_its_jobs_its_coprocess_and_how_they_ended_in_every_fork(engine: Engine) -> None:
    path = shutil.which("bash", path="/usr/bin:/bin")
    if path is None:
        pytest.skip("there is no bash")
    check(engine, [path, "-c", JOBS], asleep=True)


@pytest.mark.parametrize("text", [DRIVES, SERVES, POOL], ids=["drives", "serves", "pool"])
def test_python_goes_on_with_its_child_processes_in_every_fork(engine: Engine, text: str) -> None:
    check(engine, [_payloads.PYTHON, "-I", "-c", text])


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite_ends_its_transaction_in_every_fork(engine: Engine, journal: str) -> None:
    check(engine, [_payloads.PYTHON, "-I", "-c", SQLITE, journal])


@pytest.mark.parametrize(
    "name, argv",
    [
        ("bash", ["bash", "--norc", "--noprofile", "-i"]),
        ("python", [_payloads.PYTHON, "-I", "-i"]),
        ("vi", ["vim.basic", "-u", "NONE", "/tmp/text"]),
    ],
    ids=["bash", "python", "vi"],
)
def test_a_program_in_a_terminal_of_its_parents_goes_on_in_every_fork(
    engine: Engine, name: str, argv: list[str]
) -> None:
    """What is typed reaches it, its jobs and its size are its own, and what was half typed is not lost."""
    path = shutil.which(argv[0], path="/usr/bin:/bin")
    if path is None:
        pytest.skip(f"there is no {argv[0]}")
    check(engine, [_payloads.PYTHON, "-I", "-c", TERMINAL, name, path, *argv[1:]])
