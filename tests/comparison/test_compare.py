"""What a comparison does with its runs: resumes, grows, refuses, reports. Runs here are made up, nothing is trained."""

import json
import os
import re
from dataclasses import replace

import pytest

from equipoise.comparison import compare as module
from equipoise.comparison.compare import compare
from equipoise.comparison.folder import ComparisonFolder, PlanEntry
from equipoise.comparison.jobs import Job, attempt
from equipoise.comparison.lock import only_one
from equipoise.comparison.plan import run_name
from equipoise.comparison.spec import CompareSpec
from equipoise.train.errors import TrainingError
from equipoise.train.folder import RunFolder, write_json
from equipoise.train.spec import RunSpec
from tests.comparison.verdicts import DATA, record_of

SPEC = {"data": "digits-lt", "losses": ["ce", "focal(gamma=[1, 2])"], "seeds": 2, "epochs": 2}


class Here:
    """Does calls in this process; ``trained`` says which runs were asked for, and ``wrong`` what happens to some."""

    def __init__(self, monkeypatch):
        self.trained, self.wrong, self.started, self.data = [], {}, 0, {}
        monkeypatch.setattr(module, "_jobs", self.start)
        monkeypatch.setattr(module, "_judge", lambda folder, page: None)
        monkeypatch.setattr(module, "train_one", self.train_one)
        monkeypatch.setattr(module, "damage_of", lambda run: None)

    at_a_time = 2

    def start(self, spec, jobs, needed, ray):
        self.started += 1
        self.needed = needed
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def outcomes(self, calls, tick=lambda: None):
        for call in calls:
            yield attempt(Job(call.name, call.function, call.arguments))
            tick()

    def train_one(self, spec, out):
        self.trained.append((spec.loss, spec.seed))
        if (spec.loss, spec.seed) in self.wrong:
            raise self.wrong[spec.loss, spec.seed]
        draft = RunFolder(out).draft
        draft.mkdir()
        record = record_of(spec=spec.model_dump(), data=replace(DATA, **self.data), seconds=1.0)
        write_json(draft / "run.json", record.to_json())
        draft.rename(out)


@pytest.fixture
def here(monkeypatch):
    return Here(monkeypatch)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


ALL = [(loss, seed) for seed in (0, 1) for loss in ("ce", "focal(gamma=1)", "focal(gamma=2)")]


def compared(out, say=lambda line: None, **settings):
    return compare(CompareSpec(**SPEC | settings), out, say=say)


def test_every_run_is_trained_and_the_plan_says_which(here, out):
    lines = []
    folder = compared(out, lines.append)
    assert here.trained == ALL
    assert here.needed == 6
    assert folder.path == out
    assert folder.entries == [
        PlanEntry("ce", ("ce",)),
        PlanEntry("focal(gamma=[1, 2])", ("focal(gamma=1)", "focal(gamma=2)")),
    ]
    assert folder.baseline == "ce"
    assert folder.spec["losses"] == ["ce", "focal(gamma=[1, 2])"]
    assert [(run.loss, run.seed) for run in folder.finished] == ALL
    assert folder.failures == []
    assert len(lines) == 9
    assert lines[:3] == [
        f"comparing losses on digits-lt in {out}",
        "digits-lt: 10 classes, 276 training, 200 validation and 400 test samples; model resnet32",
        "2 epochs, 6 runs, 2 at a time",
    ]
    assert lines[3].startswith("1/6 ce, seed 0: accuracy 50.00 on validation data")
    logged = [line.split(" ", 2)[2] for line in folder.log.read_text().splitlines()]
    assert logged == lines


def test_a_finished_comparison_starts_nothing(here, out):
    compared(out)
    before = (out / "compare.json").stat().st_mtime_ns
    compared(out)
    assert here.started == 1
    assert here.trained == ALL
    assert (out / "compare.json").stat().st_mtime_ns == before


def test_interrupted_it_says_how_to_go_on_and_does(here, out):
    here.wrong["focal(gamma=1)", 0] = KeyboardInterrupt()
    with pytest.raises(TrainingError, match="interrupted; 1 of 6 runs are finished; run the same command again"):
        compared(out)
    here.wrong.clear()
    here.trained.clear()
    lines = []
    compared(out, lines.append)
    assert here.trained == ALL[1:]
    assert lines[1] == "1 of 6 runs are finished already"


def test_interrupted_before_there_was_a_plan_it_leaves_nothing(here, out, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_survey", interrupted)
    with pytest.raises(TrainingError, match="interrupted; nothing is finished"):
        compared(out)
    assert not out.exists()


def test_a_failed_run_stops_nothing_and_is_tried_again(here, out):
    here.wrong = {("ce", 1): TrainingError("the loss became nan"), ("focal(gamma=2)", 0): RuntimeError("odd\nthing")}
    lines = []
    folder = compared(out, lines.append)
    assert here.trained == ALL
    assert [(one.loss, one.seed, one.error) for one in folder.failures] == [
        ("focal(gamma=2)", 0, "RuntimeError: odd thing"),
        ("ce", 1, "the loss became nan"),
    ]
    assert len(folder.finished) == 4
    assert f"failed: the loss became nan; see {out / 'failures' / 'ce-1.log'}" in "\n".join(lines)
    assert all((out / one.log).is_file() for one in folder.failures)
    here.trained.clear()
    del here.wrong["ce", 1]
    lines.clear()
    folder = compared(out, lines.append)
    assert here.trained == [("focal(gamma=2)", 0), ("ce", 1)]
    assert "ce, seed 1 failed before and is trained again: the loss became nan" in lines
    assert [(one.loss, one.seed) for one in folder.failures] == [("focal(gamma=2)", 0)]
    assert sorted(file.name for file in (out / "failures").iterdir()) == ["focal-gamma=2-0.json", "focal-gamma=2-0.log"]


def test_no_run_came_to_its_end(here, out):
    here.wrong = dict.fromkeys(ALL, TrainingError("no memory"))
    with pytest.raises(TrainingError, match="all 6 runs failed: ce, seed 0: no memory; see the logs"):
        compared(out)
    here.wrong = {}
    assert len(compared(out).finished) == 6


def test_a_failure_that_cannot_be_written_is_told(here, out, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ComparisonFolder, "write_failure", full)
    here.wrong = {("ce", 0): TrainingError("the disk is full")}
    lines = []
    folder = compared(out, lines.append)
    assert len(folder.finished) == 5
    assert "ce, seed 0: failed: the disk is full" in lines[3]


def test_a_full_disk_in_the_end_costs_no_run(here, out, monkeypatch):
    def full(folder, page):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_judge", full)
    with pytest.raises(
        TrainingError, match=r"the disk is full .*; make room; 6 of 6 runs are finished; run the same command"
    ):
        compared(out)
    monkeypatch.undo()
    assert len(ComparisonFolder(out).finished) == 6


# The same folder again


def test_losses_and_seeds_may_be_added(here, out):
    compared(out)
    here.trained.clear()
    folder = compared(out, seeds=3)
    assert here.trained == [(loss, 2) for loss in ("ce", "focal(gamma=1)", "focal(gamma=2)")]
    here.trained.clear()
    folder = compared(out, seeds=3, losses=["recall", "ce", "focal(gamma=[1, 2])"])
    assert here.trained == [("recall", 0), ("recall", 1), ("recall", 2)]
    assert [entry.text for entry in folder.entries] == ["recall", "ce", "focal(gamma=[1, 2])"]
    assert folder.baseline == "ce"
    assert len(folder.finished) == 12


def test_a_loss_may_be_added_whose_runs_others_have_started_from(here, out):
    compared(out, losses=None, methods=["tau-norm(backbone=ce)"])
    here.trained.clear()
    folder = compared(out, losses=None, methods=["ce", "tau-norm(backbone=ce)"])
    assert here.trained == []
    assert here.needed == 0
    assert [entry.text for entry in folder.entries] == ["ce", "tau-norm(backbone=ce)"]


OLD = {
    "focal(gamma=[1, 2])": "focal:gamma=1,2",
    "focal(gamma=1)": "focal:gamma=1",
    "focal(gamma=2)": "focal:gamma=2",
    "ce + 0.5 * mmce": "ce+0.5*mmce",
    "crt(backbone=focal(gamma=1))": "crt:backbone=(focal:gamma=1)",
}


def as_version_0_1_wrote_it(out):
    """Rewrite a comparison as version 0.1 had it: its texts, and so the names of its runs."""
    about = json.loads((out / "compare.json").read_text())
    for key in ("losses", "methods"):
        about["spec"][key] = about["spec"][key] and [OLD.get(text, text) for text in about["spec"][key]]
    for entry in about["entries"]:
        entry["text"] = OLD.get(entry["text"], entry["text"])
        entry["candidates"] = [OLD.get(text, text) for text in entry["candidates"]]
    names = {None: None}
    for run in about["runs"]:
        run["loss"] = OLD.get(run["loss"], run["loss"])
        names[run["folder"]] = f"runs/{run_name(run['loss'], run['seed'])}"
        (out / run["folder"]).rename(out / names[run["folder"]])
    for run in about["runs"]:
        run["folder"], run["stage_one"] = names[run["folder"]], names[run["stage_one"]]
    write_json(out / "compare.json", about)


@pytest.mark.parametrize(
    "losses",
    [
        ["ce", "focal(gamma=[1, 2])", "ce + 0.5 * mmce"],
        ["ce", "FocalLoss( gamma=[1.0,2] )", "CrossEntropyLoss + mmce * 0.5"],
        ["ce", "fl:gamma=1,2", "ce+0.5*mmce"],
    ],
)
@pytest.mark.parametrize("old", [True, False])
def test_a_comparison_of_either_syntax_resumes_in_both(here, out, losses, old):
    compared(out, losses=["ce", "focal(gamma=[1, 2])", "ce + 0.5 * mmce"], seeds=1)
    assert here.trained == [(loss, 0) for loss in ("ce", "focal(gamma=1)", "focal(gamma=2)", "ce + 0.5 * mmce")]
    if old:
        as_version_0_1_wrote_it(out)
    plan = ComparisonFolder(out)
    names, entries = [run.name for run in plan.runs], plan.entries
    assert (entries[1].text == "focal:gamma=1,2") == old
    here.trained.clear()
    folder = compared(out, losses=losses, seeds=1, baseline="FocalLoss:gamma=1,2")
    assert here.trained == []
    assert [run.name for run in folder.runs] == names
    assert folder.entries == entries
    assert folder.baseline == entries[1].text
    folder = compared(out, losses=[*losses, "recall"], seeds=1)  # losses may be added all the same
    assert here.trained == [("recall", 0)]
    assert folder.entries == [*entries, PlanEntry("recall", ("recall",))]
    assert [run.name for run in folder.runs] == [*names, "recall-0"]


@pytest.mark.parametrize("old", [True, False])
def test_stage_one_of_a_comparison_of_either_syntax_is_found(here, out, old):
    methods = ["crt(backbone=focal(gamma=1))"]
    compared(out, losses=None, methods=methods, seeds=1)
    assert here.trained == [("focal(gamma=1)", 0), ("auto", 0)]
    if old:
        as_version_0_1_wrote_it(out)
    here.trained.clear()
    folder = compared(
        out, losses=None, methods=["crt:backbone=(fl:gamma=1.0)", "tau-norm(backbone=focal(gamma=1))"], seeds=1
    )
    assert here.trained == [("auto", 0)]
    stages = {run.loss: run.stage_one and run.stage_one.path.name for run in folder.runs}
    assert set(stages.values()) == {None, "focal-gamma=1-0"}


def test_nothing_is_added_on_other_data(here, out):
    here.data = {"fingerprint": "of samples in another order"}
    compared(out)
    here.trained.clear()
    with pytest.raises(ValueError, match="digits-lt: the data must be those of the runs that are finished"):
        compared(out, losses=["ce", "focal(gamma=[1, 2])", "recall"])
    assert here.trained == []


def test_an_added_loss_must_fit_the_data(here, out):
    compared(out)
    before = (out / "compare.json").read_text()
    with pytest.raises(ValueError, match="bce: loss must be for single-label data"):
        compared(out, losses=[*SPEC["losses"], "bce"])
    assert (out / "compare.json").read_text() == before


def test_another_baseline_trains_nothing(here, out):
    compared(out)
    folder = compared(out, baseline="focal(gamma=[1, 2])")
    assert here.trained == ALL
    assert folder.baseline == "focal(gamma=[1, 2])"


def test_another_machine_may_go_on(here, out):
    here.wrong["focal(gamma=1)", 0] = KeyboardInterrupt()
    with pytest.raises(TrainingError):
        compared(out)
    here.wrong.clear()
    assert len(compared(out, accelerator="cpu", workers=0).finished) == 6


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"epochs": 3}, "epochs=2 (this one has 3)"),
        ({"lr": 0.1, "data": "digit-maps"}, "data=digits-lt (this one has digit-maps), lr=None (this one has 0.1)"),
        (
            {"losses": ["ce", "focal(gamma=[1, 2, 3])"], "clip": 1},
            "clip=None (this one has 1.0) and with focal(gamma=[1, 2]), which this one lacks",
        ),
        ({"losses": None}, "losses=ce,focal(gamma=[1, 2]) (this one has those that the data suggest)"),
    ],
)
def test_another_comparison_in_its_place_is_refused(here, out, settings, differs):
    compared(out)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match=re.escape(f"already holds a comparison with {differs}; choose another --out")):
        compared(out, **settings)
    assert before == {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("settings", "differs"), [({"seeds": 1}, "seed 1"), ({"losses": ["ce"]}, "focal(gamma=[1, 2])")]
)
def test_a_part_of_a_comparison_is_refused_with_the_command_of_all(here, out, settings, differs):
    compared(out)
    here.trained.clear()
    with pytest.raises(
        ValueError,
        match=re.escape(
            f"already holds a comparison with {differs}, which this one lacks; resume it (equipoise compare"
        ),
    ) as why:
        compared(out, **settings)
    assert f"see it (equipoise report {out}), or choose another --out" in str(why.value)
    command = re.search(r"\((equipoise compare .*?)\), see", str(why.value))[1]
    assert f"--losses 'ce focal(gamma=[1, 2])' --seeds 2 --out {out}" in command
    assert not here.trained


def test_suggested_losses_stay_those_of_the_first_time(here, out):
    folder = compared(out, losses=None, seeds=1)
    texts = [entry.text for entry in folder.entries]
    assert texts[0] == folder.baseline == "ce"
    assert here.needed is None
    count = len(here.trained)
    assert count >= 3
    assert [entry.text for entry in compared(out, losses=None, seeds=2).entries] == texts
    assert len(here.trained) == 2 * count
    assert [entry.text for entry in compared(out, losses=[*texts, "brier"]).entries] == [*texts, "brier"]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"spec": {}}', '{"spec": {}, "entries": []}'])
def test_a_plan_that_is_none(here, out, content):
    out.mkdir()
    (out / "compare.json").write_text(content)
    with pytest.raises(ValueError, match=r"compare\.json: the file is not the plan of a comparison"):
        compared(out)
    assert (out / "compare.json").read_text() == content


def test_a_folder_of_something_else_is_left_alone(here, out):
    (out / ".git").mkdir(parents=True)
    with pytest.raises(ValueError, match="the folder exists and is not a comparison"):
        compared(out)
    assert [file.name for file in out.iterdir()] == [".git"]
    (out.parent / "file").write_text("mine")
    with pytest.raises(ValueError, match="is not a comparison"):
        compared(out.parent / "file")


def test_a_mistake_leaves_nothing_new(here, out):
    with pytest.raises(ValueError, match="no-such"):
        compared(out / "deep" / "er", data="no-such")
    assert not out.exists()
    out.mkdir()
    with pytest.raises(ValueError, match="dice: loss must be"):
        compared(out, losses=["ce", "dice"])
    with pytest.raises(ValueError, match="--baseline must be one of ce"):
        compared(out, losses=None, baseline="dice")
    assert list(out.iterdir()) == []
    assert not here.trained


def test_damaged_runs_are_trained_again(here, out, monkeypatch):
    lines = []
    compared(out)
    monkeypatch.setattr(module, "damage_of", lambda run: "ce-0: bad" if run.path.name == "ce-0" else None)
    here.trained.clear()
    compared(out, lines.append)
    assert here.trained == [("ce", 0)]
    assert (out / "runs" / "ce-0.damaged-1" / "run.json").is_file()
    assert "ce-0: bad; ce-0 is kept as ce-0.damaged-1 and trained again" in lines


def test_what_a_kill_before_the_plan_left_is_no_obstacle(here, out):
    (out / "runs").mkdir(parents=True)
    for name in (".lock", ".lock-of-runs", "compare.log"):
        (out / name).write_text("{")
    (out / ".compare.json.draft-abcdefgh").mkdir()
    assert len(compared(out).finished) == 6


def test_one_at_a_time(here, out):
    compared(out)
    with only_one(out), pytest.raises(ValueError, match=f"found process {os.getpid()}; wait for it to end"):
        compared(out, seeds=3)
    assert len(compared(out, seeds=3).runs) == 9


def test_runs_of_a_killed_comparison_are_waited_for(here, out, monkeypatch):
    from equipoise.comparison import lock

    compared(out)
    monkeypatch.setattr(lock, "PATIENCE", 0.2)
    with lock.at_work(out), pytest.raises(ValueError, match="no run of a stopped comparison must be active"):
        compared(out)
    compared(out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_where_nothing_can_be_written(here, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="the folder must be writable"):
        compared(tmp_path / "out")


# What is really done in a process


def test_a_run_whose_folder_was_never_taken_over_begins_anew(out, monkeypatch):
    """Killed between making the folder and writing into it what it is."""
    runs = []
    monkeypatch.setattr("equipoise.train.run.run", lambda spec, out, **_: runs.append(RunFolder(out).draft.exists()))
    out.mkdir()
    (out / "compare.json").write_text("{}")
    draft = out / "runs" / "ce-0.unfinished"
    draft.mkdir(parents=True)
    (draft / ".spec.json.draft-abcdefgh").mkdir()
    module.train_one(RunSpec(data="digits-lt"), out / "runs" / "ce-0")
    draft.mkdir()
    (draft / "spec.json").write_text("{}")
    module.train_one(RunSpec(data="digits-lt"), out / "runs" / "ce-0")
    (draft / "spec.json").write_text("{")
    module.train_one(RunSpec(data="digits-lt"), out / "runs" / "ce-0")
    assert runs == [False, True, False]
    assert (out / "runs" / "ce-0.unfinished.damaged-1" / "spec.json").is_file()


def test_a_machine_that_does_not_see_the_folder(out):
    with pytest.raises(ValueError, match="must be seen by all machines that train"):
        module.train_one(RunSpec(data="digits-lt"), out / "runs" / "ce-0")


def gpu(name, *, threads):
    return {"CUDA_VISIBLE_DEVICES": name, "OMP_NUM_THREADS": str(threads)}


@pytest.mark.parametrize(
    ("visible", "count", "accelerator", "asked", "needed", "expected"),
    [
        (None, 0, "auto", None, 100, (8, 1, [{}])),
        (None, 0, "auto", 3, 100, (3, 1, [{}])),
        (None, 0, "auto", 3, 2, (2, 1, [{}])),
        (None, 0, "auto", 3, 0, (1, 1, [{}])),
        (None, 1, "auto", None, 35, (1, 16, [gpu("0", threads=16)])),
        (None, 2, "auto", None, None, (2, 16, [gpu("0", threads=8), gpu("1", threads=8)])),
        (None, 2, "auto", None, 5, (2, 3, [gpu("0", threads=8), gpu("1", threads=8)])),
        ("3,5", 2, "gpu", 4, 9, (2, 2, [gpu("3", threads=8), gpu("5", threads=8)])),
        (None, 2, "gpu", 1, 9, (1, 1, [gpu("0", threads=16), gpu("1", threads=16)])),
        (None, 2, "cpu", 2, 9, (2, 1, [{}])),
    ],
)
def test_runs_share_the_gpus(monkeypatch, visible, count, accelerator, asked, needed, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(module, "_cores", lambda: 16)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    jobs = module._jobs(CompareSpec(data="x", accelerator=accelerator), asked, needed, None)
    assert (jobs.count, jobs.together, jobs.environments) == expected


def test_what_is_written_can_be_read_without_the_package(here, out):
    compared(out)
    about = json.loads((out / "compare.json").read_text())
    assert (about["format"], about["baseline"]) == (1, "ce")
    planned = {"loss": "focal(gamma=1)", "seed": 0, "folder": "runs/focal-gamma=1-0", "stage_one": None}
    assert about["runs"][1] == planned


def test_a_cheaper_comparison_has_fewer_epochs_and_seeds(tmp_path):
    spec = CompareSpec(data="digits-lt", losses="ce focal", epochs=40, seeds=[0, 1, 2], model="mlp")
    assert module._cheaper(ComparisonFolder(tmp_path / "out"), spec) == (
        "equipoise compare --data digits-lt --model mlp --epochs 8 --losses 'ce focal' --seeds 2 "
        f"--out {tmp_path}/out-first-look"
    )
