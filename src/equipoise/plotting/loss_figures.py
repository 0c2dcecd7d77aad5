"""The curves of each loss, for ``equipoise losses NAME --plot`` and the documentation page.

Every curve is computed by calling the loss, see ``loss_response``. Figures of papers: 4a of Mukhoti et al. 2020
(focal losses), 1 of Smith 2022 (cyclical focal loss), 2 and 3 of Ridnik et al. 2021 (asymmetric loss).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

import equipoise
from equipoise.catalogue import Entry, long_tail
from equipoise.losses import SigmoidLoss
from equipoise.plotting.loss_response import (
    Response,
    confidence_for,
    cross_entropy,
    probabilities,
    region_response,
    sigmoid_response,
    softmax_logits,
    softmax_response,
)
from equipoise.plotting.panels import Curve, LossFigure, Mark, Panel
from equipoise.schedules import Cyclical, Moment
from equipoise.weights import RecallWeights, effective_number, inverse_frequency

__all__ = ["figure_of"]

TARGET_P = "probability p of the target class"
LABEL_P = "probability p of the label"
UNSHIFTED_P = "probability of the target class in softmax(z)"
SPREAD_P = "p of the target class, evenly spread in the batch"
REGION_P = "median probability p of the right class"
WEIGHT = "loss / cross-entropy"
GRADIENT = "gradient towards the target, −∂L/∂z"
RELATIVE_GRADIENT = "gradient / that of cross-entropy"
SIGNED_GRADIENT = "gradient towards the target, ∓∂L/∂z"
EXPONENTS = (0.0, 1.0, 2.0, 4.0)


def figure_of(entry: Entry) -> LossFigure:
    """The figure of a loss of the catalogue."""
    general = {"softmax": _softmax, "sigmoid": _sigmoid, "region": _region}
    return _SPECIAL.get(entry.name, general[entry.link])(entry)


def _extended(figure: LossFigure, *panels: Panel) -> LossFigure:
    return replace(figure, panels=(*figure.panels, *panels))


def _loss_of_weight(weight: Panel) -> Panel:
    """The loss itself, from a panel that shows it relative to cross-entropy."""
    curves = tuple(replace(curve, y=-curve.x.log() * curve.y) for curve in weight.curves)
    return Panel("Loss", TARGET_P, "loss L", curves, top=4.0)


def _loss_and_gradient(
    entry: Entry, responses: dict[str, Response], *, x_label: str, gradient: str, top: float
) -> LossFigure:
    """The loss and its gradient for named responses."""
    losses = tuple(Curve(name, response.p, response.loss) for name, response in responses.items())
    gradients = tuple(Curve(name, response.p, response.gradient) for name, response in responses.items())
    panels = (Panel("Loss", x_label, "loss L", losses, top=top), Panel("Gradient", x_label, gradient, gradients))
    return LossFigure(entry.name, entry.formula, panels)


# ---------------------------------------------------------------------------------------------------------------------
# General forms
# ---------------------------------------------------------------------------------------------------------------------


def _weight_and_gradient(
    responses: dict[str, tuple[Response, Response]], references: dict[str, Response], *, x_label: str = TARGET_P
) -> tuple[Panel, Panel]:
    """Weight and gradient of named responses, each with the response of cross-entropy at the same logits."""
    p = next(iter(references.values())).p
    one = Curve("cross-entropy", p, torch.ones_like(p), reference=True)
    weight = [Curve(name, p, response.loss / base.loss) for name, (response, base) in responses.items()]
    known = [Curve(name, p, base.gradient, reference=True) for name, base in references.items()]
    gradient = [Curve(name, p, response.gradient) for name, (response, _) in responses.items()]
    return (
        Panel("Weight", x_label, WEIGHT, (one, *weight)),
        Panel("Gradient", x_label, SIGNED_GRADIENT if x_label == LABEL_P else GRADIENT, (*known, *gradient)),
    )


def _figure(entry: Entry, responses: dict[str, Response], base: Response, *, ordered: bool = False) -> LossFigure:
    """Responses of a softmax loss on the same grid."""
    pairs = {name: (response, base) for name, response in responses.items()}
    return LossFigure(entry.name, entry.formula, _weight_and_gradient(pairs, {"cross-entropy": base}), ordered)


def _softmax(entry: Entry) -> LossFigure:
    p = probabilities()
    return _figure(entry, {entry.name: softmax_response(entry.build(2), p)}, cross_entropy(p))


def _cross_entropy(entry: Entry) -> LossFigure:
    """Ten classes, without and with label smoothing."""
    p = probabilities()
    responses = {
        f"ε = {epsilon:g}": softmax_response(equipoise.CrossEntropyLoss(label_smoothing=epsilon), p, num_classes=10)
        for epsilon in (0.0, 0.1, 0.3)
    }
    return _loss_and_gradient(entry, responses, x_label=TARGET_P, gradient=GRADIENT, top=4.0)


def _binary_cross_entropy(entry: Entry) -> LossFigure:
    """Positives, negatives, and positives with a weight of 3."""
    p = probabilities()
    plain, heavy = equipoise.BinaryCrossEntropyLoss(), equipoise.BinaryCrossEntropyLoss(pos_weight=[3.0])
    responses = {
        "positives": sigmoid_response(plain, p, positive=True),
        "negatives": sigmoid_response(plain, p, positive=False),
        "positives, pos_weight = 3": sigmoid_response(heavy, p, positive=True),
    }
    return _loss_and_gradient(entry, responses, x_label=LABEL_P, gradient=SIGNED_GRADIENT, top=5.0)


def _brier(entry: Entry) -> LossFigure:
    """The loss and the gradient beside those of cross-entropy."""
    figure = _softmax(entry)
    return replace(figure, panels=(_loss_of_weight(figure.panels[0]), figure.panels[1]))


def _by_class(entry: Entry) -> LossFigure:
    """A head, a medium and a tail class of a loss with class counts."""
    p, loss = probabilities(), entry.build(3)
    responses = {
        name: softmax_response(loss, p, label=label, num_classes=3) for label, name in enumerate(_class_names())
    }
    figure = _figure(entry, responses, cross_entropy(p, num_classes=3), ordered=True)
    return replace(figure, panels=(replace(figure.panels[0], log=True), figure.panels[1]))


def _by_count(entry: Entry) -> LossFigure:
    """The same, and class weights by number of samples relative to a class of 10,000."""
    n = torch.tensor(sorted({round(10 ** (4 * k / 59)) for k in range(60)}), dtype=torch.float64)

    def relative(weights: torch.Tensor) -> torch.Tensor:
        return weights.double() / weights.double()[-1]

    curves = [Curve("1/n: InverseFrequencyLoss", n, relative(inverse_frequency(n.tolist())), reference=True)]
    for beta in (0.9999, 0.999, 0.99):
        curves.append(Curve(f"β = {beta:g}", n, relative(effective_number(n.tolist(), beta))))
    title, y_label = "Weight by number of samples", "weight / that of n = 10,000"
    return _extended(
        _by_class(entry), Panel(title, "training samples n of the class", y_label, tuple(curves), counts=True)
    )


def _adjusted(entry: Entry) -> LossFigure:
    """A head, a medium and a tail class of a loss that shifts the logits, over the probability before the shift."""
    figure = _by_class(entry)
    return replace(figure, panels=tuple(replace(panel, x_label=UNSHIFTED_P) for panel in figure.panels))


def _logit_adjusted(entry: Entry) -> LossFigure:
    """The same, and the gradient of a sample of the tail class by tau."""
    p, counts = probabilities(), long_tail(3)
    curves = [Curve("cross-entropy", p, cross_entropy(p, num_classes=3).gradient, reference=True)]
    for tau in (0.5, 1.0, 2.0):
        loss = equipoise.LogitAdjustedLoss(counts, tau=tau)
        curves.append(Curve(f"τ = {tau:g}", p, softmax_response(loss, p, label=2, num_classes=3).gradient))
    return _extended(_adjusted(entry), Panel("Tail class by strength", UNSHIFTED_P, GRADIENT, tuple(curves)))


def _class_names() -> list[str]:
    return [f"{kind}, n = {n}" for kind, n in zip(("head", "medium", "tail"), long_tail(3), strict=True)]


def _sigmoid(entry: Entry) -> LossFigure:
    p, loss = probabilities(), entry.build(1)
    sides = {"positives": True, "negatives": False}
    bce = {name: sigmoid_response(equipoise.BinaryCrossEntropyLoss(), p, positive=side) for name, side in sides.items()}
    pairs = {name: (sigmoid_response(loss, p, positive=side), bce[name]) for name, side in sides.items()}
    references = {f"cross-entropy, {name}": response for name, response in bce.items()}
    return LossFigure(entry.name, entry.formula, _weight_and_gradient(pairs, references, x_label=LABEL_P))


def _negatives_by_exponent(names: str, losses: Mapping[float, SigmoidLoss], title: str, y_label: str) -> Panel:
    """Gradients of negatives by exponent, each named by ``names``."""
    p = probabilities()
    curves = [
        Curve(names.format(gamma), p, sigmoid_response(loss, p, positive=False).gradient)
        for gamma, loss in losses.items()
    ]
    return Panel(title, LABEL_P, y_label, tuple(curves))


def _binary_focal(entry: Entry) -> LossFigure:
    losses = {gamma: equipoise.BinaryFocalLoss(gamma) for gamma in EXPONENTS}
    title, y_label = "Negatives by exponent", "gradient ∂L/∂z of a negative"
    return _extended(_sigmoid(entry), _negatives_by_exponent("γ = {:g}", losses, title, y_label))


def _region(entry: Entry) -> LossFigure:
    """The loss, and the gradient of a pixel relative to cross-entropy, for regions of different size."""
    p, loss = probabilities(100), entry.build(2)
    fractions = (0.5, 0.1, 0.01)
    names = [f"region of {fraction:.0%} of the image" for fraction in fractions]
    responses = [region_response(loss, p, fraction=fraction) for fraction in fractions]
    base = [region_response(equipoise.CrossEntropyLoss(), p, fraction=fraction) for fraction in fractions]
    value = [Curve(name, p, response.loss) for name, response in zip(names, responses, strict=True)]
    weight = [
        Curve(name, p, response.gradient / known.gradient)
        for name, response, known in zip(names, responses, base, strict=True)
    ]
    reference = Curve("cross-entropy", p, base[0].loss, reference=True)
    one = replace(reference, y=torch.ones_like(p))
    panels = (
        Panel("Loss", REGION_P, "loss L", (reference, *value), top=1.5),
        Panel("Weight of a pixel in the region", REGION_P, RELATIVE_GRADIENT, (one, *weight), log=True),
    )
    return LossFigure(entry.name, entry.formula, panels, ordered=True)


def _tversky(entry: Entry) -> LossFigure:
    """The same, and a region of a tenth of the image by the weights of the two errors."""
    figure, p = _region(entry), probabilities(100)
    base = region_response(equipoise.CrossEntropyLoss(), p, fraction=0.1)
    curves = [Curve("cross-entropy", p, torch.ones_like(p), reference=True)]
    for alpha, beta, name in ((0.5, 0.5, ": Dice"), (1.0, 1.0, ": soft IoU"), (0.3, 0.7, ""), (0.1, 0.9, "")):
        response = region_response(equipoise.TverskyLoss(alpha, beta), p, fraction=0.1)
        curves.append(Curve(f"α = {alpha:g}, β = {beta:g}{name}", p, response.gradient / base.gradient))
    title = "Weight of a pixel in a region of 10 %, by weights"
    panel = Panel(title, REGION_P, RELATIVE_GRADIENT, tuple(curves), log=True)
    return _extended(replace(figure, formula=f"{figure.formula},  α = 0.3, β = 0.7"), panel)


# ---------------------------------------------------------------------------------------------------------------------
# Softmax losses with special figures
# ---------------------------------------------------------------------------------------------------------------------


def _focal(entry: Entry) -> LossFigure:
    """The last panel is figure 4a of Mukhoti et al. 2020."""
    p, names = probabilities(), _focal_names(1.0, 2.0, 3.0, 5.0, 7.0)
    responses = {name: softmax_response(equipoise.FocalLoss(gamma), p) for name, (gamma, _) in names.items()}
    return _with_gradient_ratio(_figure(entry, responses, cross_entropy(p), ordered=True), names)


def _sample_dependent(entry: Entry) -> LossFigure:
    """The same for FLSD-53, whose exponent changes at p = 0.2."""
    p, names = probabilities(360, 0.2), _focal_names(5.0, 3.0)
    responses = {"FLSD-53": softmax_response(entry.build(2), p).broken_at(0.2)}
    responses |= {name: softmax_response(equipoise.FocalLoss(gamma), p) for name, (gamma, _) in names.items()}
    figure = _with_gradient_ratio(_figure(entry, responses, cross_entropy(p)), names)
    return replace(figure, panels=tuple(_broaden(panel, "FLSD-53") for panel in figure.panels))


def _broaden(panel: Panel, label: str) -> Panel:
    return replace(panel, curves=tuple(replace(curve, broad=curve.label == label) for curve in panel.curves))


def _focal_names(*gammas: float) -> dict[str, tuple[float, float]]:
    """Names of focal losses to (gamma, p0)."""
    points = [(gamma, confidence_for(gamma)) for gamma in gammas]
    return {f"γ = {gamma:g}, p₀ = {p0:.2f}": (gamma, p0) for gamma, p0 in points}


def _with_gradient_ratio(figure: LossFigure, names: dict[str, tuple[float, float]]) -> LossFigure:
    """Add the loss, and g(p, γ), the gradient relative to cross-entropy, with the points p0 where it is 1."""
    weight, gradient = figure.panels
    base = gradient.curves[0]
    ratio = Panel(
        "Gradient against cross-entropy, 1 at p₀",
        TARGET_P,
        "g(p, γ): gradient / that of cross-entropy",
        tuple(replace(curve, y=curve.y / base.y) for curve in gradient.curves),
        tuple(Mark(name, p0, 1.0) for name, (_, p0) in names.items()),
    )
    return replace(figure, panels=(_loss_of_weight(weight), weight, gradient, ratio))


def _with_schedule(figure: LossFigure) -> LossFigure:
    """Add the weight of the high-confidence term over 100 epochs."""
    epochs = torch.arange(100, dtype=torch.float64)
    curves = []
    for factor in (4.0, 2.0):
        schedule = Cyclical(factor)
        weights = [Moment(float(epoch) / 100, float(epoch), 100).value(schedule) for epoch in epochs]
        curves.append(Curve(f"factor f = {factor:g}", epochs, torch.tensor(weights, dtype=torch.float64)))
    return _extended(figure, Panel("Schedule", "epoch of 100", "weight ξ of the high-confidence term", tuple(curves)))


def _cyclical_focal(entry: Entry) -> LossFigure:
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
    return _with_schedule(_figure(entry, responses, cross_entropy(p)))


def _cyclical_asymmetric(entry: Entry) -> LossFigure:
    p, loss = probabilities(), equipoise.CyclicalAsymmetricLoss(10)
    responses = {}
    for name, progress in {"ξ = 1": 0.0, "ξ = 0.5": 0.125, "ξ = 0: asymmetric": 0.25}.items():
        loss.set_progress(progress)
        responses[name] = softmax_response(loss, p)
    return _with_schedule(_capped(_figure(entry, responses, cross_entropy(p), ordered=True), 6.0))


def _capped(figure: LossFigure, top: float) -> LossFigure:
    """The figure with an upper limit of the weight, which is unbounded towards p = 1 due to label smoothing."""
    return replace(figure, panels=(replace(figure.panels[0], top=top), *figure.panels[1:]))


def _asymmetric_softmax(entry: Entry) -> LossFigure:
    """With plain label smoothing for comparison, whose gradient towards the other classes does not vanish."""
    p = probabilities()
    responses = {
        "γ₋ = 0: label smoothing 0.1": softmax_response(equipoise.AsymmetricSoftmaxLoss(gamma_neg=0.0), p),
        "γ₋ = 1": softmax_response(equipoise.AsymmetricSoftmaxLoss(gamma_neg=1.0), p),
        "γ₋ = 4": softmax_response(entry.build(2), p),
    }
    return _capped(_figure(entry, responses, cross_entropy(p), ordered=True), 3.0)


def _recall(entry: Entry) -> LossFigure:
    """The weight of a class by its recall in the batch, and gradients at a recall of 10, 50 and 90 %."""
    p = probabilities()  # half of these rows are predicted correctly
    responses = {}
    for recall in (0.1, 0.5, 0.9):
        more = round(len(p) * ((recall - 0.5) / (1 - recall) if recall > 0.5 else 0.5 / recall - 1))
        logits = softmax_logits(torch.full((more,), 0.9 if recall > 0.5 else 0.1, dtype=torch.float64))
        company = (logits, torch.zeros(more, dtype=torch.int64))
        responses[f"recall R = {recall:g}"] = softmax_response(entry.build(2), p, company=company)
    figure = _figure(entry, responses, cross_entropy(p), ordered=True)
    return replace(figure, panels=(_weight_by_recall(), figure.panels[1]))


def _weight_by_recall(rows: int = 20) -> Panel:
    """Weights of a class with ``rows`` rows in the batch."""
    labels, valid = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.bool)
    right = torch.arange(rows + 1)
    curves = []
    for errors in (1.0, 0.0):
        weights = []
        for count in right.tolist():
            logits = torch.eye(2, dtype=torch.float64)[[0] * count + [1] * (rows - count)]
            weights.append(RecallWeights(2, min_errors=errors)(logits, labels, valid, False)[0])
        name = f"{rows} rows of the class, min_errors = {errors:g}"
        curves.append(Curve(name, right.double() / rows, torch.stack(weights).double(), broad=errors == 1.0))
    y_label = f"weight 1 − R, at least 1/{rows}"
    return Panel("Weight of a class", "recall R of the class in the batch", y_label, tuple(curves))


def _precision(entry: Entry) -> LossFigure:
    """Gradients at a precision of the class in the batch of 10, 50 and 90 %."""
    p = probabilities()
    responses = {}
    for precision in (0.1, 0.5, 0.9):
        false = round(len(p) / 2 * (1 - precision) / precision)
        company = (softmax_logits(torch.full((false,), 0.9, dtype=torch.float64)), torch.ones(false, dtype=torch.int64))
        responses[f"precision P = {precision:g}"] = softmax_response(entry.build(2), p, company=company)
    return _figure(entry, responses, cross_entropy(p), ordered=True)


def _ohem(entry: Entry) -> LossFigure:
    """A batch with evenly spaced probabilities."""
    keeps = (0.7, 0.5, 0.25)
    p = probabilities()
    responses = {f"keep {keep:.0%} of the rows": softmax_response(equipoise.OHEMLoss(keep), p) for keep in keeps}
    figure = _figure(entry, responses, cross_entropy(p), ordered=True)
    return replace(figure, panels=tuple(replace(panel, x_label=SPREAD_P) for panel in figure.panels))


def _mmce(entry: Entry) -> LossFigure:
    """Gradients in a batch with evenly spaced probabilities; the loss is not a sum over rows."""
    p = probabilities()
    base = cross_entropy(p)
    curves = [Curve("cross-entropy", p, base.gradient, reference=True)]
    for name, normalization in (("λ = 2, as published", "published"), ("λ = 2, by definition", "definition")):
        loss = equipoise.MMCELoss(2.0, normalization=normalization)
        curves.append(Curve(name, p, softmax_response(loss, p).gradient))
    ratio = tuple(replace(curve, y=curve.y / base.gradient) for curve in curves)
    panels = (
        Panel("Gradient", SPREAD_P, GRADIENT, tuple(curves)),
        Panel("Gradient against cross-entropy", SPREAD_P, RELATIVE_GRADIENT, ratio),
    )
    return LossFigure(entry.name, entry.formula, panels)


def _ldam(entry: Entry) -> LossFigure:
    """Against the difference of two cosines, because the scale of 30 saturates the probability."""
    gap = torch.linspace(-1.0, 1.0, 401, dtype=torch.float64)
    p, counts, scale = gap.sigmoid(), long_tail(3), 30.0
    no_margin = equipoise.LDAMLoss(counts[:2], max_margin=0.0, scale=scale)
    known = softmax_response(no_margin, p)
    responses = {
        name: softmax_response(equipoise.LDAMLoss([count, counts[-1]], scale=scale), p)
        for name, count in zip(_class_names(), counts, strict=True)
    }
    x_label = "difference of two cosines, z_y − z_k"
    panels = []
    for title, y_label, field in (("Loss", "loss L", 1), ("Gradient", "gradient towards the target, −∂L/∂z / s", 2)):
        factor = 1.0 if field == 1 else 1.0 / scale
        curves = [Curve(name, gap, response[field] * factor) for name, response in responses.items()]
        reference = Curve("cross-entropy of s z", gap, known[field] * factor, reference=True)
        panels.append(Panel(title, x_label, y_label, (reference, *curves)))
    return LossFigure(entry.name, entry.formula + ",  s = 30", tuple(panels), ordered=True)


# ---------------------------------------------------------------------------------------------------------------------
# Sigmoid losses with special figures
# ---------------------------------------------------------------------------------------------------------------------


def _asymmetric(entry: Entry) -> LossFigure:
    """The second and third panels are figures 2 and 3 of Ridnik et al. 2021; the last varies the exponent."""
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
    by_exponent = {gamma: equipoise.AsymmetricLoss(gamma_neg=gamma) for gamma in EXPONENTS}
    panels = (
        replace(weight, curves=tuple(replace(c, label=sides.get(c.label, c.label)) for c in weight.curves)),
        Panel("Loss of negatives", LABEL_P, "loss L₋", losses, top=3.0),
        Panel("Gradient of negatives", LABEL_P, "∂L₋/∂z, divided by its largest value", normalised, tuple(marks)),
        _negatives_by_exponent("γ₋ = {:g}, m = 0.05", by_exponent, "Gradient of negatives by exponent", "∂L₋/∂z"),
    )
    return LossFigure(entry.name, entry.formula, panels)


def _distribution_balanced(entry: Entry) -> LossFigure:
    """A frequent and a rare label; where they are negative, the label of medium frequency is positive."""
    p, loss = probabilities(), entry.build(3)
    bce = {side: sigmoid_response(equipoise.BinaryCrossEntropyLoss(), p, positive=side) for side in (True, False)}
    pairs: dict[str, tuple[Response, Response]] = {}
    for label, kind in ((0, _class_names()[0]), (2, _class_names()[2])):
        positive = sigmoid_response(loss, p, positive=True, label=label, num_labels=3)
        negative = sigmoid_response(loss, p, positive=False, label=label, num_labels=3, companion=1)
        pairs |= {f"positives, {kind}": (positive, bce[True]), f"negatives, {kind}": (negative, bce[False])}
    references = {"cross-entropy, positives": bce[True], "cross-entropy, negatives": bce[False]}
    return LossFigure(entry.name, entry.formula, _weight_and_gradient(pairs, references, x_label=LABEL_P))


_SPECIAL: dict[str, Callable[[Entry], LossFigure]] = {
    "AsymmetricLoss": _asymmetric,
    "AsymmetricSoftmaxLoss": _asymmetric_softmax,
    "BalancedSoftmaxLoss": _adjusted,
    "BinaryCrossEntropyLoss": _binary_cross_entropy,
    "BinaryFocalLoss": _binary_focal,
    "BrierLoss": _brier,
    "ClassBalancedLoss": _by_count,
    "CrossEntropyLoss": _cross_entropy,
    "CyclicalAsymmetricLoss": _cyclical_asymmetric,
    "CyclicalFocalLoss": _cyclical_focal,
    "DistributionBalancedLoss": _distribution_balanced,
    "FocalLoss": _focal,
    "InverseFrequencyLoss": _by_count,
    "LDAMLoss": _ldam,
    "LogitAdjustedLoss": _logit_adjusted,
    "MMCELoss": _mmce,
    "OHEMLoss": _ohem,
    "PrecisionLoss": _precision,
    "RecallLoss": _recall,
    "SampleDependentFocalLoss": _sample_dependent,
    "TverskyLoss": _tversky,
}
