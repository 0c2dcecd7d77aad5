"""The callback of the Hugging Face trainer sets the progress of a loss, and saves its state in checkpoints."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import equipoise as eq
from equipoise.integrations.transformers import LossSchedule
from equipoise.schedules import Linear

C = 3


class Model(nn.Module):
    """A minimal model for the trainer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, C)

    def forward(self, x, labels=None):
        return self.linear(x)


def train(loss, folder, every="epoch", resume=None, **options):
    """The trainer after training, and the first hyper-parameter of the loss at each batch."""
    draw = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(12, 4, generator=draw), torch.randint(0, C, (12,), generator=draw)
    seen = []

    def compute_loss(logits, labels, num_items_in_batch=None):
        seen.append(round(loss.hyper_double[0].item(), 6) if len(loss.hyper_double) else None)
        return loss(logits, labels, normalizer=num_items_in_batch)

    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=3,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **options,
    )
    trainer = Trainer(
        Model(),
        arguments,
        train_dataset=[{"x": x, "labels": label} for x, label in zip(inputs, labels, strict=True)],
        compute_loss_func=compute_loss,
        callbacks=[LossSchedule(loss, every=every)],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, seen


def test_before_each_epoch(tmp_path):
    _, seen = train(eq.FocalLoss(Linear(4.0, 0.0), epochs=4), tmp_path, num_train_epochs=4, save_strategy="no")
    assert seen == [4.0] * 4 + [3.0] * 4 + [2.0] * 4 + [1.0] * 4


@pytest.mark.parametrize(
    ("options", "gammas"),
    [
        ({"max_steps": 5}, [4.0, 3.2, 2.4, 1.6, 0.8]),
        (
            {"num_train_epochs": 2, "gradient_accumulation_steps": 2},
            [4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0],
        ),
    ],
)
def test_before_each_step(tmp_path, options, gammas):
    _, seen = train(eq.FocalLoss(Linear(4.0, 0.0)), tmp_path, every="step", save_strategy="no", **options)
    assert seen == gammas


def memory():
    return eq.SoftmaxLoss(eq.losses.focal(Linear(4.0, 0.0)), weight=eq.weights.RecallWeights(C, momentum=0.3), epochs=3)


def test_training_resumes_with_the_state_of_its_loss(tmp_path):
    options = {"num_train_epochs": 3, "save_steps": 6}
    loss, same = memory(), memory()
    once, seen = train(loss, tmp_path, **options)
    assert (tmp_path / "checkpoint-6" / "loss.pt").is_file()
    again, late = train(same, tmp_path, resume=str(tmp_path / "checkpoint-6"), **options)
    assert late == seen[6:]
    for name, value in {**loss.state_dict(), **once.model.state_dict()}.items():
        assert torch.equal({**same.state_dict(), **again.model.state_dict()}[name], value), name
    assert loss.batch_weights[0].batches.sum() > 12  # they did count


def test_missing_state_is_an_error_if_needed(tmp_path):
    options = {"num_train_epochs": 3, "save_steps": 6, "resume": str(tmp_path / "checkpoint-6")}
    schedule = eq.FocalLoss(Linear(4.0, 0.0), epochs=3)
    train(schedule, tmp_path, num_train_epochs=2, save_steps=6)
    (tmp_path / "checkpoint-6" / "loss.pt").unlink()
    _, seen = train(schedule, tmp_path, **options)  # the progress is set again
    assert seen == [2.666667] * 2 + [1.333333] * 4
    with pytest.raises(FileNotFoundError, match=r"checkpoint-6.loss\.pt"):
        train(memory(), tmp_path, **options)


def test_a_loss_without_state_leaves_no_file(tmp_path):
    train(eq.FocalLoss(), tmp_path, max_steps=1, save_steps=1)
    assert (tmp_path / "checkpoint-1").is_dir()
    assert not (tmp_path / "checkpoint-1" / "loss.pt").exists()


def test_an_unknown_word_is_an_error():
    with pytest.raises(ValueError, match="every"):
        LossSchedule(eq.FocalLoss(), every="batch")


def test_the_epochs_of_loss_and_trainer_are_compared_at_the_start(tmp_path):
    with pytest.raises(ValueError, match=r"epochs of FocalLoss must be the 3 epochs .* got epochs=2; .* epochs=3"):
        train(eq.FocalLoss(Linear(4.0, 0.0), epochs=2), tmp_path, num_train_epochs=3, save_strategy="no")
    with pytest.warns(UserWarning, match=r"epochs of FocalLoss must be the 1 epochs .* got epochs=30; .* epochs=1"):
        train(eq.FocalLoss(Linear(4.0, 0.0), epochs=30), tmp_path, num_train_epochs=1, save_strategy="no")
