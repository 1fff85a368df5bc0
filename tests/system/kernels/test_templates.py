"""Templates: built, found again, built upon, kept, handed out ahead, and refused by name."""

import threading

import pytest

import ramet
from ramet.errors import InvalidRequest, TemplateError
from system._daemons import wait_gone


@pytest.fixture
def forget():
    """Names of templates to forget in the end."""
    names = []
    yield names
    for name in reversed(names):
        ramet.templates.remove(name)


def test_a_template_is_built_once_for_the_same_inputs(forget):
    forget.append("once")
    inputs = {"warm": "x = 40", "env": {"LEVEL": "2"}, "files": {"/home/user/two": "2"}}
    said = []
    first = ramet.templates.build("once", on_progress=said.append, **inputs)
    again = ramet.templates.build("once", **inputs)
    assert (first.cached, again.cached, again.hash) == (False, True, first.hash)
    assert said[-1] == "keeping it"
    assert "warming up" in first.log
    with ramet.Sandbox("once") as sandbox:
        look = "import os; x + int(open('/home/user/two').read()), os.environ['LEVEL']"
        assert sandbox.run_code(look).text == "(42, '2')"
    other = ramet.templates.build("once", warm="x = 1")
    assert (other.cached, other.hash != first.hash) == (False, True)
    with ramet.Sandbox("once") as sandbox:
        assert sandbox.run_code("x").text == "1"


def test_one_template_builds_upon_another_and_stores_what_differs(forget):
    forget += ["below", "above"]
    below = ramet.templates.build("below", warm="data = bytes(range(256)) * 40_000; x = 1")
    above = ramet.templates.build("above", from_="below", warm="x += 1")
    assert above.source == "below"
    assert above.snapshot.parent == "below"
    assert above.snapshot.disk_bytes < below.snapshot.disk_bytes
    with ramet.Sandbox("above") as sandbox:
        assert sandbox.run_code("x, len(data)").text == "(2, 10240000)"


def test_what_a_template_made_is_collected_there_and_left_alone_in_its_children(forget):
    warm = (
        "import gc, weakref\nclass Knot: pass\none = Knot(); one.own = one; gone = weakref.ref(one)\ndel one"
    )
    forget.append("settled")
    ramet.templates.build("settled", warm=f"import gc; gc.disable()\n{warm}\ngc.enable()")
    with ramet.Sandbox("settled") as sandbox:
        looked = sandbox.run_code(
            "gone() is None, gc.isenabled(), any(one is Knot for one in gc.get_objects())"
        )
        assert looked.check().text == "(True, True, False)"


def test_a_warm_up_that_raises_fails_the_build_with_its_traceback_and_log():
    with pytest.raises(TemplateError) as caught:
        ramet.templates.build("never", warm="print('so far')\n1 / 0")
    assert caught.value.field == "warm"
    assert "ZeroDivisionError" in caught.value.message
    assert "so far" in caught.value.log
    assert "never" not in [one.name for one in ramet.templates.all_built()]


def test_a_package_that_cannot_be_had_fails_the_build_with_pips_words():
    with pytest.raises(TemplateError) as caught:
        ramet.templates.build("never", pip=["./no-such-directory-of-a-package"])
    assert caught.value.code == "pip_failed"


@pytest.mark.parametrize(
    "field, arguments",
    [
        ("name", {"name": "no name"}),
        ("name", {"name": "python"}),
        ("from_", {"name": "a", "from_": "pythonn"}),
        ("kernel", {"name": "a", "kernel": "cobol"}),
        ("from_", {"name": "a", "from_": "node", "kernel": "bash"}),
        ("pip", {"name": "a", "pip": "numpy"}),
        ("pip", {"name": "a", "pip": ["--index-url=x"]}),
        ("pip", {"name": "a", "pip": ["numpy"], "kernel": "bash"}),
        ("files", {"name": "a", "files": {"relative": "x"}}),
        ("files", {"name": "a", "files": {"/a": 1}}),
        ("env", {"name": "a", "env": {"A": 1}}),
        ("warm_children", {"name": "a", "warm_children": 1000}),
    ],
)
def test_a_wrong_part_of_a_recipe_is_refused_by_name(field, arguments):
    with pytest.raises(InvalidRequest) as caught:
        ramet.templates.build(**arguments)
    assert caught.value.field == field


def test_an_unknown_template_is_refused_with_near_names(forget):
    forget.append("data-science")
    ramet.templates.build("data-science")
    with pytest.raises(InvalidRequest) as caught:
        ramet.Sandbox("data-sciense")
    assert "data-science" in caught.value.hint
    with pytest.raises(InvalidRequest) as caught:
        ramet.Sandbox("pythn")
    assert "python" in caught.value.hint
    with pytest.raises(InvalidRequest) as caught:
        ramet.templates.get("data-sciense")
    assert "data-science" in caught.value.hint


def test_templates_and_snapshots_share_their_names(forget):
    forget.append("taken")
    ramet.templates.build("taken")
    with ramet.Sandbox("taken") as sandbox:
        with pytest.raises(InvalidRequest) as caught:
            sandbox.snapshot("taken")
        assert caught.value.code == "name_taken"
        sandbox.snapshot("a-snapshot")
    try:
        with pytest.raises(InvalidRequest) as caught:
            ramet.templates.build("a-snapshot")
        assert caught.value.code == "name_taken"
    finally:
        ramet.snapshots.remove("a-snapshot")
    assert "taken" not in [one.name for one in ramet.snapshots.list()]


def test_children_forked_ahead_are_handed_out_once_and_made_up_for(forget):
    forget.append("ahead")
    ramet.templates.build("ahead", warm="import random; x = 7", warm_children=3)
    seen, draws = set(), set()
    for _ in range(8):
        with ramet.Sandbox("ahead", metadata={"a": "b"}) as sandbox:
            assert sandbox.run_code("x").text == "7"
            assert sandbox.info.metadata == {"a": "b"}
            draws.add(sandbox.run_code("random.random()").text)
            seen.add(sandbox.id)
            assert [one.id for one in ramet.client.sandboxes.list()] == [sandbox.id]
    assert len(seen) == len(draws) == 8
    with ramet.Sandbox("ahead", name="of-its-own") as sandbox:
        assert sandbox.run_code("import socket; socket.gethostname()").text == "'of-its-own'"


def test_a_child_forked_ahead_lives_the_life_that_is_told_of_it_and_heeds_seed_and_variables(forget):
    forget.append("lives")
    warm = "import random, ramet_kernel as kernel; seen = []; kernel.on_fork(lambda f: seen.append(f.epoch))"
    ramet.templates.build("lives", warm=warm, warm_children=2)
    for _ in range(3):
        with ramet.Sandbox("lives") as sandbox:
            told = sandbox.run_code("kernel.sandbox(), kernel.epoch(), seen[-1], seen.count(seen[-1])")
            epoch = sandbox.info.epoch
            assert (told.text, told.epoch) == (str((sandbox.id, epoch, epoch, 1)), epoch)
            with sandbox.fork() as child:
                assert child.run_code("kernel.epoch()").text == str(epoch + 1) == str(child.info.epoch)
                draws = [one.run_code("random.random()").text for one in (sandbox, child)]
                assert len(set(draws)) == 2
    draws = []
    for _ in range(2):
        with ramet.Sandbox("lives", seed=5, env={"MINE": "1"}) as sandbox:
            draws.append(sandbox.run_code("import os; random.random(), os.environ['MINE']").text)
            assert sandbox.run_code("kernel.epoch()").text == str(sandbox.info.epoch)
    assert draws[0] == draws[1]


def test_what_a_hook_of_a_child_forked_ahead_could_not_do_is_told_to_who_gets_it(forget):
    forget.append("hooked")
    warm = "import ramet_kernel\nramet_kernel.on_fork(lambda fork: 1 / 0)"
    ramet.templates.build("hooked", warm=warm, warm_children=1)
    for _ in range(3):
        with ramet.Sandbox("hooked") as sandbox:
            assert sandbox.run_code("6 * 7").text == "42"
            assert "ZeroDivisionError" in sandbox.fork_errors[0]


def test_many_clients_at_once_build_a_template_once(forget):
    forget.append("raced")
    ids, failed = [], []

    def build():
        try:
            ids.append(ramet.templates.build("raced", warm="x = 1").snapshot.created)
        except ramet.RametError as error:
            failed.append(error)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failed
    assert len(ids) == 4
    with ramet.Sandbox("raced") as sandbox:
        assert sandbox.run_code("x").text == "1"


def test_a_template_survives_its_daemon(own):
    client = own.client()
    ramet.templates.build("kept", warm="x = 42", client=client)
    wait_gone(client.shutdown().pid)
    with ramet.Sandbox("kept", client=own.client()) as sandbox:
        assert sandbox.run_code("x").text == "42"
        ramet.templates.remove("kept", client=own.client())
        assert sandbox.run_code("x").text == "42"


def test_packages_of_the_callers_environment_come_along(forget, monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("answer = 42")
    monkeypatch.setattr("ramet.client._packages.own_packages", lambda: str(tmp_path))
    monkeypatch.setattr("ramet.client._sync.templates.own_packages", lambda: str(tmp_path))
    forget.append("of-mine")
    ramet.templates.build("of-mine", from_venv=True, warm="import mine")
    with ramet.Sandbox("of-mine") as sandbox:
        assert sandbox.run_code("mine.answer, mine.__file__").text == (
            "(42, '/home/user/site-packages/mine/__init__.py')"
        )
        assert sandbox.run_code("!python3 -c 'import mine; print(mine.answer)'").stdout == "42\n"
    inputs = {"from_venv": True, "warm": "import mine"}
    assert ramet.templates.build("of-mine", **inputs).cached
    (tmp_path / "mine/__init__.py").write_text("answer = 43 # more")
    assert not ramet.templates.build("of-mine", **inputs).cached
    with ramet.Sandbox("of-mine") as sandbox:
        assert sandbox.run_code("mine.answer").text == "43"


def test_a_shell_can_be_a_template_too(forget):
    forget.append("shell")
    ramet.templates.build("shell", kernel="bash", files={"/home/user/f": "text"}, warm="x=5; cd /tmp")
    with ramet.Sandbox("shell") as shell:
        assert shell.run_code("echo $x $PWD; cat ~/f").stdout == "5 /tmp\ntext"
