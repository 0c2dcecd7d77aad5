"""The numbers behind the figures against closed forms, written out here and nowhere in the package."""

import math

import pytest
import torch
from torch.testing import assert_close

import equipoise
from equipoise.catalogue import CATALOGUE, find
from equipoise.plotting.loss_figures import figure_of
from equipoise.plotting.loss_response import (
    confidence_for,
    cross_entropy,
    probabilities,
    region_response,
    sigmoid_response,
    softmax_response,
)

P = probabilities()


def curves(name: str, panel: int) -> dict[str, torch.Tensor]:
    return {curve.label: curve.y for curve in figure_of(find(name)).panels[panel].curves}


@pytest.mark.parametrize("num_classes", [2, 3, 10])
@pytest.mark.parametrize("label", [0, 1])
def test_cross_entropy_pulls_with_1_minus_p(num_classes, label):
    response = cross_entropy(P, label=label, num_classes=num_classes)
    assert_close(response.loss, -P.log())
    assert_close(response.gradient, 1 - P)


def test_binary_cross_entropy_pulls_both_ways():
    positive, negative = (
        sigmoid_response(equipoise.BinaryCrossEntropyLoss(), P, positive=side) for side in (True, False)
    )
    assert_close(positive.gradient, 1 - P)
    assert_close(negative.loss, -(1 - P).log())
    assert_close(negative.gradient, P)


@pytest.mark.parametrize("p0", [0.05, 0.2, 0.25, 0.4])
def test_the_focal_gradient_is_that_of_cross_entropy_at_gamma_for(p0):
    at = torch.tensor([p0], dtype=torch.float64)
    ratio = softmax_response(equipoise.FocalLoss(equipoise.gamma_for(p0)), at).gradient / (1 - at)
    assert_close(ratio, torch.ones_like(at), atol=1e-9, rtol=0)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0, 5.0, 20.0])
def test_confidence_for_is_the_inverse_of_gamma_for(gamma):
    assert equipoise.gamma_for(confidence_for(gamma)) == pytest.approx(gamma, rel=1e-9)


def test_the_loss_that_is_drawn_stays_as_it_was():
    loss = equipoise.RecallLoss(2, momentum=0.5)
    softmax_response(loss, P)
    assert loss.reduction == "valid_mean"
    assert loss.batch_weights[0].batches.tolist() == [0, 0]


# Figures of the papers ------------------------------------------------------------------------------------------------


def test_figure_4a_of_focal_loss_for_calibration():
    panel = figure_of(find("focal")).panels[-1]
    for gamma, curve in zip((1, 2, 3, 5, 7), panel.curves[1:], strict=True):
        assert curve.label.startswith(f"γ = {gamma},")
        assert_close(curve.y, (1 - P) ** gamma - gamma * P * (1 - P) ** (gamma - 1) * P.log())  # proposition 1
    assert_close(panel.curves[0].y, torch.ones_like(P))
    assert [mark.curve for mark in panel.marks] == [curve.label for curve in panel.curves[1:]]
    for mark, gamma in zip(panel.marks, (1, 2, 3, 5, 7), strict=True):
        assert equipoise.gamma_for(mark.x) == pytest.approx(gamma)
        assert mark.y == 1.0


def test_sample_dependent_focal_loss_changes_its_exponent_at_a_fifth():
    _, weight, _, ratio = figure_of(find("flsd")).panels
    for panel in (weight, ratio):
        _, flsd, gamma_5, gamma_3 = panel.curves
        below, above = flsd.x < 0.2, flsd.x > 0.2
        assert flsd.label == "FLSD-53"
        assert flsd.y[~below & ~above].isnan().all()
        assert_close(flsd.y[below], gamma_5.y[below])
        assert_close(flsd.y[above], gamma_3.y[above])
    p, y = weight.curves[1].x, weight.curves[1].y
    assert_close(y[p < 0.2], (1 - p[p < 0.2]) ** 5)
    assert_close(y[p > 0.2], (1 - p[p > 0.2]) ** 3)
    assert [round(mark.x, 2) for mark in ratio.marks] == [0.2, 0.25]


def test_figure_1_of_cyclical_focal_loss():
    weights = list(curves("cfl", 0).values())
    assert_close(weights, [torch.ones_like(P), (1 - P) ** 2, (1 + P) ** 2, (1 + P) ** 4])


def test_the_high_confidence_term_pulls_the_wrong_way_from_an_exponent_of_3_6_on():
    lowest = {}
    for gamma in (3.0, 3.5, 3.6, 4.0):
        loss = equipoise.CyclicalFocalLoss(10, gamma_hc=gamma)
        loss.set_progress(0.0)
        lowest[gamma] = float(softmax_response(loss, P[P < 0.9]).gradient.min())
    assert lowest[3.5] > 0 > lowest[3.6]  # as its entry in the catalogue says
    assert float(curves("cfl", 1)["ξ = 1, γ_hc = 4"].min()) == pytest.approx(lowest[4.0])


def test_figures_2_and_3_of_asymmetric_loss():
    p = probabilities(360, 0.2)
    p_m = (p - 0.2).clamp(min=0)
    drawn = list(curves("asl", 1).values())
    assert_close(drawn, [-(1 - p).log(), -(p**2) * (1 - p).log(), -(p_m**2) * (1 - p_m).log()])

    panel = figure_of(find("asl")).panels[2]
    asl = panel.curves[-1]
    equation_8 = (p_m**2 / (1 - p_m) - 2 * p_m * (1 - p_m).log()) * p * (1 - p)
    apart = p != 0.2  # where the line is broken
    assert_close(asl.y[apart], (equation_8 / equation_8.max())[apart])
    assert asl.y[p < 0.2].max() == 0
    for mark, gamma in zip(panel.marks, (0.0, 2.0), strict=True):
        (curve,) = (curve for curve in panel.curves if curve.label == mark.curve)
        assert mark.x == equipoise.mislabel_point(gamma, 0.2)
        assert float(curve.x[curve.y.nan_to_num().argmax()]) == pytest.approx(mark.x, abs=1 / 360)
    assert [curve.label.partition(":")[0] for curve in panel.curves] == ["CE", "AF", "CE+PS", "ASL"]


# Other losses ---------------------------------------------------------------------------------------------------------


def test_precision_weights_are_1_minus_the_precision():
    _, *weights = curves("precision", 0).values()
    assert_close(weights, [torch.full_like(P, 1 - rate) for rate in (0.1, 0.5, 0.9)])


def test_recall_weights_are_1_minus_the_recall():
    _, *gradients = curves("recall", 1).values()
    assert_close(gradients, [(1 - rate) * (1 - P) for rate in (0.1, 0.5, 0.9)])
    (at_least_one_error, plain) = figure_of(find("recall")).panels[0].curves
    assert_close(plain.y, 1 - plain.x)
    assert_close(at_least_one_error.y, (1 - plain.x).clamp(min=1 / 20))


def test_inverse_frequency_weights_are_flat_and_inverse():
    _, head, medium, tail = curves("inverse", 0).values()
    assert_close(medium, 10 * head)
    assert_close(tail, 100 * head)
    assert_close(head, head[:1].expand_as(head))


def test_logit_adjustment_moves_the_odds_by_the_prior():
    _, head, _, _ = curves("la", 1).values()
    others = (1 - P) / 2 * (1000 + 100)  # two classes share the rest
    assert_close(head, others / (others + P * 10_000))


def test_ldam_is_undecided_at_the_margin():
    panel = figure_of(find("ldam")).panels[1]
    tail = panel.curves[-1]
    assert float(tail.y[(tail.x - 0.5).abs().argmin()]) == pytest.approx(0.5)


def test_ohem_keeps_the_hardest_share():
    _, *weights = curves("ohem", 0).values()
    for keep, weight in zip((0.7, 0.5, 0.25), weights, strict=True):
        assert weight[P.lt(keep - 0.005)].eq(1).all()
        assert weight[P.gt(keep)].eq(0).all()


def test_distribution_balanced_weighs_a_lonely_positive_by_the_plateau_of_its_sigmoid():
    label, weight = list(curves("db", 0).items())[1]
    assert label == "positives, head, n = 10000"
    bias = -0.05 * math.log(20_000 / 10_000 - 1)  # 0
    p = (P.logit() + bias).sigmoid()
    expected = 2 * (torch.sigmoid(torch.tensor(10 * (1 - 0.2), dtype=torch.float64)) + 0.1) * (1 - p) ** 2
    assert_close(weight, expected)


def test_a_small_region_weighs_more_than_its_pixels():
    p = torch.tensor([0.9], dtype=torch.float64)
    for name in ("dice", "iou", "tversky"):
        loss = find(name).build(2)
        half, tenth, hundredth = (
            region_response(loss, p, fraction=fraction).gradient / fraction for fraction in (0.5, 0.1, 0.01)
        )
        assert half * 0.5 < tenth * 0.1 < hundredth * 0.01


def test_region_gradients_follow_the_loss():
    p = torch.tensor([0.6, 0.600001], dtype=torch.float64)
    loss = equipoise.DiceLoss(classes=[1])
    response = region_response(loss, p, fraction=1.0)  # every pixel belongs to the region
    slope = -response.loss.diff() / p.logit().diff()
    assert_close(slope, 200 * response.gradient[:1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_loss_has_a_figure(entry):
    figure = figure_of(entry)
    assert figure.title == entry.name
    assert len(figure.panels) in (2, 3, 4)
    for panel in figure.panels:
        assert panel.title
        assert panel.x_label
        assert panel.y_label
        labels = [curve.label for curve in panel.curves]
        assert len(set(labels)) == len(labels)
        assert {mark.curve for mark in panel.marks} <= set(labels)
        for curve in panel.curves:
            assert curve.x.shape == curve.y.shape
            assert curve.y.isnan().sum() <= 1  # a break at most
            assert not curve.y.isinf().any()
            assert not panel.log or curve.y.gt(0).all()
