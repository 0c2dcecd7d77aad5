"""Texts, and the words that a model knows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise._checks import check_whole

__all__ = ["Texts", "Vocabulary", "words_of"]


@dataclass(frozen=True, eq=False)
class Texts:
    """One split of texts.

    Args:
        texts: N strings, as they lie in the table.
        labels: (N,) class indices, or (N, C) of 0, 1 and -1 (unknown).
    """

    texts: tuple[str, ...]
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: NDArray[np.int64]) -> Texts:
        """These samples."""
        return Texts(tuple(self.texts[i] for i in indices), self.labels[indices])


def words_of(text: str) -> list[str]:
    """Lower-cased words; an apostrophe inside a word belongs to it.

    >>> words_of("Isn't it 5 o'clock?")
    ["isn't", 'it', '5', "o'clock"]
    """
    return re.findall(r"\w+(?:['\u2019]\w+)*", text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Words with numbers. Number 0 fills short texts up, number 1 stands for every unknown word.

    Args:
        words: the known words, the first of them with number 2.

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
        """The words that occur ``min_count`` times or more, the most frequent first; equals in alphabetical order.

        Fit it on training texts alone: a word that only the test knows is unknown.

        Args:
            texts: training texts.
            min_count: how often a word must occur.
            max_size: numbers at most, with those of padding and of unknown words.
        """
        min_count = check_whole("min_count", min_count, low=1)
        max_size = check_whole("max_size", max_size, low=2)
        counts = Counter(word for text in texts for word in words_of(text))
        ranked = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[: max_size - 2]))

    def __len__(self) -> int:
        """Numbers in use: the words, padding and unknown."""
        return len(self.words) + 2

    def encode(self, texts: Sequence[str], *, length: int | None = None) -> NDArray[np.int64]:
        """Numbers of the words, (N, length), filled up with 0; longer texts are cut.

        Args:
            texts: N strings.
            length: words of each text; None takes the longest, at least 1.
        """
        if length is not None:
            length = check_whole("length", length, low=1)
        rows = [[self._numbers.get(word, self.UNKNOWN) for word in words_of(text)] for text in texts]
        width = length if length is not None else max([1, *map(len, rows)])
        encoded = np.full((len(rows), width), self.PADDING, np.int64)
        for row, numbers in zip(encoded, rows, strict=True):
            row[: len(numbers)] = numbers[:width]
        return encoded

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=2)}
