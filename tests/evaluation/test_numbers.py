"""Metrics of an evaluation against scikit-learn, numpy and the metric classes on arrays."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    jaccard_score,
    log_loss,
    precision_score,
    recall_score,
    top_k_accuracy_score,
)

from equipoise.evaluation import evaluate
from equipoise.evaluation.sentences import described
from equipoise.metrics import CalibrationError, ConfidentShare, ShotAccuracy
from equipoise.predictions import InputError, open_predictions, source
from tests.predictions.saved import CASES, arrays_of, save, softmax


def evaluated(tmp_path, arrays, form="npz", **options):
    return evaluate(open_predictions(save(tmp_path, form, arrays), train_counts=arrays.get("train_counts")), **options)


def rows_of(arrays):
    """Probabilities (R, C) and labels (R,) of rows that are not ignored."""
    scores = arrays["probs"] if "probs" in arrays else softmax(arrays["logits"])
    rows, labels = np.moveaxis(scores, 1, -1).reshape(-1, scores.shape[1]), arrays["targets"].reshape(-1)
    return rows[labels != -100], labels[labels != -100]


def ece_by_hand(confidence, correct, bins=15):
    place = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1)
    parts = [place == k for k in range(bins)]
    return sum(abs(correct[part].sum() - confidence[part].sum()) for part in parts) / len(place)


def gaps_by_hand(confidence, correct, bins=15):
    place = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1)
    return [abs(correct[place == k].mean() - confidence[place == k].mean()) for k in np.unique(place)]


def tversky_by_hand(labels, chosen, alpha, beta):
    """Tversky index of each class, from sets of pixels."""
    pixels = np.arange(len(labels))
    indices = []
    for k in range(labels.max() + 1):
        true, predicted = (set(pixels[values == k].tolist()) for values in (labels, chosen))
        both = len(true & predicted)
        indices.append(both / (both + alpha * len(predicted - true) + beta * len(true - predicted)))
    return np.array(indices)


@pytest.mark.parametrize("probs", [False, True])
def test_single_label(tmp_path, probs):
    arrays = arrays_of("multiclass", probs=probs)
    evaluation = evaluated(tmp_path, arrays)
    rows, labels = rows_of(arrays)
    chosen, top = rows.argmax(1), rows.max(1)
    known = range(6)
    one_hot = np.eye(6)[labels]
    expected = {
        "accuracy": accuracy_score(labels, chosen),
        "top5_accuracy": top_k_accuracy_score(labels, rows, k=5, labels=known),
        "mean_class_accuracy": balanced_accuracy_score(labels, chosen),
        "macro_f1": f1_score(labels, chosen, average="macro"),
        "nll": log_loss(labels, rows, labels=known),
        "brier": ((rows - one_hot) ** 2).sum(1).mean(),
        "ece": ece_by_hand(top, chosen == labels),
        "classwise_ece": np.mean([ece_by_hand(rows[:, k], one_hot[:, k]) for k in known]),
        "mce": max(gaps_by_hand(top, chosen == labels)),
        "s99_share": (top > 0.99).mean(),
        "s99_accuracy": (chosen == labels)[top > 0.99].mean(),
    }
    overall = evaluation.overall
    ada = CalibrationError(binning="mass", from_logits=False)
    ada.update(torch.from_numpy(rows), torch.from_numpy(labels))
    expected["ada_ece"] = float(ada.compute())
    assert overall.keys() == expected.keys()
    for name, value in expected.items():
        assert overall[name] == pytest.approx(value, rel=1e-9), name
    recalls = recall_score(labels, chosen, average=None)
    f1 = f1_score(labels, chosen, average=None)
    for k, row in enumerate(evaluation.per_class):
        assert row.name == f"kind {k}"
        assert row.support == (labels == k).sum()
        assert row.metrics["accuracy"] == pytest.approx(recalls[k])
        assert row.metrics["f1"] == pytest.approx(f1[k])
        assert row.metrics["ece"] == pytest.approx(ece_by_hand(rows[:, k], one_hot[:, k]))
    assert (evaluation.samples, evaluation.classes, evaluation.task) == (240, 6, "multiclass")


def test_groups_are_those_of_the_shot_metrics(tmp_path):
    arrays = arrays_of("multiclass")
    evaluation = evaluated(tmp_path, arrays)
    metric = ShotAccuracy(arrays["train_counts"].tolist())
    metric.update(torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["targets"]))
    shots = metric.compute()
    groups = {row.name: row for row in evaluation.groups}
    assert list(groups) == ["many", "medium", "few"]
    for name, row in groups.items():
        assert row.metrics["accuracy"] == pytest.approx(float(shots[name])), name
        members = [each for each in evaluation.per_class if each.group == name]
        assert row.classes == len(members) == 2
        assert row.support == sum(each.support for each in members)
    rows, labels = rows_of(arrays)
    group_of = np.array([0, 0, 1, 1, 2, 2])[labels]
    for number, row in enumerate(groups.values()):
        own = group_of == number
        assert row.metrics["ece"] == pytest.approx(ece_by_hand(rows[own].max(1), (rows.argmax(1) == labels)[own]))


@pytest.mark.parametrize("probs", [False, True])
def test_multi_label(tmp_path, probs):
    arrays = arrays_of("multilabel", probs=probs)
    evaluation = evaluated(tmp_path, arrays)
    scores = arrays["probs"] if probs else 1 / (1 + np.exp(-arrays["logits"]))
    targets = arrays["targets"]
    known, positive, chosen = targets >= 0, targets == 1, (scores > 0.5)
    each = [(positive[known[:, k], k], scores[known[:, k], k], chosen[known[:, k], k]) for k in range(targets.shape[1])]
    pooled = [np.concatenate(parts) for parts in zip(*each, strict=True)]
    cp = np.mean([precision_score(y, c) for y, _, c in each])
    cr = np.mean([recall_score(y, c) for y, _, c in each])
    expected = {
        "mean_average_precision": np.mean([average_precision_score(y, s) for y, s, _ in each]),
        "CP": cp,
        "CR": cr,
        "CF1": 2 * cp * cr / (cp + cr),
        "OP": precision_score(pooled[0], pooled[2]),
        "OR": recall_score(pooled[0], pooled[2]),
        "OF1": f1_score(pooled[0], pooled[2]),
        "nll": log_loss(pooled[0], pooled[1]),
        "brier": ((pooled[1] - pooled[0]) ** 2).mean(),
        "ece": ece_by_hand(pooled[1], pooled[0]),
    }
    for name, value in expected.items():
        assert evaluation.overall[name] == pytest.approx(value, rel=1e-9), name
    top3 = np.zeros_like(chosen)
    np.put_along_axis(top3, np.argsort(-scores, 1, kind="stable")[:, :3], True, 1)
    assert evaluation.overall["OP_top3"] == pytest.approx(precision_score(positive[known], top3[known]))
    for row, (y, s, c) in zip(evaluation.per_class, each, strict=True):
        assert row.support == y.sum()
        assert row.metrics["average_precision"] == pytest.approx(average_precision_score(y, s))
        assert row.metrics["f1"] == pytest.approx(f1_score(y, c))
        assert row.metrics["ece"] == pytest.approx(ece_by_hand(s, y))


@pytest.mark.parametrize("probs", [False, True])
def test_segmentation(tmp_path, probs):
    arrays = arrays_of("segmentation", samples=30, probs=probs)
    evaluation = evaluated(tmp_path, arrays)
    rows, labels = rows_of(arrays)
    chosen = rows.argmax(1)
    iou = jaccard_score(labels, chosen, average=None)
    tversky = tversky_by_hand(labels, chosen, alpha=0.3, beta=0.7)
    expected = {
        "mean_iou": iou.mean(),
        "mean_accuracy": balanced_accuracy_score(labels, chosen),
        "mean_precision": precision_score(labels, chosen, average="macro"),
        "mean_dice": f1_score(labels, chosen, average="macro"),
        "mean_tversky": tversky.mean(),
        "pixel_accuracy": accuracy_score(labels, chosen),
        "frequency_weighted_iou": jaccard_score(labels, chosen, average="weighted"),
        "nll": log_loss(labels, rows, labels=range(6)),
        "ece": ece_by_hand(rows.max(1), chosen == labels),
    }
    for name, value in expected.items():
        assert evaluation.overall[name] == pytest.approx(value, rel=1e-9), name
    for k, row in enumerate(evaluation.per_class):
        assert row.metrics["iou"] == pytest.approx(iou[k])
        assert row.metrics["dice"] == pytest.approx(2 * iou[k] / (1 + iou[k]))
        assert row.metrics["tversky"] == pytest.approx(tversky[k])
        assert row.support == (labels == k).sum()
    assert evaluation.samples == 30


def test_curve_gives_the_calibration_error(tmp_path):
    evaluation = evaluated(tmp_path, arrays_of("multiclass"), bins=7)
    for name, value in (("before", evaluation.overall["ece"]), ("after", evaluation.calibration.after["ece"])):
        curve = getattr(evaluation.reliability["all"], name)
        assert len(curve.edges) == 8
        gaps = [
            count * abs(accuracy - confidence)
            for count, accuracy, confidence in zip(curve.count, curve.accuracy, curve.confidence, strict=True)
            if count
        ]
        assert sum(gaps) / sum(curve.count) == pytest.approx(value)
    by_group = [evaluation.reliability[name].before.count for name in ("many", "medium", "few")]
    assert np.sum(by_group, 0).tolist() == evaluation.reliability["all"].before.count


def test_confident_share_of_float16(tmp_path):
    arrays = arrays_of("multiclass")
    arrays["logits"] = arrays["logits"].astype(np.float16)
    metric = ConfidentShare()
    metric.update(torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["targets"]))
    assert evaluated(tmp_path, arrays).overall["s99_share"] == float(metric.compute()["share"])


# Invariance -----------------------------------------------------------------------------------------------------------


def close(left, right, rel=1e-6):
    """Whether two values have the same structure and equal numbers up to rounding."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(close(left[name], right[name], rel) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(close(a, b, rel) for a, b in zip(left, right, strict=True))
    return left == pytest.approx(right, rel=rel) if isinstance(left, float) else left == right


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_every_chunking_gives_the_same_numbers(tmp_path, monkeypatch, task):
    arrays = arrays_of(task, samples=60)
    path = save(tmp_path, "folder", arrays)
    whole = evaluate(open_predictions(path), bootstrap=20)
    assert whole.calibration.after is not None
    for elements in (1, 700, 3333):
        monkeypatch.setattr(source, "CHUNK_ELEMENTS", elements)
        assert close(whole.to_json(), evaluate(open_predictions(path), bootstrap=20).to_json()), elements


@pytest.mark.parametrize(("task", "form"), CASES)
def test_every_format_gives_the_same_numbers(tmp_path, task, form):
    arrays = arrays_of(task, samples=60)
    reference = evaluated(tmp_path, arrays, "npz", bootstrap=20)
    folder = tmp_path / "other"
    folder.mkdir()
    evaluation = evaluated(folder, arrays, form, bootstrap=20)
    assert close(replace(reference, file=evaluation.file).to_json(), evaluation.to_json(), 1e-12)


@pytest.mark.parametrize("dtype", [">f4", ">f8", "longdouble"])
def test_any_floating_point_array(tmp_path, dtype):
    arrays = arrays_of("multiclass")
    reference = evaluated(tmp_path, arrays)
    folder = tmp_path / "other"
    folder.mkdir()
    evaluation = evaluated(folder, arrays | {"logits": arrays["logits"].astype(dtype)})
    assert close(reference.to_json(), evaluation.to_json(), 1e-5)


def test_metrics_with_a_sort_are_approximated_for_large_files(tmp_path, monkeypatch):
    from equipoise.evaluation import meters

    for task in ("multiclass", "multilabel"):
        arrays = arrays_of(task, samples=2000)
        (tmp_path / task).mkdir()
        path = save(tmp_path / task, "folder", arrays)
        exact = evaluate(open_predictions(path))
        monkeypatch.setattr(meters, "KEPT", 2000)  # as many samples, more events of several labels
        near = evaluate(open_predictions(path))
        names = ("ada_ece", "mean_average_precision") if task == "multilabel" else ("ada_ece",)
        for name in names:
            assert near.overall[name] == pytest.approx(exact.overall[name], abs=2e-3)
        same = {name for name in exact.overall if exact.overall[name] == near.overall[name]}
        assert ("ada_ece" in same) == (task == "multiclass")
        monkeypatch.undo()


# Odd data -------------------------------------------------------------------------------------------------------------


def test_class_without_samples_is_excluded_from_means(tmp_path):
    arrays = arrays_of("multiclass")
    arrays["targets"][arrays["targets"] == 5] = 4
    evaluation = evaluated(tmp_path, arrays)
    assert evaluation.per_class[5].support == 0
    assert evaluation.per_class[5].metrics["accuracy"] is None
    rest = [row.metrics["accuracy"] for row in evaluation.per_class[:5]]
    assert evaluation.overall["mean_class_accuracy"] == pytest.approx(np.mean(rest))
    few = next(row for row in evaluation.groups if row.name == "few")
    assert few.metrics["accuracy"] == evaluation.per_class[4].metrics["accuracy"]


def test_label_without_positives_is_excluded_from_means(tmp_path):
    arrays = arrays_of("multilabel")
    arrays["targets"][:, 2] = 0
    evaluation = evaluated(tmp_path, arrays)
    rated = [row.metrics["average_precision"] for row in evaluation.per_class]
    assert rated[2] is None
    assert evaluation.overall["mean_average_precision"] == pytest.approx(np.mean([v for v in rated if v is not None]))


def test_all_classes_in_one_group(tmp_path):
    arrays = arrays_of("multiclass") | {"train_counts": np.full(6, 1000)}
    evaluation = evaluated(tmp_path, arrays)
    (row,) = evaluation.groups
    assert (row.name, row.classes) == ("many", 6)
    assert row.metrics["ece"] == evaluation.overall["ece"]


def test_one_label(tmp_path):
    arrays = arrays_of("multilabel", classes=1)
    evaluation = evaluated(tmp_path, arrays, bootstrap=5)
    assert evaluation.per_class[0].metrics["average_precision"] == evaluation.overall["mean_average_precision"]


def test_one_sample_is_enough_but_not_for_a_temperature(tmp_path):
    evaluation = evaluated(tmp_path, {"logits": np.array([[2.0, 1.0]]), "targets": np.array([0])}, bootstrap=5)
    assert evaluation.overall["accuracy"] == 1.0
    assert evaluation.calibration.after is None
    assert evaluation.calibration.note.endswith("and one half has none")
    assert evaluation.intervals["accuracy"] == [1.0, 1.0]


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_only_ignored_targets_are_an_error(tmp_path, task):
    arrays = arrays_of(task, samples=10)
    arrays["targets"][:] = -1 if task == "multilabel" else -100
    with pytest.raises(InputError, match="at least one target that counts"):
        evaluated(tmp_path, arrays, bootstrap=5)


def test_true_class_with_probability_0_is_clipped_with_a_note(tmp_path):
    probs = np.array([[1.0, 0.0], [0.5, 0.5]] * 20)
    evaluation = evaluated(tmp_path, {"probs": probs, "targets": np.array([1, 0] * 20)}, bootstrap=10)
    nll = 0.5 * (-np.log(1e-12) + np.log(2))
    assert evaluation.overall["nll"] == pytest.approx(nll, rel=1e-9)
    low, high = evaluation.intervals["nll"]
    assert low < nll < high
    assert evaluation.notes == [
        "20 of 40 samples have probability 0 for the truth; the NLL takes it as 1e-12, which adds 13.8155 to it."
    ]


def test_absent_label_with_probability_1_gets_a_note(tmp_path):
    probs = np.array([[1.0, 0.2], [0.0, 0.2], [0.5, 0.7]] * 4)
    targets = np.array([[0, 0], [0, -1], [1, 1]] * 4)
    evaluation = evaluated(tmp_path, {"probs": probs, "targets": targets})
    assert evaluation.notes[0].startswith("4 of 20 labels of samples have probability 0 for the truth")
    assert 27.631 * 4 / 20 < evaluation.overall["nll"] < 27.631 * 4 / 20 + 1


@pytest.mark.parametrize("decimals", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounded_sums_are_normalised(tmp_path, decimals, dtype):
    arrays = arrays_of("multiclass", probs=True)
    rounded = arrays["probs"].astype(dtype).round(decimals)
    off = np.abs(rounded.astype(float).sum(1) - 1) > 1e-5
    evaluation = evaluated(tmp_path, arrays | {"probs": rounded})
    assert evaluation.notes[0].startswith(f"The probabilities of {off.sum():,} samples did not sum to 1")
    (tmp_path / "divided").mkdir()
    divided = evaluated(tmp_path / "divided", arrays | {"probs": rounded / rounded.sum(1, keepdims=True)})
    assert evaluation.overall["nll"] == pytest.approx(divided.overall["nll"], rel=1e-6)
    assert evaluation.overall["brier"] == pytest.approx(divided.overall["brier"], rel=1e-6)


def test_exact_probabilities_need_no_note(tmp_path):
    assert evaluated(tmp_path, arrays_of("multiclass", probs=True)).notes == []
    assert evaluated(tmp_path, arrays_of("multiclass")).notes == []


def test_rounded_probabilities_are_accepted(tmp_path):
    arrays = arrays_of("multiclass", probs=True)
    reference = evaluated(tmp_path, arrays)
    for number, rounded in enumerate((arrays["probs"].astype(np.float16), np.round(arrays["probs"], 4))):
        folder = tmp_path / str(number)
        folder.mkdir()
        evaluation = evaluated(folder, arrays | {"probs": rounded})
        assert evaluation.overall["accuracy"] == pytest.approx(reference.overall["accuracy"], abs=0.01)
        assert evaluation.overall["brier"] == pytest.approx(reference.overall["brier"], abs=1e-3)


def test_progress_covers_every_sample_in_both_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 100)
    counts = []
    evaluate(open_predictions(save(tmp_path, "npz", arrays_of("multiclass"))), progress=counts.append)
    assert sum(counts) == 2 * 240
    assert len(counts) > 10


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_nothing_is_written_to_the_file(tmp_path, task):
    path = save(tmp_path, "folder", arrays_of(task, samples=20, probs=True))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    evaluate(open_predictions(path), bootstrap=5)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_paths_and_arrays_in_memory_are_accepted(tmp_path, task):
    arrays = arrays_of(task, samples=60)
    path = save(tmp_path, "npz", arrays)
    expected = evaluate(open_predictions(path))
    assert evaluate(path) == evaluate(str(path)) == expected
    assert evaluate(arrays) == replace(expected, file="arrays")


def test_single_label_data_are_not_multi_label(tmp_path):
    assert ", 1 label, " in described(evaluated(tmp_path, arrays_of("multilabel", classes=1)))
