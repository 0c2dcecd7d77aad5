"""Which run is named at the end of a comparison, and with which reason."""

from dataclasses import replace

import pytest

from equipoise.comparison.folder import ComparisonFolder, PlanEntry, PlannedRun
from equipoise.comparison.recommendation import recommended
from equipoise.train.folder import RunFolder, write_json
from tests.comparison.verdicts import difference_of, record_of, result_of, verdict_of

VALUES = {("ce", 0): 0.5, ("ce", 1): 0.6, ("good", 0): 0.7, ("good", 1): 0.65, ("other", 0): 0.9, ("other", 1): 0.8}
"""Accuracy on validation data, of which ``other`` has the most."""


def compared(path, values=VALUES, monitor="accuracy"):
    folder = ComparisonFolder(path)
    runs = [PlannedRun(loss, seed, RunFolder(path / "runs" / f"{loss}-{seed}")) for loss, seed in values]
    folder.write_plan(
        {"data": "digits-lt", "seeds": [0, 1]},
        [PlanEntry(loss, (loss,)) for loss in dict.fromkeys(run.loss for run in runs)],
        "ce",
        runs,
    )
    for run in runs:
        run.folder.path.mkdir()
        record = record_of(monitor, values[run.loss, run.seed])
        write_json(run.folder.path / "run.json", record.to_json())
    return folder


def judged(*significant, seeds=(0, 1), losses=("ce", "good", "other"), main="accuracy"):
    """A verdict in which these (loss, metric, mean) are significant."""
    rows = [result_of(loss, seeds=seeds) for loss in losses]
    differences = [difference_of(*one, True) for one in significant]
    return verdict_of(rows, differences, baseline="ce", seeds=seeds, main=main)


def undecided(*needs, seeds=(0, 1, 2)):
    """A verdict with differences of (loss, mean, seeds needed, limit) that are not significant."""
    differences = [
        difference_of(loss, "accuracy", mean, seeds_needed=number, limit=limit) for loss, mean, number, limit in needs
    ]
    return replace(judged(seeds=seeds), differences=tuple(differences))


def test_where_nothing_is_better_the_baseline_stays(tmp_path):
    worse = judged(("other", "ece", 0.2), ("good", "accuracy", -0.1))
    advice = recommended(compared(tmp_path), worse)
    assert advice.run.name == "ce-1"
    assert advice.why.startswith("No loss is significantly better than ce in accuracy")
    assert advice.note == (
        "Significance was judged on test data. The run was chosen by accuracy on validation data. "
        "Best accuracy on validation data: other-0."
    )


@pytest.mark.parametrize(
    ("needs", "seeds", "number"),
    [
        ([("good", 0.19, 7, "seeds")], (0, 1, 2), 7),
        ([("good", 0.19, 12, "seeds"), ("other", 0.3, 9, "seeds")], (0, 1, 2), 9),
        ([("good", 0.19, 300, "seeds")], (0, 1), 5),  # two seeds do not know how many it takes
        ([("good", 0.19, None, None)], (0,), 5),
        ([("good", 0.19, 300, "seeds")], (0, 1, 2), None),
        ([("good", 0.19, None, "seeds")], (0, 1, 2), None),  # more than are ever counted, whatever the test samples
        ([("good", 0.19, None, "samples")], (0, 1, 2), None),
        ([("good", -0.19, 7, "seeds")], (0, 1, 2), None),  # a loss that looks worse is no reason for more seeds
    ],
)
def test_the_next_step_is_the_same_comparison_with_more_seeds(tmp_path, needs, seeds, number):
    advice = recommended(compared(tmp_path), undecided(*needs, seeds=seeds))
    assert advice.run.loss == "ce"
    command = f"equipoise compare --data digits-lt --seeds {number} --out place"
    assert advice.next_step("place") == ("" if number is None else f"Undecided; next: {command}")
    assert ("--test-share" in advice.why) == (needs[0][3] == "samples")


def test_the_next_step_keeps_the_seeds_there_are(tmp_path):
    advice = recommended(compared(tmp_path), undecided(("good", 0.19, 5, "seeds"), seeds=(4, 7, 9)))
    assert advice.settings["seeds"] == [0, 1, 4, 7, 9]


def test_its_loss_for_a_loop_of_ones_own(tmp_path):
    folder = compared(tmp_path)
    assert recommended(folder, judged()).in_your_loop == ""  # a run of an older version
    run = tmp_path / "runs" / "ce-1" / "run.json"
    write_json(run, record_of(monitor_value=0.6, loss_in_python="equipoise.CrossEntropyLoss()").to_json())
    assert recommended(folder, judged()).in_your_loop == (
        "In your own training loop: loss = equipoise.CrossEntropyLoss()."
    )
    write_json(run, record_of(monitor_value=0.6, loss_in_python="equipoise.BalancedSoftmaxLoss(counts)").to_json())
    assert recommended(folder, judged()).in_your_loop == (
        "In your own training loop: loss = equipoise.BalancedSoftmaxLoss(counts), where counts are your training "
        "samples of each class."
    )


def test_what_is_significantly_better_is_used_though_another_is_the_best_on_validation_data(tmp_path):
    advice = recommended(compared(tmp_path), judged(("good", "accuracy", 0.1)))
    assert advice.run.name == "good-0"
    assert advice.why == "good is significantly better than ce in accuracy"
    assert advice.note.endswith("Best accuracy on validation data: other-0.")


def test_validation_data_choose_among_what_is_significantly_better(tmp_path):
    advice = recommended(compared(tmp_path), judged(("good", "accuracy", 0.2), ("other", "accuracy", 0.1)))
    assert advice.run.name == "other-0"
    assert advice.why == (
        "good and other are significantly better than ce in accuracy, and other is the best of these on validation data"
    )
    assert "Best" not in advice.note


def test_less_may_be_better(tmp_path):
    folder = compared(tmp_path, monitor="nll")
    assert recommended(folder, judged(("good", "nll", 0.1), main="nll")).run.loss == "ce"
    assert recommended(folder, judged(("good", "nll", -0.1), main="nll")).run.name == "good-1"


def test_gains_in_other_metrics_are_reported(tmp_path):
    advice = recommended(compared(tmp_path), judged(("good", "few", 0.3), ("other", "ece", -0.1)))
    assert advice.run.loss == "ce"
    assert advice.note.endswith("Significantly better in other metrics: good (few), other (ECE).")


def test_one_seed_does_not_know(tmp_path):
    values = {key: value for key, value in VALUES.items() if key[1] == 0}
    advice = recommended(compared(tmp_path, values), judged(seeds=[0]))
    assert advice.run.name == "ce-0"
    assert advice.why.startswith("One seed cannot show whether a loss is better than ce")


@pytest.mark.parametrize(("losses", "name"), [(("good", "other"), "other-0"), (("good",), "good-0")])
def test_without_a_baseline_validation_data_choose(tmp_path, losses, name):
    values = {key: value for key, value in VALUES.items() if key[0] in losses}
    advice = recommended(compared(tmp_path, values), judged(losses=losses))
    assert advice.run.name == name
    assert advice.why == f"{losses[-1]} has the best accuracy on validation data"


def test_without_numbers_on_validation_data_there_is_none(tmp_path):
    assert recommended(compared(tmp_path, dict.fromkeys(VALUES)), judged()) is None


def test_the_command_fits_the_place(tmp_path):
    advice = recommended(compared(tmp_path), judged())
    assert advice.command() == "equipoise export runs/ce-1"
    assert advice.command(tmp_path / "my data") == f"equipoise export '{tmp_path}/my data/runs/ce-1'"
