"""The folder of a comparison: what is written can be read, and reading needs no torch."""

import json
import subprocess
import sys

import pytest

from equipoise.comparison.folder import ComparisonFolder, Failure, PlanEntry, PlannedRun
from equipoise.predictions import InputError
from equipoise.train.folder import RunFolder, write_json
from tests.comparison.verdicts import record_of


def made(path):
    folder = ComparisonFolder(path)
    runs = [
        PlannedRun("focal:gamma=1.5", seed, RunFolder(path / "runs" / f"focal-gamma=1.5-{seed}")) for seed in (0, 1)
    ]
    folder.write_plan(
        {"data": "digits-lt"}, [PlanEntry("focal:gamma=1.5", ("focal:gamma=1.5",))], "focal:gamma=1.5", runs
    )
    return folder, runs


def test_the_plan(tmp_path):
    assert not ComparisonFolder(tmp_path / "out").exists
    folder, runs = made(tmp_path / "out")
    assert folder.exists
    assert folder.spec == {"data": "digits-lt"}
    assert folder.entries == [PlanEntry("focal:gamma=1.5", ("focal:gamma=1.5",))]
    assert folder.baseline == "focal:gamma=1.5"
    assert folder.runs == runs
    assert folder.finished == []


WRITTEN_BY_0_1 = """{"format": 1, "equipoise": "0.1.0",
"spec": {"data": "digits-lt", "losses": ["ce"], "methods": ["crt"], "seeds": [0], "epochs": 2},
"entries": [{"text": "ce", "candidates": ["ce"]}, {"text": "crt", "candidates": ["crt"]}], "baseline": "ce",
"runs": [{"loss": "ce", "seed": 0, "folder": "runs/ce-0", "stage_one": null},
  {"loss": "crt", "seed": 0, "folder": "runs/crt-0", "stage_one": "runs/ce-0"},
  {"loss": "sdn", "seed": 0, "folder": "runs/sdn-0"}]}"""


def test_a_plan_of_version_0_1(tmp_path):
    folder = ComparisonFolder(tmp_path)
    folder.plan.write_text(WRITTEN_BY_0_1)
    first, second, third = folder.runs
    assert (first.stage_one, third.stage_one) == (None, None)
    assert second == PlannedRun("crt", 0, RunFolder(tmp_path / "runs/crt-0"), RunFolder(tmp_path / "runs/ce-0"))
    assert [entry.candidates for entry in folder.entries] == [("ce",), ("crt",)]
    assert folder.read_plan().spec["methods"] == ["crt"]
    folder.write_plan(folder.spec, folder.entries, folder.baseline, folder.runs)
    assert folder.runs == [first, second, third]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"baseline": 3}, "baseline must be a string, found 3; delete the folder and compare again"),
        ({"entries": [{"text": "ce"}]}, "entries.0.candidates is missing"),
        ({"runs": [{"loss": "ce", "seed": 0, "folder": "../ce-0"}]}, "runs must lie in the folder runs"),
    ],
)
def test_a_damaged_plan_is_named(tmp_path, change, words):
    folder = ComparisonFolder(tmp_path)
    folder.plan.write_text(json.dumps(json.loads(WRITTEN_BY_0_1) | change))
    with pytest.raises(InputError, match=f"compare.json: {words}"):
        _ = folder.runs


def test_it_may_be_moved(tmp_path):
    folder, _ = made(tmp_path / "out")
    moved = ComparisonFolder(folder.path.rename(tmp_path / "moved"))
    assert moved.runs[0].folder.path == tmp_path / "moved" / "runs" / "focal-gamma=1.5-0"


def test_what_became_of_the_runs(tmp_path):
    folder, (first, second) = made(tmp_path)
    for run in (first, second):
        folder.write_failure(run, "no memory", "first line\n")
    assert folder.failures == [
        Failure("focal:gamma=1.5", 0, "no memory", "failures/focal-gamma=1.5-0.log"),
        Failure("focal:gamma=1.5", 1, "no memory", "failures/focal-gamma=1.5-1.log"),
    ]
    assert (tmp_path / folder.failures[0].log).read_text() == "first line\n"
    first.folder.path.mkdir()
    (first.folder.path / "run.json").write_text("{}")
    assert folder.finished == [first]
    assert [failure.seed for failure in folder.failures] == [1]  # the other came to its end after all


def test_the_run_to_use(tmp_path):
    """By the mean of its loss on validation data, then by its own; never one that is no row, or that has no number."""

    def best(name, monitor, values):
        folder = ComparisonFolder(tmp_path / name)
        runs = [PlannedRun(loss, seed, RunFolder(folder.path / "runs" / f"{loss}-{seed}")) for loss, seed in values]
        folder.write_plan({}, [PlanEntry("ce", ("ce",)), PlanEntry("focal", ("focal",))], "ce", runs)
        for run in runs:
            run.folder.path.mkdir()
            record = record_of(monitor, values[run.loss, run.seed])
            write_json(run.folder.path / "run.json", record.to_json())
        return folder.best and folder.best.name

    values = {("ce", 0): 0.9, ("ce", 1): 0.1, ("focal", 0): 0.6, ("focal", 1): 0.7, ("bce", 0): 1.0}
    assert best("more", "accuracy", values) == "focal-1"
    assert best("less", "nll", values) == "ce-1"
    assert best("fewer", "accuracy", values | {("focal", 0): None}) == "ce-0"
    assert best("none", "accuracy", dict.fromkeys(values)) is None


def test_reading_needs_no_torch():
    code = "import sys, equipoise.comparison.folder, equipoise.comparison.progress; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "False", done.stderr
