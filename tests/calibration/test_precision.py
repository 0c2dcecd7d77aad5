"""Fits are computed in float64, whatever the type of the logits and the default of torch."""

import pytest
import torch
from torch.testing import assert_close

from equipoise.calibration import logits_from_probs
from tests.calibration.data import EVERY, fit, of
from tests.dtypes import default_dtype

every = pytest.mark.parametrize(("name", "task"), EVERY)


@every
def test_the_default_dtype_does_not_matter(name, task):
    logits, targets = of(task, rows=120)
    logits = logits.float()
    fitted = fit(name, logits, targets)
    expected = fitted(logits)
    for default in (torch.float64, torch.float16):
        with default_dtype(default):
            again = fit(name, logits, targets)
            assert again == fitted
            assert_close(again(logits), expected, rtol=0, atol=0)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_type_of_the_logits_does_not_matter(name, task, dtype):
    """Up to the precision of the type."""
    logits, targets = of(task, rows=120)
    logits = logits.to(dtype)
    assert fit(name, logits, targets) == fit(name, logits.double(), targets)


@every
def test_the_type_of_the_targets_does_not_matter(name, task):
    logits, targets = of(task, rows=120)
    expected = fit(name, logits, targets)
    for dtype in (torch.int8, torch.int16, torch.int32) + ((torch.float32, torch.bool) if task == "multilabel" else ()):
        assert fit(name, logits, targets.to(dtype)) == expected


@every
def test_fits_need_no_gradient_and_applying_them_has_one(name, task):
    logits, targets = of(task, rows=120)
    fitted = fit(name, logits, targets)
    assert fit(name, logits.clone().requires_grad_(), targets) == fitted
    applied = fitted(logits.requires_grad_())
    assert applied.requires_grad
    assert_close(applied.detach(), fitted(logits.detach()), rtol=0, atol=0)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_logits_of_probabilities_are_computed_in_float64(task):
    probs = torch.tensor([[0.3, 0.7], [1e-9, 1.0]])
    exact = logits_from_probs(probs.double(), task=task)
    assert exact.dtype is torch.float64
    assert_close(logits_from_probs(probs, task=task), exact.float(), rtol=0, atol=0)
