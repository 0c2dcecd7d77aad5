"""One process with ``sync`` is one without; parts of losses at the ends of their ranges."""

import math

import pytest
import torch
from torch.testing import assert_close

import equipoise as eq
from equipoise.losses.adjust import Adjustment, NegativeTolerance, logit_adjustment, margin_adjustment
from equipoise.losses.asymmetry import AdaptiveAsymmetry
from equipoise.losses.modulate import ByConfidence, Modulation, asymmetric, cyclical, focal
from equipoise.losses.named import distribution_bias
from equipoise.schedules import Linear, Moment
from tests.losses.helpers import REDUCTIONS, REGION, SIGMOID, SOFTMAX, batch_of, each, make, value_and_gradient

REDUCED = [reduction for reduction in REDUCTIONS if reduction != "none"]


@each([*SOFTMAX, *SIGMOID])
@pytest.mark.parametrize("ignored", [0.0, 0.3])
def test_sync_alone_changes_nothing(entry, ignored):
    logits, targets = batch_of(entry, (7, 3, 2), ignored=ignored)
    for reduction in REDUCED:
        losses = [make(entry, 3, reduction=reduction, sync=sync) for sync in (False, True)]
        for _ in range(2):  # running statistics too
            expected, actual = (value_and_gradient(loss, logits, targets) for loss in losses)
            assert_close(actual, expected, rtol=1e-12, atol=1e-12)
        assert str(losses[0].state_dict()) == str(losses[1].state_dict())


@each(REGION)
@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_sync_alone_changes_no_loss_of_regions(entry, per_image, reduction):
    if entry.name == "LovaszSoftmaxLoss":
        per_image = True  # a sort over processes is not offered
    logits, targets = batch_of(entry, (3, 3, 4, 4), ignored=0.2)
    options = {"per_image": per_image, "reduction": reduction}
    expected, actual = (
        value_and_gradient(make(entry, 3, sync=sync, **options), logits, targets) for sync in (False, True)
    )
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_ranges_of_an_adaptive_exponent():
    for options in ({"start": 0.0}, {"start": 10.0}, {"gap_step": 0.0}, {"gamma_max": 0.0, "start": 0.0}):
        AdaptiveAsymmetry(0.1, **options)
    AdaptiveAsymmetry(-1.0), AdaptiveAsymmetry(1.0)
    for name, options in (
        ("gamma_neg", {"start": -0.1}),
        ("gamma_neg", {"start": 10.1}),
        ("gap_step", {"gap_step": -0.1}),
        ("gamma_max", {"gamma_max": -0.1, "start": -0.1}),
        ("target_gap", {"target_gap": -1.1}),
        ("target_gap", {"target_gap": 1.1}),
    ):
        with pytest.raises(ValueError, match=name):
            AdaptiveAsymmetry(**({"target_gap": 0.1} | options))


@pytest.mark.parametrize("per_class", [False, True])
def test_an_exponent_moves_by_its_formula(per_class):
    logits = torch.tensor([[1.0, -1.0], [0.5, 2.0], [-2.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    asymmetry = AdaptiveAsymmetry(0.3, start=4.0, gap_step=0.5, per_class=per_class)
    asymmetry.exponent(logits)
    asymmetry.update(logits, targets, -1, sync=True)
    p = logits.sigmoid()
    on, off = targets == 1, targets == 0
    if per_class:
        gap = float(p[on].mean() - (1 - p)[:, 0][off[:, 0]].mean())
        assert asymmetry.gap[0] == pytest.approx(gap)
        assert asymmetry.gap[1].isnan()  # no positives
        assert asymmetry.gamma_neg.tolist() == pytest.approx([4.0 + 0.5 * (0.3 - gap), 4.0])
    else:
        gap = float(p[on].mean() - (1 - p)[off].mean())
        assert asymmetry.gamma_neg.tolist() == pytest.approx([4.0 + 0.5 * (0.3 - gap)])
    for start, targeted, end in ((0.1, -1.0, 0.0), (9.9, 1.0, 10.0)):
        at_end = AdaptiveAsymmetry(targeted, start=start, gap_step=50.0)
        at_end.update(logits, targets, -1, sync=False)
        assert at_end.gamma_neg.item() == end


def test_argument_names_do_not_affect_equality():
    for one, other in (
        (Modulation(2.0, called="a"), Modulation(2.0, called="b")),
        (Adjustment((0.1, 0.2), called="a"), Adjustment((0.1, 0.2), called="b")),
        (NegativeTolerance((0.1, 0.2), called="a"), NegativeTolerance((0.1, 0.2), called="b")),
    ):
        assert one == other
        assert "called" not in repr(one)


def test_values_of_parts():
    assert focal().values(Moment()) == {"gamma_pos": (2.0,)}
    assert asymmetric().values(Moment()) == {"gamma_neg": (4.0,)}
    assert cyclical(0.25).values(Moment()) == {
        "xi": (0.25,),
        "gamma_hc": (3.0,),
        "gamma_pos": (2.0,),
        "gamma_neg": (2.0,),
    }
    assert cyclical(0.0).values(Moment()) == {"gamma_pos": (2.0,), "gamma_neg": (2.0,)}
    assert set(cyclical(Linear(0.0, 1.0)).values(Moment())) == {"xi", "gamma_hc", "gamma_pos", "gamma_neg"}
    assert Adjustment().values(Moment()) == NegativeTolerance().values(Moment()) == {}
    assert Adjustment((1.0, 2.0), tau=0.5, scale=3.0).values(Moment()) == {"offset": (0.5, 1.0), "scale": (3.0,)}
    assert Adjustment(margin=(1.0, 0.5), max_margin=0.2).values(Moment()) == {"true_margin": (0.2, 0.1)}
    assert NegativeTolerance((1.0,), 2.0).values(Moment()) == {"offset": (1.0,), "neg_scale": (2.0,)}
    assert logit_adjustment([3, 1, 0]).offset == pytest.approx([math.log(0.6), math.log(0.2), math.log(0.2)])
    assert margin_adjustment([16, 1, 0]).margin == pytest.approx([0.5, 1.0, 1.0])
    assert margin_adjustment([16, 1]).values(Moment()) == {"true_margin": (0.25, 0.5), "scale": (30.0,)}


@pytest.mark.parametrize(
    ("build", "legal", "wrong"),
    [
        (lambda v: Modulation(gamma_pos=v), [0.0], [-0.1]),
        (lambda v: Modulation(gamma_neg=v), [0.0], [-0.1]),
        (lambda v: Modulation(xi=v), [0.0, 1.0], [-0.1, 1.1]),
        (lambda v: Modulation(xi=0.5, gamma_hc=v), [0.0], [-0.1]),
        (lambda v: Adjustment((0.0, 1.0), tau=v), [-1.0, 0.0], [math.nan]),
        (lambda v: Adjustment(margin=(1.0, 0.5), max_margin=v), [0.0], [-0.1]),
        (lambda v: Adjustment(scale=v), [0.1], [0.0, -1.0]),
        (lambda v: NegativeTolerance(neg_scale=v), [0.1], [0.0, -1.0]),
        (lambda v: ByConfidence(((v, 5.0), (1.0, 3.0))), [0.0, 0.5], [-0.1, 1.0]),
        (lambda v: ByConfidence(((0.5, 5.0), (v, 3.0))), [1.0], [0.9, 1.1]),
        (lambda v: distribution_bias([1, 1], v, 0.05, 2.0), [1.5], [1.0]),
        (lambda v: distribution_bias([3, 7], v, 0.05, 2.0), [7.5], [7.0]),
        (lambda v: distribution_bias([3, 7], 10, 0.05, v), [0.1], [0.0]),
    ],
)
def test_ranges_of_parts(build, legal, wrong):
    for value in legal:
        build(value)
    for value in wrong:
        with pytest.raises(ValueError, match=r"must (be|hold)"):
            build(value)


def test_a_bias_of_labels():
    known, bias = distribution_bias([10, 0], 40, 0.05, 2.0)
    assert known == (10, 0)
    assert bias == pytest.approx([-0.05 / 2 * math.log(3), -0.05 / 2 * math.log(39)])


def test_the_state_of_a_loss_that_was_never_moved_is_its_start():
    start, moved = (eq.FocalLoss(gamma=Linear(1.0, 3.0)) for _ in range(2))
    moved.set_progress(1.0)
    moved.load_state_dict(start.state_dict())
    logits, targets = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    start.set_progress(0.0)
    assert_close(moved.eval()(logits, targets), start(logits, targets))
