"""`ramet sandbox`, `ramet fork`, `ramet snapshot`: sandboxes that outlive the command that made them."""

import json

import pytest

from ramet import sandboxes, snapshots

SLEEP = ("--", "sh", "-c", "read x")

# Each command is a Python of its own; beside compilers and first builds of templates one has taken 50 s.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    for one in sandboxes.list():
        sandboxes.kill(one.id)
    for kept in snapshots.list():
        snapshots.remove(kept.name)


def listed(ramet, *words):
    return json.loads(ramet("sandbox", "ls", "--json", *words).stdout)["sandboxes"]


def test_a_sandbox_outlives_the_command_that_made_it(ramet):
    made = ramet("sandbox", "create", "--name", "worker", "--ttl", "1m", "--disk", "8M", *SLEEP)
    assert (made.returncode, made.stderr) == (0, b"")
    (info,) = [one for one in listed(ramet) if one["name"] == "worker"]
    assert (info["id"], info["name"], info["ttl"]) == (made.stdout.decode().strip(), "worker", 60)
    assert info["command"] == ["sh", "-c", "read x"]
    table = ramet("sandbox", "ls").stdout.decode().splitlines()
    assert table[0].split() == ["ID", "NAME", "PARENT", "AGE", "STATUS", "COMMAND"]
    assert [info["id"], "worker"] in [row.split()[:2] for row in table[1:]]
    assert ramet("sandbox", "kill", "worker").returncode == 0
    assert info["id"] not in {one["id"] for one in listed(ramet)}
    assert "killed: by request" in ramet("sandbox", "ls", "--all").stdout.decode()


def test_what_its_time_ends_is_to_be_kept_for_sandboxes_and_forks(ramet):
    ramet("sandbox", "create", "--name", "worker", "--timeout", "300", "--keep-on", "timeout", *SLEEP)
    ramet("fork", "worker", "--name", "kid", "--timeout", "300", "--keep-on", "timeout")
    assert [(one["name"], one["keep_on"]) for one in listed(ramet)] == [
        ("worker", ["timeout"]),
        ("kid", ["timeout"]),
    ]
    refused = ramet("fork", "kid", "--keep-on", "oom", "--keep-on", "timeout")
    assert (refused.returncode, b"--keep-on: 'timeout'" in refused.stderr) == (2, True)


def test_forks_are_made_by_name_and_know_their_parent(ramet):
    parent = ramet("sandbox", "create", "--name", "worker", *SLEEP).stdout.decode().strip()
    made = ramet("fork", "worker", "-n", "3").stdout.decode().split()
    assert len(made) == 3
    assert {one["parent"] for one in listed(ramet) if one["id"] in made} == {parent}
    told = json.loads(ramet("fork", made[0], "--name", "kid", "--json").stdout)["sandboxes"]
    assert [(one["name"], one["parent"]) for one in told] == [("kid", made[0])]


def test_a_snapshot_is_kept_forked_and_removed(ramet):
    ramet("sandbox", "create", "--name", "worker", *SLEEP)
    taken = json.loads(ramet("snapshot", "create", "worker", "before-risk", "--json").stdout)
    assert (taken["name"], taken["durable"]) == ("before-risk", True)
    assert b"stood still for" in ramet("snapshot", "create", "worker", "second").stdout
    rows = ramet("snapshot", "ls").stdout.decode().splitlines()
    assert [row.split()[0] for row in rows] == ["NAME", "before-risk", "second"]
    made = json.loads(ramet("fork", "--snapshot", "before-risk", "--json").stdout)["sandboxes"]
    assert made[0]["snapshot"] == "before-risk"
    assert ramet("snapshot", "rm", "before-risk", "second").returncode == 0
    assert ramet("snapshot", "ls").stdout == b""


@pytest.mark.parametrize(
    "words, code, told",
    [
        (["sandbox", "create"], 2, "COMMAND: is missing"),
        (["sandbox", "create", "--ttl", "soon", "true"], 2, "--ttl: 'soon' is not a time"),
        (["sandbox", "create", "--pids", "0", "true"], 2, "--pids:"),
        (["sandbox", "kill"], 2, "SANDBOX: is missing"),
        (["sandbox", "kill", "nobody"], 2, "SANDBOX: there is no sandbox 'nobody'"),
        (["fork"], 2, "SANDBOX: is missing"),
        (["fork", "nobody"], 2, "SANDBOX: there is no sandbox 'nobody'"),
        (["fork", "nobody", "-n", "0"], 2, "-n: 0 is no number of children"),
        (["fork", "nobody", "-n", "many"], 2, "-n: 'many' is not a number of children"),
        (["fork", "nobody", "--snapshot", "x"], 2, "SANDBOX: a fork is of one sandbox or of one snapshot"),
        (["fork", "--snapshot", "nothing"], 2, "SNAPSHOT: there is no snapshot 'nothing'"),
        (["snapshot", "create", "nobody"], 2, "NAME: is missing"),
        (["snapshot", "create", "nobody", "x"], 2, "SANDBOX: there is no sandbox 'nobody'"),
        (["sandbox", "pause"], 2, "SANDBOX: is missing"),
        (["sandbox", "pause", "nobody"], 2, "SANDBOX: there is no sandbox 'nobody'"),
        (["sandbox", "resume"], 2, "SNAPSHOT: is missing"),
        (["sandbox", "resume", "nothing"], 2, "SNAPSHOT: there is no snapshot 'nothing'"),
        (["snapshot", "rm"], 2, "SNAPSHOT: is missing"),
        (["snapshot", "rm", "nothing"], 2, "SNAPSHOT: there is no snapshot 'nothing'"),
    ],
)
def test_a_wrong_word_is_told_in_one_line(ramet, words, code, told):
    done = ramet(*words)
    assert done.returncode == code
    assert done.stderr.decode().startswith(f"ramet: {told}")
    assert len(done.stderr.decode().splitlines()) == 1


def test_what_can_be_ended_is_ended_also_when_something_else_is_wrong(ramet):
    ramet("sandbox", "create", "--name", "worker", *SLEEP)
    done = ramet("sandbox", "kill", "nobody", "worker", "--json")
    assert done.returncode == 2
    assert [one["name"] for one in json.loads(done.stdout)["sandboxes"]] == ["worker"]
    assert listed(ramet) == []


def test_a_fork_of_the_dead_tells_of_what_they_died(ramet):
    ramet("sandbox", "create", "--name", "worker", *SLEEP)
    ramet("sandbox", "kill", "worker")
    done = ramet("fork", "worker")
    assert done.returncode == 125
    assert b"ended" in done.stderr
    assert b"killed: by request" in done.stderr


def test_what_a_fork_cannot_carry_is_refused_or_left_out_and_told(ramet):
    ramet("sandbox", "create", "--name", "worker", "--", "sh", "-c", "exec 7<>/dev/ptmx; exec sleep 1000")
    refused = ramet("fork", "worker")
    while refused.returncode == 0:  # the shell has not come so far
        refused = ramet("fork", "worker")
    assert b"fd 7 is a terminal" in refused.stderr
    made = ramet("fork", "worker", "--on-unsupported", "drop")
    assert made.returncode == 0
    assert made.stderr.startswith(b"ramet: left out: pid 2 s")
    assert made.stderr.endswith(b": fd 7 is a terminal that nobody has opened yet\n")
    taken = ramet("snapshot", "create", "worker", "point", "--on-unsupported", "drop", "--json")
    assert json.loads(taken.stdout)["dropped"][0].endswith("fd 7 is a terminal that nobody has opened yet")
    assert ramet("fork", "worker", "--on-unsupported", "ignore").returncode == 2
    assert ramet("fork", "--snapshot", "point", "--on-unsupported", "drop").returncode == 2
    assert ramet("snapshot", "rm", "point").returncode == 0


def test_the_lineage_of_sandboxes_is_drawn_and_filtered(ramet):
    parent = ramet("sandbox", "create", "--name", "worker", *SLEEP).stdout.decode().strip()
    child = ramet("fork", "worker", "--name", "first").stdout.decode().strip()
    second = ramet("fork", "worker").stdout.decode().strip()
    grandchild = ramet("fork", "first").stdout.decode().strip()
    assert ramet("ls", "--tree").stdout.decode().splitlines() == [
        f"worker  {parent}  running",
        f"├─ first  {child}  running",
        f"│  └─ {grandchild}  running",
        f"└─ {second}  running",
    ]
    assert [one["id"] for one in listed(ramet, "--filter", "parent=worker")] == [child, second]
    assert [one["id"] for one in listed(ramet, "--filter", "name=first")] == [child]
    assert listed(ramet, "--filter", "colour=red") == []
    assert ramet("ls", "--filter", "nonsense").returncode == 2
    assert ramet("kill", "first").returncode == 0
    tree = [f"worker  {parent}  running", f"└─ {second}  running"]
    assert ramet("kill", grandchild).returncode == 0
    assert ramet("ls", "--tree").stdout.decode().splitlines() == tree
    whole = ramet("ls", "--all", "--tree", "--filter", "parent=first").stdout.decode().splitlines()
    assert whole == [
        f"worker  {parent}  running",
        f"└─ first  {child}  killed: by request",
        f"   └─ {grandchild}  killed: by request",
    ]
    everything = ramet("ls", "--all", "--tree").stdout.decode().splitlines()
    place = everything.index(whole[0])
    assert everything[place + 1 : place + 4] == [f"├─{whole[1][2:]}", f"│  {whole[2][3:]}", tree[1]]
    told = json.loads(ramet("ls", "--tree", "--filter", "name=worker", "--json").stdout)
    assert [node["key"] for node in told["nodes"]] == [parent]


def test_the_tree_has_snapshots_and_what_has_ended_where_something_comes_from_it(ramet):
    parent = ramet("sandbox", "create", "--name", "worker", *SLEEP).stdout.decode().strip()
    ramet("snapshot", "create", "worker", "point")
    child = ramet("fork", "--snapshot", "point").stdout.decode().strip()
    ramet("kill", "worker")
    assert ramet("ls", "--tree").stdout.decode().splitlines() == [
        f"worker  {parent}  killed: by request",
        "└─ snapshot point",
        f"   └─ {child}  running",
    ]
    nodes = json.loads(ramet("ls", "--tree", "--json").stdout)["nodes"]
    # Beside those of templates that other tests built.
    kinds = {node["key"].partition("@")[0]: node["kind"] for node in nodes}
    assert {parent: "sandbox", "point": "snapshot", child: "sandbox"}.items() <= kinds.items()


def test_what_was_noted_of_sandboxes_and_forks_chooses_them(ramet):
    ramet("sandbox", "create", "--name", "worker", "--metadata", "task=a=b", *SLEEP)
    ramet("fork", "worker", "--name", "kid", "--metadata", "task=2", "--metadata", "name=odd")
    assert [one["name"] for one in listed(ramet, "--filter", "task=a=b")] == ["worker"]
    assert [one["name"] for one in listed(ramet, "--filter", "metadata.name=odd")] == ["kid"]
    for words in (("sandbox", "create", *SLEEP), ("fork", "worker")):
        refused = ramet(*words[:2], "--metadata", "none", *words[2:])
        assert (refused.returncode, refused.stderr) == (2, b"ramet: --metadata: 'none' is not KEY=VALUE\n")


def test_a_sandbox_is_paused_and_goes_on_under_its_name(ramet):
    made = ramet("sandbox", "create", "--name", "worker", *SLEEP).stdout.decode().strip()
    ramet("exec", "worker", "echo kept >note")
    assert ramet("sandbox", "pause", "worker").stdout.decode() == f"paused-{made}\n"
    assert listed(ramet) == []
    resumed = ramet("sandbox", "resume", f"paused-{made}", "--ttl", "60").stdout.decode().strip()
    (info,) = listed(ramet)
    assert (info["id"], info["name"], info["ttl"], info["detached"]) == (resumed, "worker", 60, True)
    assert ramet("exec", "worker", "cat note").stdout == b"kept\n"
    assert ramet("snapshot", "ls").stdout == b""
    told = json.loads(ramet("sandbox", "pause", "worker", "mine", "--json").stdout)
    assert (told["name"], told["sandbox"]) == ("mine", resumed)
    assert json.loads(ramet("sandbox", "resume", "mine", "--json").stdout)["sandboxes"][0]["name"] == "worker"


def test_files_pass_as_tar_streams_and_the_workspace_to_a_new_directory(ramet, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project/file").write_text("content")
    ramet("sandbox", "create", "--name", "worker", "--workspace", str(tmp_path / "project"), *SLEEP)
    stream = ramet("sandbox", "cp", "worker:/workspace", "-").stdout
    done = ramet("sandbox", "cp", "-", "worker:/workspace/again", "--json", input=stream)
    assert json.loads(done.stdout) == {"files": 1}
    assert ramet("sandbox", "export", "worker", str(tmp_path / "out")).stdout == b"2 files\n"
    assert (tmp_path / "out/again/file").read_text() == "content"
    for words, told in (
        (("cp", "-", "worker:x"), b"standard input: is no tar stream"),
        (("cp", "worker:x", "-", "--json"), b"json: would be"),
        (("export", "worker", str(tmp_path / "out")), b"local: "),
        (("cp", "worker:nothing", "-"), b"/workspace/nothing: "),
        (("export", "worker"), b"DIRECTORY: is missing"),
    ):
        refused = ramet("sandbox", *words, input=stream[:700])
        assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr


def test_files_are_copied_into_directories_under_their_names(ramet, tmp_path):
    ramet("sandbox", "create", "--name", "box", *SLEEP)
    ramet("exec", "box", "mkdir there; ln -s there link; echo so >file; echo so >run; chmod 755 run")
    (tmp_path / "local").mkdir()
    (tmp_path / "local/file").write_text("content")
    for target in ("box:there", "box:link", "box:new/", "box:", "box:whole"):
        assert ramet("sandbox", "cp", str(tmp_path / "local/file"), target).returncode == 0
    assert ramet("sandbox", "cp", str(tmp_path / "local"), "box:there/").returncode == 0
    found = ramet("exec", "box", "cat there/file new/file file whole there/local/file").stdout
    assert found == b"content" * 5
    for source, target in (
        ("box:file", tmp_path),
        ("box:file", tmp_path / "whole"),
        ("box:there", f"{tmp_path}/local/"),
    ):
        assert ramet("sandbox", "cp", source, str(target)).returncode == 0
    for found in ("file", "whole", "local/there/local/file"):
        assert (tmp_path / found).read_text() == "content"
    ramet("sandbox", "cp", "box:run", str(tmp_path))
    assert (tmp_path / "run").stat().st_mode & 0o100
    taken = ramet("sandbox", "cp", "box:file", str(tmp_path))
    assert (taken.returncode, b"File exists" in taken.stderr) == (2, True)
    refused = ramet("sandbox", "cp", str(tmp_path / "file"), "box:file/")
    assert refused.returncode == 2
    assert b"recursive" not in refused.stderr


def test_two_sandboxes_are_compared(ramet):
    ramet("sandbox", "create", "--name", "box", *SLEEP)
    ramet("fork", "box", "--name", "other")
    ramet("exec", "other", "echo x > /tmp/file; echo x > file")
    ramet("exec", "--detach", "other", "exec sleep 1000")
    told = ramet("sandbox", "diff", "other", "box")
    while b"sleep 1000" not in told.stdout:  # the shell has not come so far
        told = ramet("sandbox", "diff", "other", "box")
    *files, process = told.stdout.decode().splitlines()
    assert files == ["added     /home/user/file", "added     /tmp/file"]
    for path in (".", "/home/./user", "../user"):
        assert ramet("sandbox", "diff", "other", "--path", path).stdout == b"added     /home/user/file\n"
        assert b"+++ b/file" in ramet("sandbox", "diff", "other", "--git", "--path", path).stdout
    assert process.startswith("added     process ")
    assert process.endswith(": sleep 1000")
    found = json.loads(ramet("sandbox", "diff", "box", "other", "--path", "/tmp", "--json").stdout)
    assert [(one["path"], one["change"]) for one in found["changes"]] == [("/tmp/file", "deleted")]
    assert [one["change"] for one in found["processes"]] == ["deleted"]
    assert ramet("sandbox", "diff", "box", "other", "--git").returncode == 2
