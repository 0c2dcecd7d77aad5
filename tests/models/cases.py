"""Every named model in a form that is small enough for tests, with a batch that it accepts."""

import re

import torch
from torch import nn

from equipoise.models import build_model

C = 5
BATCH = 4
IMAGE = (3, 16, 16)
VOCABULARY = 20

OPTIONS = {
    "linear": {"input_shape": IMAGE},
    "mlp": {"input_shape": IMAGE, "hidden": (16, 16)},
    "resnet32": {"input_shape": IMAGE},
    "wideresnet26-10": {"input_shape": IMAGE, "width": 1},
    "densenet121": {"input_shape": IMAGE, "growth": 4},
    "resnet18": {"input_shape": IMAGE},
    "resnet50": {"input_shape": IMAGE},
    "unet": {"input_shape": IMAGE, "width": 8},
    "deeplabv3": {"input_shape": IMAGE, "width": 16},
    "text-bow": {"vocabulary": VOCABULARY},
    "text-cnn": {"vocabulary": VOCABULARY, "maps": 8},
    "text-pooling-cnn": {"vocabulary": VOCABULARY, "maps": 16},
}
DEEPER = {
    "resnet110": "resnet32",
    "resnet101": "resnet50",
    "resnet152": "resnet50",
    "deeplabv3-resnet50": "deeplabv3",
    "deeplabv3-resnet101": "deeplabv3",
    "deeplabv3-resnet152": "deeplabv3",
}
"""Models that are one of the others with more blocks, and the other, which is tested in their place."""
MAPS = ("unet", "deeplabv3")
IMAGES = ("resnet32", "wideresnet26-10", "densenet121", "resnet18", "resnet50", *MAPS)
TEXT = ("text-bow", "text-cnn", "text-pooling-cnn")


def build(name, num_classes=C, seed=0, **options):
    torch.manual_seed(seed)
    return build_model(name, num_classes=num_classes, **{**OPTIONS[name], **options})


def batch(name, count=BATCH, seed=1):
    draw = torch.Generator().manual_seed(seed)
    if name in TEXT:
        return torch.randint(1, VOCABULARY, (count, 9), generator=draw)
    return torch.randn(count, *IMAGE, generator=draw)


class TwoHeads(nn.Module):
    """A head that counts, and one of another width that is defined last and never called."""

    def __init__(self, features=16, unused=7):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), *([] if features == 16 else [nn.Linear(16, features)]))
        self.main = nn.Linear(features, C)
        self.unused = nn.Linear(16, unused)

    def forward(self, x):
        return self.main(self.body(x))


def pooled():
    """A model whose last layer is a 1x1 convolution of pooled maps (N, D, 1, 1)."""
    layers = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, C, 1), nn.Flatten()
    return nn.Sequential(*layers)


def says(argument, *parts):
    """A message in its four parts: the argument, what was expected, "got" what came, and after a semicolon the cure."""
    advised = r"(?=.*got .*; \w+)"
    return r"(?s)\A" + advised + ".*".join([re.escape(argument) + r"(?!\w)", *(re.escape(part) for part in parts)])
