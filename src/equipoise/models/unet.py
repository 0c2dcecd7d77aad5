"""A small U-Net for semantic segmentation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import check_number, check_whole
from equipoise.models.initialize import he_initialize

__all__ = ["UNet"]


def two_convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """3x3 convolution, batch norm and ReLU, twice; keeps the size."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with a stem of stride 2, which reduces the cost to a quarter.

    A contracting path whose levels halve the size and double the channels, and an expanding path that combines each
    level with that of the contracting path. Unlike the original: padded convolutions with batch norm, and bilinear
    upsampling to the size of the level instead of transposed convolutions and cropping, so that any size is supported.
    The classifier works at half the resolution; its logits are upsampled, which is cheaper than to classify every
    pixel.

    Args:
        num_classes: C.
        in_channels: channels of the images.
        width: channels of the first level.
        depth: number of levels; the last has ``width * 2 ** (depth - 1)`` channels.
        dropout: fraction of the channels of the last level that are dropped.

    Shape: (N, in_channels, H, W) to (N, C, H, W), any H and W. The input of the classifier has shape
    (N, width, ceil(H/2), ceil(W/2)).
    """

    def __init__(
        self, num_classes: int, *, in_channels: int = 3, width: int = 32, depth: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_whole("in_channels", in_channels, low=1)
        check_whole("width", width, low=1)
        check_whole("depth", depth, low=1)
        check_number("dropout", dropout, low=0.0, high=1.0, open_high=True)
        widths = [width * 2**level for level in range(depth)]
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        )
        self.down = nn.ModuleList(
            two_convolutions(inputs, outputs) for inputs, outputs in zip([width, *widths], widths, strict=False)
        )
        # Rounded up, so that no level is empty.
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.dropout = nn.Dropout2d(dropout)
        self.up = nn.ModuleList(
            two_convolutions(below + skip, skip) for below, skip in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        he_initialize(self)
        self.classifier = nn.Conv2d(width, num_classes, 1)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.classifier

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C, H, W)."""
        size = x.shape[-2:]
        x = self.stem(x)
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            skips.append(x)
        x = self.dropout(skips.pop())
        for block in self.up:
            skip = skips.pop()
            x = block(torch.cat([skip, F.interpolate(x, size=skip.shape[-2:], mode="bilinear")], dim=1))
        return F.interpolate(self.classifier(x), size=size, mode="bilinear")
