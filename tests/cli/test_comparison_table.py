"""Tables of a comparison in the terminal: content and width."""

import io
import re

import pytest
from rich.console import Console

from equipoise.cli.comparison_table import print_comparison
from tests.comparison.verdicts import difference_of, result_of, summary, unfinished, verdict_of


def verdict(*, several=True):
    metrics = ["accuracy", "mean_class_accuracy", "few", "macro_f1", "ece", "nll", "ece_after", "seconds_per_step"]
    std, seeds = (0.01, (0, 1)) if several else (None, (0,))
    means = {"ce": 0.5, "[red]focal[/red]:gamma=1,3": 0.75, "recall": 0.25}
    interval = {"low": 0.1, "high": 0.4, "p": 0.01} if several else {}
    return verdict_of(
        [
            *(result_of(loss, dict.fromkeys(metrics, summary(mean, std)), seeds=seeds) for loss, mean in means.items()),
            unfinished("gone"),
        ],
        [
            difference_of(loss, metric, mean - 0.5, several and loss != "recall", **interval)
            for loss, mean in means.items()
            if loss != "ce"
            for metric in metrics
        ],
        metrics=metrics,
        seeds=seeds,
        main="mean_class_accuracy",
        sentences=("The class [bold]x[/bold] is missing.",),
    )


def printed(verdict, width=100):
    file = io.StringIO()
    print_comparison(verdict, Console(file=file, width=width, highlight=False, emoji=False))
    return file.getvalue()


def test_table_has_every_number():
    text = printed(verdict(), 200)
    for label in ("accuracy", "mean class accuracy", "macro F1", "ECE", "ECE after", "NLL", "ms a step"):
        assert label in text
    assert "75.00 ± 1.00 ▲" in text  # more accuracy is better
    assert "75.00 ± 1.00 ▼" in text  # more error is worse
    assert "25.00 ± 1.00  " in text
    assert not re.search(r"25\.00 ± 1\.00 [▲▼]", text)  # large, but not real
    assert "0.7500 ± 0.0100 ▼" in text
    assert "difference from ce, 95 % CI" in text
    assert "+25.0 (10.0 to 40.0) ▲" in text
    assert "−25.0 (10.0 to 40.0)" in text
    assert "▲ significantly better than ce" in text
    assert "gone" in text
    assert "–" in text


BOLD = "Bold: the best mean."


def test_bold_is_explained_if_used():
    assert BOLD not in printed(verdict())
    terminal = io.StringIO()
    print_comparison(verdict(), Console(file=terminal, width=200, force_terminal=True, _environ={"TERM": "xterm"}))
    assert BOLD in terminal.getvalue()
    assert "\x1b[1m75.00" in terminal.getvalue()


def test_markup_in_names_is_escaped():
    text = printed(verdict())
    assert "[red]focal[/red]:gamma=1,3" in text
    assert "The class [bold]x[/bold] is missing." in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_wide_tables_are_split(width):
    text = printed(verdict(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert text.count("[red]focal") > printed(verdict(), 400).count("[red]focal")
    assert "75.00 ± 1.00 ▲" in text


def test_one_seed_has_no_deviation_and_no_interval():
    text = printed(verdict(several=False))
    assert "±" not in text
    assert "95 % CI" not in text
    assert "▲" not in text
    assert "+25.0" in text
