"""Prepare raw inputs for a model: scaled pixels, standardised features, tokens of texts.

It is fitted on the training split only and stored with the model as JSON, so that an exported model prepares its inputs
as in training.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise._checks import check_choice
from equipoise.data.arrays import Arrays, Split
from equipoise.data.errors import DataError
from equipoise.data.files import FileImages, Size, in_threads, pixels_of, read_image
from equipoise.data.text import Texts, Vocabulary, words_of
from equipoise.train.record import PreparationRecord

__all__ = ["Preparation"]

SAMPLE = 512
"""Number of image files to decode for mean and standard deviation."""
LONGEST = 256
"""Maximum number of words of a text."""


@dataclass(frozen=True)
class Preparation(PreparationRecord):
    r"""Maps raw inputs to those of the model: :math:`(x - \text{mean}) / \text{std}`, images in [0, 1] before that.

    The arguments are those of :class:`equipoise.train.record.PreparationRecord`.

    >>> from equipoise.data import digits_lt
    >>> preparation = Preparation.fit(digits_lt().train)
    >>> preparation.kind, preparation.input_shape
    ('images', (1, 8, 8))
    """

    _on_device: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("images", "features", "tokens"))
        check_choice("resize", self.resize, ("stretch", "crop"))
        if self.input_shape is None and self.kind != "images":
            raise ValueError(f"input_shape must be the shape of one sample for {self.kind}, got None; pass it")
        needed = 0 if self.kind == "tokens" else len(self.mean) if self.input_shape is None else self.input_shape[0]
        if not len(self.mean) == len(self.std) == needed or (self.kind != "tokens" and not needed):
            what = {"images": "channel", "features": "feature", "tokens": "nothing"}[self.kind]
            raise ValueError(
                f"mean and std must hold a number for each {what}, got {len(self.mean)} and {len(self.std)} for inputs "
                f"of shape {self.input_shape}; fit the preparation on training data"
            )
        if not all(deviation > 0 for deviation in self.std):
            raise ValueError(f"std must be positive, got {min(self.std)}; take 1 where nothing varies")

    @classmethod
    def fit(cls, split: Split, *, scaling: Literal["standard", "unit"] = "standard") -> Preparation:
        """Fit the preparation on a training split.

        Of image files, an evenly spaced sample is decoded. Texts are truncated at the 95th percentile of their
        lengths, at most 256 words.

        Args:
            split: the training split.
            scaling: ``"standard"`` for pixels and features of mean 0 and standard deviation 1; ``"unit"`` for pixels in
                [0, 1] and features as they are.
        """
        check_choice("scaling", scaling, ("standard", "unit"))
        fitted = cls._fit(split)
        if scaling == "unit":
            return replace(fitted, mean=(0.0,) * len(fitted.mean), std=(1.0,) * len(fitted.std))
        return fitted

    @classmethod
    def _fit(cls, split: Split) -> Preparation:
        if not len(split):
            raise DataError("the training split must hold samples, found none; add training data")
        if isinstance(split, Texts):
            return cls._fit_texts(split)
        if isinstance(split, FileImages):
            return cls._fit_files(split)
        inputs = split.inputs
        shape = tuple(inputs.shape[1:])
        if inputs.ndim == 4 and inputs.dtype == np.uint8:
            mean, std = _pixel_moments(sum(_histogram(part) for part in _parts(inputs)))
            return cls("images", shape, mean, std)
        if inputs.ndim == 2 and inputs.dtype.kind == "f":
            mean, std = _feature_moments(inputs)
            return cls("features", shape, mean, std)
        raise DataError(
            "inputs must be images (N, channels, height, width) of uint8 or features (N, D) of floats, found "
            f"{inputs.dtype} of shape {inputs.shape}; convert them"
        )

    @classmethod
    def _fit_files(cls, split: FileImages) -> Preparation:
        chosen = np.unique(np.linspace(0, len(split) - 1, min(SAMPLE, len(split))).round().astype(np.int64))
        upright = split.masks is None

        def look(number: int) -> tuple[tuple[int, ...], NDArray[np.int64]]:
            image = read_image(split.paths[chosen[number]], split.size, split.fit, upright=upright)
            return image.shape, _histogram(image[None])

        seen = in_threads(look, len(chosen))
        shapes = {shape for shape, _ in seen}
        mean, std = _pixel_moments(sum(histogram for _, histogram in seen))
        return cls("images", shapes.pop() if len(shapes) == 1 else None, mean, std, resize=split.fit, upright=upright)

    @classmethod
    def _fit_texts(cls, split: Texts) -> Preparation:
        vocabulary = Vocabulary.fit(split.texts)
        if not vocabulary.words:
            raise DataError(
                f"the {len(split)} training texts must share words, found none that occurs twice; check the column of "
                "texts or add training data"
            )
        lengths = [len(words_of(text)) for text in split.texts]
        length = min(max(1, math.ceil(np.percentile(lengths, 95))), LONGEST)
        return cls("tokens", (length,), words=vocabulary.words)

    @property
    def vocabulary(self) -> int | None:
        """Size of the vocabulary, for text models."""
        return len(self._vocabulary) if self.kind == "tokens" else None

    @property
    def length(self) -> int | None:
        """Number of tokens of a text."""
        return self.input_shape[0] if self.kind == "tokens" and self.input_shape else None

    def as_arrays(self, split: Split) -> Arrays:
        """The split in memory: texts as tokens (N, length) of int32, image files decoded, arrays as they are."""
        if isinstance(split, Texts):
            return Arrays(self._encode(split.texts), split.labels)
        return split if isinstance(split, Arrays) else split.as_arrays()

    def prepare(self, inputs: Tensor) -> Tensor:
        """Map raw inputs to those of the model: ``normalise(scale(inputs))``, in one pass for pixels."""
        return self.normalise(inputs if inputs.dtype is torch.uint8 and self.kind == "images" else self.scale(inputs))

    def scale(self, inputs: Tensor) -> Tensor:
        """Convert images of uint8 to floats in [0, 1], features to float32, tokens to int64, on their device."""
        if self.kind == "tokens":
            return inputs.long()
        if self.kind == "features":
            return inputs.float()
        if inputs.dtype is not torch.uint8:
            raise TypeError(f"images must be uint8, got {inputs.dtype}; pass raw pixels from 0 to 255")
        return inputs / 255.0  # one kernel reads bytes and writes floats

    def normalise(self, scaled: Tensor) -> Tensor:
        """Standardise by mean and standard deviation of the training data, in a new tensor; tokens are unchanged.

        Images of uint8 are in units of 1/255.
        """
        if self.kind == "tokens":
            return scaled
        key = scaled.device, scaled.dtype
        if key not in self._on_device:
            self._on_device[key] = self._constants(*key)
        mean, std = self._on_device[key]
        return (scaled - mean).div_(std)

    def raw(self, data: Any) -> Tensor:  # noqa: ANN401
        """A raw batch from inputs of the user.

        Images are paths, Pillow images (both are resized as in training) or uint8 arrays and tensors, one or a batch,
        or a list of any of these. Arrays are (N, channels, height, width) or (N, height, width, channels), according to
        the number of channels in training; if both axes match, the image size decides. Features are numbers (D,) or
        (N, D). Texts are a string or a list of strings.
        """
        if self.kind == "tokens":
            return self._raw_texts(data)
        return self._raw_features(data) if self.kind == "features" else self._raw_images(data)

    def _raw_texts(self, data: Any) -> Tensor:  # noqa: ANN401
        texts = [data] if isinstance(data, str) else data
        listed = isinstance(texts, (list, tuple, np.ndarray)) and len(texts) > 0
        if not listed or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"inputs must be a text or a list of texts, got {str(data)[:60]!r}; pass strings")
        return torch.from_numpy(self._encode(texts))

    def _raw_features(self, data: Any) -> Tensor:  # noqa: ANN401
        assert self.input_shape is not None
        try:
            values = data.float() if isinstance(data, Tensor) else torch.from_numpy(np.array(data, np.float32))
        except (TypeError, ValueError) as error:
            raise TypeError(f"inputs must be numbers (N, {self.input_shape[0]}), got {error}; pass an array") from None
        if values.ndim == 1:
            values = values[None]
        if values.ndim != 2 or values.shape[1:] != self.input_shape:
            raise ValueError(
                f"inputs must be features (N, {self.input_shape[0]}) as in training, got shape {tuple(values.shape)}; "
                "pass the same features in the same order"
            )
        if values.device.type == "cpu" and not bool(values.isfinite().all()):
            row = int((~values.isfinite()).any(1).nonzero()[0])
            raise ValueError(f"inputs must be finite, got NaN or an infinite value in row {row}; fill or drop it")
        return values

    def _raw_images(self, data: Any) -> Tensor:  # noqa: ANN401
        if not isinstance(data, (list, tuple)):
            return self._raw_image(data)
        if not data:
            raise ValueError("inputs must hold at least one image, got an empty list; pass images")
        images = [self._raw_image(one) for one in data]
        sizes = {tuple(image.shape[2:]) for image in images}
        if len(sizes) > 1:
            few = ", ".join(f"{height} x {width}" for height, width in sorted(sizes)[:4])
            raise ValueError(f"images of one batch must have one size, got {few}; resize them or pass one at a time")
        return torch.cat(images)

    def _raw_image(self, data: Any) -> Tensor:  # noqa: ANN401
        """A path, a Pillow image, an array or a tensor, as (N, channels, height, width)."""
        size: Size | None = None if self.input_shape is None else (self.input_shape[1], self.input_shape[2])
        if isinstance(data, (str, Path)):
            return self._channels_of(read_image(data, size, self.resize, upright=self.upright))
        if _is_pillow(data):
            return self._channels_of(pixels_of(data, size, self.resize, upright=self.upright))
        if not isinstance(data, (Tensor, np.ndarray)):
            raise TypeError(
                f"inputs must be images: paths, Pillow images, uint8 arrays or tensors, got {type(data).__name__}; "
                "convert them"
            )
        if data.dtype not in (torch.uint8, np.dtype(np.uint8)):
            raise TypeError(f"images must be uint8, got {data.dtype}; pass pixels from 0 to 255")
        images = data if isinstance(data, Tensor) else torch.from_numpy(np.array(data))
        images = self._channels_first(images[None] if images.ndim == 3 else images)
        if size is not None and tuple(images.shape[2:]) != size:
            raise ValueError(
                f"images must be {size[0]} x {size[1]} (height x width) as in training, got {images.shape[2]} x "
                f"{images.shape[3]}; resize them, or pass paths or Pillow images, which are resized"
            )
        return images

    def _channels_of(self, rgb: NDArray[np.uint8]) -> Tensor:
        """(3, height, width) as (1, channels, height, width): unchanged, or grey by ITU-R BT.601 as in Pillow."""
        channels = len(self.mean)
        if channels not in (1, 3):
            raise ValueError(
                f"images must have {channels} channels as in training, got a picture in RGB; pass uint8 arrays "
                f"(N, {channels}, height, width)"
            )
        image = torch.from_numpy(rgb)[None]
        if channels == 3:
            return image
        red, green, blue = image.int().unbind(1)
        return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).to(torch.uint8)[:, None]

    def _channels_first(self, images: Tensor) -> Tensor:
        """Images in either layout as (N, channels, height, width)."""
        channels, shape = len(self.mean), tuple(images.shape)
        ways = [
            turned
            for turned in ((images, images.permute(0, 3, 1, 2)) if len(shape) == 4 else ())
            if turned.shape[1] == channels
        ]
        if len(ways) == 2 and self.input_shape is not None:
            ways = [way for way in ways if tuple(way.shape[1:]) == self.input_shape][:1] or ways
        if len(ways) != 1:
            raise ValueError(
                f"images must be (N, {channels}, height, width) or (N, height, width, {channels}) and leave no doubt "
                f"which, got shape {shape}; put the {channels} channels of training first or last"
            )
        return ways[0].contiguous()

    def _encode(self, texts: list[str] | tuple[str, ...]) -> NDArray[np.int32]:
        return self._vocabulary.encode(texts, length=self.length).astype(np.int32)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self.words)

    def _constants(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation for inputs of a dtype, shaped to broadcast over a batch."""
        shape = (-1, 1, 1) if self.kind == "images" else (-1,)
        unit, kept = (255.0, torch.float32) if dtype is torch.uint8 else (1.0, dtype)
        with torch.inference_mode(False):  # may be created in validation and used in training
            mean, std = (
                torch.tensor([unit * value for value in values], device=device, dtype=kept)
                for values in (self.mean, self.std)
            )
            return mean.view(shape), std.view(shape)


def _parts(inputs: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Chunks of samples of some million values, since sums in float64 need eight bytes per value."""
    step = max(1, 2**22 // max(1, math.prod(inputs.shape[1:])))
    return (inputs[start : start + step] for start in range(0, len(inputs), step))


def _histogram(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Histogram of the values of each channel, (channels, 256)."""
    return np.stack([np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(images, 1, 0)])


def _pixel_moments(histogram: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:  # noqa: ANN401
    """Mean and standard deviation of each channel in [0, 1]."""
    values = np.arange(256) / 255.0
    shares = histogram / histogram.sum(1, keepdims=True)
    mean = shares @ values
    return _moments(mean, (shares * (values - mean[:, None]) ** 2).sum(1))


def _feature_moments(features: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each feature, in float64."""
    mean = sum(part.sum(0, dtype=np.float64) for part in _parts(features)) / len(features)
    squares = sum(((part - mean) ** 2).sum(0) for part in _parts(features))
    return _moments(mean, squares / len(features))


def _moments(mean: Any, variance: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:  # noqa: ANN401
    """Mean and standard deviation; the latter is 1 if values are constant up to the rounding of float32."""
    std = np.sqrt(variance)
    varies = std > np.finfo(np.float32).eps * np.abs(mean)
    return tuple(mean.tolist()), tuple(np.where(varies, std, 1.0).tolist())


def _is_pillow(data: object) -> bool:
    """Whether the data are an image of Pillow, which need not be installed."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(data, module.Image)
