import subprocess
import sys

import pytest
import torch

from tests.examples.running import EXAMPLES, numbers, run


@pytest.fixture(scope="module")
def example():
    try:
        return run("torchvision_fcos.py")
    except SystemExit:
        pytest.skip("torchvision cannot be imported")


def test_without_torchvision_it_says_so(tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    command = [sys.executable, "-c", f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); "]
    command[-1] += f"runpy.run_path({str(EXAMPLES / 'torchvision_fcos.py')!r}, run_name='__main__')"
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("skipped: torchvision cannot be imported here (RuntimeError: operator torchvision")


@pytest.mark.parametrize("name", ["focal", "asymmetric"])
def test_objects_are_found(example, name):
    precision, recall, _ = numbers(example.printed, f"{name}: ")
    assert precision > 40
    assert recall > 80


@pytest.mark.parametrize("objects", [True, False])
def test_focal_loss_is_that_of_torchvision(example, objects):
    torch.manual_seed(0)
    model = example.detector(example.focal_loss())
    images, targets = example.make_images(4, 0, "cpu")
    if not objects:
        targets = [{key: value[:0] for key, value in target.items()} for target in targets]
    ours = model(images, targets)
    head = example.FCOSHead(model.backbone.out_channels, 1, 3, 1)
    head.load_state_dict(model.head.state_dict())  # the loss adds nothing
    model.head = head
    theirs = model(images, targets)
    assert ours.keys() == theirs.keys()
    for part in theirs:
        torch.testing.assert_close(ours[part], theirs[part])


def test_only_the_loss_of_the_classes_changes(example):
    torch.manual_seed(0)
    model = example.detector(example.focal_loss())
    images, targets = example.make_images(4, 0, "cpu")
    focal = model(images, targets)
    model.head.loss = example.asymmetric_loss()
    asymmetric = model(images, targets)
    assert focal["classification"] != asymmetric["classification"]
    for part in ("bbox_regression", "bbox_ctrness"):
        torch.testing.assert_close(focal[part], asymmetric[part])
