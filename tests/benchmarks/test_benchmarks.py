"""The benchmark programs run and say what they found. What they find is nobody's test."""

import importlib.util
import json
import subprocess
import sys
from types import ModuleType

import pytest

from _repository import ROOT

FIGURES = {
    "true_p50",
    "true_ratio",
    "true_ratio_strict",
    "true_ratio_spawned",
    "python_ratio",
    "runs_threads",
    "runs_asyncio",
    "pool_size",
    "limit_p50",
    "limit_p99",
    "limit_min",
    "limit_return_p50",
    "entry_kib",
    "import_p50",
    "code_first_answer_p50",
    "code_first_answer_ratio",
    "code_added",
    "code_ahead_p50",
    "code_trip_p50",
    "code_live_p50",
    "alive_s",
    "alive_mib",
    "code_rate",
    "command_p50",
    "file_read_rate",
    "file_write_rate",
    "idle_processor",
    "idle_mib",
    "limits_added",
    "own_limits_added",
    "fraction",
    "hog_dies",
    "hog_fork_bomb_neighbour",
    "hog_fork_bomb_host",
    "hog_memory_neighbour",
    "hog_memory_host",
    "hog_disk_neighbour",
    "hog_disk_host",
    "hog_descriptors_neighbour",
    "hog_descriptors_host",
    "hog_busy_loops_neighbour",
    "hog_busy_loops_host",
    "hog_thread_bomb_neighbour",
    "hog_thread_bomb_host",
    "hog_pages_of_pipes_neighbour",
    "hog_pages_of_pipes_host",
    "hog_inotify_neighbour",
    "hog_inotify_host",
    "limited_right",
    "limited_left",
    "quotas",
}
EVERYTHING = ((), FIGURES)
SOME = (
    ("--only", "true,limit,code"),
    {name for name in FIGURES if name.startswith(("true_", "limit_", "code_"))} - {"code_rate"},
)
pytestmark = pytest.mark.timeout(600)  # on a busy machine everything takes minutes

VERDICTS = {"reached", "missed", "not measured", "no promise"}


def run(*words: str, timeout: float = 590) -> subprocess.CompletedProcess[str]:
    """`python -m benchmarks`."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture(
    scope="module",
    params=[pytest.param(SOME, id="some"), pytest.param(EVERYTHING, id="everything", marks=pytest.mark.slow)],
)
def found(request, tmp_path_factory):
    """What one run in tiny numbers wrote: the table, the file, and which figures belong there."""
    words, expected = request.param
    path = tmp_path_factory.mktemp("bench") / "deep" / "found.json"
    done = run("--scale", "tiny", *words, "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(path.read_text()), expected


def test_a_run_finds_every_promised_figure_and_judges_it(found):
    _, data, expected = found
    figures = {figure["name"]: figure for figure in data["figures"]}
    assert figures.keys() == expected
    assert {figure["verdict"] for figure in figures.values()} <= VERDICTS
    for figure in figures.values():
        if figure["verdict"] in ("reached", "missed"):
            least = figure["relation"] == ">="
            right = figure["value"] >= figure["bound"] if least else figure["value"] <= figure["bound"]
            assert (figure["verdict"] == "reached") == right


def test_numbers_come_with_the_facts_of_the_machine(found):
    _, data, _ = found
    assert {"cpu", "cores", "kernel", "memory_mib", "uid", "frequency_governor"} <= data["machine"].keys()
    assert {"ramet", "commit", "python", "bubblewrap"} <= data["versions"].keys()
    assert len(data["load_before"]) == len(data["load_after"]) == 3


def test_each_series_says_how_many_samples_its_percentiles_are_of(found):
    _, data, _ = found
    for series in data["series"].values():
        assert series["n"] > 0
        assert series["min"] <= series["p50"] <= series["p90"] <= series["p99"] <= series["max"]


def test_the_table_tells_every_figure_of_the_file(found):
    table, data, _ = found
    for figure in data["figures"]:
        assert figure["what"] in table


def test_a_measurement_that_does_not_exist_is_named():
    done = run("--only", "true,speed")
    assert done.returncode == 2
    assert "speed" in done.stderr


# --- the arithmetic ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    """benchmarks/_measure.py, under a name that is not this folder's."""
    spec = importlib.util.spec_from_file_location("bench_measure", ROOT / "benchmarks" / "_measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_measure"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_percentile_is_a_value_that_was_measured(measure):
    values = [float(value) for value in range(1, 101)]
    assert measure.percentile(values, 0.5) == 50
    assert measure.percentile(values, 0.99) == 99
    assert measure.percentile(values, 1) == 100
    assert measure.percentile([7.0], 0.01) == 7


def test_a_ratio_is_the_median_of_pairs_not_the_ratio_of_medians(measure):
    ours = measure.Series("ours", "ms", [1.0, 10.0, 2.0])
    theirs = measure.Series("theirs", "ms", [2.0, 10.0, 8.0])
    assert measure.ratio(ours, theirs) == 0.5
    assert measure.ratio(ours, measure.Series("absent", "ms")) is None


def test_samples_are_taken_in_turn(measure):
    order = []

    def action(name):
        def once():
            order.append(name)
            return 1.0

        return once

    series = [measure.Series(name, "ms") for name in "ab"]
    measure.alternate([(one, action(one.name)) for one in series], 2, warm_up=1)
    assert "".join(order) == "ababab"
    assert [one.samples for one in series] == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    "value, bound, at_least, verdict",
    [
        (2.0, 2.0, False, "reached"),
        (2.1, 2.0, False, "missed"),
        (600.0, 600.0, True, "reached"),
        (599.0, 600.0, True, "missed"),
        (None, 1.0, False, "not measured"),
        (1.0, None, False, "no promise"),
    ],
)
def test_a_figure_is_judged_by_its_bound(measure, value, bound, at_least, verdict):
    assert measure.Figure("name", "what", "ms", value, bound, at_least=at_least).verdict == verdict
