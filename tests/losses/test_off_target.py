"""The asymmetric softmax losses as the text has them, against the formula in float64."""

import copy

import pytest
import torch
from torch.testing import assert_close

import equipoise as eq
from equipoise.losses.off_target import softmax_log_odds
from equipoise.weights import RecallWeights

DRAW = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(12, 5, generator=DRAW, dtype=torch.float64)
LABELS = torch.randint(0, 5, (12,), generator=DRAW)
TEXT = {"negatives": "one-vs-rest"}


def formula(logits, labels, *, gamma_pos=0.0, gamma_neg=4.0, xi=0.0, gamma_hc=0.0, weight=None):
    """Equations 2, 7 and 10 of Smith 2022, row by row; ``gamma_neg`` a number or one per class."""
    p = logits.softmax(1)
    weight = torch.ones(p.shape[1], dtype=p.dtype) if weight is None else weight
    gamma_neg = torch.as_tensor(gamma_neg, dtype=p.dtype).expand(p.shape[1])
    rows = []
    for q, y in zip(p, labels, strict=True):
        high = -((1 + q[y]) ** gamma_hc) * q[y].log()
        positive = -((1 - q[y]) ** gamma_pos) * q[y].log()
        negative = sum(-weight[k] * q[k] ** gamma_neg[k] * (1 - q[k]).log() for k in range(len(q)) if k != y)
        rows.append(weight[y] * (xi * high + (1 - xi) * positive) + (1 - xi) * negative)
    return torch.stack(rows)


def check(loss, expected, logits=LOGITS, labels=LABELS):
    """Rows and their gradient."""
    z, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found, wanted = loss(z, labels), expected(other, labels)
    assert_close(found, wanted, rtol=1e-11, atol=1e-13)
    weights = torch.linspace(0.5, 2.0, found.numel(), dtype=found.dtype).view_as(found)
    gradients = [torch.autograd.grad((value * weights).sum(), own)[0] for value, own in ((found, z), (wanted, other))]
    assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gamma_pos", [0.0, 1.5])
@pytest.mark.parametrize("gamma_neg", [0.0, 0.5, 4.0, [0.0, 1.0, 2.0, 3.0, 4.5]])
def test_asymmetric_loss_of_the_text(gamma_pos, gamma_neg):
    loss = eq.AsymmetricSoftmaxLoss(gamma_pos, gamma_neg=gamma_neg, reduction="none", **TEXT)
    check(loss, lambda z, y: formula(z, y, gamma_pos=gamma_pos, gamma_neg=gamma_neg))


@pytest.mark.parametrize("epoch", [0, 1, 2, 5, 8])
def test_cyclical_asymmetric_loss_is_equation_10(epoch):
    loss = eq.CyclicalAsymmetricLoss(9, gamma_hc=3.0, gamma_pos=1.0, reduction="none", **TEXT)
    loss.set_epoch(epoch)
    xi = 1 - 4 * epoch / 8 if epoch <= 2 else (4 * epoch / 8 - 1) / 3
    check(loss, lambda z, y: formula(z, y, gamma_pos=1.0, xi=xi, gamma_hc=3.0))


def test_at_both_ends_of_the_cycle_there_are_no_negatives():
    loss = eq.CyclicalAsymmetricLoss(9, reduction="none", **TEXT)
    plain = eq.CyclicalAsymmetricLoss(9, reduction="none", label_smoothing=0.0)
    for epoch in (0, 8):
        loss.set_epoch(epoch), plain.set_epoch(epoch)
        assert torch.equal(loss(LOGITS, LABELS), plain(LOGITS, LABELS))


def test_the_published_form_is_as_before():
    smoothed = eq.AsymmetricSoftmaxLoss()
    assert torch.equal(smoothed(LOGITS, LABELS), eq.AsymmetricSoftmaxLoss(negatives="smoothing")(LOGITS, LABELS))
    assert torch.equal(smoothed(LOGITS, LABELS), eq.functional.asymmetric_softmax_loss(LOGITS, LABELS))


def test_functions_are_the_losses():
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.0], dtype=torch.float64)
    asymmetric, cyclical = eq.functional.asymmetric_softmax_loss, eq.functional.cyclical_asymmetric_loss
    rows = asymmetric(LOGITS, LABELS, weight=weight, reduction="none", **TEXT)
    assert_close(rows, formula(LOGITS, LABELS, weight=weight))
    loss = eq.CyclicalAsymmetricLoss(9, **TEXT)
    for epoch, xi in {0: 1.0, 1: 0.5, 2: 0.0, 5: 0.5, 8: 1.0}.items():
        loss.set_epoch(epoch)
        assert_close(cyclical(LOGITS, LABELS, xi=xi, **TEXT), loss(LOGITS, LABELS))
    assert torch.equal(asymmetric(LOGITS, LABELS), asymmetric(LOGITS, LABELS, label_smoothing=0.1))
    with pytest.raises(ValueError, match=r"must be 0 with negatives='one-vs-rest', got 0\.1; omit it"):
        asymmetric(LOGITS, LABELS, label_smoothing=0.1, **TEXT)
    with pytest.raises(ValueError, match="negatives must be one of 'smoothing', 'one-vs-rest', got 'rest'"):
        cyclical(LOGITS, LABELS, xi=0.5, negatives="rest")


def test_class_weights_stand_inside_the_sum():
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.0], dtype=torch.float64)
    loss = eq.AsymmetricSoftmaxLoss(weight=weight, reduction="none", **TEXT)
    check(loss, lambda z, y: formula(z, y, weight=weight))
    mean = eq.AsymmetricSoftmaxLoss(weight=weight, **TEXT)(LOGITS, LABELS)
    assert_close(mean, formula(LOGITS, LABELS, weight=weight).sum() / weight[LABELS].sum())


def test_weights_of_the_batch():
    recall = RecallWeights(5)
    loss = eq.AsymmetricSoftmaxLoss(weight=copy.deepcopy(recall), reduction="none", **TEXT)
    weight = recall(LOGITS, LABELS, torch.ones(12, dtype=torch.bool), False).double()
    assert_close(loss(LOGITS, LABELS), formula(LOGITS, LABELS, weight=weight))


def test_label_maps_and_dense_targets():
    logits = LOGITS.view(2, 3, 2, 5).permute(0, 3, 1, 2)
    labels = LABELS.view(2, 3, 2)
    loss = eq.AsymmetricSoftmaxLoss(reduction="none", **TEXT)
    assert_close(loss(logits, labels).flatten(), formula(LOGITS, LABELS))
    one_hot = torch.nn.functional.one_hot(LABELS, 5).double()
    assert_close(loss(LOGITS, one_hot), formula(LOGITS, LABELS))
    mixed = 0.3 * one_hot + 0.7 * one_hot.roll(1, 0)
    p = LOGITS.softmax(1)
    expected = -(mixed * p.log() + (1 - mixed) * p**4 * (1 - p).log()).sum(1)
    assert_close(loss(LOGITS, mixed), expected)


@pytest.mark.parametrize("reduction", ["mean", "valid_mean", "batch_mean", "sum"])
def test_reductions_and_ignored_rows(reduction):
    labels = LABELS.clone()
    labels[::3] = -100
    logits = LOGITS.clone()
    logits[::3] = torch.nan
    logits.requires_grad_()
    loss = eq.AsymmetricSoftmaxLoss(reduction=reduction, **TEXT)(logits, labels)
    known = labels != -100
    denominator = {"mean": 8, "valid_mean": 8, "batch_mean": 12, "sum": 1}[reduction]
    assert_close(loss, formula(LOGITS[known], LABELS[known]).sum() / denominator)
    loss.backward()
    assert (logits.grad[::3] == 0).all()
    assert (logits.grad[known] != 0).any(1).all()


def test_masked_classes():
    logits = torch.tensor([[2.0, -torch.inf, 0.5], [1.0, -torch.inf, -torch.inf]], dtype=torch.float64)
    logits.requires_grad_()
    loss = eq.AsymmetricSoftmaxLoss(reduction="none", **TEXT)
    rows = loss(logits, torch.tensor([0, 0]))
    assert_close(rows[0], formula(logits.detach()[:1, [0, 2]], torch.tensor([0]))[0])
    assert rows[1] == 0
    rows.sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, 1] == 0).all()
    one = torch.zeros(3, 1, requires_grad=True)
    loss(one, torch.zeros(3, dtype=torch.int64)).sum().backward()
    assert (one.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("gamma_neg", [0.0, 0.3, 4.0])
def test_finite_at_extreme_logits(dtype, gamma_neg):
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 0.0, 0.0]], dtype=dtype).requires_grad_()
    rows = eq.AsymmetricSoftmaxLoss(gamma_neg=gamma_neg, reduction="none", **TEXT)(logits, torch.tensor([0, 0, 1]))
    rows.sum().backward()
    assert rows.isfinite().all()
    assert rows.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    assert logits.grad.isfinite().all()
    assert logits.grad.dtype == dtype
    assert rows[0] == 0
    assert rows[1].item() == pytest.approx(3e4, rel=2e-3)  # of the target, and of the wrong class


def test_derivatives_of_both_orders():
    loss = eq.CyclicalAsymmetricLoss(9, gamma_pos=1.0, **TEXT)
    loss.set_epoch(4)
    z = LOGITS[:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS[:3]), (z,))
    assert torch.autograd.gradgradcheck(lambda z: loss(z, LABELS[:3]), (z,))


def test_compiled_without_a_break():
    torch._dynamo.reset()
    loss = eq.AsymmetricSoftmaxLoss(**TEXT)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert_close(compiled(LOGITS, LABELS), loss(LOGITS, LABELS))


def test_log_odds():
    odds = softmax_log_odds(LOGITS)
    p = LOGITS.softmax(1)
    assert_close(odds, p.log() - (1 - p).log(), rtol=1e-9, atol=1e-9)
    sure = softmax_log_odds(torch.tensor([[800.0, 0.0]], dtype=torch.float64))
    assert sure.tolist() == [[800.0, -800.0]]


def test_smoothing_belongs_to_the_published_form():
    with pytest.raises(ValueError, match=r"label_smoothing must be 0 with negatives='one-vs-rest', got 0.1; omit it"):
        eq.AsymmetricSoftmaxLoss(label_smoothing=0.1, **TEXT)
    with pytest.raises(ValueError, match=r"negatives must be .*'smoothing', 'one-vs-rest'"):
        eq.CyclicalAsymmetricLoss(9, negatives="text")
    eq.AsymmetricSoftmaxLoss(label_smoothing=0.0, **TEXT)


def test_what_runs_and_what_is_shown():
    text, published = eq.AsymmetricSoftmaxLoss(**TEXT), eq.AsymmetricSoftmaxLoss()
    assert "negatives='one-vs-rest'" in repr(text)
    assert published.kernels == eq.CrossEntropyLoss.kernels
    assert "PyTorch between them" in text.kernels
