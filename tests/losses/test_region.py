"""Region losses against published numbers, a slow reference in plain loops, and what must be true of them."""

import copy
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equipoise.kernels.reference import lovasz as lovasz_reference
from equipoise.losses.region import (
    DiceLoss,
    LovaszSoftmaxLoss,
    SoftIoULoss,
    TverskyLoss,
    dice_loss,
    lovasz_softmax_loss,
    soft_iou_loss,
    tversky_loss,
)

GOLDEN = Path(__file__).parents[1] / "golden"
OVERLAP = {"dice": dice_loss, "soft_iou": soft_iou_loss, "tversky": tversky_loss}
LOSSES = {**OVERLAP, "lovasz": lovasz_softmax_loss}
MODULES = [DiceLoss, SoftIoULoss, TverskyLoss, LovaszSoftmaxLoss]
IGNORED = -100

each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
each_overlap = pytest.mark.parametrize("loss", OVERLAP.values(), ids=OVERLAP)
each_module = pytest.mark.parametrize("module", MODULES)
each_extent = pytest.mark.parametrize("per_image", [False, True], ids=["batch", "image"])


def example(*, n=2, c=4, size=(3, 4), ignored=0.25, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, c, *size, generator=draw, dtype=torch.float64)
    targets = torch.randint(c, (n, *size), generator=draw)
    targets[torch.rand(n, *size, generator=draw) < ignored] = IGNORED
    return logits.to(dtype).requires_grad_(), targets


def gradient(loss, logits, targets, **options):
    return torch.autograd.grad(loss(logits, targets, **options), logits)[0]


def one_hot(targets, num_classes, dtype=torch.float64):
    """Distributions with no mass at ignored pixels."""
    return torch.stack([targets == c for c in range(num_classes)], dim=1).to(dtype)


# A reference that shares nothing with the library: pixels in lists, regions as sets, sums in loops.


def pixels_of(logits, targets, dense, ignore_index):
    """For each image the valid pixels as (probabilities, true distribution)."""
    (n, c), count, images = logits.shape[:2], math.prod(logits.shape[2:]), []
    scores = logits.detach().reshape(n, c, count).tolist()
    marks = targets.reshape((n, c, count) if dense else (n, count)).tolist()
    for image in range(n):
        pixels = []
        for at in range(count):
            z = [scores[image][k][at] for k in range(c)]
            powers = [math.exp(value - max(z)) for value in z]
            if dense:
                truth = [marks[image][k][at] for k in range(c)]
            else:
                truth = [float(marks[image][at] == k != ignore_index) for k in range(c)]
            if sum(truth):
                pixels.append(([power / sum(powers) for power in powers], truth))
        images.append(pixels)
    return images


def tversky_of(pixels, k, alpha, beta, smooth):
    tp = sum(p[k] * t[k] for p, t in pixels)
    fp = sum(p[k] * (1 - t[k]) for p, t in pixels)
    fn = sum((1 - p[k]) * t[k] for p, t in pixels)
    whole = tp + alpha * fp + beta * fn + smooth
    return 1 - (tp + smooth) / whole if whole else 0.0


def lovasz_of(pixels, k):
    """Lovász extension of the set function J(wrong pixels) = |wrong| / |foreground or wrong|."""
    hard = [max(range(len(t)), key=t.__getitem__) == k for _, t in pixels]
    errors = [abs(t - p[k]) for (p, _), t in zip(pixels, hard, strict=True)]
    foreground, wrong, loss, before = {i for i, t in enumerate(hard) if t}, set(), 0.0, 0.0
    for i in sorted(range(len(pixels)), key=lambda i: -errors[i]):
        wrong.add(i)
        now = len(wrong) / len(foreground | wrong)
        loss, before = loss + errors[i] * (now - before), now
    return loss, bool(foreground)


def reference(name, logits, targets, *, classes="present", per_image=False, alpha=0.5, beta=0.5, smooth=0.0,
              ignore_index=IGNORED):  # fmt: skip
    """Entries that count, as {(image, class): loss}."""
    images = pixels_of(logits, targets, targets.is_floating_point(), ignore_index)
    groups = images if per_image else [[pixel for image in images for pixel in image]]
    prices = {"dice": (0.5, 0.5), "soft_iou": (1.0, 1.0), "tversky": (alpha, beta)}
    entries = {}
    for image, pixels in enumerate(groups):
        for k in range(logits.shape[1]):
            if name == "lovasz":
                value, present = lovasz_of(pixels, k)
            else:
                value, present = tversky_of(pixels, k, *prices[name], smooth), any(t[k] for _, t in pixels)
            if present if classes == "present" else classes == "all" or k in classes:
                entries[image, k] = value
    return entries


def mean(entries):
    """Mean over images of the mean over the classes of each."""
    images = {image: [value for (i, _), value in entries.items() if i == image] for image, _ in entries}
    means = [sum(values) / len(values) for values in images.values()]
    return sum(means) / len(means) if means else 0.0


# Published numbers


def golden_cases(group):
    stored = np.load(GOLDEN / f"{group}.npz")
    meta = json.loads(str(stored["meta"]))
    for case in meta["cases"]:
        inputs = {name: stored[f"{case['input']}.{name}"] for name in meta["inputs"][case["input"]]["arrays"]}
        outputs = {**case["values"], **{name: stored[entry][at] for name, (entry, at) in case["arrays"].items()}}
        yield pytest.param(inputs, case["params"], outputs, id=f"{case['id']}-{case['input']}")


def with_gradient(inputs):
    return torch.tensor(inputs["logits"], requires_grad=True), torch.tensor(inputs["targets"])


@pytest.mark.parametrize(("inputs", "params", "outputs"), [*golden_cases("lovasz_softmax")])
def test_lovasz_matches_published_numbers(inputs, params, outputs):
    logits, targets = with_gradient(inputs)
    if params["fn"] == "berman":
        options = {"classes": params["classes"], "per_image": params["per_image"]}
    else:
        options = {"classes": "present" if params["only_present"] else "all", "per_image": True}
    value = lovasz_softmax_loss(logits, targets, ignore_index=255, **options)
    # The published code returns an empty tensor when every pixel is ignored: no number to match, its gradient is 0.
    assert_close(value.item(), outputs["loss"] if np.size(outputs["loss"]) else 0.0, atol=1e-9, rtol=0)
    assert_close(torch.autograd.grad(value, logits)[0], torch.tensor(outputs["grad"]), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("inputs", "params", "outputs"), [*golden_cases("soft_iou")])
def test_soft_iou_matches_published_numbers(inputs, params, outputs):
    logits, targets = with_gradient(inputs)
    value = SoftIoULoss(preset="published", ignore_index=params["ignore"])(logits, targets)
    (grad,) = torch.autograd.grad(value, logits)
    if bool((targets == params["ignore"]).any()):
        # No target: ignored pixels stay in the published union, so the published index is lower.
        assert 1 - value.item() > -outputs["loss"] + 1e-3
        assert value.item() == pytest.approx(
            mean(reference("soft_iou", logits, targets, classes="all", per_image=True, ignore_index=255)), abs=1e-12
        )
    else:
        assert_close(value.item() - 1, outputs["loss"], atol=1e-9, rtol=0)
        assert_close(grad, torch.tensor(outputs["grad"]), atol=1e-9, rtol=0)


# The reference


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_equals_the_reference_in_loops(data):
    name = data.draw(st.sampled_from(sorted(LOSSES)))
    c = data.draw(st.integers(1, 5))
    size = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    ignored = data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    logits, targets = example(
        n=data.draw(st.integers(0, 3)), c=c, size=size, ignored=ignored, seed=data.draw(st.integers(0, 99))
    )
    if data.draw(st.booleans()):
        noise = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        targets = noise / noise.sum(1, keepdim=True) * (targets != IGNORED).unsqueeze(1)
    options = {
        "classes": data.draw(st.sampled_from(["present", "all", [0], [c - 1, 0]])),
        "per_image": data.draw(st.booleans()),
    }
    if name == "tversky":
        options.update(alpha=data.draw(st.sampled_from([0.0, 0.3, 2.0])), beta=0.7)
    if name != "lovasz":
        options.update(smooth=data.draw(st.sampled_from([0.0, 1.0])))
    entries = reference(name, logits, targets, **options)
    table = torch.zeros((len(logits), c) if options["per_image"] else (1, c), dtype=torch.float64)
    for (image, k), value in entries.items():
        table[image, k] = value
    unreduced = LOSSES[name](logits, targets, reduction="none", **options)
    assert_close(unreduced, table if options["per_image"] else table[0], atol=1e-12, rtol=1e-12)
    assert bool((unreduced >= 0).all())
    value = LOSSES[name](logits, targets, **options)
    assert value.item() == pytest.approx(mean(entries), abs=1e-12)
    assert bool(torch.autograd.grad(value, logits)[0].isfinite().all())


@each_loss
@each_extent
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
@pytest.mark.parametrize("classes", ["present", "all", [2, 0]], ids=str)
def test_gradients_are_those_of_finite_differences(loss, per_image, dense, classes):
    logits, targets = example(size=(2, 2))
    if dense:
        targets = one_hot(targets, 4) * 0.8 + 0.05 * (targets != IGNORED).unsqueeze(1)
    options = {"classes": classes, "per_image": per_image}
    assert torch.autograd.gradcheck(lambda z: loss(z, targets, **options), logits)
    if loss is not lovasz_softmax_loss:
        assert torch.autograd.gradgradcheck(lambda z: loss(z, targets, **options), logits)


def test_lovasz_steps_keep_their_digits_on_large_images():
    foreground = torch.rand(2, 200_000, generator=torch.Generator().manual_seed(0)) < torch.tensor([[0.3], [0.0]])
    exact = lovasz_reference._jaccard_steps(foreground, torch.float64)
    assert_close(exact.sum(-1), torch.ones(2, dtype=torch.float64))  # J rises from 0 to 1
    assert_close(lovasz_reference._jaccard_steps(foreground, torch.float32).double(), exact, rtol=1e-6, atol=0)


@each_extent
def test_lovasz_sorts_in_parts(per_image, monkeypatch):
    logits, targets = example(n=3)
    whole = gradient(lovasz_softmax_loss, logits, targets, per_image=per_image)
    for size in (1, 100):
        monkeypatch.setattr(lovasz_reference, "SORTED_AT_ONCE", size)
        assert torch.equal(gradient(lovasz_softmax_loss, logits, targets, per_image=per_image), whole)


# What must be true


@each_extent
def test_dice_and_jaccard_are_cases_of_tversky(per_image):
    logits, targets = example()
    for loss, module, price in ((dice_loss, DiceLoss, 0.5), (soft_iou_loss, SoftIoULoss, 1.0)):
        for options in ({}, {"smooth": 1.0}):
            tversky = tversky_loss(logits, targets, alpha=price, beta=price, per_image=per_image, **options)
            assert torch.equal(loss(logits, targets, per_image=per_image, **options), tversky)
            assert torch.equal(module(per_image=per_image, **options)(logits, targets), tversky)
            assert torch.equal(TverskyLoss(price, price, per_image=per_image, **options)(logits, targets), tversky)


def test_dice_is_the_textbook_formula_and_jaccard_follows_from_it():
    logits, targets = example(ignored=0)
    p, t = logits.softmax(1), one_hot(targets, 4)
    dice = 1 - 2 * (p * t).sum((0, 2, 3)) / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)))
    assert_close(dice_loss(logits, targets, reduction="none"), dice)
    assert_close(soft_iou_loss(logits, targets, reduction="none"), 2 * dice / (1 + dice))  # J = D / (2 - D)


def test_alpha_prices_false_positives_and_beta_false_negatives():
    targets = torch.tensor([[0, 0, 1, 1]])
    spread = 9.0 * one_hot(torch.tensor([[1, 1, 1, 1]]), 2)  # everything is called class 1
    precision = tversky_loss(spread, targets, alpha=1.0, beta=0.0, reduction="none")
    recall = tversky_loss(spread, targets, alpha=0.0, beta=1.0, reduction="none")
    assert_close(precision[1].item(), 0.5, atol=1e-3, rtol=0)  # class 1: half of what is called so is wrong ...
    assert_close(recall.tolist(), [1.0, 0.0], atol=1e-3, rtol=0)  # ... and nothing of it is missed


@each_loss
def test_perfect_and_opposite_predictions(loss):
    _, targets = example(ignored=0.2)
    perfect = 60 * one_hot(targets, 4)
    assert 0 <= loss(perfect, targets).item() < 1e-12
    opposite = 60 * one_hot((targets + 1) % 4, 4)
    assert loss(opposite, targets).item() == pytest.approx(1, abs=1e-12)


def test_lovasz_of_hard_predictions_is_one_minus_iou():
    truth, guess = torch.tensor([[0, 0, 0, 1, 1, 2]]), torch.tensor([[0, 0, 1, 1, 2, 2]])
    value = lovasz_softmax_loss(80 * one_hot(guess, 3), truth, reduction="none")
    assert_close(value.tolist(), [1 - 2 / 3, 1 - 1 / 3, 1 - 1 / 2], atol=1e-12, rtol=0)


@each_loss
@each_extent
def test_one_hot_targets_equal_indices(loss, per_image):
    logits, targets = example()
    dense = one_hot(targets, 4)
    assert_close(loss(logits, dense, per_image=per_image), loss(logits, targets, per_image=per_image))
    assert_close(gradient(loss, logits, dense), gradient(loss, logits, targets))


@each_loss
@each_extent
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_ignored_pixels_can_be_anything(loss, per_image, dense):
    logits, targets = example()
    hidden = (targets == IGNORED).unsqueeze(1).expand_as(logits)
    assert hidden.any()
    marks = one_hot(targets, 4) if dense else targets
    value = loss(logits, marks, per_image=per_image)
    (grad,) = torch.autograd.grad(value, logits)
    assert (grad[hidden] == 0).all()
    assert (grad[~hidden] != 0).any()
    for junk in (math.nan, math.inf, -math.inf, 1e4):
        spoilt = logits.detach().masked_fill(hidden, junk).requires_grad_()
        again = loss(spoilt, marks, per_image=per_image)
        assert torch.equal(again, value)
        assert torch.equal(torch.autograd.grad(again, spoilt)[0], grad)


@each_loss
def test_ignoring_equals_dropping_even_among_perfect_pixels(loss):
    # In float32 the true class has p = 1 and error 0 at every pixel, the rest about 1e-9: all errors tie.
    targets = torch.tensor([[IGNORED, 0, IGNORED, 0, 1]])
    logits = 20.0 * one_hot(targets, 2, torch.float32).requires_grad_()
    kept = torch.tensor([1, 3, 4])
    grad = gradient(loss, logits, targets)
    assert (grad[..., kept] != 0).any()
    assert_close(grad[..., kept], gradient(loss, logits[..., kept], targets[..., kept]), rtol=1e-6, atol=0)


@each_loss
def test_order_of_pixels_and_images_does_not_matter(loss):
    logits, targets = example(size=(12,))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    assert_close(loss(logits[..., order], targets[..., order]), loss(logits, targets))
    assert_close(
        gradient(loss, logits[..., order], targets[..., order], per_image=True),
        gradient(loss, logits, targets, per_image=True)[..., order],
    )
    joined = logits.transpose(0, 1).reshape(1, 4, 24), targets.reshape(1, 24)
    assert_close(loss(*joined, per_image=True), loss(logits, targets))


def test_lovasz_breaks_ties_by_position():
    logits, targets = torch.zeros(1, 2, 6, requires_grad=True), torch.tensor([[0, 1, 0, 1, 0, 1]])
    grad = gradient(lovasz_softmax_loss, logits, targets, classes=[0])
    # With all errors .5 the k-th pixel carries the k-th step of J: 1/3, 1/6, 1/4, 1/20, 1/5 and 0, times p (1 - p).
    expected = torch.tensor([-1 / 3, 1 / 6, -1 / 4, 1 / 20, -1 / 5, 0.0]) / 4
    assert_close(grad[0, 0], expected)


# Which entries count, and how they are reduced


@each_loss
@each_extent
def test_reductions(loss, per_image):
    logits, targets = example()
    targets[0][targets[0] == 3] = 2  # image 0 has no class 3, so that 7 of 8 entries count
    options = {"per_image": per_image}
    entries = loss(logits, targets, reduction="none", **options)
    assert entries.shape == ((2, 4) if per_image else (4,))
    assert (entries == 0).sum() == (1 if per_image else 0)
    assert_close(loss(logits, targets, reduction="sum", **options), entries.sum())
    expected = (entries[0].sum() / 3 + entries[1].sum() / 4) / 2 if per_image else entries.sum() / 4
    assert_close(loss(logits, targets, **options), expected)
    listed = loss(logits, targets, classes=[1, 3], reduction="none", **options)
    everything = loss(logits, targets, classes="all", reduction="none", **options)
    assert (everything > 0).all()
    assert torch.equal(listed, everything * torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert_close(loss(logits, targets, classes=[1, 3], **options), listed.sum() / (4 if per_image else 2))


@each_loss
@each_extent
@pytest.mark.parametrize(
    ("shape", "classes"),
    [((2, 3, 4), "present"), ((2, 3, 4), "all"), ((0, 3, 4), "present"), ((0, 3, 4), [1]), ((2, 3, 0), "all"),
     ((2, 3), "all")],
    ids=str,
)  # fmt: skip
def test_nothing_counts(loss, per_image, shape, classes):
    logits = torch.randn(shape, requires_grad=True)
    for targets in (torch.full((shape[0], *shape[2:]), IGNORED), torch.zeros(shape)):
        for reduction in ("mean", "sum"):
            value = loss(logits, targets, classes=classes, per_image=per_image, reduction=reduction)
            assert value.item() == 0
            assert torch.equal(torch.autograd.grad(value, logits)[0], torch.zeros(shape))


@each_loss
def test_an_image_without_labels_does_not_count_as_present(loss):
    logits, targets = example(n=3)
    targets[1] = IGNORED
    kept = torch.tensor([0, 2])
    assert_close(loss(logits, targets, per_image=True), loss(logits[kept], targets[kept], per_image=True))
    shares = loss(logits, targets, classes="all", per_image=True)  # with "all" it counts, with index 1
    assert_close(shares, loss(logits[kept], targets[kept], classes="all", per_image=True) * 2 / 3)


def test_smoothing_is_off_unless_asked_and_joins_both_sides_of_the_fraction():
    logits, targets = torch.zeros(1, 2, 4), torch.zeros(1, 4, dtype=torch.long)
    # Class 1: TP 0, FP 2, FN 0. Class 0: TP 2, FP 0, FN 2.
    assert_close(dice_loss(logits, targets, classes="all", reduction="none"), torch.tensor([1 / 3, 1.0]))
    smooth = dice_loss(logits, targets, classes="all", reduction="none", smooth=1.0)
    assert_close(smooth, torch.tensor([1 - 3 / 4, 1 - 1 / 2]))


@each_loss
def test_ignore_index_may_be_a_class_and_any_integer_type(loss):
    logits, targets = example(ignored=0)
    hidden = targets.masked_fill(targets == 1, IGNORED)
    expected = loss(logits, hidden)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        assert torch.equal(loss(logits, targets.to(dtype), ignore_index=1), expected)


@each_loss
def test_label_156_of_type_uint8_is_not_ignored(loss):
    logits, targets = torch.randn(1, 157, 3), torch.tensor([[156, 156, 0]])
    assert torch.equal(loss(logits, targets.byte()), loss(logits, targets))


# Numbers


@each_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_logits_give_the_float32_loss_and_a_gradient_of_their_type(loss, dtype):
    logits, targets = example(dtype=dtype)
    wide = logits.detach().float().requires_grad_()
    value, expected = loss(logits, targets), loss(wide, targets)
    assert value.dtype is torch.float32
    assert torch.equal(value, expected)
    (grad,) = torch.autograd.grad(value, logits)
    assert grad.dtype is dtype
    assert torch.equal(grad, torch.autograd.grad(expected, wide)[0].to(dtype))


@each_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", ["present", "all", [0]], ids=str)
def test_saturated_logits_stay_finite(loss, dtype, classes):
    # 80-105 (float32) and 700-745 (float64) make probabilities that are denormal, not 0: the dangerous ones.
    largest = 6e4 if dtype is torch.float16 else 1e4
    for size in (30.0, *range(80, 108, 3), *range(690, 750, 6), largest):
        for sign in (1, -1):
            logits = torch.zeros(1, 3, 4, dtype=dtype)
            logits[:, 0] = sign * size
            for target in ([[0, 0, 0, 0]], [[1, 2, 1, 1]], [[1, IGNORED, 0, 2]]):
                z = logits.clone().requires_grad_()
                value = loss(z, torch.tensor(target), classes=classes)
                (grad,) = torch.autograd.grad(65536 * value, z)  # as a gradient scaler would
                assert 0 <= value.item() <= 1 + 1e-6
                assert bool(grad.isfinite().all()), (size, sign, target)


@each_loss
def test_absent_class_without_probability_has_index_one(loss):
    logits, targets = torch.tensor([[[300.0] * 4, [0.0] * 4]]), torch.zeros(1, 4, dtype=torch.long)
    assert loss(logits, targets, classes="all", reduction="none").tolist() == [0, 0]


@each_loss
def test_small_losses_keep_their_digits(loss):
    # Error 1e-9 at each pixel: 1 - index would round to 0 in float32.
    targets = torch.tensor([[0, 0, 1, 1]])
    logits = 20.7 * one_hot(targets, 2)
    exact, single = loss(logits, targets).item(), loss(logits.float(), targets).item()
    assert 0.4 * exact < single < 1.1 * exact  # what a true class lacks to 1 is lost in float32, the rest is not


# Used as PyTorch users use a loss


@each_module
def test_module_equals_function_and_survives_copies(module):
    logits, targets = example()
    loss = module(classes=[0, 2], per_image=True, ignore_index=1, reduction="sum")
    function = dict(zip(MODULES, LOSSES.values(), strict=True))[module]
    targets = targets.clamp_min(0)
    expected = function(logits, targets, classes=[0, 2], per_image=True, ignore_index=1, reduction="sum")
    for twin in (loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), loss.half()):
        assert torch.equal(twin(logits, targets), expected)
        assert repr(twin) == repr(loss)
    assert loss.state_dict() == {}
    assert "classes=(0, 2), per_image=True, ignore_index=1, reduction='sum'" in repr(loss)


@each_module
def test_classes_of_other_libraries(module):
    for classes in ([np.int64(0), np.uint8(2)], np.array([0, 2]), torch.tensor([0, 2]), range(0, 4, 2)):
        loss = module(classes=classes)
        assert loss.classes == (0, 2)
        assert {type(index) for index in loss.classes} == {int}
    logits, targets = example()
    assert_close(module(classes=np.array([0, 2]))(logits, targets), module(classes=[0, 2])(logits, targets))


def test_preset_published():
    logits, targets = example()
    published = SoftIoULoss(preset="published", reduction="none")(logits, targets)
    assert torch.equal(published, soft_iou_loss(logits, targets, classes="all", per_image=True, reduction="none"))
    for own in ({"classes": [1]}, {"classes": "present"}, {"per_image": False}):  # what you pass yourself stays
        expected = {"classes": "all", "per_image": True} | own
        loss = SoftIoULoss(preset="published", reduction="none", **own)
        assert torch.equal(loss(logits, targets), soft_iou_loss(logits, targets, reduction="none", **expected))
    for module in (DiceLoss, TverskyLoss, LovaszSoftmaxLoss):
        with pytest.warns(DeprecationWarning, match="omit it"):
            published = module(preset="published")
        assert torch.equal(published(logits, targets), module()(logits, targets))
    assert SoftIoULoss("all").classes == "all"  # first argument by position
    assert (TverskyLoss(0.3, 0.7).alpha, TverskyLoss(0.3, 0.7).beta) == (0.3, 0.7)


@each_module
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
@pytest.mark.parametrize("options", [{}, {"classes": [0, 2], "per_image": True}], ids=["plain", "listed"])
def test_compiles_without_graph_break(module, dense, options):
    torch.compiler.reset()
    loss = module(**options)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for seed in (0, 1):
        logits, targets = example(seed=seed)
        targets = one_hot(targets, 4) if dense else targets
        assert_close(compiled(logits, targets), loss(logits, targets))
        assert_close(gradient(compiled, logits, targets), gradient(loss, logits, targets))


@each_loss
def test_function_transforms(loss):
    logits, targets = example(n=3)
    logits = logits.detach()
    assert_close(torch.func.grad(loss)(logits, targets), gradient(loss, logits.clone().requires_grad_(), targets))
    single = [loss(z[None], t[None], classes="all") for z, t in zip(logits, targets, strict=True)]
    batched = torch.func.vmap(lambda z, t: loss(z[None], t[None], classes="all"))(logits, targets)
    assert_close(batched, torch.stack(single))
    grads = torch.func.vmap(torch.func.grad(lambda z, t: loss(z[None], t[None], classes=[1])))(logits, targets)
    assert_close(grads, 3 * gradient(loss, logits.requires_grad_(), targets, classes=[1], per_image=True))


@each_loss
def test_autocast_changes_nothing(loss):
    logits, targets = example(dtype=torch.bfloat16)
    plain = gradient(loss, logits, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(logits, targets)
    assert value.dtype is torch.float32
    assert torch.equal(torch.autograd.grad(value, logits)[0], plain)


@each_loss
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_arguments_are_never_written_and_strides_are_free(loss, dense):
    logits, targets = example()
    targets = one_hot(targets, 4) if dense else targets
    copies = logits.detach().clone(), targets.clone()
    gradient(loss, logits, targets)
    assert torch.equal(logits, copies[0])
    assert torch.equal(targets, copies[1])
    strided = logits.detach().to(memory_format=torch.channels_last)
    assert_close(loss(strided, targets.transpose(-1, -2).contiguous().transpose(-1, -2)), loss(logits, targets))


class Devices(TorchDispatchMode):
    """Collect the devices of everything that goes into an operation or comes out of it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen |= {leaf.device.type for leaf in tree_leaves((args, result)) if isinstance(leaf, torch.Tensor)}
        return result

    def __enter__(self):
        self.seen = set()
        return super().__enter__()


@each_loss
@each_extent
@pytest.mark.parametrize("classes", ["present", "all", [0, 2]], ids=str)
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_reads_no_value_and_copies_nothing_from_the_host(loss, per_image, classes, dense):
    logits, targets = example()
    targets = one_hot(targets, 4) if dense else targets
    there = logits.detach().to("meta").requires_grad_(), targets.to("meta")  # no values: reading one raises
    with Devices() as devices:
        loss(*there, classes=classes, per_image=per_image).backward()
    assert devices.seen == {"meta"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_loss
@each_extent
def test_no_host_sync_on_a_cuda_device(loss, per_image):
    logits, targets = example(dtype=torch.float32)
    there = logits.detach().cuda().requires_grad_(), targets.cuda()
    loss(*there)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [loss(*there, classes=classes, per_image=per_image) for classes in ("present", "all", [0, 2])]
        sum(results).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for classes, value in zip(("present", "all", [0, 2]), results, strict=True):
        assert_close(value.cpu(), loss(logits, targets, classes=classes, per_image=per_image))


# Errors


@each_module
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": "some"}, r"classes must be 'present', 'all' or a list .* got 'some'; pass one of the strings"),
        ({"classes": []}, r"one or more class indices in \[0, C - 1\], got \[\]; .* indices of the classes"),
        ({"classes": [-1]}, r"classes must be .* got \[-1\]"),
        ({"classes": [True, False]}, r"classes must be .* got \[True, False\]"),
        ({"classes": 1}, r"classes must be .* got 1"),
        ({"classes": np.array([True, False])}, r"classes must be .* got array\(\[ True, False\]\)"),
        ({"classes": torch.tensor([True, False])}, r"classes must be .* got tensor\(\[ True, False\]\)"),
        ({"classes": torch.tensor([0.0, 1.0])}, r"classes must be .* got tensor\(\[0., 1.\]\)"),
        ({"reduction": "average"}, r"reduction must be one of 'mean', 'sum', 'none', got 'average'; pick"),
        ({"reduction": "valid_mean"}, r"reduction must be one of 'mean', 'sum', 'none', got 'valid_mean'"),
        ({"preset": "paper"}, r"preset must be one of 'published', got 'paper'; pick"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_when_set(module, options, message):
    with pytest.raises(ValueError, match=message):
        module(**options)


@each_loss
def test_wrong_options_are_refused_by_the_functions(loss):
    logits, targets = example()
    with pytest.raises(ValueError, match=r"class indices in \[0, 3\], got \[0, 4\]; .* indices of the classes"):
        loss(logits, targets, classes=[0, 4])
    with pytest.raises(ValueError, match="reduction must be one of"):
        loss(logits, targets, reduction="median")
    with pytest.raises(TypeError, match="clases"):
        loss(logits, targets, clases="all")


@each_module
def test_unknown_options_are_refused(module):
    with pytest.raises(TypeError, match="clases"):
        module(clases="all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -0.1}, r"alpha must be a finite number in \[0, inf\], got -0.1; choose"),
        ({"beta": math.nan}, r"beta must be a finite number"),
        ({"smooth": -1.0}, r"smooth must be a finite number in \[0, inf\], got -1.0; choose"),
        ({"alpha": 0.0, "beta": 0.0}, r"alpha and beta must not both be 0, got alpha=0 and beta=0.*; set alpha"),
    ],
    ids=str,
)
def test_wrong_prices_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TverskyLoss(**options)
    with pytest.raises(ValueError, match=message):
        tversky_loss(*example(), **options)


def test_other_refusals():
    with pytest.raises(ValueError, match=r"per_image must be True .* sync=True, got False, .* sort .*; set per_image"):
        LovaszSoftmaxLoss(sync=True)
    with pytest.raises(ValueError, match="per_image must be True"):
        lovasz_softmax_loss(*example(), sync=True)
    with pytest.raises(TypeError, match="smooth"):
        LovaszSoftmaxLoss(smooth=1.0)


@each_loss
def test_wrong_tensors_are_refused(loss):
    logits, targets = example()
    with pytest.raises(ValueError, match=r"logits must have shape \(N, C, d1, ..., dk\), got \(4,\); add the batch"):
        loss(torch.randn(4), torch.tensor(1))
    with pytest.raises(TypeError, match="logits must be float16"):
        loss(targets, targets)
    with pytest.raises(ValueError, match=r"targets must be class indices of shape \(2, 3, 4\)"):
        loss(logits, targets[0])
    with pytest.raises(ValueError, match=r"targets must be class indices in \[0, 3\] .* got 4"):
        loss(logits, torch.full_like(targets, 4))


# Two processes

SHARDS = {"uneven": (3, 1), "empty rank": (4, 0), "rank without labels": (2, 2)}
PLANS = [
    (module, {"reduction": reduction, "per_image": per_image, "classes": classes})
    for module in MODULES
    for reduction in ("mean", "sum")
    for per_image in (False, True)
    for classes in ("present", "all")
    if per_image or module is not LovaszSoftmaxLoss
]


def shards_of(name):
    logits, targets = example(n=4, size=(5,), seed=7)
    targets[0][targets[0] == 1] = 2  # so that processes see different numbers of classes
    if name == "rank without labels":
        targets[2:] = IGNORED
    return logits.detach(), targets, SHARDS[name]


def on_one_process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results = {}
    for name in SHARDS:
        logits, targets, sizes = shards_of(name)
        logits, targets = logits.split(sizes)[rank].clone().requires_grad_(), targets.split(sizes)[rank]
        for number, (module, options) in enumerate(PLANS):
            value = module(sync=True, **options)(logits, targets)
            results[name, number] = value.detach(), torch.autograd.grad(value, logits)[0]
        if rank == 0:  # alone: if eval() communicated, this would wait for the other process for ever
            results[name, "eval"] = SoftIoULoss(sync=True).eval()(logits, targets).detach()
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed")
def test_two_processes_train_as_one_on_the_joined_batch(tmp_path):
    mp.spawn(on_one_process, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for name in SHARDS:
        logits, targets, sizes = shards_of(name)
        for number, (module, options) in enumerate(PLANS):
            joined = logits.clone().requires_grad_()
            value = module(**options)(joined, targets)
            (grad,) = torch.autograd.grad(value, joined)
            case = f"{name}, {module.__name__}, {options}"
            values = torch.stack([first[name, number][0], second[name, number][0]])
            grads = torch.cat([first[name, number][1], second[name, number][1]])
            assert_close(values.mean(), value.detach(), msg=lambda text, case=case: f"{case}: {text}")
            assert_close(grads / 2, grad, msg=lambda text, case=case: f"{case}: {text}")  # DDP averages
            if not options["per_image"]:
                assert values[0] == values[1], case
        alone = soft_iou_loss(logits.split(sizes)[0], targets.split(sizes)[0])
        assert torch.equal(first[name, "eval"], alone)


def test_sync_without_processes_changes_nothing():
    logits, targets = example()
    for module in MODULES:
        synced, plain = module(sync=True, per_image=True), module(per_image=True)
        assert torch.equal(gradient(synced, logits, targets), gradient(plain, logits, targets))
    assert_close(gradient(DiceLoss(sync=True), logits, targets), gradient(DiceLoss(), logits, targets))
