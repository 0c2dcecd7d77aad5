"""Verdicts of comparisons whose predictions were made to be better, equal or worse."""

import re
import subprocess
import sys

import numpy as np
import pytest

from equipoise.comparison.judge import judge, known_verdict
from equipoise.comparison.sentences import _at_the_edge
from equipoise.comparison.verdict import RareClass, read_verdict
from equipoise.evaluation.sample_statistics import METRICS
from equipoise.report.tables import results_of
from equipoise.train.folder import write_json
from tests.comparison.made import make_comparison
from tests.predictions.saved import arrays_of

CLASSES = 5
COUNTS = np.array([300, 150, 60, 15, 8])
NAMES = np.array(["ant", "bee", "cat", "dog", "[b]eel"])
STRENGTH = {"ce": (2.0, 2.0, 1.5, 0.5, 0.3), "good": (2.0, 2.0, 1.5, 2.5, 2.5), "bad": (0.3, 0.3, 0.3, 0.3, 0.3)}
"""How far the right logit of each class stands out, by loss; others are like ce."""


def predictions(samples, loss, seed, *, stream=0, absent=()):
    """Logits in which runs share the difficulty of each sample."""
    shared, own = np.random.default_rng([stream, 1]), np.random.default_rng([stream, seed, *loss.encode()])
    targets = np.arange(samples) % CLASSES
    targets[np.isin(targets, absent)] = 0
    noise = shared.normal(size=(samples, CLASSES)) + 0.4 * own.normal(size=(samples, CLASSES))
    strength = np.array(STRENGTH.get(loss, STRENGTH["ce"])) + 0.05 * own.normal(size=CLASSES)
    logits = noise + np.eye(CLASSES)[targets] * strength[targets, None]
    return {"logits": 2 * logits, "targets": targets.astype(np.int16), "class_names": NAMES, "train_counts": COUNTS}


def predict(loss, seed, **options):
    return predictions(100, loss, seed, stream=1, **options), predictions(400, loss, seed, **options), {}


def compared(folder, losses, seeds=3, **options):
    entries = losses if isinstance(losses, dict) else {loss: [loss] for loss in losses}
    return make_comparison(folder / "comparison", entries, range(seeds), options.pop("predict", predict), **options)


STEPS = "A step takes"


@pytest.mark.parametrize("name", ["plan", "run.json", "results.json"])
def test_a_stored_verdict_is_known_until_its_inputs_change(tmp_path, name):
    folder = compared(tmp_path, ["ce", "good"], seeds=1)
    assert known_verdict(folder) is None
    verdict = judge(folder, draws=2)
    write_json(folder.verdict, verdict.to_json())
    assert known_verdict(folder) == verdict
    file = folder.plan if name == "plan" else folder.finished[1].folder.path / name
    file.write_text(file.read_text() + "\n")
    assert known_verdict(folder) is None


def sentences_with(verdict, part):
    return [sentence for sentence in verdict.sentences if part in sentence]


def difference(verdict, loss, metric):
    (one,) = (one for one in verdict.differences if (one.loss, one.metric) == (loss, metric))
    return one


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return judge(compared(tmp_path_factory.mktemp("three"), ["ce", "good", "like", "bad"]))


def test_the_table_has_every_number_of_every_loss(three):
    assert three.metrics == (*(name for name in METRICS["multiclass"] if name != "accuracy"), "seconds_per_step")
    assert three.equal_metrics == {"accuracy": "mean_class_accuracy"}  # every class has 80 test samples
    assert [row.loss for row in three.rows] == ["ce", "good", "like", "bad"]
    assert three.baseline == "ce"
    assert three.seeds == (0, 1, 2)
    for row in three.rows:
        assert row.failed_seeds == ()
        for name in three.metrics:
            value = row.metrics[name]
            assert value.mean == pytest.approx(np.mean(value.per_seed))
            assert value.std == pytest.approx(np.std(value.per_seed, ddof=1))
        assert row.groups["few"].classes == 2
        assert row.groups["few"].value == row.metrics["few"]
    assert three.test_samples == three.data.samples["test"] == 400
    assert three.data.class_names == NAMES.tolist()


def test_only_significant_differences_are_reported(three):
    main = three.main_metric
    assert {one.loss for one in three.differences} == {"good", "like", "bad"}
    assert [difference(three, loss, main).significant for loss in ("good", "like", "bad")] == [True, False, True]
    good, like = difference(three, "good", main), difference(three, "like", main)
    means = {row.loss: row.metrics[main].mean for row in three.rows}
    assert good.mean == pytest.approx(means["good"] - means["ce"])
    assert 0 < good.low < good.mean < good.high
    assert like.low < 0 < like.high
    assert good.p < good.p_adjusted < 0.05 < like.p_adjusted
    assert good.seeds_needed is good.limit is None
    assert like.limit in ("seeds", "samples")
    assert difference(three, "good", "few").mean > good.mean


def test_the_sentences_say_so_with_numbers(three):
    (better,) = sentences_with(three, "Significantly better than ce in mean class accuracy")
    good = difference(three, "good", three.main_metric)
    shown = [f"{100 * value:.1f}" for value in (good.mean, *good.interval)]
    assert better.endswith("good +{} points (95 % CI {} to {}).".format(*shown))
    assert sentences_with(three, "Significantly worse than ce in mean class accuracy: bad −")
    (rest,) = sentences_with(three, "No significant difference from ce in mean class accuracy")
    assert "(Holm-adjusted, 3 comparisons): like " in rest
    assert sentences_with(three, "Highest mean class accuracy: good, ")[0].endswith("(significant).")
    assert "good" in sentences_with(three, "Highest accuracy of classes with few training samples")[0]
    assert sentences_with(three, "Lowest ECE before calibration")
    assert sentences_with(three, "Lowest ECE after temperature scaling")
    assert sentences_with(three, "A step takes 10.0 ms with ce")
    assert sentences_with(three, "accuracy equals mean class accuracy")
    assert three.failures == three.missing_classes == ()


def test_worse_in_other_metrics_is_called_worse(three):
    for metric, name in (("few", "accuracy of classes with few training samples"), ("ece", "ECE before calibration")):
        bad = difference(three, "bad", metric)
        if bad.significant:
            assert "bad" in sentences_with(three, f"Significantly worse than ce in {name}")[0]
    assert difference(three, "bad", "few").significant or difference(three, "bad", "ece").significant


def test_a_tie_is_a_tie(tmp_path):
    def same(loss, seed):
        return predict("bad" if loss == "bad" else "ce", seed)

    verdict = judge(compared(tmp_path, ["ce", "twin", "bad"], predict=same))
    (best,) = sentences_with(verdict, "Highest mean class accuracy")
    assert re.fullmatch(r"Highest mean class accuracy: ce and twin, \d\d\.\d\d %\.", best)


def test_no_interval_goes_beyond_what_shares_can_differ_by(tmp_path):
    """Two seeds that disagree widely: Student's distribution alone would allow anything."""

    def wild(loss, seed):
        return predict("bad" if (loss == "other") == bool(seed) else "good", seed)

    verdict = judge(compared(tmp_path, ["ce", "other"], seeds=2, predict=wild))
    one = difference(verdict, "other", "mean_class_accuracy")
    assert (one.low, one.high, one.usable) == (-1.0, 1.0, False)
    assert sentences_with(verdict, "(no usable interval)")
    assert difference(verdict, "other", "nll").high > 1  # which is no share


def test_times_that_vary_between_seeds_are_not_compared(tmp_path):
    def predict_slowly(loss, seed):
        *arrays, _ = predict(loss, seed)
        return *arrays, {"seconds_per_step": 0.03 if (loss, seed) == ("good", 0) else 0.01}

    verdict = judge(compared(tmp_path, ["ce", "good"], seeds=2, predict=predict_slowly), draws=20)
    assert sentences_with(verdict, "A step takes") == [
        "A step takes 10.0 ms with ce and 20.0 ms with good; timings are not comparable: they vary by 71 % between "
        "seeds of good."
    ]
    assert times_are_not_compared(verdict)


def times_are_not_compared(verdict):
    """They stand in the table, without a mark, the best one, or a difference."""
    results = [row["seconds_per_step"] for row in results_of(verdict)]
    return (
        "seconds_per_step" in verdict.metrics
        and all(result.mean is not None and not result.best and not result.mark for result in results)
        and not [one for one in verdict.differences if one.metric == "seconds_per_step"]
    )


def timed(begin, end):
    """A prediction of runs with steady times: of ``good`` slow ones, of seed k from k * begin ms on."""

    def predict_at(loss, seed):
        *arrays, _ = predict(loss, seed)
        times = {
            "started": f"2026-11-16T12:00:00.{seed * begin:03}",
            "finished": f"2026-11-16T12:00:00.{seed * begin + end:03}",
        }
        if loss == "good":
            times = {key: time.replace("T12", "T13") for key, time in times.items()}
        return *arrays, times | {"seconds_per_step": 0.02 if loss == "good" else 0.01}

    return predict_at


def test_times_of_runs_side_by_side_are_not_compared(tmp_path):
    alone = judge(compared(tmp_path / "alone", ["ce", "good"], predict=timed(2, 2)), draws=20)
    assert difference(alone, "good", "seconds_per_step").mean == pytest.approx(0.01)
    assert results_of(alone)[0]["seconds_per_step"].best
    assert sentences_with(alone, STEPS) == [f"{STEPS} 10.0 ms with ce and 20.0 ms with good."]
    shared = judge(compared(tmp_path / "shared", ["ce", "good"], predict=timed(2, 3)), draws=20)
    assert times_are_not_compared(shared)
    assert sentences_with(shared, STEPS)[0].endswith("; timings are not comparable: runs shared the machine.")


def test_methods_without_training_steps_have_no_time(tmp_path):
    def without_steps(loss, seed):
        *arrays, _ = predict(loss, seed)
        return *arrays, {"epochs": 0 if loss == "crt" else 3}

    verdict = judge(compared(tmp_path, ["ce", "crt"], 2, predict=without_steps), draws=20)
    assert [row.metrics["seconds_per_step"].mean for row in verdict.rows] == [0.01, None]
    assert not sentences_with(verdict, STEPS)


def test_groups_with_next_to_no_test_samples_are_not_judged(tmp_path):
    def nearly_without_the_rare(loss, seed):
        val, test, options = predict(loss, seed)
        rare = np.flatnonzero(np.isin(test["targets"], (3, 4)))[3:]
        test["targets"][rare] = rare % 3
        return val, test, options

    verdict = judge(compared(tmp_path, ["ce", "good"], 2, predict=nearly_without_the_rare), draws=20)
    assert sentences_with(verdict, "Few:") == [
        "Few: 2 classes, 3 test samples, too few to judge; use more test data, or a larger --test-share if the data "
        "have no test split."
    ]
    assert "few" in verdict.metrics
    assert not [one for one in verdict.differences if one.metric == "few"]
    assert not any(row["few"].best for row in results_of(verdict))


def test_where_all_are_equal_none_is_best(tmp_path):
    verdict = judge(compared(tmp_path, ["ce", "twin"], 2, predict=lambda loss, seed: predict("ce", seed)), draws=20)
    (sentence,) = sentences_with(verdict, "No difference in mean class accuracy")
    assert sentence.endswith(" % with all.")
    assert not any(result.best for row in results_of(verdict) for result in row.values())


def test_differences_that_no_number_of_seeds_detects_are_reported(three):
    limit = difference(three, "like", three.main_metric)
    sentence = sentences_with(three, "seeds would detect like vs ce")[0]
    if limit.limit == "samples":
        assert "No number of seeds" in sentence
        assert "400 test samples" in sentence
        assert "--test-share" in sentence
    else:
        assert f"about {limit.seeds_needed} seeds" in sentence or "more than 1,000" in sentence
        assert "80 % power" in sentence


def test_a_rare_class_is_named_as_the_bottleneck(tmp_path):
    def with_a_rare_class(loss, seed):
        val, test, options = predict("ce", seed + 10 * (loss == "like"))
        rare = np.flatnonzero(test["targets"] == 4)[5:]
        test["targets"][rare] = rare % 4
        return val, test, options

    verdict = judge(compared(tmp_path, ["ce", "like"], predict=with_a_rare_class), draws=50)
    assert verdict.rarest_class == RareClass("[b]eel", 5)
    assert verdict.equal_metrics == {}
    assert "accuracy" in verdict.metrics
    assert difference(verdict, "like", verdict.main_metric).limit == "samples"
    (sentence,) = sentences_with(verdict, "No number of seeds")
    assert "5 test samples of [b]eel among 400 are too few" in sentence
    assert "--test-share" in sentence


def test_it_is_json_and_the_same_again(three, tmp_path):
    write_json(tmp_path / "verdict.json", three.to_json())
    assert read_verdict(tmp_path / "verdict.json") == three


def test_the_same_folder_gives_the_same_verdict(tmp_path):
    folder = compared(tmp_path, ["ce", "good"], 2)
    assert judge(folder) == judge(folder)


def test_one_seed_has_no_interval_and_a_warning(tmp_path):
    verdict = judge(compared(tmp_path, ["ce", "good"], 1))
    assert all(one.low is one.high is one.p is None and not one.significant for one in verdict.differences)
    assert difference(verdict, "good", "few").mean > 0.2
    assert verdict.rows[0].metrics["accuracy"].std is None
    assert sentences_with(verdict, "One seed: no interval and no significance test")
    assert not sentences_with(verdict, "ignificant")
    assert sentences_with(verdict, "Highest mean class accuracy: good")


def test_two_seeds_are_a_warning(tmp_path):
    verdict = judge(compared(tmp_path, ["ce", "good", "like"], 2))
    assert sentences_with(verdict, "Two seeds: all intervals are provisional")
    assert difference(verdict, "good", "few").low is not None


def test_candidates_are_chosen_by_validation_never_by_the_test(tmp_path):
    monitors = {"good": 0.5, "like": 0.7, "bad": 0.6}

    def with_monitor(loss, seed):
        val, test, _ = predict(loss, seed)
        return val, test, {"monitor_value": monitors.get(loss, 0.5) + 0.01 * seed}

    losses = {"ce": ["ce"], "a,b,c": ["good", "like", "bad"]}
    verdict = judge(compared(tmp_path, losses, predict=with_monitor))
    row = verdict.rows[1]
    assert row.chosen == "like"
    assert [one.monitor_mean for one in row.candidates] == pytest.approx([0.51, 0.71, 0.61])
    assert not difference(verdict, "a,b,c", verdict.main_metric).significant
    assert sentences_with(verdict, "a,b,c: like has the best mean class accuracy on validation data.")


@pytest.mark.parametrize(
    ("loss", "chosen", "hint"),
    [
        ("focal:gamma=1,2,3", "focal:gamma=3", "gamma=3 is the largest"),
        ("focal:gamma=1,2,3", "focal:gamma=1", "gamma=1 is the smallest"),
        ("focal:gamma=1,2,3", "focal:gamma=2", None),
        ("focal:gamma=0,1,2", "focal:gamma=1", None),
        ("focal:gamma=0,2", "focal:gamma=0", None),  # there is no smaller one
        ("focal:gamma=0,2", "ce", None),  # the same loss, as another row has it
        ("ce+0.1,0.5,1*dice", "ce+1*dice", "1 * dice is the largest"),
        ("tau-norm:tau=0.5,1", "tau-norm:tau=0.5", "tau=0.5 is the smallest"),
        ("ldam:weight=drw,inverse", "ldam:weight=drw", None),
        (
            "focal:gamma=linear(5,1):label_smoothing=0,0.1",
            "focal:gamma=linear(5,1):label_smoothing=0.1",
            "smoothing=0.1 is",
        ),
        ("asl:gamma_pos=(1,2)", "asl:gamma_pos=(1,2)", None),
    ],
)
def test_a_choice_at_the_edge_of_its_list_is_pointed_out(loss, chosen, hint):
    verdict = _at_the_edge(loss, chosen)
    assert (hint in verdict and verdict.count(";") == 1) if hint else verdict == ""


def test_losses_with_the_same_runs_have_one_row(tmp_path):
    folder = compared(tmp_path, {"ce": ["ce"], "good": ["good"], "same": ["good"], "also": ["ce"]}, 3)
    verdict = judge(folder, draws=20)
    assert [row.loss for row in verdict.rows] == ["ce", "good"]
    assert verdict.equal_losses == {"same": "good", "also": "ce"}
    assert {one.loss for one in verdict.differences} == {"good"}
    assert sentences_with(verdict, "same is the same as good here")


def test_a_monitor_of_which_less_is_better(tmp_path):
    def with_monitor(loss, seed):
        val, test, _ = predict(loss, seed)
        return val, test, {"monitor": "nll", "monitor_value": {"good": 0.5, "like": 0.7}.get(loss, 0.6)}

    verdict = judge(compared(tmp_path, {"ce": ["ce"], "a,b": ["like", "good"]}, 1, predict=with_monitor))
    assert verdict.rows[1].chosen == "good"


def test_failed_runs_are_named_and_the_others_are_compared(tmp_path):
    losses = {"ce": ["ce"], "good": ["good"], "a,b": ["like", "bad"], "gone": ["gone"]}
    failed = [("good", 1), ("like", 2), *(("gone", seed) for seed in range(3))]
    verdict = judge(compared(tmp_path, losses, failed=failed))
    rows = {row.loss: row for row in verdict.rows}
    assert rows["good"].seeds == (0, 2)
    assert rows["good"].failed_seeds == (1,)
    assert rows["a,b"].chosen == "bad"  # the other one failed
    assert rows["gone"].chosen is None
    assert rows["gone"].metrics == {}
    assert difference(verdict, "good", "mean_class_accuracy").seeds == 2
    assert "gone" not in {one.loss for one in verdict.differences}
    assert len(verdict.failures) == 5
    (sentence,) = sentences_with(verdict, "good, seed 1 failed")
    assert "the loss became nan in epoch 3; lower --lr" in sentence


def test_a_single_common_seed_has_no_interval(tmp_path):
    verdict = judge(compared(tmp_path, ["ce", "good", "like"], failed=[("good", 0), ("good", 1)]))
    assert difference(verdict, "good", "mean_class_accuracy").low is None
    assert difference(verdict, "like", "mean_class_accuracy").low is not None
    assert sentences_with(verdict, "good has one seed in common with ce: no interval")


def test_without_the_baseline_there_is_a_table_but_no_difference(tmp_path):
    verdict = judge(compared(tmp_path, ["ce", "good", "like"], 2, failed=[("ce", 0), ("ce", 1)]))
    assert verdict.differences == ()
    assert sentences_with(verdict, "ce has no finished run")
    assert sentences_with(verdict, "Highest mean class accuracy: good")


def test_an_unfinished_comparison_is_preliminary(tmp_path):
    folder = compared(tmp_path, ["ce", "good"], 2)
    run = folder.runs[-1].folder
    run.path.rename(run.draft)
    verdict = judge(folder)
    assert verdict.rows[1].seeds == (0,)
    assert sentences_with(verdict, "1 run not finished")


def test_without_finished_runs_there_is_no_verdict(tmp_path):
    folder = compared(tmp_path, ["ce"], 1, failed=[("ce", 0)])
    with pytest.raises(ValueError, match="at least one run must be finished"):
        judge(folder)


def test_classes_that_the_test_does_not_have_are_named(tmp_path):
    def without_two(loss, seed):
        return predict(loss, seed, absent=(1, 4))

    verdict = judge(compared(tmp_path, ["ce", "good"], 2, predict=without_two))
    assert verdict.missing_classes == ("bee", "[b]eel")
    assert sentences_with(
        verdict, "2 of 5 classes have no samples in the test set and are excluded from means over them: bee, [b]eel."
    )


def test_runs_on_other_samples_are_not_compared(tmp_path):
    def changed(loss, seed):
        val, test, options = predict(loss, seed)
        if (loss, seed) == ("good", 1):
            test["targets"] = test["targets"][::-1]
        return val, test, options

    with pytest.raises(ValueError, match="trained and tested on the same samples"):
        judge(compared(tmp_path, ["ce", "good"], 2, predict=changed))


@pytest.mark.parametrize("task", ["multilabel", "segmentation"])
def test_other_tasks(tmp_path, task):
    def with_noise(loss, seed):
        draw = np.random.default_rng([seed, *loss.encode()])

        def noisy(arrays):
            scale = 0.2 if loss == "good" else 3.0
            return arrays | {"logits": arrays["logits"] + scale * draw.normal(size=arrays["logits"].shape)}

        return noisy(arrays_of(task, seed=5)), noisy(arrays_of(task)), {}

    verdict = judge(compared(tmp_path, ["base", "good", "equal"], 3, predict=with_noise, task=task))
    assert verdict.metrics == (*METRICS[task], "seconds_per_step")
    assert difference(verdict, "good", verdict.main_metric).significant
    assert not difference(verdict, "equal", verdict.main_metric).significant
    assert sentences_with(
        verdict, "Significantly better than base in " + {"multilabel": "mAP", "segmentation": "mean IoU"}[task]
    )


def test_nothing_here_needs_torch(tmp_path):
    folder = compared(tmp_path, ["ce", "good"], 2)
    code = (
        "import sys; from pathlib import Path; from equipoise.comparison.folder import ComparisonFolder\n"
        "from equipoise.comparison.judge import judge\n"
        f"judge(ComparisonFolder(Path({str(folder.path)!r}))); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
