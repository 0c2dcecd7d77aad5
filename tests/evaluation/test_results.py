"""Results are typed values, saved as JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest

from equipoise.cli.inputs import json_text
from equipoise.evaluation import Evaluation, OpenSetEvaluation, evaluate, evaluate_open_set
from equipoise.evaluation.results import ReliabilityBins
from equipoise.predictions import InputError, open_predictions
from tests.predictions.saved import arrays_of


@pytest.fixture(scope="module", params=["multiclass", "multilabel", "segmentation"])
def evaluation(request):
    return evaluate(open_predictions(arrays_of(request.param, samples=60)), bootstrap=5)


def test_what_is_written_is_read(evaluation):
    assert Evaluation.from_json(json.loads(json.dumps(evaluation.to_json()))) == evaluation


def test_an_open_set_is_part_of_it():
    arrays = arrays_of("multiclass", samples=60)
    open_set = evaluate_open_set(arrays, {"logits": -arrays["logits"]})
    assert OpenSetEvaluation.from_json(open_set.to_json()) == open_set
    both = replace(evaluate(arrays), open_set=open_set)
    assert Evaluation.from_json(both.to_json()) == both
    assert "open_set" not in evaluate(arrays).to_json()


def test_what_the_command_line_prints_is_read():
    arrays = {"logits": np.array([[0.0, -np.inf], [1.0, 0.0]] * 9), "targets": np.array([1, 0] * 9)}
    infinite = evaluate(arrays)
    assert infinite.overall["nll"] == np.inf
    again = Evaluation.from_json(json.loads(json_text(infinite.to_json())))
    assert again == infinite


def test_files_of_other_versions_are_read(evaluation):
    content = evaluation.to_json() | {"of_tomorrow": 1}
    for key in ("unknown", "notes"):
        del content[key]
    assert Evaluation.from_json(content) == replace(evaluation, unknown=0, notes=[])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("overall"), "x.json: overall is missing; mend it"),
        (lambda c: c["overall"].update(nll="low"), "x.json: overall.nll must be a number, found 'low'; mend it"),
        (lambda c: c.update(samples=2.5), "samples must be an integer, found 2.5"),
        (lambda c: c.update(samples=True), "samples must be an integer, found True"),
        (lambda c: c.update(task="guess"), "task must be one of .*, found 'guess'"),
        (lambda c: c["per_class"][1].pop("support"), "per_class.1.support is missing"),
        (lambda c: c["per_class"].append(7), "per_class.6 must be an object, found 7"),
        (lambda c: c["reliability"]["all"]["before"].update(count=None), "reliability.all.before.count must be a list"),
        (lambda c: c["calibration"].update(after=[]), "calibration.after must be an object"),
    ],
)
def test_damage_is_one_line_that_names_the_place(evaluation, change, words):
    content = json.loads(json.dumps(evaluation.to_json()))
    change(content)
    with pytest.raises(InputError, match=words) as raised:
        Evaluation.from_json(content, where="x.json", advice="mend it")
    assert "\n" not in str(raised.value)


def test_items_are_deprecated_and_still_there(evaluation):
    with pytest.warns(DeprecationWarning, match="read attributes instead"):
        assert evaluation["overall"] is evaluation.overall
    row = evaluation.per_class[0]
    with pytest.warns(DeprecationWarning, match="support"):
        assert (row["name"], row["support"], row[evaluation.main]) == (
            row.name,
            row.support,
            row.metrics[evaluation.main],
        )
    with pytest.warns(DeprecationWarning, match="open_set"), pytest.raises(KeyError):
        evaluation["open_set"]
    assert list(evaluation) == list(evaluation.to_json())
    assert "overall" in evaluation
    assert "nonsense" not in evaluation


def test_means_of_a_reliability_diagram_count_samples():
    curve = ReliabilityBins([0.0, 0.5, 0.9, 1.0], [3, 0, 1], [0.5, None, 1.0], [0.25, None, 1.0])
    assert (curve.total, curve.mean_confidence, curve.mean_accuracy) == (4, 0.625, 0.4375)
