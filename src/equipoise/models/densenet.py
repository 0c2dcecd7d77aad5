"""DenseNet: every layer sees the features of all layers before it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import check_choice, check_number, check_whole, check_wholes
from equipoise.models.initialize import he_initialize
from equipoise.models.resnet import STEMS, conv3x3

__all__ = ["DenseNet"]


class DenseLayer(nn.Module):
    """A 1x1 and a 3x3 convolution whose result is appended to the input (Huang et al. 2017, section 3, DenseNet-B).

    Shape: (N, inputs, H, W) to (N, inputs + growth, H, W).
    """

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = conv3x3(4 * growth, growth)

    def forward(self, x: Tensor) -> Tensor:
        """The input and the new features."""
        new = self.conv1(F.relu(self.norm1(x), inplace=True))
        new = self.conv2(F.relu(self.norm2(new), inplace=True))
        return torch.cat([x, new], dim=1)


def transition(inputs: int) -> nn.Sequential:
    """Half the channels and half the size (Huang et al. 2017, compression 0.5); odd sizes are rounded up."""
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(inputs),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(inputs, inputs // 2, 1, bias=False),
            pool=nn.AvgPool2d(2, ceil_mode=True),
        )
    )


class DenseNet(nn.Module):
    """DenseNet-BC (Huang et al. 2017, Densely connected convolutional networks, table 1).

    Parameters are named as torchvision names them, so that its published weights load with ``load_state_dict``.

    Args:
        num_classes: C.
        in_channels: channels of the images.
        blocks: layers of each dense block; (6, 12, 24, 16) is DenseNet-121.
        growth: channels that each layer adds.
        stem: ``"imagenet"`` (7x7 with stride 2, then 3x3 max-pooling with stride 2) or ``"small"`` (3x3 with stride 1),
            for images of 64 pixels and less.
        dropout: on the features that the classifier sees.

    Shape: (N, in_channels, H, W) to (N, C), any H and W. The classifier sees 1024 features with the defaults.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        blocks: Sequence[int] = (6, 12, 24, 16),
        growth: int = 32,
        stem: str = "imagenet",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("stem", stem, STEMS)
        check_whole("in_channels", in_channels, low=1)
        check_wholes("blocks", blocks)
        check_whole("growth", growth, low=1)
        check_number("dropout", dropout, low=0.0, high=1.0, open_high=True)
        channels = 2 * growth
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if stem == "imagenet":
            layers["conv0"] = nn.Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False)
            layers["norm0"] = nn.BatchNorm2d(channels)
            layers["relu0"] = nn.ReLU(inplace=True)
            layers["pool0"] = nn.MaxPool2d(3, stride=2, padding=1)
        else:  # the first dense layer starts with a batch norm
            layers["conv0"] = conv3x3(in_channels, channels)
        for number, count in enumerate(blocks, start=1):
            block = nn.Sequential()
            for at in range(count):
                block.add_module(f"denselayer{at + 1}", DenseLayer(channels + at * growth, growth))
            layers[f"denseblock{number}"] = block
            channels += count * growth
            if number < len(blocks):
                layers[f"transition{number}"] = transition(channels)
                channels //= 2
        layers["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(layers)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(channels, num_classes)
        he_initialize(self)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.classifier

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C)."""
        features = F.relu(self.features(x), inplace=True).mean((2, 3))
        logits: Tensor = self.classifier(self.dropout(features))
        return logits
