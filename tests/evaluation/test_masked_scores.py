"""Saved predictions with infinite logits: -inf is a probability of 0, inf of a label one of 1."""

import json
import math

import numpy as np
import pytest

from equipoise.cli.inputs import json_text
from equipoise.doctor import look_at_predictions
from equipoise.doctor.corrections import try_corrections
from equipoise.evaluation import evaluate
from equipoise.evaluation.open_set import evaluate_open_set
from equipoise.evaluation.sentences import sentences_of
from equipoise.predictions import InputError, open_predictions
from equipoise.predictions.write import write_predictions
from tests.predictions.saved import CASES, TASKS, arrays_of, save

FAR = 1e4  # a logit of -1e4 is a probability of exactly 0


def masked(task, against=0):
    """Arrays with infinite logits, which give the targets of ``against`` samples probability 0."""
    arrays = arrays_of(task, samples=60)
    logits, targets = arrays["logits"], arrays["targets"]
    chosen = np.random.default_rng(5).random(logits.shape) < 0.3
    if task == "multilabel":
        logits[chosen] = np.where(targets == 1, np.inf, -np.inf)[chosen]
        logits[:against], targets[:against] = np.inf, 0
        return arrays
    own = np.where(targets >= 0, targets, 0)[:, None]
    np.put_along_axis(chosen, own, False, 1)
    logits[chosen] = -np.inf
    targets[:against] = 1
    logits[:against, 1] = -np.inf
    logits[:against, 0] = 0.0
    return arrays


def numbers(value):
    """All numbers of an evaluation, in order."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, (int, float)) else []


@pytest.mark.parametrize(("task", "form"), CASES)
def test_masked_scores_equal_tiny_probabilities(tmp_path, task, form):
    arrays = masked(task)
    source = open_predictions(save(tmp_path, form, arrays), train_counts=arrays["train_counts"])
    np.testing.assert_array_equal(np.concatenate([chunk.scores for chunk in source.chunks()]), arrays["logits"])
    evaluation = evaluate(source, bootstrap=5)
    content = evaluation.to_json()
    expected = evaluate(arrays | {"logits": arrays["logits"].clip(-FAR, FAR)}, bootstrap=5).to_json()
    for part in ("overall", "per_class", "groups", "calibration", "reliability", "intervals"):
        assert numbers(content[part]) == pytest.approx(numbers(expected[part]), rel=1e-6), part
    assert evaluation.notes == []
    written = tmp_path / ("again" if form == "folder" else f"again.{form}")
    write_predictions(written, source, source.chunks())
    np.testing.assert_array_equal(
        np.concatenate([chunk.scores for chunk in open_predictions(written).chunks()]), arrays["logits"]
    )


@pytest.mark.parametrize("task", TASKS)
def test_true_class_with_probability_zero(task):
    """The NLL is infinite, with a note, and no metric is NaN."""
    arrays = masked(task, against=2)
    evaluation = evaluate(arrays, bootstrap=40)
    assert evaluation.overall["nll"] == math.inf
    assert evaluation.calibration.after["nll"] == math.inf
    assert evaluation.intervals["nll"][1] == math.inf
    assert not any(map(math.isnan, numbers(evaluation.to_json())))
    assert len(evaluation.notes) == 1
    assert json.loads(json_text(evaluation.to_json()))["overall"]["nll"] == "inf"
    assert evaluation.notes[0] in sentences_of(evaluation)
    tried = [] if task == "segmentation" else try_corrections(open_predictions(arrays))
    assert tried == []  # no correction brings back a probability of 0
    findings = look_at_predictions(evaluation, corrections=tried)
    assert [finding.level for finding in findings if finding.about == "truth ruled out"] == ["problem"]
    possible = look_at_predictions(evaluate(masked(task)))
    assert {finding.about for finding in possible} & {"truth ruled out", "rounded probabilities"} == set()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_invalid_infinite_scores(task, value):
    arrays = arrays_of(task, samples=20)
    arrays["logits"][3] = value
    arrays["targets"][3] = 1
    if task == "multilabel" and not np.isnan(value):
        assert evaluate(arrays).overall["ece"] is not None
        return
    with pytest.raises(InputError, match=r"(?s)logits must .*found .*at sample 3.*; \w"):
        evaluate(arrays)


def test_rows_of_masked_classes_may_be_ignored_but_not_predicted():
    arrays = arrays_of("multiclass", samples=30, names=False, counts=False)
    arrays["logits"][:2], arrays["targets"][:2] = -np.inf, -100
    evaluation = evaluate(arrays)
    rest = evaluate({name: values[2:] for name, values in arrays.items()})
    assert evaluation.overall["accuracy"] == rest.overall["accuracy"]
    assert evaluation.overall["nll"] == pytest.approx(rest.overall["nll"])
    with pytest.raises(InputError, match="unknown: logits must have a class that is not masked"):
        evaluate_open_set(arrays, {"logits": arrays["logits"]})


def test_an_open_set_of_masked_predictions():
    known, unknown = masked("multiclass"), masked("multiclass")
    arrays = {"logits": unknown["logits"][:9]}
    evaluation = evaluate_open_set({name: known[name] for name in ("logits", "targets")}, arrays)
    large = {"logits": known["logits"].clip(-FAR), "targets": known["targets"]}
    expected = evaluate_open_set(large, {"logits": arrays["logits"].clip(-FAR)})
    assert numbers(evaluation.to_json()) == pytest.approx(numbers(expected.to_json()))
