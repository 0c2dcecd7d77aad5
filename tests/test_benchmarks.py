"""The machinery of the benchmarks on tiny shapes; no test looks at how long anything takes."""

import json

import pytest
import torch

from benchmarks import cases, losses, measure
from benchmarks.__main__ import main
from benchmarks.cases import TORCH, make_batch
from benchmarks.catalogue import all_cases
from benchmarks.losses import Settings
from benchmarks.measure import Quartiles, Step, held_for_backward, peak_bytes

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
            assert names == [case.name for case in all_cases(link) if not case.spatial or len(shape) > 2]


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
        assert (row["met"] is None) == (row["limit"] is None)
        if row["limit"] is not None:
            assert row["limit"]["of"] in row["ratios"]


def test_a_baseline_is_once_itself(rows):
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
    assert run["settings"] == {"dtype": "float32", "rounds": 2, "filter": "asymmetric", "keep_memory": False}
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
            assert {*case.against, case.limit.of if case.limit else names[0]} <= set(names)


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
        found = held_for_backward(forward, [logits], logits.nbytes)
        return found.with_inputs, found.without_inputs

    assert held(lambda: logits.sum()) == (0, 0)
    assert held(lambda: (logits * logits).sum()) == (1, 0)
    assert held(lambda: logits.exp().sum()) == (1, 1)
    assert held(lambda: (logits.view(8, 16).exp() * logits.view(8, 16)).sum()) == (2, 1)
    assert held(lambda: logits.sum(1).exp().sum()) == (0, 0)  # smaller than the logits
    assert held(lambda: logits.exp().sum().detach() + logits.sum()) == (0, 0)  # that graph is gone
