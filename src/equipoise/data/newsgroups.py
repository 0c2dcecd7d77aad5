"""20 Newsgroups as distributed: one folder per group, one file per article."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from equipoise.data.errors import refuse
from equipoise.data.source import Options, Source, agree, in_order, settle_names
from equipoise.data.text import Texts
from equipoise.tasks import Task

__all__ = ["newsgroup_folders", "read_newsgroups"]


def newsgroup_folders(path: Path) -> dict[str, Path]:
    """The folder with the groups of each split: ``20news-bydate-train`` and ``-test``, or the folder itself."""
    inside = sorted(folder for folder in path.iterdir() if folder.is_dir())
    splits = {split: folder for split in ("train", "test") for folder in inside if folder.name.endswith(f"-{split}")}
    splits = {split: folder for split, folder in splits.items() if _groups(folder)}
    if "train" in splits:
        return splits
    return {"train": path} if _groups(path) else {}


def read_newsgroups(path: Path, options: Options) -> Source:
    """``comp.graphics/37261``, or ``20news-bydate-train/comp.graphics/37261``: articles without their headers.

    The header, everything up to the first empty line, names the group. The files are in Latin-1.
    """
    agree(path, Task.MULTICLASS, options.task)
    groups = {split: _groups(folder) for split, folder in newsgroup_folders(path).items()}
    names = settle_names(path, in_order(name for own in groups.values() for name in own), options.class_names)
    if len(names) < 2:
        raise refuse(path, "there must be at least two groups", str(len(names)), "pass the folder above them")
    splits = {}
    for split, own in groups.items():
        texts, labels = [], []
        for name, articles in own.items():
            for article in articles:
                text = article.read_text(encoding="latin-1")
                texts.append(text.partition("\n\n")[2] or text)
                labels.append(names.index(name))
        splits[split] = Texts(tuple(texts), np.array(labels, np.int64))
    return Source(Task.MULTICLASS, names, splits)


def _groups(folder: Path) -> dict[str, list[Path]]:
    """Articles, files whose names are numbers, by their group."""
    groups = {
        group.name: sorted(
            (file for file in group.iterdir() if file.name.isdecimal() and file.is_file()),
            key=lambda file: (len(file.name), file.name),
        )
        for group in sorted(folder.iterdir())
        if group.is_dir() and "." in group.name.strip(".")
    }
    return {name: articles for name, articles in groups.items() if articles}
