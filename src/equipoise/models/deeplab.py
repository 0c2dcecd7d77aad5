"""DeepLabv3: a dilated residual network with atrous spatial pyramid pooling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import check_choice, check_number, check_whole, check_wholes
from equipoise.models.initialize import he_initialize
from equipoise.models.resnet import STEMS, ResNetBody

__all__ = ["DeepLabV3", "SpatialPyramid"]

BACKBONES = {"resnet18": 18, "resnet34": 34, "resnet50": 50, "resnet101": 101, "resnet152": 152}


def normed(inputs: int, outputs: int, size: int, dilation: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU; keeps the size."""
    padding = dilation * (size // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class SpatialPyramid(nn.Module):
    """Atrous spatial pyramid pooling with image-level features (Chen et al. 2017, section 3.3 and figure 5).

    A 1x1 convolution, 3x3 convolutions of several dilations, and the mean of the whole image, in parallel.

    Args:
        inputs: input channels.
        width: channels of each branch and of the result.
        rates: dilations.

    Shape: (N, inputs, h, w) to (N, width, h, w).
    """

    def __init__(self, inputs: int, width: int, rates: Sequence[int]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [normed(inputs, width, 1), *(normed(inputs, width, 3, dilation=rate) for rate in rates)]
        )
        self.image = normed(inputs, width, 1)
        self.project = normed((len(rates) + 2) * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Features of all scales."""
        if self.training and len(x) == 1:
            raise ValueError(
                "a batch must hold at least 2 images in training, because the pooled features are normalised over "
                "the batch, got 1 image; increase the batch size or drop a short last batch (drop_last=True)"
            )
        image = self.image(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[-2:])
        features: Tensor = self.project(torch.cat([*(branch(x) for branch in self.branches), image], dim=1))
        return features


class DeepLabV3(nn.Module):
    """DeepLabv3 (Chen et al. 2017, Rethinking atrous convolution for semantic image segmentation), without multi-grid.

    Args:
        num_classes: C.
        backbone: ``"resnet18"``, ``"resnet34"``, ``"resnet50"``, ``"resnet101"`` or ``"resnet152"``.
        in_channels: channels of the images.
        stem: of the backbone, ``"imagenet"`` or ``"small"`` (for images of 64 pixels and less).
        output_stride: pixels of the image for one of the features: 16 or 8 (4 or 2 with the small stem). None for the
            larger value.
        rates: dilations of the pyramid at the larger output stride; they double with the smaller one.
        width: channels of the pyramid.
        dropout: before the classifier.
        zero_init_residual: start every residual block as the identity (Goyal et al. 2017).

    Shape: (N, in_channels, H, W) to (N, C, H, W), any H and W. The input of the classifier is (N, width, h, w) with
    h = ceil(H / output_stride); its logits are upsampled bilinearly. Training needs at least two images per batch.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        backbone: str = "resnet18",
        in_channels: int = 3,
        stem: str = "imagenet",
        output_stride: int | None = None,
        rates: Sequence[int] = (6, 12, 18),
        width: int = 256,
        dropout: float = 0.1,
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        check_choice("backbone", backbone, tuple(BACKBONES))
        check_choice("stem", stem, STEMS)
        check_whole("width", width, low=1)
        check_wholes("rates", rates)
        check_number("dropout", dropout, low=0.0, high=1.0, open_high=True)
        coarse = 16 if stem == "imagenet" else 4
        if output_stride not in (None, coarse, coarse // 2):
            raise ValueError(
                f"output_stride must be {coarse} or {coarse // 2} with the stem {stem!r}, got {output_stride!r}; "
                "omit it for the larger value, or use the other stem"
            )
        stride = output_stride or coarse
        self.backbone = ResNetBody(
            BACKBONES[backbone],
            in_channels=in_channels,
            stem=stem,
            output_stride=stride,
            zero_init_residual=zero_init_residual,
        )
        self.pyramid = SpatialPyramid(self.backbone.out_channels, width, [rate * coarse // stride for rate in rates])
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Conv2d(width, num_classes, 1)
        he_initialize(self.pyramid)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.classifier

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C, H, W)."""
        logits = self.classifier(self.dropout(self.pyramid(self.backbone(x))))
        return F.interpolate(logits, size=x.shape[-2:], mode="bilinear")
