"""Properties of every method: shapes, dtypes, unusual data, invalid input."""

import inspect
import math
import re
import subprocess
import sys
import warnings

import pytest
import torch
from torch.testing import assert_close

from equipoise import calibration
from equipoise.calibration import METHODS, CalibrationWarning, Fitted, Temperature, logits_from_probs
from tests.calibration.data import EVERY, MULTI, SINGLE, fit, multi, of, single

every = pytest.mark.parametrize(("name", "task"), EVERY)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_the_registry():
    assert list(METHODS) == [
        "temperature",
        "temperature-ece",
        "vector",
        "dirichlet",
        "isotonic",
        "histogram",
        "label-temperatures",
        "group-temperatures",
        "prior",
        "focal",
        "thresholds",
    ]
    for name, method in METHODS.items():
        assert method.name == name
        assert method.tasks <= {"multiclass", "multilabel"}
        assert method.tasks
        assert method.summary
        assert "\n" not in method.summary
        parameters = inspect.signature(method.fit).parameters
        assert list(parameters)[:2] == ["logits", "targets"]
        assert set(method.needs) <= set(parameters)
        assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in list(parameters.values())[2:])
    assert {name for name, method in METHODS.items() if method.needs} == {"group-temperatures", "prior"}
    with pytest.raises(TypeError):
        METHODS["mine"] = METHODS["prior"]


def test_names():
    assert list(calibration.__all__) == sorted(calibration.__all__, key=lambda n: (n != n.upper(), n[0].islower(), n))
    for name in set(calibration.__all__) - {"METHODS"}:
        assert getattr(calibration, name).__doc__


@pytest.mark.parametrize("name", [name for name in calibration.__all__ if name.startswith(("fit_", "correct_", "est"))])
def test_arguments_of_other_libraries_get_suggestions(name):
    needs = {"groups": [0, 1, 1]} if "group" in name else {}
    with pytest.raises(TypeError, match=rf"^{name} got an unexpected keyword argument 'lr'; it takes logits, "):
        getattr(calibration, name)(*single()[: 2 if name.startswith("fit_") else 1], **needs, lr=0.1)


def test_an_argument_that_is_misspelt():
    message = "fit_temperature got an unexpected keyword argument 'bound'; did you mean 'bounds'?"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        calibration.fit_temperature(*single(), bound=(0.1, 10.0))


@every
def test_arguments_of_another_kind(name, task):
    which = "ignore_index" if task == "multiclass" else "ignore_value"
    if name != "prior":
        with pytest.raises(TypeError, match=says(f"{which} must be", "got None", "keep -1")):
            fit(name, *of(task), **{which: None})
    if name == "focal":
        with pytest.raises(TypeError, match=says("gamma must be a number", "got str 'two'", "pass a float")):
            fit(name, *of(task), gamma="two")
    with pytest.raises(TypeError, match=says("logits must be a tensor", "got ndarray", "torch.as_tensor")):
        fit(name, of(task)[0].numpy(), of(task)[1])
    with pytest.raises(TypeError, match=says("targets must be a tensor", "got ndarray", "torch.as_tensor")):
        fit(name, of(task)[0], of(task)[1].numpy())
    with pytest.raises(TypeError, match=says("targets must be a tensor", "got list", "torch.as_tensor")):
        fit(name, of(task)[0], of(task)[1].tolist())


@every
def test_rows_are_counted(name, task):
    """Also where nothing is learned, and of classes without those that are ignored."""
    logits, targets = of(task, rows=30, size=(2,))
    assert fit(name, logits, targets).samples == 60
    assert fit(name, logits, torch.zeros_like(targets)).samples == 60
    if task == "multiclass":
        targets[:10] = -100
        assert fit(name, logits, targets).samples == 40


@every
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shape_and_dtype_stay_and_nothing_is_written(name, task, dtype):
    logits, targets = of(task)
    logits = logits.to(dtype)
    kept, labels = logits.clone(), targets.clone()
    fitted = fit(name, logits, targets)
    assert isinstance(fitted, Fitted)
    assert fitted.task == task
    assert fitted.num_classes == logits.shape[1]
    for z in (logits, logits[:1], logits[:0], logits.T.contiguous().T, logits.requires_grad_()):
        after = fitted(z)
        assert after.shape == z.shape
        assert after.dtype == dtype
        assert bool(after.isfinite().all())
    assert torch.equal(logits, kept)
    assert torch.equal(targets, labels)


@every
def test_places_are_rows(name, task):
    logits, targets = of(task, rows=7, size=(5, 6))
    fitted = fit(name, logits, targets)
    classes = logits.shape[1]
    rows = logits.movedim(1, -1).reshape(-1, classes)
    assert_close(fitted(logits).movedim(1, -1).reshape(-1, classes), fitted(rows))
    flat = targets.movedim(1, -1).reshape(-1, classes) if task == "multilabel" else targets.reshape(-1)
    again = fit(name, rows, flat)
    assert_close(again(rows), fitted(rows), atol=1e-6, rtol=1e-6)


@every
def test_half_precision_is_computed_in_float32(name, task):
    logits, targets = of(task)
    fitted = fit(name, logits, targets)
    half = logits.half()
    assert_close(fitted(half), fitted(half.float()).half(), atol=0.0, rtol=0.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_beyond_half_precision_keep_their_probabilities(sign):
    """A constant is taken from a row that float16 cannot hold; labels have no constant, and are clipped."""
    logits = sign * 60000 + torch.tensor([[0.0, 32.0, -64.0], [64.0, 0.0, 32.0]])
    after = Temperature(0.5)(logits.half())
    assert after.dtype is torch.float16
    assert after.isfinite().all()
    assert_close(after.double().log_softmax(1), (2 * logits.double()).log_softmax(1))
    labels = Temperature(0.5, task="multilabel")(logits.half())
    assert (labels == sign * torch.finfo(torch.float16).max).all()


@every
def test_blocks_of_unequal_size_do_not_matter(name, task, monkeypatch):
    """401 rows of which each block holds about 31, and the last one fewer."""
    logits, targets = of(task, rows=401)
    expected = fit(name, logits, targets)(logits)
    monkeypatch.setattr("equipoise.calibration.inputs.BLOCK", 31 * logits.shape[1])
    assert_close(fit(name, logits, targets)(logits), expected, atol=1e-6, rtol=1e-6)


@every
def test_predictions_stay_where_promised(name, task):
    logits, targets = of(task, rows=2000)
    after = fit(name, logits, targets)(logits)
    before, now = (z.argmax(1) if task == "multiclass" else z > 0 for z in (logits, after))
    assert torch.equal(before, now) == METHODS[name].keeps_accuracy


@every
def test_description_and_short_repr(name, task):
    fitted = fit(name, *of(task, rows=300, **{"classes" if task == "multiclass" else "labels": 30}))
    assert "\n" not in fitted.describe()
    assert re.search(r"\(30 (classes|labels)", fitted.describe())
    assert repr(fitted).startswith(type(fitted).__name__ + "(")
    assert len(repr(fitted)) < 700


@every
def test_the_same_data_give_the_same_fit(name, task):
    data = of(task, seed=5)
    assert fit(name, *data) == fit(name, *data)


# ---------------------------------------------------------------------------------------------------------------------
# Odd data: a finite answer, and a word about it
# ---------------------------------------------------------------------------------------------------------------------


def odd(kind, task):
    logits, targets = of(task, rows=60)
    chosen = logits.argmax(1) if task == "multiclass" else (logits > 0).long()
    if kind == "all right":
        return logits, chosen
    if kind == "all wrong":
        return logits, (chosen + 1) % logits.shape[1] if task == "multiclass" else 1 - chosen
    if kind == "one class":
        return logits, torch.zeros_like(targets)
    if kind == "constant":
        return torch.zeros_like(logits) + 3.0, targets
    if kind == "one row":
        return logits[:1], targets[:1]
    if kind == "two rows":
        return logits[:2], targets[:2]
    if kind == "half":
        return (20 * logits).half(), targets
    if kind == "huge half":
        return (logits.sign() * 6e4).half(), targets
    if kind == "huge":
        return 1e4 * logits.float(), targets
    assert kind == "tiny"
    return 1e-12 * logits, targets


ODD = ["all right", "all wrong", "one class", "constant", "one row", "two rows", "half", "huge half", "huge", "tiny"]


@every
@pytest.mark.parametrize("kind", ODD)
def test_odd_data_give_finite_logits_and_numbers(name, task, kind, tmp_path):
    logits, targets = odd(kind, task)
    fitted = fit(name, logits, targets)
    after = fitted(logits)
    assert after.dtype == logits.dtype
    assert bool(after.isfinite().all())
    other, _ = of(task, rows=30, seed=9)
    assert bool(fitted(other).isfinite().all())
    calibration.save(fitted, tmp_path / "f")  # refuses NaN and infinities
    assert calibration.load(tmp_path / "f") == fitted


@every
@pytest.mark.parametrize("kind", ["all right", "one row"])
def test_note_is_a_warning(name, task, kind):
    logits, targets = odd(kind, task)
    needs = {"groups": [0, 1] * 2, "train_counts": [1, 2, 3, 4]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = METHODS[name].fit(logits, targets, **{key: needs[key] for key in METHODS[name].needs})
    messages = [str(each.message) for each in caught if issubclass(each.category, CalibrationWarning)]
    assert messages == ([f"{fitted.kind}: {fitted.note}"] if fitted.note else [])
    assert all(each.filename == __file__ for each in caught), "the warning points at the caller"
    if not fitted.converged:
        assert fitted.note


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


def says(*parts):
    return r"(?s)\A" + ".*".join(re.escape(part) for part in parts)


@pytest.mark.parametrize(
    ("name", "task", "bad"),
    [(*each, math.nan) for each in EVERY] + [(*each, math.inf) for each in EVERY if each[1] == "multiclass"],
)
def test_logits_that_are_not_finite(name, task, bad):
    logits, targets = of(task, rows=20)
    logits[3, 1] = bad
    with pytest.raises(ValueError, match=says("logits must be finite", f"got {bad:g}", "; ")):
        fit(name, logits, targets)


@every
def test_probabilities_as_logits_give_a_warning(name, task):
    logits, targets = of(task, rows=40)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(name, logits, targets, quiet=False)
        assert not [warning for warning in caught if "probabilities" in str(warning.message)]
        fit(name, logits.softmax(1) if task == "multiclass" else logits.sigmoid(), targets, quiet=False)
    messages = [str(warning.message) for warning in caught if "probabilities" in str(warning.message)]
    assert len(messages) == 1, messages
    assert re.match(says("logits must be raw scores", "all in [0, 1]", "logits_from_probs(probs)"), messages[0])


@pytest.mark.parametrize("name", [name for name in SINGLE if name != "prior"])
@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        (
            lambda z, y: (z, y.float()),
            ValueError,
            ("targets must be integer class indices", "float32", "targets.long()"),
        ),
        (lambda z, y: (z, z * 0), ValueError, ("targets must be integer class indices", "float64", "argmax(1)")),
        (lambda z, y: (z, y[:-1]), ValueError, ("targets must be class indices of shape (20,)", "got (19,)", ";")),
        (lambda z, y: (z, y + 1), ValueError, ("targets must be class indices in [0, 3]", "got 4", ";")),
        (lambda z, y: (z, y - 1), ValueError, ("targets must be class indices in [0, 3]", "got -1", ";")),
        (lambda z, y: (z, y * 0 - 100), ValueError, ("targets must hold at least one label", "got 20", ";")),
        (lambda z, y: (z[:0], y[:0]), ValueError, ("logits must hold at least one row", "got shape (0, 4)", ";")),
        (lambda z, y: (z[:, 0], y), ValueError, ("logits must have shape (N, C", "got (20,)", "logits[None]")),
        (lambda z, y: (z.long(), y), TypeError, ("logits must be float16", "got torch.int64", ";")),
        (lambda z, y: (z, y.tolist()), TypeError, ("targets must be a tensor", "got list", "torch.as_tensor")),
        (lambda z, y: (z.numpy(), y), TypeError, ("logits must be a tensor", "got ndarray", "torch.as_tensor")),
    ],
    ids=["float", "one-hot", "short", "high", "low", "all ignored", "empty", "no classes", "whole", "list", "array"],
)
def test_bad_single_label_data(name, change, error, parts):
    logits, targets = change(*single(20))
    options = {"task": "multiclass"} if len(METHODS[name].tasks) == 2 else {}
    needs = {"groups": [0, 1, 0, 1]} if METHODS[name].needs else {}
    with pytest.raises(error, match=says(*parts)):
        METHODS[name].fit(logits, targets, **options, **needs)


@pytest.mark.parametrize("name", [name for name in SINGLE if name != "prior"])
def test_one_class_is_refused(name):
    needs = {"groups": [0]} if METHODS[name].needs else {}
    with pytest.raises(ValueError, match=says("logits must have shape", "at least 2 classes", "got (5, 1)")):
        METHODS[name].fit(torch.randn(5, 1), torch.zeros(5, dtype=torch.long), **needs)


@pytest.mark.parametrize("name", MULTI)
@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        (lambda z, y: (z, y[:, :-1]), ValueError, ("targets must have the shape of the logits", "got (20, 2)", ";")),
        (lambda z, y: (z, y + 1), ValueError, ("targets must be in [0, 1] or ignore_value=-1", "got 2", ";")),
        (lambda z, y: (z, y - 2), ValueError, ("targets must be in [0, 1] or ignore_value=-1", "got -2", ";")),
        (lambda z, y: (z, 0.25 + 0.5 * y), ValueError, ("targets must be 0, 1 or ignore_value=-1", "soft", ";")),
        (lambda z, y: (z, y * 0 - 1), ValueError, ("targets must hold at least one label", "got 60", ";")),
        (lambda z, y: (z[:0], y[:0]), ValueError, ("logits must hold at least one row", "got shape (0, 3)", ";")),
    ],
    ids=["fewer labels", "high", "low", "soft", "all unknown", "empty"],
)
def test_bad_multi_label_data(name, change, error, parts):
    logits, targets = change(*multi(20))
    options = {"task": "multilabel"} if len(METHODS[name].tasks) == 2 else {}
    with pytest.raises(error, match=says(*parts)):
        METHODS[name].fit(logits, targets, **options)


@pytest.mark.parametrize("name", MULTI)
def test_targets_of_any_type(name):
    logits, targets = multi(100)
    fits = [fit(name, logits, targets.to(dtype)) for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32)]
    assert all(each == fits[0] for each in fits)


@every
def test_the_number_of_classes_is_checked_in_use(name, task):
    logits, targets = of(task)
    fitted = fit(name, logits, targets)
    things = "classes" if task == "multiclass" else "labels"
    message = says(f"logits must have the {logits.shape[1]} {things} of the fit", "got shape (2, 7)", ";")
    with pytest.raises(ValueError, match=message):
        fitted(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=says("logits must have shape (N, C", "got (4,)")):
        fitted(torch.zeros(4))
    with pytest.raises(TypeError, match=says("logits must be float16", "got torch.int64")):
        fitted(torch.zeros(2, logits.shape[1], dtype=torch.long))


def test_made_by_hand_it_serves_any_number_of_classes():
    assert Temperature(2.0)(torch.ones(2, 9)).shape == (2, 9)


def test_overflow_in_half_precision_moves_the_row():
    logits = torch.tensor([[6e4, 5.9e4, -6e4], [1.0, 2.0, 0.0]], dtype=torch.float16)
    after = Temperature(0.01)(logits)
    assert bool(after.isfinite().all())
    assert after.argmax(1).tolist() == [0, 1]
    assert after[1].tolist() == [100.0, 200.0, 0.0]


# ---------------------------------------------------------------------------------------------------------------------
# Logits of probabilities
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_from_probs_are_finite_and_come_back(dtype):
    p = torch.tensor([[0.25, 0.75], [0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], dtype=dtype)
    slack = 4 * torch.finfo(dtype).eps
    for task, link in (("multiclass", lambda z: z.softmax(1)), ("multilabel", torch.sigmoid)):
        z = logits_from_probs(p, task=task)
        assert z.dtype == dtype
        assert bool(z.isfinite().all())
        assert_close(link(z.double()), p.double(), atol=10 * slack + 2e-12, rtol=0.0)
    both = logits_from_probs(p, task="multilabel")
    assert_close(both[:, 0], -both[:, 1], atol=10 * slack * 27, rtol=0.0)


def test_logits_from_probs_floor():
    p = torch.tensor([[0.0, 1e-20, 1e-3, 0.999]], dtype=torch.float64)
    z = logits_from_probs(p, floor=1e-6)
    assert_close(z.exp(), torch.tensor([[1e-6, 1e-6, 1e-3, 0.999]], dtype=torch.float64))
    with pytest.raises(ValueError, match="floor"):
        logits_from_probs(p, floor=0.0)


@pytest.mark.parametrize(
    ("probs", "task", "error", "message"),
    [
        ([[0.5, 0.4]], "multiclass", ValueError, "sum to 1 over dimension 1, got a sum of 0.9"),
        ([[2.0, -1.0]], "multiclass", ValueError, r"in \[0, 1\]"),
        ([[1.2, 0.4]], "multilabel", ValueError, r"in \[0, 1\]"),
        ([[math.nan, 0.4]], "multilabel", ValueError, "got nan"),
        ([[1, 0]], "multiclass", TypeError, "floating point"),
        ([0.4, 0.6], "multiclass", ValueError, "shape"),
        ([[0.4, 0.6]], "both", ValueError, "task must be one of"),
    ],
)
def test_bad_probabilities(probs, task, error, message):
    with pytest.raises(error, match=message):
        logits_from_probs(torch.tensor(probs), task=task)


def test_importing_is_light():
    code = (
        "import sys, equipoise.calibration, equipoise.heads;"
        "heavy = {'sklearn', 'scipy.optimize', 'torchmetrics', 'pandas', 'matplotlib'} & set(sys.modules); print(heavy)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "set()"
