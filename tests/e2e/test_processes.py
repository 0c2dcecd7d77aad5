"""Two processes train the same as one process with their joint batches."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.e2e.commands import killed, predictions, rows, rows_there
from tests.e2e.scenes import MODEL, scene
from tests.marks import slow

TWO = {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}
SINGLE = {"data": "digits-lt", "model": "mlp", "epochs": 3, "batch_size": 16}
CASES = {
    "cross-entropy": SINGLE | {"sampler": "balanced", "ema": 0.9},
    "recall": SINGLE | {"loss": "recall:momentum=0.9", "optimizer": "sgd", "lr": 0.02},
    "several labels": {
        "data": "digit-scenes",
        "model": "linear",
        "epochs": 2,
        "batch_size": 50,
        "loss": "asl:target_gap=0.1",
        "clip": 0.5,
    },
    "label maps": {"data": "data", "model": "mine.py:pixels", "epochs": 4, "batch_size": 4, "loss": "recall+dice"},
}


@pytest.fixture
def folder(tmp_path):
    """A user-defined model, and scenes whose ignored pixels are distributed unevenly among the processes."""
    (tmp_path / "mine.py").write_text(MODEL)
    for split, count in (("train", 13), ("val", 7), ("test", 5)):  # no even number
        for i in range(count):
            images, masks = (tmp_path / "data" / kind / split / f"{i}.png" for kind in ("images", "masks"))
            scene(images, masks, [0, 1, 2], seed=i, ignored=i % 5 * 12)
    return tmp_path


def assert_same_training(one, two):
    """Losses, statistics, validation metrics and predictions are equal up to rounding."""
    assert two.record.environment.processes == 2
    for single, joint in zip(rows(one), rows(two), strict=True):
        assert joint["train"]["loss"] == pytest.approx(single["train"]["loss"], rel=0, abs=1e-5)
        for part in ("train", "val"):
            assert single[part].keys() == joint[part].keys()
            for name, value in single[part].items():
                if value is None:  # no prediction was wrong
                    assert joint[part][name] is None
                else:
                    assert joint[part][name] == pytest.approx(value, rel=1e-4, abs=1e-4), name
        assert single["lr"] == joint["lr"]
        assert single["step"] == joint["step"]
    for split in ("val", "test"):
        single, joint = predictions(one, split), predictions(two, split)
        np.testing.assert_array_equal(joint["targets"], single["targets"])
        precision = 1e-2 if single["logits"].dtype == np.float16 else 1e-4
        np.testing.assert_allclose(joint["logits"], single["logits"], rtol=precision, atol=precision)
    weights = [torch.load(run.checkpoint, weights_only=True)["model"] for run in (one, two)]
    assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["label maps", *slow("cross-entropy", "recall", "several labels")])
def test_two_processes_train_like_one(equipoise, folder, case):
    options = CASES[case]
    one = equipoise.train(folder, out="one", **options)
    assert_same_training(one, equipoise.train(folder, out="two", **options, **TWO))


@pytest.mark.slow
def test_run_resumes_with_more_processes(equipoise, tmp_path):
    """Killed on one process, killed again on two, and finished on two."""
    options = SINGLE | {"epochs": 8, "loss": "recall:momentum=0.9"}
    one = equipoise.train(tmp_path, out="one", **options)
    killed(equipoise, tmp_path, rows_there(2), **options)
    killed(equipoise, tmp_path, rows_there(4), **options, **TWO)
    assert_same_training(one, equipoise.train(tmp_path, **options, **TWO))
