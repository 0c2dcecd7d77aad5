"""Which curves show a loss: panels of numbers, without a word on how they are drawn.

Every curve comes from calling the real loss, see ``curves``. Figures of papers that are reproduced: 4a of Mukhoti et
al. 2020 (focal losses), 1 of Smith 2022 (cyclical focal loss), 2 and 3 of Ridnik et al. 2021 (asymmetric loss).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

import equipoise
from equipoise.catalogue import Entry, long_tail
from equipoise.cli.curves import (
    Response,
    confidence_for,
    cross_entropy,
    probabilities,
    region_response,
    sigmoid_response,
    softmax_logits,
    softmax_response,
)
from equipoise.cli.panels import Curve, Figure, Mark, Panel

__all__ = ["figure_of"]

TARGET_P = "probability p of the target class"
LABEL_P = "probability p of the label"
WEIGHT = "loss / cross-entropy"
GRADIENT = "gradient towards the target, −∂L/∂z"
SIGNED_GRADIENT = "gradient towards the target, ∓∂L/∂z"


def figure_of(entry: Entry) -> Figure:
    """The figure of a loss of the catalogue."""
    general = {"softmax": _softmax, "sigmoid": _sigmoid, "region": _region}
    return _SPECIAL.get(entry.name, general[entry.link])(entry)


# ---------------------------------------------------------------------------------------------------------------------
# General forms
# ---------------------------------------------------------------------------------------------------------------------


def _weight_and_gradient(
    responses: dict[str, tuple[Response, Response]], references: dict[str, Response], *, x_label: str = TARGET_P
) -> tuple[Panel, Panel]:
    """Weight and gradient of named responses, each given with that of cross-entropy at the same logits."""
    p = next(iter(references.values())).p
    one = Curve("cross-entropy", p, torch.ones_like(p), reference=True)
    weight = [Curve(name, p, response.loss / base.loss) for name, (response, base) in responses.items()]
    known = [Curve(name, p, base.gradient, reference=True) for name, base in references.items()]
    gradient = [Curve(name, p, response.gradient) for name, (response, _) in responses.items()]
    return (
        Panel("Weight", x_label, WEIGHT, (one, *weight)),
        Panel("Gradient", x_label, SIGNED_GRADIENT if x_label == LABEL_P else GRADIENT, (*known, *gradient)),
    )


def _figure(entry: Entry, responses: dict[str, Response], base: Response, *, ordered: bool = False) -> Figure:
    """Responses of a softmax loss on the same grid."""
    pairs = {name: (response, base) for name, response in responses.items()}
    return Figure(entry.name, entry.formula, _weight_and_gradient(pairs, {"cross-entropy": base}), ordered)


def _softmax(entry: Entry) -> Figure:
    p = probabilities()
    return _figure(entry, {entry.name: softmax_response(entry.build(2), p)}, cross_entropy(p))


def _itself(entry: Entry) -> Figure:
    """Cross-entropy, which is its own reference."""
    figure = (_softmax if entry.link == "softmax" else _sigmoid)(entry)
    kept = [tuple(curve for curve in panel.curves if not curve.reference) for panel in figure.panels]
    return replace(figure, panels=tuple(replace(panel, curves=c) for panel, c in zip(figure.panels, kept, strict=True)))


def _by_class(entry: Entry) -> Figure:
    """A head, a medium and a tail class of a loss that knows their counts."""
    p, loss = probabilities(), entry.build(3)
    responses = {
        name: softmax_response(loss, p, label=label, num_classes=3) for label, name in enumerate(_class_names())
    }
    figure = _figure(entry, responses, cross_entropy(p, num_classes=3), ordered=True)
    return replace(figure, panels=(replace(figure.panels[0], log=True), figure.panels[1]))


def _adjusted(entry: Entry) -> Figure:
    """The same for a loss that moves the logits: the probability is that of the logits as they come."""
    figure = _by_class(entry)
    x_label = "probability of the target class in softmax(z)"
    return replace(figure, panels=tuple(replace(panel, x_label=x_label) for panel in figure.panels))


def _class_names() -> list[str]:
    return [f"{kind}, n = {n}" for kind, n in zip(("head", "medium", "tail"), long_tail(3), strict=True)]


def _sigmoid(entry: Entry) -> Figure:
    p, loss = probabilities(), entry.build(1)
    sides = {"positives": True, "negatives": False}
    bce = {name: sigmoid_response(equipoise.BinaryCrossEntropyLoss(), p, positive=side) for name, side in sides.items()}
    pairs = {name: (sigmoid_response(loss, p, positive=side), bce[name]) for name, side in sides.items()}
    references = {f"cross-entropy, {name}": response for name, response in bce.items()}
    return Figure(entry.name, entry.formula, _weight_and_gradient(pairs, references, x_label=LABEL_P))


def _region(entry: Entry) -> Figure:
    """Loss, and the pull on a pixel compared with cross-entropy, for regions of different size."""
    p, loss = probabilities(100), entry.build(2)
    shares = (0.5, 0.1, 0.01)
    found = {f"region of {share:.0%} of the image": region_response(loss, p, share=share) for share in shares}
    base = [region_response(equipoise.CrossEntropyLoss(), p, share=share) for share in shares]
    value = [Curve(name, p, response.loss) for name, response in found.items()]
    pull = [
        Curve(name, p, response.gradient / known.gradient)
        for (name, response), known in zip(found.items(), base, strict=True)
    ]
    x_label = "median probability p of the right class"
    reference = Curve("cross-entropy", p, base[0].loss, reference=True)
    panels = (
        Panel("Loss", x_label, "loss L", (reference, *value), top=1.5),
        Panel(
            "Weight of a pixel in the region",
            x_label,
            "gradient / that of cross-entropy",
            (replace(reference, y=torch.ones_like(p)), *pull),
            log=True,
        ),
    )
    return Figure(entry.name, entry.formula, panels, ordered=True)


def _tversky(entry: Entry) -> Figure:
    figure = _region(entry)
    return replace(figure, subtitle=f"{figure.subtitle},  α = 0.3, β = 0.7")


# ---------------------------------------------------------------------------------------------------------------------
# Softmax losses with a figure of their own
# ---------------------------------------------------------------------------------------------------------------------


def _focal(entry: Entry) -> Figure:
    """The third panel is figure 4a of Mukhoti et al. 2020."""
    p, found = probabilities(), _focal_names(1.0, 2.0, 3.0, 5.0, 7.0)
    responses = {name: softmax_response(equipoise.FocalLoss(gamma), p) for name, (gamma, _) in found.items()}
    return _with_gradient_ratio(_figure(entry, responses, cross_entropy(p), ordered=True), found)


def _sample_dependent(entry: Entry) -> Figure:
    """The same for FLSD-53, whose exponent changes at p = 0.2."""
    p, found = probabilities(360, 0.2), _focal_names(5.0, 3.0)
    responses = {"FLSD-53": softmax_response(entry.build(2), p).broken_at(0.2)}
    responses |= {name: softmax_response(equipoise.FocalLoss(gamma), p) for name, (gamma, _) in found.items()}
    figure = _with_gradient_ratio(_figure(entry, responses, cross_entropy(p)), found)
    return replace(figure, panels=tuple(_broaden(panel, "FLSD-53") for panel in figure.panels))


def _broaden(panel: Panel, label: str) -> Panel:
    return replace(panel, curves=tuple(replace(curve, broad=curve.label == label) for curve in panel.curves))


def _focal_names(*gammas: float) -> dict[str, tuple[float, float]]:
    """Names of focal losses to (gamma, p0)."""
    points = [(gamma, confidence_for(gamma)) for gamma in gammas]
    return {f"γ = {gamma:g}, p₀ = {p0:.2f}": (gamma, p0) for gamma, p0 in points}


def _with_gradient_ratio(figure: Figure, found: dict[str, tuple[float, float]]) -> Figure:
    """Add g(p, γ), the gradient divided by that of cross-entropy, and the points p0 where it is 1."""
    base = figure.panels[1].curves[0]
    panel = Panel(
        "Gradient against cross-entropy, 1 at p₀",
        TARGET_P,
        "g(p, γ): gradient / that of cross-entropy",
        tuple(replace(curve, y=curve.y / base.y) for curve in figure.panels[1].curves),
        tuple(Mark(name, p0, 1.0) for name, (_, p0) in found.items()),
    )
    return replace(figure, panels=(*figure.panels, panel))


def _cyclical_focal(entry: Entry) -> Figure:
    """The first panel is figure 1 of Smith 2022: the weights at the low and at the high ends of the cycle."""
    low, high, higher = (equipoise.CyclicalFocalLoss(10, gamma_hc=gamma) for gamma in (2.0, 2.0, 4.0))
    for loss, progress in ((low, 0.25), (high, 0.0), (higher, 0.0)):
        loss.set_progress(progress)
    p = probabilities()
    responses = {
        "ξ = 0, γ_lc = 2: focal loss": softmax_response(low, p),
        "ξ = 1, γ_hc = 2": softmax_response(high, p),
        "ξ = 1, γ_hc = 4": softmax_response(higher, p),
    }
    return _figure(entry, responses, cross_entropy(p))


def _cyclical_asymmetric(entry: Entry) -> Figure:
    p, loss = probabilities(), equipoise.CyclicalAsymmetricLoss(10)
    responses = {}
    for name, progress in {"ξ = 1": 0.0, "ξ = 0.5": 0.125, "ξ = 0: asymmetric": 0.25}.items():
        loss.set_progress(progress)
        responses[name] = softmax_response(loss, p)
    return _capped(_figure(entry, responses, cross_entropy(p), ordered=True), 6.0)


def _capped(figure: Figure, top: float) -> Figure:
    """The figure with an upper end for the weight, which label smoothing lets grow without bound towards p = 1."""
    return replace(figure, panels=(replace(figure.panels[0], top=top), *figure.panels[1:]))


def _asymmetric_softmax(entry: Entry) -> Figure:
    """Beside plain label smoothing, whose pull towards the other classes does not fade."""
    p = probabilities()
    responses = {
        "γ₋ = 0: label smoothing 0.1": softmax_response(equipoise.AsymmetricSoftmaxLoss(gamma_neg=0.0), p),
        "γ₋ = 1": softmax_response(equipoise.AsymmetricSoftmaxLoss(gamma_neg=1.0), p),
        "γ₋ = 4": softmax_response(entry.build(2), p),
    }
    return _capped(_figure(entry, responses, cross_entropy(p), ordered=True), 3.0)


def _recall(entry: Entry) -> Figure:
    """A class of which the batch finds 10, 50 and 90 %."""
    p = probabilities()  # half of these rows are right
    responses = {}
    for recall in (0.1, 0.5, 0.9):
        more = round(len(p) * ((recall - 0.5) / (1 - recall) if recall > 0.5 else 0.5 / recall - 1))
        logits = softmax_logits(torch.full((more,), 0.9 if recall > 0.5 else 0.1, dtype=torch.float64))
        company = (logits, torch.zeros(more, dtype=torch.int64))
        responses[f"recall R = {recall:g}"] = softmax_response(entry.build(2), p, company=company)
    return _figure(entry, responses, cross_entropy(p), ordered=True)


def _precision(entry: Entry) -> Figure:
    """A class that is right in 10, 50 and 90 % of the rows of the batch where it is predicted."""
    p = probabilities()
    responses = {}
    for precision in (0.1, 0.5, 0.9):
        false = round(len(p) / 2 * (1 - precision) / precision)
        company = (softmax_logits(torch.full((false,), 0.9, dtype=torch.float64)), torch.ones(false, dtype=torch.int64))
        responses[f"precision P = {precision:g}"] = softmax_response(entry.build(2), p, company=company)
    return _figure(entry, responses, cross_entropy(p), ordered=True)


def _ohem(entry: Entry) -> Figure:
    """A batch whose probabilities are evenly spread."""
    keeps = (0.7, 0.5, 0.25)
    p = probabilities()
    responses = {f"keep {keep:.0%} of the rows": softmax_response(equipoise.OHEMLoss(keep), p) for keep in keeps}
    figure = _figure(entry, responses, cross_entropy(p), ordered=True)
    x_label = "p of the target class, evenly spread in the batch"
    return replace(figure, panels=tuple(replace(panel, x_label=x_label) for panel in figure.panels))


def _mmce(entry: Entry) -> Figure:
    """Gradients in a batch whose probabilities are evenly spread; the loss itself has no weight at one probability."""
    p = probabilities()
    base = cross_entropy(p)
    curves = [Curve("cross-entropy", p, base.gradient, reference=True)]
    for name, normalization in (("λ = 2, as published", "published"), ("λ = 2, by definition", "definition")):
        loss = equipoise.MMCELoss(2.0, normalization=normalization)
        curves.append(Curve(name, p, softmax_response(loss, p).gradient))
    x_label = "p of the target class, evenly spread in the batch"
    ratio = tuple(replace(curve, y=curve.y / base.gradient) for curve in curves)
    panels = (
        Panel("Gradient", x_label, GRADIENT, tuple(curves)),
        Panel("Gradient against cross-entropy", x_label, "gradient / that of cross-entropy", ratio),
    )
    return Figure(entry.name, entry.formula, panels)


def _ldam(entry: Entry) -> Figure:
    """Against the difference of two cosines, as the scale of 30 saturates any other probability."""
    gap = torch.linspace(-1.0, 1.0, 401, dtype=torch.float64)
    p, counts, scale = gap.sigmoid(), long_tail(3), 30.0
    no_margin = equipoise.LDAMLoss(counts[:2], max_margin=0.0, scale=scale)
    known = softmax_response(no_margin, p)
    found = {
        name: softmax_response(equipoise.LDAMLoss([count, counts[-1]], scale=scale), p)
        for name, count in zip(_class_names(), counts, strict=True)
    }
    x_label = "difference of two cosines, z_y − z_k"
    panels = []
    for title, y_label, field in (("Loss", "loss L", 1), ("Gradient", "gradient towards the target, −∂L/∂z / s", 2)):
        factor = 1.0 if field == 1 else 1.0 / scale
        curves = [Curve(name, gap, response[field] * factor) for name, response in found.items()]
        reference = Curve("cross-entropy of s z", gap, known[field] * factor, reference=True)
        panels.append(Panel(title, x_label, y_label, (reference, *curves)))
    return Figure(entry.name, entry.formula + ",  s = 30", tuple(panels), ordered=True)


# ---------------------------------------------------------------------------------------------------------------------
# Sigmoid losses with a figure of their own
# ---------------------------------------------------------------------------------------------------------------------


def _asymmetric(entry: Entry) -> Figure:
    """The second and third panels are figures 2 and 3 of Ridnik et al. 2021, both of negatives."""
    gamma, margin = 2.0, 0.2
    p = probabilities(360, margin)

    def negatives(gamma_neg: float, shift: float) -> Response:
        return sigmoid_response(equipoise.AsymmetricLoss(gamma_neg=gamma_neg, margin=shift), p, positive=False)

    ce, shifted, focused, both = negatives(0, 0), negatives(0, margin), negatives(gamma, 0), negatives(gamma, margin)
    losses = (
        Curve("cross-entropy", p, ce.loss, reference=True),
        Curve("focal loss, γ₋ = 2", p, focused.loss),
        Curve("probability-shifted, γ₋ = 2, m = 0.2", p, both.loss),
    )
    gradients = [Curve("CE: γ₋ = 0, m = 0", p, ce.gradient, reference=True), Curve("AF: γ₋ = 2", p, focused.gradient)]
    marks = []
    for name, exponent, response in (("CE+PS: m = 0.2", 0.0, shifted), ("ASL: γ₋ = 2, m = 0.2", gamma, both)):
        point = equipoise.mislabel_point(exponent, margin)
        label = f"{name}, p* = {point:.2f}"
        gradients.append(Curve(label, p, response.broken_at(margin).gradient))
        marks.append(Mark(label, point, 1.0))
    normalised = tuple(replace(curve, y=curve.y / curve.y.nan_to_num().max()) for curve in gradients)
    sides = {"positives": "positives, γ₊ = 0", "negatives": "negatives, γ₋ = 4, m = 0.05"}
    weight = _sigmoid(entry).panels[0]
    panels = (
        replace(weight, curves=tuple(replace(c, label=sides.get(c.label, c.label)) for c in weight.curves)),
        Panel("Loss of negatives", LABEL_P, "loss L₋", losses, top=3.0),
        Panel("Gradient of negatives", LABEL_P, "∂L₋/∂z, divided by its largest value", normalised, tuple(marks)),
    )
    return Figure(entry.name, entry.formula, panels)


def _distribution_balanced(entry: Entry) -> Figure:
    """A frequent and a rare label; in the samples where they are negative the label between them is positive."""
    p, loss = probabilities(), entry.build(3)
    bce = {side: sigmoid_response(equipoise.BinaryCrossEntropyLoss(), p, positive=side) for side in (True, False)}
    pairs: dict[str, tuple[Response, Response]] = {}
    for label, kind in ((0, _class_names()[0]), (2, _class_names()[2])):
        positive = sigmoid_response(loss, p, positive=True, label=label, num_labels=3)
        negative = sigmoid_response(loss, p, positive=False, label=label, num_labels=3, companion=1)
        pairs |= {f"positives, {kind}": (positive, bce[True]), f"negatives, {kind}": (negative, bce[False])}
    references = {"cross-entropy, positives": bce[True], "cross-entropy, negatives": bce[False]}
    return Figure(entry.name, entry.formula, _weight_and_gradient(pairs, references, x_label=LABEL_P))


_SPECIAL: dict[str, Callable[[Entry], Figure]] = {
    "AsymmetricLoss": _asymmetric,
    "AsymmetricSoftmaxLoss": _asymmetric_softmax,
    "BalancedSoftmaxLoss": _adjusted,
    "BinaryCrossEntropyLoss": _itself,
    "ClassBalancedLoss": _by_class,
    "CrossEntropyLoss": _itself,
    "CyclicalAsymmetricLoss": _cyclical_asymmetric,
    "CyclicalFocalLoss": _cyclical_focal,
    "DistributionBalancedLoss": _distribution_balanced,
    "FocalLoss": _focal,
    "InverseFrequencyLoss": _by_class,
    "LDAMLoss": _ldam,
    "LogitAdjustedLoss": _adjusted,
    "MMCELoss": _mmce,
    "OHEMLoss": _ohem,
    "PrecisionLoss": _precision,
    "RecallLoss": _recall,
    "SampleDependentFocalLoss": _sample_dependent,
    "TverskyLoss": _tversky,
}
