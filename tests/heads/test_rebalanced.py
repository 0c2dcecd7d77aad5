"""Tau-normalisation and its choice, and learnable weight scaling."""

import pytest
import torch
from torch.testing import assert_close

from equipoise.heads import TauChoice, choose_tau, scaled_classifier, tau_normalize


def long_tail(rows=300, seed=0):
    """Five directions; the rows of rare classes are short, as training leaves them."""
    draw = torch.Generator().manual_seed(seed)
    directions = torch.nn.functional.normalize(torch.randn(5, 8, generator=draw, dtype=torch.float64), dim=1)
    weight = directions * torch.tensor([5.0, 3.0, 1.5, 0.7, 0.3]).double()[:, None]
    targets = torch.arange(rows) % 5
    features = 3.0 * directions[targets] + torch.randn(rows, 8, generator=draw, dtype=torch.float64)
    return features, targets, weight


def test_norms():
    _, _, weight = long_tail()
    for tau in (0.0, 0.3, 1.0, 1.7):
        assert_close(tau_normalize(weight, tau).norm(dim=1), weight.norm(dim=1) ** (1 - tau))
    assert torch.equal(tau_normalize(weight, 0.0), weight)


def test_a_row_of_zeros_stays_and_the_weight_is_not_written():
    weight = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    kept = weight.clone()
    assert_close(tau_normalize(weight, 1.0), torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    assert torch.equal(weight, kept)


def test_tau_is_the_best_on_the_data():
    features, targets, weight = long_tail()
    choice = choose_tau(features, targets, weight)
    assert isinstance(choice, TauChoice)
    assert choice.taus == tuple(step / 10 for step in range(21))
    by_hand = []
    for tau in choice.taus:
        predicted = (features @ tau_normalize(weight, tau).T).argmax(1)
        by_hand.append(sum(float((predicted[targets == c] == c).double().mean()) for c in range(5)) / 5)
    assert choice.accuracies == pytest.approx(by_hand)
    assert choice.tau == choice.taus[by_hand.index(max(by_hand))]
    assert 0.5 < choice.tau < 1.5
    new, labels, _ = long_tail(seed=0)
    predicted = (new @ tau_normalize(weight, choice.tau).T).argmax(1)
    assert float((predicted == labels).double().mean()) > float(((new @ weight.T).argmax(1) == labels).double().mean())


def test_the_bias_is_dropped_or_kept():
    features, targets, weight = long_tail()
    bias = torch.tensor([0.0, 0.0, 0.0, 0.0, 100.0])
    dropped, kept = choose_tau(features, targets, weight), choose_tau(features, targets, weight, bias=bias)
    assert max(dropped.accuracies) > 0.8
    assert set(kept.accuracies) == {0.2}
    assert kept.tau == 0.0, "of equal ones the least"


def test_ignored_and_absent_classes():
    features, targets, weight = long_tail()
    holes = torch.where(targets == 4, -100, targets)
    rows = targets != 4
    assert choose_tau(features, holes, weight) == choose_tau(features[rows], targets[rows], weight)


def test_mean_class_accuracy_of_each_tau():
    """Class 0 is right in 3 of 4 rows, class 1 in 1 of 2; a row of class 1 is gained where the norms are equal."""
    features = torch.tensor([[1.0, 0.1], [1.0, 0.2], [1.0, 0.3], [0.1, 1.0], [0.1, 1.0], [0.5, 0.8]])
    targets = torch.tensor([0, 0, 0, 0, 1, 1])
    choice = choose_tau(features, targets, torch.tensor([[2.0, 0.0], [0.0, 1.0]]), taus=(1.0, 0.0))
    assert choice == TauChoice(1.0, (1.0, 0.0), ((3 / 4 + 1.0) / 2, (3 / 4 + 1 / 2) / 2))


def test_scales_multiply_logits_and_bias_and_alone_have_a_gradient():
    draw = torch.Generator().manual_seed(0)
    features, weight = torch.randn(4, 2, generator=draw), torch.randn(3, 2, generator=draw, requires_grad=True)
    bias, scales = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([2.0, 0.25, -3.0], requires_grad=True)
    logits = scaled_classifier(features, weight, scales, bias=bias)
    plain = (features @ weight.T + bias).detach()
    assert_close(logits, torch.stack([2.0 * plain[:, 0], 0.25 * plain[:, 1], -3.0 * plain[:, 2]], 1))
    logits.sum().backward()
    assert_close(scales.grad, plain.sum(0))
    assert weight.grad is None


def test_errors():
    features, targets, weight = long_tail(20)
    with pytest.raises(ValueError, match="tau"):
        tau_normalize(weight, -1.0)
    with pytest.raises(ValueError, match=r"weight must be a floating point matrix \(C, D\)"):
        tau_normalize(weight[0], 1.0)
    with pytest.raises(ValueError, match="features must have shape"):
        choose_tau(features[:, :3], targets, weight)
    with pytest.raises(ValueError, match="taus must hold"):
        choose_tau(features, targets, weight, taus=())
    with pytest.raises(ValueError, match="targets must be class indices"):
        choose_tau(features, targets + 5, weight)
    with pytest.raises(ValueError, match="at least one label"):
        choose_tau(features, targets * 0 - 100, weight)
    with pytest.raises(ValueError, match="scales must have one number for each of the 5 classes"):
        scaled_classifier(features, weight, torch.ones(3))
