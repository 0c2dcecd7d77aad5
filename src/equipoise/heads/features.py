"""Features of a trained model, computed once and stored, to train classifiers quickly."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import check_whole
from equipoise._suggestions import some
from equipoise.models.classifier import Classifier, check_sized, features_of, find_classifier

__all__ = ["KeptFeatures", "as_rows", "check_kept", "features_dim", "from_rows", "keep_features", "labels_at"]


@dataclass(frozen=True)
class KeptFeatures:
    """Features of a data set with their labels, created by :func:`keep_features`.

    Args:
        features: (N, D); for label maps one row per pixel of the feature map.
        labels: (N,) class indices, or (N, C) of 0, 1 and -1 (unknown) for multi-label data.
        num_classes: C.
        dim: dimension of the features in the input of the classifier: -1, or -3 for maps (N, D, h, w).
    """

    features: Tensor
    labels: Tensor
    num_classes: int
    dim: int = -1

    def __post_init__(self) -> None:
        rows, classes = self.features.shape[0], self.num_classes
        if self.features.ndim != 2 or tuple(self.labels.shape) not in ((rows,), (rows, classes)):
            raise ValueError(
                f"features must have shape (N, D) for labels (N,) or (N, {classes}), got {tuple(self.features.shape)} "
                f"and {tuple(self.labels.shape)}; compute them with keep_features"
            )
        if not rows:
            raise ValueError("features must hold at least one sample, got none; pass data with labels")
        if not bool(torch.isfinite(self.features).all()):
            raise ValueError("features must be finite, got infinite or NaN ones; check the model and its inputs")
        if self.labels.ndim == 1:
            low, high = (int(bound) for bound in self.labels.aminmax())
            if low < 0 or high >= classes:
                raise ValueError(
                    f"labels must be in [0, {classes - 1}] for the {classes} classes of the classifier, got "
                    f"{low if low < 0 else high}; check the labels, the number of classes or ignore_index"
                )

    @property
    def counts(self) -> Tensor:
        """Samples of each class, (C,)."""
        if self.labels.ndim == 1:
            return torch.bincount(self.labels, minlength=self.num_classes)
        return (self.labels == 1).sum(0)

    def check_classifier(self, classifier: Classifier) -> None:
        """Raise unless the features and classes match the classifier."""
        if (self.features.shape[1], self.num_classes) != (classifier.in_features, classifier.num_classes):
            raise ValueError(
                f"kept must hold features of width {classifier.in_features} and {classifier.num_classes} classes for "
                f"the classifier {classifier.name!r}, got width {self.features.shape[1]} and {self.num_classes} "
                "classes; compute them with keep_features of the same model"
            )

    def class_means(self) -> Tensor:
        """Mean feature of each class, (C, D), in float64 sums; NaN for a class without samples."""
        if self.labels.ndim != 1:
            raise ValueError(
                f"labels must be single-label, (N,), for class means, got shape "
                f"{tuple(self.labels.shape)}; use retrain_classifier for multi-label data"
            )
        sums = self.features.new_zeros(self.num_classes, self.features.shape[1], dtype=torch.float64)
        sums.index_add_(0, self.labels, self.features.double())
        return (sums / self.counts.unsqueeze(1)).to(self.features.dtype)


def check_kept(kept: object) -> None:
    """Raise unless these are features of :func:`keep_features`."""
    if not isinstance(kept, KeptFeatures):
        raise TypeError(
            f"kept must be features from keep_features, got {type(kept).__name__}; pass keep_features(model, batches)"
        )


@torch.no_grad()
def keep_features(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    name: str | None = None,
    ignore_index: int = -100,
    rows_per_batch: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> KeptFeatures:
    """Run the model once over the data, without augmentation and in evaluation mode, and store the classifier inputs.

    In maps (N, D, h, w) every pixel is a row, and labels are resized to (h, w) by nearest neighbour; in pooled
    features, (N, D, 1, 1), every sample is a row, with labels (N,). Rows with label ``ignore_index`` are excluded. With
    several processes pass all data to each of them.

    Args:
        model: any module whose classifier is found by :func:`equipoise.models.find_classifier`.
        batches: pairs of inputs, of any device, and labels; for example a data loader.
        name: qualified name of the classifier if it is not found.
        ignore_index: label of rows that are excluded.
        rows_per_batch: number of rows to keep per batch, drawn at random; for label maps, which have many pixels.
        device: where to store them; None for that of the model. Raises at the first batch if they would not fit.
        seed: random seed of the drawn rows.

    >>> from equipoise.models import MLP
    >>> data = [(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(2)]
    >>> kept = keep_features(MLP(4, 3, hidden=(16,)), data)
    >>> kept.features.shape, kept.counts
    (torch.Size([16, 16]), tensor([6, 6, 4]))
    """
    if rows_per_batch is not None:
        check_whole("rows_per_batch", rows_per_batch, low=1)
    classifier = find_classifier(model, name)
    dim = features_dim(classifier)
    home = next(model.parameters()).device
    target = home if device is None else _usable_device(device)
    draw = torch.Generator().manual_seed(seed)
    parts: list[tuple[Tensor, Tensor]] = []
    with _evaluating(model), features_of(model, classifier.name) as view:
        for inputs, labels in _pairs(batches):
            features = view(inputs.to(home)).features
            rows, row_labels = _labelled_rows(features, labels.to(home), dim, ignore_index)
            if rows_per_batch is not None and len(rows) > rows_per_batch:
                chosen = torch.randperm(len(rows), generator=draw)[:rows_per_batch].to(home)
                rows, row_labels = rows[chosen], row_labels[chosen]
            rows = rows if rows.dtype is torch.float64 else rows.float()
            if not parts:
                _check_room(2 * rows.nbytes * _length(batches), target)  # twice: they are concatenated at the end
            parts.append((rows.to(target), row_labels.to(target)))
    if not parts:
        raise ValueError("batches must yield pairs of inputs and labels, got none; a generator can be read only once")
    rows, row_labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return KeptFeatures(rows, row_labels, classifier.num_classes, dim)


def features_dim(classifier: Classifier) -> int:
    """Dimension of the features in the input of a classifier: -1, or -3 for maps (N, D, h, w)."""
    dim = getattr(classifier.module, "dim", None)
    if isinstance(dim, int):
        return dim
    check_sized(classifier)
    weight = getattr(classifier.module, "weight", None)
    return 1 - weight.ndim if isinstance(weight, Tensor) else -1


def as_rows(features: Tensor, dim: int) -> Tensor:
    """Features (..., D, ...) with D at ``dim`` as rows (M, D)."""
    return features.movedim(dim, -1).flatten(0, -2)


def from_rows(rows: Tensor, like: Tensor, dim: int) -> Tensor:
    """Reshape rows (M, K) to the layout of features (..., D, ...): (..., K, ...)."""
    places = like.movedim(dim, -1).shape[:-1]
    return rows.view(*places, rows.shape[1]).movedim(-1, dim)


def _labelled_rows(features: Tensor, labels: Tensor, dim: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Labelled rows of features, and their labels."""
    places = features.movedim(dim, -1).shape[:-1]
    if math.prod(places[1:]) == 1 and labels.ndim < 3 and labels.shape != places:  # pooled: one label per sample
        features, dim, places = as_rows(features, dim), -1, places[:1]
    if labels.ndim == 2 and len(places) == 1 and len(labels) == len(features):
        return features, labels.float()
    if labels.is_floating_point():
        raise TypeError(
            f"labels must be integer class indices, or (N, C) for multi-label data, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}; call labels.long()"
        )
    labels = labels_at(features, labels, dim)
    if labels.shape != places:
        raise ValueError(
            f"labels must have one class per feature vector, shape {tuple(places)}, got {tuple(labels.shape)}; "
            "pass the labels of the inputs of the same batch"
        )
    flat = labels.flatten().long()
    valid = flat != ignore_index
    return as_rows(features, dim)[valid], flat[valid]


def labels_at(features: Tensor, labels: Tensor, dim: int) -> Tensor:
    """Label maps (N, H, W) resized to features (N, D, h, w) by nearest neighbour; other labels unchanged."""
    places = features.movedim(dim, -1).shape[:-1]
    if labels.ndim != 3 or len(places) != 3 or labels.shape == places or len(labels) != len(features):
        return labels
    wide = labels.unsqueeze(1).double()
    return F.interpolate(wide, size=places[1:], mode="nearest-exact").squeeze(1).long()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Context in evaluation mode; restores the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _pairs(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches; raises for one that is not a pair of inputs and labels."""
    try:
        each = iter(batches)
    except TypeError:
        raise TypeError(
            f"batches must yield pairs (inputs, labels), got {type(batches).__name__}; pass a data loader, or "
            "[(inputs, labels)] for one batch"
        ) from None
    for batch in each:
        pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        if not pair or not hasattr(batch[0], "to") or not isinstance(batch[1], Tensor):
            raise TypeError(
                f"batches must be pairs (inputs, labels) of tensors, got {_kind(batch)}; map them with a generator, "
                "such as ((batch[0], batch[1]) for batch in loader), and pass [(inputs, labels)] for one batch"
            )
        yield batch[0], batch[1]


def _kind(batch: object) -> str:
    """Description of a batch."""
    if isinstance(batch, Mapping):
        return f"{type(batch).__name__} of {some(map(repr, batch))}"
    if isinstance(batch, (tuple, list)):
        return f"{type(batch).__name__} of {some(type(part).__name__ for part in batch) or 'nothing'}"
    return type(batch).__name__


def _usable_device(device: torch.device | str) -> torch.device:
    """The device as ``torch.device``; raises if PyTorch cannot use it."""
    try:
        usable = torch.device(device)
        torch.empty(0, device=usable)
    except (RuntimeError, AssertionError, TypeError):  # AssertionError: PyTorch built without CUDA
        raise ValueError(
            f"device must be available to PyTorch on this machine, got {str(device)!r}; pass 'cpu', or None for that "
            "of the model"
        ) from None
    return usable


def _length(batches: Iterable[object]) -> int:
    """Number of batches, 1 if unknown: the length of a streaming loader raises an error."""
    try:
        return len(batches) if isinstance(batches, Sized) else 1
    except TypeError:
        return 1


def _check_room(needed: int, device: torch.device) -> None:
    free = _free_bytes(device)
    if needed > free:
        elsewhere = "" if device.type == "cpu" else "device='cpu', "
        raise MemoryError(
            f"features must fit into the memory of {device}, got about {needed / 2**30:.2f} GiB for "
            f"{free / 2**30:.2f} GiB of free memory; pass {elsewhere}rows_per_batch=... or less data"
        )


def _free_bytes(device: torch.device) -> float:
    """Free memory, if known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "cpu" and "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf
