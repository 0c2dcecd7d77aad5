"""Numbers, ranges of options, descriptions and notes of each method, by hand or from independent searches."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.testing import assert_close

from equipoise.calibration import (
    CalibrationWarning,
    DirichletCalibration,
    FocalPosterior,
    GroupTemperatures,
    HistogramBinning,
    IsotonicCalibration,
    LabelTemperatures,
    PriorCorrection,
    Temperature,
    Thresholds,
    VectorScaling,
    correct_prior,
    estimate_prior,
    fit_dirichlet,
    fit_focal,
    fit_group_temperatures,
    fit_histogram,
    fit_isotonic,
    fit_label_temperatures,
    fit_prior,
    fit_temperature,
    fit_thresholds,
    fit_vector,
    focal_posterior,
    inputs,
    logits_from_probs,
)
from tests.calibration.data import EVERY, MULTI, SINGLE, fit, multi, of, single

CURVES = (((-1.0, 0.0, 2.0), (0.1, 0.3, 0.8)), ((0.0,), (0.4,)))
BINNED = (((-1.0, 0.0, 2.0), (0.1, 0.3, 0.7, 0.9)), ((), (0.4,)))
BUILD = {
    "temperature": lambda **o: Temperature(0.5, **o),
    "vector": lambda **o: VectorScaling((0.5, 2.0, 1.0), (-1.0, 0.25, 0.5), **o),
    "dirichlet": lambda **o: DirichletCalibration(((0.5, -3.0), (2.0, 1.5)), (0.0, 1.0), **o),
    "isotonic": lambda **o: IsotonicCalibration(CURVES, **o),
    "histogram": lambda **o: HistogramBinning(BINNED, **o),
    "label-temperatures": lambda **o: LabelTemperatures((0.5, 2.0, 1.0), (0.0, -1.0, 0.5), **o),
    "group-temperatures": lambda **o: GroupTemperatures((1.5, 0.5), (0, 1, 1), ("many", "few"), **o),
    "prior": lambda **o: PriorCorrection((0.5, 0.3, 0.2), (0.25, 0.15, 0.6), **o),
    "focal": lambda **o: FocalPosterior(1.25, **o),
    "thresholds": lambda **o: Thresholds((0.0, -2.0, 1.0), (0.5, None, 0.25), **o),
}
SAID = {
    "temperature": "temperature 0.5: more confident, same predictions",
    "vector": "vector scaling, factors 0.5 to 2, biases -1 to 0.5 (3 classes)",
    "dirichlet": "Dirichlet calibration, diagonal 0.5 to 1.5, largest mixing of classes 3 (2 classes)",
    "isotonic": "isotonic regression, 2 knots a curve (2 classes)",
    "histogram": "histogram binning, 2 bins a class (2 classes)",
    "label-temperatures": "label temperatures 0.5 to 2, biases -1 to 0.5 (3 labels)",
    "group-temperatures": "temperature by group of the predicted class: many 1.5, few 0.5; same predictions"
    " (3 classes)",
    "prior": "prior correction: class 2 is 3 times, class 0 0.5 times as frequent as in training (3 classes)",
    "focal": "posterior of a model trained with focal loss, gamma 1.25; same predictions",
    "thresholds": "thresholds at probability 0.119 to 0.731, macro F1 0.375 expected (3 labels)",
}
each_kind = pytest.mark.parametrize("kind", BUILD)


@each_kind
def test_descriptions(kind):
    assert BUILD[kind]().describe() == SAID[kind]
    about = BUILD[kind](samples=7, note="to know").describe()
    start, _, classes = SAID[kind].partition(" (")
    inside = f"{classes[:-1]}, fitted on 7 rows" if classes else "fitted on 7 rows"
    assert about == f"{start} ({inside}); to know"


def test_descriptions_of_special_cases():
    assert Temperature(1.5, num_classes=3).describe() == "temperature 1.5: less confident, same predictions (3 classes)"
    assert (
        Temperature(1.0, num_classes=1, task="multilabel")
        .describe()
        .endswith("more confident, same predictions (1 label)")
    )
    assert LabelTemperatures((2.0,), (0.0,)).describe() == "label temperatures 2 to 2, same decisions (1 label)"
    assert Thresholds((0.0,)).describe() == "thresholds at probability 0.5 to 0.5 (1 label)"
    named = PriorCorrection((0.5, 0.5), (0.9, 0.1), class_names=("cat", "dog")).describe()
    assert named.startswith("prior correction: cat is 1.8 times, dog 0.2 times as frequent")


@each_kind
@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": 0},
        {"samples": True},
        {"samples": 2.0},
        {"task": "both"},
        {"converged": 1},
        {"note": None},
        {"class_names": ["a"]},
        {"class_names": (1,)},
    ],
    ids=str,
)
def test_what_is_known_of_a_fit_is_checked(kind, wrong):
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        BUILD[kind](**wrong)
    BUILD[kind](samples=1, converged=False, note="a", class_names=("a", "b", "c"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GroupTemperatures((1.0, 2.0), (0, 1), ("a",)), "names must be one str for each of the 2 groups"),
        (lambda: GroupTemperatures((1.0,), (0, 0), (1,)), "names must be one str"),
        (lambda: GroupTemperatures((1.0,), (0, 1), ("a",)), "groups must be indices of the 1 temperatures"),
        (lambda: GroupTemperatures((1.0,), (0, -1), ("a",)), "groups must be indices"),
        (lambda: GroupTemperatures((1.0,), (), ("a",)), "groups must be indices"),
        (lambda: GroupTemperatures((1.0,), (0, True), ("a",)), "groups must be indices"),
        (lambda: GroupTemperatures((0.0,), (0, 0), ("a",)), "temperatures must be finite and above 0"),
        (lambda: LabelTemperatures((1.0, 0.0), (0.0, 0.0)), "temperatures must be finite and above 0"),
        (lambda: LabelTemperatures((1.0,), (0.0, 0.0)), "biases must have one number for each of the 1 labels, got 2"),
        (lambda: PriorCorrection((0.5, 0.5), (1.0,)), "target_prior must have one frequency for each of the 2 classes"),
        (lambda: PriorCorrection((0.0, 1.0), (0.5, 0.5)), "train_prior must be finite and above 0"),
        (lambda: PriorCorrection((0.5, 0.5), (0.0, 1.0)), "target_prior must be finite and above 0"),
        (lambda: Thresholds((0.0, 1.0), (0.5,)), "f1 must be one number"),
        (lambda: Thresholds((0.0,), (1.1,)), "f1 must be one number"),
        (lambda: Thresholds((0.0,), (-0.1,)), "f1 must be one number"),
        (lambda: DirichletCalibration(((1.0, 0.0), (0.0,)), (0.0, 0.0)), "weight must be 2 rows of 2 numbers"),
        (lambda: FocalPosterior(-0.1), "gamma"),
        (lambda: IsotonicCalibration(()), "curves must hold one curve"),
        (lambda: IsotonicCalibration(("ab",)), "curves must be a pair"),
        (lambda: IsotonicCalibration((((0.0,), (0.5,), (0.1,)),)), "curves must be a pair"),
    ],
)
def test_parameters_are_checked(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_lists_and_integers_become_tuples_of_floats():
    for made, same in (
        (LabelTemperatures([1, 2], [0, 1]), LabelTemperatures((1.0, 2.0), (0.0, 1.0))),
        (VectorScaling([1, 2], [0, 1]), VectorScaling((1.0, 2.0), (0.0, 1.0))),
        (GroupTemperatures([1], [0, 0], ["a"]), GroupTemperatures((1.0,), (0, 0), ("a",))),
        (PriorCorrection([1, 1], [1, 2]), PriorCorrection((1.0, 1.0), (1.0, 2.0))),
        (DirichletCalibration([[1, 0], [0, 1]], [0, 0]), DirichletCalibration(((1.0, 0.0), (0.0, 1.0)), (0.0, 0.0))),
        (Thresholds([0, 1], [1, None]), Thresholds((0.0, 1.0), (1.0, None))),
    ):
        assert made == same
        assert repr(made) == repr(same)


def test_parameters_at_the_end_of_their_range():
    assert Thresholds((0.0, 1.0, 2.0), (0.0, 1.0, None)).macro_f1 == 0.5
    assert FocalPosterior(0.0)(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]
    flat = IsotonicCalibration((((0.0, 0.0), (0.2, 0.6)),), task="multilabel")  # a step
    assert_close(flat(torch.tensor([[-1.0], [0.0], [1.0]])).sigmoid().flatten(), torch.tensor([0.2, 0.2, 0.6]))


def quietly(use, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return use(*args, **options)


GROUPS = {"groups": [0, 1, 1, 0]}
COUNTS = {"train_counts": [4, 3, 2, 1]}
OPTIONS = [  # method, what it needs, option, legal values, values that are not
    (fit_temperature, single, {}, "bounds", [(0.5, 0.51)], [(0.5, 0.5), (0.0, 1.0)]),
    (fit_vector, single, {}, "shrinkage", [1e-3], [0.0, -1.0]),
    (fit_dirichlet, single, {}, "shrinkage", [1e-3], [0.0, -1.0]),
    (fit_group_temperatures, single, GROUPS, "shrinkage", [0.0], [-0.01, math.nan]),
    (fit_label_temperatures, multi, {}, "shrinkage", [0.0], [-0.01, math.nan]),
    (fit_thresholds, multi, {}, "shrinkage", [0.0], [-0.01]),
    (fit_thresholds, multi, {}, "folds", [0, 2], [1, -1]),
    (fit_thresholds, multi, {}, "min_positives", [1], [0]),
    (fit_histogram, multi, {}, "bins", [1, 2], [0]),
    (fit_focal, single, {}, "gamma", [0.0], [-0.01]),
    (fit_prior, single, COUNTS, "shrinkage", [0.0], [-0.01]),
    (correct_prior, lambda: single()[:1], COUNTS, "shrinkage", [0.0], [-0.01]),
    (estimate_prior, lambda: single()[:1], COUNTS, "shrinkage", [0.0], [-0.01]),
    (estimate_prior, lambda: single()[:1], COUNTS, "max_iter", [1], [0]),
    (estimate_prior, lambda: single()[:1], COUNTS, "tolerance", [0.0], [-1e-9]),
]


@pytest.mark.parametrize(("use", "data", "needs", "option", "legal", "wrong"), OPTIONS)
def test_ranges_of_options(use, data, needs, option, legal, wrong):
    for value in legal:
        quietly(use, *data(), **needs, **{option: value})
    for value in wrong:
        with pytest.raises(ValueError, match=option):
            use(*data(), **needs, **{option: value})


@pytest.mark.parametrize("use", [fit_temperature, fit_label_temperatures])
@pytest.mark.parametrize("bounds", [(0.1, 1.0, 2.0), "ab", (0.1,), None])
def test_bounds_are_a_pair(use, bounds):
    with pytest.raises(TypeError, match=r"bounds must be a pair \(low, high\)"):
        use(*(single() if use is fit_temperature else multi()), bounds=bounds)


# ---------------------------------------------------------------------------------------------------------------- notes


@pytest.mark.parametrize(("name", "task"), EVERY)
def test_a_class_without_samples_is_in_the_note(name, task):
    logits, targets = of(task, rows=80)
    if task == "multilabel":
        targets[:, 1] = 0
    else:
        targets[targets == 1] = 0
    fitted = fit(name, logits, targets)
    at_end = "the best gamma is at the end 0 of the range 0 ... 10"  # the labels are less sure than the logits
    expected = {
        ("focal", "multiclass"): at_end,
        ("focal", "multilabel"): at_end,
        ("vector", "multiclass"): "class 1 has no sample",
        ("dirichlet", "multiclass"): "class 1 has no sample",
        ("isotonic", "multiclass"): "class 1 has no positive sample",
        ("histogram", "multiclass"): "class 1 has no positive sample",
        ("isotonic", "multilabel"): "label 1 has no positive sample",
        ("histogram", "multilabel"): "label 1 has no positive sample",
        ("label-temperatures", "multilabel"): "label 1 has only positives or only negatives and uses the common values",
        ("thresholds", "multilabel"): "label 1 has no positives and uses the common threshold",
    }
    assert fitted.note == expected.get((name, task), "")
    assert fitted.converged
    assert fitted.samples == 80
    assert fitted.num_classes == logits.shape[1]
    assert fitted.task == task


def test_notes_list_five_classes():
    logits, targets = single(80, 12)
    few = fit("vector", logits, targets.clamp(max=9))
    assert few.note == "classes 10, 11 have no sample"
    most = fit("vector", logits, targets.clamp(max=4))
    assert most.note == "classes 5, 6, 7, 8, 9 ... (7 in all) have no sample"
    five = fit("vector", logits, targets.clamp(max=6))
    assert five.note == "classes 7, 8, 9, 10, 11 have no sample"


def test_notes_on_rows_and_parameters():
    for rows, note in ((9, "9 rows are few"), (10, "")):
        assert quietly(fit_temperature, *single(rows, 3)).note == note
    for rows, note in ((7, "7 rows for 8 parameters"), (8, "")):
        logits, targets = single(rows, 4)
        targets[:4] = torch.arange(4)
        assert quietly(fit_vector, logits, targets).note == note
    for rows, note in ((11, "11 rows for 12 parameters"), (12, "")):
        logits, targets = single(rows, 3)
        targets[:3] = torch.arange(3)
        assert quietly(fit_dirichlet, logits, targets, shrinkage=1.0).note == note


def test_groups_at_a_bound_are_named():
    logits = torch.tensor([[2.0, 0.0, -60.0]] * 30 + [[-60.0, 0.0, 2.0]] * 30)
    targets = torch.tensor([0] * 30 + [2] * 20 + [1] * 10)  # class 0 is always right
    with pytest.warns(CalibrationWarning, match="group a: the optimum is at or below the bound 0.01"):
        fitted = fit_group_temperatures(logits, targets, groups=["a", "b", "b"], shrinkage=0.0)
    assert not fitted.converged
    assert fitted.temperatures[0] == 0.01
    assert fitted.temperatures[1] == pytest.approx(2.0 / math.log(2.0), rel=1e-3)  # 20 of 30
    assert fitted.samples == 60


@pytest.mark.parametrize(
    ("targets", "note", "temperature"),
    [
        ([0] * 12, "the optimum is at or below the bound 0.01", 0.01),
        ([1] * 12, "the optimum is at or above the bound 100", 100.0),
    ],
)
def test_temperatures_at_a_bound(targets, note, temperature):
    fitted = quietly(fit_temperature, torch.tensor([[2.0, 0.0]] * 12), torch.tensor(targets))
    assert fitted.note.startswith(note)
    assert fitted.temperature == temperature
    assert not fitted.converged


def test_equal_logits_hold_no_temperature():
    fitted = quietly(fit_temperature, torch.zeros(12, 3), torch.arange(12) % 3)
    assert fitted.temperature == 1.0
    assert fitted.note.startswith("all logits of a row are equal")
    assert not fitted.converged
    by_grid = quietly(fit_temperature, torch.zeros(12, 3), torch.arange(12) % 3, by="ece")
    assert by_grid.temperature == 0.1
    assert by_grid.note.startswith("the calibration error is the same")


# ---------------------------------------------------------------------------------------------------------------- input


def test_one_soft_label_is_refused():
    logits, targets = multi(20)
    soft = targets.double()
    soft[3, 1] = 0.5
    for name in MULTI:
        with pytest.raises(ValueError, match=r"targets must be 0, 1 or ignore_value=-1, got soft labels"):
            fit(name, logits, soft, **({"task": "multilabel"} if name in SINGLE else {}))


def test_ignored_targets_of_another_number():
    logits, targets = single(60)
    holes = targets.clone()
    holes[:20] = 255
    assert fit("vector", logits, holes, ignore_index=255) == fit("vector", logits[20:], targets[20:])
    logits, targets = multi(60)
    unknown = targets.clone()
    unknown[:20] = 9
    assert fit("label-temperatures", logits, unknown, ignore_value=9).temperatures == pytest.approx(
        fit("label-temperatures", logits[20:], targets[20:]).temperatures, rel=1e-9
    )


def test_sums_of_probabilities():
    for rows, total in (([[0.5, 0.5], [0.3, 0.5], [0.5, 0.6]], "0.8"), ([[0.5, 0.5], [0.5, 0.515]], "1.015")):
        with pytest.raises(ValueError, match=f"got a sum of {total};"):
            logits_from_probs(torch.tensor(rows))
    places = torch.full((2, 2, 3), 0.5)
    places[1, 0, 2] = 0.2
    with pytest.raises(ValueError, match=r"got a sum of 0\.7;"):
        logits_from_probs(places)
    logits_from_probs(torch.tensor([[0.5, 0.508], [0.492, 0.5]]))
    logits_from_probs(torch.tensor([[0.5, 0.8]]), task="multilabel")
    logits_from_probs(torch.zeros(0, 2))


def test_probabilities_a_little_outside():
    least = math.log(1e-12)
    outside = torch.tensor([[-9e-5, 1.0 + 9e-5]], dtype=torch.float64)
    assert_close(logits_from_probs(outside), torch.tensor([[least, 0.0]], dtype=torch.float64))
    for wrong in (-1.5e-4, 1.0 + 1.5e-4):
        with pytest.raises(ValueError, match=f"got {wrong!r}"):
            logits_from_probs(torch.tensor([[0.5, wrong]], dtype=torch.float64), task="multilabel")
    ends = logits_from_probs(torch.tensor([[0.0, 0.25, 1.0]], dtype=torch.float64), task="multilabel", floor=1e-3)
    span = math.log(1e-3) - math.log1p(-1e-3)
    assert_close(ends, torch.tensor([[span, math.log(1 / 3), -span]], dtype=torch.float64))
    for floor in (0.0, 0.5):
        with pytest.raises(ValueError, match="floor"):
            logits_from_probs(torch.tensor([[0.5, 0.5]]), floor=floor)
    for shape, task in (((3, 1), "multiclass"), ((3, 0), "multilabel"), ((3,), "multilabel")):
        with pytest.raises(ValueError, match="probs must have shape"):
            logits_from_probs(torch.ones(shape), task=task)
    logits_from_probs(torch.full((3, 1), 0.5), task="multilabel")


def test_blocks_of_rows_do_not_matter(monkeypatch):
    data = single(50, 3)
    names = ("temperature", "temperature-ece", "vector", "focal", "group-temperatures")
    whole = {name: fit(name, *data)(data[0]) for name in (*names, "dirichlet")}
    for block in (1, 7, 60):
        monkeypatch.setattr("equipoise.calibration.inputs.BLOCK", block)
        for name in names if block > 1 else names[:2]:
            assert_close(fit(name, *data)(data[0]), whole[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("block", "rows", "columns", "row_blocks", "label_widths"),
    [
        (3, 5, 5, [1] * 5, [2, 2, 1]),
        (20, 5, 5, [4, 1], [5]),
        (25, 5, 5, [5], [5]),
        (3, 100, 3, [1] * 100, [1, 1, 1]),
        (3, 1, 13, [1], [12, 1]),
        (1, 3, 2, [1, 1, 1], [1, 1]),
    ],
)
def test_blocks_are_as_large_as_allowed(block, rows, columns, row_blocks, label_widths, monkeypatch):
    monkeypatch.setattr("equipoise.calibration.inputs.BLOCK", block)
    logits = torch.arange(float(rows * columns)).view(rows, columns)
    assert [len(logits[part]) for part in inputs.blocks(logits)] == row_blocks
    assert torch.equal(torch.cat([logits[part] for part in inputs.blocks(logits)]), logits)
    pieces = list(inputs.label_blocks(inputs.MultiRows(logits, logits > 3, logits > 1)))
    assert [piece.logits.shape[1] for piece in pieces] == label_widths
    assert torch.equal(torch.cat([piece.logits for piece in pieces], 1), logits)
    assert torch.equal(torch.cat([piece.positive for piece in pieces], 1), logits > 3)
    assert torch.equal(torch.cat([piece.known for piece in pieces], 1), logits > 1)


@pytest.mark.parametrize(
    ("odds", "probs", "at", "expected"),
    [
        ((0.0, 0.0), (0.2, 0.6), [-0.5, 0.0, 1e-9, 0.5, 3.0], [0.2, 0.2, 0.6, 0.6, 0.6]),
        ((0.0, 1.0, 1.0), (0.2, 0.4, 0.6), [-1.0, 0.25, 1.0, 1.0 + 1e-9, 1.5, 9.0], [0.2, 0.25, 0.4, 0.6, 0.6, 0.6]),
        ((0.0, 0.0, 1.0), (0.2, 0.4, 0.6), [-1.0, 0.0, 1e-9, 0.25, 1.0, 1.5], [0.2, 0.2, 0.4, 0.45, 0.6, 0.6]),
        (
            (-1.0, 1.0),
            (0.25, 0.75),
            [-2.0, -1.5, -1.0, 0.0, 0.5, 1.0, 1.5, 9.0],
            [0.25] * 3 + [0.5, 0.625] + [0.75] * 3,
        ),
        ((2.0,), (0.3,), [-9.0, 2.0, 9.0], [0.3, 0.3, 0.3]),
    ],
    ids=["a step", "a step at the end", "a step at the start", "a line", "one knot"],
)
def test_isotonic_curves_are_constant_beyond_their_knots(odds, probs, at, expected):
    fitted = IsotonicCalibration(((odds, probs),), task="multilabel")
    scores = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    probabilities = fitted(scores[:, None]).sigmoid().squeeze(1)
    assert_close(probabilities, torch.tensor(expected, dtype=torch.float64), rtol=0.0, atol=1e-8)
    (slopes,) = torch.autograd.grad(probabilities.sum(), scores)
    assert slopes.isfinite().all()


# -------------------------------------------------------------------------------------------------------------- numbers


def em_by_hand(logits, train, shrinkage, steps):
    """EM one row and one class at a time."""
    train = [share / sum(train) for share in train]
    probs = [[math.exp(z) for z in row] for row in logits]
    now = list(train)
    for _ in range(steps):
        total = [shrinkage * len(train) * share for share in train]
        for row in probs:
            weight = [p / pi * share for p, pi, share in zip(row, train, now, strict=True)]
            for c, one in enumerate(weight):
                total[c] += one / sum(weight)
        now = [one / sum(total) for one in total]
    return now


@pytest.mark.parametrize("shrinkage", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_steps_of_em(shrinkage, steps):
    logits, _ = single(30, 3)
    options = {"train_prior": [2, 1, 1], "shrinkage": shrinkage, "tolerance": 0.0}
    estimate = estimate_prior(logits, **options, max_iter=steps)
    assert estimate == pytest.approx(em_by_hand(logits.tolist(), [2, 1, 1], shrinkage, steps), rel=1e-10)


def test_em_stops_at_the_tolerance():
    logits, _ = single(30, 3)
    options = {"train_prior": [1, 1, 1], "shrinkage": 1.0}
    way = [estimate_prior(logits, **options, tolerance=0.0, max_iter=k) for k in range(1, 9)]
    moves = [
        max(abs(a - b) for a, b in zip(x, y, strict=True)) for x, y in zip([(1 / 3,) * 3, *way], way, strict=False)
    ]
    for k in (1, 4):
        assert estimate_prior(logits, **options, tolerance=1.001 * moves[k]) == way[k]


def test_the_least_share():
    far = torch.tensor([[1000.0, 0.0, -1000.0]] * 50)
    assert min(estimate_prior(far, train_prior=[1, 1, 1], shrinkage=0.0)) == pytest.approx(1e-12, rel=1e-6)


def test_default_shrinkage_of_the_prior():
    logits, _ = single(30, 3)
    default = estimate_prior(logits, train_prior=[1, 1, 1])
    assert default == estimate_prior(logits, train_prior=[1, 1, 1], shrinkage=3.0)
    assert fit_prior(logits, train_prior=[1, 1, 1]).target_prior == default


@pytest.mark.parametrize("scale", [-1000.0, -3.0, 5.0, 1000.0])
def test_a_threshold_below_all_scores(scale):
    """If choosing everything is best, the cut is a millionth below the lowest score."""
    logits = torch.full((4, 1), scale, dtype=torch.float64)
    fitted = quietly(fit_thresholds, logits, torch.ones(4, 1), folds=0, shrinkage=0.0)
    assert scale - fitted.thresholds[0] == pytest.approx(1e-6 * abs(scale), rel=1e-6)
    near = quietly(fit_thresholds, logits / scale * 0.1, torch.ones(4, 1), folds=0, shrinkage=0.0)
    assert 0.1 - near.thresholds[0] == pytest.approx(1e-6, rel=1e-6)


def test_defaults_of_thresholds():
    logits, targets = multi(60, 3)
    targets[:, 2] = 0
    targets[0, 2] = 1
    explicit = {"folds": 5, "min_positives": 1, "shrinkage": 10.0, "ignore_value": -1}
    assert quietly(fit_thresholds, logits, targets) == quietly(fit_thresholds, logits, targets, **explicit)
    for name, value in {"folds": 4, "min_positives": 2, "shrinkage": 9.0}.items():
        assert quietly(fit_thresholds, logits, targets) != quietly(fit_thresholds, logits, targets, **{name: value})
    one = quietly(fit_thresholds, logits[:1], targets[:1])
    assert one.f1 == ()
    two = quietly(fit_thresholds, logits[:3], targets[:3])  # folds of one row each
    assert len(two.f1) == 3


def test_unknown_targets_in_cross_fitting():
    logits, targets = multi(60, 2, seed=4)
    holes = targets.clone()
    holes[::3, 0] = -1
    fitted = quietly(fit_thresholds, logits, holes, folds=3, shrinkage=2.0)
    fold = torch.randperm(60, generator=torch.Generator().manual_seed(0)) % 3
    for label in range(2):
        hits = predicted = 0
        for held in range(3):
            cut = quietly(fit_thresholds, logits[fold != held], holes[fold != held], folds=0, shrinkage=2.0)
            out = (fold == held) & (holes[:, label] != -1)
            chosen = logits[out, label] > cut.thresholds[label]
            hits += int((chosen & (holes[out, label] == 1)).sum())
            predicted += int(chosen.sum())
        assert fitted.f1[label] == pytest.approx(2 * hits / (predicted + int((holes[:, label] == 1).sum())))


def test_dirichlet_calibration_is_the_least_of_its_objective():
    """The minimum of the documented objective, by a search without gradients."""
    logits, targets = single(60, 2, seed=1)
    slope = 1 / fit_temperature(logits.log_softmax(1), targets).temperature
    x = (logits.log_softmax(1) * slope).numpy()
    units, own = (x - x.mean(0)) / x.std(0), targets.numpy()

    def objective(flat, strength):
        u, d = flat[:4].reshape(2, 2), flat[4:]
        z = x + units @ u.T + d
        nll = (np.logaddexp.reduce(z, 1) - z[np.arange(60), own]).sum()
        return nll + strength / 2 * (u[0, 1] ** 2 + u[1, 0] ** 2) + 0.5 * (u[0, 0] ** 2 + u[1, 1] ** 2 + (d**2).sum())

    for strength in (0.5, 20.0):
        best = minimize(objective, np.zeros(6), (strength,), method="BFGS", options={"gtol": 1e-7}).x
        u, d = best[:4].reshape(2, 2), best[4:]
        expected = torch.tensor(x + units @ u.T + d).softmax(1)
        fitted = quietly(fit_dirichlet, logits, targets, shrinkage=strength)
        assert_close(fitted(logits).softmax(1), expected, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
@pytest.mark.parametrize("binning", ["width", "mass"])
def test_edges_and_values_of_a_histogram(task, binning):
    logits, targets = of(task, rows=40)
    fitted = quietly(fit_histogram, logits, targets, bins=4, binning=binning)
    outcomes = logits.shape[1] if task == "multiclass" else 2
    floor = 1 / (outcomes * 41)
    for c, (edges, values) in enumerate(fitted.curves):
        p = (logits.softmax(1) if task == "multiclass" else logits.sigmoid())[:, c].numpy()
        y = (targets == c if task == "multiclass" else targets[:, c] == 1).numpy()
        if binning == "width":
            assert torch.tensor(edges).sigmoid().tolist() == pytest.approx([0.25, 0.5, 0.75])
        inner = 1 / (1 + np.exp(-np.array(edges)))
        for b, value in enumerate(values):
            low, high = ([0.0, *inner][b], [*inner, 1.0][b])
            own = (p > low) & (p <= high)
            believed = p[own].mean() if own.any() else (b + 0.5) / len(values)
            expected = (y[own].sum() + believed) / (own.sum() + 1)
            assert value == pytest.approx(min(max(expected, floor), 1 - floor), rel=1e-9)
        if binning == "mass":
            assert [int(((p > a) & (p <= b)).sum()) for a, b in zip([0, *inner], [*inner, 1], strict=True)] == [10] * 4


def test_a_label_that_is_never_known_is_at_one_half():
    logits, targets = multi(40, 2)
    targets[:, 1] = -1
    for use in (fit_isotonic, fit_histogram):
        fitted = quietly(use, logits, targets)
        assert_close(fitted(logits)[:, 1], torch.zeros(40, dtype=torch.float64))
        assert fitted.samples == 40


@pytest.mark.parametrize("temperature", [0.6, 3.0, 5.5])
def test_temperatures_between_the_bounds_are_found_however_near(temperature):
    """The accuracy equals the confidence at that temperature, so it is the optimum."""
    logits = torch.tensor([[2.0, 0.0]], dtype=torch.float64).repeat(10_000, 1)
    wrong = round(10_000 * float((logits[0] / temperature).softmax(0)[1]))
    targets = torch.zeros(10_000, dtype=torch.long)
    targets[:wrong] = 1
    expected = 2.0 / math.log((10_000 - wrong) / wrong)
    assert fit_temperature(logits, targets, bounds=(0.5, 6.0)).temperature == pytest.approx(expected, rel=1e-9)


def test_thresholds_of_a_label_that_no_score_chooses():
    """All scores of the second label are -inf: no threshold chooses it, and none is NaN or chooses all."""
    logits = torch.tensor([[-1.0, -math.inf], [2.0, -math.inf], [3.0, -math.inf]])
    targets = torch.tensor([[0, 0], [1, 1], [1, 0]])
    with pytest.warns(CalibrationWarning, match="label 1"):
        fitted = fit_thresholds(logits, targets, shrinkage=0.0)
    assert all(math.isfinite(threshold) for threshold in fitted.thresholds)
    chosen = fitted.decide(logits)
    assert not chosen[:, 1].any()
    assert chosen[1:, 0].all()


def test_focal_posterior_in_float32_is_that_in_float64():
    probs = torch.tensor([[0.999999, 5e-7, 5e-7], [0.5, 0.3, 0.2]], dtype=torch.float64)
    narrow = probs.float()
    assert_close(
        focal_posterior(narrow, gamma=3.0), focal_posterior(narrow.double(), gamma=3.0).float(), rtol=0, atol=0
    )
