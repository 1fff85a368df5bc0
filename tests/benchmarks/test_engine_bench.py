"""The benchmark of the fork engine works: tiny sizes, and no word about times, which are the machine's."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--scale", "tiny")
pytestmark = pytest.mark.timeout(170)  # other builds may run beside
VERDICTS = {"reached", "missed", "not measured"}


def bench(*words, timeout=150):
    command = [sys.executable, "-m", "benchmarks.engine", *words]
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Everything once: the directory with its files, the numbers, the table."""
    directory = tmp_path_factory.mktemp("bench")
    done = bench(*TINY, "--json", str(directory / "numbers"), "--plot", str(directory / "picture.svg"))
    assert done.returncode == 0, done.stderr
    return directory, json.loads((directory / "numbers").read_text()), done.stdout


@pytest.mark.slow
def test_every_figure_has_its_bound_and_a_verdict(found):
    _, numbers, _ = found
    names = [figure["name"] for figure in numbers["figures"]]
    assert len(names) == len(set(names))
    assert {"spawn_p50", "live_general_30", "live_twin_30", "pause_small_general", "chain", "siblings"} < set(
        names
    )
    for figure in numbers["figures"]:
        assert figure["verdict"] in VERDICTS
        assert figure["bound"] >= 0
        assert (figure["value"] is None) == (figure["verdict"] == "not measured")
        assert figure["load"] >= 0


@pytest.mark.slow
def test_what_does_not_depend_on_the_machine_is_right(found):
    """Answers are compared by the benchmark itself; it counts those that are right."""
    _, numbers, _ = found
    counted = {figure["name"]: figure["value"] for figure in numbers["figures"]}
    assert counted["chain"] == numbers["settings"]["chain"]
    assert counted["siblings"] == numbers["settings"]["siblings"]


@pytest.mark.slow
def test_machine_versions_and_load_go_with_the_numbers(found):
    _, numbers, _ = found
    assert numbers["machine"]["kernel"]
    assert numbers["machine"]["cores"] >= 1
    assert numbers["versions"]["python"]
    assert len(numbers["load_before"]) == len(numbers["load_after"]) == 3
    for series in numbers["series"].values():
        assert series["n"] >= 1
        assert series["min"] <= series["p50"] <= series["p99"] <= series["max"]


@pytest.mark.slow
def test_the_table_shows_every_series_and_every_promise(found):
    _, numbers, table = found
    shown = re.sub(r"\s+", " ", table)
    for name in (*numbers["series"], *(figure["what"] for figure in numbers["figures"])):
        assert name in shown


@pytest.mark.slow
def test_the_picture_is_svg_with_a_line_for_each_way(found):
    directory, numbers, _ = found
    root = ET.parse(directory / "picture.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(lines) == len({point["line"] for point in numbers["points"]}) == 4


@pytest.mark.parametrize(
    "words, named",
    [
        (("--only", "spwan"), "spwan"),
        (("--rounds", "0"), "--rounds"),
        (("--plot", "picture.gif"), "picture.gif"),
        (("--plot", "picture.svg", "--only", "spawn"), "--only"),
    ],
)
def test_wrong_use_is_refused_by_name_before_anything_is_measured(words, named):
    done = bench(*words)
    assert done.returncode == 2
    assert named in done.stderr
    assert "..." not in done.stderr.splitlines()[-1]


def test_a_png_is_refused_where_no_converter_works(tmp_path):
    command = [sys.executable, "-m", "benchmarks.engine", "--plot", str(tmp_path / "picture.png")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
        timeout=50,
        check=False,
    )
    assert done.returncode == 2
    assert "rsvg-convert" in done.stderr


def test_ramet_bench_finds_the_benchmarks_of_its_checkout(tmp_path):
    command = [sys.executable, "-P", "-m", "ramet", "bench", "--engine", "--rounds", "nine"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert "--rounds" in done.stderr


@pytest.mark.parametrize("option", ["--plot", "--rounds"])
def test_options_of_the_engine_alone_are_refused_without_it(option):
    command = [sys.executable, "-P", "-m", "ramet", "bench", option, "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert f"{option}: belongs to --engine" in done.stderr


def test_an_installation_without_benchmarks_says_where_they_are(tmp_path, monkeypatch, capsys):
    from ramet.cli.commands import bench as command
    from ramet.cli.main import invoke

    monkeypatch.setattr(command, "CHECKOUT", tmp_path)
    assert invoke(["bench", "--engine"]) == 2
    assert "python -m benchmarks" in capsys.readouterr().err
