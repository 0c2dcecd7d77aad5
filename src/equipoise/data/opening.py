"""Open data from a name, a file or a folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise._checks import check_choice, check_number, check_whole
from equipoise._paths import nothing_there
from equipoise._reading import reading
from equipoise._suggestions import repeated, some
from equipoise.data import longtail as tails
from equipoise.data.arrays import Arrays, DataSet, Split, class_counts
from equipoise.data.camvid import camvid_colours, is_camvid, read_camvid, read_camvid_colours
from equipoise.data.cifar import cifar_files, read_cifar
from equipoise.data.coco import annotation_files, read_coco
from equipoise.data.embedded import EMBEDDED
from equipoise.data.errors import DataError, refuse
from equipoise.data.files import IMAGE_ENDINGS, FileImages, Fit, Progress, Size
from equipoise.data.folders import list_files, read_image_folders, read_lists
from equipoise.data.inaturalist import inaturalist_files, read_inaturalist
from equipoise.data.newsgroups import newsgroup_folders, read_newsgroups
from equipoise.data.npz import read_npz
from equipoise.data.nus_wide import is_nus_wide, read_nus_wide
from equipoise.data.open_images import open_images_files, read_open_images
from equipoise.data.segmentation import mask_folders, read_cityscapes, read_mask_folders, read_voc
from equipoise.data.source import Options, Source, agree, note_of_bad_images, without_ignored
from equipoise.data.splits import scarce_classes, stratified_split
from equipoise.data.synthia import is_synthia, read_synthia
from equipoise.data.tables import ENDINGS, read_tables, table_files
from equipoise.data.tiny_imagenet import is_tiny_imagenet, read_tiny_imagenet
from equipoise.data.voc import read_voc_labels
from equipoise.tasks import Task, check_binary

__all__ = ["LONG_TAILS", "open_data"]

Reader = Callable[[Path, Options], Source]


def _read_json(path: Path, options: Options) -> Source:
    """A file of iNaturalist by its name, or where single labels are requested; COCO otherwise."""
    single = options.task is Task.MULTICLASS or (options.task is None and bool(inaturalist_files(path)))
    return (read_inaturalist if single else read_coco)(path, options)


def _read_voc(path: Path, options: Options) -> Source:
    """Label maps if the folder has them, unless multi-label data are requested."""
    maps = options.task is not Task.MULTILABEL and (path / "SegmentationClass").is_dir()
    return (read_voc if maps else read_voc_labels)(path, options)


FILES: dict[str, Reader] = {
    ".npz": read_npz,
    ".json": _read_json,
    ".txt": read_lists,
    **dict.fromkeys(ENDINGS, read_tables),
}
"""Readers by file suffix."""

FOLDERS: tuple[tuple[str, Callable[[Path], object], Reader], ...] = (
    ("train.npz", lambda path: (path / "train.npz").is_file(), read_npz),
    (
        "leftImg8bit/ and gtFine/ (Cityscapes)",
        lambda path: (path / "leftImg8bit").is_dir() and (path / "gtFine").is_dir(),
        read_cityscapes,
    ),
    (
        "JPEGImages/ and SegmentationClass/ or ImageSets/Main/ (VOC)",
        lambda path: (
            (path / "JPEGImages").is_dir()
            and ((path / "SegmentationClass").is_dir() or (path / "ImageSets" / "Main").is_dir())
        ),
        _read_voc,
    ),
    ("RGB/ and GT/LABELS/ (SYNTHIA)", is_synthia, read_synthia),
    ("train/ and trainannot/ (CamVid)", is_camvid, read_camvid),
    ("701_StillsRaw_full/ or train_labels/, with colours (CamVid)", camvid_colours, read_camvid_colours),
    ("images/ and masks/", mask_folders, read_mask_folders),
    ("annotations/instances_train*.json (COCO)", annotation_files, read_coco),
    ("train2018.json (iNaturalist)", inaturalist_files, read_inaturalist),
    ("data_batch_1 or train.bin, with class names (CIFAR)", cifar_files, read_cifar),
    ("wnids.txt and train/ (Tiny-ImageNet)", is_tiny_imagenet, read_tiny_imagenet),
    ("ImageList/ and Groundtruth/TrainTestLabels/ (NUS-WIDE)", is_nus_wide, read_nus_wide),
    ("*train-annotations-human-imagelabels.csv (Open Images)", open_images_files, read_open_images),
    ("comp.graphics/37261 (20 Newsgroups)", newsgroup_folders, read_newsgroups),
    ("train.csv or train.parquet", table_files, read_tables),
    ("*_train.txt with lines of path and label", lambda path: "train" in list_files(path), read_lists),
    ("CLASS/picture.jpg or train/CLASS/picture.jpg", lambda path: _has_image_below(path), read_image_folders),
)
"""Contents of a folder in order of precedence, and their readers."""

WITH_IMAGE_ROOT = (read_tables, read_coco, read_inaturalist, _read_json, read_lists, read_nus_wide, read_open_images)
"""Readers of files that name images by paths."""

LONG_TAILS: dict[str, Callable[[int, int, float], tuple[int, ...]]] = {
    "exponential": tails.exponential_counts,
    "step": tails.step_counts,
    "pareto": tails.pareto_counts,
}
"""Rules for ``longtail="RULE:RATIO"``."""

FIRST_4000 = {f"first-4000:{variant}": variant for variant in ("balanced", "5/3", "6/2")}
"""Further values of ``longtail``: the variants of ``longtail.first_4000``."""


def open_data(
    path_or_name: str | Path,
    *,
    task: str | None = None,
    image_size: int | Size | None = None,
    fit: Fit = "stretch",
    val_share: float = 0.15,
    test_share: float = 0.15,
    seed: int = 0,
    longtail: str | None = None,
    class_names: Sequence[str] | None = None,
    ignore_index: int | None = None,
    label_column: str | Sequence[str] | None = None,
    path_column: str | None = None,
    text_column: str | None = None,
    split_column: str | None = None,
    separator: str | None = None,
    image_root: str | Path | None = None,
    skip_bad_images: bool = False,
    check_images: bool = True,
    progress: Progress | None = None,
) -> DataSet:
    """Open data in their existing layout as three splits. ``docs/data.md`` describes every layout.

    A missing split is drawn from the training data, stratified by class. Messages for the user are in ``notes``. Image
    files are checked in threads, in a fraction of the time of decoding them; masks are read once.

    Args:
        path_or_name: an embedded data set (``digits-lt``, ``digit-scenes``, ``digit-maps``), a file or a folder.
        task: ``"multiclass"``, ``"multilabel"`` or ``"segmentation"``, inferred from the data by default; or
            ``"binary"``, multiclass with two classes.
        image_size: height and width, or one number for both; None keeps the size of the images.
        fit: ``"stretch"`` images to that size, or ``"crop"`` their middle.
        val_share: fraction of the training data for validation, if there is no validation split.
        test_share: fraction of the training data for the test, if there is no test split.
        seed: of the splits, of the long tail, and of embedded data.
        longtail: ``"exponential:100"``, ``"step:10"`` or ``"pareto:50"`` thins the training data out to that ratio.
            ``"first-4000:balanced"``, ``"first-4000:5/3"`` and ``"first-4000:6/2"`` train on 4,000 samples of 10 or 100
            classes as Smith 2022 does; missing splits are drawn from the others.
        class_names: classes in their order; names in the data must be among them.
        ignore_index: label to ignore; -100 by default, 255 in masks.
        label_column: of a table: a column of labels, or several columns of 0 and 1.
        path_column: of a table: paths of images.
        text_column: of a table: texts.
        split_column: of a table: ``train``, ``val`` or ``test``.
        separator: between several labels of a column, ``;`` or ``|`` by default.
        image_root: folder from which the paths of tables, COCO files and lists start; that of the file otherwise.
        skip_bad_images: skip image files that cannot be decoded, with a note; they are refused otherwise.
        check_images: whether to check all image files now, rather than when they are decoded.
        progress: called with the number of masks or images read so far and the total.

    Raises:
        DataError: the data cannot be used; the message says which file and what to do.

    >>> data = open_data("digits-lt")
    >>> data.task, len(data.train), data.class_names[:3]
    ('multiclass', 276, ('0', '1', '2'))
    """
    check_choice("fit", fit, ("stretch", "crop"))
    shares = {"val": val_share, "test": test_share}
    for name, share in shares.items():
        check_number(f"{name}_share", share, low=0.0, high=1.0, open_low=True, open_high=True)
    if val_share + test_share >= 1.0:
        raise ValueError(
            f"val_share and test_share must leave samples for training, got {val_share} and {test_share}; reduce them"
        )
    options = Options(
        task=None if task is None else Task(task),
        image_size=_size(image_size),
        fit=fit,
        class_names=None if class_names is None else _names(class_names),
        ignore_index=ignore_index,
        label_column=label_column if label_column is None or isinstance(label_column, str) else tuple(label_column),
        path_column=path_column,
        text_column=text_column,
        split_column=split_column,
        separator=separator,
        image_root=None if image_root is None else Path(image_root),
        progress=progress,
        skip_bad_images=skip_bad_images,
        check_images=check_images,
    )
    variant = FIRST_4000.get(longtail or "")
    tail = None if longtail is None or variant else _tail(longtail)
    where, embedded = Path(path_or_name), str(path_or_name) in EMBEDDED
    source = _source(where, options, str(path_or_name) if embedded else None, seed)
    check_binary(task, len(source.class_names), DataError, f"{where}: ")
    splits, notes = _splits(where, source, shares, variant, tail, seed)
    if options.image_size is not None:
        if not _are_images(splits["train"]):
            notes.append("image_size was ignored: these data are not images.")
        splits = {
            split: resized(own, options.image_size, options.fit) if isinstance(own, Arrays) else own
            for split, own in splits.items()
        }
    data = DataSet(
        name=str(path_or_name) if embedded else where.stem if where.is_file() else where.resolve().name,
        task=source.task,
        class_names=source.class_names,
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
        ignore_index=source.ignore_index,
    )
    return replace(data, notes=(*source.notes, *notes, *_coverage(data)))


def _source(where: Path, options: Options, embedded: str | None, seed: int) -> Source:
    """The splits that exist, without undecodable images and with the label to ignore."""
    with reading(where, "the data cannot be read", "check what wrote them", DataError):
        source = _read(where, options) if embedded is None else _embedded(embedded, options, seed)
    if options.check_images or options.skip_bad_images:
        kept, notes = without_bad_images(where, source.splits, options.skip_bad_images, options.progress)
        source = replace(source, splits=kept, notes=(*source.notes, *notes))
    if options.ignore_index is not None and not source.task.multilabel:
        names, notes = without_ignored(source.class_names, options.ignore_index)
        source = replace(source, class_names=names, ignore_index=options.ignore_index, notes=(*source.notes, *notes))
    return source


def _splits(
    where: Path,
    source: Source,
    shares: dict[str, float],
    variant: str | None,
    tail: tuple[str, float] | None,
    seed: int,
) -> tuple[dict[str, Split], list[str]]:
    """All three splits, with the requested long tail in training; and notes."""
    if variant is not None:
        fixed, source = _first_4000(where, source, variant)
        splits, notes = _complete(where, source, shares, seed)
        left = len(source.splits["train"])
        note = f"Long tail first-4000:{variant}: {len(fixed)} training samples, always the same; {left} are left."
        return {**splits, "train": fixed}, [note, *notes]
    splits, notes = _complete(where, source, shares, seed)
    if tail is None:
        return splits, notes
    thinned, note = _thin(where, source, splits["train"], *tail, seed)
    return {**splits, "train": thinned}, [*notes, note]


def _embedded(name: str, options: Options, seed: int) -> Source:
    _check_used(Path(name), options, None)
    data = EMBEDDED[name](seed=seed)
    agree(Path(name), data.task, options.task)
    names = data.class_names
    if options.class_names is not None:
        if len(options.class_names) != len(names):
            raise refuse(
                name,
                f"there must be one name for each of the {len(names)} classes",
                some(options.class_names),
                "name all",
            )
        names = options.class_names
    return Source(data.task, names, {"train": data.train, "val": data.val, "test": data.test}, data.ignore_index)


def _read(path: Path, options: Options) -> Source:
    missing = nothing_there(path)
    if missing is not None:
        raise DataError(missing)
    if path.is_file():
        reader = FILES.get(path.suffix.lower())
        if reader is None:
            raise refuse(
                path,
                f"a data file must end in {some(FILES)}",
                path.suffix or "no ending",
                "pass the folder that contains it",
            )
        _check_used(path, options, reader)
        return reader(path, options)
    for _, there, reader in FOLDERS:
        if there(path):
            _check_used(path, options, reader)
            return reader(path, options)
    inside = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    looked = "; ".join(what for what, _, _ in FOLDERS)
    content = (
        f"{some(inside)}{', without a picture below' * any(name.endswith('/') for name in inside)}"
        if inside
        else "an empty folder"
    )
    raise refuse(path, f"the folder must hold one of: {looked}", content, "see docs/data.md")


def without_bad_images(
    where: Path, splits: Mapping[str, Split], skip: bool, progress: Progress | None = None
) -> tuple[Mapping[str, Split], tuple[str, ...]]:
    """The splits without undecodable image files, and a note; raise for such files unless they are skipped."""
    images = {name: split for name, split in splits.items() if isinstance(split, FileImages)}
    wrong = {name: split.undecodable(progress) for name, split in images.items()}
    files = [Path(path) for name, split in images.items() for path in split.paths[wrong[name]]]
    if not files:
        return splits, ()
    note = note_of_bad_images(where, files, sum(map(len, images.values())), skip)
    kept = {name: split.take(np.setdiff1d(np.arange(len(split)), wrong[name])) for name, split in images.items()}
    empty = next((name for name, split in kept.items() if not len(split)), None)
    if empty is not None:
        raise refuse(where, f"there must be {empty} images that can be decoded", "none", "replace them")
    return {**splits, **kept}, (note,)


def _has_image_below(path: Path) -> bool:
    return any(
        file.suffix.lower() in IMAGE_ENDINGS
        for folder in path.iterdir()
        if folder.is_dir()
        for file in folder.rglob("*")
    )


def _are_images(split: Split) -> bool:
    return isinstance(split, FileImages) or (isinstance(split, Arrays) and split.inputs.ndim == 4)


def _check_used(where: Path, options: Options, reader: Reader | None) -> None:
    """Raise for options that the reader would ignore."""
    for_tables = ("label_column", "path_column", "text_column", "split_column", "separator")
    unused = [name for name in for_tables if getattr(options, name) is not None and reader is not read_tables]
    if options.image_root is not None and reader not in WITH_IMAGE_ROOT:
        unused.append("image_root")
    if unused:
        raise refuse(where, f"{unused[0]} does not apply to these data", "it set", "omit it, or pass the table")


def _strata(split: Split, classes: int) -> NDArray[np.int64]:
    """(N,) classes, or (N, C) whether they occur."""
    labels = split.labels
    if labels.ndim < 3:
        return labels
    return np.stack([(labels == c).any(axis=(1, 2)) for c in range(classes)], axis=1).astype(np.int64)


def _complete(where: Path, source: Source, shares: dict[str, float], seed: int) -> tuple[dict[str, Split], list[str]]:
    """All three splits; missing ones are drawn from the training data."""
    splits = dict(source.splits)
    missing = [split for split in shares if split not in splits]
    if not missing:
        return splits, []
    whole = splits["train"]
    strata = _strata(whole, len(source.class_names))
    held = [shares[split] for split in missing]
    parts = stratified_split(strata, [1.0 - math.fsum(held), *held], seed=seed)
    splits.update({split: whole.take(part) for split, part in zip(["train", *missing], parts, strict=True)})
    drawn = " and ".join(f"{split} ({len(splits[split])})" for split in missing)
    notes = [f"Drawn from the {len(whole)} training samples, stratified, seed {seed}: {drawn}."]
    scarce = [c for c in scarce_classes(strata, len(parts)) if c != source.ignore_index]
    if scarce:
        named = some(source.class_names[c] for c in scarce)
        notes.append(f"Classes with fewer than {len(parts)} samples stay in training: {named}.")
    for split in missing:
        if not len(splits[split]):
            raise refuse(
                where,
                f"there must be enough samples to draw a {split} split",
                f"{len(whole)} in all",
                f"provide more data or a separate {split} split",
            )
    return splits, notes


def _tail(longtail: str) -> tuple[str, float]:
    rule, _, ratio = longtail.partition(":")
    if rule == "first-4000":
        check_choice("longtail", longtail, tuple(FIRST_4000))
    check_choice("longtail", rule, (*LONG_TAILS, "first-4000"))
    try:
        number = float(ratio)
    except ValueError:
        raise ValueError(f"longtail must be RULE:RATIO, got {longtail!r}; e.g. 'exponential:100'") from None
    return rule, check_number("the ratio of longtail", number, low=1.0)


def _thin(where: Path, source: Source, train: Split, rule: str, ratio: float, seed: int) -> tuple[Split, str]:
    """The training split with the largest such tail that its classes allow."""
    _need_single(where, source)
    classes = len(source.class_names)
    present = class_counts(train, source.task, classes, source.ignore_index)

    def fits(largest: int) -> bool:
        counts = LONG_TAILS[rule](classes, largest, ratio)
        return all(asked <= there for asked, there in zip(counts, present.tolist(), strict=True))

    if not fits(1):
        empty = some(source.class_names[c] for c in np.flatnonzero(present == 0))
        raise refuse(where, "every class must have a training sample for a long tail", f"none of {empty}", "omit it")
    low, high = 1, int(present.max())  # counts increase with the largest one: search for the largest that fits
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    counts = LONG_TAILS[rule](classes, low, ratio)
    kept = tails.subsample(train.labels, counts, seed=seed)
    ends = f"{counts[0]} training samples of the first class, {counts[-1]} of the last"
    note = f"Long tail {rule}:{ratio:g}, seed {seed}: {ends}."
    return train.take(kept), note


def _first_4000(where: Path, source: Source, variant: str) -> tuple[Split, Source]:
    """The 4,000 training samples, and the source with the remaining samples for other splits."""
    _need_single(where, source)
    train, classes = source.splits["train"], len(source.class_names)
    present = class_counts(train, source.task, classes, source.ignore_index)
    advice = "use another long tail, such as exponential:2"
    if variant == "balanced":
        if len(train) < 4000:
            raise refuse(where, "there must be 4000 training samples", str(len(train)), advice)
    elif classes not in (10, 100):
        raise refuse(where, f"there must be 10 or 100 classes for the long tail {variant}", str(classes), advice)
    else:
        for c, count in enumerate(tails.first_4000_counts(classes, variant)):
            if present[c] < count:
                wanted = f"class {source.class_names[c]} must have {count} training samples for the long tail {variant}"
                raise refuse(where, wanted, str(present[c]), advice)
    chosen = tails.first_4000(train.labels, classes, variant)
    left = np.setdiff1d(np.arange(len(train)), chosen)
    return train.take(chosen), replace(source, splits={**source.splits, "train": train.take(left)})


def _need_single(where: Path, source: Source) -> None:
    if not source.task.multiclass:
        raise refuse(where, "long tails require single-label data", f"task {source.task!r}", "omit it")


def _coverage(data: DataSet) -> list[str]:
    """Notes about missing classes, except an ignored one."""
    notes = []
    seen = data.train_counts
    absent = np.flatnonzero(seen == 0)
    if not data.task.multilabel:
        absent = absent[absent != data.ignore_index]
    if len(absent):
        notes.append(f"Classes without a training sample: {some(data.class_names[c] for c in absent)}.")
    for name, split in (("validation", data.val), ("test", data.test)):
        counts = class_counts(split, data.task, len(data.class_names), data.ignore_index)
        there = np.flatnonzero(counts)
        if len(there) == 1 and len(data.class_names) > 1:
            notes.append(f"The {name} set has one class only: {data.class_names[there[0]]}.")
        elif len(gone := np.flatnonzero((counts == 0) & (seen > 0))):
            notes.append(f"Classes without a {name} sample: {some(data.class_names[c] for c in gone)}.")
    return notes


def resized(arrays: Arrays, size: Size, fit: Fit) -> Arrays:
    """Resize arrays of images, antialiased; label maps by nearest neighbour."""
    images, labels = arrays.inputs, arrays.labels
    if images.ndim != 4 or images.shape[2:] == size:
        return arrays
    import torch
    from torch.nn.functional import interpolate

    if fit == "crop":
        height, width = images.shape[2:]
        scale = min(height / size[0], width / size[1])
        rows, columns = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
        top, left = (height - rows) // 2, (width - columns) // 2
        images = images[:, :, top : top + rows, left : left + columns]
        labels = labels[:, top : top + rows, left : left + columns] if labels.ndim == 3 else labels
    resized = np.empty((*images.shape[:2], *size), np.uint8)
    for start in range(0, len(images), 256):
        part = torch.from_numpy(images[start : start + 256].astype(np.float32))
        scaled = interpolate(part, size, mode="bilinear", antialias=True)
        resized[start : start + 256] = scaled.round().clamp(0, 255).to(torch.uint8).numpy()
    if labels.ndim == 3:
        rows_of = ((np.arange(size[0]) + 0.5) * labels.shape[1] / size[0]).astype(np.int64)
        columns_of = ((np.arange(size[1]) + 0.5) * labels.shape[2] / size[1]).astype(np.int64)
        labels = labels[:, rows_of[:, None], columns_of[None, :]]
    return Arrays(resized, labels)


def _size(image_size: int | Size | None) -> Size | None:
    if image_size is None:
        return None
    pair = tuple(image_size) if isinstance(image_size, Sequence) else (image_size, image_size)
    if len(pair) != 2:
        raise ValueError(f"image_size must be one number or height and width, got {image_size!r}; e.g. (240, 320)")
    height, width = (check_whole("image_size", side, low=1) for side in pair)
    return height, width


def _names(class_names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(class_names, str):
        raise TypeError(f"class_names must be a sequence of names, got the string {class_names!r}; pass a list")
    names = tuple(map(str, class_names))
    twice = repeated(names)
    if twice is not None or not names:
        raise ValueError(f"class_names must be different names, got {twice!r} twice or none at all; correct the list")
    return names
