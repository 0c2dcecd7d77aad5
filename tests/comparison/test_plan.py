"""From losses to runs: every candidate once with every seed, under a name of its own."""

import re
from pathlib import Path

import numpy as np
import pytest

from equipoise.comparison.folder import PlanEntry
from equipoise.comparison.plan import baseline_of, entries_of, planned_runs, run_name, run_spec, surveyed_entries
from equipoise.comparison.spec import CompareSpec
from equipoise.expressions import canonical


def test_every_candidate_once_with_every_seed(tmp_path):
    entries = entries_of(["ce", "focal:gamma=1,2", "FocalLoss:gamma=2,5", "fl:gamma=2"])
    assert entries == [
        PlanEntry("ce", ("ce",)),
        PlanEntry("focal(gamma=[1, 2])", ("focal(gamma=1)", "focal(gamma=2)")),
        PlanEntry("focal(gamma=[2, 5])", ("focal(gamma=2)", "focal(gamma=5)")),
        PlanEntry("focal(gamma=2)", ("focal(gamma=2)",)),
    ]
    runs = planned_runs(tmp_path, entries, (4, 7))
    losses = ["ce", "focal(gamma=1)", "focal(gamma=2)", "focal(gamma=5)"]
    assert [(run.loss, run.seed) for run in runs] == [(loss, seed) for seed in (4, 7) for loss in losses]
    assert runs[1].folder.path == tmp_path / "runs" / "focal-gamma=1-4"
    assert len({run.name for run in runs}) == len(runs)


@pytest.mark.parametrize(
    ("losses", "asked", "expected"),
    [
        (["focal", "ce", "recall"], None, "ce"),
        (["focal", "CrossEntropyLoss"], None, "ce"),
        (["asl", "bce"], None, "bce"),
        (["ce:label_smoothing=0.1", "focal"], None, "ce(label_smoothing=0.1)"),
        (["focal", "ce:label_smoothing=0.1"], None, "focal"),
        (["focal", "ce+dice", "2*ce"], None, "focal"),
        (["focal", "ce"], "focal", "focal"),
    ],
)
def test_baseline(losses, asked, expected):
    spec = CompareSpec(data="x", losses=losses, baseline=asked)
    assert baseline_of(spec, entries_of(losses)) == expected


def test_a_baseline_that_is_not_among_the_suggested_losses():
    with pytest.raises(ValueError, match="--baseline must be one of ce, focal, got recall"):
        baseline_of(CompareSpec(data="x", baseline="recall"), entries_of(["ce", "focal"]))


def test_names_are_names_of_folders_and_tell_losses_apart():
    losses = ["ce", "focal:gamma=1", "focal:gamma=linear(5,1)", "focal:gamma=linear(51)", "ce+0.5*dice", "ce+0.5-dice"]
    losses += ["ohem:" + "keep=0.5:" * 40 + "x=1", "ohem:" + "keep=0.5:" * 40 + "x=2", "a/../b", "a b", "ä:b=1"]
    names = [run_name(loss, seed) for loss in losses for seed in (0, 10)]
    assert len({name.lower() for name in names}) == len(names)
    for name in names:
        assert len(name) < 120
        assert Path(name).name == name
        assert not set(name) & set(' */\\:?"<>|()')


def test_settings_of_a_row_replace_those_of_the_comparison(tmp_path):
    losses = "ce ce(lr=[0.1,0.2]) focal(gamma=1,epochs=3)"
    spec = CompareSpec(data="digits-lt", losses=losses, lr=0.01, epochs=5, seeds=1)
    runs = planned_runs(tmp_path, entries_of(spec.losses), spec.seeds)
    specs = [run_spec(spec, run) for run in runs]
    assert [(one.loss, one.lr, one.epochs) for one in specs] == [
        ("ce", 0.01, 5),
        ("ce", 0.1, 5),
        ("ce", 0.2, 5),
        ("focal(gamma=1)", 0.01, 3),
    ]
    assert len({run.name for run in runs}) == len(runs)
    assert baseline_of(spec, entries_of(spec.losses)) == "ce"


def test_both_stages_have_the_settings_of_their_row(tmp_path):
    runs = planned_runs(
        tmp_path, entries_of(["ce", "crt(sampler=balanced)", "tau-norm(sampler=balanced)", "crt"]), (0,)
    )
    first, plain, *methods = runs
    assert (first.loss, plain.loss) == ("auto(sampler=balanced)", "ce")
    assert run_spec(CompareSpec(data="digits-lt"), first).sampler == "balanced"
    assert [run.stage_one for run in methods] == [first.folder, first.folder, plain.folder]


def test_rows_that_train_the_same_are_trained_once():
    losses = "ce focal(gamma=0) ce(lr=0.1) focal(gamma=0,lr=0.1) ce(lr=0.2)"
    spec = CompareSpec(data="digits-lt", model="linear", losses=losses, lr=0.2)
    entries, notes = surveyed_entries(spec)
    assert [entry.candidates for entry in entries] == [("ce",), ("ce",), ("ce(lr=0.1)",), ("ce(lr=0.1)",), ("ce",)]
    assert sum("is trained once" in note for note in notes) == 3


def test_a_run_has_the_settings_of_the_comparison(tmp_path):
    spec = CompareSpec(
        data="digits-lt", losses=["focal:gamma=1,2"], seeds=[5], epochs=2, lr=0.1, model_options={"width": 3}
    )
    run = planned_runs(tmp_path, entries_of(spec.losses), spec.seeds)[1]
    settings = run_spec(spec, run)
    assert (settings.loss, settings.seed) == ("focal(gamma=2)", 5)
    shared = spec.model_dump(exclude={"losses", "methods", "seeds", "baseline"})
    assert settings.model_dump(exclude={"loss", "method", "stage_one", "seed"}) == shared


@pytest.mark.parametrize(
    ("methods", "stages"),
    [
        (["crt", "tau-norm:backbone=ce"], ["ce"]),
        (["tau-norm:backbone=ce", "crt", "lws:backbone=CrossEntropyLoss"], ["ce"]),
        (["crt", "lws"], ["auto"]),
        (["crt", "ce"], []),
        (["crt", "lws:backbone=focal"], ["auto", "focal"]),
    ],
)
def test_one_backbone_serves_all_that_start_from_the_same(methods, stages, tmp_path):
    runs = planned_runs(tmp_path, entries_of(methods), [0])
    assert [run.loss for run in runs] == [*stages, *map(canonical, methods)]


# Once the data are known


@pytest.mark.parametrize(
    ("data", "baseline"),
    [
        ("digits-lt", "ce"),
        ("digit-scenes", "bce"),
        ("digit-maps", "ce"),
    ],
)
def test_the_data_suggest_losses(data, baseline):
    entries, notes = surveyed_entries(CompareSpec(data=data))
    texts = [entry.text for entry in entries]
    assert texts[0] == baseline
    assert len(texts) >= 3
    assert baseline_of(CompareSpec(data=data), entries) == baseline
    for text in texts:
        assert any(note.startswith(f"{text}: ") for note in notes)


def test_losses_that_do_not_fit_are_named_together():
    spec = CompareSpec(data="digits-lt", losses=["ce", "bce", "focal:gamma=1,2", "dice"])
    with pytest.raises(ValueError, match="for single-label data") as error:
        surveyed_entries(spec)
    assert re.findall(r"(\S+): loss must be", str(error.value)) == ["bce", "dice"]


def test_given_losses_are_unchanged():
    entries, _ = surveyed_entries(CompareSpec(data="digits-lt", losses=["recall", "ldam:weight=drw,inverse"]))
    assert entries == entries_of(["recall", "ldam:weight=drw,inverse"])


def test_unsuitable_suggestions_are_omitted(tmp_path):
    """A label that every sample has leaves DistributionBalancedLoss nothing to rebalance."""
    draw = np.random.default_rng(0)
    labels = (draw.random((60, 3)) < (1, 0.5, 0.02)).astype(np.int8)
    labels[:3, 2] = 1
    for split in ("train", "val", "test"):
        np.savez(tmp_path / f"{split}.npz", features=draw.random((60, 4)).astype(np.float32), labels=labels)
    entries, _ = surveyed_entries(CompareSpec(data=str(tmp_path)))
    assert [entry.text for entry in entries] == ["bce", "asl", "binary-focal"]


def test_data_that_cannot_be_used():
    with pytest.raises(ValueError, match="no-such: there must be a file"):
        surveyed_entries(CompareSpec(data="no-such"))
