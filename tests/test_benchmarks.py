"""The machinery of the benchmarks on tiny shapes; no test looks at how long anything takes."""

import json
import subprocess
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise
from benchmarks import cases, compare, coverage, losses, measure, methods, metrics, startup, targets, train, training
from benchmarks.__main__ import main
from benchmarks.cases import CALL, TORCH, Limit, make_batch
from benchmarks.catalogue import all_cases
from benchmarks.gpu import copy_bandwidth, device_seconds
from benchmarks.losses import Settings
from benchmarks.machine import describe_machine
from benchmarks.measure import Quartiles, Step, held_for_backward, paired_ratio, peak_bytes
from benchmarks.page import LONGEST, MAIN, draw_charts, format_page
from benchmarks.table import format_compare, format_run
from benchmarks.targets import Check, cpu_checks, cuda_checks, floor_bytes
from equipoise.catalogue import CATALOGUE
from equipoise.data import digits_lt
from equipoise.losses import CrossEntropyLoss
from equipoise.train.spec import RunSpec

CPU = torch.device("cpu")
TINY = {"softmax": ((6, 5), (2, 3, 4, 4)), "sigmoid": ((6, 4),)}


@pytest.fixture(scope="module")
def rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "BLOCK_SECONDS", 0.0)
        return losses.run(Settings(CPU, rounds=3), TINY)


def test_every_case_has_a_row_at_every_shape_it_is_for(rows):
    for link, shapes in TINY.items():
        for shape in shapes:
            names = [row["name"] for row in rows if row["link"] == link and row["shape"] == list(shape)]
            expected = [case for case in all_cases(link) if not case.cuda_only]
            assert names == [case.name for case in expected if not case.spatial or len(shape) > 2]


def test_a_row_has_times_ratios_memory_and_a_verdict(rows):
    for row in rows:
        if row["status"] != "ok":
            assert row["kind"] == "peer", row["status"]
            continue
        assert 0 < row["milliseconds"]["low"] <= row["milliseconds"]["median"] <= row["milliseconds"]["high"]
        for ratio in row["ratios"].values():
            assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
        assert TORCH[row["link"]] in row["ratios"]
        assert row["peak_memory"] >= 1  # the gradient
        assert row["held"] >= row["held_without_inputs"] >= 0
        assert (row["met"] is None) == (row["limit"] is None) == (not row["checks"])
        if row["limit"] is not None:
            assert row["limit"]["of"] in row["ratios"]


def test_baseline_ratio_is_one(rows):
    for row in rows:
        if row["name"] == TORCH[row["link"]]:
            assert row["ratios"] == {row["name"]: {"median": 1.0, "low": 1.0, "high": 1.0}}


@pytest.mark.parametrize(
    "names",
    [
        (TORCH["softmax"], "CrossEntropyLoss"),
        ("torch cross_entropy, smoothing 0.1", "CrossEntropyLoss, smoothing 0.1"),
        ("torch cross_entropy, dense targets", "CrossEntropyLoss, dense targets"),
        ("FocalLoss(2)", "focal, eager formula", "MONAI FocalLoss(2), softmax", "kornia focal_loss(2)"),
        ("RecallLoss", "recall, eager formula"),
        ("DiceLoss", "MONAI DiceLoss"),
        (TORCH["sigmoid"], "BinaryCrossEntropyLoss"),
        ("BinaryFocalLoss(2)", "MONAI FocalLoss(2), sigmoid", "kornia binary_focal_loss_with_logits(2)"),
        ("AsymmetricLoss", "asymmetric, eager formula"),
    ],
    ids=lambda names: names[0],
)
def test_what_is_compared_is_the_same_loss(rows, names):
    for shape in {tuple(row["shape"]) for row in rows if row["name"] in names}:
        same = [row for row in rows if row["name"] in names and row["shape"] == list(shape) and row["status"] == "ok"]
        assert [row["value"] for row in same] == pytest.approx([same[0]["value"]] * len(same), rel=1e-5)


def test_peers_that_are_not_installed_are_listed_as_such(monkeypatch, capsys):
    monkeypatch.setattr(losses, "installed_version", lambda package: None)
    monkeypatch.setattr(measure, "BLOCK_SECONDS", 0.0)
    monkeypatch.setitem(cases.SHAPES, "softmax", ((6, 5),))
    monkeypatch.setitem(cases.SHAPES, "sigmoid", ())
    main(["losses", "--rounds", "1", "--filter", "monai"])
    assert "MONAI FocalLoss(2), softmax: monai is not installed" in capsys.readouterr().out


def test_a_candidate_that_fails_is_reported_with_the_reason(monkeypatch):
    def build(batch):
        raise ValueError("not for these logits")

    broken = cases.Case("broken", build, "peer")
    monkeypatch.setattr(losses, "all_cases", lambda link: [*all_cases(link)[:1], broken])
    row = losses.run(Settings(CPU, rounds=1), {"softmax": ((6, 5),)})[1]
    assert row["status"] == "failed: ValueError: not for these logits"
    assert "milliseconds" not in row


def test_the_command_prints_a_table_and_writes_the_rows(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measure, "BLOCK_SECONDS", 0.0)
    for link, shapes in TINY.items():
        monkeypatch.setitem(cases.SHAPES, link, shapes)
    file = tmp_path / "folder" / "rows.json"
    main(["losses", "--device", "cpu", "--rounds", "2", "--filter", "asymmetric", "--json", str(file)])
    run = json.loads(file.read_text())
    assert {"device", "cpu", "threads", "torch", "equipoise", "monai", "kornia"} <= run["machine"].keys()
    assert run["settings"] == {"dtypes": ["float32"], "rounds": 2, "filter": "asymmetric", "keep_memory": False}
    assert run["shapes"] == {link: [list(shape) for shape in shapes] for link, shapes in TINY.items()}
    assert run["bandwidth"] is None
    names = {row["name"] for row in run["rows"]}
    assert {"AsymmetricLoss", "AsymmetricSoftmaxLoss", *TORCH.values()} <= names
    assert "FocalLoss(2)" not in names
    printed = capsys.readouterr().out
    for text in ("softmax (6, 5)", "sigmoid (6, 4)", "times torch", "0.7x of asymmetric, eager formula", "targets met"):
        assert text in printed
    assert "met" in printed or "missed" in printed


def test_a_filter_that_matches_nothing_is_an_error():
    with pytest.raises(SystemExit, match="matches no loss"):
        main(["losses", "--filter", "no such loss"])


def test_without_a_name_the_command_lists_what_there_is(capsys):
    main([])
    listed = capsys.readouterr().out
    for link in TINY:
        assert all(case.name in listed for case in all_cases(link))


def test_names_are_unique_and_baselines_exist():
    for link in TINY:
        names = [case.name for case in all_cases(link)]
        assert len(set(names)) == len(names)
        for case in all_cases(link):
            named = {*case.against, case.compiled, case.rival, case.limit.of if case.limit else None}
            assert named - {None} <= set(names)
        assert CALL[link] in names


def test_the_batch_is_the_same_every_time_and_neither_easy_nor_hopeless():
    first, second = (make_batch("softmax", (200, 10), torch.float32, CPU) for _ in range(2))
    assert torch.equal(first.logits, second.logits)
    assert 0.3 < (first.logits.argmax(1) == first.targets).float().mean() < 0.95
    assert torch.allclose(first.dense.sum(1), torch.ones(200))


def test_quartiles():
    assert Quartiles.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Quartiles(3.0, 2.0, 4.0)
    assert Quartiles.of([7.0]) == Quartiles(7.0, 7.0, 7.0)


def test_peak_memory_counts_temporaries_and_the_gradient_but_not_the_inputs():
    logits = torch.randn(256, 64, requires_grad=True)
    # forward: the product; backward: its gradient is an expanded scalar, the logits' gradient is one tensor more
    once = peak_bytes(Step(lambda: logits.exp().sum(), logits)) / logits.nbytes
    assert once == pytest.approx(2.0, abs=0.01)
    # a temporary that is gone before the end still counts
    assert peak_bytes(Step(lambda: logits.exp().sum() + torch.zeros(8, 256, 64).sum(), logits)) >= 9 * logits.nbytes


def test_held_tensors_are_counted_once_with_and_without_the_inputs():
    logits = torch.randn(16, 8, requires_grad=True)

    def held(forward):
        actual = held_for_backward(forward, [logits], logits.nbytes)
        return actual.with_inputs, actual.without_inputs

    assert held(lambda: logits.sum()) == (0, 0)
    assert held(lambda: (logits * logits).sum()) == (1, 0)
    assert held(lambda: logits.exp().sum()) == (1, 1)
    assert held(lambda: (logits.view(8, 16).exp() * logits.view(8, 16)).sum()) == (2, 1)
    assert held(lambda: logits.sum(1).exp().sum()) == (0, 0)  # smaller than the logits
    assert held(lambda: logits.exp().sum().detach() + logits.sum()) == (0, 0)  # that graph is gone


# ------------------------------------------------------------------------------------------------------ command line


@pytest.mark.slow
def test_shapes_and_types_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "BLOCK_SECONDS", 0.0)
    monkeypatch.setitem(cases.SHAPES, "softmax", ((6, 5), (4, 3)))
    file = tmp_path / "rows.json"
    arguments = ["losses", "--rounds", "1", "--filter", "ldam", "--json", str(file)]
    main([*arguments, "--shapes", "4x3", "softmax:2x2", "--dtype", "both", "--dtype", "float64"])
    content = {(row["link"], tuple(row["shape"]), row["dtype"]) for row in json.loads(file.read_text())["rows"]}
    types = ("float32", "bfloat16", "float64")
    assert content == {("softmax", shape, dtype) for shape in ((4, 3), (2, 2)) for dtype in types}
    with pytest.raises(SystemExit, match="9x9 is none of those listed"):
        main(["losses", "--shapes", "9x9"])


# ----------------------------------------------------------------------------------------------------------- targets


def test_the_floor_is_what_has_to_be_moved():
    # 10 rows of 4 float32 and 10 int64: 3 * 160 for the logits, 2 * 80 for the targets, 2 * 2 * 4 for each row
    assert floor_bytes("softmax", 160, 80, 10) == 480 + 160 + 160
    # the same logits with targets like them, nothing for the rows
    assert floor_bytes("sigmoid", 160, 160, 10) == 480 + 320


def test_a_check_is_met_up_to_its_limit_and_not_without_a_number():
    assert Check("floor", 1.3, 1.3, "").met
    assert not Check("floor", 1.31, 1.3, "").met
    assert not Check("floor", None, 1.3, "").met


def test_the_ratio_is_taken_inside_a_round():
    assert paired_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 2.0]) == Quartiles(2.0, 2.0, 2.5)


@pytest.mark.parametrize(("held", "missed"), [(2, []), (3, ["held"])])
def test_checks_on_the_cpu_follow_the_limit(held, missed):
    row = {"ratios": {"other": {"median": 0.6}}, "held": held}
    checks = cpu_checks(row, Limit(0.7, "other", held=2))
    assert [check.name for check in checks] == ["time", "held"]
    assert [check.name for check in checks if not check.met] == missed
    assert [check.met for check in cpu_checks(row, Limit(0.5, "other"))] == [False]
    assert cpu_checks(row, Limit(0.7, "not measured")) == cpu_checks(row, None) == []


def cuda_row(name, link="softmax", *, logits_bytes=400_000_000, itemsize=4, **changed):
    """A row as a CUDA run gives it, and its case; every target is met."""
    case = next(case for case in all_cases(link) if case.name == name)
    row = {
        "link": link,
        "logits_bytes": logits_bytes,
        "elements": logits_bytes // itemsize,
        "times_floor": 1.2,
        "peak_memory": 1.1,
        "peak_allowed": 1.15,
        "device_ratios": dict.fromkeys((TORCH[link], case.rival, case.compiled), 0.5),
        "ratios": {CALL[link]: {"median": 0.9}},
    }
    del row["device_ratios"][None]
    return row | changed, case


@pytest.mark.parametrize(
    ("row", "checked"),
    [
        (cuda_row("FocalLoss(2)"), ["floor", "memory", "torch", "compiled"]),
        (cuda_row("LDAMLoss"), ["floor", "memory", "torch"]),
        (cuda_row("LDAMLoss", logits_bytes=60_000_000), ["torch"]),
        (cuda_row("LDAMLoss", logits_bytes=1_000_000), ["torch", "call"]),
        (cuda_row("AsymmetricLoss", "sigmoid"), ["floor", "memory", "compiled"]),
        (cuda_row("BinaryFocalLoss(2)", "sigmoid", logits_bytes=1_000_000), ["call"]),
        (cuda_row("DiceLoss"), []),
        (cuda_row("focal, eager formula"), []),
    ],
)
def test_what_is_checked_on_cuda_depends_on_the_loss_and_the_size(row, checked):
    checks = cuda_checks(*row)
    assert [check.name for check in checks] == checked
    assert all(check.met for check in checks)


@pytest.mark.parametrize(
    ("row", "missed"),
    [
        (cuda_row("LDAMLoss", times_floor=1.31), ["floor"]),
        (cuda_row("LDAMLoss", times_floor=1.31, itemsize=2), []),
        (cuda_row("LDAMLoss", times_floor=1.51, itemsize=2), ["floor"]),
        (cuda_row("LDAMLoss", peak_memory=1.16), ["memory"]),
        (cuda_row("LDAMLoss", peak_memory=1.16, peak_allowed=1.2), []),
        (cuda_row("LDAMLoss", device_ratios={TORCH["softmax"]: 1.01}), ["torch"]),
        (cuda_row("LDAMLoss", times_floor=None, device_ratios={TORCH["softmax"]: None}), ["floor", "torch"]),
        (cuda_row("RecallLoss", device_ratios={"recall, compiled": 1.01}), ["compiled"]),
        (cuda_row("CrossEntropyLoss, dense targets", device_ratios={TORCH["softmax"]: 2.0}), []),
        (cuda_row("LDAMLoss", logits_bytes=10**6, ratios={TORCH["softmax"]: {"median": 2.0}}), []),
        (cuda_row("LDAMLoss", logits_bytes=10**6, ratios={TORCH["softmax"]: {"median": 2.01}}), ["call"]),
        (cuda_row("RecallLoss", logits_bytes=10**6, ratios={TORCH["softmax"]: {"median": 3.0}}), []),
        (cuda_row("RecallLoss", logits_bytes=10**6, ratios={TORCH["softmax"]: {"median": 3.01}}), ["call"]),
        (cuda_row("AsymmetricLoss", "sigmoid", device_ratios={TORCH["sigmoid"]: 2.0}), []),
    ],
)
def test_what_is_missed_on_cuda(row, missed):
    assert [check.name for check in cuda_checks(*row) if not check.met] == missed


@pytest.fixture
def cuda_run(monkeypatch):
    """A run as on CUDA, with device times made up: by name of the loss, the 5 ms of torch's for all others."""

    def run(milliseconds, **settings):
        monkeypatch.setattr(measure, "BLOCK_SECONDS", 0.0)
        monkeypatch.setattr(targets, "LARGE", 0)  # so that tiny logits have all targets
        names = {}

        def prepare(case, batch, prepare=losses._prepare):
            row = prepare(case, batch)
            names[row.get("step")] = case.name
            return row

        def seconds(step, rounds):
            actual = milliseconds.get(names[step], 5.0)
            if actual is None:
                raise RuntimeError("called a synchronizing CUDA operation")
            return [1e-3 * actual] * rounds

        monkeypatch.setattr(losses, "_prepare", prepare)
        monkeypatch.setattr(losses, "device_seconds", seconds)
        # the floor of (6, 5) float32 with int64 labels is 3 * 120 + 2 * 48 + 2 * 48 bytes: 1 ms
        rows = losses.run(Settings(CPU, rounds=2, bandwidth=552e3, **settings), {"softmax": ((6, 5),)})
        machine = {
            "date": "2026-01-01",
            "device": "made up",
            "device_type": "cuda",
            "threads": 1,
            "cores": 1,
            "torch": "2",
            "equipoise": "0",
            "l2_bytes": 5 * 10**7,
            "load_average": None,
            "load_average_at_end": None,
        }
        return {
            "benchmark": "losses",
            "machine": machine,
            "settings": {"dtypes": ["float32"], "rounds": 2, "filter": "", "keep_memory": False},
            "shapes": {"softmax": [[6, 5]]},
            "bandwidth": {"median": 552e3, "low": 552e3, "high": 552e3},
            "rows": rows,
        }

    return run


def test_cuda_rows_are_relative_to_the_floor(cuda_run):
    rows = {row["name"]: row for row in cuda_run({"LDAMLoss": 1.25, "BrierLoss": 1.5})["rows"]}
    assert rows["LDAMLoss"]["floor_milliseconds"] == pytest.approx(1.0)
    assert rows["LDAMLoss"]["times_floor"] == pytest.approx(1.25)
    assert rows["LDAMLoss"]["device_ratios"] == {TORCH["softmax"]: pytest.approx(0.25)}
    assert rows["LDAMLoss"]["peak_allowed"] == pytest.approx(1.15 + 8 / 20)
    verdicts = {check["name"]: check["met"] for check in rows["BrierLoss"]["checks"]}
    assert (verdicts["floor"], verdicts["torch"]) == (False, True)
    # dense targets are floats like the logits: 5 * 120 bytes, and 96 for the rows
    assert rows["CrossEntropyLoss, dense targets"]["floor_milliseconds"] == pytest.approx(696 / 552)


def test_the_table_of_cuda_fits_a_screen_and_names_what_is_missed(cuda_run):
    run = cuda_run({"LDAMLoss": 1.25, "BrierLoss": 1.5, "RecallLoss": None})
    printed = format_run(run).splitlines()
    assert max(map(len, printed)) <= 160
    brier = next(line for line in printed if line.startswith("BrierLoss"))
    assert brier.split()[:6] == ["BrierLoss", "1.50", "1.50-1.50", "1.50", "0.30", brier.split()[5]]
    assert "missed: floor" in brier
    assert "  BrierLoss at (6, 5) float32: 1.5 times the floor, at most 1.3" in "\n".join(printed)
    assert any(line.startswith("RecallLoss: no device time") and "synchronizing" in line for line in printed)
    judged = [check["met"] for row in run["rows"] if row["status"] == "ok" for check in row["checks"]]
    assert f"{sum(judged)} of {len(judged)} targets met" in printed
    assert "fit in the L2 cache of 50 MB" in "\n".join(printed)


def test_a_loss_of_ours_that_fails_is_a_target_missed(cuda_run):
    run = cuda_run({}, filter="ldam")
    run["rows"] = [{"name": "LDAMLoss", "kind": "ours", "link": "softmax", "shape": [6, 5], "dtype": "float32"}]
    run["rows"][0]["status"] = "failed: ValueError: no"
    assert "0 of 1 targets met" in format_run(run)
    assert "* `LDAMLoss`, (6, 5) float32: failed: ValueError: no" in format_page(run)


# ---------------------------------------------------------------------------------------------------------- methods


def test_a_step_with_two_heads_in_units_of_the_plain_one(monkeypatch, tmp_path, capsys):
    rows = methods.run(methods.Settings(CPU, (2, 3, 8, 8), rounds=2, block=0.0))
    by_name = {row["name"]: row for row in rows}
    assert list(by_name) == list(methods.CANDIDATES)
    plain, sdn = by_name[methods.PLAIN], by_name["SDN (recall)"]
    assert set(plain["ratio"].values()) == {1.0}
    assert sdn["weights"] - plain["weights"] == 64 * 10 + 10  # a head, and nothing else
    assert sdn["ratio"]["median"] > 0
    assert by_name["SDN (cross-entropy)"]["added"] == by_name["SDN (cross-entropy)"]["ratio"]
    assert sdn["added"] != sdn["ratio"]  # in units of the step with recall loss
    assert [name for name, row in by_name.items() if row.get("checks")] == ["SDN (recall)", "SDN (cross-entropy)"]
    monkeypatch.setattr(methods, "TARGET", 0.0)  # nothing can meet it
    main(["methods", "--batch", "2", "--rounds", "1", "--filter", "sdn (r", "--json", str(tmp_path / "methods.json")])
    printed = capsys.readouterr().out
    assert "SDN (recall)" in printed
    assert "0 of 1 targets met" in printed
    assert "BBN" not in printed
    with pytest.raises(SystemExit, match="matches no method"):
        main(["methods", "--filter", "nothing"])


# ------------------------------------------------------------------------------------------- training and the page


@pytest.mark.slow
def test_a_training_step_has_a_ratio_for_each_pointwise_softmax_loss():
    rows = training.run(training.Settings(CPU, (1, 3, 16, 32), width=2, rounds=2, block=0.0))
    assert [row["name"] for row in rows] == [
        TORCH["softmax"],
        *(case.name for case in all_cases("softmax") if case.pointwise and case.reads == "targets"),
    ]
    assert rows[0]["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert rows[0]["met"] is None
    for row in rows[1:]:
        assert row["met"] == (row["ratio"]["median"] <= 1.03)


def test_documented_size_of_the_network():
    model = training.UNet(11)
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 2e6
    assert model(torch.zeros(1, 3, 32, 48)).shape == (1, 11, 32, 48)


def test_results_give_a_page(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measure, "BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(training, "TARGET", 0.0)  # nothing can meet it
    measured, trained, out = (tmp_path / name for name in ("losses.json", "training.json", "page.md"))
    main(["losses", "--rounds", "1", "--shapes", "softmax:6x5", "--filter", "focal", "--json", str(measured)])
    tiny = ["--shape", "2x3x16x16", "--width", "2", "--rounds", "1", "--filter", "ldam"]
    main(["training", *tiny, "--json", str(trained)])
    capsys.readouterr()
    main(["table", str(measured), str(trained), "--out", str(out)])
    page = out.read_text()
    run, steps = json.loads(measured.read_text()), json.loads(trained.read_text())
    rows = {row["name"]: row for row in run["rows"]}
    focal = rows["FocalLoss(2)"]
    assert f"| {focal['ratios'][TORCH['softmax']]['median']:.2f} | {focal['peak_memory']:.2f} |" in page
    assert "| focal, eager formula |" in page
    assert "| **LDAMLoss** |" in page
    assert f"| {steps['rows'][1]['ratio']['median']:.3f} (" in page
    for line in (
        "# Performance",
        "<summary>Softmax (6, 5), float32</summary>",
        "## A whole training step",
        "## Targets",
    ):
        assert f"{line}\n" in page
    assert "* `LDAMLoss`, training step:" in page
    assert f"Measured on {run['machine']['date']} on {run['machine']['device']}" in page
    with pytest.raises(SystemExit, match=r"nowhere\.json must be a result of python -m benchmarks losses --json, got"):
        main(["table", str(tmp_path / "nowhere.json")])
    main(["table", str(measured)])  # the training is not needed, and without a file the page is printed
    printed = capsys.readouterr().out
    assert "<summary>Softmax (6, 5), float32</summary>" in printed
    assert "training step" not in printed.partition("## Targets")[2]
    with pytest.raises(SystemExit, match=r"losses\.json must come from python -m benchmarks training"):
        main(["table", str(measured), str(measured)])


def test_the_page_of_a_cuda_run_lists_what_is_missed(cuda_run):
    page = format_page(cuda_run({"CrossEntropyLoss": 1.25, "BrierLoss": 1.5, "RecallLoss": None}))
    assert "| **BrierLoss** | 1.50 (1.50–1.50) | 1.50 | 0.30 |" in page
    missed = page.partition("## Targets")[2]
    assert "* `BrierLoss`, (6, 5) float32: 1.5 times the floor, at most 1.3" in missed
    assert "* `RecallLoss`, (6, 5) float32: floor not measured, capture failed: RuntimeError" in missed
    assert "`CrossEntropyLoss`, (6, 5) float32: 1.25 times the floor" not in missed


def test_the_page_shows_losses_that_miss_a_target_and_tells_ratios_from_columns(cuda_run):
    page = format_page(cuda_run({"CrossEntropyLoss, dense targets": 1.25}))
    assert "| **CrossEntropyLoss, dense targets** |" in page
    assert "AsymmetricLoss, adaptive" in MAIN
    assert "medians over the rounds of the ratio within a round" in page
    assert "kornia's those of each image by itself" in page


def test_calls_from_a_part_that_was_retired_are_not_on_the_page(cuda_run):
    run = cuda_run({}, filter="ldam")
    before = format_page(run)
    run["machine"]["calls_from"] = "C++"
    rows = [line.split(" | ") for line in format_page(run).splitlines() if line.startswith("| ")]
    calls = {cells[0]: cells[5] for cells in rows}
    assert calls["| **LDAMLoss**"] == "–"
    assert float(calls[f"| {TORCH['softmax']}"]) > 0
    judged = [check["name"] for row in run["rows"] for check in row.get("checks", [])]
    assert judged.count("call") == 1
    assert f" of {len(judged)} targets are met" in before
    assert f" of {len(judged) - 1} targets are met" in format_page(run)
    step = {"name": "LDAMLoss", "kind": "ours", "status": "ok", "checks": []}
    trained = {"machine": run["machine"], "settings": {}, "rows": [step]}
    assert "training step\n" not in format_page(run, trained)


def test_the_page_on_performance_is_that_of_the_recorded_runs():
    root = Path(__file__).parent.parent
    files = (root / "benchmarks" / "results" / f"{name}-cuda.json" for name in ("losses", "training", "train"))
    run, *steps = (json.loads(file.read_text()) for file in files)
    text = (root / "docs" / "performance.md").read_text(encoding="utf-8")
    assert format_page(run, *steps) == text
    charts = draw_charts(run)
    assert len(charts) == 4
    for name, svg in charts.items():
        assert (root / "docs" / "images" / name).read_text(encoding="utf-8") == svg, "run make bench-gpu"
        assert f'"images/{name}' in text
    head = text.partition("## All measurements")[0]
    assert head.index("<picture>") < head.index("## A whole training step") < head.index("## Targets")
    assert "<details" not in head


def test_the_chart_has_the_times_of_the_run(cuda_run):
    run = cuda_run({})
    rows = {row["name"]: row for row in run["rows"]}
    for svg in draw_charts(run).values():
        drawn = ET.fromstring(svg)
        texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
        ratio = rows["FocalLoss(2)"]["device_ratios"][TORCH["softmax"]]
        place = texts.index("Focal loss")
        assert texts[place + 1 : place + 3] == ["equipoise", f"{ratio:.2f}x"]
        widths = [float(bar.get("width")) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")][1:]
        values = [float(text.removesuffix("x")) for text in texts if text.endswith("x") and text[0].isdigit()]
        longest = max(range(len(values)), key=values.__getitem__)
        for width, value in zip(widths, values, strict=True):
            if values[longest] <= LONGEST and value > 0.2:
                assert width / widths[longest] == pytest.approx(value / values[longest], abs=0.02)


def test_a_run_without_peers_has_no_chart(cuda_run):
    run = cuda_run({}, filter="ldam")
    assert draw_charts(run) == {}
    assert "<picture>" not in format_page(run)


# ------------------------------------------------------------------------------------------------------------ metrics


@pytest.mark.slow
def test_metrics_are_measured_on_both_sides_and_over_pixels(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(metrics, "FASTER", 1e9)  # nothing can meet it
    file = tmp_path / "metrics.json"
    tiny = ["--shapes", "200x5", "--rounds", "2", "--pixels", "3000", "--batch", "32x64"]
    main(["metrics", *tiny, "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == [contest.name for contest in metrics.CONTESTS] + list(metrics.STREAMS)
    for row in rows[:2]:
        assert row["value"] == pytest.approx(row["torchmetrics_value"], abs=1e-5)
        assert [check["met"] for check in row["checks"]] == [False, True]
        assert 0 < row["times_faster"]["low"] <= row["times_faster"]["median"] <= row["times_faster"]["high"]
    for row in rows[2:]:
        assert 0 < row["value"] < 1
        assert row["input_megabytes"] == pytest.approx(32 * 64 * (19 * 4 + 8) / 1e6)
        assert row["met"] == (row["megabytes"] <= metrics.MEGABYTES)
    printed = capsys.readouterr().out
    assert "calibration error, 200 x 5: " in printed
    assert "3,000 pixels of 19 classes" in printed
    assert "  missed: calibration error: " in printed
    with pytest.raises(SystemExit, match="matches no metric"):
        main(["metrics", *tiny, "--filter", "nothing of that name"])


TINY_MAPS = {"batch_size": 2, "ignore_index": 11, "model_options": {"width": 2}}
TINY_TRAININGS = (
    train.Case("cifar10_lt100", "mlp", partial(train.cifar, 40, 8), {"batch_size": 16}),
    train.Case("camvid", "unet", partial(train.camvid, 4, (16, 16)), TINY_MAPS),
)


def test_a_training_is_compared_with_a_bare_loop_and_with_every_loss_of_its_task(monkeypatch):
    monkeypatch.setattr(train, "TARGET", 1e9)
    single, maps = train.run(train.Settings(CPU, TINY_TRAININGS, rounds=1))
    assert (single["title"], maps["title"]) == ("cifar10_lt100, mlp", "camvid, unet")
    assert (single["steps"], maps["steps"]) == (40 // 16, 4 // 2)
    for case, links in ((single, {"softmax"}), (maps, {"softmax", "region"})):
        names = [row["name"] for row in case["rows"]]
        assert names == [train.BARE, *(entry.name for entry in CATALOGUE if entry.link in links)]
        bare, reference, *others = case["rows"]
        assert bare["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        assert reference["of"] == train.BARE
        assert reference["met"] is True
        assert reference["ratio"]["median"] == pytest.approx(
            reference["milliseconds"]["median"] / bare["milliseconds"]["median"]
        )
        assert {(row["of"], row["met"]) for row in others} == {("CrossEntropyLoss", None)}


def test_the_bare_loop_trains_as_we_do():
    """On our batches, and with the learning rate that it has, its weights are ours after an epoch."""
    data = digits_lt()
    options = {"schedule": "constant", "warmup": 0.0, "optimizer": "sgd", "lr": 1e-5, "accelerator": "cpu"}
    spec = RunSpec(data="digits-lt", model="resnet32", **options)
    ours = train.Trained(spec, data, CrossEntropyLoss(), 16, 1)
    bare = train._bare_loop(spec, data, ours)
    ours.epoch()
    for rows in torch.from_numpy(ours.loader.indices).split(16):
        bare.step(rows)
    weights = [one.state_dict() for one in (bare.model, ours.training.model)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)


def test_comparison_against_bare_loops(monkeypatch):
    """On a CPU: the command and the bare loops with the steps of its runs."""
    small = ["--data", "digits-lt", "--model", "mlp", "--epochs", "1", "--seeds", "1", "--losses", "ce focal"]
    monkeypatch.setattr(compare, "README", small)
    (row,) = compare.run(compare.Settings(CPU, rounds=1))
    assert row["name"] == "command, 2 runs"
    assert row["ratio"]["median"] == pytest.approx(row["seconds"]["median"] / row["bare_seconds"]["median"])
    assert row["met"] == (row["ratio"]["median"] <= row["limit"])
    run = {"rows": [row], "machine": describe_machine(CPU) | {"pytorch_lightning": "2", "load_average_at_end": 0}}
    assert "command, 2 runs" in format_compare(run)


def test_a_loss_that_rejects_the_batch_is_skipped_with_the_reason(monkeypatch):
    def refuse(loss, *batch):
        raise RuntimeError("no memory\nand more")

    monkeypatch.setattr(equipoise.MMCELoss, "forward", refuse)
    (case,) = train.run(train.Settings(CPU, TINY_TRAININGS[:1], rounds=1, filter="mmce"))
    assert [row["name"] for row in case["rows"]] == [train.BARE, "CrossEntropyLoss", "MMCELoss"]
    assert case["rows"][2]["status"] == "failed: no memory"


def test_trainings_are_printed_and_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(train, "TARGET", 0.0)  # nothing can meet it
    monkeypatch.setitem(train.CASES, "cpu", TINY_TRAININGS)
    file = tmp_path / "train.json"
    main(["train", "--rounds", "1", "--filter", "FocalLoss", "--json", str(file)])
    run = json.loads(file.read_text())
    assert [case["rounds"] for case in run["cases"]] == [1, 1]
    assert run["machine"]["pytorch_lightning"]
    printed = capsys.readouterr().out
    assert "camvid, unet: 4 samples of 3x16x16 (noise of that shape)" in printed
    assert "SampleDependentFocalLoss" in printed
    assert "  CrossEntropyLoss in cifar10_lt100, mlp: " in printed
    assert "0 of 2 targets met" in printed
    with pytest.raises(SystemExit, match="matches no case"):
        main(["train", "--filter", "nothing of that name"])
    with pytest.raises(SystemExit, match="must be a folder"):
        main(["train", "--data", str(tmp_path / "nowhere")])


def test_real_data_take_the_place_of_noise(tmp_path):
    made = train.cifar(60, 8)
    for name in ("train", "val", "test"):
        split = getattr(made, name)
        np.savez(tmp_path / f"{name}.npz", images=split.inputs, labels=split.labels, layout="nchw")
    case = train.Case(tmp_path.name, "mlp", train.cifar, {"batch_size": 16})
    (result,) = train.run(train.Settings(CPU, [case], rounds=1, filter="CrossEntropyLoss", data=tmp_path.parent))
    assert (result["samples"], result["data"], result["input_shape"]) == (60, "as they are", [3, 8, 8])


# ---------------------------------------------------------------------------------------------------------------- GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_times_are_those_of_the_device():
    bandwidth = copy_bandwidth(torch.device("cuda"), rounds=3, nbytes=2**28)
    assert 0 < bandwidth.low <= bandwidth.median <= bandwidth.high
    logits = torch.randn(1 << 20, 32, device="cuda", requires_grad=True)
    whole = device_seconds(Step(lambda: logits.exp().sum(), logits), rounds=3)
    assert len(whole) == 3
    assert logits.grad is None
    # exp and sum read, exp writes; backward multiplies: no faster than a copy of what is read and written once
    assert min(whole) > logits.nbytes / bandwidth.median
    with pytest.raises(RuntimeError, match="synchronizing"):
        device_seconds(Step(lambda: logits.sum() * logits.sum().item(), logits), rounds=1)
    assert min(device_seconds(Step(lambda: logits.exp().sum(), logits), rounds=3)) > 0  # the failure leaves no trace


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_trainings_are_compared_on_the_device():
    for case in train.run(train.Settings(torch.device("cuda"), TINY_TRAININGS, rounds=1)):
        assert {row["status"] for row in case["rows"]} == {"ok"}


# ------------------------------------------------------------------------------------------------------------- startup


def test_startups_are_measured_in_separate_processes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(startup, "HELP", 0.0)  # nothing can meet it
    quick = dict.fromkeys(startup.COMMANDS, ("-c", "")) | {"equipoise --help": startup.COMMANDS["equipoise --help"]}
    monkeypatch.setattr(startup, "COMMANDS", quick)
    file = tmp_path / "startup.json"
    main(["startup", "--rounds", "2", "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == list(startup.COMMANDS)
    for row in rows:
        assert row["seconds"]["low"] > 0
        assert row["checks"] == [] or row["checks"][0]["measured"] in (row["ratio"]["median"], row["seconds"]["median"])
    assert rows[-1]["met"] is False
    assert "missed: equipoise --help" in capsys.readouterr().out


def test_a_failed_startup_has_no_time(monkeypatch):
    monkeypatch.setattr(startup, "COMMANDS", {startup.TORCH: ("-c", "raise SystemExit(3)")})
    with pytest.raises(subprocess.CalledProcessError, match="3"):
        startup.run(1)


def test_recorded_starts_meet_their_targets():
    recorded = json.loads((Path(__file__).parent.parent / "benchmarks" / "results" / "startup.json").read_text())
    assert [row["name"] for row in recorded["rows"]] == list(startup.COMMANDS)
    assert all(row["met"] for row in recorded["rows"][1:])


def test_coverage_is_simulated_for_every_metric():
    rows = coverage.run(coverage.Settings(comparisons=3, draws=20, jobs=1))
    assert {(row["metric"], row["seeds"]) for row in rows} == {
        (metric, seeds) for some in coverage.METRICS.values() for metric in some for seeds in coverage.SEEDS
    }
    assert all(0.5 <= row["coverage"] <= 1.0 and row["comparisons"] == 3 for row in rows)
    assert len(coverage.format_coverage(rows).splitlines()) == 9
