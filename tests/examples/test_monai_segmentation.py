import pytest
import torch

import equipoise
from tests.examples.running import numbers, run

pytest.importorskip("monai", reason="the example is about MONAI")
pytest.importorskip("ignite", reason="MONAI's trainer needs it")

pytestmark = pytest.mark.slow  # it trains


@pytest.fixture(scope="module")
def example():
    return run("monai_segmentation.py")


@pytest.mark.parametrize("name", ["dice", "focal"])
def test_definitions_agree(example, name):
    theirs, ours = numbers(example.printed, f"{name}: ")
    assert theirs == pytest.approx(ours, rel=1e-4)


def test_both_learn_and_recall_loss_finds_more_classes(example):
    theirs, ours = (
        numbers(example.printed, name.ljust(24)) for name in ("monai.losses.DiceCELoss", "equipoise.RecallLoss")
    )
    assert len(ours) == len(theirs) == 1 + example.CLASSES
    assert min(theirs[1], ours[1]) > 90  # background
    assert sum(dice > 25 for dice in ours[1:]) > sum(dice > 25 for dice in theirs[1:])


def test_schedules_follow_the_trainer(example):
    epochs = []

    class Watched(equipoise.FocalLoss):
        def set_epoch(self, epoch):
            epochs.append(epoch)
            super().set_epoch(epoch)

    images, maps = example.tensors(example.digit_maps(seed=0).train, 8)
    loss = example.WithoutChannel(Watched(gamma=equipoise.schedules.Linear(3.0, 0.0), epochs=3))
    model = example.train(example.network("monai"), loss, images, maps, epochs=3)
    assert epochs == [0, 1, 2]
    assert torch.isfinite(model(images)).all()
