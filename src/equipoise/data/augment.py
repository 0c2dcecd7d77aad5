"""Augmentation of whole batches on their device, reproducible from a generator.

An augmentation takes images (N, c, H, W) of floats in [0, 1], labels and a ``torch.Generator`` of the same device, and
returns new ones; the inputs are never modified. Label maps (N, H, W) are transformed with their images; ``Mixup`` and
``CutMix`` turn class indices into distributions (N, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise._checks import check_number, check_whole

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "Colour",
    "Compose",
    "Crop",
    "CutMix",
    "Erase",
    "Flip",
    "Mixup",
    "RandAugment",
    "augmentations_from",
]

Pair = tuple[Tensor, Tensor]


class Augmentation(Protocol):
    """Maps images, labels and a generator to new images and labels."""

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Pair:
        """Augment a batch."""
        ...


def _uniform(images: Tensor, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """One number per image, (N,)."""
    drawn = torch.rand(len(images), generator=generator, device=images.device)
    return low + (high - low) * drawn


def _each(values: Tensor) -> Tensor:
    """(N,) as (N, 1, 1, 1)."""
    return values.view(-1, 1, 1, 1)


def _is_map(images: Tensor, labels: Tensor) -> bool:
    return labels.ndim == 3 and labels.shape[1:] == images.shape[2:]


@dataclass(frozen=True)
class Flip:
    """Flip horizontally with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_number("p", self.p, low=0.0, high=1.0)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Pair:
        """Augment a batch."""
        chosen = _uniform(images, generator) < self.p
        if _is_map(images, labels):
            labels = torch.where(chosen.view(-1, 1, 1), labels.flip(-1), labels)
        return torch.where(_each(chosen), images.flip(-1), images), labels


@dataclass(frozen=True)
class Crop:
    """Pad by ``padding`` pixels on every side and take a random crop of the original size, as usual for CIFAR.

    Padding is black, and ``fill`` in label maps.
    """

    padding: int = 4
    fill: int = -100

    def __post_init__(self) -> None:
        check_whole("padding", self.padding, low=0, high=16_384)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Pair:
        """Augment a batch."""
        height, width = images.shape[2:]
        device, size = images.device, (len(images),)
        top, left = (
            torch.randint(2 * self.padding + 1, size, generator=generator, device=device).view(-1, 1) for _ in range(2)
        )
        rows, columns = top + torch.arange(height, device=device), left + torch.arange(width, device=device)
        sample = torch.arange(len(images), device=device).view(-1, 1, 1)
        if _is_map(images, labels):
            padded = F.pad(labels, (self.padding,) * 4, value=self.fill)
            labels = padded[sample, rows.unsqueeze(2), columns.unsqueeze(1)]
        padded = F.pad(images, (self.padding,) * 4)
        channel = torch.arange(images.shape[1], device=device).view(1, -1, 1, 1)
        return padded[sample.unsqueeze(1), channel, rows[:, None, :, None], columns[:, None, None, :]], labels


@dataclass(frozen=True)
class Colour:
    """Brightness, contrast and saturation by factors in [1 - strength, 1 + strength]."""

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            check_number(name, getattr(self, name), low=0.0, high=1.0)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Pair:
        """Augment a batch."""
        for change, strength in (
            (_brighten, self.brightness),
            (_contrast, self.contrast),
            (_saturate, self.saturation),
        ):
            factor = _each(_uniform(images, generator, 1.0 - strength, 1.0 + strength))
            images = change(images, factor).clamp(0.0, 1.0)
        return images, labels


def _brighten(images: Tensor, factor: Tensor) -> Tensor:
    return images * factor


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(images.mean((1, 2, 3), keepdim=True).expand_as(images), images, factor)


def _saturate(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(images.mean(1, keepdim=True).expand_as(images), images, factor)


def _box(images: Tensor, area: Tensor, aspect: Tensor, generator: torch.Generator) -> Tensor:
    """Boxes that cover a fraction ``area`` of the image at a random centre, (N, H, W) bool; clipped at the border."""
    height, width = images.shape[2:]
    tall = (area * aspect).sqrt() * height
    wide = (area / aspect).sqrt() * width
    middle_y, middle_x = _uniform(images, generator) * height, _uniform(images, generator) * width
    y = torch.arange(height, device=images.device) + 0.5
    x = torch.arange(width, device=images.device) + 0.5
    in_rows = (y - middle_y.view(-1, 1)).abs() <= tall.view(-1, 1) / 2
    in_columns = (x - middle_x.view(-1, 1)).abs() <= wide.view(-1, 1) / 2
    return in_rows.unsqueeze(2) & in_columns.unsqueeze(1)


@dataclass(frozen=True)
class Erase:
    """Black out a rectangle (cutout, DeVries & Taylor 2017) or fill it with noise (random erasing, Zhong et al. 2020).

    Args:
        p: probability per image.
        low: minimum fraction of the image.
        high: maximum fraction.
        noise: whether the rectangle is filled with uniform noise, new for each pixel and channel.
    """

    p: float = 0.5
    low: float = 0.02
    high: float = 0.25
    noise: bool = False

    def __post_init__(self) -> None:
        check_number("p", self.p, low=0.0, high=1.0)
        check_number("low", self.low, low=0.0, high=self.high)
        check_number("high", self.high, low=0.0, high=1.0)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Pair:
        """Augment a batch."""
        area = _uniform(images, generator, self.low, self.high)
        aspect = _uniform(images, generator, -math.log(3.0), math.log(3.0)).exp()
        box = _box(images, area, aspect, generator)
        chosen = (_uniform(images, generator) < self.p).view(-1, 1, 1) & box
        if not self.noise:
            return images.masked_fill(chosen.unsqueeze(1), 0.0), labels
        drawn = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        return torch.where(chosen.unsqueeze(1), drawn, images), labels


def _dense(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Class indices as distributions; other labels unchanged."""
    if labels.ndim == 1:
        return F.one_hot(labels, num_classes).to(dtype)
    return labels.to(dtype)


def _beta(images: Tensor, alpha: float, generator: torch.Generator) -> Tensor:
    """A sample of the Beta distribution (alpha, alpha), from two samples of the Gamma distribution."""
    concentration = torch.full((2,), alpha, dtype=torch.float64, device=images.device)
    draws = torch._standard_gamma(concentration, generator=generator)
    return (draws[0] / draws.sum()).to(images.dtype)


@dataclass(frozen=True)
class Mixup:
    """Mix each image and its label with another (Zhang et al. 2018), for class indices or multi-label data."""

    num_classes: int
    alpha: float = 0.2

    def __post_init__(self) -> None:
        check_whole("num_classes", self.num_classes, low=1)
        check_number("alpha", self.alpha, low=0.0, open_low=True)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Pair:
        """Augment a batch."""
        _refuse_maps("mixup", images, labels)
        order = torch.randperm(len(images), generator=generator, device=images.device)
        share = _beta(images, self.alpha, generator)
        dense = _dense(labels, self.num_classes, images.dtype)
        return torch.lerp(images[order], images, share), torch.lerp(dense[order], dense, share)


@dataclass(frozen=True)
class CutMix:
    """Paste a rectangle of another image into each, and mix labels by area (Yun et al. 2019)."""

    num_classes: int
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_whole("num_classes", self.num_classes, low=1)
        check_number("alpha", self.alpha, low=0.0, open_low=True)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Pair:
        """Augment a batch."""
        _refuse_maps("cutmix", images, labels)
        order = torch.randperm(len(images), generator=generator, device=images.device)
        area = (1.0 - _beta(images, self.alpha, generator)).expand(len(images))
        box = _box(images, area, torch.ones_like(area), generator)
        kept = 1.0 - box.to(images.dtype).mean((1, 2))
        dense = _dense(labels, self.num_classes, images.dtype)
        mixed = torch.lerp(dense[order], dense, kept.unsqueeze(1))
        return torch.where(box.unsqueeze(1), images[order], images), mixed


def _refuse_maps(name: str, images: Tensor, labels: Tensor) -> None:
    if _is_map(images, labels):
        raise ValueError(f"{name} mixes labels of images, got label maps {tuple(labels.shape)}; omit it")


@dataclass(frozen=True)
class RandAugment:
    """Random transformations per sample with one common strength (after Cubuk et al. 2020).

    Geometric: shear, translate, rotate; colour: brightness, contrast, saturation, posterise, solarise, autocontrast.

    Args:
        count: number of transformations per sample, applied in sequence.
        strength: 0 (none) to 1 (30 degrees, a third of the image, colours off by 0.9).
        fill: label of padding in label maps.
    """

    count: int = 2
    strength: float = 0.3
    fill: int = -100

    def __post_init__(self) -> None:
        check_whole("count", self.count, low=0, high=100)
        check_number("strength", self.strength, low=0.0, high=1.0)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Pair:
        """Augment a batch."""
        for _ in range(self.count):
            chosen = torch.randint(
                len(_GEOMETRIC) + len(_COLOURS), (len(images),), generator=generator, device=images.device
            )
            amount = self.strength * _uniform(images, generator, -1.0, 1.0)
            images, labels = self._move(images, labels, chosen, amount)
            for number, change in enumerate(_COLOURS, len(_GEOMETRIC)):
                changed = change(images, _each(amount)).clamp(0.0, 1.0)
                images = torch.where(_each(chosen == number), changed, images)
        return images, labels

    def _move(self, images: Tensor, labels: Tensor, chosen: Tensor, amount: Tensor) -> Pair:
        """One grid sampling for all geometric transformations; the identity for the others."""
        matrix = torch.eye(2, 3, device=images.device, dtype=images.dtype).repeat(len(images), 1, 1)
        for number, change in enumerate(_GEOMETRIC):
            matrix = torch.where((chosen == number).view(-1, 1, 1), change(matrix, amount), matrix)
        grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
        moved = F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        if _is_map(images, labels):
            # shifted by the fill and back, so that zero padding becomes the fill
            values = (labels - self.fill).unsqueeze(1).to(images.dtype)
            nearest = F.grid_sample(values, grid, mode="nearest", padding_mode="zeros", align_corners=False)
            turned = nearest.squeeze(1).round().to(labels.dtype) + self.fill
            labels = torch.where((chosen < len(_GEOMETRIC)).view(-1, 1, 1), turned, labels)
        return torch.where(_each(chosen < len(_GEOMETRIC)), moved, images), labels


def _entry(row: int, column: int, reach: float) -> Callable[[Tensor, Tensor], Tensor]:
    def change(matrix: Tensor, amount: Tensor) -> Tensor:
        changed = matrix.clone()
        changed[:, row, column] += reach * amount
        return changed

    return change


def _turn(matrix: Tensor, amount: Tensor) -> Tensor:
    angle = amount * math.pi / 6
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    return torch.stack([torch.stack([cosine, -sine, zero], 1), torch.stack([sine, cosine, zero], 1)], 1).to(matrix)


def _posterise(images: Tensor, amount: Tensor) -> Tensor:
    levels = (256.0 * (1.0 - amount.abs())).clamp(min=4.0)
    return (images * levels).floor() / levels


def _solarise(images: Tensor, amount: Tensor) -> Tensor:
    return torch.where(images > 1.0 - amount.abs(), 1.0 - images, images)


def _stretch(images: Tensor, amount: Tensor) -> Tensor:
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-6), images)


_GEOMETRIC = (_entry(0, 1, 0.6), _entry(1, 0, 0.6), _entry(0, 2, 0.66), _entry(1, 2, 0.66), _turn)
_COLOURS = (
    lambda images, amount: _brighten(images, 1.0 + 0.9 * amount),
    lambda images, amount: _contrast(images, 1.0 + 0.9 * amount),
    lambda images, amount: _saturate(images, 1.0 + 0.9 * amount),
    _posterise,
    _solarise,
    _stretch,
)


@dataclass(frozen=True)
class Compose:
    """Augmentations applied in sequence."""

    steps: tuple[Augmentation, ...] = ()

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Pair:
        """Augment a batch."""
        for step in self.steps:
            images, labels = step(images, labels, generator)
        return images, labels


def _crop(padding: float = 4, *, fill: int) -> Crop:
    return Crop(int(padding), fill)


def _erase(p: float = 0.5, low: float = 0.02, high: float = 0.25, *, noise: bool) -> Erase:
    return Erase(p, low, high, noise)


def _rand_augment(count: float = 2, strength: float = 0.3, *, fill: int) -> RandAugment:
    return RandAugment(int(count), strength, fill)


AUGMENTATIONS: Mapping[str, Callable[[list[float], int, int], Augmentation]] = MappingProxyType(
    {
        "flip": lambda numbers, classes, fill: Flip(*numbers),
        "crop": lambda numbers, classes, fill: _crop(*numbers, fill=fill),
        "colour": lambda numbers, classes, fill: Colour(*(numbers * 3 if len(numbers) == 1 else numbers)),
        "erase": lambda numbers, classes, fill: _erase(*numbers, noise=False),
        "erase-noise": lambda numbers, classes, fill: _erase(*numbers, noise=True),
        "mixup": lambda numbers, classes, fill: Mixup(classes, *numbers),
        "cutmix": lambda numbers, classes, fill: CutMix(classes, *numbers),
        "randaugment": lambda numbers, classes, fill: _rand_augment(*numbers, fill=fill),
    }
)
"""Augmentations by name, built from their numbers, the number of classes and the label to ignore."""


def augmentations_from(text: str, *, num_classes: int, ignore_index: int = -100) -> Compose:
    """Parse augmentations: names with numbers after a colon, separated by commas.

    >>> augmentations_from("flip,crop:2,mixup:0.4", num_classes=10).steps[1:]
    (Crop(padding=2, fill=-100), Mixup(num_classes=10, alpha=0.4))
    """
    steps = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, *given = word.split(":")
        if name not in AUGMENTATIONS:
            raise ValueError(
                f"augment must be a list of {', '.join(AUGMENTATIONS)}, got {name!r}; choose from these names"
            )
        try:
            steps.append(AUGMENTATIONS[name]([float(number) for number in given], num_classes, ignore_index))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"augment: {word!r} cannot be parsed ({error}); for example crop:4") from None
    return Compose(tuple(steps))
