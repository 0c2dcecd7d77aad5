"""Saturated logits, half precision, and batches with nothing in them: finite, precise, and never NaN."""

import itertools
import math

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from equipoise import (
    AsymmetricLoss,
    AsymmetricSoftmaxLoss,
    BinaryFocalLoss,
    BrierLoss,
    CrossEntropyLoss,
    FocalLoss,
    LDAMLoss,
    RecallLoss,
    SampleDependentFocalLoss,
    SigmoidLoss,
    SoftmaxLoss,
)
from equipoise.catalogue import CATALOGUE
from equipoise.kernels import use
from equipoise.losses import AdaptiveAsymmetry, Adjustment, ByConfidence, asymmetric, cyclical, focal, logit_adjustment
from equipoise.schedules import Constant
from tests.losses.helpers import (
    IGNORED,
    REDUCTIONS,
    REGION,
    SIGMOID,
    SOFTMAX,
    UNKNOWN,
    batch_of,
    dense_of,
    each,
    indices_of,
    logits_of,
    make,
    multilabel_of,
    sigmoid_reference,
    softmax_reference,
    value_and_gradient,
)

C = 3
COUNTS = [1000, 50, 2]
HALF = (torch.float16, torch.bfloat16)
DTYPES = (*HALF, torch.float32, torch.float64)
gammas = pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 1.0, 2.0, 5.0])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)

SOFTMAX_FORMS = {
    "focal": lambda g, **o: FocalLoss(g, **o),
    "focal per class": lambda g, **o: FocalLoss(gamma=[g, 2.0, 0.0], **o),
    "FLSD": lambda g, **o: SampleDependentFocalLoss(((0.2, 5.0), (0.5, g), (1.0, g)), **o),
    "cyclical": lambda g, **o: SoftmaxLoss(cyclical(0.3, 3.0, g, g), **o),
    "high confidence": lambda g, **o: SoftmaxLoss(cyclical(1.0, g, 2.0, 2.0), **o),
    "asymmetric": lambda g, **o: AsymmetricSoftmaxLoss(g, gamma_neg=g, **o),
    "recall": lambda g, **o: SoftmaxLoss(focal(g), weight=RecallLoss(C).batch_weights[0], **o),
    "adjusted": lambda g, **o: SoftmaxLoss(focal(g), adjustment=logit_adjustment(COUNTS), **o),
    "LDAM": lambda g, **o: SoftmaxLoss(focal(g), adjustment=Adjustment(margin=(0.2, 0.4, 1.0), scale=30.0), **o),
    "Brier": lambda g, **o: BrierLoss(**o),
}
softmax_forms = pytest.mark.parametrize("form", SOFTMAX_FORMS)


def grid(sizes, dtype):
    """Every row of C logits taken from ``sizes`` with every target."""
    rows = torch.tensor(list(itertools.product(sizes, repeat=C)), dtype=torch.float64).to(dtype)
    targets = torch.arange(C).repeat_interleave(len(rows))
    return rows.repeat(C, 1), targets


def largest(dtype):
    return 6e4 if dtype is torch.float16 else 1e4


# ---------------------------------------------------------------------------------------------------------------------
# Finite everywhere
# ---------------------------------------------------------------------------------------------------------------------


def is_sound(loss, logits, targets, dtype):
    value, gradient = value_and_gradient(loss, logits, targets)
    assert value.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert gradient.dtype is dtype
    assert value.isfinite().all()
    assert (value >= 0).all()
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0
    return value, gradient


@softmax_forms
@gammas
@dtypes
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_losses_are_finite(form, gamma, dtype, smoothing):
    size = largest(dtype)
    logits, targets = grid([-size, -20.0, 0.0, 20.0, size], dtype)
    loss = SOFTMAX_FORMS[form](gamma, label_smoothing=smoothing, reduction="none")
    is_sound(loss, logits, targets, dtype)
    is_sound(loss, logits, F.one_hot(targets, C).to(dtype), dtype)
    is_sound(loss, logits, dense_of(logits.shape, ignored=0.1).to(dtype), dtype)


@gammas
@dtypes
@pytest.mark.parametrize("margin", [0.0, 1e-4, 0.05])
@pytest.mark.parametrize("detached", [False, True])
def test_sigmoid_losses_are_finite(gamma, dtype, margin, detached):
    size = largest(dtype)
    steps = torch.tensor([-size, -200.0, -90.0, -20.0, -9.2102, -2.9444, 0.0, 9.0, 20.0, 90.0, 200.0, size])
    logits = steps.to(dtype).repeat(4, 1)
    targets = torch.tensor([0.0, 1.0, 0.5, UNKNOWN]).unsqueeze(1).expand_as(logits)
    for loss in (
        AsymmetricLoss(gamma, gamma_neg=gamma, margin=margin, detach_focus=detached, reduction="none"),
        SigmoidLoss(cyclical(0.3, 3.0, gamma, gamma), margin=margin, detach_focus=detached, reduction="none"),
        SigmoidLoss(focal(ByConfidence(((0.2, 5.0), (1.0, gamma)))), margin=margin, reduction="none"),
    ):
        value, gradient = is_sound(loss, logits, targets, dtype)
        assert torch.equal(value[3], torch.zeros_like(value[3]))
        assert torch.equal(gradient[3], torch.zeros_like(gradient[3]))


@each(CATALOGUE)
@dtypes
def test_every_loss_is_finite(entry, dtype):
    size = largest(dtype)
    logits, targets = grid([-size, 0.0, size], dtype)
    if entry.link == "sigmoid":
        targets = multilabel_of(logits.shape, ignored=0.1)
    if entry.link == "region":  # an image of 81 pixels
        logits, targets = logits.T.unsqueeze(0), targets.unsqueeze(0)
    value, gradient = value_and_gradient(entry.build(C), logits, targets)
    assert value.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert gradient.dtype is dtype
    assert value.isfinite()
    assert value > 0
    assert gradient.isfinite().all()


@gammas
@dtypes
def test_certain_mistakes_keep_their_whole_loss_and_gradient(gamma, dtype):
    """At p_y = 0 the loss is the difference of the logits, the gradient that of cross-entropy: no clamping."""
    size = largest(dtype) / 2
    logits, targets = torch.tensor([[-size, size, 0.0]]).to(dtype), torch.tensor([0])
    for form in ("focal", "FLSD", "asymmetric"):
        value, gradient = value_and_gradient(SOFTMAX_FORMS[form](gamma, label_smoothing=0.0), logits, targets)
        assert value.item() == 2 * logits[0, 1].item()
        assert gradient.tolist() == [[-1.0, 1.0, 0.0]]
    value, gradient = value_and_gradient(BinaryFocalLoss(gamma), logits[:, :1], torch.ones(1, 1))
    assert value.item() == -logits[0, 0].item()
    assert gradient.tolist() == [[-1.0]]
    value, gradient = value_and_gradient(BinaryFocalLoss(gamma), -logits[:, :1], torch.zeros(1, 1))
    assert value.item() == -logits[0, 0].item()
    assert gradient.tolist() == [[1.0]]


# ---------------------------------------------------------------------------------------------------------------------
# Precise in float32, from certain to impossible
# ---------------------------------------------------------------------------------------------------------------------

# A float32 exponential of x is wrong by |x| eps, and |x| is at most 87 where it does not vanish; two or three of them
# are multiplied. Below the smallest normal number, nothing is asked for.
RELATIVE = 3 * 87 * torch.finfo(torch.float32).eps
VANISHED = 1e-35  # float32 has a smallest normal number of 1.2e-38, where powers stop, and a loss is a sum of terms
SIZES = [-100.0, -30.0, -4.0, 0.0, 4.5, 30.0, 100.0]


@pytest.fixture(params=["auto", "reference"])
def kernels(request):
    """The same precision of the kernels and of their definition."""
    with use(request.param):
        yield request.param


each_kernel = pytest.mark.usefixtures("kernels")


def close_by_row(actual, truth, slack=VANISHED):
    """Relative to the largest number of each row: terms of one row may cancel."""
    excess = (actual.double() - truth).abs() - RELATIVE * truth.abs().amax(1, keepdim=True) - slack
    assert excess.max() <= 0, f"{excess.max():.2e} beyond the tolerance at {divmod(int(excess.argmax()), C)}"


@each_kernel
@gammas
@pytest.mark.parametrize("xi", [0.0, 0.3])
def test_index_targets_have_relative_precision(gamma, xi):
    logits, targets = grid(SIZES, torch.float32)
    loss = SoftmaxLoss(cyclical(xi, 2.0, gamma, gamma), reduction="none")
    parts = {"gamma_pos": gamma, "gamma_neg": gamma, "xi": xi, "gamma_hc": 2.0}
    truth = value_and_gradient(lambda z, t: softmax_reference(z, t, **parts)[0], logits.double(), targets)
    actual = value_and_gradient(loss, logits, targets)
    assert truth[0].min() < 1e-30  # q^gamma near p = 1 is there too
    assert_close(actual[0].double(), truth[0], rtol=RELATIVE, atol=VANISHED)
    if xi == 0:
        assert_close(actual[1].double(), truth[1], rtol=RELATIVE, atol=VANISHED)
    else:  # the high-confidence gradient changes its sign on the way
        close_by_row(actual[1], truth[1])


@each_kernel
@gammas
@pytest.mark.parametrize("table", [False, True], ids=["number", "by confidence"])
def test_float64_has_relative_precision_too(gamma, table):
    logits, targets = grid([*SIZES, 300.0, -300.0], torch.float64)
    bounds = ((0.2, 5.0), (1.0, gamma))
    loss = FocalLoss(ByConfidence(bounds) if table else gamma, reduction="none")
    parts = {"gamma_pos": bounds if table else gamma}
    truth = value_and_gradient(lambda z, t: softmax_reference(z, t, **parts)[0], logits, targets)
    # the autograd of the truth itself subtracts numbers that are up to a thousand times larger
    assert_close(value_and_gradient(loss, logits, targets), truth, rtol=1e-11, atol=1e-300)


@each_kernel
@gammas
@pytest.mark.parametrize("form", ["focal", "cyclical", "asymmetric"])
@pytest.mark.parametrize("kind", ["index", "one-hot", "dense"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothed_and_dense_rows_are_precise(gamma, form, kind, smoothing, kernels):
    logits, targets = grid(SIZES, torch.float32)
    targets = {
        "index": lambda: targets,
        "one-hot": lambda: F.one_hot(targets, C).float(),
        "dense": lambda: dense_of(logits.shape, ignored=0.1).float(),
    }[kind]()
    parts = {
        "focal": {"gamma_pos": gamma},
        "cyclical": {"gamma_pos": gamma, "gamma_neg": gamma, "xi": 0.3, "gamma_hc": 3.0},
        "asymmetric": {"gamma_pos": gamma, "gamma_neg": gamma},
    }[form]
    loss = SOFTMAX_FORMS[form](gamma, label_smoothing=smoothing, reduction="none")
    wide = targets.double() if targets.is_floating_point() else targets
    truth = value_and_gradient(
        lambda z, t: softmax_reference(z, t, smoothing=smoothing, **parts)[0], logits.double(), wide
    )
    actual = value_and_gradient(loss, logits, targets)
    assert_close(actual[0].double(), truth[0], rtol=RELATIVE, atol=VANISHED)
    # dense gradients are asked for absolute precision here, and for more further down; smoothing is dense in reference
    relative = kind == "index" and (kernels == "auto" or smoothing == 0.0)
    close_by_row(actual[1], truth[1], VANISHED if relative else 10 * torch.finfo(torch.float32).eps)


@each_kernel
@gammas
def test_margins_and_adjustments_are_precise(gamma):
    logits, targets = grid([-3.0, -1.0, -0.1, 0.0, 0.15, 1.0, 3.0], torch.float32)
    margin, offset = (0.2, 0.4, 1.0), (0.5, -0.25, 1.0)
    loss = SoftmaxLoss(focal(gamma), adjustment=Adjustment(offset, 1.0, margin, 0.5, 30.0), reduction="none")
    parts = {"gamma_pos": gamma, "offset": offset, "margin": [0.5 * m for m in margin], "scale": 30.0}
    truth = value_and_gradient(lambda z, t: softmax_reference(z, t, **parts)[0], logits.double(), targets)
    actual = value_and_gradient(loss, logits, targets)
    # the adjusted logits themselves, up to 130, are rounded: each factor of the loss is off by 130 eps (1 + gamma)
    rounding = {"rtol": 4 * 130 * (1 + gamma) * torch.finfo(torch.float32).eps, "atol": VANISHED}
    assert_close(actual[0].double(), truth[0], **rounding)
    assert_close(actual[1].double(), truth[1], **rounding)


@each_kernel
@gammas
@pytest.mark.parametrize("margin", [0.0, 1e-4, 0.05])
@pytest.mark.parametrize("xi", [0.0, 0.3])
def test_sigmoid_elements_have_relative_precision(gamma, margin, xi):
    logits = torch.tensor([-100.0, -30.0, -15.0, -8.0, -1.0, 0.0, 1.0, 8.0, 15.0, 30.0, 60.0, 100.0]).repeat(2, 1)
    targets = torch.tensor([[0.0], [1.0]]).expand_as(logits)
    modulation = cyclical(xi, 2.0, gamma, gamma) if xi else asymmetric(gamma, gamma)
    loss = SigmoidLoss(modulation, margin=margin, reduction="none")
    parts = {"gamma_pos": gamma, "gamma_neg": gamma, "xi": xi, "gamma_hc": 2.0, "margin": margin}
    truth = value_and_gradient(lambda z, t: sigmoid_reference(z, t, **parts)[0], logits.double(), targets.double())
    actual = value_and_gradient(loss, logits, targets)
    assert_close(actual[0].double(), truth[0], rtol=RELATIVE, atol=VANISHED)
    assert_close(actual[1].double(), truth[1], rtol=RELATIVE, atol=VANISHED)


@each_kernel
@gammas
@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_sigmoid_elements_of_float64_have_relative_precision_too(gamma, margin):
    """Also where 1 + exp(z) is about to round to exp(z)."""
    steps = [-300.0, -45.0, -25.0, -3.0, 0.0, 3.0, 15.0, 21.0, 25.0, 30.0, 36.0, 45.0, 300.0]
    logits = torch.tensor(steps, dtype=torch.float64).repeat(2, 1)
    targets = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand_as(logits)
    loss = SigmoidLoss(asymmetric(gamma, gamma), margin=margin, reduction="none")
    value = loss(logits, targets)
    _, gradient = value_and_gradient(lambda z, t: loss(z, t).sum(), logits, targets)
    with mpmath.workdps(200):
        for row, target in enumerate((0, 1)):
            for column, step in enumerate(steps):
                term = binary_term(target, gamma, margin)
                assert value[row, column].item() == pytest.approx(float(term(step)), rel=1e-12, abs=1e-300)
                slope = mpmath.diff(term, step)
                assert gradient[row, column].item() == pytest.approx(float(slope), rel=1e-11, abs=1e-300)


def binary_term(target, gamma, margin):
    """The asymmetric loss of a logit, in as many digits as mpmath works with."""

    def term(z):
        p = 1 / (1 + mpmath.exp(-z))
        if target:
            return -((1 - p) ** gamma) * mpmath.log(p)
        p = max(p - mpmath.mpf(margin), mpmath.mpf(0))
        return -((p**gamma if gamma else 1) * mpmath.log(1 - p))

    return term


@each_kernel
@gammas
@pytest.mark.parametrize("margin", [0.0, 1e-4, 0.05])
def test_elements_with_an_adaptive_margin_have_relative_precision(gamma, margin):
    """Also where it is 0 or so small that 1 - p + m vanishes: the loss of a negative is linear there."""
    logits = torch.tensor([-100.0, -30.0, -8.0, -1.0, 0.0, 1.0, 8.0, 15.0, 30.0, 60.0, 100.0, 200.0]).repeat(2, 1)
    targets = torch.tensor([[0.0], [1.0]]).expand_as(logits)
    adaptive = AdaptiveAsymmetry(0.5, start=gamma, margin=margin, margin_step=0.01)
    loss = SigmoidLoss(focal(gamma), asymmetry=adaptive, reduction="none").eval()
    parts = {"gamma_pos": gamma, "gamma_neg": gamma, "margin": margin}
    wide = logits.double()
    truth = value_and_gradient(lambda z, t: sigmoid_reference(z, t, **parts)[0], wide, targets.double())
    actual = value_and_gradient(loss, logits, targets)
    assert_close(actual[0].double(), truth[0], rtol=RELATIVE, atol=VANISHED)
    assert_close(actual[1].double(), truth[1], rtol=RELATIVE, atol=VANISHED)


@each_kernel
@pytest.mark.parametrize("kind", ["index", "dense"])
def test_probabilities_one_ulp_from_certain_keep_their_digits(kind):
    """q^gamma where 1 - p would be one rounding error: gap of 15 to 17, q about 1e-7."""
    gaps = torch.linspace(15.0, 17.0, 41, dtype=torch.float64).float()
    logits = torch.stack([gaps, torch.zeros(41), torch.zeros(41) - 2], 1)
    targets = torch.zeros(41, dtype=torch.long)
    targets = F.one_hot(targets, C).float() if kind == "dense" else targets
    wide = targets.double() if kind == "dense" else targets
    for gamma in (0.5, 1.0, 2.0, 3.7):
        actual = value_and_gradient(FocalLoss(gamma, reduction="none"), logits, targets)
        parts = {"gamma_pos": gamma}
        truth = value_and_gradient(lambda z, t, parts=parts: softmax_reference(z, t, **parts)[0], logits.double(), wide)
        assert_close(actual[0].double(), truth[0], rtol=RELATIVE, atol=0)
        assert_close(actual[1].double(), truth[1], rtol=RELATIVE, atol=0)


@gammas
@dtypes
def test_impossible_classes_pull_with_nothing(gamma, dtype):
    """p^gamma log p tends to 0 with p for every gamma above 0; for gamma 0 it is the log itself."""
    size = largest(dtype)
    logits, targets = torch.tensor([[size, 0.0, -size]]).to(dtype), torch.tensor([0])
    loss = AsymmetricSoftmaxLoss(0.0, gamma_neg=gamma, label_smoothing=0.3)
    value, gradient = value_and_gradient(loss, logits, targets)
    width = logits[0, 0].item()
    assert_close(value.item(), 0.0 if gamma else 0.1 * 3 * width, rtol=1e-6, atol=1e-30)
    expected = [[0.0, 0.0, 0.0]] if gamma else [[0.2, -0.1, -0.1]]
    assert_close(gradient.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-2, atol=1e-30)


# ---------------------------------------------------------------------------------------------------------------------
# Half precision and autocast
# ---------------------------------------------------------------------------------------------------------------------


@each(CATALOGUE)
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_half_logits_are_computed_in_float32(entry, dtype, mode):
    logits, targets = batch_of(entry, (4, C, 3), ignored=0.2, dtype=dtype)
    value, gradient = value_and_gradient(entry.build(C).train(mode), logits, targets)
    expected, full = value_and_gradient(entry.build(C).train(mode), logits.float(), targets)
    assert value.dtype is torch.float32
    assert gradient.dtype is dtype
    assert torch.equal(value, expected)
    assert_half(entry, gradient, full)


def assert_half(entry, gradient, full):
    """Rounded once; the two terms of MMCELoss, each a path of its own to the logits, are rounded before their sum."""
    if entry.name == "MMCELoss":
        slack = 1.5 * torch.finfo(gradient.dtype).eps * full.abs().max()
        assert ((gradient.float() - full).abs() <= slack).all()
    else:
        assert torch.equal(gradient, full.to(gradient.dtype))


@each(SOFTMAX)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_targets_may_be_more_precise_than_the_logits(entry, dtype):
    logits, _ = batch_of(entry, (5, C), dtype=dtype)
    targets = dense_of((5, C), ignored=0.2).float()
    actual = value_and_gradient(entry.build(C), logits, targets)
    expected = value_and_gradient(entry.build(C), logits.float(), targets)
    assert torch.equal(actual[0], expected[0])
    assert_half(entry, actual[1], expected[1])


@each(CATALOGUE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_changes_nothing(entry, dtype):
    logits, targets = batch_of(entry, (4, C, 3), ignored=0.2, dtype=dtype)
    value, gradient = value_and_gradient(entry.build(C), logits, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast, other = value_and_gradient(entry.build(C), logits, targets)
    assert cast.dtype is torch.float32
    assert torch.equal(cast, value)
    assert torch.equal(other, gradient)


@each(CATALOGUE)
def test_a_model_trains_under_autocast(entry):
    model = torch.nn.Linear(6, C)
    _, targets = batch_of(entry, (8, C))
    features = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(features)
        value = entry.build(C)(logits, targets)
    assert logits.dtype is torch.bfloat16
    assert value.dtype is torch.float32
    value.backward()
    assert model.weight.grad.dtype is torch.float32
    assert model.weight.grad.isfinite().all()
    assert model.weight.grad.abs().sum() > 0


@each(CATALOGUE)
def test_half_of_the_loss_module_changes_nothing(entry):
    logits, targets = batch_of(entry, (4, C, 3), ignored=0.2, dtype=torch.float32)
    expected = value_and_gradient(entry.build(C), logits, targets)
    assert_close(value_and_gradient(entry.build(C).half(), logits, targets), expected, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------------------------
# Nothing, one class, one row
# ---------------------------------------------------------------------------------------------------------------------


def words(entry):
    return ("mean", "sum", "none") if entry.link == "region" else REDUCTIONS


EVERY_REDUCTION = pytest.mark.parametrize(
    ("entry", "reduction"),
    [pytest.param(entry, word, id=f"{entry.name}-{word}") for entry in CATALOGUE for word in words(entry)],
)


def nothing(entry, case):
    shape = {"no rows": (0, C), "no images": (0, C, 2, 2), "no pixels": (2, C, 0)}.get(case, (3, C, 2))
    logits = logits_of(*shape)
    if entry.link == "sigmoid":
        return logits, torch.full(shape, UNKNOWN, dtype=torch.float64)
    if case == "no mass":
        return logits, torch.zeros(shape, dtype=torch.float64)
    return logits, torch.full((shape[0], *shape[2:]), IGNORED)


@EVERY_REDUCTION
@pytest.mark.parametrize("case", ["no rows", "no images", "no pixels", "all ignored", "no mass"])
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_nothing_valid_gives_zero_attached_to_the_graph(entry, reduction, case, mode):
    logits, targets = nothing(entry, case)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        z = logits.detach().to(dtype).requires_grad_()
        value = make(entry, C, reduction=reduction).train(mode)(z, targets)
        assert value.requires_grad
        assert torch.equal(value, torch.zeros_like(value))
        assert value.ndim == 0 or reduction == "none"
        (gradient,) = torch.autograd.grad(value.sum(), z)
        assert gradient.shape == z.shape
        assert gradient.dtype is dtype
        assert torch.equal(gradient, torch.zeros_like(z))


@each(SOFTMAX + SIGMOID)
@pytest.mark.parametrize("case", ["no rows", "all ignored"])
def test_nothing_valid_with_a_normalizer_or_weights_of_zero(entry, case):
    logits, targets = nothing(entry, case)
    value, gradient = value_and_gradient(make(entry, C), logits, targets, normalizer=5.0)
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))
    logits, targets = batch_of(entry, (4, C))
    value, gradient = value_and_gradient(make(entry, C, weight=[0.0] * C, reduction="mean"), logits, targets)
    assert value.isfinite()
    assert gradient.isfinite().all()
    if entry.name != "MMCELoss":  # whose second term has no class weights
        assert value == 0


@EVERY_REDUCTION
@pytest.mark.parametrize("shape", [(4, 1), (2, 1, 3)], ids=str)
def test_one_class(entry, reduction, shape):
    logits = logits_of(*shape)
    loss = make(entry, 1, reduction=reduction)
    if entry.link == "sigmoid":
        targets = multilabel_of(shape, ignored=0.3)
        value, gradient = value_and_gradient(loss, logits, targets)
        assert value.isfinite().all()
        assert value.sum() > 0
        assert torch.equal(gradient[targets == UNKNOWN], torch.zeros_like(gradient[targets == UNKNOWN]))
        assert (gradient != 0).any()
        return
    for targets in (indices_of(shape), indices_of(shape, ignored=0.5), torch.ones(shape, dtype=torch.float64)):
        value, gradient = value_and_gradient(loss, logits, targets)
        assert torch.equal(value, torch.zeros_like(value))
        assert torch.equal(gradient, torch.zeros_like(gradient))


@each(SIGMOID)
def test_one_label_is_the_only_column_of_many(entry):
    """The right number: the same as with labels beside it that are unknown."""
    logits, targets = batch_of(entry, (6, 1))
    padded = torch.cat([targets, torch.full((6, 2), UNKNOWN)], 1)
    counts = {"counts": [10], "num_samples": 40} if entry.name == "DistributionBalancedLoss" else {}
    many = {"counts": [10, 5, 5], "num_samples": 40} if counts else {}
    kind = type(entry.build(1))
    value, gradient = value_and_gradient(kind(**counts), logits, targets)
    expected, wide = value_and_gradient(kind(**many), torch.cat([logits, logits, logits], 1), padded)
    assert_close((value, gradient), (expected, wide[:, :1]), rtol=1e-13, atol=1e-15)


@each(CATALOGUE)
def test_one_row_is_as_good_as_two_of_it(entry):
    logits = torch.tensor([[0.3, 1.2, -0.4]], dtype=torch.float64)  # wrong: its class has recall 0 in both batches
    targets = torch.tensor([[1.0, 0.0, 1.0]]) if entry.link == "sigmoid" else torch.tensor([0])
    once, single = value_and_gradient(entry.build(C), logits, targets)
    twice, double = value_and_gradient(
        entry.build(C), logits.repeat(2, 1), targets.repeat(2, *(1,) * (targets.ndim - 1))
    )
    assert once > 0
    assert_close(twice, once, rtol=1e-13, atol=0)
    if entry.name != "OHEMLoss":  # keeps one of the two
        assert_close(double, single.expand(2, C) / 2, rtol=1e-13, atol=1e-15)


# ---------------------------------------------------------------------------------------------------------------------
# Numbers that are none
# ---------------------------------------------------------------------------------------------------------------------

NONES = pytest.mark.parametrize("none", [math.nan, math.inf, -math.inf], ids=str)


def spoiled(entry, none, dense):
    """A batch, the same with spoiled logits at everything that does not count, and where that is."""
    logits, targets = batch_of(entry, (4, C, 3), ignored=0.3)
    if entry.link == "sigmoid":
        out = targets == UNKNOWN
    else:
        targets = dense_of((4, C, 3), ignored=0.3) if dense else targets
        out = (targets.sum(1) == 0 if dense else targets == IGNORED).unsqueeze(1).expand_as(logits)
    assert 0 < out.sum() < out.numel()
    return logits.detach(), targets, out, torch.where(out, none, logits.detach())


@each(CATALOGUE)
@NONES
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_what_does_not_count_cannot_spoil_the_loss(entry, none, dense):
    logits, targets, out, bad = spoiled(entry, none, dense)
    expected, clean = value_and_gradient(entry.build(C), logits, targets)
    value, gradient = value_and_gradient(entry.build(C), bad, targets)
    assert_close(value, expected, rtol=1e-13, atol=0)
    assert_close(gradient[~out], clean[~out], rtol=1e-13, atol=1e-15)


@NONES
def test_what_does_not_count_cannot_spoil_running_statistics(none):
    logits, targets = logits_of(9, C), indices_of((9, C), ignored=0.3)
    out = (targets == IGNORED).unsqueeze(1)
    plain, other = RecallLoss(C, momentum=0.1), RecallLoss(C, momentum=0.1)
    assert_close(other(torch.where(out, none, logits), targets), plain(logits, targets), rtol=1e-13, atol=0)
    assert torch.equal(other.batch_weights[0].recall, plain.batch_weights[0].recall)
    labels = multilabel_of((9, C), ignored=0.3)
    plain, other = AsymmetricLoss(target_gap=0.3), AsymmetricLoss(target_gap=0.3)
    plain(logits, labels)
    other(torch.where(labels == UNKNOWN, none, logits), labels)
    assert plain.asymmetry.gamma_neg != 4.0
    assert_close(other.asymmetry.gamma_neg, plain.asymmetry.gamma_neg, rtol=1e-13, atol=0)
    assert_close(other.asymmetry.gap, plain.asymmetry.gap, rtol=1e-13, atol=0)


def test_masked_classes_are_those_of_torch():
    logits = logits_of(12, C + 1, seed=4).detach()
    logits[:, 1] = -math.inf
    logits[:4, 2] = -math.inf
    targets = torch.tensor([0, 3] * 6)
    targets[5] = IGNORED
    for reduction in ("none", "mean", "sum"):
        actual = value_and_gradient(CrossEntropyLoss(reduction=reduction), logits, targets)
        expected = value_and_gradient(torch.nn.CrossEntropyLoss(reduction=reduction), logits, targets)
        assert_close(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_masked_target_has_infinite_loss_as_in_torch(dtype):
    logits, targets = torch.tensor([[0.5, -math.inf, 1.0]], dtype=dtype), torch.tensor([1])
    expected = value_and_gradient(torch.nn.CrossEntropyLoss(), logits, targets)
    assert expected[0] == math.inf
    assert_close(value_and_gradient(CrossEntropyLoss(), logits, targets), expected)


@each([entry for entry in SOFTMAX if entry.name not in {"RecallLoss", "PrecisionLoss"}])
def test_masked_classes_are_as_good_as_absent(entry):
    """-inf takes a class out of the softmax; what is counted per class (smoothing, counts) is left out here."""
    if entry.name in {"AsymmetricSoftmaxLoss", "CyclicalAsymmetricLoss"}:
        full, fewer = make(entry, C, label_smoothing=0.0), make(entry, C - 1, label_smoothing=0.0)
    elif "counts" in type(entry.build(C)).__init__.__code__.co_varnames:
        kind = type(entry.build(C))
        full, fewer = kind([100, 10, 10], reduction="sum"), kind([100, 10], reduction="sum")
        if "normalize" in kind.__init__.__code__.co_varnames:
            full = kind([100, 10, 10], normalize=None, reduction="sum")
            fewer = kind([100, 10], normalize=None, reduction="sum")
    else:
        full, fewer = entry.build(C), entry.build(C - 1)
    logits, targets = batch_of(entry, (8, C - 1), ignored=0.2)
    masked = torch.cat([logits, torch.full((8, 1), -math.inf, dtype=torch.float64)], 1)
    expected, part = value_and_gradient(fewer, logits, targets)
    value, gradient = value_and_gradient(full, masked, targets)
    assert_close(value, expected, rtol=1e-12, atol=0)
    assert_close(gradient[:, :-1], part, rtol=1e-12, atol=1e-15)
    assert torch.equal(gradient[:, -1], torch.zeros(8, dtype=torch.float64))


@each(CATALOGUE)
def test_spoiled_logits_that_count_are_not_hidden(entry):
    logits, targets = batch_of(entry, (4, C))
    bad = logits.detach().clone()
    bad[1] = math.nan
    assert entry.build(C)(bad, targets).isnan()


def test_ldam_with_linear_logits_saturates_and_stays_finite():
    logits, targets = grid([-1e4, -1.0, 0.0, 1.0, 1e4], torch.float32)
    value, gradient = value_and_gradient(LDAMLoss(COUNTS, reduction="none"), logits, targets)
    wrong = logits.gather(1, targets.unsqueeze(1)).squeeze(1) < logits.amax(1) - 100
    assert (value[wrong] > 1000).all()
    assert_close(gradient.abs().amax(1)[wrong].amax(), torch.tensor(30 * 1.5), rtol=0.5, atol=0)
    assert gradient.isfinite().all()


def test_every_region_loss_of_certain_pixels_is_zero_or_one():
    targets = torch.tensor([[0, 1, 2, 0]])
    right = 1e4 * F.one_hot(targets, C).movedim(-1, 1).float()
    wrong = 1e4 * F.one_hot((targets + 1) % C, C).movedim(-1, 1).float()
    for entry in REGION:
        assert entry.build(C)(right, targets).item() == 0.0
        assert_close(entry.build(C)(wrong, targets).item(), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("margin", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("gamma", [0.0, 1.5, 4.0])
def test_a_scheduled_margin_is_the_fixed_one_that_it_has_now(dtype, margin, gamma):
    """Also where 1 - p has vanished, from a logit of 44 on in float32 and of 355 in float64."""
    logits = torch.tensor([[-90.0, -3.0, 0.0, 2.0, 20.0, 43.0, 44.0, 45.0, 90.0, 354.0, 356.0, 1e4]]).to(dtype)
    targets = torch.zeros_like(logits)
    fixed, scheduled = (
        AsymmetricLoss(gamma_neg=gamma, margin=each, reduction="none") for each in (margin, Constant(margin))
    )
    scheduled.set_progress(0.0)
    found, expected = (value_and_gradient(loss, logits, targets) for loss in (scheduled, fixed))
    assert_close(found, expected, rtol=1e-5 if dtype is torch.float32 else 1e-13, atol=1e-30)
