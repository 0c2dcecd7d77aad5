"""Every metric against a plain computation, one sample at a time: ties, ignored and unknown targets, empty groups."""

import copy
import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, roc_auc_score
from torch.testing import assert_close

from equipoise import _checks
from equipoise.metrics import (
    Accuracy,
    BrierScore,
    CalibrationError,
    ConfidenceProfile,
    ConfidentShare,
    MultilabelAveragePrecision,
    MultilabelScores,
    NegativeLogLikelihood,
    OpenSetScores,
    SegmentationScores,
    ShotAccuracy,
    _metric,
    average_precision,
    bin_sums,
    binned_error,
    binning,
    segmentation,
    shot_groups,
)
from equipoise.metrics import _inputs as inputs
from tests.metrics.batches import EVERY, GROUPS, IGNORED, MULTI, UNKNOWN, C, classes, labels, values

CLOSE = {"rtol": 0.0, "atol": 1e-12, "equal_nan": True}
BINS = 5
each_metric = pytest.mark.parametrize("name", EVERY)


def close(actual, expected):
    actual, expected = (torch.as_tensor(each, dtype=torch.float64) for each in (actual, expected))
    assert_close(actual, expected, **CLOSE)


def rows_of(scores, targets):
    """Samples and places as rows of numpy, without ignored ones."""
    flat, labels = scores.movedim(1, -1).reshape(-1, C), targets.reshape(-1)
    return flat[labels != IGNORED].numpy(), labels[labels != IGNORED].numpy()


def softmax(rows):
    powers = np.exp(rows - rows.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def batch_of(kind, size=(), seed=0, **options):
    make = labels if kind == "multilabel" else classes
    return make(24 if not size else 6, size, seed, **options)


# ---------------------------------------------------------------------------------------------------------- calibration


def events_of(kind, scores, targets, by="true"):
    """Confidence, outcome and class of each event."""
    if kind == "multilabel":
        flat, given = (each.movedim(1, -1).reshape(-1, C).numpy() for each in (scores, targets))
        probs, known = 1 / (1 + np.exp(-flat)), given != UNKNOWN
        which = np.broadcast_to(np.arange(C), flat.shape)
        return probs[known], given[known] == 1, which[known]
    rows, own = rows_of(scores, targets)
    probs, predicted = softmax(rows), rows.argmax(1)
    if kind == "top":
        return probs.max(1), predicted == own, own if by == "true" else predicted
    which = np.broadcast_to(np.arange(C), rows.shape)
    return probs.ravel(), (which == own[:, None]).ravel(), which.ravel()


def cell_of(confidence, resolution):
    """Cells of equal width in logits from -16 to 16, right-closed."""
    logit = np.log(confidence) - np.log1p(-confidence)
    return np.clip(np.ceil((logit + 16) * resolution / 32) - 1, 0, resolution - 1)


def bins_of(confidence, correct, binning, resolution=None):
    """Count, sum of confidence and sum of outcomes of each bin, one event after the other."""
    sums = np.zeros((3, BINS))
    if binning == "width":
        at = [next(b for b in range(BINS) if c <= (b + 1) / BINS) for c in confidence]
    else:
        key = confidence if resolution is None else cell_of(confidence, resolution)
        order = np.argsort(key, kind="stable")
        confidence, correct, key = confidence[order], correct[order].astype(float), key[order]
        confidence = np.array([confidence[key == one].mean() for one in key])
        correct = np.array([correct[key == one].mean() for one in key])  # equal ones are shared out evenly
        at = [i * BINS // len(key) for i in range(len(key))]
    for b, c, hit in zip(at, confidence, correct, strict=True):
        sums[:, b] += 1, c, hit
    return sums


def error_of(sums, norm):
    count, confidence, correct = sums
    if not count.sum():
        return math.nan
    share, gap = count / count.sum(), np.abs(confidence - correct) / np.maximum(count, 1)
    return {"l1": (share * gap).sum(), "l2": math.sqrt((share * gap**2).sum()), "max": gap.max()}[norm]


BINNINGS = [("width", None), ("mass", None), ("mass", 64)]


@pytest.mark.parametrize("size", [(), (3, 2)], ids=["samples", "places"])
@pytest.mark.parametrize(("binning", "resolution"), BINNINGS, ids=["width", "mass", "histogram"])
@pytest.mark.parametrize("kind", ["top", "classwise", "multilabel"])
def test_calibration_error(kind, binning, resolution, size):
    scores, targets = batch_of(kind, size)
    groups = [0, 2, 2, 3]  # nothing is in group 1
    options = {"exact": resolution is None, "resolution": resolution or 64, "binning": binning, "kind": kind}
    confidence, correct, which = events_of(kind, scores, targets)
    for norm in ("l1", "l2", "max"):
        metric = CalibrationError(BINS, norm=norm, **options)
        value, curve = metric(scores, targets), metric.curve()
        pooled = bins_of(confidence, correct, binning, resolution)
        each = [
            error_of(bins_of(confidence[which == c], correct[which == c], binning, resolution), norm) for c in range(C)
        ]
        close(value, np.mean(each) if kind == "classwise" else error_of(pooled, norm))
        close(curve.count, pooled[0])
        with np.errstate(invalid="ignore"):
            close(curve.confidence, pooled[1] / pooled[0])
            close(curve.accuracy, pooled[2] / pooled[0])
        assert curve.edges.shape == (BINS + 1,)
        if binning == "width":
            close(curve.edges, np.arange(BINS + 1) / BINS)
        if kind != "top":
            close(metric.per_class(), each)
        grouped = CalibrationError(BINS, norm=norm, groups=groups, **options)
        actual, curves = grouped(scores, targets), grouped.curve()
        assert actual.shape == (4,)
        assert curves.edges.shape == ((BINS + 1,) if binning == "width" else (4, BINS + 1))
        for group in range(4):
            own = np.isin(which, np.flatnonzero(np.array(groups) == group))
            sums = bins_of(confidence[own], correct[own], binning, resolution)
            members = [each[c] for c in range(C) if groups[c] == group]
            mean = np.mean(members) if members else math.nan
            close(actual[group], mean if kind == "classwise" else error_of(sums, norm))
            close(curves.count[group], sums[0])


@pytest.mark.parametrize(("binning", "resolution"), BINNINGS, ids=["width", "mass", "histogram"])
def test_groups_of_predicted_classes(binning, resolution):
    scores, targets = classes(60)
    confidence, correct, which = events_of("top", scores, targets, by="predicted")
    options = {"exact": resolution is None, "resolution": resolution or 64}
    actual = CalibrationError(BINS, binning=binning, groups=GROUPS, by="predicted", **options)(scores, targets)
    for group in range(3):
        own = np.isin(which, np.flatnonzero(np.array(GROUPS) == group))
        close(actual[group], error_of(bins_of(confidence[own], correct[own], binning, resolution), "l1"))


def test_edges_of_equal_mass_bins():
    probs = torch.tensor([0.6, 0.6, 0.7, 0.8, 0.9, 1.0], dtype=torch.float64)
    batch = torch.stack([probs, 1 - probs], 1), torch.tensor([0, 1, 0, 0, 1, 0])
    exact = CalibrationError(3, binning="mass", from_logits=False)
    exact.update(*batch)
    assert exact.curve().edges.tolist() == [0.6, 0.6, 0.8, 1.0]
    assert exact.curve().accuracy.tolist() == pytest.approx([0.5, 1.0, 0.5])
    coarse = CalibrationError(2, binning="mass", exact=False, resolution=4, from_logits=False)
    coarse.update(*batch)  # cells end at sigmoid(-8), 1/2, sigmoid(8) and 1
    assert coarse.curve().edges.tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-8)), 1.0])
    coarse.reset()
    coarse.update(batch[0], torch.full((6,), IGNORED))
    for empty in (coarse, CalibrationError(2, binning="mass"), CalibrationError(2, binning="mass", groups=[0, 1])):
        curve = empty.curve()
        assert curve.edges.shape[-1] == 3
        assert curve.edges.dtype == torch.float64
        assert curve.edges.isnan().all()
        assert curve.count.sum() == 0
        assert curve.count.dtype == torch.int64


def test_sums_of_bins_with_groups_weights_and_what_is_not_valid():
    confidence = torch.tensor([0.0, 0.5, 0.51, 1.0, 0.2])
    correct, valid = torch.tensor([True, False, True, True, False]), torch.tensor([True, True, True, True, False])
    groups, weight = torch.tensor([0, 1, 1, 0, 0]), torch.tensor([[1.0, 2.0, 3.0, 0.5, 9.0]])
    plain = bin_sums(confidence, correct, 2, valid=valid)
    assert [part.tolist() for part in plain] == [[2, 2], [0.5, pytest.approx(1.51)], [1, 2]]
    by_group = bin_sums(confidence, correct, torch.tensor([0.0, 0.5, 1.0]), groups=groups, num_groups=2, valid=valid)
    assert [part.tolist() for part in by_group] == [
        [[1, 1], [1, 1]],
        [[0.0, 1.0], [0.5, pytest.approx(0.51)]],
        [[1, 1], [0, 1]],
    ]
    weighted = bin_sums(confidence, correct, 2, valid=valid, weight=weight)
    assert [part.tolist() for part in weighted] == [[[3.0, 3.5]], [[1.0, pytest.approx(2.03)]], [[1.0, 3.5]]]
    assert binned_error(plain).dtype == weighted.count.dtype == torch.float64


# ----------------------------------------------------------------------------------------------------- single-label


@pytest.mark.parametrize("size", [(), (3, 2)], ids=["samples", "places"])
@pytest.mark.parametrize("seed", range(3))
def test_scores_of_classes(size, seed):
    scores, targets = classes(24 if not size else 6, size, seed)
    targets[targets == 3] = 0 if seed == 1 else 3  # then a class does not occur
    rows, own = rows_of(scores, targets)
    probs, predicted = softmax(rows), rows.argmax(1)
    nll, right = -np.log(probs[np.arange(len(own)), own]), predicted == own
    close(NegativeLogLikelihood()(scores, targets), nll.mean())
    close(BrierScore()(scores, targets), ((probs - np.eye(C)[own]) ** 2).sum(1).mean())

    profile = ConfidenceProfile()(scores, targets)
    for side, mask in (("right", right), ("wrong", ~right)):
        close(profile[f"confidence_{side}"], probs.max(1)[mask].mean())
        close(profile[f"entropy_{side}"], -(probs * np.log(probs)).sum(1)[mask].mean())
        close(profile[f"nll_{side}"], nll[mask].mean())
    close(profile["accuracy"], right.mean())

    actual = Accuracy(C, top_k=(1, 2, 3))(scores, targets)
    place = [list(np.argsort(-row, kind="stable")).index(y) for row, y in zip(rows, own, strict=True)]
    for k in (1, 2, 3):
        close(actual[f"top{k}"], np.mean(np.array(place) < k))
    each, f1, iou, precision, tversky = [], [], [], [], []
    for c in range(C):
        true, predictions, both = (own == c).sum(), (predicted == c).sum(), ((own == c) & right).sum()
        each.append(both / true if true else math.nan)
        f1.append(2 * both / (true + predictions) if true + predictions else math.nan)
        iou.append(both / (true + predictions - both) if true + predictions else math.nan)
        precision.append(both / predictions if predictions else math.nan)
        cost = both + 0.25 * (predictions - both) + 2.0 * (true - both)
        tversky.append(both / cost if cost else math.nan)
    close(actual["per_class"], each)
    close(actual["f1"], f1)
    close(actual["mean_class"], np.nanmean(each))
    close(actual["macro_f1"], np.nanmean(f1))
    areas = SegmentationScores(C, tversky=(0.25, 2.0))(scores, targets)
    for name, expected in {"iou": iou, "dice": f1, "precision": precision, "tversky": tversky}.items():
        close(areas[name], expected)
        close(areas[f"mean_{name}"], np.nanmean(expected))
    close(areas["accuracy"], each)
    close(areas["pixel_accuracy"], right.mean())
    close(areas["mean_accuracy"], np.nanmean(each))
    close(areas["frequency_weighted_iou"], np.nansum(np.bincount(own, minlength=C) / len(own) * np.array(iou)))

    for convention, counts in (("kang", [101, 100, 20, 19]), ("oltr", [100, 99, 21, 20])):  # many, medium twice, few
        shots = ShotAccuracy(counts, convention=convention)(scores, targets)
        close(shots["many"], each[0])
        close(shots["medium"], np.nanmean(each[1:3]))
        close(shots["few"], each[3])
        close(shots["all"], right.mean())


def test_cuts_may_be_equal():
    assert shot_groups([21, 20, 19], cuts=(20, 20)).tolist() == [0, 1, 2]
    assert shot_groups([21, 20, 19], cuts=(20, 20), convention="oltr").tolist() == [0, 0, 2]
    assert shot_groups([31, 30, 9, 10], cuts=(10, 30)).tolist() == [0, 1, 2, 1]


def test_confident_means_above_the_threshold():
    probs = torch.tensor([[0.75, 0.25], [0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
    scores = ConfidentShare(0.75, from_logits=False)(probs, torch.tensor([0, 1, 0]))
    assert float(scores["share"]) == pytest.approx(1 / 3)
    assert float(scores["accuracy"]) == 0.0
    ConfidentShare(0.0), ConfidentShare(1.0)


@pytest.mark.parametrize("convention", ["oltr", "kang"])
@pytest.mark.parametrize("size", [(), (3, 2)], ids=["samples", "places"])
def test_open_set_scores(convention, size):
    scores, targets = batch_of("top", size, unknown=True)
    rows, own = rows_of(scores, targets)
    confidence, predicted, known = softmax(rows).max(1), rows.argmax(1), own != UNKNOWN
    threshold = float(np.sort(confidence)[len(own) // 3])  # met exactly by one sample
    accepted, right = confidence >= threshold - 1e-12, predicted == own
    tp, fn = (known & accepted & right).sum(), (~known & accepted).sum()
    fp = (known & accepted & ~right).sum() + (convention == "oltr") * (known & ~accepted).sum()
    actual = OpenSetScores(threshold - 1e-12, convention=convention, groups=GROUPS)(scores, targets)
    close(actual["f_measure"], 2 * tp / (2 * tp + fp + fn))
    close(actual["precision"], tp / (tp + fp))
    close(actual["recall"], tp / (tp + fn))
    close(actual["auroc"], roc_auc_score(known, confidence))
    close(actual["accuracy"], (accepted & right)[known].mean())
    close(actual["closed_accuracy"], right[known].mean())
    close(actual["known_rejected"], (~accepted)[known].mean())
    close(actual["unknown_rejected"], (~accepted)[~known].mean())
    for name, hit in (("groups", right & accepted), ("closed_groups", right)):
        each = np.array([hit[own == c].mean() if (own == c).any() else math.nan for c in range(C)])
        close(actual[name], [np.nanmean(each[np.array(GROUPS) == g]) for g in range(3)])
    coarse = OpenSetScores(0.5, exact=False, resolution=64)(scores, targets)
    close(coarse["auroc"], roc_auc_score(known, cell_of(confidence, 64)))


# --------------------------------------------------------------------------------------------------------- many labels


@pytest.mark.parametrize("size", [(), (3, 2)], ids=["samples", "places"])
@pytest.mark.parametrize("seed", range(2))
def test_scores_of_labels(size, seed):
    scores, targets = batch_of("multilabel", size, seed)
    flat, given = (each.movedim(1, -1).reshape(-1, C).numpy() for each in (scores, targets))
    probs, known = 1 / (1 + np.exp(-flat)), given != UNKNOWN
    close(
        NegativeLogLikelihood(kind="multilabel")(scores, targets),
        -np.log(np.where(given == 1, probs, 1 - probs))[known].mean(),
    )
    close(BrierScore(kind="multilabel")(scores, targets), ((probs - given) ** 2)[known].mean())
    level = np.array([0.5, 0.3, 0.5, 0.7])
    for metric, chosen in (
        (MultilabelScores(C), flat > 0),
        (MultilabelScores(C, threshold=level), probs > level),
        (MultilabelScores(C, top_k=2), np.argsort(np.argsort(-flat, 1, kind="stable"), 1) < 2),
        (MultilabelScores(C, top_k=9), flat > -np.inf),
    ):
        tp, predicted, true = ((mask & known).sum(0) for mask in (chosen & (given == 1), chosen, given == 1))
        counted = true > 0
        actual = metric(scores, targets)
        cp, cr = (tp / np.maximum(predicted, 1))[counted].mean(), (tp[counted] / true[counted]).mean()
        expected = {
            "CP": cp,
            "CR": cr,
            "CF1": 2 * cp * cr / (cp + cr),
            "OP": tp.sum() / predicted.sum(),
            "OR": tp.sum() / true.sum(),
            "OF1": 2 * tp.sum() / (predicted.sum() + true.sum()),
            "left_out": (~counted).sum(),
        }
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            close(actual[name], value)


def test_thresholds_may_be_at_either_end():
    probs, targets = torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[1, 1, 1]])
    for threshold, chosen in ((0.0, 2), (1.0, 0), ([0.0, 0.5, 0.9], 1)):
        scores = MultilabelScores(3, threshold=threshold, from_logits=False)(probs, targets)
        assert float(scores["OR"]) == pytest.approx(chosen / 3)


def bounds_of(scores, positive, resolution):
    """Least and largest average precision of what cells leave open: negatives first, or positives first and equal."""
    cell = np.clip(np.ceil((scores + 16) * resolution / 32) - 1, 0, resolution - 1)
    negatives_first = np.lexsort((positive, -cell)).argsort()
    return average_precision_score(positive, -negatives_first), average_precision_score(positive, 2 * cell + positive)


@pytest.mark.parametrize("average", ["macro", "micro", "none"])
@pytest.mark.parametrize("size", [(), (3, 2)], ids=["samples", "places"])
def test_average_precision(average, size, monkeypatch):
    scores, targets = batch_of("multilabel", size)
    flat, given = (each.movedim(1, -1).reshape(-1, C).numpy() for each in (scores, targets))
    tables = [(flat[:, [c]], given[:, [c]]) for c in range(C)] if average != "micro" else [(flat, given)]
    pairs = [(score[y != UNKNOWN], y[y != UNKNOWN] == 1) for score, y in tables]
    each = [average_precision_score(y, score) if y.any() else math.nan for score, y in pairs]
    for together in (1, 50, 2**23):
        monkeypatch.setattr(sys.modules[MultilabelAveragePrecision.__module__], "TOGETHER", together)
        metric = MultilabelAveragePrecision(C, average=average)
        metric.update(scores[:2], targets[:2])
        metric.update(scores[2:], targets[2:])
        close(metric.compute(), each if average == "none" else np.nanmean(each))
        assert int(metric.left_out()) == 1
    scores = 8 * scores + 0.3  # some beyond -16 and 16, where cells end
    flat = 8 * flat + 0.3
    tables = [(flat[:, [c]], given[:, [c]]) for c in range(C)] if average != "micro" else [(flat, given)]
    pairs = [(score[y != UNKNOWN], y[y != UNKNOWN] == 1) for score, y in tables]
    ends = np.array([bounds_of(score, y, 8) if y.any() else (math.nan, math.nan) for score, y in pairs])
    coarse = MultilabelAveragePrecision(C, average=average, exact=False, resolution=8)
    coarse.update(scores, targets)
    low, high = coarse.bounds()
    close(low, ends[:, 0] if average == "none" else np.nanmean(ends[:, 0]))
    close(high, ends[:, 1] if average == "none" else np.nanmean(ends[:, 1]))
    close(coarse.compute(), (low + high) / 2)
    assert int(coarse.left_out()) == 1
    declared = MultilabelAveragePrecision(C, average=average, exact=False, resolution=8, from_logits=False)
    declared.update(scores.sigmoid(), targets)
    close(declared.compute(), coarse.compute())


def test_average_precision_of_rows():
    scores = torch.tensor([[3.0, 3.0, 1.0, 5.0], [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    positive = torch.tensor([[True, False, True, False], [True, False, False, True], [False] * 4])
    known = torch.tensor([[True, True, True, False], [True] * 4, [True] * 4])
    close(average_precision(scores, positive), [(1 / 3 + 2 / 4) / 2, (1 + 2 / 4) / 2, math.nan])
    close(average_precision(scores, positive, known), [(1 / 2 + 2 / 3) / 2, (1 + 2 / 4) / 2, math.nan])
    assert average_precision(scores[:0], positive[:0]).shape == (0,)
    assert average_precision(scores[2:], positive[2:]).dtype == torch.float64
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        close(average_precision(scores, positive), [(1 / 3 + 2 / 4) / 2, (1 + 2 / 4) / 2, math.nan])
    finally:
        torch.set_num_threads(before)


# -------------------------------------------------------------------------------------------- common to all metrics


def shared_with(metric, other, monkeypatch):
    """Make a metric share its states with another one, as two workers of a training do."""

    def rows(own, op, group=None):
        own.fill_(max(int(own), *(len(getattr(other, name)) for name in other._by_class)))

    monkeypatch.setattr(_metric.dist, "all_reduce", rows)
    metric.distributed_available_fn = lambda: True
    states = []

    def gather(state, group=None):
        if not states:  # the other's, in the same order, alike by then
            alike = copy.deepcopy(other)
            for name in alike._by_class:
                theirs, mine = getattr(alike, name), getattr(metric, name)
                grown = torch.zeros(len(mine), *theirs.shape[1:], dtype=theirs.dtype)
                setattr(alike, name, theirs + grown if len(theirs) == 1 and not theirs.any() else theirs)
            for name in alike._reductions:
                kept = getattr(alike, name)
                states.append(alike.joined(name).to(alike._kept[name][1]) if isinstance(kept, list) else kept)
        return [state, states.pop(0)]

    metric.dist_sync_fn = gather


@pytest.mark.parametrize("mine", [24, 10, 0], ids=["all here", "some here", "none here"])
@each_metric
def test_states_of_two_workers_are_joined(name, mine, monkeypatch):
    build, batch = EVERY[name]
    scores, targets = batch()
    scores, narrow = (2 * scores).round() / 2, "mass" not in name  # float32 has the same logits, not the same softmax
    whole, metric, other = build(), build(), build()
    whole.update(scores, targets)
    for each, part in ((metric, slice(0, mine)), (other, slice(mine, None))):
        if len(scores[part]):
            each.update(scores[part].float() if narrow and each is other else scores[part], targets[part])
    shared_with(metric, other, monkeypatch)
    metric._update_count = 1  # torchmetrics warns of a metric that saw no batch
    before = states_of(metric)
    for key, value in values(metric.compute()).items():
        assert_close(value, values(whole.compute())[key], rtol=1e-6, atol=1e-6, equal_nan=True)
    if isinstance(metric, CalibrationError):
        assert metric.curve().count.tolist() == whole.curve().count.tolist()
        if metric.kind != "top":
            assert_close(metric.per_class(), whole.per_class(), rtol=1e-6, atol=1e-6, equal_nan=True)
    if isinstance(metric, MultilabelAveragePrecision):
        assert metric.left_out() == whole.left_out()
        assert_close(metric.bounds(), whole.bounds(), rtol=1e-6, atol=1e-6, equal_nan=True)
    for key, state in states_of(metric).items():
        assert_close(state, before[key].expand_as(state))  # sums may have grown to the number of classes


def states_of(metric):
    return {
        key: metric.joined(key).double() if isinstance(state, list) else state.clone()
        for key, state in metric.metric_state.items()
    }


@each_metric
@pytest.mark.parametrize("validate", [None, True])
def test_validate_reaches_every_check(name, validate, monkeypatch):
    seen = []
    for module in (_checks, inputs, _metric, segmentation):
        monkeypatch.setattr(module, "checks_values", lambda values, validate: seen.append(validate))
    build, batch = EVERY[name]
    metric = build() if validate is None else build(validate=validate)
    metric.update(*batch())
    assert set(seen) == {bool(validate)}


@each_metric
def test_only_sums_and_kept_scores_are_states(name):
    build, batch = EVERY[name]
    metric = build()
    assert not metric.state_dict()
    metric.persistent(True)
    types = {key: state.dtype for key, state in metric.metric_state.items() if isinstance(state, torch.Tensor)}
    metric.update(*batch())
    assert all(getattr(metric, key).dtype is dtype for key, dtype in types.items())
    assert set(metric.state_dict()) == set(metric.metric_state)


def test_what_torchmetrics_asks_of_a_metric():
    smaller = (CalibrationError, NegativeLogLikelihood, BrierScore)
    neither = (ConfidentShare, ConfidenceProfile)
    for build, _ in EVERY.values():
        metric = build()
        better = None if isinstance(metric, neither) else not isinstance(metric, smaller)
        assert metric.higher_is_better is better
        assert metric.is_differentiable is metric.full_state_update is False


def test_messages_name_the_value_that_is_wrong():
    metric = NegativeLogLikelihood(from_logits=False)
    for rows, total in (([[0.5, 0.5], [0.2, 0.3], [0.5, 0.6]], "0.5"), ([[0.5, 0.5], [0.5, 0.515]], "1.015")):
        with pytest.raises(ValueError, match=rf"got a sum of {total};"):
            metric.update(torch.tensor(rows), torch.zeros(len(rows), dtype=torch.long))
    metric.update(torch.tensor([[0.5, 0.508], [0.492, 0.5]]), torch.tensor([0, 1]))
    probs = torch.full((2, 2, 3), 0.5)
    probs[1, 0, 2] = 0.2
    with pytest.raises(ValueError, match=r"got a sum of 0\.7;"):
        metric.update(probs, torch.zeros(2, 3, dtype=torch.long))
    scores = torch.zeros(8, 2, dtype=torch.float64)
    for first, second in ((math.nan, math.inf), (math.inf, math.nan)):
        scores[0, 1], scores[2, 0] = first, second
        with pytest.raises(ValueError, match=f"got {first};"):
            NegativeLogLikelihood().update(scores, torch.zeros(8, dtype=torch.long))
    NegativeLogLikelihood().update(torch.full((4, 2), 1e308, dtype=torch.float64), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"got 0\.3; metrics count"):
        NegativeLogLikelihood(kind="multilabel").update(torch.zeros(2, 3), torch.tensor([[1, 0, -1], [0, 0.3, 0.6]]))
    for groups, shown in (([], r"shape \(0,\)"), ([[0, 1]], r"shape \(1, 2\)"), ([0, -1], r"values \[0, -1\]")):
        with pytest.raises(ValueError, match=shown):
            CalibrationError(groups=groups)


def test_multi_labels_of_integers_may_hold_unknown_ones():
    for name in MULTI:
        build, batch = EVERY[name]
        scores, targets = batch()
        metric = build()
        metric.update(scores, torch.where(targets == UNKNOWN, 0, targets).bool())  # bool knows no unknown ones
        assert metric.update_called


def test_outcomes_are_kept_in_a_byte_even_before_the_first_batch():
    metric = MultilabelAveragePrecision(num_labels=C)
    assert metric.joined("outcomes").dtype is torch.int8
    metric.update(*labels())
    assert metric.joined("outcomes").dtype is torch.int8


@pytest.mark.parametrize("resolution", [2, 64])
def test_fine_edges_are_equal_steps_of_the_logit_between_0_and_1(resolution):
    edges = binning.fine_edges(resolution)
    assert edges[0] == 0.0
    assert edges[-1] == 1.0
    steps = torch.tensor([-16 + 32 * place / resolution for place in range(1, resolution)], dtype=torch.float64)
    assert_close(edges[1:-1].logit(), steps, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e5, 1e8, -1e8])
def test_nll_does_not_change_with_an_offset_of_all_logits(offset):
    logits = torch.tensor([[0.0, 8.0, -8.0], [16.0, 0.0, 0.0]]) + offset
    targets = torch.tensor([0, 1])
    metric = NegativeLogLikelihood()
    metric.update(logits, targets)
    assert float(metric.compute()) == pytest.approx(float(F.cross_entropy(logits.double(), targets)), rel=1e-6)
