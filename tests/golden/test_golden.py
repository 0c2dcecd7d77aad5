"""Every comparable golden case agrees to 1e-9 in float64, value and gradient.

A comparison returns None for a case that is not comparable; ``REASONS`` says why. The counts are checked, so that no
case is skipped unnoticed.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.losses import SigmoidLoss, SoftmaxLoss, focal
from equipoise.losses.adjust import NegativeTolerance, margin_adjustment
from equipoise.losses.named import distribution_bias
from equipoise.schedules import Cyclical, Parabolic
from equipoise.weights import Deferred, RecallWeights, effective_number, median_frequency
from tests.golden.cases import HERE, Case, load

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}

REASONS = {
    "asl_multilabel": "extreme logits: the published clamp at 1e-8 stops loss and gradient of the worst elements",
    "focal_fixed": "LDAM-DRW with weights lets the class weight into p; recall-semseg puts the factor on the mean",
    "recall_batch": "published crashes; momentum over absent classes and the extra precision term are not in the paper",
    "recall_ema": "gradient with gamma 1: the published factor is detached (values are compared)",
    "mmce": "the squared, unweighted mmce_m is not trained with; NaN and crash of the published code",
    "cb_weights": "a class without samples: 0 here, infinite or 1 there",
    "gamma_lambertw": "p0 >= 0.5 has only the trivial root",
    "ohem": "the published selection takes a fraction of the wrong axis; flat values with ignored pixels count them",
    "cfl_schedule": "eta outside [0, 1]",
    "bbn_schedule": "the mixing itself is compared; loss and logits belong to the two branches",
    "balanced_softmax": "a class without samples has an infinite logit there",
    "lovasz_softmax": "compared with the region losses",
    "soft_iou": "compared with the region losses",
}


def run(loss: torch.nn.Module, case: Case, targets: Tensor | None = None, **call: Tensor) -> tuple[Tensor, Tensor]:
    logits = torch.tensor(case.arrays["logits"], requires_grad=True)
    value = loss(logits, torch.tensor(case.arrays["targets"]) if targets is None else targets, **call)
    (grad,) = torch.autograd.grad(value.sum(), logits)
    return value.detach(), grad


def agree(case: Case, value: Tensor, grad: Tensor | None, names: tuple[str, str] = ("loss", "grad")) -> None:
    np.testing.assert_allclose(value.numpy(), case.outputs[names[0]], **TOLERANCE)
    if grad is not None:
        np.testing.assert_allclose(grad.numpy(), case.outputs[names[1]], **TOLERANCE)


def asl_multilabel(case: Case) -> bool:
    if case.input == "extreme":
        return False
    p = case.params
    options = {"gamma_neg": p["gamma_neg"], "margin": p["clip"], "detach_focus": p["disable_torch_grad_focal_loss"]}
    agree(case, *run(eq.AsymmetricLoss(p["gamma_pos"], reduction="sum", **options), case))
    return True


def asl_single_label(case: Case) -> bool:
    p = case.params
    loss = eq.AsymmetricSoftmaxLoss(
        p["gamma_pos"], gamma_neg=p["gamma_neg"], label_smoothing=p["eps"], reduction=p["reduction"]
    )
    agree(case, *run(loss, case))
    return True


def cfl(case: Case) -> bool:
    p = case.params
    loss = eq.CyclicalAsymmetricLoss(
        p["epochs"],
        gamma_hc=p["gamma_hc"],
        gamma_pos=p["gamma_pos"],
        gamma_neg=p["gamma_neg"],
        factor=p["factor"],
        label_smoothing=p["eps"],
    )
    if p["epoch"] >= p["epochs"]:
        return False
    loss.set_epoch(p["epoch"])
    targets = torch.tensor(case.arrays["targets"])
    agree(case, *run(loss, case, targets.argmax(1) if targets.is_floating_point() else targets))
    return True


def cfl_schedule(case: Case) -> bool:
    p, compared = case.params, False
    for epoch, eta in zip(case.outputs["epoch"], case.outputs.get("eta_timm", []), strict=False):
        if epoch >= p["epochs"] or not 0 <= eta <= 1:
            continue
        schedule = Cyclical(p["factor"])
        assert schedule(schedule.progress_at(epoch, p["epochs"])) == pytest.approx(eta, abs=1e-12)
        compared = True
    return compared


def cfl_repo_asl_fl(case: Case) -> bool:
    p = case.params
    pos, neg = (p["gamma"], p["gamma"]) if p["fn"] == "ASL_FocalLoss" else (p["gamma_pos"], p["gamma_neg"])
    agree(case, *run(eq.AsymmetricSoftmaxLoss(pos, gamma_neg=neg, label_smoothing=p["eps"]), case))
    return True


def focal_fixed(case: Case) -> bool:
    p = case.params
    if p["fn"] == "recall_semseg" or p.get("weight"):
        return False
    agree(case, *run(eq.FocalLoss(p["gamma"], reduction=p["reduction"]), case))
    return True


def focal_adaptive(case: Case) -> bool:
    p = case.params
    table = ((0.2, 5.0), (0.5, 3.0), (1.0, float(p["gamma"])))
    agree(case, *run(eq.SampleDependentFocalLoss(table, reduction=p["reduction"]), case))
    return True


def gamma_lambertw(case: Case) -> bool:
    gammas = [eq.gamma_for(float(p0)) for p0 in case.outputs["p0"] if p0 < 0.5]
    np.testing.assert_allclose(gammas, case.outputs["gamma"][case.outputs["p0"] < 0.5], rtol=1e-7)
    return True


def mmce(case: Case) -> bool:
    if case.params["fn"] == "mmce_m" or case.official_error or case.nonfinite:
        return False
    value, grad = run(eq.MMCELoss(case.params.get("lamda", 1.0)), case)
    if "objective" not in case.params:  # the calibration error alone
        plain_value, plain_grad = run(eq.CrossEntropyLoss(), case)
        value, grad = value - plain_value, grad - plain_grad
    agree(case, value, grad)
    return True


def brier(case: Case) -> bool:
    agree(case, *run(eq.BrierLoss(), case))
    return True


def label_smoothing(case: Case) -> bool:
    classes = case.arrays["logits"].shape[1]
    factor = classes / (classes - 1) if case.params["fn"] == "paper_form" else 1.0
    agree(case, *run(eq.CrossEntropyLoss(label_smoothing=case.params["smoothing"] * factor), case))
    return True


def recall_batch(case: Case) -> bool:
    p = case.params
    if case.official_error or p["fn"] == "recall+precision function" or p.get("weight") or p.get("momentum"):
        return False
    classes = case.arrays["logits"].shape[1]
    reduction = "valid_mean" if p["fn"] == "class" else "mean"
    agree(case, *run(eq.RecallLoss(classes, ignore_index=p.get("ignore_index", 255), reduction=reduction), case))
    if "paper_loss_mean" in case.outputs:
        value, _ = run(eq.RecallLoss(classes, ignore_index=255, min_errors=0.0), case)
        np.testing.assert_allclose(value.item(), case.outputs["paper_loss_mean"], **TOLERANCE)
    return True


def recall_ema(case: Case) -> bool:
    p = case.params
    classes, gamma = case.arrays["logits"].shape[-1], p["gamma"]
    modulation = focal(gamma) if gamma else None
    momentum = p["alpha"] if p["EMA"] else None
    weights = RecallWeights(classes, momentum=momentum, init="published", floor_average=True)
    loss = SoftmaxLoss(modulation, weight=weights, reduction="valid_mean")
    steps = [p["step"]] if "step" in p else range(len(case.arrays["logits"]))
    for i, step in enumerate(steps):
        logits = torch.tensor(case.arrays["logits"][step], requires_grad=True)
        value = loss(logits, torch.tensor(case.arrays["targets"][step]))
        (grad,) = torch.autograd.grad(value, logits)
        several = "step" not in p
        expected = {name: case.outputs[name][i] if several else case.outputs[name] for name in ("loss", "grad")}
        np.testing.assert_allclose(value.item(), expected["loss"], **TOLERANCE)
        if not gamma:
            np.testing.assert_allclose(grad, expected["grad"], **TOLERANCE)
        if several:
            np.testing.assert_allclose(1.0 - weights.recall, case.outputs["weight"][i], **TOLERANCE)
    return True


def ohem(case: Case) -> bool:
    compared = False
    loss = eq.OHEMLoss(float(case.params["thresh"]), ignore_index=255)
    if "loss" in case.outputs and case.input == "cls":
        agree(case, *run(loss, case))
        compared = True
    if "flat_loss" in case.outputs and not (case.arrays["targets"] == 255).any():
        agree(case, *run(loss, case), names=("flat_loss", "flat_grad"))
        compared = True
    return compared


def ldam(case: Case) -> bool:
    p = case.params
    loss = eq.LDAMLoss(p["cls_num_list"], max_margin=p["max_m"], scale=float(p["s"]), weight=p["weight"])
    agree(case, *run(loss, case))
    margins = margin_adjustment(p["cls_num_list"], p["max_m"])
    np.testing.assert_allclose(np.array(margins.margin) * p["max_m"], case.outputs["margins"], **TOLERANCE)
    return True


def cb_weights(case: Case) -> bool:
    p = case.params
    counts, expected = p["counts"], case.outputs["weights"]
    if 0 in counts:
        return False
    if "median" in p["fn"]:
        weights = median_frequency(counts)
    elif "scheduler" in p or "drw_epoch" in p:
        first, second = p["betas"]
        epoch = p["epoch"] - p.get("epoch_base", 0)
        start, last = effective_number(counts, first), effective_number(counts, second)
        late = Deferred((last / start).tolist(), start_epoch=p["drw_epoch"])
        loss = eq.CrossEntropyLoss([start, late], epochs=200)
        loss.set_epoch(epoch)
        weights = loss.hyper_double
        always = p.get("scheduler") == "default"
        weights = start if always else weights
    else:
        total = sum(counts)
        weights = effective_number(counts, (total - 1) / total if isinstance(p["beta"], str) else p["beta"])
    np.testing.assert_allclose(weights, expected, **TOLERANCE)
    return True


def cb_focal_sigmoid(case: Case) -> bool:
    p = case.params
    weights = effective_number(p["counts"], p["beta"])
    targets = torch.tensor(case.arrays["targets"])
    one_hot = torch.nn.functional.one_hot(targets, len(weights)).double()
    loss = eq.BinaryFocalLoss(p["gamma"], reduction="batch_mean")
    agree(case, *run(loss, case, one_hot, element_weight=weights[targets].unsqueeze(1)))
    return True


def bbn_schedule(case: Case) -> bool:
    progress = (case.params["epoch"] - 1) / case.params["div_epoch"]
    assert Parabolic()(progress) == pytest.approx(case.outputs["l"], abs=1e-12)
    return True


def torchvision_sigmoid_focal(case: Case) -> bool:
    p = case.params
    alpha = p["alpha"] if p["alpha"] >= 0 else None
    agree(case, *run(eq.BinaryFocalLoss(p["gamma"], alpha=alpha, reduction=p["reduction"]), case))
    return True


def balanced_softmax(case: Case) -> bool:
    if case.input == "zero_count":
        return False
    agree(case, *run(eq.BalancedSoftmaxLoss(case.params["sample_per_class"], reduction=case.params["reduction"]), case))
    return True


def distribution_balanced(case: Case) -> bool:
    p = case.params
    counts, total = case.arrays["class_freq"], case.arrays["class_freq"] + case.arrays["neg_class_freq"]
    samples = float(total[0])
    focus, regular = p["focal"], p["logit_reg"]
    if p["reweight_func"] == "rebalance":
        weights = p["map_param"]
        loss = eq.DistributionBalancedLoss(
            counts,
            samples,
            alpha=weights["alpha"],
            beta=weights["beta"],
            mu=weights["gamma"],
            neg_scale=regular["neg_scale"],
            init_bias=regular["init_bias"],
            gamma=focus["gamma"],
            balance=focus["balance_param"],
            reduction="none",
        )
        agree(case, *run(loss, case))
        return True
    # other weightings of the same elements: ours are given at call time
    targets = torch.tensor(case.arrays["targets"]).double()
    frequency = torch.tensor(counts, dtype=torch.float64)
    bias = distribution_bias(counts, samples, regular.get("init_bias", 0.0), regular.get("neg_scale", 1.0))[1]
    loss = SigmoidLoss(
        focal(focus["gamma"]),
        adjustment=NegativeTolerance(offset=bias, neg_scale=regular.get("neg_scale", 1.0)),
        reduction="none",
    )
    weight = torch.ones_like(targets)
    if p["reweight_func"] == "inv":
        weight = (samples / frequency).expand_as(targets)
    elif p["reweight_func"] == "CB":  # the mean effective-number weight of the sample's labels
        by_class = effective_number(frequency, p["CB_loss"]["CB_beta"], normalize=None)
        weight = ((targets * by_class).sum(1, keepdim=True) / targets.sum(1, keepdim=True)).expand_as(targets)
    agree(case, *run(loss, case, element_weight=focus["balance_param"] * weight))
    return True


GROUPS = {
    function.__name__: function
    for function in (
        asl_multilabel,
        asl_single_label,
        cfl,
        cfl_schedule,
        cfl_repo_asl_fl,
        focal_fixed,
        focal_adaptive,
        gamma_lambertw,
        mmce,
        brier,
        label_smoothing,
        recall_batch,
        recall_ema,
        ohem,
        ldam,
        cb_weights,
        cb_focal_sigmoid,
        bbn_schedule,
        torchvision_sigmoid_focal,
        balanced_softmax,
        distribution_balanced,
    )
}

COMPARED = {
    "asl_multilabel": 46,
    "asl_single_label": 42,
    "cfl": 69,
    "cfl_schedule": 8,
    "cfl_repo_asl_fl": 32,
    "focal_fixed": 29,
    "focal_adaptive": 20,
    "gamma_lambertw": 1,
    "mmce": 8,
    "brier": 5,
    "label_smoothing": 24,
    "recall_batch": 8,
    "recall_ema": 7,
    "ohem": 12,
    "ldam": 8,
    "cb_weights": 34,
    "cb_focal_sigmoid": 32,
    "bbn_schedule": 9,
    "torchvision_sigmoid_focal": 32,
    "balanced_softmax": 6,
    "distribution_balanced": 4,
}


@pytest.mark.parametrize("group", GROUPS)
def test_agrees_with_published_code(group: str) -> None:
    cases = load(group)
    compared = sum(GROUPS[group](case) for case in cases)
    assert compared == COMPARED[group]
    assert compared == len(cases) or group in REASONS


def test_the_index_says_where_every_file_comes_from() -> None:
    """Number of cases, and repository, commit and files of the published code, as the file itself has them."""
    rows = re.findall(r"^\| (\w+)\.npz \| (\d+) \| (.*) \|$", (HERE / "INDEX.md").read_text(encoding="utf-8"), re.M)
    listed = {name: (int(cases), sources.split("; ")) for name, cases, sources in rows}
    assert len(rows) == len(listed)
    assert set(listed) == {path.stem for path in HERE.glob("*.npz")}
    for name, (cases, sources) in listed.items():
        meta = json.loads(str(np.load(HERE / f"{name}.npz", allow_pickle=False)["meta"]))
        assert cases == len(meta["cases"]), name
        matches = [
            re.fullmatch(r"\[(\S+)\]\(https://github\.com/\1\)@(\w+): (`[^`]+\.pyc?`(?:, )?)+", one) for one in sources
        ]
        assert [f"{one[1].replace('/', '+')}@{one[2]}" for one in matches if one] == meta["source"], name
