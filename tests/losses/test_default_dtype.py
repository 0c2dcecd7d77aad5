"""Losses do not depend on the default dtype of torch: the types of the logits decide."""

import pytest
import torch
from torch.testing import assert_close

from equipoise.weights import (
    Deferred,
    RecallWeights,
    effective_number,
    inverse_frequency,
    median_frequency,
    normalized,
    square_root,
)
from tests.dtypes import default_dtype
from tests.losses.helpers import REGION, SIGMOID, SOFTMAX, batch_of, each, make, value_and_gradient

each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


def results(entry, logits, targets, **options):
    loss = make(entry, logits.shape[1], **options)
    steps = [value_and_gradient(loss, logits, targets) for _ in range(2)]  # adaptive losses have moved in the second
    return steps, loss.state_dict()


@each([*SOFTMAX, *SIGMOID, *REGION])
@each_dtype
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_value_gradient_and_state(entry, dtype, reduction):
    size = (4, 4) if entry in REGION else ()
    logits, targets = batch_of(entry, (6, 3, *size), dtype=dtype, ignored=0.2)
    options = {"reduction": reduction} | ({"target_gap": 0.3} if entry.name == "AsymmetricLoss" else {})
    expected, state = results(entry, logits, targets, **options)
    for default in (torch.float64, torch.float16):
        with default_dtype(default):
            steps, changed = results(entry, logits, targets, **options)
        assert_close(steps, expected, rtol=0, atol=0)
        assert_close(changed, state, rtol=0, atol=0, equal_nan=True)
    assert {part.dtype for step in expected for part in step[:1]} == {torch.promote_types(dtype, torch.float32)}
    assert all(step[1].dtype is dtype for step in expected)


def test_dense_targets_and_weights():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    masses = torch.tensor([[0.5, 0.25, 0.25]]).expand(5, 3)
    weight = [0.1, 1.0, 3.0]
    for entry in SOFTMAX:
        options = {} if entry.name == "OHEMLoss" else {"weight": weight}
        expected = value_and_gradient(make(entry, 3, **options), logits, masses)
        with default_dtype(torch.float64):
            assert_close(value_and_gradient(make(entry, 3, **options), logits, masses), expected, rtol=0, atol=0)


@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.float16], ids=str)
def test_weights_are_computed_in_float64(default):
    """A third and 0.9999 have digits that float32 does not."""
    with default_dtype(default):
        for weights, expected in (
            (inverse_frequency([3, 1], None), (1 / 3, 1.0)),
            (square_root([3, 1], None), (3**-0.5, 1.0)),
            (median_frequency([3, 1, 1]), (1 / 3, 1.0, 1.0)),
            (effective_number([2, 1], 0.9999, None), (1 / 1.9999, 1.0)),
            (inverse_frequency([3, 1]), (0.5, 1.5)),
            (inverse_frequency([3, 1], "mean_one_over_samples"), (2 / 3, 2.0)),
        ):
            assert weights.dtype is torch.float64
            assert weights.tolist() == pytest.approx(expected, rel=1e-12)
        assert normalized(torch.tensor([1.0, 2.0], dtype=torch.float64)).tolist() == pytest.approx((1 / 3, 2 / 3))
        assert Deferred([1 / 3, 1.0]).weight == (1 / 3, 1.0)
        assert RecallWeights(2, momentum=0.5).batches.dtype is torch.int64
