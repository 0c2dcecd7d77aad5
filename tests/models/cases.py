"""Every named model in a form that is small enough for tests, with a batch that it accepts."""

import re

import torch

from equipoise.models import build_model

C = 5
BATCH = 4
IMAGE = (3, 16, 16)
VOCABULARY = 20

OPTIONS = {
    "linear": {"input_shape": IMAGE},
    "mlp": {"input_shape": IMAGE, "hidden": (16, 16)},
    "resnet32": {"input_shape": IMAGE},
    "resnet18": {"input_shape": IMAGE},
    "resnet50": {"input_shape": IMAGE},
    "unet": {"input_shape": IMAGE, "width": 8},
    "deeplabv3": {"input_shape": IMAGE, "width": 16},
    "text-bow": {"vocabulary": VOCABULARY},
    "text-cnn": {"vocabulary": VOCABULARY, "maps": 8},
}
MAPS = ("unet", "deeplabv3")
IMAGES = ("resnet32", "resnet18", "resnet50", *MAPS)
TEXT = ("text-bow", "text-cnn")


def build(name, num_classes=C, seed=0, **options):
    torch.manual_seed(seed)
    return build_model(name, num_classes=num_classes, **{**OPTIONS[name], **options})


def batch(name, count=BATCH, seed=1):
    draw = torch.Generator().manual_seed(seed)
    if name in TEXT:
        return torch.randint(1, VOCABULARY, (count, 9), generator=draw)
    return torch.randn(count, *IMAGE, generator=draw)


def says(argument, *parts):
    """A message in its four parts: the argument, what was expected, "got" what came, and after a semicolon the cure."""
    advised = r"(?=.*got .*; \w+)"
    return r"(?s)\A" + advised + ".*".join([re.escape(argument) + r"(?!\w)", *(re.escape(part) for part in parts)])
