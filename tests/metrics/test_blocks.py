"""Blocks of scores: together they are the whole, none is larger than allowed, and none is needlessly small."""

import sys

import pytest
import torch
from torch.testing import assert_close

from equipoise.metrics import MultilabelAveragePrecision, bootstrap, shot_groups
from equipoise.metrics import _inputs as inputs
from equipoise.metrics.average_precision import label_average_precision

average_precisions = sys.modules[MultilabelAveragePrecision.__module__]


@pytest.mark.parametrize(
    ("shape", "size", "samples", "locations"),
    [
        ((10, 4), 12, [3, 3, 3, 1], []),
        ((10, 4), 40, [10], []),
        ((10, 4), 39, [9, 1], []),
        ((10, 1), 4, [4, 4, 2], []),
        ((3, 4), 3, [1, 1, 1], []),
        ((0, 4), 12, [], []),
        ((3, 4, 2), 16, [2, 1], [2, 2]),
        ((2, 4, 7), 28, [1, 1], [7, 7]),
        ((2, 4, 7), 27, [1, 1, 1, 1], [6, 1, 6, 1]),
        ((2, 4, 7), 12, [1] * 6, [3, 3, 1, 3, 3, 1]),
        ((1, 4, 3), 2, [1, 1, 1], [1, 1, 1]),
        ((2, 4, 2, 3), 24, [1, 1], [6, 6]),
        ((2, 4, 0), 24, [], []),
    ],
)
@pytest.mark.parametrize("by_class", [False, True], ids=["classes", "labels"])
def test_blocks_are_as_large_as_allowed(shape, size, samples, locations, by_class, monkeypatch):
    monkeypatch.setattr(inputs, "BLOCK", size)
    scores = torch.arange(float(torch.Size(shape).numel())).view(shape)
    targets = scores if by_class else scores[:, 0]
    pieces = list(inputs.cut(scores, targets))
    assert [len(block) for block, _ in pieces] == samples
    assert [block.shape[2] for block, _ in pieces if block.ndim == 3] == locations
    for block, given in pieces:
        assert torch.equal(given, block if by_class else block[:, 0])
    assert sum(block.numel() for block, _ in pieces) == scores.numel()
    assert sum(float(block.sum()) for block, _ in pieces) == float(scores.sum())


@pytest.mark.parametrize(
    ("together", "widths"), [(1, [1, 1, 1, 1, 1]), (12, [2, 2, 1]), (29, [4, 1]), (30, [5]), (60, [5])]
)
def test_average_precision_sorts_as_many_labels_together_as_allowed(together, widths, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    scores, outcomes = torch.randn(6, 5, generator=draw), torch.randint(-1, 2, (6, 5), generator=draw)
    expected = label_average_precision([scores], [outcomes])
    seen, original = [], average_precisions.average_precision

    def recorded(values, *others):
        seen.append(len(values))
        return original(values, *others)

    monkeypatch.setattr(average_precisions, "TOGETHER", together)
    monkeypatch.setattr(average_precisions, "average_precision", recorded)
    assert_close(label_average_precision([scores[:2], scores[2:]], [outcomes[:2], outcomes[2:]]), expected)
    assert seen == widths


def test_a_single_sample_has_as_many_labels_together_as_allowed(monkeypatch):
    seen, original = [], average_precisions.average_precision
    monkeypatch.setattr(average_precisions, "TOGETHER", 4)
    monkeypatch.setattr(
        average_precisions, "average_precision", lambda *given: seen.append(len(given[0])) or original(*given)
    )
    assert label_average_precision([torch.zeros(1, 5)], [torch.ones(1, 5, dtype=torch.int8)]).tolist() == [1.0] * 5
    assert seen == [4, 1]


def test_labels_without_samples_have_no_average_precision():
    assert label_average_precision([torch.zeros(0, 2)], [torch.zeros(0, 2, dtype=torch.int8)]).isnan().all()


@pytest.mark.parametrize(("together", "sizes"), [(1, [1] * 7), (40, [1] * 7), (80, [2, 2, 2, 1]), (280, [7])])
def test_bootstrap_computes_as_many_draws_together_as_allowed(together, sizes, monkeypatch):
    monkeypatch.setattr(sys.modules[bootstrap.__module__], "TOGETHER", together)
    seen = []

    def mean(values, weight):
        seen.append(len(weight))
        return (weight * values).sum(-1) / weight.sum(-1)

    bootstrap(mean, torch.arange(40.0), draws=7, weighted=True)
    assert seen == [1, *sizes]


@pytest.mark.parametrize("size", [1, 3, 12, 100])
def test_largest_scores_are_found_in_any_layout(size, monkeypatch):
    """Ties go to the lower class; also where the scores are a view of others."""
    monkeypatch.setattr(inputs, "BLOCK", size)
    scores = torch.randint(0, 3, (3, 5, 4), generator=torch.Generator().manual_seed(0)).double()
    expected = [[row.index(max(row)) for row in sample.t().tolist()] for sample in scores]
    assert inputs.predictions(scores).tolist() == expected
    assert inputs.predictions(scores.mT.contiguous().mT).tolist() == expected
    assert inputs.predictions(scores[:, :, 0]).tolist() == [sample[0] for sample in expected]


def test_groups_of_training_samples_are_integers():
    groups = shot_groups([500, 100, 20, 3])
    assert groups.dtype is torch.int64
