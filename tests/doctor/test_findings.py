"""What the doctor finds, each finding on data that have it and on data that have it not."""

import numpy as np
import pytest

from equipoise.doctor import Finding, look_at_counts, look_at_predictions, look_at_setup, suggest
from equipoise.doctor.corrections import try_corrections
from equipoise.doctor.predictions import calibration_noise, mean_gap
from equipoise.evaluation import evaluate
from equipoise.evaluation.results import ReliabilityBins
from equipoise.evaluation.sentences import sentences_of
from equipoise.predictions import open_predictions
from equipoise.train.loss_text import parse_loss


def about(findings: list[Finding]) -> set[str]:
    return {finding.about for finding in findings}


def names(count):
    return [f"c{k}" for k in range(count)]


def evaluated(path, **arrays):
    np.savez(path, **arrays)
    return evaluate(open_predictions(path))


def test_counts_of_a_long_tail_with_a_missing_class():
    findings = look_at_counts([9500, 400, 12, 0], names(4))
    assert about(findings) == {
        "classes without training samples",
        "long tail",
        "one class dominates",
        "classes with few training samples",
    }
    assert next(f for f in findings if f.level == "problem").text.startswith("1 of 4 classes have none: c3.")
    assert "792 times" in next(f for f in findings if f.about == "long tail").text


def test_balanced_counts_raise_no_warning():
    findings = look_at_counts([100, 90, 80], names(3))
    assert about(findings) == {"balance"}
    assert findings[0].level == "note"


def test_a_mild_imbalance_is_explained():
    (findings,) = look_at_counts([300, 200, 100], names(3))
    assert "3.0 times" in findings.text
    assert "by log 3.0 = 1.1" in findings.text
    assert "called long-tailed from a ratio of 10 (2.3)" in findings.text
    assert "compare a loss that rebalances" in findings.advice


def test_only_absent_classes():
    assert about(look_at_counts([0, 0], names(2))) == {"classes without training samples"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"loss": "cb", "sampler": "balanced"}, {"several corrections for rare classes"}),
        ({"weights": True, "sampler": "square-root"}, {"several corrections for rare classes"}),
        ({"loss": "balanced-softmax", "weights": True}, {"several corrections for rare classes"}),
        ({"loss": "focal", "sampler": "balanced"}, {"probabilities after rebalancing"}),
        ({"loss": "logit-adjusted"}, {"probabilities after rebalancing"}),
        ({"loss": "ldam", "weights": True}, {"probabilities after rebalancing"}),
        ({"loss": "focal"}, set()),
        ({}, set()),
    ],
)
def test_setup(options, expected):
    assert about(look_at_setup(**options)) == expected


def test_saturated_effective_numbers():
    saturated, others = (about(look_at_setup(loss="cb", counts=[900_000, rare])) for rare in (60_000, 600))
    assert saturated - others == {"effective numbers are all equal"}
    assert others == {"probabilities after rebalancing"}


def test_setup_refuses_an_unknown_sampler_and_loss():
    with pytest.raises(ValueError, match="sampler must be one of none, balanced"):
        look_at_setup(sampler="magic")
    with pytest.raises(ValueError, match="loss"):
        look_at_setup(loss="magic")


def test_noise_of_a_calibrated_model_is_what_calibrated_models_show():
    draw = np.random.default_rng(0)
    errors, noises = [], []
    for _ in range(60):
        confidence = draw.uniform(0.5, 1.0, 2000)
        right = draw.random(2000) < confidence
        place = np.minimum((confidence * 15).astype(int), 14)
        count = np.bincount(place, minlength=15)
        c = np.divide(np.bincount(place, confidence, 15), count, where=count > 0, out=np.zeros(15))
        a = np.divide(np.bincount(place, right, 15), count, where=count > 0, out=np.zeros(15))
        errors.append((np.abs(a - c) * count).sum() / 2000)
        noises.append(calibration_noise(ReliabilityBins([], count.tolist(), c.tolist(), a.tolist())))
    assert np.mean(noises) == pytest.approx(np.mean(errors), rel=0.05)


def test_mean_gap_counts_samples():
    curve = ReliabilityBins([], [3, 0, 1], [0.5, None, 1.0], [0.25, None, 1.0])
    assert mean_gap(curve) == pytest.approx(0.1875)
    assert mean_gap(ReliabilityBins([], [0], [None], [None])) == 0.0


def test_overconfident_predictions(tmp_path):
    draw = np.random.default_rng(0)
    targets = draw.integers(0, 3, 3000)
    logits = draw.normal(0, 1, (3000, 4))
    logits[np.arange(3000), targets] += 1.5
    evaluation = evaluated(tmp_path / "p.npz", logits=4 * logits, targets=targets)
    findings = look_at_predictions(evaluation)
    assert {"overconfident", "a temperature helps", "classes without samples"} <= about(findings)
    assert suggest("multiclass", None, evaluation)[0].entry.name == "SampleDependentFocalLoss"
    calm = evaluated(tmp_path / "q.npz", logits=1.5 * logits, targets=targets)
    assert not {"overconfident", "underconfident", "a temperature helps"} & about(look_at_predictions(calm))


def test_few_samples_and_a_class_that_is_never_predicted(tmp_path):
    targets = np.array([0] * 40 + [1] * 5)
    logits = np.tile([2.0, 0.0], (45, 1))
    findings = look_at_predictions(evaluated(tmp_path / "p.npz", logits=logits, targets=targets))
    assert {"class results from few samples", "never predicted", "too few samples per bin for this ECE"} <= about(
        findings
    )
    silent = next(f for f in findings if f.about == "never predicted")
    assert "1 of 2 are never predicted: 1." in silent.text


def predicted_as(*rows):
    """Logits and targets of samples: how many, of which class, predicted as which."""
    targets = np.repeat([target for _, target, _ in rows], [count for count, _, _ in rows])
    return np.concatenate([np.tile(2.0 * np.eye(3)[guess], (count, 1)) for count, _, guess in rows]), targets


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(90, 0, 0), (40, 1, 0), (2, 1, 1), (30, 2, 2)], ("rarely predicted", "1 of 3", "1 (2 for 42)")),
        (
            [(90, 0, 0), (20, 1, 1), (5, 0, 2), (5, 1, 2), (9, 2, 0), (1, 2, 2)],
            ("low recall", "1 of 3", "2 (10 %)"),
        ),
        ([(90, 0, 0), (6, 1, 0), (1, 1, 1), (30, 2, 2)], None),  # of 7 samples that says little
        ([(90, 0, 0), (30, 1, 0), (12, 1, 1), (30, 2, 2)], None),
    ],
)
def test_classes_that_are_hardly_predicted_or_found(tmp_path, rows, expected):
    logits, targets = predicted_as(*rows)
    evaluation = evaluated(tmp_path / "p.npz", logits=logits, targets=targets)
    seen = {finding.about: finding for finding in look_at_predictions(evaluation)}
    if expected is None:
        assert not {"rarely predicted", "low recall", "never predicted"} & seen.keys()
        return
    name, *words = expected
    assert {"rarely predicted", "low recall", "never predicted"} & seen.keys() == {name}
    assert all(word in seen[name].text for word in words)
    suggested = [item.entry.text for item in suggest("multiclass", [100, 90, 80], evaluation)]
    assert ("recall" in suggested) == (name == "rarely predicted")  # confusion is not for weights to mend


def test_labels_that_are_hardly_ever_predicted(tmp_path):
    targets = np.zeros((60, 2), int)
    targets[:30, 0] = targets[:40, 1] = 1
    logits = 4.0 * targets - 2.0
    logits[3:30, 0] = -2.0
    evaluation = evaluated(tmp_path / "p.npz", logits=logits, targets=targets)
    rare = next(finding for finding in look_at_predictions(evaluation) if finding.about == "rarely predicted")
    assert "0 (3 for 30)" in rare.text
    assert "--method thresholds" in rare.advice


@pytest.mark.parametrize(
    ("samples", "expected"),
    [(40_000, ("note", "no miscalibration measurable")), (300, ("warning", "too few samples per bin for this ECE"))],
)
def test_ece_within_sampling_noise(tmp_path, samples, expected):
    draw = np.random.default_rng(1)
    logits = draw.normal(0, 1.0, (samples, 2))
    targets = (logits + draw.gumbel(size=logits.shape)).argmax(1)
    findings = look_at_predictions(evaluated(tmp_path / "p.npz", logits=logits, targets=targets))
    own = next(finding for finding in findings if "within sampling noise" in finding.text)
    assert (own.level, own.about) == expected
    assert ("fewer than 30)" in own.text) == (samples == 300)


def test_thin_bins_are_counted(tmp_path):
    def text(*levels):
        logits = np.repeat([[level, 0.0] for level in levels], [40, 10, 10][: len(levels)], axis=0)
        targets = (np.arange(len(logits)) % 4 == 3).astype(int)
        findings = look_at_predictions(evaluated(tmp_path / "p.npz", logits=logits, targets=targets))
        return next(finding.text for finding in findings if finding.about == "too few samples per bin for this ECE")

    assert text(1.1).endswith("within sampling noise.")
    assert "(1 bin holds fewer than 30)" in text(1.1, 0.7)
    assert "(2 bins hold fewer than 30)" in text(1.1, 0.7, 1.6)


def test_the_ece_of_a_group_alone_is_not_miscalibration(tmp_path):
    draw = np.random.default_rng(0)
    logits = draw.normal(0, 1, (300, 3))
    arrays = {"logits": logits, "targets": draw.integers(0, 3, 300), "train_counts": np.array([500, 50, 5])}
    findings = look_at_predictions(evaluated(tmp_path / "p.npz", **arrays))
    (few,) = (finding for finding in findings if finding.about.startswith("calibration of the group"))
    assert few.about == "calibration of the groups many, medium, few"
    assert few.text.count("by chance alone its ECE would be") == 3
    assert few.text.count("a high ECE alone does not show miscalibration") == 1


def labels_drawn(shift):
    draw = np.random.default_rng(2)
    logits = draw.normal(-2.0, 1.0, (600, 4))
    targets = (draw.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(int)
    return {"logits": logits + shift, "targets": targets}


@pytest.mark.parametrize(("shift", "word"), [(2.0, "high"), (-2.0, "low"), (0.0, None)])
def test_predicted_probabilities_of_labels_that_are_too_high_or_low(tmp_path, shift, word):
    np.savez(tmp_path / "p.npz", **labels_drawn(shift))
    source = open_predictions(tmp_path / "p.npz")
    evaluation = evaluate(source)
    findings = look_at_predictions(evaluation, corrections=try_corrections(source))
    warnings = [finding for finding in findings if finding.about.startswith("predicted")]
    sentences = " ".join(sentences_of(evaluation))
    if word is None:
        assert not warnings
        assert "--bias" not in sentences
        return
    (warning,) = warnings
    assert warning.about == f"predicted probabilities too {word}"
    predicted = 1 / (1 + np.exp(-labels_drawn(shift)["logits"]))
    present = labels_drawn(shift)["targets"].mean()
    assert f"label {100 * predicted.mean():.1f} %, observed frequency {100 * present:.1f} %" in warning.text
    assert "calibrate FILE --method label-temperatures --bias --out fit.json" in warning.advice
    assert f"a ratio of {predicted.mean() / present:.2g}" in sentences
    assert "calibrate FILE --bias" in sentences


def test_multi_label_findings_mention_labels():
    for counts in ([9500, 400, 12, 0], [300, 200, 100]):
        words = " ".join(
            f"{f.about} {f.text} {f.advice}" for f in look_at_counts(counts, names(len(counts)), "multilabel")
        )
        assert "class" not in words.replace("CF1", "")
        assert "accuracy" not in words
        assert "label" in words


def test_the_remedy_for_overconfidence_is_stated_once(tmp_path):
    draw = np.random.default_rng(3)
    logits = draw.normal(0, 2, (2000, 3))
    targets = (logits + draw.gumbel(size=logits.shape)).argmax(1)
    for shift, repair in (
        ([3.0, 0.0, 0.0], "--method vector corrects more of it"),
        ([0.0] * 3, "Temperature scaling corrects"),
    ):
        np.savez(tmp_path / "p.npz", logits=3 * logits + shift, targets=targets)
        source = open_predictions(tmp_path / "p.npz")
        findings = look_at_predictions(evaluate(source), corrections=try_corrections(source))
        (sure,) = (finding for finding in findings if finding.about == "overconfident")
        assert repair in sure.advice


def test_a_rising_classwise_error_is_reported(tmp_path):
    evaluation = evaluated(tmp_path / "p.npz", **labels_of_classes())
    evaluation.calibration.before["classwise_ece"], evaluation.calibration.after["classwise_ece"] = 0.04, 0.06
    text = sentences_of(evaluation)
    evaluation.calibration.after["classwise_ece"] = 0.0401
    (sentence,) = set(text) - set(sentences_of(evaluation))
    assert "It raises the classwise ECE from 4.00 to 6.00 %" in sentence
    assert set(sentences_of(evaluation)) <= set(text)


def labels_of_classes():
    draw = np.random.default_rng(4)
    logits = draw.normal(0, 2, (300, 3))
    return {"logits": logits, "targets": (logits + draw.gumbel(size=logits.shape)).argmax(1)}


def test_probability_zero_for_the_truth(tmp_path):
    probs = np.array([[1.0, 0.0]] * 10 + [[0.4, 0.6]] * 10)
    targets = np.array([0] * 9 + [1] + [1] * 10)
    evaluation = evaluated(tmp_path / "p.npz", probs=probs, targets=targets)
    (finding,) = (each for each in look_at_predictions(evaluation) if each.about == "rounded probabilities")
    assert "1 of 20 samples have probability 0 for the truth" in finding.text
    exact = evaluated(tmp_path / "q.npz", probs=np.where(probs == 0, 1e-6, probs), targets=targets)
    assert about(look_at_predictions(evaluation)) - about(look_at_predictions(exact)) == {"rounded probabilities"}


def test_thresholds_of_labels(tmp_path):
    draw = np.random.default_rng(1)
    targets = (draw.random((400, 3)) < 0.2).astype(int)
    logits = 3.0 * targets - 4.0 + draw.normal(0, 0.5, targets.shape)  # well separated, far below 0.5
    evaluation = evaluated(tmp_path / "p.npz", logits=logits, targets=targets)
    warning = next(f for f in look_at_predictions(evaluation, cross_fitted_f1=0.95) if f.about == "threshold 0.5")
    assert warning.level == "warning"
    fair = evaluated(tmp_path / "q.npz", logits=logits + 2.5, targets=targets)
    note = next(f for f in look_at_predictions(fair, cross_fitted_f1=0.95) if f.about == "threshold 0.5")
    assert note.level == "note"


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
@pytest.mark.parametrize("counts", [None, [100, 90], [9000, 300, 4]])
def test_suggestions_end_with_the_baseline_and_fit_the_task(task, counts):
    chosen = suggest(task, counts)
    links = {"multiclass": {"softmax"}, "multilabel": {"sigmoid"}, "segmentation": {"softmax", "region"}}[task]
    assert {item.entry.link for item in chosen} <= links
    assert chosen[-1].entry.name in ("CrossEntropyLoss", "BinaryCrossEntropyLoss")
    assert len({item.entry.name for item in chosen}) == len(chosen) > 1


def test_losses_for_label_maps_come_with_what_they_need_there():
    texts = [item.text for item in suggest("segmentation", [9000, 300, 4])]
    assert {"recall(momentum=0.1)", "ce + lovasz-softmax"} < set(texts)
    assert all(parse_loss(text) for text in texts)
    assert "recall" in [item.text for item in suggest("multiclass", [9000, 300, 4])]


def test_a_long_tail_asks_for_rebalancing():
    tail = [item.entry.name for item in suggest("multiclass", [5000, 500, 5])]  # LDAM wants a cosine classifier as well
    even = [item.entry.name for item in suggest("multiclass", [500, 500, 450])]
    assert {"LogitAdjustedLoss", "ClassBalancedLoss"} <= set(tail)
    assert "LDAMLoss" not in tail
    assert not {"LogitAdjustedLoss", "ClassBalancedLoss"} & set(even)
