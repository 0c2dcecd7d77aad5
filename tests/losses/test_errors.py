"""Bad input gets an error that names the argument, what was expected, what came and what to do.

``says`` makes the four parts a pattern: the argument as the user wrote it opens the message, then come what was
expected, "got" what came, and after a semicolon what to do.
"""

import inspect
import math
import re
import warnings
from collections import Counter

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import functional as F
from equipoise.losses import (
    AdaptiveAsymmetry,
    Adjustment,
    ByConfidence,
    Modulation,
    NegativeTolerance,
    SigmoidLoss,
    SoftmaxLoss,
    asymmetric,
    cyclical,
    focal,
    logit_adjustment,
)
from equipoise.schedules import Constant, Cosine, Cyclical, Join, Linear, Parabolic, Steps, join
from equipoise.weights import (
    ClassWeights,
    Deferred,
    PrecisionWeights,
    Rebalanced,
    RecallWeights,
    effective_number,
    inverse_frequency,
    median_frequency,
    square_root,
)

NAN, INF = math.nan, math.inf


def says(argument, *parts):
    advised = r"(?=.*got .*; \w+)"
    return r"(?s)\A" + advised + ".*".join([re.escape(argument) + r"\b", *(re.escape(part) for part in parts)])


def logits(c=3, *size, dtype=torch.float32):
    return torch.randn(4, c, *size, generator=torch.Generator().manual_seed(0)).to(dtype)


SOFTMAX = {
    "cross-entropy": lambda **o: eq.CrossEntropyLoss(**o),
    "focal": lambda **o: eq.FocalLoss(**o),
    "recall": lambda **o: eq.RecallLoss(3, **o),
    "recall average": lambda **o: eq.RecallLoss(3, momentum=0.5, **o),
    "ohem": lambda **o: eq.OHEMLoss(**o),
    "mmce": lambda **o: eq.MMCELoss(**o),
    "brier": lambda **o: eq.BrierLoss(**o),
    "dice": lambda **o: eq.DiceLoss(**o),
    "lovasz": lambda **o: eq.LovaszSoftmaxLoss(**o),
    "ldam": lambda **o: eq.LDAMLoss([3, 2, 1], **o),
}
SIGMOID = {
    "binary": lambda **o: eq.BinaryCrossEntropyLoss(**o),
    "binary focal": lambda **o: eq.BinaryFocalLoss(alpha=0.25, **o),
    "asymmetric": lambda **o: eq.AsymmetricLoss(**o),
    "adaptive": lambda **o: eq.AsymmetricLoss(target_gap=0.5, **o),
    "distribution balanced": lambda **o: eq.DistributionBalancedLoss([3, 2, 1], 9, **o),
}
each_softmax = pytest.mark.parametrize("build", SOFTMAX.values(), ids=SOFTMAX)
BOTH = {**SOFTMAX, **SIGMOID}
each_sigmoid = pytest.mark.parametrize("build", SIGMOID.values(), ids=SIGMOID)
each_loss = pytest.mark.parametrize("build", BOTH.values(), ids=BOTH)


# ---------------------------------------------------------------------------------------------------------------------
# Targets and logits
# ---------------------------------------------------------------------------------------------------------------------


@each_softmax
@pytest.mark.parametrize(
    ("targets", "error", "parts"),
    [
        (torch.zeros(4), ValueError, ("float32", "(4, 3, 2)", "got (4,)", "targets.long()")),
        (torch.zeros(4, 3), ValueError, ("(4, 3, 2)", "got (4, 3)", "targets.long()")),
        (torch.zeros(4, 1, 2), ValueError, ("(4, 3, 2)", "got (4, 1, 2)", "targets.squeeze(1).long()")),
        (
            torch.zeros(4, 4, 2),
            ValueError,
            ("(4, 3, 2)", "got (4, 4, 2)", "the targets have 4 classes and the model 3"),
        ),
        (torch.zeros(4, 2, dtype=torch.bool), TypeError, ("integer", "(4, 2)", "got torch.bool", "targets.long()")),
        (torch.zeros(4, 2, dtype=torch.complex64), TypeError, ("integer", "got torch.complex64", "targets.long()")),
        (torch.zeros(4, dtype=torch.long), ValueError, ("shape (4, 2)", "got (4,)", "dimensions")),
        (torch.zeros(5, 2, dtype=torch.long), ValueError, ("shape (4, 2)", "got (5, 2)", "sizes differ")),
        (torch.zeros(4, 1, 2, dtype=torch.long), ValueError, ("got (4, 1, 2)", "targets.squeeze(1)")),
        (torch.zeros(4, 3, dtype=torch.long), ValueError, ("got (4, 3)", "logits.movedim(-1, 1)")),
        (torch.zeros(4, 3, 2, dtype=torch.long), ValueError, ("shape (4, 2)", "got (4, 3, 2)", "targets.float()")),
    ],
    ids=[
        "float index",
        "dense without places",
        "dense of one class",
        "dense of more classes",
        "bool",
        "complex",
        "no places",
        "batch size",
        "a channel",
        "classes last",
        "integer one-hot",
    ],
)
def test_softmax_targets_of_wrong_type_or_shape(build, targets, error, parts):
    with pytest.raises(error, match=says("targets", *parts)):
        build()(logits(3, 2), targets)


@each_softmax
def test_several_labels_in_a_softmax_loss(build):
    labels = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]])
    for targets, error in ((labels, ValueError), (labels.bool(), TypeError)):
        with pytest.raises(error, match=says("targets", "a sigmoid loss, such as AsymmetricLoss")):
            build()(logits(), targets)
    with pytest.warns(UserWarning, match=says("targets", "distributions", "more than one 1", "AsymmetricLoss")):
        build()(logits(), labels.float())
    with pytest.raises(ValueError, match=says("targets", "got a row of sum 2", "AsymmetricLoss")):
        build(validate=True)(logits(), labels.float())


@each_softmax
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_no_word_of_several_labels_about_distributions(build, scale, recwarn):
    build()(logits(), scale * torch.eye(3)[[0, 1, 2, 0]])
    build()(logits(), 2.5 * logits().softmax(1))
    assert not recwarn.list


@each_softmax
@pytest.mark.parametrize("ignored", [None, "void", 2.5], ids=repr)
def test_ignore_index_of_another_kind(build, ignored):
    message = says("ignore_index", "an integer", f"got {ignored!r}", "keep -100")
    with pytest.raises(TypeError, match=message):
        build(ignore_index=ignored)
    if ignored != 2.5:
        loss = build()
        loss.ignore_index = ignored
        with pytest.raises(TypeError, match=message):
            loss(logits(), INDICES)


@pytest.mark.parametrize(
    "build", [eq.AsymmetricLoss, lambda **o: F.asymmetric_loss(logits(), LABELS, **o)], ids=["class", "function"]
)
def test_ignore_value_of_another_kind(build):
    for ignored in (None, "void", torch.tensor(-1.0)):
        with pytest.raises(TypeError, match=says("ignore_value", "a number", f"got {ignored!r}", "keep -1")):
            build(ignore_value=ignored)
    with pytest.raises(ValueError, match=says("ignore_value", "a number", "got nan", "targets.nan_to_num(-1)")):
        build(ignore_value=math.nan)


@each_softmax
@pytest.mark.parametrize("label", [3, -1, 1000, -101])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16], ids=str)
def test_labels_out_of_range(build, label, dtype):
    targets = torch.tensor([0, -100, label, 2], dtype=dtype)
    message = says("targets", "[0, 2] or ignore_index=-100", f"got {label}", "check the labels")
    with pytest.raises(ValueError, match=message):
        build()(logits(), targets)


def test_labels_out_of_range_in_small_types_and_other_ignore_index():
    with pytest.raises(ValueError, match=says("targets", "[0, 2] or ignore_index=-100", "got 156")):
        eq.CrossEntropyLoss()(logits(), torch.tensor([0, 156, 1, 2], dtype=torch.uint8))
    with pytest.raises(ValueError, match=says("targets", "ignore_index=255", "got -100")):
        eq.CrossEntropyLoss(ignore_index=255)(logits(), torch.tensor([0, 255, -100, 2]))
    assert eq.CrossEntropyLoss(ignore_index=255)(logits(), torch.tensor([0, 255, 1, 2])).isfinite()


@each_softmax
def test_dense_targets_must_not_require_a_gradient(build):
    with pytest.raises(ValueError, match=says("targets", "must not require a gradient", "got", "detach()")):
        build()(logits(), torch.full((4, 3), 1 / 3, requires_grad=True))


@each_sigmoid
@pytest.mark.parametrize(
    ("targets", "parts"),
    [
        (torch.zeros(4), ("(4, 3)", "got (4,)", "one_hot")),
        (torch.zeros(4, 2), ("(4, 3)", "got (4, 2)", "softmax loss")),
        (torch.zeros(4, dtype=torch.long), ("(4, 3)", "got (4,)", "class indices")),
        (torch.zeros(4, 3, 1), ("(4, 3)", "got (4, 3, 1)", "softmax loss")),
    ],
    ids=["no labels", "fewer labels", "indices", "one dimension more"],
)
def test_sigmoid_targets_of_wrong_shape(build, targets, parts):
    with pytest.raises(ValueError, match=says("targets", *parts)):
        build()(logits(), targets)


@each_sigmoid
def test_unknown_labels_that_a_type_cannot_hold(build):
    targets = torch.tensor([[0, 1, 255]]).repeat(4, 1)
    with pytest.raises(ValueError, match=says("targets", "[0, 1] or ignore_value=-1", "got 255", "check the labels")):
        build()(logits(), targets.to(torch.uint8))  # where 255 equals -1
    assert torch.equal(*(build(ignore_value=255)(logits(), targets.to(dtype)) for dtype in (torch.uint8, torch.float)))
    binary = targets.clamp(max=1)
    for ignored in (-1, 1, 255, 0.5):
        actual = [build(ignore_value=ignored)(logits(), binary.to(dtype)) for dtype in (torch.bool, torch.uint8)]
        assert torch.equal(*actual)
        torch.testing.assert_close(actual[0], build(ignore_value=ignored)(logits(), binary.float()))


@each_loss
def test_targets_on_another_device(build):
    message = says("targets", "on the device of the logits, cpu", "got meta", "targets.to(logits.device)")
    for targets in (INDICES, LABELS):
        with pytest.raises(ValueError, match=message):
            build()(logits(), targets.to("meta"))


@each_sigmoid
def test_element_weights_on_another_device(build):
    message = says("element_weight", "on the device of the logits, cpu", "got meta", "element_weight.to(logits.device)")
    with pytest.raises(ValueError, match=message):
        build()(logits(), LABELS, element_weight=torch.ones(4, 3, device="meta"))


@pytest.mark.parametrize("build", [eq.losses.LiftedStructureLoss, eq.losses.RangeLoss])
def test_labels_of_embeddings_on_another_device(build):
    with pytest.raises(ValueError, match=says("labels", "on the device of the embeddings, cpu", "got meta")):
        build()(logits(), INDICES.to("meta"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("build", "link"),
    [
        (eq.FocalLoss, "softmax"),
        (lambda: eq.RecallLoss(3, momentum=0.5), "softmax"),
        (lambda: eq.AsymmetricLoss(target_gap=0.5), "sigmoid"),
        (eq.DiceLoss, "softmax"),
    ],
    ids=["focal", "recall", "asymmetric", "dice"],
)
def test_targets_of_the_cpu_for_logits_of_a_cuda_device(build, link):
    """A kernel that has run before is launched with bare pointers. The loss itself may have stayed on the CPU."""
    loss, targets = build(), INDICES if link == "softmax" else LABELS
    for _ in range(3):
        there = logits().cuda().requires_grad_()
        loss(there, targets.cuda()).backward()
        with pytest.raises(ValueError, match=says("targets", "of the logits, cuda:0", "got cpu", "targets.to(")):
            loss(there, targets)
        if link == "sigmoid":
            with pytest.raises(ValueError, match=says("element_weight", "of the logits, cuda:0", "got cpu")):
                loss(there, targets.cuda(), element_weight=torch.ones(4, 3))


def test_rows_and_classes_of_softmax_losses():
    with pytest.raises(ValueError, match=says("targets", "(3,)", "got (4,)", "pass logits.T")):
        eq.FocalLoss()(torch.zeros(3, 4), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=says("targets", "(4,)", "got (5,)", "of the same samples")):
        eq.FocalLoss()(torch.zeros(4, 3), torch.zeros(5, dtype=torch.long))


@pytest.mark.parametrize(
    "targets", [torch.tensor([3]), torch.zeros(10).long(), torch.zeros(9)], ids=["one", "C", "other"]
)
def test_one_row_has_one_target(targets):
    for loss in (eq.FocalLoss(), eq.RecallLoss(10), eq.OHEMLoss()):
        came = f"got {targets.dtype} of shape {tuple(targets.shape)}"
        with pytest.raises(ValueError, match=says("logits", "(10,)", "one row of 10 classes", came, "BinaryFocalLoss")):
            loss(torch.zeros(10), targets)
        loss(torch.zeros(10), torch.tensor(3))
        loss(torch.zeros(10), torch.full((10,), 0.1))


def test_sigmoid_targets_of_one_label():
    loss = eq.BinaryFocalLoss()
    with pytest.raises(ValueError, match=says("targets", "(4, 1)", "got (4,)", "targets[:, None]")):
        loss(logits(1), torch.zeros(4))
    with pytest.raises(ValueError, match=says("targets", "(4,)", "got (4, 1)", "targets.squeeze(1)")):
        loss(logits(1)[:, 0], torch.zeros(4, 1))
    with pytest.raises(ValueError, match=says("targets", "(4,)", "got (3,)", "one target per logit")):
        loss(logits(1)[:, 0], torch.zeros(3))
    with pytest.raises(ValueError, match=says("targets", "(4, 3, 2)", "got (4, 2)", "one_hot(targets, 3)")):
        loss(logits(3, 2), torch.zeros(4, 2))


ONE_CHANNEL = {**SOFTMAX, "recall": lambda **o: eq.RecallLoss(1, **o), "ldam": lambda **o: eq.LDAMLoss([3], **o)}
del ONE_CHANNEL["recall average"]


@pytest.mark.parametrize("build", ONE_CHANNEL.values(), ids=ONE_CHANNEL)
def test_one_channel_is_worth_a_warning(build):
    loss, targets = build(), torch.zeros(4, 2, 2, dtype=torch.long)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # what Python does if nobody says otherwise
        for _ in range(3):
            assert loss(logits(1, 2, 2), targets).item() == 0
    (warning,) = caught
    assert re.search(r"one class is always 1.*got one channel.*two outputs.*BinaryFocalLoss", str(warning.message))


@pytest.mark.filterwarnings("ignore:a softmax over one class")
def test_one_channel_in_compiled_code_and_under_torch_func():
    torch.compiler.reset()
    targets = torch.zeros(4, 2, dtype=torch.long)
    for loss in (eq.FocalLoss(), eq.DiceLoss()):
        assert torch.compile(loss, backend="eager", fullgraph=True)(logits(1, 2), targets).item() == 0
        assert torch.func.grad(lambda z, loss=loss: loss(z, targets))(logits(1, 2)).eq(0).all()
    torch.compiler.reset()


NO_TENSORS = {
    "nothing": (None, "got NoneType", "returns it"),
    "numpy": (np.zeros((4, 3)), "got ndarray", "torch.as_tensor"),
    "list": ([0, 1, 2, 0], "got list", "torch.tensor"),
    "list of tensors": ([torch.zeros(3)] * 4, "got list", "output[0]"),
    "tuple": ((None, torch.zeros(4, 3)), "got tuple", "output[1]"),
    "dict": ({"aux": torch.zeros(4, 3), "out": torch.zeros(4, 3)}, "got dict", "output['out']"),
    "dict of others": ({"scores": torch.zeros(4, 3)}, "got dict", "output['scores']"),
    "empty dict": ({}, "got dict", "output['logits']"),
}
each_no_tensor = pytest.mark.parametrize(("value", "came", "advice"), NO_TENSORS.values(), ids=NO_TENSORS)


@each_loss
@each_no_tensor
def test_inputs_must_be_tensors(build, value, came, advice):
    with pytest.raises(TypeError, match=says("logits", "must be a tensor", came, advice)):
        build()(value, torch.zeros(4, dtype=torch.long))
    with pytest.raises(
        TypeError, match=says("targets", "must be a tensor", came, advice.replace("logits)", "targets)"))
    ):
        build()(logits(), value)


FUNCTIONS = {
    "softmax": F.softmax_loss,
    "recall": F.recall_loss,
    "ohem": F.ohem_loss,
    "mmce": F.mmce_loss,
    "dice": F.dice_loss,
    "lovasz": F.lovasz_softmax_loss,
    "sigmoid": F.sigmoid_loss,
    "asymmetric": F.asymmetric_loss,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_inputs_of_functions_must_be_tensors(function):
    with pytest.raises(TypeError, match=says("logits", "must be a tensor", "got dict", "output['out']")):
        function({"out": logits()}, torch.zeros(4, dtype=torch.long))
    with pytest.raises(TypeError, match=says("targets", "must be a tensor", "got NoneType")):
        function(logits(), None)


@pytest.mark.parametrize("build", [eq.losses.LiftedStructureLoss, eq.losses.RangeLoss])
def test_embeddings_must_be_tensors(build):
    with pytest.raises(TypeError, match=says("embeddings", "must be a tensor", "got ndarray")):
        build()(np.zeros((4, 3)), torch.zeros(4, dtype=torch.long))
    with pytest.raises(TypeError, match=says("labels", "must be a tensor", "got list")):
        build()(logits(), [0, 1, 2, 0])


@each_sigmoid
def test_element_weights_must_be_tensors(build):
    with pytest.raises(TypeError, match=says("element_weight", "must be a tensor", "got list", "torch.tensor")):
        build()(logits(), torch.zeros(4, 3), element_weight=[1.0, 1.0, 1.0])


@each_sigmoid
def test_element_weights_of_wrong_type_or_with_a_gradient(build):
    with pytest.raises(ValueError, match=says("element_weight", "not require a gradient", "got one", ".detach()")):
        build()(logits(), LABELS, element_weight=torch.ones(4, 3, requires_grad=True))
    with pytest.raises(TypeError, match=says("element_weight", "real numbers", "got torch.complex64", "pass")):
        build()(logits(), LABELS, element_weight=torch.ones(4, 3, dtype=torch.complex64))


@each_softmax
@pytest.mark.parametrize(
    ("row", "came"),
    [([0.5, 0.7, -0.2], "sum 1 with minimum -0.2"), ([0.5, 0.5, 0.5], "sum 1.5"), ([NAN, 0.5, 0.5], "sum nan")],
    ids=["negative", "too much", "not a number"],
)
def test_soft_targets_are_validated_on_request(build, row, came):
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 0.0], row])
    with pytest.raises(ValueError, match=says("targets", "must be distributions", f"got a row of {came}", "pass prob")):
        build(validate=True)(logits(), targets)
    build()(logits(), targets)  # as torch does: looking at all of them would cost
    fitting = torch.cat([targets[:3], torch.full((1, 3), 1 / 3)])
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        assert build(validate=True)(logits(), fitting.to(dtype)).isfinite()
    with pytest.raises(ValueError, match=says("targets", "must be distributions", f"got a row of {came}")):
        build(validate=True)(logits(3, 2), targets.unsqueeze(2).repeat(1, 1, 2))


@each_sigmoid
def test_sigmoid_targets_of_wrong_type_or_with_a_gradient(build):
    with pytest.raises(TypeError, match=says("targets", "in [0, 1]", "got torch.complex64", "pass")):
        build()(logits(), torch.zeros(4, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=says("targets", "must not require a gradient", "got", "detach()")):
        build()(logits(), torch.zeros(4, 3, requires_grad=True))


@each_sigmoid
@pytest.mark.parametrize(("value", "text"), [(2.0, "2"), (-0.5, "-0.5"), (1.001, "1.001"), (-2.0, "-2"), (NAN, "nan")])
def test_sigmoid_targets_out_of_range(build, value, text):
    targets = torch.tensor([[0.0, 1.0, -1.0]]).repeat(4, 1)
    targets[2, 1] = value
    with pytest.raises(
        ValueError, match=says("targets", "[0, 1] or ignore_value=-1", f"got {text}", "check the labels")
    ):
        build()(logits(), targets)
    if value == value and value == int(value):
        with pytest.raises(ValueError, match=says("targets", "[0, 1] or ignore_value=-1", f"got {text}")):
            build()(logits(), targets.long())
        assert build(ignore_value=value)(
            logits(), targets.clamp(min=0) if value > 0 else targets.where(targets != -1, 0)
        ).isfinite()


@pytest.mark.parametrize("build", [*SOFTMAX.values(), *SIGMOID.values()], ids=[*SOFTMAX, *SIGMOID])
def test_logits_must_be_floating_point(build):
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=says("logits", "float32", f"got {dtype}", "raw scores")):
            build()(torch.zeros(4, 3, dtype=dtype), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("build", [*SOFTMAX.values(), *SIGMOID.values()], ids=[*SOFTMAX, *SIGMOID])
def test_logits_need_a_class_dimension(build):
    with pytest.raises(ValueError, match=r"(?s)\Alogits must .*got .*"):
        build()(torch.tensor(1.0), torch.tensor(0))


def test_logits_need_a_class():
    with pytest.raises(ValueError, match=says("logits", "at least one class", "got shape (4, 0)", "check the model")):
        eq.CrossEntropyLoss()(torch.zeros(4, 0), torch.zeros(4, dtype=torch.long))


BAD_LABELS = torch.tensor([0, 1, 7, 2])


def test_validate_looks_at_labels_while_compiling():
    torch.compiler.reset()
    loss = torch.compile(eq.FocalLoss(validate=True), backend="eager")
    with pytest.raises(ValueError, match=says("targets", "[0, 2] or ignore_index=-100", "got 7", "check the labels")):
        loss(logits(), BAD_LABELS)
    loss = torch.compile(eq.AsymmetricLoss(validate=True), backend="eager")
    with pytest.raises(ValueError, match=says("targets", "[0, 1] or ignore_value=-1", "got 2", "check the labels")):
        loss(logits(), torch.full((4, 3), 2.0))
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("loss", "link"),
    [(eq.FocalLoss, "softmax"), (eq.DiceLoss, "softmax"), (eq.AsymmetricLoss, "sigmoid")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_validate_looks_at_logits(loss, link):
    logits = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(8) % 5 if link == "softmax" else torch.zeros(8, 5)
    probabilities = logits.softmax(1) if link == "softmax" else logits.sigmoid()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if link == "sigmoid":  # on request only, as it costs a pass over the logits
            loss()(probabilities, targets)
        loss(validate=True)(logits, targets)
        masked = logits.clone()
        masked[:, 4] = -torch.inf
        if link == "softmax":
            loss(validate=True)(masked, torch.zeros(8, dtype=torch.int64))
    with pytest.warns(
        UserWarning, match=rf"logits must be raw scores .*before its {link}, which the loss applies itself"
    ):
        loss(validate=True)(probabilities, targets)
    for wrong in (torch.nan, torch.inf):
        broken = logits.clone()
        broken[2:4, 1] = wrong
        with pytest.raises(ValueError, match=says("logits", "numbers", f"got {wrong} in 2 of 8", "learning rate")):
            loss(validate=True)(broken, targets)


def test_validate_looks_at_labels_under_torch_func():
    for validate, loss in ((True, eq.FocalLoss(validate=True)), (False, eq.FocalLoss())):
        grad = torch.func.grad(lambda z, loss=loss: loss(z, BAD_LABELS))
        if validate:
            with pytest.raises(ValueError, match=says("targets", "[0, 2] or ignore_index=-100", "got 7")):
                grad(logits())
        else:
            with pytest.raises((RuntimeError, IndexError)):  # torch's own, from the gather
                grad(logits())
    with pytest.raises(ValueError, match=says("targets", "[0, 1] or ignore_value=-1", "got 2")):
        torch.func.grad(lambda z: eq.AsymmetricLoss(validate=True)(z, torch.full((4, 3), 2.0)))(logits())
    assert torch.func.grad(lambda z: eq.AsymmetricLoss()(z, torch.full((4, 3), 2.0)))(logits()).isfinite().all()


def test_statistics_cannot_be_updated_under_torch_func():
    for loss, targets, name in (
        (eq.RecallLoss(3, momentum=0.5), torch.tensor([0, 1, 2, 0]), "momentum"),
        (eq.AsymmetricLoss(target_gap=0.5), torch.zeros(4, 3), "target_gap"),
    ):
        with pytest.raises(RuntimeError, match=rf"(?s)torch.func.*got training mode with {name}=0.5.*eval\(\)"):
            torch.func.grad(lambda z, loss=loss, targets=targets: loss(z, targets))(logits())
        assert torch.func.grad(lambda z, loss=loss, targets=targets: loss.eval()(z, targets))(logits()).isfinite().all()


# ---------------------------------------------------------------------------------------------------------------------
# Numbers
# ---------------------------------------------------------------------------------------------------------------------

COUNTS = [3, 2, 1]
NUMBERS = {
    "gamma": (lambda v: eq.FocalLoss(v), [NAN, INF, -0.5]),
    "gamma (functional)": (lambda v: F.focal_loss(logits(), torch.zeros(4, dtype=torch.long), gamma=v), [NAN, -1.0]),
    "gamma (per class)": (lambda v: eq.FocalLoss(gamma=[1.0, v, 2.0]), [NAN, -1.0]),
    "gamma (binary)": (lambda v: eq.BinaryFocalLoss(v), [NAN, -1.0]),
    "gamma (schedule)": (lambda v: eq.FocalLoss(Linear(v, 1.0)), [-1.0]),
    "gamma (table)": (lambda v: eq.SampleDependentFocalLoss(((0.5, v), (1.0, 1.0))), [NAN, -1.0]),
    "gamma_hc": (lambda v: eq.CyclicalFocalLoss(5, gamma_hc=v), [NAN, -1.0]),
    "gamma_lc": (lambda v: eq.CyclicalFocalLoss(5, gamma_lc=v), [NAN, -1.0]),
    "gamma_pos": (lambda v: eq.AsymmetricLoss(v), [NAN, -1.0]),
    "gamma_pos (softmax)": (lambda v: eq.AsymmetricSoftmaxLoss(v), [NAN, -1.0]),
    "gamma_neg": (lambda v: eq.AsymmetricLoss(gamma_neg=v), [NAN, -1.0]),
    "gamma_neg (start)": (lambda v: eq.AsymmetricLoss(gamma_neg=v, target_gap=0.5), [NAN, -1.0, 11.0]),
    "gamma_neg (cyclical)": (lambda v: eq.CyclicalAsymmetricLoss(5, gamma_neg=v), [NAN, -1.0]),
    "gamma_max": (lambda v: eq.AsymmetricLoss(target_gap=0.5, gamma_max=v), [NAN, -1.0, INF]),
    "gap_step": (lambda v: eq.AsymmetricLoss(target_gap=0.5, gap_step=v), [NAN, -1.0]),
    "target_gap": (lambda v: eq.AsymmetricLoss(target_gap=v), [NAN, 1.5, -2.0]),
    "margin": (lambda v: eq.AsymmetricLoss(margin=v), [NAN, -0.1, 1.1]),
    "alpha": (lambda v: eq.BinaryFocalLoss(alpha=v), [NAN, -0.1, 1.1]),
    "label_smoothing": (lambda v: eq.CrossEntropyLoss(label_smoothing=v), [NAN, -0.1, 1.1]),
    "xi": (lambda v: SoftmaxLoss(cyclical(v)), [NAN, -0.1, 1.1]),
    "factor": (lambda v: eq.CyclicalFocalLoss(5, factor=v), [NAN, 0.5, INF]),
    "epochs": (lambda v: eq.CyclicalFocalLoss(v), [0, -3]),
    "momentum": (lambda v: eq.RecallLoss(3, momentum=v), [0.0, -0.1, 1.1, NAN]),
    "min_errors": (lambda v: eq.RecallLoss(3, min_errors=v), [-1.0, NAN]),
    "num_classes": (lambda v: eq.RecallLoss(v), [0, -2]),
    "num_classes (precision)": (lambda v: eq.PrecisionLoss(v), [0]),
    "tau": (lambda v: eq.LogitAdjustedLoss(COUNTS, tau=v), [NAN, INF]),
    "max_margin": (lambda v: eq.LDAMLoss(COUNTS, max_margin=v), [NAN, -0.1]),
    "scale": (lambda v: eq.LDAMLoss(COUNTS, scale=v), [NAN, 0.0, -1.0]),
    "beta": (lambda v: eq.ClassBalancedLoss(COUNTS, beta=v), [NAN, -0.1, 1.1]),
    "beta (weights)": (lambda v: effective_number(COUNTS, v), [NAN, -0.1, 1.1]),
    "keep": (lambda v: eq.OHEMLoss(v), [NAN, -0.1, 1.1]),
    "keep (functional)": (lambda v: F.ohem_loss(logits(), torch.zeros(4).long(), keep=v), [NAN, -0.1, 1.1]),
    "min_kept": (lambda v: eq.OHEMLoss(min_kept=v), [-1]),
    "min_kept (functional)": (lambda v: F.ohem_loss(logits(), torch.zeros(4).long(), min_kept=v), [-1]),
    "strength": (lambda v: eq.MMCELoss(v), [NAN, -1.0]),
    "num_samples": (lambda v: eq.DistributionBalancedLoss(COUNTS, v), [NAN, 3, 1]),
    "num_samples (few)": (lambda v: eq.DistributionBalancedLoss([0.5, 0.2], v), [1, 0.7]),
    "neg_scale": (lambda v: eq.DistributionBalancedLoss(COUNTS, 9, neg_scale=v), [NAN, 0.0, -1.0]),
    "init_bias": (lambda v: eq.DistributionBalancedLoss(COUNTS, 9, init_bias=v), [NAN]),
    "mu": (lambda v: eq.DistributionBalancedLoss(COUNTS, 9, mu=v), [NAN]),
    "start": (lambda v: Deferred(COUNTS, start=v), [NAN, -0.1, 1.1]),
    "start_epoch": (lambda v: Deferred(COUNTS, start_epoch=v), [-1]),
    "p0": (lambda v: eq.gamma_for(v), [NAN, 0.0, -0.1]),
    "margin_step": (lambda v: eq.AsymmetricLoss(target_gap=0.1, margin_step=v), [NAN, -0.1]),
    "margin_max": (lambda v: eq.AsymmetricLoss(target_gap=0.1, margin_step=0.1, margin_max=v), [NAN, -0.1, 1.0]),
    "margin (adaptive)": (lambda v: eq.AsymmetricLoss(target_gap=0.1, margin_step=0.1, margin=v), [NAN, -0.1, 0.6]),
    "p": (lambda v: eq.focal_gradient_ratio(v, 2.0), [NAN, -0.1, 1.1]),
    "gamma (ratio)": (lambda v: eq.focal_gradient_ratio(0.5, v), [NAN, INF, -1.0]),
    "posterior": (lambda v: eq.focal_optimum(v, 2.0), [NAN, -0.1, 1.1]),
    "gamma (optimum)": (lambda v: eq.focal_optimum(0.7, v), [NAN, INF, -1.0]),
    "gamma (bound)": (lambda v: eq.focal_kl_bound(torch.ones(1), torch.ones(1), v), [NAN, 0.9]),
    "gamma (mislabel)": (lambda v: eq.mislabel_point(v, 0.05), [NAN, -1.0]),
    "margin (mislabel)": (lambda v: eq.mislabel_point(4.0, v), [NAN, -0.1, 1.0]),
    "value": (lambda v: Constant(v), [NAN]),
    "start (linear)": (lambda v: Linear(v, 1.0), [NAN, INF]),
    "stop": (lambda v: Cosine(1.0, v), [NAN]),
    "stop (parabolic)": (lambda v: Parabolic(1.0, v), [NAN]),
    "values": (lambda v: Steps((1.0, v), at=(0.5,)), [NAN]),
}
WHOLE_NUMBERS = ("epochs", "num_classes", "min_kept", "start_epoch")
CASES = [
    pytest.param(name.split(" ")[0], build, value, id=f"{name}={value}")
    for name, (build, values) in NUMBERS.items()
    for value in values
]


@pytest.mark.parametrize(("argument", "build", "value"), CASES)
def test_numbers_out_of_range(argument, build, value):
    expected = "an integer of at least " if argument in WHOLE_NUMBERS else "a finite number in "
    with pytest.raises(ValueError, match=says(argument, f"must be {expected}", f"got {value!r}")):
        build(value)


WHOLE = {
    "num_classes": lambda v: eq.RecallLoss(v).batch_weights[0].num_classes,
    "num_classes (precision)": lambda v: eq.PrecisionLoss(v).batch_weights[0].num_classes,
    "epochs": lambda v: eq.CyclicalFocalLoss(v).epochs,
    "epochs (recall)": lambda v: eq.RecallLoss(3, epochs=v).epochs,
    "min_kept": lambda v: eq.OHEMLoss(min_kept=v).min_kept,
    "start_epoch": lambda v: Deferred(COUNTS, start_epoch=v).start_epoch,
    "k": lambda v: eq.losses.RangeLoss(v).k,
    "ignore_index": lambda v: eq.FocalLoss(ignore_index=v).ignore_index,
    "ignore_index (region)": lambda v: eq.DiceLoss(ignore_index=v).ignore_index,
    "ignore_index (lifted)": lambda v: eq.losses.LiftedStructureLoss(ignore_index=v).ignore_index,
    "ignore_index (range)": lambda v: eq.losses.RangeLoss(ignore_index=v).ignore_index,
}


@pytest.mark.parametrize(
    ("argument", "build"), [pytest.param(name.split(" ")[0], build, id=name) for name, build in WHOLE.items()]
)
def test_whole_numbers(argument, build):
    for value in (2.5, 3.0, NAN, "3", True, np.float64(3.0), [3], torch.tensor(3), 2j):
        with pytest.raises(TypeError, match=says(argument, "must be an integer", f"got {value!r}")):
            build(value)
    for value in (3, np.int64(3), np.uint8(3)):
        assert build(value) == 3
        assert type(build(value)) is int  # whatever else would reach compilers and kernels


@pytest.mark.parametrize("value", ["2", None, torch.tensor(2.0), True, 2j], ids=repr)
def test_numbers_of_wrong_type(value):
    with pytest.raises(TypeError, match=says("gamma_hc", "must be a number in [0, inf]", "got ", "pass a float")):
        eq.CyclicalFocalLoss(5, gamma_hc=value)
    if value is not None:
        with pytest.raises(TypeError, match=says("momentum", "must be a number in (0, 1]", "got ", "pass a float")):
            eq.RecallLoss(3, momentum=value)


@pytest.mark.parametrize(
    ("argument", "build"),
    {
        "alpha": lambda v: eq.TverskyLoss(v),
        "smooth": lambda v: eq.DiceLoss(smooth=v),
        "momentum": lambda v: eq.RecallLoss(3, momentum=v),
        "min_errors": lambda v: eq.RecallLoss(3, min_errors=v),
        "beta": lambda v: eq.ClassBalancedLoss(COUNTS, beta=v),
        "init_bias": lambda v: eq.DistributionBalancedLoss(COUNTS, 9, init_bias=v),
        "neg_scale": lambda v: eq.DistributionBalancedLoss(COUNTS, 9, neg_scale=v),
        "gamma_neg": lambda v: eq.AsymmetricLoss(gamma_neg=v, target_gap=0.5),
        "target_gap": lambda v: eq.AsymmetricLoss(target_gap=v),
        "min_kept": lambda v: eq.OHEMLoss(min_kept=v),
        "factor": lambda v: eq.CyclicalFocalLoss(5, factor=v),
    }.items(),
)
def test_numbers_that_take_no_schedule(argument, build):
    with pytest.raises(TypeError, match=says(argument, "got Linear", f"{argument} takes no schedule")):
        build(Linear(0.1, 0.2))


Z, Y, T = logits(), torch.tensor([0, 1, 2, 0]), torch.zeros(4, 3)
FUNCTIONAL = {
    "gamma": lambda v: F.focal_loss(Z, Y, gamma=v),
    "label_smoothing": lambda v: F.cross_entropy_loss(Z, Y, label_smoothing=v),
    "gamma (parts)": lambda v: F.softmax_loss(Z, Y, modulation=focal(v)),
    "gamma_pos (table)": lambda v: F.softmax_loss(Z, Y, modulation=Modulation(ByConfidence(((1.0, v),)))),
    "gamma (table)": lambda v: F.sample_dependent_focal_loss(Z, Y, table=((1.0, v),)),
    "xi": lambda v: F.cyclical_focal_loss(Z, Y, xi=v),
    "gamma_hc": lambda v: F.cyclical_focal_loss(Z, Y, xi=0.0, gamma_hc=v),
    "gamma_lc": lambda v: F.cyclical_focal_loss(Z, Y, xi=0.5, gamma_lc=v),
    "gamma_neg": lambda v: F.cyclical_asymmetric_loss(Z, Y, xi=0.5, gamma_neg=v),
    "gamma_pos": lambda v: F.asymmetric_softmax_loss(Z, Y, gamma_pos=v),
    "min_errors": lambda v: F.recall_loss(Z, Y, min_errors=v),
    "beta": lambda v: F.class_balanced_loss(Z, Y, COUNTS, beta=v),
    "max_margin": lambda v: F.ldam_loss(Z, Y, COUNTS, max_margin=v),
    "scale": lambda v: F.ldam_loss(Z, Y, COUNTS, scale=v),
    "tau": lambda v: F.logit_adjusted_loss(Z, Y, COUNTS, tau=v),
    "keep": lambda v: F.ohem_loss(Z, Y, keep=v),
    "strength": lambda v: F.mmce_loss(Z, Y, strength=v),
    "alpha": lambda v: F.binary_focal_loss(Z, T, alpha=v),
    "margin": lambda v: F.asymmetric_loss(Z, T, margin=v),
    "alpha (balanced)": lambda v: F.distribution_balanced_loss(Z, T, COUNTS, 9, alpha=v),
    "mu": lambda v: F.distribution_balanced_loss(Z, T, COUNTS, 9, mu=v),
    "neg_scale": lambda v: F.distribution_balanced_loss(Z, T, COUNTS, 9, neg_scale=v),
    "balance": lambda v: F.distribution_balanced_loss(Z, T, COUNTS, 9, balance=v),
    "alpha (tversky)": lambda v: F.tversky_loss(Z, Y, alpha=v),
    "smooth": lambda v: F.dice_loss(Z, Y, smooth=v),
}


@pytest.mark.parametrize(
    ("argument", "call"), [pytest.param(name.split(" ")[0], call, id=name) for name, call in FUNCTIONAL.items()]
)
def test_functions_take_no_schedule(argument, call):
    with pytest.raises(TypeError, match=says(argument, "must be a number", "got ", "pass")):
        call(Linear(0.1, 0.2))


def test_functions_without_a_schedule_compile():
    torch.compiler.reset()
    compiled = torch.compile(lambda z: F.focal_loss(z, Y, gamma=2.0), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(Z), F.focal_loss(Z, Y, gamma=2.0))
    torch.compiler.reset()


@pytest.mark.parametrize("gamma", ["25", ["2", "5"], ("2", 5.0)], ids=str)
def test_exponents_must_not_be_strings(gamma):
    for build in (eq.FocalLoss, eq.BinaryFocalLoss):
        with pytest.raises(TypeError, match=says("gamma", "must be a number", "got str '2", "pass a float")):
            build(gamma=gamma)


def test_what_moves_in_training_is_a_schedule():
    with pytest.raises(TypeError, match=says("gamma", "got function", "equipoise.schedules")):
        eq.FocalLoss(lambda progress: 2.0)
    with pytest.raises(ValueError, match=says("gamma", "3 classes", "got 4 entries", "Steps(...)")):
        eq.FocalLoss(gamma=(5.0, 3.0, 1.0, 0.0))(Z, Y)
    with pytest.raises(TypeError, match=says("num_classes", "an integer", "got [1, 2, 3]", "pass one number")):
        eq.RecallLoss(num_classes=[1, 2, 3])


def test_both_ends_of_a_schedule_are_checked():
    for build in (
        lambda **o: eq.FocalLoss(Linear(3.0, -1.0), **o),
        lambda **o: eq.FocalLoss(Steps((3.0, 1.0, -1.0), at=(0.2, 0.4)), **o),
    ):
        for options in ({}, {"epochs": 100}):
            with pytest.raises(ValueError, match=says("gamma", "[0, inf]", "got -", "where its schedule ends")):
                build(**options)
    eq.LDAMLoss(COUNTS, scale=Linear(30.0, 0.0), epochs=10).set_epoch(9)  # 0 is never reached
    with pytest.raises(ValueError, match=says("scale", "(0, inf]", "got 0.0", "where its schedule ends")):
        eq.LDAMLoss(COUNTS, scale=Linear(30.0, 0.0))


def test_gamma_for_half_and_above():
    for p0 in (0.5, 0.7, 1.0):
        message = says("p0", "must be below 0.5", f"got {p0!r}", "no gamma > 0 gives the gradient of cross-entropy")
        with pytest.raises(ValueError, match=message):
            eq.gamma_for(p0)


@pytest.mark.filterwarnings("ignore:a softmax over one class")
def test_number_checks_allow_the_ends():
    assert eq.RecallLoss(1, momentum=1.0)(torch.zeros(2, 1), torch.zeros(2).long()).item() == 0
    for build in (
        lambda: eq.FocalLoss(0.0),
        lambda: eq.CyclicalFocalLoss(1, factor=1.0),
        lambda: eq.OHEMLoss(0.0),
        lambda: eq.OHEMLoss(1.0),
        lambda: eq.ClassBalancedLoss(COUNTS, beta=1.0),
        lambda: eq.ClassBalancedLoss(COUNTS, beta=0.0),
        lambda: eq.CrossEntropyLoss(label_smoothing=1.0),
    ):
        loss = build()
        loss.set_epoch(0)
        assert loss(logits(), torch.tensor([0, 1, 2, 0])).isfinite()


# ---------------------------------------------------------------------------------------------------------------------
# One number for each class
# ---------------------------------------------------------------------------------------------------------------------

INDICES, LABELS = torch.tensor([0, 1, 2, 0]), torch.zeros(4, 3)
LENGTHS = {
    "weight": (lambda: eq.CrossEntropyLoss([1.0, 2.0]), INDICES),
    "weight (focal)": (lambda: eq.FocalLoss(weight=[1.0, 2.0, 3.0, 4.0]), INDICES),
    "weight (deferred)": (lambda: eq.CrossEntropyLoss(Deferred([1.0, 2.0], start=0.0)), INDICES),
    "weight (sigmoid)": (lambda: eq.AsymmetricLoss(weight=[1.0, 2.0]), LABELS),
    "pos_weight": (lambda: eq.BinaryCrossEntropyLoss(pos_weight=[1.0, 2.0]), LABELS),
    "gamma": (lambda: eq.FocalLoss(gamma=[1.0, 2.0]), INDICES),
    "gamma (tensor)": (lambda: eq.FocalLoss(gamma=torch.tensor([1.0, 2.0])), INDICES),
    "gamma (binary)": (lambda: eq.BinaryFocalLoss(gamma=[1.0, 2.0]), LABELS),
    "gamma_neg": (lambda: eq.AsymmetricLoss(gamma_neg=[1.0, 2.0]), LABELS),
    "gamma_pos": (lambda: eq.AsymmetricLoss(gamma_pos=[1.0, 2.0]), LABELS),
    "counts": (lambda: eq.LogitAdjustedLoss([5, 3]), INDICES),
    "counts (balanced softmax)": (lambda: eq.BalancedSoftmaxLoss([5, 3]), INDICES),
    "counts (LDAM)": (lambda: eq.LDAMLoss([5, 3]), INDICES),
    "counts (inverse frequency)": (lambda: eq.InverseFrequencyLoss([5, 3]), INDICES),
    "counts (class balanced)": (lambda: eq.ClassBalancedLoss([5, 3, 2, 1]), INDICES),
    "counts (distribution balanced)": (lambda: eq.DistributionBalancedLoss([5, 3], 9), LABELS),
    "counts (rebalanced)": (lambda: SigmoidLoss(rebalanced=Rebalanced([5, 3])), LABELS),
    "offset": (lambda: SoftmaxLoss(adjustment=Adjustment(np.array([0.5, 0.3]))), INDICES),
    "offset (sigmoid)": (lambda: SigmoidLoss(adjustment=NegativeTolerance([0.5, 0.3])), LABELS),
}


@pytest.mark.parametrize(
    ("argument", "build", "targets"),
    [pytest.param(name.split(" ")[0], *case, id=name) for name, case in LENGTHS.items()],
)
def test_wrong_number_of_classes(argument, build, targets):
    loss = build().eval()
    with pytest.raises(ValueError, match=says(argument, "each of the 3 classes", "got ", "entries")):
        loss(logits(), targets)


@pytest.mark.parametrize("c", [2, 3, 5])
def test_two_weights_of_different_length(c):
    with pytest.raises(ValueError, match=says("weight", "same length", f"got 4 and {c} entries", "check the number")):
        eq.CrossEntropyLoss([ClassWeights([1.0] * 4), [1.0] * c])


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("num_classes", [2, 5])
@pytest.mark.parametrize(
    "build",
    [
        lambda c: eq.RecallLoss(c),
        lambda c: eq.RecallLoss(c, momentum=0.5),
        lambda c: eq.PrecisionLoss(c),
    ],
    ids=["batch", "average", "precision"],
)
def test_num_classes_that_the_logits_do_not_have(build, num_classes, training):
    loss = build(num_classes).train(training)
    message = says("num_classes", f"got num_classes={num_classes}", "logits of 3", "change num_classes or the number")
    with pytest.raises(ValueError, match=message):
        loss(logits(), INDICES)


def test_a_per_class_exponent_keeps_its_number_of_labels():
    loss = eq.AsymmetricLoss(target_gap=0.5, per_class=True)
    loss(logits(), LABELS)
    with pytest.raises(ValueError, match=says("gamma_neg", "each of the 2 classes", "got 3 entries")) as caught:
        loss(logits(2), LABELS[:, :2])
    assert str(caught.value).endswith("; check the number of outputs of the model")  # no schedule: it is steered


COUNTED = {
    "inverse": lambda counts: inverse_frequency(counts),
    "square root": lambda counts: square_root(counts),
    "effective": lambda counts: effective_number(counts),
    "median": lambda counts: median_frequency(counts),
    "InverseFrequencyLoss": lambda counts: eq.InverseFrequencyLoss(counts),
    "ClassBalancedLoss": lambda counts: eq.ClassBalancedLoss(counts),
    "LDAMLoss": lambda counts: eq.LDAMLoss(counts),
    "LogitAdjustedLoss": lambda counts: eq.LogitAdjustedLoss(counts),
    "BalancedSoftmaxLoss": lambda counts: eq.BalancedSoftmaxLoss(counts),
    "DistributionBalancedLoss": lambda counts: eq.DistributionBalancedLoss(counts, 100),
    "Rebalanced": lambda counts: Rebalanced(counts),
}


@pytest.mark.parametrize("build", COUNTED.values(), ids=COUNTED)
def test_impossible_counts(build):
    for counts, parts in (
        ([3, -1], ("finite and not negative", "got [3.0, -1.0]", "count the training labels")),
        ([3.0, NAN], ("finite and not negative", "got [3.0, nan]", "count")),
        ([3.0, INF], ("finite and not negative", "got [3.0, inf]", "count")),
        ([0, 0, 0], ("at least one sample", "got only zeros", "count the training labels")),
        ([], ("shape (C,)", "got shape (0,)", "bincount")),
        (torch.ones(2, 2), ("shape (C,)", "got shape (2, 2)", "bincount")),
        (torch.tensor(5), ("shape (C,)", "got shape ()", "bincount")),
    ):
        with pytest.raises(ValueError, match=says("counts", *parts)):
            build(counts)


@pytest.mark.parametrize("build", COUNTED.values(), ids=COUNTED)
def test_shares_in_place_of_counts(build):
    for shares in ([0.7, 0.2, 0.1], torch.tensor([0.7, 0.2, 0.1]), [0.33, 0.33, 0.33]):
        if build in (COUNTED[name] for name in ("inverse", "square root", "median", "InverseFrequencyLoss")):
            build(shares)  # only their ratios matter
        else:
            with pytest.raises(ValueError, match=says("counts", "numbers of training samples", "got [0.", "multiply")):
                build(shares)
    build([1, 0, 0])
    build([0.5, 20.5])  # of soft labels


def test_weights_do_not_care_about_the_size_of_counts():
    for weigh in (inverse_frequency, square_root, median_frequency):
        torch.testing.assert_close(weigh([0.7, 0.2, 0.1]), weigh([70, 20, 10]))


NO_VECTORS = {
    "dict": ({0: 3.0, 1: 2.0, 2: 1.0}, "got an object of type dict", "in the order of the classes: ["),
    "counter": (Counter([0, 0, 1, 2]), "got an object of type Counter", "in the order of the classes: ["),
    "values": ({0: 3.0, 1: 2.0}.values(), "got an object of type dict_values", "pass list(...)"),
    "numbers as text": (["3", "2"], "got ", ""),
}


@pytest.mark.parametrize(("value", "came", "advice"), NO_VECTORS.values(), ids=NO_VECTORS)
def test_class_vectors_must_be_numeric(value, came, advice):
    for build in COUNTED.values():
        with pytest.raises(TypeError, match=says("counts", "per class, shape (C,)", came, advice)):
            build(value)
    for build in (lambda: eq.FocalLoss(weight=value), lambda: F.focal_loss(Z, Y, weight=value)):
        with pytest.raises(TypeError, match=says("weight", "per class, shape (C,)", came, advice)):
            build()


def test_numbers_beside_weights_of_the_batch():
    """They are weights of their own, so that one number is no vector."""
    for weight in ([2.0, RecallWeights(3)], [RecallWeights(3), 2.0]):
        with pytest.raises(ValueError, match=says("weight", "one number per class", "got shape ()", "a vector")):
            eq.CrossEntropyLoss(weight)


def test_words_and_losses_in_place_of_weights():
    for word in ("balanced", "inverse"):
        with pytest.raises(TypeError, match=says("weight", f"got the word '{word}'", "inverse_frequency(counts)")):
            eq.CrossEntropyLoss(word)
    with pytest.raises(
        TypeError, match=says("weight", "got an object of type RecallLoss", "RecallWeights(num_classes)")
    ):
        eq.FocalLoss(weight=eq.RecallLoss(3))
    with pytest.raises(TypeError, match=says("weight", "got an object of type Deferred", "as a module")):
        F.focal_loss(Z, Y, weight=Deferred(COUNTS))


@pytest.mark.parametrize("name", ["weight", "pos_weight"])
@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ([1.0, NAN, 1.0], ("finite and not negative", "got [1.0, nan, 1.0]", "0 to ignore a class")),
        ([1.0, -1.0, 1.0], ("finite and not negative", "got [1.0, -1.0, 1.0]", "0 to ignore a class")),
        ([1.0, INF, 1.0], ("finite and not negative", "got [1.0, inf, 1.0]", "0 to ignore a class")),
        (torch.ones(1, 3), ("shape (C,)", "got shape (1, 3)")),
        (torch.tensor(2.0), ("shape (C,)", "got shape ()")),
    ],
    ids=["NaN", "negative", "infinite", "matrix", "scalar"],
)
def test_impossible_weights(name, value, parts):
    with pytest.raises(ValueError, match=says(name, *parts)):
        eq.BinaryCrossEntropyLoss(**{name: value})
    if name == "weight":
        for build in (lambda: eq.FocalLoss(weight=value), lambda: Deferred(value)):
            with pytest.raises(ValueError, match=says(name, *parts)):
                build()


VECTORS = {
    "offset": lambda v: Adjustment(offset=v),
    "margin": lambda v: Adjustment(margin=v),
    "offset (sigmoid)": lambda v: NegativeTolerance(offset=v),
}


@pytest.mark.parametrize(
    ("argument", "build"), [pytest.param(name.split(" ")[0], build, id=name) for name, build in VECTORS.items()]
)
def test_numbers_of_adjustments(argument, build):
    numbers = (0.5, -1.0, 0.25)
    for given in (list(numbers), torch.tensor(numbers, requires_grad=True), np.array(numbers, dtype=np.float32)):
        assert build(given) == build(numbers)
    assert build([]) == build(())
    for given, came in (("abc", "got the word 'abc'"), (None, "got an object of type NoneType")):
        with pytest.raises(TypeError, match=says(argument, "one number per class", came, "pass a vector")):
            build(given)
    for given, came in (([1.0, NAN], "got [1.0, nan]"), ([1.0, -INF], "got [1.0, -inf]")):
        with pytest.raises(ValueError, match=says(argument, "must be finite", came, "use 0")):
            build(given)
    with pytest.raises(ValueError, match=says(argument, "shape (C,)", "got shape ()", "pass a vector")):
        build(0.5)


@pytest.mark.parametrize("value", [torch.tensor(1.0), torch.tensor([1.0, 2.0]), np.ones(2)], ids=repr)
def test_parts_hold_no_tensors_in_place_of_numbers(value):
    for argument, build in (
        ("scale", lambda: Adjustment(scale=value)),
        ("neg_scale", lambda: NegativeTolerance(neg_scale=value)),
        ("xi", lambda: Modulation(xi=value)),
        ("label_smoothing", lambda: eq.FocalLoss(label_smoothing=value)),
    ):
        with pytest.raises(TypeError, match=says(argument, "must be a number", f"got {type(value).__name__}")):
            build()


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_exponents_without_dimensions_are_one_number(gamma):
    for given in (torch.tensor(gamma), np.array(gamma), np.float32(gamma), torch.tensor(int(gamma))):
        for part in (focal(given), asymmetric(given, given), cyclical(0.5, 3.0, given, given)):
            assert {type(part.gamma_pos), type(part.gamma_neg)} <= {float, type(None)}
        assert repr(eq.FocalLoss(given)) == repr(eq.FocalLoss(gamma))
        assert eq.FocalLoss(given).layout == eq.FocalLoss(gamma).layout  # integer exponents are passed to the kernels


# ---------------------------------------------------------------------------------------------------------------------
# Words, tables, schedules, calls
# ---------------------------------------------------------------------------------------------------------------------

WORDS = {
    "reduction": (lambda v: eq.CrossEntropyLoss(reduction=v), ["'mean'", "'valid_mean'", "'none'"]),
    "reduction (sigmoid)": (lambda v: eq.AsymmetricLoss(reduction=v), ["'mean'", "'batch_mean'", "'none'"]),
    "reduction (recall)": (lambda v: eq.RecallLoss(3, reduction=v), ["'mean'", "'none'"]),
    "reduction (functional)": (lambda v: F.focal_loss(logits(), INDICES, reduction=v), ["'mean'", "'none'"]),
    "reduction (functional sigmoid)": (lambda v: F.asymmetric_loss(logits(), LABELS, reduction=v), ["'mean'"]),
    "reduction (region)": (lambda v: eq.DiceLoss(reduction=v), ["'mean'", "'none'"]),
    "preset": (lambda v: eq.FocalLoss(preset=v), ["'published'"]),
    "preset (cross-entropy)": (lambda v: eq.CrossEntropyLoss(preset=v), ["'published'"]),
    "preset (asymmetric)": (lambda v: eq.AsymmetricLoss(preset=v), ["'published'"]),
    "preset (recall)": (lambda v: eq.RecallLoss(3, preset=v), ["'published'"]),
    "preset (OHEM)": (lambda v: eq.OHEMLoss(preset=v), ["'published'"]),
    "preset (region)": (lambda v: eq.SoftIoULoss(preset=v), ["'published'"]),
    "init": (lambda v: eq.RecallLoss(3, momentum=0.5, init=v), ["'first'", "'published'"]),
    "normalization": (lambda v: eq.MMCELoss(normalization=v), ["'published'", "'definition'"]),
    "normalization (functional)": (lambda v: F.mmce_loss(logits(), INDICES, normalization=v), ["'definition'"]),
    "end": (lambda v: eq.CyclicalFocalLoss(5, end=v), ["'last_epoch'", "'epochs'"]),
    "end (schedule)": (lambda v: Cyclical(4.0, v), ["'last_epoch'", "'epochs'"]),
    "normalize": (lambda v: inverse_frequency(COUNTS, v), ["'sum_to_C'", "'mean_one_over_samples'"]),
    "normalize (loss)": (lambda v: eq.ClassBalancedLoss(COUNTS, normalize=v), ["'sum_to_C'"]),
}


@pytest.mark.parametrize(
    ("argument", "build", "known"),
    [pytest.param(name.split(" ")[0], *case, id=name) for name, case in WORDS.items()],
)
@pytest.mark.parametrize("word", ["typo", "", "Mean", 3], ids=repr)
def test_unknown_words(argument, build, known, word):
    with pytest.raises(ValueError, match=says(argument, "must be one of", *known, f"got {word!r}")):
        build(word)


REQUIRED = {"num_classes": 3, "epochs": 5, "counts": COUNTS, "num_samples": 9, "xi": 0.5}


def required_arguments(function):
    """Values for the arguments without a default, other than logits and targets."""
    parameters = inspect.signature(function).parameters.values()
    names = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return {name: REQUIRED[name] for name in names if name not in ("logits", "targets")}


@pytest.mark.parametrize("name", [name for name in eq.__all__ if name.endswith("Loss")])
def test_unknown_keywords(name):
    needed = required_arguments(getattr(eq, name))
    getattr(eq, name)(**needed)
    for keyword in ("gama", "ignore", "smoothing"):
        with pytest.raises(TypeError, match=rf"^{name} got an unexpected keyword argument '{keyword}'; "):
            getattr(eq, name)(**needed, **{keyword: 1.0})


@pytest.mark.parametrize(
    ("build", "hint"),
    [
        (lambda: eq.FocalLoss(gama=2.0), "did you mean 'gamma'?"),
        (lambda: eq.CrossEntropyLoss(wieght=None), "did you mean 'weight'?"),
        (lambda: eq.AsymmetricLoss(gamma=2.0), "did you mean 'gamma_pos', 'gamma_neg' or 'gamma_max'?"),
        (lambda: eq.DiceLoss(smooths=1.0), "did you mean 'smooth'?"),
        (lambda: eq.CrossEntropyLoss(size_average=True), "it takes weight, preset, label_smoothing"),
    ],
)
def test_unknown_keywords_are_answered_with_the_nearest(build, hint):
    with pytest.raises(TypeError, match=re.escape(hint)):
        build()


def test_losses_of_the_users_own_take_what_they_like():
    class Mine(eq.SoftmaxLoss):
        def __init__(self, sharpness, **options):
            super().__init__(**options)
            self.sharpness = sharpness

    assert Mine(sharpness=3, label_smoothing=0.1).sharpness == 3
    with pytest.raises(TypeError, match="unexpected keyword argument 'smoothing'"):
        Mine(sharpness=3, smoothing=0.1)


@pytest.mark.parametrize("name", F.__all__)
def test_unknown_keywords_of_functions(name):
    needed = required_arguments(getattr(F, name))
    targets = LABELS if name in BINARY else INDICES
    assert getattr(F, name)(logits(), targets, **needed).isfinite()
    with pytest.raises(TypeError, match=rf"^{name}(\(\))? got an unexpected keyword argument 'gama'"):
        getattr(F, name)(logits(), targets, gama=1.0, **needed)


BINARY = (
    "asymmetric_loss",
    "binary_cross_entropy_loss",
    "binary_focal_loss",
    "distribution_balanced_loss",
    "sigmoid_loss",
)


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        (((0.2, 5.0), (0.9, 3.0)), ("end at 1.0", "[0.2, 0.9]", "FLSD-53 is")),
        (((0.5, 5.0), (0.2, 3.0), (1.0, 1.0)), ("increasing bounds", "[0.5, 0.2, 1.0]", "FLSD-53 is")),
        (((0.5, 5.0), (0.5, 3.0), (1.0, 1.0)), ("increasing bounds", "[0.5, 0.5, 1.0]")),
        ((), ("(bound, gamma) pairs", "got bounds []", "FLSD-53 is")),
        (((1.2, 5.0),), ("[0, 1]", "got 1.2", "choose")),
        (((-0.1, 5.0), (1.0, 1.0)), ("[0, 1]", "got -0.1", "choose")),
        (((NAN, 5.0), (1.0, 1.0)), ("[0, 1]", "got nan", "choose")),
    ],
    ids=str,
)
def test_impossible_tables(table, parts):
    with pytest.raises(ValueError, match=says("table", *parts)):
        eq.SampleDependentFocalLoss(table)


@pytest.mark.parametrize("table", [[0.2, 5.0], 2.0, None, "FLSD-53", {"0.2": 5.0}, ((0.2, 5.0, 1.0),)], ids=repr)
def test_invalid_tables_raise(table):
    for build in (eq.SampleDependentFocalLoss, lambda v: F.sample_dependent_focal_loss(Z, Y, table=v)):
        with pytest.raises(TypeError, match=says("table", "(bound, gamma) pairs", f"got {table!r}", "FLSD-53 is")):
            build(table)


def test_tables_of_arrays():
    pairs = ((0.25, 5.0), (1.0, 3.0))
    for table in (np.array(pairs), torch.tensor(pairs), [list(pair) for pair in pairs]):
        assert ByConfidence(table) == ByConfidence(pairs)


@pytest.mark.parametrize(
    ("at", "parts"),
    [
        ((), ("2 increasing fractions", "3 pieces", "got ()", "divide epochs")),
        ((0.5,), ("2 increasing fractions", "3 pieces", "got (0.5,)")),
        ((0.2, 0.4, 0.6), ("2 increasing fractions", "got (0.2, 0.4, 0.6)")),
        ((0.6, 0.4), ("2 increasing fractions", "got (0.6, 0.4)", "divide epochs")),
        ((0.4, 0.4), ("2 increasing fractions", "got (0.4, 0.4)")),
        ((100, 250), ("fractions of the training in [0, 1]", "got (100.0, 250.0)", "divide epochs")),
        ((-0.1, 0.5), ("[0, 1]", "got (-0.1, 0.5)", "divide epochs")),
    ],
    ids=str,
)
def test_impossible_cuts(at, parts):
    for build in (
        lambda: Steps((5.0, 3.0, 1.0), at=at),
        lambda: join([Constant(1.0)] * 3, at=at),
        lambda: Join((Constant(1.0),) * 3, at),
    ):
        with pytest.raises(ValueError, match=says("at", *parts)):
            build()


def test_only_schedules_can_be_joined():
    with pytest.raises(TypeError, match=says("schedules", "must be Schedule objects", "got 2.0", "Constant")):
        join([Linear(0.0, 1.0), 2.0], at=[0.5])


@pytest.mark.parametrize("epoch", [5, 6, 1000, -1, -0.5, NAN, INF])
def test_epochs_beyond_the_schedule(epoch):
    for loss in (eq.CyclicalFocalLoss(5), eq.FocalLoss(Linear(0.0, 1.0), epochs=5)):
        message = says("epoch", "in [0, 4] for epochs=5", f"got {epoch!r}", "count from 0")
        with pytest.raises(ValueError, match=message):
            loss.set_epoch(epoch)
        loss.set_epoch(4)
        loss.set_epoch(0)


@pytest.mark.parametrize("epoch", ["2", None, [2]], ids=repr)
def test_epochs_must_be_integers(epoch):
    with pytest.raises(TypeError, match=says("epoch", "in [0, 4] for epochs=5", f"got {epoch!r}", "count from 0")):
        eq.CyclicalFocalLoss(5).set_epoch(epoch)


def test_set_epoch_needs_epochs():
    loss = eq.FocalLoss(Linear(0.0, 1.0))
    with pytest.raises(ValueError, match=says("set_epoch", "number of epochs", "got epochs=None", "epochs=E")):
        loss.set_epoch(0)
    loss.set_progress(0.5)
    for build in (
        lambda: eq.CrossEntropyLoss(Deferred([1.0, 2.0], start_epoch=3)),
        lambda: SigmoidLoss(weight=Deferred([1.0, 2.0], start_epoch=3)),
    ):
        with pytest.raises(ValueError, match=says("start_epoch", "number of epochs", "None", "epochs=E")):
            build()


@pytest.mark.parametrize("fraction", [-0.01, 1.01, 3, NAN])
def test_progress_beyond_the_schedule(fraction):
    for loss in (eq.CyclicalFocalLoss(5), eq.FocalLoss()):
        with pytest.raises(ValueError, match=says("fraction", "[0, 1]", f"got {fraction!r}", "choose")):
            loss.set_progress(fraction)


def test_a_schedule_that_leaves_the_legal_range():
    loss = eq.OHEMLoss(join([Linear(0.5, 1.5), Constant(0.5)], at=[0.8]), epochs=10)  # not at its ends
    loss.set_epoch(4)
    with pytest.raises(ValueError, match=says("keep", "[0, 1]", "got 1.25", "choose")):
        loss.set_epoch(6)


@pytest.mark.parametrize("loss", [eq.FocalLoss(), eq.AsymmetricLoss()], ids=["softmax", "sigmoid"])
def test_a_normalizer_is_not_negative(loss):
    targets = torch.zeros(4).long() if isinstance(loss, eq.SoftmaxLoss) else torch.zeros(4, 3)
    with pytest.raises(ValueError, match=says("normalizer", "must not be negative", "got -1")):
        loss(torch.zeros(4, 3), targets, normalizer=-1)


def test_a_normalizer_needs_a_reduction():
    message = says("normalizer", "must be None for reduction='none'", "got one", "divide the losses yourself")
    for build, targets in (
        (lambda: eq.FocalLoss(reduction="none"), INDICES),
        (lambda: eq.AsymmetricLoss(reduction="none"), LABELS),
    ):
        with pytest.raises(ValueError, match=message):
            build()(logits(), targets, normalizer=2.0)
    with pytest.raises(ValueError, match=message):
        F.focal_loss(logits(), INDICES, reduction="none", normalizer=2.0)


NORMALIZED = {
    "softmax": lambda n: eq.FocalLoss()(Z, Y, normalizer=n),
    "sigmoid": lambda n: eq.AsymmetricLoss()(Z, T, normalizer=n),
    "rows": lambda n: eq.OHEMLoss()(Z, Y, normalizer=n),
    "function": lambda n: F.focal_loss(Z, Y, normalizer=n),
}
each_normalized = pytest.mark.parametrize("call", NORMALIZED.values(), ids=NORMALIZED)


@each_normalized
def test_a_normalizer_is_one_number(call):
    for value, came in (
        ("2", "got '2'"),
        ([2.0], "got [2.0]"),
        (True, "got True"),
        (2j, "got 2j"),
        (torch.ones(3), "got torch.float32 (3,)"),
        (torch.ones(0), "got torch.float32 (0,)"),
        (torch.tensor(2j), "got torch.complex64 ()"),
    ):
        with pytest.raises(TypeError, match=says("normalizer", "a number or a tensor of one", came, "pass one number")):
            call(value)


@each_normalized
def test_a_normalizer_changes_neither_dtype_nor_shape(call):
    expected = call(2.0)
    assert (expected.dtype, expected.shape) == (torch.float32, ())
    numbers = (2, np.float64(2.0), np.int64(2))
    tensors = (torch.tensor(2.0, dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64), torch.tensor([[2]]))
    for normalizer in (*numbers, *tensors):
        actual = call(normalizer)
        assert (actual.dtype, actual.shape) == (torch.float32, ())
        assert torch.equal(actual, expected)


@each_sigmoid
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (4,), (2, 4, 3)], ids=str)
def test_element_weights_of_wrong_shape(build, shape):
    message = says("element_weight", "broadcast", "(4, 3)", f"got {shape}")
    with pytest.raises(ValueError, match=message):
        build()(logits(), LABELS, element_weight=torch.ones(shape))


def test_element_weights_that_broadcast():
    for shape in ((4, 3), (1, 3), (4, 1), (3,), ()):
        weight = torch.rand(shape, generator=torch.Generator().manual_seed(1))
        expected = (eq.BinaryCrossEntropyLoss(reduction="none")(logits(), LABELS) * weight).mean()
        torch.testing.assert_close(eq.BinaryCrossEntropyLoss()(logits(), LABELS, element_weight=weight), expected)


def test_parts_that_exclude_one_another():
    for weights in (RecallWeights(3), PrecisionWeights(3)):
        with pytest.raises(TypeError, match=says("weight", "sigmoid loss", f"got {type(weights).__name__}", "softmax")):
            SigmoidLoss(weight=weights)
    with pytest.raises(ValueError, match=says("gamma_neg", "must be None", "got both", "asymmetry")):
        SigmoidLoss(asymmetric(0.0, 4.0), asymmetry=eq.AsymmetricLoss(target_gap=0.5).asymmetry)
    adapted = eq.AsymmetricLoss(target_gap=0.5, margin_step=0.01).asymmetry
    with pytest.raises(ValueError, match=r"margin must be 0 if asymmetry adapts it, got 0.1; pass the start to asym"):
        SigmoidLoss(margin=0.1, asymmetry=adapted)
    with pytest.raises(ValueError, match=r"margin_step must be None without target_gap, got 0.01; set target_gap"):
        eq.AsymmetricLoss(margin_step=0.01)
    with pytest.raises(TypeError, match=says("gamma_neg", "must be a number", "got Linear", "pass a float")):
        eq.AsymmetricLoss(gamma_neg=Linear(1.0, 2.0), target_gap=0.5)
    assert SigmoidLoss(focal(1.0), asymmetry=eq.AsymmetricLoss(target_gap=0.5).asymmetry)(logits(), LABELS).isfinite()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SoftmaxLoss(2.0), ("modulation must be focal", "got 2.0; omit it")),
        (lambda: SoftmaxLoss(focal), ("modulation must be", "got focal itself instead of focal(...)")),
        (lambda: SigmoidLoss("focal"), ("modulation must be", "got 'focal'")),
        (lambda: SoftmaxLoss(adjustment=[1, 2, 3]), ("adjustment must be logit_adjustment(counts)", "of type list")),
        (lambda: SigmoidLoss(adjustment=logit_adjustment([1, 2])), ("adjustment must be NegativeTolerance",)),
        (lambda: SigmoidLoss(rebalanced=[1, 2, 3]), ("rebalanced must be Rebalanced(...)", "of type list")),
        (lambda: SoftmaxLoss(weight=Linear(0.0, 1.0)), ("weight must be one number", "Linear(", "Deferred(weight")),
        (
            lambda: SoftmaxLoss(weight=[[1.0, 2.0], Linear(0.0, 1.0)]),
            ("weight must be one", "Linear", "weights take no schedule"),
        ),
        (lambda: SoftmaxLoss(weight=RecallWeights), ("weight must be", "RecallWeights itself", "RecallWeights(...)")),
        (
            lambda: eq.FocalLoss(weight=effective_number),
            ("weight must be", "effective_number itself instead of effective_number(...)"),
        ),
        (lambda: SigmoidLoss(asymmetry=AdaptiveAsymmetry), ("asymmetry must be", "AdaptiveAsymmetry itself")),
    ],
)
def test_invalid_parts_raise(make, words):
    with pytest.raises(TypeError, match=says(words[0].partition(" ")[0], *words[1:])) as caught:
        make()
    assert words[0] in str(caught.value)
