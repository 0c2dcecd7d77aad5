"""Texts and vocabularies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise._checks import check_whole
from equipoise._reading import check_memory, reading
from equipoise._suggestions import shortened
from equipoise.data.errors import DataError, refuse

__all__ = ["Texts", "Vocabulary", "words_of"]


@dataclass(frozen=True, eq=False)
class Texts:
    """One split of texts.

    Args:
        texts: N strings, as in the table.
        labels: (N,) class indices, or (N, C) of 0, 1 and -1 (unknown).
    """

    texts: tuple[str, ...]
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: NDArray[np.int64]) -> Texts:
        """Select samples."""
        return Texts(tuple(self.texts[i] for i in indices), self.labels[indices])


def words_of(text: str) -> list[str]:
    """Lower-case words; apostrophes inside a word belong to it.

    >>> words_of("Isn't it 5 o'clock?")
    ["isn't", 'it', '5', "o'clock"]
    """
    return re.findall(r"\w+(?:['\u2019]\w+)*", text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary. Index 0 is padding, index 1 stands for all unknown words.

    Args:
        words: the known words; the first has index 2.

    >>> known = Vocabulary.fit(["the cat", "the dog", "the cat sat"], min_count=2)
    >>> known.words
    ('the', 'cat')
    >>> known.encode(["The cat!", "a dog sat"], length=4)
    array([[2, 3, 0, 0],
           [1, 1, 1, 0]])
    """

    words: tuple[str, ...]

    PADDING = 0
    UNKNOWN = 1

    @classmethod
    def fit(cls, texts: Iterable[str], *, min_count: int = 2, max_size: int = 30_000) -> Vocabulary:
        """Build a vocabulary of words that occur at least ``min_count`` times, most frequent first, ties alphabetical.

        Fit it on training texts only: a word that occurs only in the test data is unknown.

        Args:
            texts: training texts.
            min_count: minimum number of occurrences.
            max_size: maximum size, including padding and unknown.
        """
        min_count = check_whole("min_count", min_count, low=1)
        max_size = check_whole("max_size", max_size, low=2)
        counts = Counter(word for text in texts for word in words_of(text))
        ranked = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[: max_size - 2]))

    def __len__(self) -> int:
        """Size: the words, padding and unknown."""
        return len(self.words) + 2

    def encode(self, texts: Sequence[str], *, length: int | None = None) -> NDArray[np.int64]:
        """Indices of the words, (N, length), padded with 0; longer texts are truncated.

        Args:
            texts: N strings.
            length: number of words per text; None for the longest text, at least 1.
        """
        if length is not None:
            length = check_whole("length", length, low=1)
        rows = [[self._numbers.get(word, self.UNKNOWN) for word in words_of(text)] for text in texts]
        width = length if length is not None else max([1, *map(len, rows)])
        encoded = np.full((len(rows), width), self.PADDING, np.int64)
        for row, numbers in zip(encoded, rows, strict=True):
            row[: len(numbers)] = numbers[:width]
        return encoded

    def read_vectors(self, path: str | Path) -> NDArray[np.float32]:
        """Word vectors (size of the vocabulary, D) from a file in GloVe's format; zeros for words not in it.

        Each line is a word and D numbers, separated by spaces; words may contain spaces. A first line of two integers,
        as fastText and word2vec write it, is skipped. The file is read line by line, and only known words are kept.

        Args:
            path: a text file such as ``glove.6B.100d.txt`` (Pennington et al. 2014).
        """
        path = Path(path)
        with (
            reading(path, "the file must hold word vectors", "use the text format of GloVe", DataError),
            path.open(encoding="utf-8") as file,
        ):
            return self._vectors_of(path, file)

    def _vectors_of(self, path: Path, lines: Iterable[str]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] | None = None
        width = 0
        for number, line in enumerate(lines, start=1):
            fields = line.rstrip("\n").rstrip().split(" ")
            if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
                continue
            if vectors is None:
                width = len(fields) - 1
                check_memory(path, "the word vectors", len(self) * width * 4, DataError)
                vectors = np.zeros((len(self), width), np.float32)
            word = self._numbers.get(" ".join(fields[: max(1, len(fields) - width)]))
            if word is None and len(fields) > width:
                continue
            row = np.array(fields[-width:], np.float32) if 0 < width < len(fields) else None
            if row is None or not np.isfinite(row).all():
                raise refuse(
                    f"{path}, line {number}",
                    f"a line must be a word and {width or 'some'} finite numbers",
                    shortened(repr(line.strip())),
                    "correct the line or download the file again",
                )
            vectors[word] = row
        if vectors is None:
            raise refuse(path, "there must be at least one line", "an empty file", "download the file again")
        return vectors

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=2)}
