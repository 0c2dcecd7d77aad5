"""On a GPU: the same fit as on the CPU, and logits that stay on the device."""

import pytest
import torch
from torch.testing import assert_close

from tests.calibration.data import EVERY, fit, of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("name", "task"), EVERY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_the_same_on_either_device(name, task, dtype):
    logits, targets = of(task, rows=500, size=(3,))
    logits = logits.to(dtype)
    here = fit(name, logits, targets)
    there = fit(name, logits.cuda(), targets.cuda())
    mixed = fit(name, logits.cuda(), targets)
    after = there(logits.cuda())
    assert_close(mixed(logits.cuda()), after, atol=1e-3, rtol=1e-3)  # sums are in any order there
    assert after.is_cuda
    assert after.dtype == dtype
    assert_close(after.cpu(), here(logits), atol=2e-3, rtol=2e-3)
