"""Metrics against the published code: equal where it is right, and each deliberate difference by name."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch.testing import assert_close

from equipoise.metrics import (
    Accuracy,
    CalibrationError,
    MultilabelAveragePrecision,
    MultilabelScores,
    OpenSetScores,
    SegmentationScores,
    ShotAccuracy,
    bin_index,
    bin_sums,
    binned_error,
)
from tests.golden.cases import load

CLOSE = {"rel": 1e-9, "abs": 1e-12}
CALIBRATION = [case for case in load("calibration_errors") if case.input != "edges"]
EDGES = [case for case in load("calibration_errors") if case.input == "edges"]
MULTILABEL, OLTR, SEGMENTATION = load("multilabel_metrics"), load("oltr_metrics"), load("seg_metrics")


def each(cases):
    return pytest.mark.parametrize("case", cases, ids=str)


def tensors(case, *names):
    return [torch.tensor(case.arrays[name]) for name in names]


def one_hot(predictions, classes):
    """Scores whose prediction is the given one."""
    return torch.eye(classes, dtype=torch.float64)[predictions]


def value_of(metric, case):
    return float(metric(*tensors(case, "logits", "targets")))


def test_every_golden_case_is_tested():
    assert [len(cases) for cases in (CALIBRATION, EDGES, MULTILABEL, OLTR, SEGMENTATION)] == [12, 2, 10, 6, 4]


# -------------------------------------------------------------------------------------------------------- calibration


@each(CALIBRATION)
def test_top_label_errors_are_the_published_ones(case):
    bins, expected = case.params["n_bins"], case.outputs
    assert value_of(CalibrationError(bins), case) == pytest.approx(expected["ece"], **CLOSE)
    assert value_of(CalibrationError(bins), case) == pytest.approx(expected["ece_dict"], **CLOSE)
    assert value_of(CalibrationError(bins), case) == pytest.approx(expected["ece_nncal"], **CLOSE)
    assert value_of(CalibrationError(bins, norm="l2"), case) == pytest.approx(expected["l2_dict"], **CLOSE)
    assert value_of(CalibrationError(bins, norm="max"), case) == pytest.approx(expected["mce_dict"], **CLOSE)
    native = CalibrationError(bins)
    native.update(torch.tensor(case.arrays["logits"]).float(), torch.tensor(case.arrays["targets"]))
    assert float(native.compute()) == pytest.approx(expected["ece_native32"], abs=2e-6)


@each(CALIBRATION)
def test_the_curve_holds_the_average_over_bins_that_is_published_as_ace(case):
    metric = CalibrationError(case.params["n_bins"])
    metric.update(*tensors(case, "logits", "targets"))
    curve = metric.curve()
    gaps = (curve.accuracy - curve.confidence).abs()
    assert float(gaps.nanmean()) == pytest.approx(case.outputs["ace_dict"], **CLOSE)


@each(CALIBRATION)
def test_classwise_error_counts_every_class(case):
    """Published: the number of classes is the largest label plus one, so a class absent at the end is left out."""
    metric = CalibrationError(case.params["n_bins"], kind="classwise")
    value = value_of(metric, case)
    published = float(metric.per_class()[: int(case.arrays["targets"].max()) + 1].mean())
    assert published == pytest.approx(case.outputs["classwise_ece"], **CLOSE)
    assert (value == pytest.approx(published, **CLOSE)) == (case.input != "missing_last")


@each([case for case in CALIBRATION if case.input == "sat"])
def test_classwise_error_keeps_probabilities_that_underflow(case):
    """Published in float32: a probability of 0 is in no bin, since the lower edge is excluded."""
    metric = CalibrationError(case.params["n_bins"], kind="classwise")
    metric.update(torch.tensor(case.arrays["logits"]).float(), torch.tensor(case.arrays["targets"]))
    assert float(metric.compute()) == pytest.approx(case.outputs["classwise_ece"], abs=1e-6)
    assert case.outputs["classwise_ece_native32"] < 0.7 * case.outputs["classwise_ece"]


@each(CALIBRATION)
def test_equal_mass_bins_hold_the_samples_that_published_code_drops(case):
    """Published: the first edge is the smallest confidence and excluded, so that sample and its equals are lost."""
    bins = case.params["n_bins"]
    logits, targets = tensors(case, "logits", "targets")
    confidence, predicted = logits.softmax(1).max(1)
    correct = predicted == targets
    edges = torch.tensor(case.outputs["ada_edges"])
    kept = confidence > edges[0]
    assert not kept.all()
    # with the published edges, without what they drop and yet divided by all, it is the published number
    sums = bin_sums(confidence[kept], correct[kept], edges)
    lost = float(binned_error(sums) * kept.double().mean()) if kept.any() else 0.0
    assert lost == pytest.approx(case.outputs["ada_ece"], **CLOSE)
    # ours has all of them, in bins that differ by one sample at most
    metric = CalibrationError(bins, binning="mass")
    metric.update(logits, targets)
    curve = metric.curve()
    assert curve.count.sum() == len(targets)
    assert curve.count.max() - curve.count.min() <= 1
    if case.input == "ties":  # all in one place: there is nothing that other bins could change
        assert case.outputs["ada_ece"] == 0
        assert float(metric.compute()) == pytest.approx(case.outputs["ece"], **CLOSE)


@each(EDGES)
def test_a_confidence_on_an_edge_is_in_the_bin_below(case):
    """Published: rounding of an accumulated edge moves such confidences for 15 bins (0.525 in place of 0.605)."""
    bins = case.params["n_bins"]
    confidence, predicted, targets = tensors(case, "confidences", "predictions", "targets")
    for dtype in (torch.float64, torch.float32):
        sums = bin_sums(confidence.to(dtype), predicted == targets, bins)
        assert float(binned_error(sums)) == pytest.approx(case.outputs["ece_dict"], abs=1e-7)
        assert float(binned_error(sums, "max")) == pytest.approx(case.outputs["mce_dict"], abs=1e-7)
        expected = np.clip(np.ceil(np.round(case.arrays["confidences"] * bins, 6)) - 1, 0, None)
        assert bin_index(confidence.to(dtype), bins).tolist() == expected.tolist()
    assert (case.outputs["ece_nncal"] == case.outputs["ece_dict"]) == (bins == 10)


# --------------------------------------------------------------------------------------------------------- multi-label


@each(MULTILABEL)
def test_average_precision_leaves_out_labels_without_positives(case):
    """Published: such a label scores 0 and counts in the mean; equal scores are ranked as they happen to come."""
    metric = MultilabelAveragePrecision(6, average="none")
    value = metric(*tensors(case, "logits", "targets"))
    with_positives = torch.tensor(case.arrays["targets"]).any(0)
    assert (value.isnan() == ~with_positives).all()
    assert int(metric.left_out()) == int((~with_positives).sum()) == (1 if case.input == "no_positive_class" else 0)
    if case.input in ("ties", "nothing_predicted", "extreme"):
        return  # with equal scores, see below
    published = torch.tensor(case.outputs["ap"])
    assert_close(value[with_positives], published[with_positives], rtol=1e-7, atol=1e-7)  # theirs divides by P + 1e-8
    mean = float(MultilabelAveragePrecision(6)(*tensors(case, "logits", "targets")))
    assert mean == pytest.approx(case.outputs["mAP"] / 100 * 6 / int(with_positives.sum()), abs=1e-7)


@each([case for case in MULTILABEL if case.input in ("ties", "nothing_predicted", "extreme")])
def test_equal_scores_share_a_threshold_and_logits_are_not_made_equal(case):
    """Published: of equal scores the later samples come first, and a sigmoid that rounds to 1 makes scores equal."""
    logits, targets = tensors(case, "logits", "targets")
    value = MultilabelAveragePrecision(6, average="none")(logits, targets)
    expected = [average_precision_score(targets[:, k], logits[:, k]) for k in range(6)]
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-12)
    assert np.abs(value.numpy() - case.outputs["ap"]).max() > 0.01
    order = torch.arange(19, -1, -1)
    assert_close(MultilabelAveragePrecision(6, average="none")(logits[order], targets[order]), value)


@each(MULTILABEL)
def test_multilabel_scores(case):
    """Published: CF1 is the mean of the F1 of each label; a label without positives counts 0; OP of nothing is NaN."""
    scores = MultilabelScores(6, threshold=case.params["threshold"])(*tensors(case, "logits", "targets"))
    share = (6 - int(scores["left_out"])) / 6  # of the labels that we average over
    expected = {name: value / 100 for name, value in case.outputs.items() if name != "ap"}
    assert float(scores["CP"]) * share == pytest.approx(expected["P_C"], **CLOSE)
    assert float(scores["CR"]) * share == pytest.approx(expected["R_C"], **CLOSE)
    assert float(scores["CF1"]) * share == pytest.approx(expected["CF1_harmonic"], **CLOSE)
    assert float(scores["OR"]) == pytest.approx(expected["R_O"], **CLOSE)
    assert float(scores["OP"]) == pytest.approx(np.nan_to_num(expected["P_O"]), **CLOSE)
    assert float(scores["OF1"]) == pytest.approx(np.nan_to_num(expected["F_O"]), **CLOSE)
    if expected["F_C"] > 0:
        assert float(scores["CF1"]) * share > expected["F_C"]  # the harmonic mean of means is the larger one


# ----------------------------------------------------------------------------------------------- long tail and open set


@each(OLTR)
def test_shot_accuracy_in_both_conventions(case):
    """Published by classifier-balancing: a group without classes has accuracy 0; here, as in OLTR, it has none."""
    convention = "oltr" if case.params["fn"] == "OLTR" else "kang"
    predicted, targets, counts = tensors(case, "predictions", "targets", "train_counts")
    cuts = (case.params["low_shot_thr"], case.params["many_shot_thr"])
    metric = ShotAccuracy(counts, convention=convention, cuts=cuts, ignore_index=-1)
    wrong = (targets.clamp(min=0) + 1) % len(counts)  # a rejected sample of a known class is not right
    scores = metric(one_hot(predicted.where(predicted >= 0, wrong), len(counts)), targets)
    for name in ("many", "medium", "few"):
        expected = case.outputs[name]
        if name == "few" and case.input == "no_few":
            assert scores[name].isnan()
            assert np.isnan(expected) if convention == "oltr" else expected == 0
        else:
            assert float(scores[name]) == pytest.approx(expected, **CLOSE)
    assert float(scores["all"]) == pytest.approx(case.outputs["micro_acc"], **CLOSE)


@each([case for case in OLTR if not case.params["openset"]])
def test_closed_set_f_measure_is_macro_f1(case):
    predicted, targets, counts = tensors(case, "predictions", "targets", "train_counts")
    scores = Accuracy(len(counts))(one_hot(predicted, len(counts)), targets)
    assert float(scores["macro_f1"]) == pytest.approx(case.outputs["f_measure"], **CLOSE)
    assert float(scores["top1"]) == pytest.approx(case.outputs["micro_acc"], **CLOSE)


@each([case for case in OLTR if case.params["openset"]])
def test_open_set_f_measure_in_both_conventions(case):
    convention = "oltr" if case.params["fn"] == "OLTR" else "kang"
    predicted, targets, counts = tensors(case, "predictions", "targets", "train_counts")
    classes = len(counts)
    sure = one_hot(predicted.clamp(min=0), classes)
    probs = torch.where((predicted >= 0).unsqueeze(1), sure, torch.full_like(sure, 1 / classes))  # 1/6 is rejected
    scores = OpenSetScores(0.5, convention=convention, from_logits=False)(probs, targets)
    assert float(scores["f_measure"]) == pytest.approx(case.outputs["f_measure"], **CLOSE)
    assert float(scores["accuracy"]) == pytest.approx(case.outputs["micro_acc"], **CLOSE)


# -------------------------------------------------------------------------------------------------------- segmentation


@each(SEGMENTATION)
@pytest.mark.parametrize("given", ["scores", "labels"])
def test_segmentation_scores(case, given):
    predicted, targets = tensors(case, "predictions", "targets")
    ignored = sorted(set(targets.unique().tolist()) - set(range(5)))
    assert bool(ignored) == (case.input == "ignore")
    metric = SegmentationScores(5, predictions=given, ignore_index=ignored[0] if ignored else -100)
    scores = metric(predicted if given == "labels" else one_hot(predicted, 5).movedim(-1, 1), targets)
    names = {
        "overall_acc": "pixel_accuracy",
        "mean_acc": "mean_accuracy",
        "mean_prec": "mean_precision",
        "fw_acc": "frequency_weighted_iou",
        "mean_iou": "mean_iou",
        "class_iou": "iou",
        "class_acc": "accuracy",
        "class_prec": "precision",
    }
    for published, name in names.items():
        np.testing.assert_allclose(scores[name].numpy(), case.outputs[published], rtol=1e-12, equal_nan=True)
    assert metric.confusion.tolist() == case.outputs["confusion"].tolist()
