"""The ``equipoise export`` command."""

import sys
from dataclasses import replace

from equipoise.comparison.folder import ComparisonFolder, PlanEntry, PlannedRun
from equipoise.comparison.judge import _inputs
from equipoise.comparison.verdict import FORMAT
from equipoise.train.export import load_exported
from equipoise.train.folder import RunFolder, write_json
from tests.cli.test_evaluate import refused, run
from tests.comparison.test_recommendation import compared, judged
from tests.models.test_registry import Without
from tests.train.run_folders import images_of, make_run


def test_default_and_given_output_folder(tmp_path):
    make_run(tmp_path / "run")
    ran = run("export", tmp_path / "run")
    place = tmp_path / "run" / "exported"
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == f"wrote {place}; use it: equipoise.load_exported({str(place)!r})\n"
    ran = run("export", tmp_path / "run", "--out", tmp_path / "mine")
    assert ran.exit_code == 0, ran.output
    for folder in (place, tmp_path / "mine"):
        assert load_exported(folder)(images_of("multiclass")).shape == (5, 10)


def test_user_code_is_mentioned(tmp_path):
    (tmp_path / "mine.py").write_text("from torch import nn\ndef f(num_classes): return nn.Linear(64, num_classes)\n")
    make_run(tmp_path / "run", name=f"{tmp_path}/mine.py:f")
    ran = run("export", tmp_path / "run")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.endswith("exported', trust_code=True)\n")


def test_folder_without_a_finished_run(tmp_path):
    refused(run("export", tmp_path / "nowhere"), "nowhere", "no such folder", "equipoise train")
    refused(run("export", tmp_path), "no run: run.json is missing")
    make_run(tmp_path / "a.unfinished")
    refused(run("export", tmp_path / "a"), "the run is unfinished")


def test_comparison_instead_of_a_run(tmp_path):
    planned = PlannedRun("ce", 0, RunFolder(tmp_path / "runs" / "ce-0"))
    ComparisonFolder(tmp_path).write_plan({}, [PlanEntry("ce", ("ce",))], "ce", [planned])
    refused(run("export", tmp_path), "got a comparison without a finished one")
    compared(tmp_path)
    best = f"the best so far on validation data: equipoise export {tmp_path}/runs/other-0 "
    refused(run("export", tmp_path), "a comparison of 6 (ce-0, ce-1, good-0", best)


def test_comparison_with_a_verdict_names_the_recommended_run(tmp_path):
    comparison = compared(tmp_path)
    verdict = replace(judged(("good", "accuracy", 0.1)), inputs=_inputs(comparison))
    write_json(comparison.verdict, verdict.to_json())
    why = "good is significantly better than ce in accuracy"
    named = f"the recommended one: equipoise export {tmp_path}/runs/good-0 ({why})"
    refused(run("export", tmp_path), named)
    write_json(comparison.verdict, replace(verdict, format=FORMAT - 1).to_json())
    refused(run("export", tmp_path), "the best so far on validation data", "other-0")


def test_a_target_that_exists(tmp_path):
    make_run(tmp_path / "run")
    assert run("export", tmp_path / "run").exit_code == 0
    refused(run("export", tmp_path / "run"), "exported", "already exists", "remove it or choose another --out")
    refused(run("export", tmp_path / "run", "--out", tmp_path / "a" / "b"), "must exist", "create it")


def test_without_safetensors(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Without("safetensors"), *sys.meta_path])
    refused(run("export", tmp_path / "run"), "needs safetensors", "pip install 'equipoise[train]'")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]
