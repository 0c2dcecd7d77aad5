"""Build what the settings name: data, sampler, model, loss, optimiser, and the training of them."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric, seed_everything
from torch import nn

from equipoise._checks import check_choice
from equipoise._suggestions import some
from equipoise.data import Arrays, DataError, DataSet, FileImages, Split, hold_out, open_data, open_samples, sampler_for
from equipoise.data.arrays import class_counts
from equipoise.data.augment import augmentations_from
from equipoise.data.files import Size
from equipoise.data.opening import resized, without_bad_images
from equipoise.data.samplers import EpochSampler
from equipoise.data.text import Vocabulary
from equipoise.heads.attention import module_named
from equipoise.heads.rebalanced import empty_linear
from equipoise.models import build_model, find_classifier, set_prior_bias, set_word_vectors
from equipoise.schedules import Schedule
from equipoise.train.fabric import on_one_device
from equipoise.train.loaders import labels_for_sampling
from equipoise.train.loss_text import build_loss, python_call
from equipoise.train.methods import AttentiveOpenLongTail, LossText, Plain, TrainingMethod, parse_method
from equipoise.train.optimizers import OPTIMIZERS, build_optimizer, learning_rate_factor
from equipoise.train.preparation import SAMPLE, Preparation
from equipoise.train.spec import RunSpec
from equipoise.train.task import TrainingTask
from equipoise.train.training import Training

__all__ = [
    "as_trained",
    "check_method",
    "check_model",
    "check_sizes",
    "loss_of",
    "method_of",
    "model_of",
    "monitor_of",
    "opened",
    "optimizer_of",
    "rate_of",
    "ready",
    "sampler_of",
    "training_of",
]

DECODED = 2**30
"""Maximum number of bytes of a split of image files that is decoded once for a whole training."""


def opened(spec: RunSpec, check_images: bool = True) -> tuple[DataSet, Split | None]:
    """The data, checked for training, and the open set, if there is one.

    ``check_images``: whether to look for undecodable image files.
    """
    columns = spec.label_column
    data = open_data(
        spec.data,
        task=spec.task,
        image_size=spec.image_size,
        fit=spec.fit,
        val_share=spec.val_share,
        test_share=spec.test_share,
        seed=spec.data_seed,
        longtail=spec.longtail,
        class_names=spec.class_names,
        ignore_index=spec.ignore_index,
        label_column=columns[0] if columns is not None and len(columns) == 1 else columns,
        path_column=spec.path_column,
        text_column=spec.text_column,
        split_column=spec.split_column,
        separator=spec.separator,
        image_root=spec.image_root,
        skip_bad_images=spec.skip_bad_images,
        check_images=check_images,
    )
    data, unknown = _with_open_set(spec, data, check_images)
    if not data.task.multilabel and len(data.class_names) < 2:
        raise DataError(
            f"{spec.data}: there must be at least two classes, found one ({some(data.class_names)}), so that there is "
            "nothing to tell apart; add samples of another class"
        )
    if not spec.allow_empty:
        _check_classes(spec, data)
    check_sizes(spec, data)
    return data, unknown


def _with_open_set(spec: RunSpec, data: DataSet, check_images: bool) -> tuple[DataSet, Split | None]:
    """The data without held-out classes, and the open set."""
    if spec.open_classes is not None:
        return hold_out(data, spec.open_classes)
    if spec.open_set is None:
        return data, None
    unknown, notes = open_samples(spec.open_set, data), data.notes
    if check_images or spec.skip_bad_images:
        splits, skipped = without_bad_images(Path(spec.open_set), {"open set": unknown}, spec.skip_bad_images)
        unknown, notes = splits["open set"], (*notes, *skipped)
    note = f"Open set: {len(unknown):,} samples of unknown classes in {spec.open_set}."
    return replace(data, notes=(*notes, note)), unknown


def _check_classes(spec: RunSpec, data: DataSet) -> None:
    """Raise if a class has no training samples, or validation data have a single class."""
    advice = "or --allow-empty to go on all the same"
    absent = np.flatnonzero(data.train_counts == 0)
    if len(absent):
        raise DataError(
            f"{spec.data}: every class must have a training sample, found none of "
            f"{some(data.class_names[c] for c in absent)}; add samples, take the class out, {advice}"
        )
    seen = np.flatnonzero(class_counts(data.val, data.task, len(data.class_names), data.ignore_index))
    if len(seen) < 2 <= len(data.class_names):
        raise DataError(
            f"{spec.data}: the validation data must hold at least two classes, found "
            f"{some(data.class_names[c] for c in seen) or 'none'} alone, which nothing can be chosen by; add samples, "
            f"leave the split out to have one drawn, {advice}"
        )


def check_sizes(spec: RunSpec, data: DataSet, most: int = SAMPLE) -> None:
    """Raise if a batch would have images of several sizes; checks at most ``most`` images of each split."""
    if spec.batch_size == 1:
        return
    seen: Counter[Size] = Counter()
    for split in (data.train, data.val, data.test):
        if isinstance(split, FileImages) and split.size is None:
            seen.update(split.sizes(most))
    if len(seen) < 2:
        return
    (height, width), count = seen.most_common(1)[0]
    shared = f"{height}x{width}, which {count} of {seen.total()} have" if count > 1 else "224"
    raise DataError(
        f"{spec.data}: images must have one size to be in one batch, found {len(seen)} sizes; choose one, e.g. "
        f"--image-size {shared}, or --batch-size 1"
    )


def as_trained(preparation: Preparation, split: Split) -> Split:
    """Resize images to the size of the training images, if these have one."""
    if preparation.kind != "images" or preparation.input_shape is None:
        return split
    size = preparation.input_shape[1], preparation.input_shape[2]
    if isinstance(split, FileImages):
        return replace(split, size=size, fit=preparation.resize)
    return resized(split, size, preparation.resize) if isinstance(split, Arrays) else split


def ready(spec: RunSpec, preparation: Preparation, split: Split) -> Split:
    """Texts as tokens; image files decoded if that takes little memory, or is asked for."""
    if isinstance(split, FileImages):
        one_size = split.size is not None or spec.batch_size != 1
        small = one_size and spec.workers is None and split.decoded_bytes <= DECODED
        return split.as_arrays() if spec.cache or small else split
    return preparation.as_arrays(split)


def sampler_of(
    spec: RunSpec, data: DataSet, split: Split, name: str | None = None, length: int | None = None, **processes: int
) -> EpochSampler:
    """The sampler of the settings, or of another name; ``rank`` and ``world_size`` override ``torch.distributed``."""
    labels = labels_for_sampling(split, data.task, ignore_index=data.ignore_index)
    return sampler_for(name or spec.sampler, labels, epochs=spec.epochs, seed=spec.seed, length=length, **processes)


def model_of(spec: RunSpec, task: TrainingTask, preparation: Preparation) -> tuple[nn.Module, str]:
    """The model with fresh weights, and its name."""
    name = task.default_model() if spec.model == "auto" else spec.model
    seed_everything(spec.seed, verbose=False)
    tokens = preparation.kind == "tokens"
    try:
        model = build_model(
            name,
            num_classes=task.num_classes,
            input_shape=None if tokens else preparation.input_shape,
            vocabulary=preparation.vocabulary,
            **spec.model_options,
        )
    except (ImportError, RuntimeError, TypeError) as error:  # the named object is missing or fails
        raise ValueError(f"--model {name}: {error}") from error
    if spec.word_vectors is not None:
        if not tokens:
            raise ValueError(f"--word-vectors is for texts, got {preparation.kind}; leave it out")
        vectors = Vocabulary(preparation.words).read_vectors(spec.word_vectors)
        try:
            set_word_vectors(model, vectors)
        except (TypeError, ValueError) as error:
            raise ValueError(f"--word-vectors {spec.word_vectors}: {error}") from error
    if spec.prior_bias:
        if not task.kind.multilabel:
            raise ValueError(f"--prior-bias is for multi-label data, got task {task.kind!r}; leave it out")
        samples = len(task.data.train)
        set_prior_bias(model, [(count + 1) / (samples + 2) for count in task.data.train_counts.tolist()])
    return model, name


@torch.no_grad()
def check_model(model: nn.Module, name: str, task: TrainingTask, preparation: Preparation, split: Split) -> None:
    """Raise unless the model maps two samples to logits of the right shape."""
    two = split.take(np.zeros(2, np.int64))
    arrays = two.as_arrays() if isinstance(two, FileImages) else preparation.as_arrays(two)
    inputs = preparation.prepare(torch.from_numpy(arrays.inputs))
    places = inputs.shape[2:] if task.kind.pixels else ()
    expected = (2, task.num_classes, *places)
    training = model.training
    try:
        logits = model.eval()(inputs)
    except torch.OutOfMemoryError:  # not caused by the model
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"--model {name} fails on inputs of shape {tuple(inputs.shape)}: {error}") from error
    finally:
        model.train(training)
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if shape != expected:
        raise ValueError(
            f"--model {name} must make logits of shape {expected} of inputs of shape {tuple(inputs.shape)}, got "
            f"{shape}; use a model for this task"
        )


def check_method(method: TrainingMethod, model: nn.Module, name: str, task: TrainingTask) -> None:
    """Raise unless the method finds the layers of the model that it changes."""
    if isinstance(method, Plain):
        return
    try:
        classifier = find_classifier(model)
        empty_linear(classifier.module)
        if classifier.module is model:
            raise ValueError("the model must have one as a part, found that it is one itself")
        if classifier.num_classes != task.num_classes:
            raise ValueError(f"it must make {task.num_classes} logits, found {classifier.name!r}, {classifier.module}")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a method must find the last layer of --model {name}, a linear one or a 1x1 convolution: "
            f"{str(error).partition('; ')[0]}; let the model have a method get_classifier() that returns it, or train "
            "with a --loss alone"
        ) from None
    if isinstance(method, AttentiveOpenLongTail):
        module_named(model, method.after)


def monitor_of(spec: RunSpec, task: TrainingTask) -> str:
    """The validation metric that selects the epoch."""
    if spec.monitor is None:
        return task.monitor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchmetrics, about metrics without samples
        check_choice("--monitor", spec.monitor, tuple(task.scores(task.metrics())))
    return spec.monitor


def method_of(spec: RunSpec) -> TrainingMethod:
    """The method; a single loss by default."""
    return Plain(LossText(spec.loss)) if spec.method == "none" else parse_method(spec.method)


def loss_of(spec: RunSpec, data: DataSet, sync: bool, text: str | None = None, epochs: int | None = None) -> nn.Module:
    """The loss of the run, or of a text and for other epochs, built for the data."""
    wanted = spec.loss if text is None else text
    return build_loss(
        data.task.loss_named(wanted),
        task=data.task,
        num_classes=len(data.class_names),
        counts=data.train_counts.tolist(),
        num_samples=len(data.train),
        epochs=epochs or spec.epochs,
        ignore_index=data.ignore_index,
        sync=sync,
    )


def loss_in_python(spec: RunSpec, data: DataSet) -> str | None:
    """The loss of the run as a Python expression; None for methods and losses that are more than an expression."""
    if spec.method != "none":
        return None
    return python_call(
        data.task.loss_named(spec.loss),
        num_classes=len(data.class_names),
        num_samples=len(data.train),
        epochs=spec.epochs,
        ignore_index=data.ignore_index,
    )


def optimizer_of(
    spec: RunSpec, model: nn.Module, *, fused: bool = True, body_rate: float = 1.0
) -> torch.optim.Optimizer:
    """The optimiser; ``fused=False`` for the default implementation of torch."""
    lr, weight_decay = OPTIMIZERS[spec.optimizer]
    return build_optimizer(
        spec.optimizer,
        model,
        lr=lr if spec.lr is None else spec.lr,
        weight_decay=weight_decay if spec.weight_decay is None else spec.weight_decay,
        momentum=spec.momentum,
        fused=fused,
        body_rate=body_rate,
    )


def rate_of(spec: RunSpec) -> Schedule:
    """The factor of the learning rate at a progress in [0, 1]."""
    return learning_rate_factor(
        spec.schedule, warmup=spec.warmup, milestones=spec.milestones, step_factor=spec.step_factor
    )


def training_of(
    fabric: Fabric,
    spec: RunSpec,
    task: TrainingTask,
    model: nn.Module,
    loss: nn.Module,
    preparation: Preparation,
    *,
    steps: int,
    body_rate: float = 1.0,
) -> Training:
    """The training of a run: ``steps`` per epoch; ``body_rate`` scales the learning rate before the head."""
    data = task.data
    return Training(
        fabric,
        task,
        model,
        loss,
        preparation,
        make_optimizer=partial(optimizer_of, spec, body_rate=body_rate),
        factor=rate_of(spec),
        augment=augmentations_from(spec.augment, num_classes=task.num_classes, ignore_index=data.ignore_index),
        steps=steps,
        epochs=spec.epochs,
        clip=spec.clip,
        ema=spec.ema,
        seed=spec.seed,
        channels_last=fabric.device.type == "cuda" and on_one_device(fabric) and ":" not in spec.model,
    )
