"""Types of results: float64 whatever the type of the scores and the default of torch, and sums without rounding."""

import pytest
import torch
from torch.testing import assert_close

from equipoise.metrics import (
    BrierScore,
    CalibrationError,
    ConfidenceProfile,
    MultilabelScores,
    NegativeLogLikelihood,
    OpenSetScores,
    accepting_threshold,
    average_precision,
    best_threshold,
    bin_edges,
    bin_sums,
    binned_error,
    bootstrap,
    rejection_curve,
    shot_groups,
)
from equipoise.metrics._inputs import tally
from equipoise.metrics.binning import cells_of_samples, equal_mass, fine_edges
from equipoise.metrics.open_set import auroc, histogram_auroc
from tests.dtypes import default_dtype
from tests.metrics.batches import EVERY, link, values

each_metric = pytest.mark.parametrize("name", EVERY)
EXACT = {"rtol": 1e-14, "atol": 1e-15, "equal_nan": True}
CONFIDENCE = torch.tensor([0.9, 0.6, 0.3, 0.6])
RIGHT = torch.tensor([True, False, True, True])


def all_results(name, scores, targets, **options):
    metric = EVERY[name][0](**options)
    metric.update(link(name)(scores) if options else scores, targets)
    results = dict(values(metric.compute()))
    if isinstance(metric, CalibrationError):
        results |= metric.curve()._asdict()
    return results


@each_metric
@pytest.mark.parametrize("options", [{}, {"from_logits": False}], ids=["logits", "probabilities"])
def test_results_do_not_depend_on_the_default_dtype(name, options):
    scores, targets = EVERY[name][1](dtype=torch.float32)
    expected = all_results(name, scores, targets, **options)
    for default in (torch.float64, torch.float16):
        with default_dtype(default):
            results = all_results(name, scores, targets, **options)
        for key, value in expected.items():
            assert results[key].dtype is value.dtype, key
            assert value.dtype is torch.float64 or key in ("left_out", "count"), key
            assert_close(results[key], value, **EXACT)


@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.float16], ids=str)
def test_functions_do_not_depend_on_the_default_dtype(default):
    unknown = torch.tensor([0.5, 0.2])
    with default_dtype(default):
        check_functions(unknown)


def check_functions(unknown):
    sums = bin_sums(CONFIDENCE, RIGHT, 2)
    weighted = bin_sums(CONFIDENCE, RIGHT, 2, weight=torch.tensor([[1, 0, 2, 1]]))
    assert [part.dtype for part in sums] == [torch.int64, torch.float64, torch.int64]
    assert [part.dtype for part in weighted] == [torch.float64] * 3
    assert (sums.count.tolist(), sums.correct.tolist()) == ([1, 3], [1, 2])
    assert (weighted.count.tolist(), weighted.correct.tolist()) == ([[2.0, 2.0]], [[2.0, 2.0]])
    empty, edges = equal_mass(cells_of_samples(CONFIDENCE[:0], RIGHT[:0], torch.zeros(0, dtype=torch.int64)), 2, 3)
    assert [part.dtype for part in (*empty, edges)] == [torch.int64, torch.float64, torch.float64, torch.float64]
    exact = torch.tensor([0.9, 0.6, 0.3, 0.6], dtype=torch.float32).double()
    assert_close(sums.confidence, torch.stack([exact[2], exact[0] + exact[1] + exact[3]]), **EXACT)
    assert_close(weighted.confidence, torch.stack([2 * exact[2], exact[0] + exact[3]])[None], **EXACT)
    assert_close(bin_edges(3), torch.tensor([0, 1 / 3, 2 / 3, 1], dtype=torch.float64), **EXACT)
    assert fine_edges(2).tolist() == [0.0, 0.5, 1.0]
    for value in (
        binned_error(sums),
        fine_edges(8),
        auroc(CONFIDENCE, unknown),
        auroc(CONFIDENCE, unknown[:0]),
        histogram_auroc(torch.tensor([1, 2]), torch.tensor([2, 1])),
        average_precision(CONFIDENCE[None], RIGHT[None]),
        average_precision(CONFIDENCE[None], ~RIGHT[None] & False),
        *rejection_curve(CONFIDENCE, RIGHT, unknown, [0.0, 0.4]),
        *bootstrap(lambda values: float(values.sum()), CONFIDENCE, draws=5),
    ):
        assert value.dtype is torch.float64
    assert_close(auroc(CONFIDENCE, unknown), torch.tensor(7 / 8, dtype=torch.float64), **EXACT)
    # 0.1 in float32 is another number than 0.1, and so is what is below either
    assert rejection_curve(CONFIDENCE, RIGHT, unknown, [0.1]).threshold.item() == 0.1
    assert best_threshold(CONFIDENCE, RIGHT, unknown, convention="oltr") == CONFIDENCE[2].item()
    assert shot_groups([101, 20]).tolist() == [0, 1]


def test_confidences_of_float32_are_compared_as_they_are():
    """In float32 the threshold 0.6 and a confidence of 0.6 would be equal; the confidence is a little above."""
    curve = rejection_curve(CONFIDENCE, RIGHT, CONFIDENCE, [0.6, CONFIDENCE[1].item(), 0.6000001])
    assert curve.unknown_rejected.tolist() == [0.25, 0.25, 0.75]


@pytest.mark.parametrize(("share", "accepted"), [(0.5, 5000), (0.50000001, 5001), (1.0, 10_000), (1e-9, 1)])
def test_the_accepted_fraction_is_computed_in_float64(share, accepted):
    """In float32 the product of a fraction and 10,000 samples has no digits behind the point left."""
    confidence = torch.arange(10_000.0)
    threshold = accepting_threshold(confidence, share=share)
    assert int((confidence >= threshold).sum()) == accepted


@pytest.mark.parametrize("n", range(1, 30))
def test_the_accepted_fraction_of_so_many_samples(n):
    confidence = torch.arange(float(n))
    for k in range(1, n + 1):
        assert accepting_threshold(confidence, share=k / n) == n - k


@pytest.mark.parametrize("name", ["nll", "brier", "confidence profile", "nll multilabel", "brier multilabel"])
def test_sums_of_float32_scores_are_those_of_one_row_at_a_time(name):
    """A sum of one row does not round; sums of rows are float64."""
    build, batch = EVERY[name]
    scores, targets = batch(400, dtype=torch.float32)
    together, alone = build(), build()
    together.update(scores, targets)
    for row, target in zip(scores, targets, strict=True):
        alone.update(row[None], target[None])
    for key, value in values(together.compute()).items():
        single = values(alone.compute())[key]
        assert_close(value, single, **EXACT if "multilabel" not in name else {"rtol": 1e-8, "atol": 0})


def test_sums_of_confidences_are_float64():
    confidence = torch.rand(2000, generator=torch.Generator().manual_seed(0))
    slots = torch.arange(2000) % 2
    sums = tally(slots, 2, confidence)
    assert sums.dtype is torch.float64
    assert_close(sums, torch.stack([confidence[k::2].double().sum() for k in range(2)]), **EXACT)
    correct = confidence > 0.5
    found = bin_sums(confidence, correct, 1, weight=torch.ones(1, 2000, dtype=torch.int64))
    assert_close(found.confidence[0, 0], confidence.double().sum(), **EXACT)


def test_a_score_far_from_the_others_does_not_swallow_them():
    logits = torch.tensor([[0.0, 2.0**24], [0.0, 0.0], [0.0, 0.0]])
    metric = NegativeLogLikelihood()
    metric.update(logits, torch.zeros(3, dtype=torch.int64))
    log2 = torch.tensor(2.0).log().double()
    assert_close(metric.compute(), (2**24 + 2 * log2) / 3, rtol=1e-13, atol=0)
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    score = BrierScore(from_logits=False)
    score.update(probs, torch.tensor([1, 0]))
    assert score.compute() == 1.25


def test_thresholds_of_labels_stay_in_float64():
    """0.1 is a little below the float32 nearest to it, so that this probability is above."""
    metric = MultilabelScores(1, threshold=0.1, from_logits=False)
    assert metric.threshold.dtype is torch.float64
    assert metric.threshold.item() == 0.1
    threshold = torch.tensor([0.3], requires_grad=True)
    metric = MultilabelScores(1, threshold=threshold)
    assert not metric.threshold.requires_grad
    with torch.no_grad():
        threshold.zero_()
    assert metric.threshold.item() == pytest.approx(0.3)


def test_no_result_has_a_gradient():
    for name, (build, batch) in EVERY.items():
        scores, targets = batch()
        metric = build()
        metric.update(scores.requires_grad_(), targets)
        assert not any(value.requires_grad for value in values(metric.compute()).values()), name
        for state in metric.metric_state.values():
            assert not any(part.requires_grad for part in (state if isinstance(state, list) else [state])), name
    values_, weight = torch.rand(9), torch.rand(9, requires_grad=True)
    interval = bootstrap(lambda v, w: (v * w).sum(), values_, weight, draws=3)
    assert not any(part.requires_grad for part in interval)


@pytest.mark.parametrize("exact", [True, False])
def test_empty_open_set_scores_are_float64(exact):
    metric = OpenSetScores(exact=exact, resolution=8)
    metric.update(torch.zeros(1, 2), torch.tensor([0]))
    assert metric.compute()["auroc"].dtype is torch.float64
    assert metric.compute()["auroc"].isnan()
    if exact:
        assert metric.joined("sides").dtype is torch.int8


def test_profile_of_nothing_keeps_its_types():
    found = ConfidenceProfile().compute()
    assert all(value.dtype is torch.float64 and value.isnan() for value in found.values())
