"""Methods beside losses in a comparison: one backbone for all that start from it, what fails, what is added later."""

import json
import re
from pathlib import Path

import pytest

from equipoise.comparison import compare as module
from equipoise.comparison.compare import compare
from equipoise.comparison.folder import ComparisonFolder, PlanEntry
from equipoise.comparison.jobs import attempt, take_ready
from equipoise.comparison.plan import baseline_of, entries_of, planned_runs, run_spec, surveyed_entries
from equipoise.comparison.spec import CompareSpec
from equipoise.report.comparison import comparison_page
from equipoise.train import run
from equipoise.train.errors import TrainingError
from equipoise.train.spec import SpecError
from tests.e2e.commands import assert_same_run, contents

SMALL = {
    "data": "digits-lt",
    "model": "mlp",
    "model_options": {"hidden": [16]},
    "epochs": 2,
    "seeds": 1,
    "lr": 0.01,
    "logger": "none",
}


def planned(*texts, seeds=(0,)):
    """Names of the runs, each with that of its stage one."""
    runs = planned_runs(Path("x"), entries_of(texts), seeds)
    return {run.name: run.stage_one and run.stage_one.path.name for run in runs}


# --------------------------------------------------------------------------------------------------------- the plan


def test_stage_one_is_a_run_that_is_compared_where_it_is_one():
    assert planned("ce", "crt", "lws:epochs=3", "sdn") == {
        "ce-0": None,
        "crt-0": "ce-0",
        "lws-epochs=3-0": "ce-0",
        "sdn-0": None,
    }
    assert planned("crt:backbone=(focal:gamma=2)", "fl:gamma=2", "CrossEntropyLoss", "ncm")["ncm-0"] == ("ce-0")


def test_otherwise_it_is_one_more_run_for_all_that_start_from_it():
    plan = planned("crt", "tau-norm:tau=0.5,1", "oltr:backbone=focal", "sdn", seeds=(0, 1))
    assert [name for name in plan if name.endswith("-0")] == [
        "auto-0",
        "focal-0",
        "crt-0",
        "tau-norm-tau=0.5-0",
        "tau-norm-tau=1-0",
        "oltr-backbone=focal-0",
        "sdn-0",
    ]
    assert plan["tau-norm-tau=1-1"] == plan["crt-1"] == "auto-1"
    assert plan["oltr-backbone=focal-0"] == "focal-0"
    assert plan["sdn-0"] is plan["auto-0"] is None


def test_entries_of_methods():
    assert entries_of(["tau-norm:tau=0.5,1", "Tau-Norm:tau=1.0"]) == [
        PlanEntry("tau-norm(tau=[0.5, 1])", ("tau-norm(tau=0.5)", "tau-norm(tau=1)")),
        PlanEntry("tau-norm(tau=1)", ("tau-norm(tau=1)",)),
    ]


@pytest.mark.parametrize(
    ("texts", "expected"), [("sdn,ce,crt", "ce"), ("sdn,crt", "sdn"), ("ldam-drw,bce,crt", "bce"), ("none", "none")]
)
def test_baseline(texts, expected):
    spec = CompareSpec(data="x", methods=texts)
    assert baseline_of(spec, entries_of(spec.compared)) == expected


def test_settings_of_the_runs(tmp_path):
    spec = CompareSpec(data="digits-lt", losses="focal", methods="crt sdn", seeds=[4])
    runs = {run.loss: run_spec(spec, run) for run in planned_runs(tmp_path, entries_of(spec.compared), spec.seeds)}
    assert (runs["focal"].loss, runs["focal"].method, runs["focal"].stage_one) == ("focal", "none", None)
    assert (runs["auto"].loss, runs["auto"].method) == ("auto", "none")
    assert (runs["sdn"].loss, runs["sdn"].method, runs["sdn"].stage_one) == ("auto", "sdn", None)
    assert (runs["crt"].method, runs["crt"].stage_one) == ("crt", str(tmp_path / "runs" / "auto-4"))
    assert {actual.seed for actual in runs.values()} == {4}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"methods": "ce sdm"}, "methods.1: they must be methods or losses, got 'sdm'; did you mean 'sdn'?"),
        ({"methods": "ce crtt"}, "did you mean 'crt'?"),
        ({"methods": "ce tau_norn:tau=2"}, "did you mean 'tau-norm'?"),
        ({"methods": "ce zzz"}, "they must be methods (none, sdn, "),
        ({"methods": "ce focl"}, "did you mean 'focal'?"),
        ({"methods": "ldam:max_margn=1"}, "must get options that it knows, got 'max_margn'"),
        (
            {"losses": "ce crtt"},
            "they must be losses, got 'crtt'; did you mean 'crt'? Methods are given in --methods",
        ),
        ({"methods": "sdn:featur=ce"}, "did you mean 'feature'?"),
        ({"methods": "sdn SDN"}, "got sdn twice; remove one of them"),
        ({"losses": "ce", "methods": "CrossEntropyLoss"}, "got ce twice"),
        ({"losses": "ce sdn"}, "got the method sdn; give it in --methods"),
        ({"methods": "ce sdn", "baseline": "crt"}, "one of ce, sdn, got crt"),
    ],
)
def test_mistakes(settings, words):
    with pytest.raises(SpecError) as error:
        CompareSpec.check({"data": "digits-lt"} | settings)
    assert words in str(error.value)


def test_methods_that_do_not_fit_the_data_are_named_together():
    spec = CompareSpec(data="digit-scenes", methods="bce crt sdn tau-norm lws:loss=ce")
    with pytest.raises(ValueError, match="sdn") as error:
        surveyed_entries(spec)
    message = str(error.value)
    assert "sdn: --method sdn is for task multiclass or segmentation" in message
    assert "tau-norm: --method tau-norm is for" in message
    assert "lws(loss=ce): loss must be for" in message
    assert re.findall(r"(\S+): (?=--method|loss must)", message) == ["sdn", "tau-norm", "lws(loss=ce)"]


# ---------------------------------------------------------------------------------------------------- what is trained


class Here:
    """Trains in this process; ``fits`` counts trainings, ``asked`` has the runs of each comparison in their order."""

    at_a_time = 1

    def __init__(self, monkeypatch):
        self.asked, self.fits, self.wrong = [], 0, {}
        monkeypatch.setattr(module, "_jobs", lambda *arguments: self)
        monkeypatch.setattr(run, "fit", self.counted(run.fit))
        self.judge = module._judge  # half of the time
        monkeypatch.setattr(module, "_judge", lambda folder, page: None)
        train_one = module.train_one

        def one(spec, out):
            if out.name in self.wrong:
                raise self.wrong[out.name]
            train_one(spec, out)

        monkeypatch.setattr(module, "train_one", one)

    def counted(self, fit):
        def counting(*arguments, **options):
            self.fits += 1
            return fit(*arguments, **options)

        return counting

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def outcomes(self, calls, tick=lambda: None):
        if any(call.function is not surveyed_entries for call in calls):
            self.asked.append([])
        waiting = list(calls)
        while (call := take_ready(waiting, [])) is not None:
            if call.function is not surveyed_entries:
                self.asked[-1].append(call.name)
            yield attempt(call)
            tick()


@pytest.fixture
def here(monkeypatch):
    return Here(monkeypatch)


def compared(out, say=lambda line: None, **settings):
    return compare(CompareSpec(**SMALL | settings), out, say=say)


def test_one_backbone_for_all_and_nothing_is_repeated(here, tmp_path):
    out = tmp_path / "out"
    folder = compared(out, losses="ce")
    assert here.fits == 1
    backbone = contents(out / "runs" / "ce-0")
    folder = compared(out, losses="ce", methods="crt lws tau-norm")
    assert here.fits == 1  # no weight before the classifier was trained again
    assert here.asked == [["ce-0"], ["crt-0", "lws-0", "tau-norm-0"]]
    assert contents(out / "runs" / "ce-0") == backbone
    assert folder.baseline == "ce"
    lines = []
    before = contents(out / "runs")
    folder = compared(out, lines.append, losses="ce", methods="crt lws tau-norm sdn")
    assert here.asked[2:] == [["sdn-0"]]
    assert before.items() <= contents(out / "runs").items()
    assert "4 of 5 runs are finished already" in lines
    assert [entry.text for entry in folder.entries] == ["ce", "crt", "lws", "tau-norm", "sdn"]


def test_a_backbone_that_is_not_compared_has_no_row(here, tmp_path):
    folder = compared(tmp_path / "out", methods="crt,ncm,sdn")
    assert here.asked == [["auto-0", "crt-0", "ncm-0", "sdn-0"]]
    assert [entry.text for entry in folder.entries] == ["crt", "ncm", "sdn"]
    here.judge(folder, comparison_page)
    content = json.loads(folder.verdict.read_text())
    assert [row["loss"] for row in content["rows"]] == ["crt", "ncm", "sdn"]
    page = folder.report.read_text()
    assert "crt" in page
    assert "auto" not in re.findall(r"<tr><t[dh][^>]*>([^<]*)<", page)
    runs = {run.name: run for run in folder.runs}
    assert runs["crt-0"].stage_one == runs["auto-0"].folder
    (tmp_path / "out").rename(tmp_path / "moved")
    folder = compared(tmp_path / "moved", methods="crt,ncm,sdn,lws")  # the path of stage one has changed
    assert here.asked[1:] == [["lws-0"]]
    assert len(folder.finished) == 5


def test_a_backbone_that_fails_does_not_stop_the_others(here, tmp_path):
    here.wrong["ce-0"] = TrainingError("the loss became nan")
    lines, out = [], tmp_path / "out"
    folder = compared(out, lines.append, methods="ce crt sdn")
    assert [run.name for run in folder.finished] == ["sdn-0"]
    assert {one.loss: one.error.partition(",")[0] for one in folder.failures} == {
        "ce": "the loss became nan",
        "crt": "--stage-one must be the folder of a finished run",
    }
    here.judge(folder, comparison_page)
    assert "sdn" in folder.report.read_text()
    del here.wrong["ce-0"]
    folder = compared(out, methods="ce crt sdn")
    assert here.asked[-1] == ["ce-0", "crt-0"]
    assert folder.failures == []
    assert len(folder.finished) == 3


def test_only_failed_backbones_are_none_that_came_to_an_end(here, tmp_path):
    here.wrong["auto-0"] = TrainingError("no memory")
    with pytest.raises(TrainingError, match="all 2 runs failed: auto, seed 0: no memory"):
        compared(tmp_path / "out", methods="crt lws")
    assert ComparisonFolder(tmp_path / "out").exists


def test_a_comparison_of_nothing_but_a_backbone_that_is_finished(here, tmp_path):
    """Every method failed, stage one did not: there is nothing to judge, which is reported."""
    here.wrong = {"crt-0": TrainingError("no memory"), "lws-0": TrainingError("no memory")}
    with pytest.raises(TrainingError, match="all 2 runs failed: crt, seed 0: no memory"):
        compared(tmp_path / "out", methods="crt lws")
    here.wrong = {}
    assert len(compared(tmp_path / "out", methods="crt lws").finished) == 3


@pytest.mark.slow
def test_two_at_a_time_find_what_one_finds(tmp_path, monkeypatch):
    """Real processes: no run of stage two begins before its stage one is finished."""
    monkeypatch.setattr(module, "_judge", lambda folder, page: None)
    settings = SMALL | {"methods": "ce,crt,oltr,tau-norm"}
    one, two = (compare(CompareSpec(**settings), tmp_path / f"jobs-{jobs}", jobs=jobs) for jobs in (1, 2))
    assert [run.name for run in one.runs] == [run.name for run in two.runs]
    assert one.failures == two.failures == []
    for first, second in zip(one.runs, two.runs, strict=True):
        assert_same_run(first.folder, second.folder)
