"""Residual networks for small images (He et al. 2016, section 4.2) and for ImageNet (section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import check_choice, check_number, check_whole
from equipoise.models.initialize import he_initialize

__all__ = ["BasicBlock", "Bottleneck", "CifarResNet", "ResNet", "ResNetBody"]

STEMS = ("imagenet", "small")


def conv3x3(inputs: int, outputs: int, *, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size at stride 1."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=dilation, dilation=dilation, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a residual connection (He et al. 2016, figure 5 left).

    Args:
        inputs: input channels.
        width: channels of the convolutions and of the output.
        stride: of the first convolution.
        dilation: of the first and of the second convolution. They differ if dilation replaces the stride: the first
            convolution still works on the grid of the previous stage.
        shortcut: the shortcut if the shape changes; None for the identity.

    Shape: (N, inputs, H, W) to (N, width, ceil(H / stride), ceil(W / stride)).
    """

    expansion = 1

    def __init__(
        self,
        inputs: int,
        width: int,
        *,
        stride: int = 1,
        dilation: tuple[int, int] = (1, 1),
        shortcut: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, width, stride=stride, dilation=dilation[0])
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, dilation=dilation[1])
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The batch norm whose result is added to the input."""
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        """Features of the block."""
        around = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(x)) + around, inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a residual connection (He et al. 2016, figure 5 right).

    The 3x3 convolution has the stride, as in the later code of the authors, not the first 1x1 convolution.

    Args:
        inputs: input channels.
        width: channels of the 3x3 convolution; the output has four times as many.
        stride: of the 3x3 convolution.
        dilation: the first is that of the 3x3 convolution; the second is used by the following blocks.
        shortcut: the shortcut if the shape changes; None for the identity.

    Shape: (N, inputs, H, W) to (N, 4 width, ceil(H / stride), ceil(W / stride)).
    """

    expansion = 4

    def __init__(
        self,
        inputs: int,
        width: int,
        *,
        stride: int = 1,
        dilation: tuple[int, int] = (1, 1),
        shortcut: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride=stride, dilation=dilation[0])
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = shortcut

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The batch norm whose result is added to the input."""
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        """Features of the block."""
        around = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        return F.relu(self.bn3(self.conv3(x)) + around, inplace=True)


class PaddedShortcut(nn.Module):
    """Option A of He et al. 2016: every second pixel, and zeros for the new channels; without parameters.

    Shape: (N, inputs, H, W) to (N, inputs + new, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(self, new: int, stride: int) -> None:
        super().__init__()
        self.new, self.stride = new, stride

    def forward(self, x: Tensor) -> Tensor:
        """The input, subsampled and padded."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        return f"{self.new}, stride={self.stride}"


def projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Option B of He et al. 2016: a 1x1 convolution if the shape changes."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


def zero_last_norms(module: nn.Module) -> None:
    """Initialise every residual block as the identity (Goyal et al. 2017, section 5.1)."""
    for block in module.modules():
        if isinstance(block, (BasicBlock, Bottleneck)):
            nn.init.zeros_(block.last_norm.weight)


class CifarResNet(nn.Module):
    """ResNet for images of about 32 pixels (He et al. 2016, section 4.2): three stages, 6n + 2 layers.

    With ``widen`` it is a wide residual network (Zagoruyko and Komodakis 2016) whose blocks normalise after the
    convolutions, as in the code of Mukhoti et al. 2020. That code counts depth without the 1x1 convolutions: its
    WRN-26-10 has the convolutions of WRN-28-10.

    Args:
        num_classes: C.
        in_channels: channels of the images.
        depth: 20, 32, 44, 56, 110 ...: 6n + 2.
        width: channels of the first convolution and, times ``widen``, of the first stage; the second and third stages
            have two and four times as many as the first.
        widen: factor of the channels of the stages.
        shortcut: ``"A"`` (padding without parameters, as in the paper for CIFAR) or ``"B"`` (1x1 convolutions).
        zero_init_residual: start every block as the identity (Goyal et al. 2017).

    Shape: (N, in_channels, H, W) to (N, C), any H and W. The input of the classifier is (N, 4 width widen).
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        depth: int = 32,
        width: int = 16,
        widen: int = 1,
        shortcut: str = "A",
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        check_choice("shortcut", shortcut, ("A", "B"))
        check_whole("width", width, low=1)
        check_whole("widen", widen, low=1)
        check_whole("in_channels", in_channels, low=1)
        if not isinstance(depth, int) or depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6n + 2 with n >= 1, got {depth!r}; use e.g. 20, 32, 44, 56 or 110")
        blocks = (depth - 2) // 6
        self.conv1 = conv3x3(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        wide = width * widen
        self.layer1 = self._stage(width, wide, blocks, 1, shortcut)
        self.layer2 = self._stage(wide, 2 * wide, blocks, 2, shortcut)
        self.layer3 = self._stage(2 * wide, 4 * wide, blocks, 2, shortcut)
        self.fc = nn.Linear(4 * wide, num_classes)
        he_initialize(self)
        if zero_init_residual:
            zero_last_norms(self)

    @staticmethod
    def _stage(inputs: int, width: int, blocks: int, stride: int, shortcut: str) -> nn.Sequential:
        around: nn.Module | None = None
        if stride != 1 or inputs != width:
            around = PaddedShortcut(width - inputs, stride) if shortcut == "A" else projection(inputs, width, stride)
        first = BasicBlock(inputs, width, stride=stride, shortcut=around)
        return nn.Sequential(first, *(BasicBlock(width, width) for _ in range(blocks - 1)))

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.fc

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C)."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


FORMS: Mapping[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = MappingProxyType(
    {
        18: (BasicBlock, (2, 2, 2, 2)),
        34: (BasicBlock, (3, 4, 6, 3)),
        50: (Bottleneck, (3, 4, 6, 3)),
        101: (Bottleneck, (3, 4, 23, 3)),
        152: (Bottleneck, (3, 8, 36, 3)),
    }
)
"""Type of block and number of blocks per stage, by depth (He et al. 2016, table 1)."""


class ResNetBody(nn.Module):
    """The convolutions of a ResNet in its ImageNet form (He et al. 2016, table 1), with shortcuts of option B.

    Parameters have the names of torchvision, whose published weights can be loaded with ``load_state_dict``.

    Args:
        depth: 18, 34, 50, 101 or 152.
        in_channels: channels of the images.
        stem: ``"imagenet"`` (7x7 with stride 2, then 3x3 max-pooling with stride 2) or ``"small"`` (3x3 with stride 1),
            for images of 64 pixels and less.
        output_stride: pixels of the image per feature; None for 32 (8 with the small stem). With a smaller value the
            last stages are dilated instead of strided (Chen et al. 2017, section 3.1), for a denser feature map.
        zero_init_residual: start every block as the identity (Goyal et al. 2017).

    Shape: (N, in_channels, H, W) to (N, D, ceil(H / output_stride), ceil(W / output_stride)). D is ``out_channels``:
    512 up to depth 34, then 2048.
    """

    def __init__(
        self,
        depth: int = 18,
        *,
        in_channels: int = 3,
        stem: str = "imagenet",
        output_stride: int | None = None,
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        if depth not in FORMS:
            raise ValueError(f"depth must be one of {', '.join(map(str, FORMS))}, got {depth!r}; use one of these")
        check_choice("stem", stem, STEMS)
        check_whole("in_channels", in_channels, low=1)
        natural = 32 if stem == "imagenet" else 8
        allowed = (natural // 4, natural // 2, natural)
        if output_stride is not None and output_stride not in allowed:
            raise ValueError(
                f"output_stride must be one of {allowed} with the stem {stem!r}, got {output_stride!r}; "
                "only the last two stages can be dilated"
            )
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = conv3x3(in_channels, 64)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(64)
        block, layers = FORMS[depth]
        grid = _grid(natural, output_stride or natural)
        stages, inputs = [], 64
        for stage, (count, (stride, dilation)) in enumerate(zip(layers, grid, strict=True)):
            stages.append(_stage(block, inputs, 64 * 2**stage, count, stride, dilation))
            inputs = 64 * 2**stage * block.expansion
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.out_channels = inputs
        he_initialize(self)
        if zero_init_residual:
            zero_last_norms(self)

    def forward(self, x: Tensor) -> Tensor:
        """Feature map (N, D, h, w)."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        features: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return features


class ResNet(ResNetBody):
    """ResNet in its ImageNet form (He et al. 2016, table 1): :class:`ResNetBody`, mean over the pixels, classifier.

    Args:
        num_classes: C.
        depth: 18, 34, 50, 101 or 152.
        in_channels: channels of the images.
        stem: ``"imagenet"`` or ``"small"`` (for images of 64 pixels and less).
        dropout: before the classifier.
        zero_init_residual: start every block as the identity (Goyal et al. 2017).

    Shape: (N, in_channels, H, W) to (N, C), any H and W. The input of the classifier is (N, D).
    """

    def __init__(
        self,
        num_classes: int,
        *,
        depth: int = 18,
        in_channels: int = 3,
        stem: str = "imagenet",
        dropout: float = 0.0,
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__(depth, in_channels=in_channels, stem=stem, zero_init_residual=zero_init_residual)
        check_number("dropout", dropout, low=0.0, high=1.0, open_high=True)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(self.out_channels, num_classes)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.fc

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C)."""
        logits: Tensor = self.fc(self.dropout(super().forward(x).mean((2, 3))))
        return logits


def _grid(natural: int, output_stride: int) -> list[tuple[int, tuple[int, int]]]:
    """Stride of each of the four stages, and its dilation at the strided convolution and after it."""
    grid = []
    total, dilation = natural // 8, 1
    for stride in (1, 2, 2, 2):
        if total * stride > output_stride:
            grid.append((1, (dilation, dilation * stride)))
            dilation *= stride
        else:
            grid.append((stride, (dilation, dilation)))
            total *= stride
    return grid


def _stage(
    block: type[BasicBlock] | type[Bottleneck],
    inputs: int,
    width: int,
    blocks: int,
    stride: int,
    dilation: tuple[int, int],
) -> nn.Sequential:
    outputs = width * block.expansion
    shortcut = projection(inputs, outputs, stride) if stride != 1 or inputs != outputs else None
    first = block(inputs, width, stride=stride, dilation=dilation, shortcut=shortcut)
    after = (dilation[1], dilation[1])
    return nn.Sequential(first, *(block(outputs, width, dilation=after) for _ in range(blocks - 1)))
