"""Unknown labels of multi-label data as negatives with a weight."""

import functools

import pytest
import torch
from torch.testing import assert_close

import equipoise as eq

SIGMOID = {
    "bce": (lambda **o: eq.BinaryCrossEntropyLoss(**o), eq.functional.binary_cross_entropy_loss),
    "focal": (lambda **o: eq.BinaryFocalLoss(**o), eq.functional.binary_focal_loss),
    "asl": (lambda **o: eq.AsymmetricLoss(**o), eq.functional.asymmetric_loss),
}


@pytest.mark.parametrize("name", SIGMOID)
@pytest.mark.parametrize("reduction", ["none", "mean", "valid_mean", "batch_mean", "sum"])
def test_unknown_labels_as_negatives_with_a_weight(name, reduction):
    build, function = SIGMOID[name]
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(6, 4, generator=draw, dtype=torch.float64)
    targets = torch.randint(-1, 2, (6, 4), generator=draw)
    given = torch.rand(6, 1, generator=draw, dtype=torch.float64)
    unknown = targets == -1
    negatives = build(reduction="none")(logits, targets.clamp(min=0))
    weighted = torch.ones_like(logits).masked_fill(unknown, 0.1) * given * negatives
    size = {"none": 1, "mean": 24, "valid_mean": 6, "batch_mean": 6, "sum": 1}[reduction]
    expected = weighted if reduction == "none" else weighted.sum() / size
    for loss in (
        build(unknown_weight=0.1, reduction=reduction),
        functools.partial(function, unknown_weight=0.1, reduction=reduction),
    ):
        actual = loss(logits, targets, element_weight=given)
        assert_close(actual, expected, rtol=1e-12, atol=1e-15)
        assert_close(loss(logits, targets.float(), element_weight=given), actual)
    assert "unknown_weight=0.1" in repr(build(unknown_weight=0.1))
    assert "unknown_weight" not in repr(build())
    with pytest.raises(ValueError, match="unknown_weight must be a finite number in"):
        build(unknown_weight=-0.1)
    with pytest.raises(ValueError, match="unknown_weight must be a finite number in"):
        function(logits, targets, unknown_weight=-0.1)
