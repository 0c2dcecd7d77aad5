"""The public surface: what ``__all__`` promises, and every name, argument and default of the specification."""

import importlib
import inspect
import math
import subprocess
import sys
import typing

import pytest
import torch
from torch.testing import assert_close

import equipoise as eq
from equipoise import functional as F

MODULES = [
    "equipoise",
    "equipoise.calibration",
    "equipoise.data",
    "equipoise.functional",
    "equipoise.heads",
    "equipoise.losses",
    "equipoise.metrics",
    "equipoise.models",
    "equipoise.schedules",
    "equipoise.weights",
]
each_module = pytest.mark.parametrize("module", [importlib.import_module(name) for name in MODULES], ids=MODULES)

# The specification, section 10 (losses): name, required first arguments by name, defaults in its order.
SIGNATURES = {
    "CrossEntropyLoss": ((), {"weight": None}),
    "FocalLoss": ((), {"gamma": 2.0, "epochs": None}),
    "SampleDependentFocalLoss": ((), {"table": ((0.2, 5.0), (1.0, 3.0))}),
    "CyclicalFocalLoss": (("epochs",), {"gamma_hc": 3.0, "gamma_lc": 2.0, "factor": 4.0}),
    "AsymmetricSoftmaxLoss": ((), {"gamma_pos": 0.0, "gamma_neg": 4.0, "label_smoothing": 0.1}),
    "CyclicalAsymmetricLoss": (
        ("epochs",),
        {"gamma_hc": 2.0, "gamma_pos": 0.0, "gamma_neg": 4.0, "factor": 4.0, "label_smoothing": 0.1},
    ),
    "RecallLoss": (
        ("num_classes",),
        {"momentum": None, "min_errors": 1.0, "init": "first", "sync": True, "reduction": "valid_mean"},
    ),
    "InverseFrequencyLoss": (("counts",), {}),
    "ClassBalancedLoss": (("counts",), {"beta": 0.9999}),
    "LDAMLoss": (("counts",), {"max_margin": 0.5, "scale": 30.0}),
    "BalancedSoftmaxLoss": (("counts",), {}),
    "LogitAdjustedLoss": (("counts",), {"tau": 1.0}),
    "OHEMLoss": ((), {"keep": 0.7, "min_kept": 0}),
    "BrierLoss": ((), {}),
    "MMCELoss": ((), {"strength": 2.0, "normalization": "published"}),
    "BinaryCrossEntropyLoss": ((), {"weight": None, "pos_weight": None, "reduction": "mean"}),
    "BinaryFocalLoss": ((), {"gamma": 2.0, "alpha": None, "reduction": "mean"}),
    "AsymmetricLoss": (
        (),
        {
            "gamma_pos": 0.0,
            "gamma_neg": 4.0,
            "margin": 0.05,
            "detach_focus": False,
            "target_gap": None,
            "gap_step": 0.01,
            "gamma_max": 10.0,
            "per_class": False,
            "reduction": "batch_mean",
        },
    ),
    "DistributionBalancedLoss": (
        ("counts", "num_samples"),
        {
            "alpha": 0.1,
            "beta": 10.0,
            "mu": 0.2,
            "neg_scale": 2.0,
            "init_bias": 0.05,
            "gamma": 2.0,
            "balance": 2.0,
        },
    ),
    "PrecisionLoss": (("num_classes",), {}),
    "SoftIoULoss": ((), {"classes": "present", "per_image": False}),
    "DiceLoss": ((), {}),
    "TverskyLoss": ((), {"alpha": 0.5, "beta": 0.5}),
    "LovaszSoftmaxLoss": ((), {}),
    "SoftmaxLoss": ((), {"modulation": None, "weight": None, "adjustment": None}),
    "SigmoidLoss": ((), {"modulation": None, "weight": None}),
}
REGION = {"SoftIoULoss", "DiceLoss", "TverskyLoss", "LovaszSoftmaxLoss"}
SIGMOID = {"BinaryCrossEntropyLoss", "BinaryFocalLoss", "AsymmetricLoss", "DistributionBalancedLoss", "SigmoidLoss"}
SOFTMAX = set(SIGNATURES) - REGION - SIGMOID
# The two losses to be composed have no published code. A new loss takes a preset only if its published code differs
# from the text of the paper; list it here otherwise.
WITHOUT_PRESET = {"SoftmaxLoss", "SigmoidLoss"}
# None may stand in the signature for "as the preset has it"; without a preset it must mean the default above.
BY_PRESET = {"classes", "detach_focus", "init", "normalization", "per_image"}
C = 3
REQUIRED = {"epochs": 9, "num_classes": C, "counts": [30, 8, 2], "num_samples": 50}

softmax_names = pytest.mark.parametrize("name", sorted(SOFTMAX))
sigmoid_names = pytest.mark.parametrize("name", sorted(SIGMOID))


def build(name, **options):
    loss = getattr(eq, name)(*(REQUIRED[argument] for argument in SIGNATURES[name][0]), **options)
    if isinstance(loss, eq.losses.Loss):
        loss.set_epoch(3)
    return loss


def batch(name, dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    size = (5,) if name in REGION else ()
    logits = torch.randn(8, C, *size, generator=draw, dtype=torch.float64).to(dtype)
    if name in SIGMOID:
        return logits, torch.randint(0, 2, logits.shape, generator=draw).to(dtype)
    return logits, torch.randint(0, C, (8, *size), generator=draw)


# ---------------------------------------------------------------------------------------------------------------------
# __all__
# ---------------------------------------------------------------------------------------------------------------------


@each_module
def test_all_is_sorted_and_true(module):
    assert list(module.__all__) == sorted(set(module.__all__), key=lambda name: (not name.isupper(), name))
    for name in module.__all__:
        assert hasattr(module, name), name


@each_module
def test_every_public_name_is_documented(module):
    assert module.__doc__
    for name in module.__all__:
        thing = getattr(module, name)
        if name == "__version__" or not (inspect.isclass(thing) or callable(thing) or inspect.ismodule(thing)):
            continue
        if typing.get_origin(thing) is not None:  # the name of a type
            continue
        own = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
        assert own, name
        assert own.strip().splitlines()[0].endswith((".", ":", "`")), f"{name}: {own.splitlines()[0]}"


@each_module
def test_public_methods_are_documented(module):
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) and thing.__module__.startswith("equipoise"):
            for key, member in vars(thing).items():
                if inspect.isfunction(member) and not key.startswith("_"):
                    assert member.__doc__, f"{name}.{key}"


def test_all_public_names_are_listed():
    """What a module defines without an underscore and other modules offer is in the list of the package."""
    for name in (*SIGNATURES, "gamma_for", "mislabel_point"):
        assert name in eq.__all__
        assert name in eq.losses.__all__
        assert getattr(eq, name) is getattr(eq.losses, name)
    assert {"functional", "losses", "schedules", "weights"} <= set(eq.__all__)
    assert {"Constant", "Linear", "Steps", "Cosine", "Cyclical", "Parabolic", "join"} <= set(eq.schedules.__all__)
    rules = {"inverse_frequency", "effective_number", "square_root", "median_frequency", "normalized"}
    assert rules | {"Deferred", "RecallWeights"} <= set(eq.weights.__all__)
    assert set(SIGNATURES) == {name for name in eq.__all__ if name.endswith("Loss")}


# ---------------------------------------------------------------------------------------------------------------------
# Names, arguments, defaults
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIGNATURES)
def test_constructors_of_the_specification(name):
    required, defaults = SIGNATURES[name]
    loss = getattr(eq, name)
    parameters = inspect.signature(loss).parameters
    named = [key for key, parameter in parameters.items() if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    assert named[: len(required)] == list(required)
    for key in required:
        assert parameters[key].default is inspect.Parameter.empty
        assert parameters[key].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    for key, default in defaults.items():
        if key in parameters and not (key in BY_PRESET and parameters[key].default is None):
            assert parameters[key].default == default, key
    # all of them at once, by keyword, mean the same as none of them
    plain, written_out = build(name), build(name, **defaults)
    logits, targets = batch(name)
    assert torch.equal(plain(logits, targets), written_out(logits, targets))
    assert repr(plain) == repr(written_out)


@pytest.mark.parametrize("name", [name for name in SIGNATURES if not SIGNATURES[name][0] and SIGNATURES[name][1]])
def test_first_argument_may_be_positional(name):
    first = next(iter(SIGNATURES[name][1]))
    assert next(iter(inspect.signature(getattr(eq, name)).parameters)) == first
    value = SIGNATURES[name][1][first]
    logits, targets = batch(name)
    assert torch.equal(getattr(eq, name)(value)(logits, targets), getattr(eq, name)(**{first: value})(logits, targets))


@pytest.mark.parametrize(
    "name", ["FocalLoss", "CyclicalFocalLoss", "RecallLoss", "LDAMLoss", "AsymmetricLoss", "OHEMLoss"]
)
def test_further_arguments_are_keywords_only(name):
    required = [REQUIRED[argument] for argument in SIGNATURES[name][0]] or [next(iter(SIGNATURES[name][1].values()))]
    with pytest.raises(TypeError, match="positional argument"):
        getattr(eq, name)(*required, 1.0)


def test_tversky_takes_both_prices_by_position():
    logits, targets = batch("TverskyLoss")
    value = eq.TverskyLoss(0.3, 0.7)(logits, targets)
    assert torch.equal(value, eq.TverskyLoss(alpha=0.3, beta=0.7)(logits, targets))
    assert value != eq.TverskyLoss()(logits, targets)


def default_reduction(name):
    default = {"AsymmetricLoss": "batch_mean", "RecallLoss": "valid_mean", "PrecisionLoss": "valid_mean"}
    return default.get(name, "mean")


@softmax_names
def test_common_arguments_of_softmax_losses(name):
    logits, targets = batch(name)
    smooth = 0.1 if name in ("AsymmetricSoftmaxLoss", "CyclicalAsymmetricLoss") else 0.0
    common = {
        "weight": None,
        "label_smoothing": smooth,
        "ignore_index": -100,
        "reduction": default_reduction(name),
        "sync": name in ("RecallLoss", "PrecisionLoss"),
        "validate": False,
    }
    if name not in WITHOUT_PRESET:
        common["preset"] = None
    plain, written_out = build(name), build(name, **common)
    assert torch.equal(plain(logits, targets), written_out(logits, targets))
    assert (plain.reduction, plain.sync, plain.validate, plain.ignore_index) == (
        common["reduction"],
        common["sync"],
        False,
        -100,
    )
    # and each of them does something
    rows = build(name, reduction="none")(logits, targets)
    assert rows.shape == (8,)
    assert_close(build(name, reduction="sum")(logits, targets), rows.sum())
    assert_close(plain(logits, targets, normalizer=2.5), rows.sum() / 2.5)
    ignored = build(name, ignore_index=1, reduction="none")(logits, targets)
    assert (ignored[targets == 1] == 0).all()
    assert (ignored != 0).any()
    changed = build(name, label_smoothing=0.3, reduction="none")(logits, targets)
    assert not torch.allclose(changed, rows)
    if name != "OHEMLoss":
        doubled = build(name, weight=[2.0] * C, reduction="sum")(logits, targets)
        assert_close(doubled, 2 * rows.sum())


@sigmoid_names
def test_common_arguments_of_sigmoid_losses(name):
    logits, targets = batch(name)
    common = {
        "weight": None,
        "ignore_value": -1,
        "reduction": default_reduction(name),
        "sync": False,
        "validate": False,
    }
    plain, written_out = build(name), build(name, **common)
    assert torch.equal(plain(logits, targets), written_out(logits, targets))
    assert (plain.reduction, plain.sync, plain.validate, plain.ignore_value) == (common["reduction"], False, False, -1)
    elements = build(name, reduction="none")(logits, targets)
    assert elements.shape == logits.shape
    assert_close(build(name, reduction="sum")(logits, targets), elements.sum())
    assert_close(plain(logits, targets, normalizer=2.5), elements.sum() / 2.5)
    weight = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weighted = build(name, reduction="sum")(logits, targets, element_weight=weight)
    assert_close(weighted, (elements * weight).sum())
    label = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    assert_close(build(name, weight=label, reduction="none")(logits, targets), elements * label)
    unknown = targets.clone()
    unknown[0, 0] = -1
    assert build(name, reduction="none")(logits, unknown)[0, 0] == 0
    unknown[0, 0] = -7
    assert build(name, ignore_value=-7, reduction="none")(logits, unknown)[0, 0] == 0


def test_denominators_are_what_the_words_say():
    """The scale tells the default reduction; constant logits make every row equal."""
    targets = torch.tensor([0, 0, 0, 1, -100])
    logits = torch.zeros(5, 2, dtype=torch.float64)
    rows, weight = math.log(2), [1.0, 3.0]
    for reduction, expected in (
        ("mean", rows),
        ("valid_mean", 1.5 * rows),
        ("batch_mean", 1.2 * rows),
        ("sum", 6 * rows),
    ):
        value = eq.CrossEntropyLoss(weight, reduction=reduction)(logits, targets)
        assert value.item() == pytest.approx(expected, rel=1e-14)
    labels = torch.tensor([[0.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [0.0, 0.0]])
    for reduction, expected in (("mean", 5 / 5), ("valid_mean", 5 / 3), ("batch_mean", 5 / 4), ("sum", 5)):
        value = eq.BinaryCrossEntropyLoss(reduction=reduction)(torch.zeros(4, 2).double(), labels)
        assert value.item() == pytest.approx(expected * rows, rel=1e-14)


@pytest.mark.parametrize("name", sorted(SOFTMAX | SIGMOID))
def test_every_loss_can_be_moved(name):
    loss = build(name)
    loss.set_epoch(2)
    loss.set_progress(0.5)
    assert loss(*batch(name)).isfinite()


@pytest.mark.parametrize("name", sorted(REGION))
def test_common_arguments_of_region_losses(name):
    logits, targets = batch(name)
    written_out = build(name, classes="present", per_image=False, ignore_index=-100, reduction="mean", sync=False)
    assert torch.equal(build(name)(logits, targets), written_out(logits, targets))
    assert build(name, reduction="none")(logits, targets).shape == (C,)
    assert build(name, per_image=True, reduction="none", classes="all")(logits, targets).shape == (8, C)
    assert build(name, classes=[1], preset=None, validate=True)(logits, targets).isfinite()


@pytest.mark.parametrize("name", [name for name in F.__all__ if not name.startswith(("sigmoid", "softmax"))])
def test_functions_are_the_classes_without_state(name):
    module = {
        "ldam_loss": "LDAMLoss",
        "mmce_loss": "MMCELoss",
        "ohem_loss": "OHEMLoss",
        "soft_iou_loss": "SoftIoULoss",
    }.get(name, "".join(word.capitalize() for word in name.split("_")))
    parameters = list(inspect.signature(getattr(F, name)).parameters)
    assert parameters[:2] == ["logits", "targets"]
    needed = {key: REQUIRED[key] for key in SIGNATURES[module][0] if key not in ("epochs", "num_classes")}
    if "epochs" in SIGNATURES[module][0]:
        needed["xi"] = eq.schedules.Cyclical()(3 / 8)
    loss = build(module)
    logits, targets = batch(module)
    logits.requires_grad_()
    values = loss(logits, targets), getattr(F, name)(logits, targets, **needed)
    assert_close(*values, rtol=1e-14, atol=0)
    assert_close(*(torch.autograd.grad(value, logits)[0] for value in values), rtol=1e-13, atol=1e-16)
    defaults = {key: value for key, value in SIGNATURES[module][1].items() if key in parameters}
    actual = inspect.signature(getattr(F, name)).parameters
    for key, value in defaults.items():
        assert actual[key].default == value, key


def test_parts_make_the_named_losses():
    logits, targets = batch("FocalLoss")
    parts = eq.losses
    assert torch.equal(parts.SoftmaxLoss(parts.focal(2.0))(logits, targets), eq.FocalLoss()(logits, targets))
    adjusted = parts.SoftmaxLoss(adjustment=parts.logit_adjustment([5, 3, 1], 0.5))
    assert torch.equal(adjusted(logits, targets), eq.LogitAdjustedLoss([5, 3, 1], tau=0.5)(logits, targets))
    logits, targets = batch("AsymmetricLoss")
    loss = parts.SigmoidLoss(parts.asymmetric(0.0, 4.0), margin=0.05, reduction="batch_mean")
    assert torch.equal(loss(logits, targets), eq.AsymmetricLoss()(logits, targets))


def test_theory_by_name():
    assert list(inspect.signature(eq.gamma_for).parameters) == ["p0"]
    assert list(inspect.signature(eq.mislabel_point).parameters) == ["gamma", "margin"]
    assert list(inspect.signature(eq.focal_gradient_ratio).parameters) == ["p", "gamma"]
    assert list(inspect.signature(eq.focal_optimum).parameters) == ["posterior", "gamma"]
    assert list(inspect.signature(eq.focal_kl_bound).parameters) == ["probs", "posterior", "gamma"]
    assert list(inspect.signature(eq.smoothing_for).parameters) == ["alpha", "num_classes"]
    assert eq.mislabel_point(0.0, 0.0) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Imports
# ---------------------------------------------------------------------------------------------------------------------

HEAVY = (
    *("scipy", "sklearn", "torchmetrics", "matplotlib", "typer", "rich", "pytorch_lightning", "lightning", "pandas"),
    *("pydantic", "yaml", "safetensors", "PIL"),
)


def test_importing_equipoise_imports_nothing_heavy():
    """Beyond what torch itself imports."""
    code = f"""
import sys, torch
before = set(sys.modules)
import equipoise
equipoise.CrossEntropyLoss()(torch.zeros(2, 3), torch.tensor([0, 1]))
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(sorted(new & set({HEAVY!r})), "equipoise" in new)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "[] True"


@pytest.mark.parametrize("module", ["equipoise.cli.app", "equipoise.report.evaluation"])
def test_the_command_line_and_pages_load_without_torch(module):
    code = f"import sys, {module}; print('torch' in sys.modules, '{module}' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "False True", done.stderr


def test_models_are_loaded_by_name_of_the_package():
    """Without Lightning: whoever uses a model does not train."""
    code = "import sys, equipoise; print(equipoise.load_exported.__name__, 'pytorch_lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "load_exported False", done.stderr
    parameters = inspect.signature(eq.load_exported).parameters
    defaults = {key: one.default for key, one in parameters.items() if key != "path"}
    assert defaults == {"device": "cpu", "trust_code": False}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'FocusLoss'"):
        eq.FocusLoss  # noqa: B018
    assert set(eq.__all__) == set(dir(eq))


# The specification, section 10: metrics and calibration, with their first arguments and defaults.
METRICS = {
    "CalibrationError": {"bins": 15, "norm": "l1", "binning": "width", "kind": "top", "groups": None},
    "NegativeLogLikelihood": {},
    "BrierScore": {},
    "ConfidentShare": {"threshold": 0.99},
    "Accuracy": {"num_classes": inspect.Parameter.empty, "top_k": (1, 5)},
    "ShotAccuracy": {"train_counts": inspect.Parameter.empty, "convention": "kang"},
    "MultilabelAveragePrecision": {"num_labels": inspect.Parameter.empty},
    "MultilabelScores": {"num_labels": inspect.Parameter.empty, "threshold": 0.5, "top_k": None},
    "SegmentationScores": {"num_classes": inspect.Parameter.empty, "ignore_index": -100},
    "OpenSetScores": {"threshold": 0.1, "convention": "oltr"},
}
CALIBRATION = {
    "fit_temperature": ("logits", "targets", "by"),
    "fit_vector": ("logits", "targets"),
    "fit_dirichlet": ("logits", "targets"),
    "fit_isotonic": ("logits", "targets"),
    "fit_histogram": ("logits", "targets"),
    "fit_label_temperatures": ("logits", "targets"),
    "fit_group_temperatures": ("logits", "targets"),
    "correct_prior": ("logits",),
    "focal_posterior": ("probs", "gamma"),
    "fit_thresholds": ("logits", "targets"),
    "save": ("fitted", "path"),
    "load": ("path",),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_have_the_names_and_defaults_of_the_specification(name):
    parameters = inspect.signature(getattr(eq.metrics, name)).parameters
    assert {key: parameters[key].default for key in METRICS[name]} == METRICS[name]
    assert parameters["from_logits"].default is True


@pytest.mark.parametrize("name", CALIBRATION)
def test_calibration_has_the_names_of_the_specification(name):
    parameters = tuple(inspect.signature(getattr(eq.calibration, name)).parameters)
    assert parameters[: len(CALIBRATION[name])] == CALIBRATION[name]


def test_version():
    assert eq.__version__.count(".") == 2
