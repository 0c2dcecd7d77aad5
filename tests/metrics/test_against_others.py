"""Metrics against torchmetrics, scikit-learn and netcal, where these are right."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as tm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch.testing import assert_close

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
    bin_sums,
    binned_error,
)

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def single(draw, sizes=((),)):
    """Logits on a grid, so that ties happen, or as they come; labels."""
    n, c = draw(st.integers(1, 60)), draw(st.integers(2, 6))
    size = draw(st.sampled_from(sizes))
    generator = torch.Generator().manual_seed(draw(seeds))
    logits = draw(st.sampled_from([0.5, 2.0, 8.0])) * torch.randn(n, c, *size, generator=generator).double()
    if draw(st.booleans()):
        logits = logits.round()
    return logits, torch.randint(c, (n, *size), generator=generator)


@st.composite
def multi(draw):
    n, labels = draw(st.integers(1, 50)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(seeds))
    logits = 2 * torch.randn(n, labels, generator=generator).double()
    if draw(st.booleans()):
        logits = logits.round()
    return logits, (torch.rand(n, labels, generator=generator) < draw(st.sampled_from([0.1, 0.5, 0.9]))).long()


def top(logits, targets):
    probs = logits.softmax(1)
    predicted = logits.argmax(1)
    return probs.amax(1), predicted == targets


# ---------------------------------------------------------------------------------------------------------- calibration


def slow_error(confidence, correct, edges, norm):
    """The definition, bin by bin: right-closed, the first one with its left end."""
    gaps, shares = [], []
    for low, high in pairwise(edges):
        inside = [i for i, c in enumerate(confidence) if low < c <= high or (c == low == edges[0])]
        if inside:
            gaps.append(abs(np.mean([correct[i] for i in inside]) - np.mean([confidence[i] for i in inside])))
            shares.append(len(inside) / len(confidence))
    gaps, shares = np.array(gaps), np.array(shares)
    return {"l1": (shares * gaps).sum(), "l2": math.sqrt((shares * gaps**2).sum()), "max": gaps.max()}[norm]


@few
@given(single(), st.integers(1, 20), st.sampled_from(["l1", "l2", "max"]))
def test_calibration_error_is_its_definition(batch, bins, norm):
    confidence, correct = top(*batch)
    expected = slow_error(confidence.tolist(), correct.tolist(), [b / bins for b in range(bins + 1)], norm)
    assert float(CalibrationError(bins, norm=norm)(*batch)) == pytest.approx(expected, abs=1e-12)


@few
@given(single(), st.integers(1, 20), st.sampled_from(["l1", "l2", "max"]))
def test_calibration_error_is_that_of_torchmetrics_inside_the_bins(batch, bins, norm):
    """Theirs are left-closed bins, and one more for a confidence of 1; away from edges that is the same."""
    confidence, _ = top(*batch)
    near = ((confidence * bins).round() / bins - confidence).abs() < 1e-6  # theirs are rounded to float32
    logits, targets = batch[0][~near], batch[1][~near]
    assume(len(logits))
    theirs = tm.multiclass_calibration_error(logits.softmax(1), targets, logits.shape[1], n_bins=bins, norm=norm)
    assert_close(CalibrationError(bins, norm=norm)(logits, targets), theirs.double(), rtol=0, atol=1e-6)


def test_a_confidence_of_one_is_in_the_last_bin_unlike_torchmetrics():
    probs = torch.tensor([[1.0, 0.0], [0.95, 0.05]])
    targets = torch.tensor([1, 0])
    # one bin of two samples: accuracy 1/2, confidence 0.975; theirs are two bins, |0 - 1| and |1 - 0.95|
    assert float(CalibrationError(10, from_logits=False)(probs, targets)) == pytest.approx(0.475)
    assert float(tm.multiclass_calibration_error(probs, targets, 2, n_bins=10)) == pytest.approx(0.525)


@few
@given(single(), st.integers(2, 20))
def test_calibration_error_is_that_of_netcal(batch, bins):
    """Theirs too are left-closed; a confidence of exactly 1 is in the last bin in both."""
    netcal = pytest.importorskip("netcal.metrics", reason="needs netcal: pip install --no-deps netcal")
    logits, targets = batch
    probs = logits.softmax(1)
    confidence = probs.amax(1)
    scaled = confidence * bins
    near = ((scaled.round() - scaled).abs() < 1e-9) | (logits == logits.amax(1, keepdim=True)).sum(1).gt(1)
    probs, targets = probs[~near].numpy(), targets[~near].numpy()
    # netcal takes two classes for a binary event, and reads the number of classes off the targets
    assume(probs.shape[1] > 2 and len(set(targets.tolist())) == probs.shape[1])
    ours = {
        norm: float(CalibrationError(bins, norm=norm, from_logits=False)(*map(torch.tensor, (probs, targets))))
        for norm in ("l1", "max")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ours["l1"] == pytest.approx(netcal.ECE(bins).measure(probs, targets), abs=1e-9)
        assert ours["max"] == pytest.approx(netcal.MCE(bins).measure(probs, targets), abs=1e-9)


@few
@given(single(), st.integers(1, 20), seeds)
def test_equal_mass_bins_count_every_sample(batch, bins, seed):
    logits, targets = batch
    metric = CalibrationError(bins, binning="mass")
    value = metric(logits, targets)
    curve = metric.curve()
    assert curve.count.sum() == len(targets)
    assert curve.count.max() - curve.count.min() <= 1
    full = curve.count > 0
    confidence, correct = top(logits, targets)
    assert_close((curve.count * curve.confidence)[full].sum(), confidence.sum())
    assert_close((curve.count * curve.accuracy)[full].sum(), correct.double().sum())
    assert curve.edges[0] == confidence.min()
    assert curve.edges[-1] == confidence.max()
    assert (curve.edges.diff() >= 0).all()
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    assert_close(CalibrationError(bins, binning="mass")(logits[order], targets[order]), value, rtol=0, atol=1e-12)


@few
@given(st.integers(1, 40), st.integers(1, 12), seeds)
def test_equal_mass_bins_are_chunks_of_the_sorted_samples(n, bins, seed):
    draw = np.random.default_rng(seed)
    confidence, correct = np.sort(draw.uniform(0.5, 1, n)), draw.random(n) < 0.7
    chunks = [[i for i in range(n) if i * bins // n == b] for b in range(bins)]
    expected = sum(abs(correct[c].sum() - confidence[c].sum()) for c in chunks if c) / n
    probs = torch.tensor(np.stack([confidence, 1 - confidence], 1))
    targets = torch.tensor(~correct).long()
    value = CalibrationError(bins, binning="mass", from_logits=False)(probs, targets)
    assert float(value) == pytest.approx(expected, abs=1e-12)


@few
@given(single(), st.integers(1, 10), st.sampled_from([16, 64, 4096]))
def test_the_histogram_of_equal_mass_bins_is_as_near_as_it_says(batch, bins, resolution):
    logits, targets = batch
    exact = CalibrationError(bins, binning="mass")
    coarse = CalibrationError(bins, binning="mass", exact=False, resolution=resolution)
    difference = abs(float(exact(logits, targets)) - float(coarse(logits, targets)))
    share = coarse.count[0] / coarse.count.sum()
    ends = share.cumsum(0)
    inside = torch.tensor([b / bins for b in range(1, bins)], dtype=torch.float64)
    cells = torch.searchsorted(ends, inside).clamp(max=resolution - 1).unique()
    neighbours = torch.cat([cells, (cells + 1).clamp(max=resolution - 1)]).unique()  # a cut is rounded to whole samples
    assert difference <= float(share[neighbours].sum()) + 1e-12
    assert coarse.curve().count.sum() == len(targets)


@few
@given(single(), st.integers(1, 15))
def test_classwise_error_is_the_mean_of_binary_ones(batch, bins):
    logits, targets = batch
    probs = logits.softmax(1)
    edges = [b / bins for b in range(bins + 1)]
    each = [slow_error(probs[:, c].tolist(), (targets == c).tolist(), edges, "l1") for c in range(logits.shape[1])]
    metric = CalibrationError(bins, kind="classwise")
    assert float(metric(logits, targets)) == pytest.approx(np.mean(each), abs=1e-12)
    assert metric.per_class().tolist() == pytest.approx(each, abs=1e-12)


@few
@given(multi(), st.integers(1, 15), st.sampled_from(["width", "mass"]))
def test_multilabel_error_is_the_binary_one_of_all_pairs(batch, bins, binning):
    logits, targets = batch
    flat = logits.flatten().unsqueeze(1), targets.flatten().unsqueeze(1)
    metric = CalibrationError(bins, kind="multilabel", binning=binning)
    value = metric(logits, targets)
    assert_close(value, CalibrationError(bins, kind="multilabel", binning=binning)(*flat), rtol=0, atol=1e-12)
    each = [
        float(CalibrationError(bins, kind="multilabel", binning=binning)(logits[:, [k]], targets[:, [k]]))
        for k in range(logits.shape[1])
    ]
    assert metric.per_class().tolist() == pytest.approx(each, abs=1e-12)


@few
@given(single(sizes=((), (3,))), st.sampled_from(["width", "mass"]))
def test_groups_are_the_samples_of_their_classes(batch, binning):
    logits, targets = batch
    groups = torch.arange(logits.shape[1]) % 2
    metric = CalibrationError(5, binning=binning, groups=groups)
    value, curve = metric(logits, targets), metric.curve()
    for group in range(2):
        alone = CalibrationError(5, binning=binning)
        alone.update(logits, torch.where(groups[targets] == group, targets, -100))
        assert_close(value[group], alone.compute(), rtol=0, atol=1e-12, equal_nan=True)
        assert_close(curve.accuracy[group], alone.curve().accuracy, rtol=0, atol=1e-12, equal_nan=True)


def test_a_value_on_an_edge_is_in_the_same_bin_in_both_types():
    for bins in range(1, 200):
        edges = torch.arange(bins + 1, dtype=torch.float64) / bins
        expected = torch.cat([torch.tensor([0]), torch.arange(bins)])
        for dtype in (torch.float32, torch.float64):
            sums = bin_sums(edges.to(dtype), torch.ones(bins + 1, dtype=torch.bool), bins)
            assert sums.count.tolist() == torch.bincount(expected, minlength=bins).tolist()


@few
@given(st.integers(1, 30), st.integers(1, 9), seeds)
def test_weights_are_repetitions(n, bins, seed):
    draw = torch.Generator().manual_seed(seed)
    confidence, correct = torch.rand(n, generator=draw).double(), torch.rand(n, generator=draw) < 0.5
    groups = torch.randint(2, (n,), generator=draw)
    weight = torch.randint(0, 4, (3, n), generator=draw)
    sums = bin_sums(confidence, correct, bins, groups=groups, num_groups=2, weight=weight)
    for row in range(3):
        times = weight[row]
        again = (each.repeat_interleave(times) for each in (confidence, correct))
        one = bin_sums(*again, bins, groups=groups.repeat_interleave(times), num_groups=2)
        for mine, theirs in zip(sums, one, strict=True):
            assert_close(mine[row], theirs.double())
        assert_close(binned_error(sums)[row], binned_error(one), equal_nan=True)


# ----------------------------------------------------------------------------------------- scoring rules and confidence


@few
@given(single(sizes=((), (2, 3))))
def test_scoring_rules_are_those_of_torch_and_scikit_learn(batch):
    logits, targets = batch
    probs = logits.softmax(1)
    assert_close(NegativeLogLikelihood()(logits, targets), torch.nn.functional.cross_entropy(logits, targets))
    one_hot = torch.nn.functional.one_hot(targets, logits.shape[1]).movedim(-1, 1)
    assert_close(BrierScore()(logits, targets), (probs - one_hot).square().sum(1).mean())
    if logits.ndim == 2 and float(probs.min()) > 1e-14:  # below, scikit-learn clips
        columns = list(range(logits.shape[1]))
        assert float(NegativeLogLikelihood()(logits, targets)) == pytest.approx(
            sk.log_loss(targets, probs, labels=columns), rel=1e-6
        )


@few
@given(multi())
def test_multilabel_scoring_rules_are_those_of_torch(batch):
    logits, targets = batch[0], batch[1].double()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    assert_close(NegativeLogLikelihood(kind="multilabel")(logits, targets), expected)
    assert_close(BrierScore(kind="multilabel")(logits, targets), (logits.sigmoid() - targets).square().mean())


def test_a_large_logit_costs_what_it_should():
    logits = torch.tensor([[0.0, 800.0]])
    assert float(NegativeLogLikelihood()(logits, torch.tensor([0]))) == 800
    assert float(NegativeLogLikelihood(kind="multilabel")(logits, torch.tensor([[1, 0]]))) == pytest.approx(
        (800 + math.log(2)) / 2
    )
    probs = torch.tensor([[1.0, 0.0]])
    assert float(NegativeLogLikelihood(from_logits=False)(probs, torch.tensor([1]))) == math.inf


@few
@given(single(sizes=((), (3,))))
def test_confidence_of_right_and_wrong(batch):
    logits, targets = batch
    confidence, correct = top(logits, targets)
    log_probs = logits.log_softmax(1)
    entropy = -(log_probs.exp() * log_probs).sum(1)
    nll = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    scores = ConfidenceProfile()(logits, targets)
    for side, mask in (("right", correct), ("wrong", ~correct)):
        for name, each in (("confidence", confidence), ("entropy", entropy), ("nll", nll)):
            assert_close(scores[f"{name}_{side}"], each[mask].mean(), equal_nan=True)
    sure = ConfidentShare(0.6)(logits, targets)
    assert_close(sure["share"], (confidence > 0.6).double().mean())
    assert_close(sure["accuracy"], correct[confidence > 0.6].double().mean(), equal_nan=True)


# -------------------------------------------------------------------------------------------- accuracy and segmentation


@few
@given(single(sizes=((), (4,))))
def test_accuracy_is_that_of_scikit_learn(batch):
    logits, targets = batch
    c = logits.shape[1]
    predicted = logits.argmax(1).flatten()
    scores = Accuracy(c, top_k=(1, 2, 9))(logits, targets)
    flat = targets.flatten()
    assert float(scores["top1"]) == pytest.approx(sk.accuracy_score(flat, predicted))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that is predicted and never true
        assert float(scores["mean_class"]) == pytest.approx(sk.balanced_accuracy_score(flat, predicted))
    assert float(scores["macro_f1"]) == pytest.approx(sk.f1_score(flat, predicted, average="macro", zero_division=0))
    order = logits.movedim(1, -1).flatten(0, -2).argsort(dim=1, descending=True, stable=True)
    assert float(scores["top2"]) == pytest.approx(float((order[:, :2] == flat.unsqueeze(1)).any(1).double().mean()))
    assert float(scores["top9"]) == 1
    for k in range(c):
        expected = (predicted == flat)[flat == k].double().mean()
        assert_close(scores["per_class"][k], expected, equal_nan=True)


@few
@given(single(sizes=((), (2, 3))))
def test_iou_is_that_of_scikit_learn(batch):
    logits, targets = batch
    c = logits.shape[1]
    predicted, flat = logits.argmax(1).flatten(), targets.flatten()
    metric = SegmentationScores(c)
    scores = metric(logits, targets)
    assert metric.confusion.tolist() == sk.confusion_matrix(flat, predicted, labels=range(c)).tolist()
    expected = sk.jaccard_score(flat, predicted, labels=range(c), average=None, zero_division=0)
    seen = scores["iou"].isfinite()
    assert_close(scores["iou"][seen], torch.tensor(expected)[seen])
    absent = (torch.bincount(flat, minlength=c) + torch.bincount(predicted, minlength=c)) == 0
    assert ((~seen) == absent).all()


# --------------------------------------------------------------------------------------------- multi-label and open set


@few
@given(multi())
def test_average_precision_is_that_of_scikit_learn_and_torchmetrics(batch):
    logits, targets = batch
    each = MultilabelAveragePrecision(logits.shape[1], average="none")(logits, targets).reshape(-1)
    for k in range(logits.shape[1]):
        if targets[:, k].any():
            assert float(each[k]) == pytest.approx(sk.average_precision_score(targets[:, k], logits[:, k]), abs=1e-12)
        else:
            assert each[k].isnan()
    if targets.any():
        micro = MultilabelAveragePrecision(logits.shape[1], average="micro")(logits, targets)
        expected = sk.average_precision_score(targets.flatten(), logits.flatten())
        assert float(micro) == pytest.approx(expected, abs=1e-12)
        assert_close(MultilabelAveragePrecision(logits.shape[1])(logits, targets), each.nanmean())
    if targets.any(0).all() and logits.shape[1] > 1:
        theirs = tm.multilabel_average_precision(logits.sigmoid(), targets, logits.shape[1])
        assert_close(each.mean(), theirs.double(), rtol=0, atol=1e-6)


@few
@given(multi(), st.sampled_from([2, 16, 256, 4096]), st.sampled_from(["macro", "micro"]))
def test_the_histogram_of_average_precision_is_as_near_as_it_says(batch, resolution, average):
    logits, targets = batch
    assume(targets.any())
    exact = MultilabelAveragePrecision(logits.shape[1], average=average)(logits, targets)
    metric = MultilabelAveragePrecision(logits.shape[1], average=average, exact=False, resolution=resolution)
    value = metric(logits, targets)
    low, high = metric.bounds()
    assert low - 1e-12 <= exact <= high + 1e-12
    assert abs(value - exact) <= (high - low) / 2 + 1e-12


def test_a_fine_histogram_of_average_precision_is_near():
    draw = torch.Generator().manual_seed(0)
    targets = (torch.rand(20000, 3, generator=draw) < 0.1).long()
    logits = torch.randn(20000, 3, generator=draw) + 2 * targets
    metric = MultilabelAveragePrecision(3, exact=False)
    assert float(metric(logits, targets)) == pytest.approx(
        float(MultilabelAveragePrecision(3)(logits, targets)), abs=2e-3
    )
    low, high = metric.bounds()
    assert float(high - low) < 0.02


def test_multilabel_scores_without_positives_do_not_exist():
    scores = MultilabelScores(2)(torch.tensor([[1.0, -1.0], [0.0, 2.0]]), torch.zeros(2, 2))
    assert int(scores.pop("left_out")) == 2
    assert all(value.isnan() for value in scores.values())


@few
@given(multi(), st.floats(0.05, 0.95))
def test_multilabel_scores_are_those_of_scikit_learn(batch, threshold):
    logits, targets = batch
    scores = MultilabelScores(logits.shape[1], threshold=threshold)(logits, targets)
    kept = targets.any(0)
    assert int(scores["left_out"]) == int((~kept).sum())
    assume(kept.any())
    chosen = (logits > math.log(threshold / (1 - threshold))).long()
    for name, score in (("CP", sk.precision_score), ("CR", sk.recall_score)):
        each = [score(targets[:, k], chosen[:, k], zero_division=0) for k in kept.nonzero().flatten()]
        assert float(scores[name]) == pytest.approx(np.mean(each))
    for name, score in (("OP", sk.precision_score), ("OR", sk.recall_score), ("OF1", sk.f1_score)):
        assert float(scores[name]) == pytest.approx(score(targets.flatten(), chosen.flatten(), zero_division=0))
    cp, cr = float(scores["CP"]), float(scores["CR"])
    assert float(scores["CF1"]) == pytest.approx(2 * cp * cr / (cp + cr) if cp + cr else 0)


def test_top_labels_and_thresholds_of_labels():
    logits = torch.tensor([[3.0, 2.0, 1.0, 1.0]])
    targets = torch.tensor([[1, 0, 1, 1]])
    scores = MultilabelScores(4, top_k=3)(logits, targets)  # labels 0, 1, 2: of equal ones the first
    assert [round(float(scores[name]), 4) for name in ("OP", "OR", "CR")] == [0.6667, 0.6667, 0.6667]
    scores = MultilabelScores(4, threshold=[0.5, 0.9, 0.9, 0.5])(logits, targets)
    assert [float(scores[name]) for name in ("OP", "OR")] == [1.0, pytest.approx(2 / 3)]


@pytest.mark.parametrize("target", [-1, 1], ids=["unknown", "known"])
@pytest.mark.parametrize("exact", [True, False])
def test_auroc_of_one_side_does_not_exist(target, exact):
    assert OpenSetScores(exact=exact)(torch.eye(3), torch.full((3,), target))["auroc"].isnan()


@few
@given(single(), seeds)
def test_auroc_is_that_of_scikit_learn(batch, seed):
    logits, targets = batch
    unknown = torch.rand(len(targets), generator=torch.Generator().manual_seed(seed)) < 0.5
    mixed = targets.masked_fill(unknown, -1)
    assume(len(unknown.unique()) == 2)
    exact = OpenSetScores()(logits, mixed)["auroc"]
    confidence = logits.softmax(1).amax(1)
    assert float(exact) == pytest.approx(sk.roc_auc_score(~unknown, confidence))
    metric = OpenSetScores(exact=False, resolution=256)
    coarse = metric(logits, mixed)["auroc"]
    known, strange = metric.cells.double()
    assert abs(float(coarse - exact)) <= 0.5 * float((known * strange).sum() / known.sum() / strange.sum()) + 1e-12
