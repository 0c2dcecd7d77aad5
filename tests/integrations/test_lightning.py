"""The Lightning callback sets the progress of all losses of a module, and logs their schedules."""

from __future__ import annotations

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.integrations.lightning import LossSchedule
from equipoise.schedules import Linear

C = 3


class Module(pl.LightningModule):
    """Losses under custom names, one of them inside another module."""

    def __init__(self, classes=C, **options):
        super().__init__()
        self.model = nn.Linear(4, classes)
        self.criterion = eq.FocalLoss(Linear(4.0, 0.0), **options)
        self.more = nn.ModuleList([eq.RecallLoss(classes, momentum=0.5)])
        self.gammas = []

    def training_step(self, batch, index):
        inputs, labels = batch
        self.gammas.append(round(self.criterion.hyper_double[0].item(), 6))
        logits = self.model(inputs)
        return self.criterion(logits, labels) + self.more[0](logits, labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches():
    draw = torch.Generator().manual_seed(0)
    return DataLoader(
        TensorDataset(torch.randn(12, 4, generator=draw), torch.randint(0, C, (12,), generator=draw)), batch_size=3
    )


def fit(module, callback, checkpoint=None, **options):
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, batches(), ckpt_path=checkpoint)
    return trainer


def test_before_each_epoch():
    module = Module(epochs=4)
    fit(module, LossSchedule(), max_epochs=4)
    assert module.gammas == [4.0] * 4 + [3.0] * 4 + [2.0] * 4 + [1.0] * 4


@pytest.mark.parametrize(
    ("options", "gammas"),
    [
        ({"max_epochs": 2}, [4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5]),
        ({"max_steps": 5}, [4.0, 3.2, 2.4, 1.6, 0.8]),
        ({"max_epochs": 2, "accumulate_grad_batches": 2}, [4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0]),
    ],
)
def test_before_each_step(options, gammas):
    module = Module()
    fit(module, LossSchedule(every="step"), **options)
    assert module.gammas == gammas


def test_settings_are_logged():
    module = Module(epochs=4)
    logged = fit(module, LossSchedule(), max_epochs=4).callback_metrics
    assert logged["loss/gamma"].item() == 1.0
    assert {name for name in logged if "recall" in name} == {f"loss/recall_weights/{c}" for c in range(C)}
    assert logged["loss/recall_weights/1"].item() == pytest.approx(
        1 - module.more[0].batch_weights[0].recall[1].item(), abs=1e-5
    )


def test_many_classes_are_not_logged_individually():
    logged = fit(Module(classes=101, epochs=1), LossSchedule(), max_epochs=1).callback_metrics
    assert set(logged) == {"loss/gamma"}


def test_without_log():
    assert fit(Module(epochs=1), LossSchedule(log=False), max_epochs=1).callback_metrics == {}


def test_training_resumes_with_the_state_of_its_losses(tmp_path):
    once, first, second = (Module(epochs=4) for _ in range(3))
    first.load_state_dict(once.state_dict())
    fit(once, LossSchedule(), max_epochs=4)
    fit(first, LossSchedule(), max_epochs=2).save_checkpoint(tmp_path / "half.ckpt")
    fit(second, LossSchedule(), checkpoint=tmp_path / "half.ckpt", max_epochs=4)
    assert second.gammas == once.gammas[8:]
    for name, value in once.state_dict().items():
        assert torch.equal(second.state_dict()[name], value), name


def test_an_unknown_word_is_an_error():
    with pytest.raises(ValueError, match="every"):
        LossSchedule(every="batch")
    with pytest.raises(TypeError, match=r"every must .* got a FocalLoss; use LossSchedule\(\)"):
        LossSchedule(eq.FocalLoss())


def test_the_epochs_of_loss_and_trainer_are_compared_at_the_start():
    module = Module(epochs=2)
    with pytest.raises(ValueError, match=r"epochs of FocalLoss must be the 3 epochs .* got epochs=2; .* epochs=3"):
        fit(module, LossSchedule(), max_epochs=3)
    assert module.gammas == []
    with pytest.warns(UserWarning, match=r"epochs of FocalLoss must be the 1 epochs .* got epochs=30; .* epochs=1"):
        fit(Module(epochs=30), LossSchedule(), max_epochs=1)


@pytest.mark.filterwarnings("error:epochs of")
def test_epochs_are_not_compared_if_irrelevant():
    fit(Module(epochs=2), LossSchedule(every="step"), max_epochs=1)
    fit(Module(epochs=30), LossSchedule(), max_steps=2)
    fit(Module(epochs=2), LossSchedule(), max_epochs=2)
