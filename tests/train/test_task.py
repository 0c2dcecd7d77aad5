"""Differences between the tasks."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from equipoise.data import open_data
from equipoise.train.task import TrainingTask


@pytest.mark.parametrize(("size", "model"), [((48, 40), "resnet32"), ((64, 64), "resnet32"), ((65, 20), "resnet18")])
@pytest.mark.parametrize("asked", [None, 128])
def test_the_model_of_image_files_suits_their_size(size, model, asked, tmp_path):
    for label in ("cat", "dog"):
        for number in range(8):
            file = tmp_path / label / f"{number}.png"
            file.parent.mkdir(exist_ok=True)
            Image.fromarray(np.zeros((size[1], size[0], 3), np.uint8)).save(file)
    default = TrainingTask(open_data(tmp_path, image_size=asked)).default_model()
    assert default == ("resnet18" if asked else model)
