"""The training loop: the result does not depend on the number of steps per batch of Lightning."""

from __future__ import annotations

from functools import partial

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import MixedPrecision
from torch import nn

from equipoise.data import digits_lt
from equipoise.losses import CrossEntropyLoss, FocalLoss, current_settings
from equipoise.schedules import Linear
from equipoise.train import datamodule
from equipoise.train.builders import optimizer_of
from equipoise.train.datamodule import DataModule
from equipoise.train.module import Learner
from equipoise.train.optimizers import learning_rate_factor
from equipoise.train.preparation import Preparation
from equipoise.train.spec import RunSpec
from equipoise.train.task import TrainingTask
from equipoise.train.trainer import quiet

DATA = digits_lt()
BATCH_SIZE, EPOCHS = 16, 2


class Watch(pl.Callback):
    """Records learning rates and norms of the gradients at each step of the optimiser."""

    def __init__(self):
        self.rates, self.norms, self.steps_at_batch_end = [], [], []

    def on_train_start(self, trainer, pl_module):
        trainer.optimizers[0].register_step_pre_hook(self.look)

    def look(self, optimizer, args, kwargs):
        if kwargs.get("closure") is not None:  # called by Lightning, which runs the closure inside: look afterwards
            step_closure = kwargs["closure"]

            def closure():
                finished = step_closure()
                self.take(optimizer)
                return finished

            return args, kwargs | {"closure": closure}
        self.take(optimizer)
        return None

    def take(self, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.norms.append(float(torch.nn.utils.get_total_norm([w.grad for w in optimizer.param_groups[0]["params"]])))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps_at_batch_end.append(pl_module.steps_taken)


def trained(*, precision="32-true", loss=None, **options):
    """The learner after some epochs, and its records."""
    torch.manual_seed(0)
    spec = RunSpec(data="digits-lt", epochs=EPOCHS, optimizer="sgd", lr=0.2, precision=precision)
    preparation, task, watch = Preparation.fit(DATA.train), TrainingTask(DATA), Watch()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))
    learner = Learner(
        task,
        model,
        CrossEntropyLoss() if loss is None else loss,
        preparation,
        make_optimizer=partial(optimizer_of, spec),
        factor=learning_rate_factor("cosine"),
        steps=len(DATA.train) // BATCH_SIZE,
        epochs=EPOCHS,
        **options,
    )
    splits = {"train": DATA.train, "val": DATA.val, "test": DATA.test}
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        plugins=[MixedPrecision("16-mixed", "cpu")] if precision == "16-mixed" else None,  # by name, it would be bf16
        precision=None if precision == "16-mixed" else precision,
        callbacks=[watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with quiet():
        trainer.fit(learner, datamodule=DataModule(spec, DATA, splits, BATCH_SIZE))
    return learner, watch


def test_groups_of_batches_do_not_change_the_result(monkeypatch):
    learner, watch = trained(ema=0.9)
    monkeypatch.setattr(datamodule, "STEPS_PER_GROUP", 1)
    alone, watch_alone = trained(ema=0.9)
    for ours, theirs in zip(learner.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert watch.rates == watch_alone.rates
    assert learner.mean_loss() == alone.mean_loss()
    assert watch_alone.steps_at_batch_end == list(range(1, 1 + EPOCHS * learner.steps))
    assert watch.steps_at_batch_end[:2] == [8, 16]
    assert watch.steps_at_batch_end[-1] == EPOCHS * learner.steps


class EpochRecorder(nn.CrossEntropyLoss):
    """A user-defined loss that records its epochs."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


def test_loss_gets_every_epoch():
    loss = EpochRecorder()
    trained(loss=loss)
    assert loss.epochs == list(range(EPOCHS))


def test_schedules_of_a_loss_are_updated():
    loss = FocalLoss(Linear(5.0, 1.0), epochs=EPOCHS)
    trained(loss=loss)
    assert current_settings(loss)["gamma"] == pytest.approx(5.0 - 4.0 * (EPOCHS - 1) / EPOCHS)


def test_loss_without_set_epoch():
    learner, _ = trained(loss=nn.CrossEntropyLoss())
    assert 0 < learner.mean_loss() < 2.3


def test_the_learning_rate_follows_the_step():
    learner, watch = trained()
    total = EPOCHS * learner.steps
    factor = learning_rate_factor("cosine")
    assert watch.rates == [pytest.approx(0.2 * factor(step / total)) for step in range(total)]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_gradients_are_clipped(precision):
    _, free = trained(precision=precision)
    _, clipped = trained(precision=precision, clip=0.05)
    assert max(free.norms) > 0.5
    assert max(clipped.norms) == pytest.approx(0.05, rel=1e-3)


def test_the_recorded_gradient_is_that_before_it_is_clipped():
    learner, watch = trained()
    clipped, _ = trained(clip=1e-3)
    assert clipped.statistics.row(clipped.model, clipped.loss)["gradient_norm"] > 0.05
    row = learner.statistics.row(learner.model, learner.loss)
    assert row["largest_gradient_norm"] in [pytest.approx(norm) for norm in watch.norms[-learner.steps :]]
