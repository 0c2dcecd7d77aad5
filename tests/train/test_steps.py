"""TrainingSteps as CUDA graphs: they are captured for every loss and option, and have the numbers of eager steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.catalogue import CATALOGUE
from equipoise.data import Arrays, DataSet
from equipoise.tasks import Task
from equipoise.train import steps as module
from equipoise.train.builders import loss_of, training_of
from equipoise.train.fabric import fabric_for, launch
from equipoise.train.methods import RunContext, parse_method
from equipoise.train.preparation import Preparation
from equipoise.train.run_loaders import RunLoaders
from equipoise.train.spec import RunSpec
from equipoise.train.steps import TrainingSteps, parts_of_epoch
from equipoise.train.task import TrainingTask

EPOCHS = 3
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


# ------------------------------------------------------------------------------------------- which steps are together


@pytest.mark.parametrize("steps", [1, 7, 20, 96])
@pytest.mark.parametrize("every", [1, 2, 5, 30])
@pytest.mark.parametrize("longest", [1, 3, 8, 16])
def test_parts_cover_an_epoch_in_order(steps, every, longest):
    parts = parts_of_epoch(steps, every, longest)
    assert [step for part in parts for step in part] == list(range(steps))
    assert max(map(len, parts)) <= longest


@pytest.mark.parametrize(("steps", "every", "longest"), [(96, 6, 16), (97, 6, 4), (16, 1, 16), (400, 25, 16)])
def test_few_graphs_are_needed(steps, every, longest):
    parts = parts_of_epoch(steps, every, longest)
    patterns = {tuple((step % every == 0, step % (4 * every) == 0) for step in part) for part in parts}
    assert len(patterns) <= 6
    assert len(parts) < steps


# ------------------------------------------------------------------------------------------------------------ trainings


def data_of(task):
    draw = np.random.default_rng(0)

    def split(count):
        images = draw.integers(256, size=(count, 3, 8, 8), dtype=np.uint8)
        if task is Task.MULTILABEL:
            labels = draw.integers(2, size=(count, 4)).astype(np.int8)
        else:
            labels = draw.integers(4, size=(count, 8, 8) if task.pixels else count)
        return Arrays(images, labels)

    return DataSet("made", task, tuple("abcd"), split(160), split(50), split(10))


class Small(nn.Module):
    """Convolution, batch norm, dropout and a linear layer."""

    def __init__(self, pixels=False):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2))
        self.pool = nn.Identity() if pixels else nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.last = nn.Conv2d(8, 4, 1) if pixels else nn.Linear(8, 4)

    def forward(self, inputs):
        return self.last(self.pool(self.body(inputs)))


class Waits(Small):
    def forward(self, inputs):
        return super().forward(inputs * (1.0 if inputs.sum().item() else 2.0))


class DrawsOnHost(Small):
    def forward(self, inputs):
        return super().forward(inputs * float(torch.rand(())))


class WaitsForAll(Small):
    """The mode that finds synchronisations does not see this one, and capturing it fails."""

    def forward(self, inputs):
        torch.cuda.synchronize()
        return super().forward(inputs)


def trained(task=Task.MULTICLASS, *, model=None, captured=True, method=None, objective=None, **settings):
    """The training after some epochs, its steps, what was said, and the rows of all epochs."""
    spec = RunSpec(
        data="made", epochs=EPOCHS, batch_size=10, **{"optimizer": "sgd", "lr": 0.05, "deterministic": True} | settings
    )
    data, said, rows = data_of(task), [], []
    training_task, preparation, fabric = TrainingTask(data), Preparation.fit(data.train), fabric_for(spec)
    launch(fabric, deterministic=spec.deterministic)
    torch.manual_seed(1)
    model = Small(task.pixels) if model is None else model()
    splits = {"train": data.train, "val": data.val}
    with torch.cuda.stream(torch.cuda.Stream() if fabric.device.type == "cuda" else None):
        second, body_rate = None, 1.0
        if method is None:
            objective = objective or loss_of(spec, data, sync=False)
        else:
            chosen = parse_method(method)
            second, body_rate = chosen.second_sampler, chosen.rate
            context = RunContext(
                lambda text, *rest: loss_of(spec, data, False, text), None, EPOCHS, 0, -100, said.append
            )
            model = chosen.trained(model, context)
            objective = chosen.objective(model, context)
        loaders = RunLoaders(fabric, spec, data, splits, 10, second)
        training = training_of(
            fabric, spec, training_task, model, objective, preparation, steps=16, body_rate=body_rate
        )
        if spec.compile != "none":
            model.compile(mode=spec.compile)
        loader, validation = loaders.training(), loaders.evaluation("val")
        steps = TrainingSteps(training, loader, say=said.append)
        steps.captured &= captured
        for epoch in range(EPOCHS):
            training.begin(epoch)
            loader.set_epoch(epoch)
            steps.epoch()
            row = {"loss": training.mean_loss()}
            steps.validate(validation)
            row |= training.scores() | training.statistics.row(training.model, training.loss)
            rows.append(row)
    return training, steps, said, rows


def weights(training):
    return {name: value.cpu() for name, value in training.inference_model.state_dict().items()}


def assert_same(one, other):
    assert repr(one[3]) == repr(other[3])
    for (name, ours), theirs in zip(weights(one[0]).items(), weights(other[0]).values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_cpu_steps_are_eager_without_a_word():
    _, steps, said, rows = trained(accelerator="cpu")
    assert (steps.captured, said, steps.graphs) == (False, [], None)
    assert len(rows) == EPOCHS


LOSSES = [(task, entry.text) for entry in CATALOGUE for task in Task if entry.link in task.losses]
OPTIONS = {
    "sgd": {},
    "adamw": {"optimizer": "adamw", "lr": 0.01},
    "average": {"ema": 0.9},
    "clip": {"clip": 0.1},
    "bf16": {"precision": "bf16-mixed"},
    "fp16": {"precision": "16-mixed", "clip": 0.5},
    "fp16 adamw": {"precision": "16-mixed", "optimizer": "adamw", "lr": 0.01},
    "crop and flip": {"augment": "crop:1,flip"},
    "colour and erase": {"augment": "colour:0.4,erase:0.5"},
    "randaugment": {"augment": "randaugment:2:0.3"},
    "mixup": {"augment": "mixup:0.2"},
    "cutmix": {"augment": "cutmix:1"},
    "balanced": {"sampler": "balanced"},
    "progressive": {"sampler": "progressive"},
    "one cycle": {"schedule": "one-cycle"},
    "steps": {"schedule": "step", "milestones": [0.5]},
    "everything": {"ema": 0.9, "clip": 0.1, "augment": "crop:1,erase:0.5", "precision": "bf16-mixed", "loss": "focal"},
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnGPU:
    @pytest.mark.parametrize(("task", "loss"), LOSSES, ids=str)
    def test_every_loss_is_captured(self, task, loss):
        settings = {"loss": loss, "deterministic": False}
        _, steps, said, rows = trained(task, **settings)
        assert (said, steps.captured) == ([], True)
        assert steps.graphs.graphs
        _, _, _, eager = trained(task, captured=False, **settings)
        for one, other in zip(rows, eager, strict=True):
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-3, abs=1e-5)
            assert one.keys() == other.keys()

    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
    def test_options_are_captured_with_the_numbers_of_eager_steps(self, options):
        captured = trained(**options)
        assert (captured[2], captured[1].captured) == ([], True)
        assert captured[1].graphs.graphs
        assert captured[1].validation.graphs
        assert_same(captured, trained(captured=False, **options))

    @pytest.mark.parametrize("task", [Task.MULTILABEL, Task.SEGMENTATION])
    def test_other_tasks(self, task):
        options = {"deterministic": False}
        captured, eager = trained(task, **options), trained(task, captured=False, **options)
        assert captured[1].captured
        for one, other in zip(captured[3], eager[3], strict=True):
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)

    @pytest.mark.parametrize("method", ["sdn", "ldam-drw", "bbn"])
    def test_methods_are_captured(self, method):
        captured = trained(method=method)
        assert (captured[2], captured[1].captured) == ([], True)
        assert_same(captured, trained(method=method, captured=False))

    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            (Waits, "waits for the device"),
            (DrawsOnHost, "draws random numbers on the host"),
            (WaitsForAll, "it failed with"),
        ],
    )
    def test_what_cannot_be_captured_runs_eagerly(self, model, reason):
        captured = trained(model=model)
        assert not captured[1].captured
        assert [line for line in captured[2] if reason in line] == captured[2]
        assert len(captured[2]) == 1
        assert_same(captured, trained(model=model, captured=False))
        torch.cuda.empty_cache()
        assert trained()[1].captured  # the next run is not affected

    def test_own_loss_with_epochs_is_not_captured(self):
        class Own(nn.CrossEntropyLoss):
            def set_epoch(self, epoch):
                self.label_smoothing = 0.1 * epoch

        _, steps, said, _ = trained(objective=Own())
        assert not steps.captured
        assert "set_epoch of Own" in said[0]

    def test_graphs_of_several_steps(self, monkeypatch):
        several = trained(loss="focal")
        monkeypatch.setattr(module, "LONGEST", 1)
        assert_same(several, trained(loss="focal"))

    def test_compiled_model_is_captured(self):
        _, steps, said, rows = trained(compile="default", deterministic=False)
        assert (said, steps.captured) == ([], True)
        assert np.isfinite(rows[-1]["loss"])
