"""User-defined losses from files."""

import pytest
import torch
from torch import nn

import equipoise
from equipoise.comparison.plan import entries_of, run_name, surveyed_entries
from equipoise.comparison.spec import CompareSpec
from equipoise.schedules import Linear
from equipoise.tasks import Task
from equipoise.train.loss_text import OwnLoss, build_loss
from equipoise.train.rows import expand_rows
from equipoise.train.run import run
from equipoise.train.spec import RunSpec
from equipoise.weights import inverse_frequency

FILE = """
import torch
from torch import nn
import equipoise
from helper import TIMES

class Scaled(nn.Module):
    def __init__(self, by=1.0, counts=None, epochs=None, weight=None, word=""):
        super().__init__()
        self.by, self.counts, self.epochs, self.word, self.epoch = by, counts, epochs, word, None
        self.register_buffer("weight", weight)
        self.calls = 0

    def forward(self, logits, targets):
        self.calls += 1
        return TIMES * self.by * nn.functional.cross_entropy(logits, targets, self.weight)

    def set_epoch(self, epoch):
        self.epoch = epoch

def plain(**options):
    return nn.CrossEntropyLoss(**options)

def ours(gamma, epochs):
    return equipoise.FocalLoss(gamma, epochs=epochs)

def function(prediction, truth, by=1.0, counts=None):
    assert counts is not None
    return by * nn.functional.cross_entropy(prediction, truth)

def three(logits, targets, more):
    return nn.functional.cross_entropy(logits, targets)

def labels():
    return nn.BCEWithLogitsLoss()

def many():
    return nn.CrossEntropyLoss(reduction="none")

def number():
    return 3

def detached():
    class Detached(nn.Module):
        def forward(self, logits, targets):
            return nn.functional.cross_entropy(logits, targets).detach()
    return Detached()

def weighty():
    return nn.Linear(2, 2)

def broken():
    return {}["missing"]
"""
COUNTS = [50, 30, 10, 5, 5]


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "helper.py").write_text("TIMES = 2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


def build(text, task="multiclass", epochs=4):
    return build_loss(
        text,
        task=Task(task),
        num_classes=5,
        counts=COUNTS,
        num_samples=100,
        epochs=epochs,
        ignore_index=-100,
        sync=False,
    )


def batch():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(8, 5, generator=draw), torch.randint(5, (8,), generator=draw)


def test_a_class_gets_what_it_names():
    loss = build("mine.py:Scaled:by=3:word=steep")
    assert isinstance(loss, OwnLoss)
    assert (loss.loss.counts, loss.loss.epochs, loss.loss.word) == (tuple(COUNTS), 4, "steep")
    assert loss.loss.calls == 0  # what it was tried on has left no trace
    logits, targets = batch()
    torch.testing.assert_close(loss(logits, targets), 6 * nn.functional.cross_entropy(logits, targets))
    loss.set_epoch(2)
    assert loss.loss.epoch == 2
    assert "mine.py:Scaled" in repr(loss)


def test_values_are_those_of_other_losses():
    assert build("mine.py:Scaled:word=linear(5,1)").loss.word == Linear(5, 1)
    torch.testing.assert_close(build("mine.py:Scaled:weight=inverse").loss.weight, inverse_frequency(COUNTS).float())
    assert expand_rows("mine.py:Scaled:by=1,2") == ["mine.py:Scaled(by=1)", "mine.py:Scaled(by=2)"]


def test_a_function_of_logits_and_targets_is_the_loss_itself():
    loss = build("mine.py:function:by=3")
    logits, targets = torch.randn(6, 5), torch.arange(6) % 5
    torch.testing.assert_close(loss(logits, targets), 3 * nn.functional.cross_entropy(logits, targets))


def test_a_function_that_takes_everything_gets_the_options_alone():
    loss = build("mine.py:plain:label_smoothing=0.1")
    loss.set_epoch(1)  # which torch's does not know
    logits, targets = batch()
    torch.testing.assert_close(loss(logits, targets), nn.CrossEntropyLoss(label_smoothing=0.1)(logits, targets))


def test_schedules_of_inner_losses_are_updated():
    loss = build("mine.py:ours:gamma=linear(4,0)")
    loss.set_epoch(2)
    logits, targets = batch()
    torch.testing.assert_close(loss(logits, targets), equipoise.FocalLoss(2.0)(logits, targets))


def test_in_a_sum():
    logits, targets = batch()
    value = build("ce+0.5*mine.py:Scaled")(logits, targets)
    torch.testing.assert_close(value, 2 * nn.functional.cross_entropy(logits, targets))


def test_several_labels():
    loss = build("mine.py:labels", task="multilabel")
    logits, targets = torch.randn(4, 5), torch.ones(4, 5)
    torch.testing.assert_close(loss(logits, targets), nn.functional.binary_cross_entropy_with_logits(logits, targets))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mine.py:Scale", "got 'Scale'; did you mean 'Scaled'"),
        ("mine.py:Scaled:bye=3", "must accept 'bye' as a keyword.*did you mean 'by'"),
        ("mine.py:Scaled:counts=3", "must get counts from the data and the run"),
        ("mine.py:ours", "needs gamma; give these as options"),
        ("mine.py:three", "needs logits, targets, more; .* let it return an nn.Module"),
        ("mine.py:number", "must return an nn.Module, got int; return the loss itself"),
        ("mine.py:many", r"must make one number with a gradient .*got a tensor \(2,\); reduce it"),
        ("mine.py:detached", r"got a tensor \(\) without a gradient; .*detach nothing"),
        ("mine.py:weighty", "must have no weights, got 2, which nothing would train"),
        ("mine.py:labels", "fails on logits .* with"),
        ("mine.py:broken", "failed with KeyError: 'missing' .*mine.py, line 53"),
    ],
)
def test_mistakes(text, words):
    with pytest.raises(ValueError, match=words):
        build(text)


def test_comparison_reports_errors_before_training():
    with pytest.raises(ValueError, match=r"mine\.py:many: mine\.py:many must make one number"):
        surveyed_entries(CompareSpec(data="digits-lt", losses="ce mine.py:many"))
    entries, _ = surveyed_entries(CompareSpec(data="digits-lt", losses="ce mine.py:Scaled:by=1,2"))
    assert entries == entries_of(["ce", "mine.py:Scaled:by=1,2"])
    assert entries[1].candidates == ("mine.py:Scaled(by=1)", "mine.py:Scaled(by=2)")
    for text in ("mine.py:Scaled:by=1", "mine.py:Scaled(by=1)"):
        assert run_name(text, 0) == "mine.py-Scaled-by=1-0"


@pytest.mark.parametrize("settings", [{"loss": "mine.py:Scaled:by=0.5"}, {"method": "bbn:loss=(mine.py:plain)"}])
def test_a_run(tmp_path, settings):
    spec = RunSpec.check({"data": "digits-lt", "model": "mlp", "epochs": 2, **settings})
    finished = run(spec, tmp_path / "run")
    assert finished.finished
    assert finished.results.test.overall["accuracy"] > 0.3  # of ten classes


def test_a_run_is_that_of_the_same_loss_of_this_package(tmp_path):
    numbers = []
    for loss in ("ce", "mine.py:Scaled:by=0.5"):  # twice the half of it
        folder = run(RunSpec(data="digits-lt", model="linear", epochs=2, loss=loss), tmp_path / loss.partition(".")[0])
        numbers.append(folder.results.test.overall["nll"])
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-4)
