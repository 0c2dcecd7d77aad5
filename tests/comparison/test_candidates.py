"""Which candidate of a loss validation data choose."""

import pytest

from equipoise.comparison.judge import FinishedRun, _candidate, _chosen
from tests.comparison.verdicts import record_of


def chosen(monitor="mean_class_accuracy", **values):
    """The candidate of these values of the monitored metric, one for each seed; a seed that failed has none."""
    runs = {
        text: [
            FinishedRun(None, record_of(monitor=monitor, monitor_value=value), None, {})
            for value in each
            if value != "failed"
        ]
        for text, each in values.items()
    }
    return _chosen([_candidate(text, own) for text, own in runs.items()])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a": [0.5, 0.6, 0.7], "b": [0.7, 0.7, 0.7]}, "b"),
        ({"a": [0.5, 0.5, 0.5], "b": [0.25, 0.5, 0.75]}, "a"),  # of equal ones the first
        ({"a": [0.5, 0.5, 0.5], "b": [0.9, 0.9, "failed"]}, "a"),
        ({"a": [None, None, None], "b": [-0.5, -0.5, -0.5]}, "b"),
        ({"a": [0.5, 0.5, 0.5], "b": [None, None, 0.6]}, "b"),
        ({"a": ["failed"] * 3, "b": ["failed"] * 3}, None),
        ({"a": ["failed"] * 3, "b": [None, "failed", "failed"]}, "b"),
    ],
)
def test_the_best_of_those_with_most_runs(values, expected):
    assert chosen(**values) == expected


def test_less_of_a_loss_is_better():
    assert chosen("nll", a=[0.5, 0.5, 0.5], b=[0.4, 0.4, 0.4]) == "b"
    assert chosen("nll", a=[None, None, None], b=[0.4, 0.4, 0.4]) == "b"
