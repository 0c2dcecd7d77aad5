"""Metrics of an open-set evaluation against the metric classes, plain counting, and a case computed by hand."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import sklearn.metrics as sk
import torch

from equipoise.evaluation import OPEN_FORMAT, evaluate_open_set
from equipoise.evaluation.sentences import open_set_sentences
from equipoise.heads import open_set_prediction
from equipoise.metrics import OpenSetScores, accepting_threshold, best_threshold, shot_groups
from equipoise.predictions import InputError, open_predictions, source, split_open
from tests.predictions.saved import arrays_of, save, softmax

CLASSES = 6


def unknown_logits(samples=90, seed=8, classes=CLASSES):
    return 1.2 * np.random.default_rng([seed, 5]).normal(size=(samples, classes))


def known_and_open(tmp_path, **changes):
    known = arrays_of("multiclass") | changes
    path = save(tmp_path, "npz", known, "known")
    np.savez(tmp_path / "open.npz", logits=unknown_logits())
    return known, open_predictions(path), open_predictions(tmp_path / "open.npz", targets=False)


def mixed(known):
    """Logits and targets of both, unknown ones with target -1."""
    unknown = unknown_logits()
    logits = torch.from_numpy(np.concatenate([known["logits"], unknown]))
    targets = torch.from_numpy(np.concatenate([known["targets"], np.full(len(unknown), -1)]))
    return logits, targets


@pytest.mark.parametrize("convention", ["oltr", "kang"])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.65])
def test_a_fixed_threshold_gives_what_the_metric_gives(tmp_path, threshold, convention):
    known, *sources = known_and_open(tmp_path)
    evaluation = evaluate_open_set(*sources, threshold=threshold, convention=convention)
    groups = shot_groups(known["train_counts"])
    expected = OpenSetScores(threshold, convention=convention, groups=groups)(*mixed(known))
    row = evaluation.thresholds[0]
    assert (row.rule, row.threshold, row.chosen_on) == ("fixed", [threshold], "")
    for name in ("f_measure", "precision", "recall", "accuracy", "known_rejected", "unknown_rejected"):
        assert row.metrics[name] == pytest.approx(float(expected[name])), name
    assert [row.metrics[name] for name in ("many", "medium", "few")] == pytest.approx(expected["groups"].tolist())
    closed = evaluation.closed
    assert [closed[name] for name in ("many", "medium", "few")] == pytest.approx(expected["closed_groups"].tolist())
    assert closed["accuracy"] == pytest.approx(float(expected["closed_accuracy"]))
    assert evaluation.auroc["max_probability"] == pytest.approx(float(expected["auroc"]))
    assert evaluation.main == "fixed"
    assert evaluation.overall["f_measure"] == row.metrics["f_measure"]
    assert evaluation.overall["open_few"] == row.metrics["few"]


def test_sentences_without_a_threshold(tmp_path):
    _, *sources = known_and_open(tmp_path)
    evaluation = evaluate_open_set(*sources)
    row = next(row for row in evaluation.thresholds if row.rule == "accept")
    assert (evaluation.main, evaluation.told) == ("fixed", "accept")
    output = open_set_sentences(evaluation)[0]
    first, second = (f"{level:.3g}" for level in row.threshold)
    rejected = f"{100 * row.metrics['unknown_rejected']:.2f} %"
    assert output.startswith(f"At the thresholds {first} / {second} of two halves, {rejected}")
    given = open_set_sentences(evaluate_open_set(*sources, threshold=0.3))[0]
    assert given.startswith("At the threshold 0.3, ")


def test_decisions_are_those_of_the_head(tmp_path):
    known, *sources = known_and_open(tmp_path)
    row = evaluate_open_set(*sources, threshold=0.5).thresholds[0]
    logits, targets = mixed(known)
    predicted = open_set_prediction(logits, threshold=0.5)
    assert row.metrics["unknown_rejected"] == pytest.approx(float((predicted[targets == -1] == -1).double().mean()))
    per_class = [float((predicted[targets == c] == c).double().mean()) for c in range(CLASSES)]
    assert row.metrics["mean_class_accuracy"] == pytest.approx(np.mean(per_class))


def test_auroc_of_each_score_is_that_of_scikit_learn(tmp_path):
    known, *sources = known_and_open(tmp_path)
    logits, targets = mixed(known)
    counted = targets != -100
    logits, is_known = logits[counted].numpy(), (targets[counted] >= 0).numpy()
    auroc = evaluate_open_set(*sources).auroc
    scores = {
        "max_probability": softmax(logits).max(1),
        "max_logit": logits.max(1),
        "energy": np.log(np.exp(logits).sum(1)),
    }
    assert auroc.keys() == scores.keys()
    for name, values in scores.items():
        assert auroc[name] == pytest.approx(sk.roc_auc_score(is_known, values)), name


def test_curve_and_histogram_count_every_sample(tmp_path):
    known, *sources = known_and_open(tmp_path)
    evaluation = evaluate_open_set(*sources)
    curve, histogram = evaluation.curve, evaluation.histogram
    assert curve.threshold == [k / 100 for k in range(101)]
    for place in (0, 17, 60, 100):
        expected = OpenSetScores(curve.threshold[place])(*mixed(known))
        for name, key in (("f_measure",) * 2, ("accuracy",) * 2, ("unknown_rejected",) * 2, ("known_rejected",) * 2):
            assert curve[name][place] == pytest.approx(float(expected[key])), (place, name)
    counted = known["targets"] != -100
    assert sum(histogram.known_right) + sum(histogram.known_wrong) == counted.sum() == evaluation.known
    assert sum(histogram.unknown) == evaluation.unknown == 90
    confidence = softmax(unknown_logits()).max(1)
    assert histogram.unknown[10] == ((confidence > 0.4) & (confidence <= 0.44)).sum()


def test_area_under_the_curve_is_the_auroc(tmp_path):
    _, *sources = known_and_open(tmp_path)
    evaluation = evaluate_open_set(*sources)
    known, unknown = (np.array(getattr(evaluation.trade, f"{kind}_rejected")) for kind in ("known", "unknown"))
    assert (known[0], known[-1], unknown[-1]) == (0.0, 1.0, 1.0)
    assert known == pytest.approx(np.linspace(0, 1, 101), abs=1 / evaluation.known)
    assert np.trapezoid(unknown, known) == pytest.approx(evaluation.auroc["max_probability"], abs=0.01)


# Thresholds that are chosen -------------------------------------------------------------------------------------------


def test_a_threshold_chosen_on_validation_data_is_applied_as_it_is(tmp_path):
    _, *sources = known_and_open(tmp_path)
    checks = arrays_of("multiclass", seed=9)
    val = open_predictions(save(tmp_path, "npz", checks, "val"))
    evaluation = evaluate_open_set(*sources, val=val, accept=0.9)
    counted = checks["targets"] != -100
    confidence = torch.from_numpy(softmax(checks["logits"]).max(1)[counted])
    (row,) = (row for row in evaluation.thresholds if row.rule == "accept")
    assert row.threshold == pytest.approx([accepting_threshold(confidence, share=0.9)])
    assert row.chosen_on == "validation data"
    assert evaluation.main == "accept"
    assert evaluation.overall["f_measure"] == row.metrics["f_measure"]
    again = evaluate_open_set(*sources, threshold=row.threshold[0]).thresholds[0]
    assert (again.threshold, again.metrics) == (row.threshold, row.metrics)
    # the highest F-measure asks for unknown validation samples
    assert [row.chosen_on for row in evaluation.thresholds] == ["", "validation data", "the other half of the samples"]


def test_with_unknown_validation_samples_the_best_f_measure_is_chosen_on_them(tmp_path):
    _, *sources = known_and_open(tmp_path)
    checks = arrays_of("multiclass", seed=9)
    val = open_predictions(save(tmp_path, "npz", checks, "val"))
    np.savez(tmp_path / "open_val.npz", logits=unknown_logits(40, seed=1))
    open_val = open_predictions(tmp_path / "open_val.npz", targets=False)
    evaluation = evaluate_open_set(*sources, val=val, open_val=open_val)
    counted = checks["targets"] != -100
    probs = softmax(checks["logits"][counted])
    expected = best_threshold(
        torch.from_numpy(probs.max(1)),
        torch.from_numpy(probs.argmax(1) == checks["targets"][counted]),
        torch.from_numpy(softmax(unknown_logits(40, seed=1)).max(1)),
    )
    row = evaluation.thresholds[2]
    assert (row.rule, row.chosen_on) == ("best", "validation data")
    assert row.threshold == pytest.approx([expected])


def test_without_validation_data_the_seed_draws_halves(tmp_path):
    _, *sources = known_and_open(tmp_path)
    evaluation, again, other = (evaluate_open_set(*sources, seed=seed) for seed in (0, 0, 1))
    for row in evaluation.thresholds[1:]:
        assert row.threshold[0] != row.threshold[1]
    assert again == evaluation
    assert other.thresholds[2].threshold != evaluation.thresholds[2].threshold
    assert other.thresholds[0] == evaluation.thresholds[0]


def test_halves_judge_each_other(tmp_path):
    """One known and one unknown sample in each half: the threshold of one is the confidence of the other."""
    logits = np.log(np.array([[0.9, 0.1], [0.8, 0.2]]))
    np.savez(tmp_path / "known.npz", logits=logits, targets=np.array([0, 0]))
    np.savez(tmp_path / "open.npz", logits=np.log(np.array([[0.6, 0.4], [0.7, 0.3]])))
    known, unknown = open_predictions(tmp_path / "known.npz"), open_predictions(tmp_path / "open.npz", targets=False)
    rows = {row.rule: row for row in evaluate_open_set(known, unknown).thresholds}
    assert sorted(rows["accept"].threshold) == pytest.approx([0.8, 0.9])
    # the sample of 0.8 is judged by 0.9 and rejected, that of 0.9 is judged by 0.8
    assert rows["accept"].metrics["known_rejected"] == 0.5
    assert rows["accept"].metrics["unknown_rejected"] == 1.0


def test_too_few_samples_for_halves_omit_those_rows(tmp_path):
    np.savez(tmp_path / "known.npz", logits=np.array([[3.0, 0.0], [1.0, 0.0]]), targets=np.array([0, 1]))
    np.savez(tmp_path / "open.npz", logits=np.zeros((1, 2)))
    known, unknown = open_predictions(tmp_path / "known.npz"), open_predictions(tmp_path / "open.npz", targets=False)
    evaluation = evaluate_open_set(known, unknown, threshold=0.6)
    assert [row.rule for row in evaluation.thresholds] == ["fixed"]
    assert evaluation.thresholds[0].metrics["f_measure"] == pytest.approx(2 / 3)  # one right, one wrong


# Inputs ---------------------------------------------------------------------------------------------------------------


def test_json_has_no_nan_or_infinity(tmp_path):
    _, *sources = known_and_open(tmp_path, train_counts=np.full(CLASSES, 1000))
    evaluation = evaluate_open_set(*sources, threshold=1.0, convention="kang")
    content = evaluation.to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert evaluation.format == OPEN_FORMAT
    assert evaluation.closed["few"] is None  # no such class
    assert evaluation.overall["open_few"] is None


@pytest.mark.parametrize("form", ["npz", "folder", "csv", "parquet"])
def test_an_open_label_in_the_same_file_is_the_same_as_two_files(tmp_path, form):
    known, *sources = known_and_open(tmp_path)
    unknown = unknown_logits()
    both = known | {
        "logits": np.concatenate([known["logits"], unknown]),
        "targets": np.concatenate([known["targets"], np.full(len(unknown), -7)]),
    }
    path = save(tmp_path, form, both, "both")
    parts = split_open(open_predictions(path, open_label=-7, train_counts=known["train_counts"]))
    evaluation, expected = evaluate_open_set(*parts), evaluate_open_set(*sources)
    assert [part.labelled for part in parts] == [True, False]
    assert replace(evaluation, file="known.npz", open_file="open.npz") == expected


TARGETS = {"none": None, "other numbers": np.full(90, 77), "words": np.full(90, "zebra"), "several": np.ones((90, 2))}


@pytest.mark.parametrize("form", ["npz", "folder", "csv", "parquet"])
@pytest.mark.parametrize("targets", TARGETS)
def test_targets_of_an_open_set_are_ignored(tmp_path, form, targets):
    _, known, unknown = known_and_open(tmp_path)
    given = TARGETS[targets]
    if form in ("npz", "folder"):
        arrays = {"logits": unknown_logits()} | ({} if given is None else {"targets": given})
        path = save(tmp_path, form, arrays, "others")
    else:
        columns = {f"logit_kind {k}": column for k, column in enumerate(unknown_logits().T)}
        if given is not None:
            columns |= {"target": given} if given.ndim == 1 else {"target_x": given[:, 0], "target_y": given[:, 1]}
        path = tmp_path / f"others.{form}"
        (pa.csv.write_csv if form == "csv" else pa.parquet.write_table)(pa.table(columns), path)
    evaluation = evaluate_open_set(known, open_predictions(path, targets=False))
    assert evaluation.thresholds == evaluate_open_set(known, unknown).thresholds


def test_every_chunking_gives_the_same_numbers(tmp_path, monkeypatch):
    _, *sources = known_and_open(tmp_path)
    whole = evaluate_open_set(*sources)
    for elements in (1, 700):
        monkeypatch.setattr(source, "CHUNK_ELEMENTS", elements)
        assert evaluate_open_set(*sources) == whole


def test_probabilities_give_the_same_without_logit_scores(tmp_path):
    known, logits, unknown = known_and_open(tmp_path)
    probs = {name: value for name, value in known.items() if name != "logits"} | {"probs": softmax(known["logits"])}
    given = open_predictions(save(tmp_path, "npz", probs, "probs"))
    evaluation, expected = evaluate_open_set(given, unknown), evaluate_open_set(logits, unknown)
    assert evaluation.auroc.keys() == {"max_probability"}
    assert evaluation.overall == pytest.approx(expected.overall)


@pytest.mark.parametrize(("classes", "threshold", "has_note"), [(10, None, True), (11, None, False), (4, 0.25, True)])
def test_threshold_that_cannot_reject_gets_a_note(tmp_path, classes, threshold, has_note):
    known = open_predictions(save(tmp_path, "npz", arrays_of("multiclass", classes=classes), "known"))
    np.savez(tmp_path / "open.npz", logits=np.zeros((5, classes)))  # as unsure as can be
    evaluation = evaluate_open_set(known, open_predictions(tmp_path / "open.npz", targets=False), threshold=threshold)
    assert any("rejects nothing" in note for note in evaluation.notes) == has_note
    assert (evaluation.thresholds[0].metrics["unknown_rejected"] == 0.0) == has_note


def test_progress_covers_every_sample(tmp_path):
    _, *sources = known_and_open(tmp_path)
    counts = []
    evaluate_open_set(*sources, progress=counts.append)
    assert sum(counts) == 240 + 90


def test_paths_and_arrays_are_opened(tmp_path):
    arrays, known, unknown = known_and_open(tmp_path)
    expected = evaluate_open_set(known, unknown, val=known, open_val=unknown)
    paths = tmp_path / "known.npz", str(tmp_path / "open.npz")
    assert evaluate_open_set(*paths, val=paths[0], open_val=paths[1]) == expected
    held = {"logits": torch.from_numpy(unknown_logits()), "targets": np.full(90, 99)}  # targets that are no class
    evaluation = evaluate_open_set(arrays, held, val=arrays, open_val=held)
    assert evaluation == replace(expected, file="known", open_file="unknown")
    refused(["unknown: there must be scores of the 6 classes of known, found 7"], arrays, {"logits": np.zeros((3, 7))})
    with pytest.raises(TypeError, match="predictions must be a path, or arrays by name, got ndarray; pass"):
        evaluate_open_set(arrays, held["targets"])


def refused(words, *arguments, **options):
    with pytest.raises((InputError, ValueError)) as caught:
        evaluate_open_set(*arguments, **options)
    for word in words:
        assert word in str(caught.value)


def test_bad_input(tmp_path):
    _, known, unknown = known_and_open(tmp_path)

    def opened(name, arrays, **options):
        return open_predictions(save(tmp_path, "npz", arrays, name), **options)

    other = opened("seven", {"logits": np.zeros((3, 7))}, targets=False)
    refused(("seven.npz", "scores of the 6 classes of known.npz, found 7"), known, other)
    for task in ("multilabel", "segmentation"):
        source_of = opened(task, arrays_of(task, samples=20))
        refused((f"{task}.npz", "requires single-label predictions", repr(task)), source_of, unknown)
        refused((f"{task}.npz", repr(task)), known, unknown, val=source_of)
    maps = opened("maps", {"logits": np.zeros((3, 6, 2, 2))}, targets=False)
    refused(("maps.npz", "'segmentation'"), known, maps)
    names = np.array([f"kind {k}" for k in (0, 1, 3, 2, 4, 5)])
    turned = opened("turned", {"logits": np.zeros((3, 6)), "class_names": names}, targets=False)
    refused(("turned.npz", "in the same order, found 'kind 3' in the place of 'kind 2'"), known, turned)
    ignored = opened("ignored", arrays_of("multiclass") | {"targets": np.full(240, -100)})
    refused(("ignored.npz", "only ignored ones"), ignored, unknown)
    refused(("nan.npz", "must be finite"), known, opened("nan", {"logits": np.full((2, 6), np.nan)}, targets=False))
    refused(("threshold", "2"), known, unknown, threshold=2.0)
    refused(("accept", "0"), known, unknown, accept=0.0)
    refused(("convention", "oltr"), known, unknown, convention="other")
    with pytest.raises(InputError, match="at least one sample"):
        opened("empty", {"logits": np.zeros((0, 6))}, targets=False)


def test_invalid_open_labels(tmp_path):
    path = save(tmp_path, "npz", arrays_of("multiclass"))
    for label, words in ((3, "no class, got 3 where the classes are 0 to 5"), (-100, "must differ from the ignored")):
        with pytest.raises(InputError, match=words):
            open_predictions(path, open_label=label)
    with pytest.raises(InputError, match="no open set is defined"):
        open_predictions(save(tmp_path, "npz", arrays_of("multilabel"), "multilabel"), open_label=-7)
    with pytest.raises(InputError, match="opened with an open label"):
        split_open(open_predictions(path))
    known, unknown = split_open(open_predictions(path, open_label=-7))
    assert sum(len(chunk.scores) for chunk in known.chunks()) == 240
    with pytest.raises(InputError, match="samples with the open label -7, found none"):
        list(unknown.chunks())
    all_open = arrays_of("multiclass") | {"targets": np.full(240, -7)}
    known, _ = split_open(open_predictions(save(tmp_path, "npz", all_open, "all"), open_label=-7))
    with pytest.raises(InputError, match="samples without the open label -7, found none"):
        list(known.chunks())
