"""The table of a comparison in other documents."""

import csv
import io
import re
from dataclasses import replace

import pytest

from equipoise.comparison.verdict import Summary
from equipoise.report.tables import as_csv, as_latex, as_markdown, further_metrics, results_of, with_metrics
from tests.comparison.verdicts import difference_of, result_of, summary, verdict_of

NAMES = ("ce", "focal:gamma=1,2", "a|b_$x$ <b>")


def difference(loss, metric, mean, significant):
    known = {"low": mean - 0.01, "high": mean + 0.01, "p": 0.01, "p_adjusted": 0.02}
    return difference_of(loss, metric, mean, significant, seeds_needed=None if significant else 7, **known)


@pytest.fixture
def verdict():
    values = [
        {"accuracy": summary(0.7), "nll": summary(0.5), "seconds_per_step": summary(0.0123, 0.0004)},
        {"accuracy": summary(0.8), "nll": summary(0.6), "seconds_per_step": summary(1.5, 0.25)},
        {"accuracy": summary(0.75), "nll": Summary(None, None, ())},
    ]
    differences = [
        difference(NAMES[1], "accuracy", 0.1, True),
        difference(NAMES[1], "nll", 0.1, True),
        difference(NAMES[2], "accuracy", 0.05, False),
    ]
    rows = [result_of(name, metrics) for name, metrics in zip(NAMES, values, strict=True)]
    return verdict_of(rows, differences, metrics=("accuracy", "nll", "seconds_per_step"))


def renamed(verdict, place, loss):
    """The verdict with another loss in a row."""
    rows = list(verdict.rows)
    rows[place] = replace(rows[place], loss=loss)
    return replace(verdict, rows=tuple(rows))


def test_rows_are_called_methods_where_any_is_one(verdict):
    def heads(verdict):
        return as_markdown(verdict).splitlines()[0][:8], re.search(r"\n(\w+) & accuracy", as_latex(verdict))[1]

    assert heads(verdict) == ("| loss |", "loss")
    verdict = renamed(verdict, 2, "crt")
    assert heads(verdict) == ("| method", "method")


def test_marks_say_better_or_worse_and_only_of_real_differences(verdict):
    base, focal, odd = results_of(verdict)
    assert [focal["accuracy"].mark, focal["nll"].mark, odd["accuracy"].mark] == ["better", "worse", ""]
    assert not any(result.mark for result in base.values())


def test_best_follows_the_direction_of_the_metric(verdict):
    base, focal, odd = results_of(verdict)
    assert [row["accuracy"].best for row in (base, focal, odd)] == [False, True, False]
    assert [row["nll"].best for row in (base, focal, odd)] == [True, False, False]


def test_a_single_loss_is_not_called_the_best(verdict):
    verdict = replace(verdict, rows=verdict.rows[:1], differences=())
    assert not any(result.best for result in results_of(verdict)[0].values())


def test_metrics_that_are_not_compared_have_no_best(verdict):
    verdict = replace(verdict, not_compared={"nll": "too few"})
    assert not any(row["nll"].best for row in results_of(verdict))
    assert results_of(verdict)[1]["accuracy"].best


def test_where_all_are_equal_none_is_bold(verdict):
    assert any(row["accuracy"].best for row in results_of(verdict))
    bold = as_markdown(verdict).count("**")
    equal = [replace(row, metrics={**row.metrics, "accuracy": summary(0.0)}) for row in verdict.rows]
    verdict = replace(verdict, rows=tuple(equal))
    assert not any(row["accuracy"].best for row in results_of(verdict))
    assert as_markdown(verdict).count("**") == bold - 2


def test_metrics_that_are_measured_and_not_compared_can_be_chosen(verdict):
    rows = [replace(row, metrics={**row.metrics, "mce": summary(0.2 + 0.1 * n)}) for n, row in enumerate(verdict.rows)]
    rows[0] = replace(rows[0], metrics={**rows[0].metrics, "s99_accuracy": Summary(None, None, ())})
    verdict = replace(verdict, rows=tuple(rows), equal_metrics={"accuracy": "nll"})
    assert further_metrics(verdict) == ["mce"]
    table = as_markdown(with_metrics(verdict, ["mce"])).splitlines()
    assert table[0] == "| loss | MCE |"
    assert "**20.00" in table[2]
    assert "mce" not in as_csv(verdict)


def test_metrics_are_chosen_in_their_order(verdict):
    chosen = with_metrics(verdict, ["nll", "accuracy"])
    assert as_markdown(chosen).splitlines()[0] == "| loss | NLL | accuracy |"
    assert {row["metric"] for row in csv.DictReader(io.StringIO(as_csv(chosen)))} == {"nll", "accuracy"}
    assert verdict.metrics == ("accuracy", "nll", "seconds_per_step")


@pytest.mark.parametrize(("names", "got"), [(["accuracy", "ece", "f1"], "got ece,f1;"), ([], "got none;")])
def test_a_metric_that_is_not_there(verdict, names, got):
    with pytest.raises(ValueError, match=f"--metrics must be some of accuracy,nll,seconds_per_step, {got}"):
        with_metrics(verdict, names)


def test_csv_has_unrounded_numbers(verdict):
    rows = list(csv.DictReader(io.StringIO(as_csv(verdict))))
    assert len(rows) == 9
    actual = {(row["loss"], row["metric"]): row for row in rows}
    focal = actual[NAMES[1], "accuracy"]
    assert float(focal["mean"]) == 0.8
    assert [float(focal[key]) for key in ("difference", "low", "high", "p_adjusted")] == [
        0.1,
        0.1 - 0.01,
        0.1 + 0.01,
        0.02,
    ]
    assert focal["significant"] == "True"
    assert actual[NAMES[2], "accuracy"]["seeds_needed"] == "7"
    assert actual["ce", "accuracy"]["difference"] == ""
    assert actual[NAMES[2], "nll"]["mean"] == ""


def test_markdown(verdict):
    lines = as_markdown(verdict).splitlines()
    assert lines[0] == "| loss | accuracy | NLL | ms a step |"
    assert lines[2] == "| ce | 70.00 ± 1.00 | **0.5000 ± 0.0100** | **12.3 ± 0.4** |"
    assert lines[3] == "| focal:gamma=1,2 | **80.00 ± 1.00** ▲ | 0.6000 ± 0.0100 ▼ | 1,500 ± 250 |"
    assert lines[4] == r"| a\|b\_$x$ \<b\> | 75.00 ± 1.00 | – | – |"
    assert "over 2 seeds" in lines[-1]
    assert "▲ significantly better and ▼ significantly worse than ce" in lines[-1]


def test_latex(verdict):
    text = as_latex(verdict)
    assert r"ce & $70.00 \pm 1.00$ & $\mathbf{0.5000} \pm 0.0100$ & $\mathbf{12.3} \pm 0.4$ \\" in text
    assert r"$\mathbf{80.00} \pm 1.00^{\uparrow}$ & $0.6000 \pm 0.0100^{\downarrow}$ & $1{,}500 \pm 250$ \\" in text
    assert r"a|b\_\$x\$ <b> & $75.00 \pm 1.00$ & -- & -- \\" in text
    body = re.search(r"\\midrule\n(.*?)\\bottomrule", text, re.DOTALL)[1].splitlines()
    columns = re.search(r"\{(l r*)\}".replace(" ", ""), text)[1]
    assert all(line.count(" & ") == len(columns) - 1 for line in body)


@pytest.mark.parametrize("make", [as_markdown, as_latex])
def test_one_seed_has_no_standard_deviation(verdict, make):
    alone = [
        replace(row, metrics={name: summary(value.mean, None, seeds=1) for name, value in row.metrics.items()})
        for row in verdict.rows
    ]
    text = make(replace(verdict, rows=tuple(alone), seeds=(0,)))
    assert "One seed: no standard deviation, no interval" in text
    assert "±" not in text
    assert r"\pm" not in text


def test_latex_escapes_everything_special(verdict):
    verdict = renamed(verdict, 0, "100% #1 {a}\\b~c^d&e\nf")
    assert r"100\% \#1 \{a\}\textbackslash{}b\textasciitilde{}c\textasciicircum{}d\&e f & " in as_latex(verdict)
