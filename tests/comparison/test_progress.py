"""How far a comparison is, from what lies in the folders of its runs."""

import io

import pytest
from rich.console import Console

from equipoise.comparison.folder import PlannedRun
from equipoise.comparison.progress import Display, Pace
from equipoise.train.folder import RunFolder, write_json
from tests.comparison.verdicts import record_of


@pytest.fixture
def runs(tmp_path):
    return [PlannedRun("ce", seed, RunFolder(tmp_path / f"ce-{seed}")) for seed in range(3)]


def row(run):
    """One more epoch of a run."""
    run.folder.draft.mkdir(exist_ok=True)
    with (run.folder.draft / "history.jsonl").open("a") as file:
        file.write("{}\n")


def finish(run):
    run.folder.draft.mkdir(exist_ok=True)
    write_json(run.folder.draft / "run.json", record_of("mean_iou", 0.123).to_json())
    run.folder.finish()


def test_epochs_of_all_runs_count(runs):
    lines, now = [], [0.0]
    finish(runs[0])
    row(runs[1])
    with Display(runs, [10] * len(runs), lines.append, None) as display:
        display.pace = Pace(30, display._done(), clock=lambda: now[0])
        assert display._done() == 11
        assert display._left(11) == ""
        for second in (1.0, 2.0, 3.0):
            now[0] = second
            row(runs[1])
            display.tick()
        assert display._left(14) == "16 s left"
        finish(runs[1])
        display.finished(runs[1])
        assert display._done() == 20
        row(runs[2])
        display.failed(runs[2], "no memory", runs[2].folder.path.with_suffix(".log"))
        assert display._done() == 30
    assert lines == [
        "2/3 ce, seed 1: mean IoU 12.30 on validation data; 2 s left",
        f"3/3 ce, seed 2: failed: no memory; see {runs[2].folder.path}.log",
    ]


def test_the_estimate_is_printed_once_before_the_first_run_ends(runs):
    lines, now = [], [0.0]
    with Display(runs, [100] * len(runs), lines.append, None) as display:
        display.pace = Pace(300, 0, clock=lambda: now[0])
        for epoch in range(8):
            now[0] = 2.0 * epoch
            row(runs[0])
            display.tick()
            assert len(lines) == (epoch >= 2)
    assert lines == ["about 10 min left, at the pace of the first 4 s"]
    with Display(runs, [100] * len(runs), lines.append, Console(file=io.StringIO(), force_terminal=True)) as display:
        display.pace = Pace(300, 0, clock=lambda: now[0])
        for _ in range(8):
            now[0] += 2.0
            row(runs[0])
            display.tick()
    assert len(lines) == 1  # the bar has it


def test_how_long_it_takes_waits_for_epochs_and_for_seconds(runs):
    lines, now = [], [0.0]
    with Display(runs, [1000] * len(runs), lines.append, None) as display:
        display.pace = Pace(3000, 0, clock=lambda: now[0])
        for second, epochs in ((0.0, 1), (1.0, 20), (11.0, 2)):  # 20 epochs in a second, then 2 in ten
            now[0] = second
            for _ in range(epochs):
                row(runs[0])
            display.tick()
            assert bool(lines) == (second == 11.0)
    assert lines == ["about 25 min left, at the pace of the first 11 s"]  # 22 epochs in 11 seconds


def test_the_estimate_is_not_repeated(runs):
    lines, now = [], [0.0]
    with Display(runs, [100] * len(runs), lines.append, None) as display:
        display.pace = Pace(300, 0, clock=lambda: now[0])
        for second in (0.0, 3.0):
            now[0] = second
            row(runs[0])
            display.tick()
        now[0] = 60.0
        finish(runs[0])
        display.finished(runs[0])
        now[0] = 120.0
        display.tick()
    assert lines == ["1/3 ce, seed 0: mean IoU 12.30 on validation data; 2 min left"]


@pytest.mark.parametrize(("pace", "proposed"), [(1.0, False), (10.0, True)])
def test_a_cheaper_command_is_proposed_once_if_training_takes_long(runs, pace, proposed):
    lines, now = [], [0.0]
    with Display(runs, [100] * len(runs), lines.append, None, cheaper="equipoise compare --epochs 20") as display:
        display.pace = Pace(300, 0, clock=lambda: now[0])
        for _ in range(8):
            now[0] += pace
            row(runs[0])
            display.tick()
    assert lines.count("for a first look: equipoise compare --epochs 20") == proposed


def test_the_bar_of_a_terminal(runs):
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=100)
    finish(runs[0])
    with Display(runs, [2] * len(runs), lambda line: None, console) as display:
        row(runs[1])
        display.tick()
        display.bar.refresh()
        assert "1 of 3 runs" in terminal.getvalue()
        assert " 50 %" in terminal.getvalue()
