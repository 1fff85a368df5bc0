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
