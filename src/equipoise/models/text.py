"""Classifiers of token sequences: a bag of words, and convolutions over a few words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise._checks import check_number, check_whole, check_wholes
from equipoise.models.initialize import he_initialize
from equipoise.models.mlp import perceptron

__all__ = ["TextBow", "TextCNN", "TextPoolingCNN", "set_word_vectors"]


def _check(vocabulary: int, width: int, padding: int) -> None:
    check_whole("vocabulary", vocabulary, low=1)
    check_whole("width", width, low=1)
    if not 0 <= padding < vocabulary:
        raise ValueError(
            f"padding must be a token of the vocabulary, in [0, {vocabulary - 1}], got {padding}; include "
            "it in vocabulary"
        )


class TextBow(nn.Module):
    """Bag of words: the mean of the word vectors, then hidden layers (Iyyer et al. 2015, deep averaging networks).

    Args:
        vocabulary: number of tokens, V, including the padding token.
        num_classes: C.
        width: size of the word vectors.
        hidden: widths of the hidden layers.
        dropout: after each hidden layer.
        padding: padding token, which is ignored.

    Shape: tokens (N, T) of int64 or int32 to (N, C). A row with padding only has the mean 0.
    """

    def __init__(
        self,
        vocabulary: int,
        num_classes: int,
        *,
        width: int = 128,
        hidden: Sequence[int] = (128,),
        dropout: float = 0.1,
        padding: int = 0,
    ) -> None:
        super().__init__()
        _check(vocabulary, width, padding)
        self.embedding = nn.EmbeddingBag(vocabulary, width, mode="mean", padding_idx=padding)
        self.body = perceptron(width, hidden, dropout=dropout)
        self.classifier = nn.Linear(hidden[-1] if hidden else width, num_classes)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.classifier

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (N, C)."""
        logits: Tensor = self.classifier(self.body(self.embedding(tokens)))
        return logits


class TextCNN(nn.Module):
    """Convolutions over windows of words and their maximum over time (Kim 2014), without its max-norm constraint.

    Every word starts one window of each size; positions after the last word are zero. So the logits of a row do not
    depend on the amount of padding, and rows shorter than a window are supported.

    Args:
        vocabulary: number of tokens, V, including the padding token.
        num_classes: C.
        width: size of the word vectors.
        windows: sizes of the windows, in words.
        maps: filters per window size.
        dropout: before the classifier.
        padding: padding token, at the end of short rows.

    Shape: tokens (N, T) of int64 or int32 to (N, C). The input of the classifier is (N, maps * len(windows)).
    """

    def __init__(
        self,
        vocabulary: int,
        num_classes: int,
        *,
        width: int = 128,
        windows: Sequence[int] = (3, 4, 5),
        maps: int = 100,
        dropout: float = 0.5,
        padding: int = 0,
    ) -> None:
        super().__init__()
        _check(vocabulary, width, padding)
        check_number("dropout", dropout, low=0.0, high=1.0, open_high=True)
        check_whole("maps", maps, low=1)
        check_wholes("windows", windows)
        if not windows:
            raise ValueError("windows must hold at least one size, got none; omit it for (3, 4, 5)")
        self.padding, self.windows = padding, tuple(windows)
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, maps, window) for window in windows)
        he_initialize(self.convolutions)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(maps * len(windows), num_classes)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.classifier

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (N, C)."""
        words = self.embedding(tokens).transpose(1, 2)  # (N, width, T)
        is_word = (tokens != self.padding).unsqueeze(1)  # (N, 1, T)
        features = []
        for window, convolution in zip(self.windows, self.convolutions, strict=True):
            active = F.relu(convolution(F.pad(words, (0, window - 1))))  # (N, maps, T)
            features.append((active * is_word).amax(2))
        logits: Tensor = self.classifier(self.dropout(torch.cat(features, dim=1)))
        return logits


class TextPoolingCNN(nn.Module):
    """Three convolutions over windows of words, their maximum over the text, and a hidden layer.

    The global-pooling network (Lin et al. 2014) that Mukhoti et al. 2020 train on 20 Newsgroups: after each of the
    first two convolutions it takes the maximum over the same number of places, with stride 1. As in :class:`TextCNN`
    every word starts a window and zeros follow the last word, so that padding does not change the logits; the published
    code leaves out the windows that reach beyond the text.

    Args:
        vocabulary: number of tokens, V, with the one for padding.
        num_classes: C.
        width: of a word vector.
        window: words or places of each convolution and of each maximum.
        maps: filters of each convolution, and width of the hidden layer.
        dropout: before the classifier.
        padding: token that fills short rows at their end.

    Shape: tokens (N, T) of int64 or int32 to (N, C). The classifier sees (N, maps).
    """

    def __init__(
        self,
        vocabulary: int,
        num_classes: int,
        *,
        width: int = 100,
        window: int = 5,
        maps: int = 128,
        dropout: float = 0.3,
        padding: int = 0,
    ) -> None:
        super().__init__()
        _check(vocabulary, width, padding)
        check_number("dropout", dropout, low=0.0, high=1.0, open_high=True)
        check_whole("maps", maps, low=1)
        check_whole("window", window, low=1)
        self.padding, self.window = padding, window
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.convolutions = nn.ModuleList(nn.Conv1d(inputs, maps, window) for inputs in (width, maps, maps))
        he_initialize(self.convolutions)
        self.hidden = nn.Linear(maps, maps)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(maps, num_classes)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.classifier

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (N, C)."""
        features = self.embedding(tokens).transpose(1, 2)  # (N, width, T)
        is_word = (tokens != self.padding).unsqueeze(1)  # (N, 1, T)
        beyond = (0, self.window - 1)
        for number, convolution in enumerate(self.convolutions):
            features = F.relu(convolution(F.pad(features, beyond))) * is_word  # (N, maps, T)
            if number + 1 < len(self.convolutions):  # after a ReLU, zeros do not change a maximum
                features = F.max_pool1d(F.pad(features, beyond), self.window, stride=1) * is_word
        logits: Tensor = self.classifier(self.dropout(F.relu(self.hidden(features.amax(2)))))
        return logits


@torch.no_grad()
def set_word_vectors(model: nn.Module, vectors: Tensor | NDArray[np.floating]) -> None:
    """Start the word vectors of a model of this module from given ones; they are trained further.

    Args:
        model: a model with ``embedding``, such as :class:`TextCNN`.
        vectors: (V, width), as :meth:`equipoise.data.Vocabulary.read_vectors` reads them. Rows of zeros, words without
            a vector, keep their random start, and padding keeps its zeros.

    >>> model = TextCNN(vocabulary=3, num_classes=2, width=2)
    >>> set_word_vectors(model, torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.5, 1.0]]))
    >>> model.embedding.weight[2]
    tensor([0.5000, 1.0000], grad_fn=<SelectBackward0>)
    """
    embedding = getattr(model, "embedding", None)
    if not isinstance(embedding, (nn.Embedding, nn.EmbeddingBag)):
        raise TypeError(
            f"model must have word vectors in .embedding, got {type(model).__name__}; take 'text-bow', 'text-cnn' or "
            "'text-pooling-cnn'"
        )
    weight = embedding.weight
    values = torch.as_tensor(vectors).to(weight)
    if values.shape != weight.shape:
        raise ValueError(
            f"vectors must be {tuple(weight.shape)}, tokens of the vocabulary by width of the model, got "
            f"{tuple(values.shape)}; read them with this vocabulary, and set width to that of the file"
        )
    given = values.any(dim=1, keepdim=True)
    if embedding.padding_idx is not None:
        given[embedding.padding_idx] = False
    weight.copy_(torch.where(given, values, weight))
