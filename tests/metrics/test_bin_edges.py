"""The edges of bins: which bin a confidence on an edge is in, and between which confidences a bin lies."""

import pytest
import torch
from torch.testing import assert_close

from equipoise.metrics import CalibrationError, bin_edges, bin_index, bin_sums, binned_error
from equipoise.metrics.binning import BinSums, cells_of_histogram, cells_of_samples, equal_mass, fine_edges


def just(value, towards):
    return torch.nextafter(torch.tensor(value, dtype=torch.float64), torch.tensor(towards, dtype=torch.float64)).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bins_are_right_closed_and_hold_both_ends(dtype):
    confidence = torch.tensor([0.0, 0.1, 0.25, 0.26, 0.5, 0.75, 0.76, 1.0], dtype=dtype)
    assert bin_index(confidence, 4).tolist() == [0, 0, 0, 1, 1, 2, 3, 3]
    assert bin_index(confidence, torch.tensor([0.0, 0.25, 0.75, 1.0])).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert bin_index(confidence, 1).tolist() == [0] * 8


def test_edges_themselves():
    assert bin_edges(4).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert bin_edges(1).tolist() == [0.0, 1.0]
    assert bin_index(torch.tensor([just(0.5, 0.0), 0.5, just(0.5, 1.0)], dtype=torch.float64), 2).tolist() == [0, 0, 1]


def test_one_sample_beyond_an_edge_moves_the_error():
    """A confidence of 0.5 that is wrong shares a bin with 0.1 that is right, not with 0.9 that is right."""
    confidence, correct = torch.tensor([0.1, 0.5, 0.9]).double(), torch.tensor([True, False, True])
    sums = bin_sums(confidence, correct, 2)
    assert sums.count.tolist() == [2, 1]
    assert sums.correct.tolist() == [1, 1]
    assert_close(sums.confidence, torch.tensor([0.6, 0.9]).double())
    gaps = {"l1": (0.4 + 0.1) / 3, "l2": ((2 * 0.2**2 + 0.1**2) / 3) ** 0.5, "max": 0.2}
    for norm, expected in gaps.items():
        assert float(binned_error(sums, norm)) == pytest.approx(expected, rel=1e-6)
    metric = CalibrationError(2, from_logits=False)
    metric.update(torch.tensor([[0.5, 0.5], [0.1, 0.9]]).double(), torch.tensor([1, 1]))
    assert metric.curve().count.tolist() == [1, 1]
    assert float(metric.compute()) == pytest.approx((0.5 + 0.1) / 2, rel=1e-6)


def test_groups_and_ignored_entries_have_separate_bins():
    confidence = torch.tensor([0.1, 0.9, 0.1, 0.9, 0.9])
    correct = torch.tensor([True, False, True, True, True])
    groups, valid = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([True, True, True, True, False])
    sums = bin_sums(confidence, correct, 2, groups=groups, num_groups=2, valid=valid)
    assert sums.count.tolist() == [[1, 1], [1, 1]]
    assert sums.correct.tolist() == [[1, 0], [1, 1]]
    assert_close(sums.confidence, torch.tensor([[0.1, 0.9], [0.1, 0.9]]).double())


def test_an_empty_bin_has_no_error_and_nothing_has_none():
    empty = bin_sums(torch.tensor([]), torch.tensor([], dtype=torch.bool), 3)
    assert all(binned_error(empty, norm).isnan() for norm in ("l1", "l2", "max"))
    alone = bin_sums(torch.tensor([0.3]).double(), torch.tensor([True]), 3)
    assert [float(binned_error(alone, norm)) for norm in ("l1", "l2", "max")] == pytest.approx([0.7] * 3)


def test_equal_mass_of_distinct_samples():
    """Seven in three bins: ranks 0-2, 3-4, 5-6; edges are the confidences at the cuts."""
    confidence = torch.tensor([0.9, 0.1, 0.2, 0.4, 0.3, 0.6, 0.8]).double()
    correct = torch.tensor([True, False, True, False, False, True, False])
    sums, edges = equal_mass(cells_of_samples(confidence, correct, torch.zeros(7, dtype=torch.int64)), 1, 3)
    assert sums.count.tolist() == [[3, 2, 2]]
    assert_close(sums.confidence, torch.tensor([[0.6, 1.0, 1.7]]).double())
    assert_close(sums.correct, torch.tensor([[1.0, 1.0, 1.0]]).double())
    assert_close(edges, torch.tensor([[0.1, 0.3, 0.6, 0.9]]).double())


def test_equal_mass_of_rows_and_of_equal_samples():
    """The second row has four samples in two cells, a cut through neither; the third has none."""
    confidence = torch.tensor([0.5, 0.5, 0.5, 0.2, 0.2, 0.7, 0.7]).double()
    row = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    correct = torch.tensor([True, False, False, True, False, True, True])
    sums, edges = equal_mass(cells_of_samples(confidence, correct, row), 3, 2)
    assert sums.count.tolist() == [[2, 1], [2, 2], [0, 0]]
    assert_close(sums.confidence, torch.tensor([[1.0, 0.5], [0.4, 1.4], [0.0, 0.0]]).double())
    assert_close(sums.correct, torch.tensor([[2 / 3, 1 / 3], [1.0, 2.0], [0.0, 0.0]]).double())
    nothing = torch.nan
    expected = torch.tensor([[0.5, 0.5, 0.5], [0.2, 0.2, 0.7], [nothing, nothing, nothing]]).double()
    assert_close(edges, expected, equal_nan=True)


def test_equal_mass_of_a_histogram_begins_and_ends_at_the_edges_of_its_cells():
    edges = torch.tensor([0.0, 0.2, 0.6, 1.0]).double()
    counts = BinSums(torch.tensor([[0, 3, 1]]), torch.tensor([[0.0, 1.2, 0.9]]).double(), torch.tensor([[0, 3, 0]]))
    sums, actual = equal_mass(cells_of_histogram(counts, edges), 1, 2)
    assert sums.count.tolist() == [[2, 2]]
    assert_close(sums.correct, torch.tensor([[2.0, 1.0]]).double())
    assert_close(sums.confidence, torch.tensor([[0.8, 1.3]]).double())
    assert_close(actual, torch.tensor([[0.2, 0.6, 1.0]]).double())


def test_fine_edges_cover_everything_and_are_even_in_log_odds():
    edges = fine_edges(8)
    assert edges[0] == 0.0
    assert edges[-1] == 1.0
    assert_close(edges[1:-1].logit(), torch.tensor([-12.0, -8.0, -4.0, 0.0, 4.0, 8.0, 12.0]).double())
    assert bin_index(torch.tensor([0.0, 0.5, just(0.5, 1.0), 1.0], dtype=torch.float64), edges).tolist() == [0, 3, 4, 7]
