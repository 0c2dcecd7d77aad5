"""A linear classifier and a multi-layer perceptron for inputs of any shape, which are flattened."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from equipoise._checks import check_number, check_wholes

__all__ = ["MLP", "LinearClassifier", "perceptron"]


class LinearClassifier(nn.Module):
    """Logistic regression: one linear layer on the flattened input.

    Args:
        in_features: number of values per sample, D.
        num_classes: C.

    Shape: (N, ...) with D values per sample to (N, C).
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(in_features, num_classes)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.classifier

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C)."""
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


def perceptron(inputs: int, hidden: Sequence[int], *, dropout: float = 0.0, batch_norm: bool = False) -> nn.Sequential:
    """Hidden layers: linear (He normal weights, eq. 10 of He et al. 2015), optional batch norm, ReLU, dropout.

    Shape: (N, inputs) to (N, hidden[-1]).
    """
    check_number("dropout", dropout, low=0.0, high=1.0, open_high=True)
    check_wholes("hidden", hidden)
    layers: list[nn.Module] = []
    for width in hidden:
        linear = nn.Linear(inputs, width)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, *([nn.BatchNorm1d(width)] if batch_norm else []), nn.ReLU(inplace=True), nn.Dropout(dropout)]
        inputs = width
    return nn.Sequential(*layers)


class MLP(nn.Module):
    """Multi-layer perceptron on the flattened input.

    Args:
        in_features: number of values per sample, D.
        num_classes: C.
        hidden: widths of the hidden layers.
        dropout: after each hidden layer.
        batch_norm: between each hidden linear layer and its ReLU.

    Shape: (N, ...) with D values per sample to (N, C). The input of the classifier is (N, hidden[-1]).
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        hidden: Sequence[int] = (256, 256),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.body = perceptron(in_features, hidden, dropout=dropout, batch_norm=batch_norm)
        self.classifier = nn.Linear(hidden[-1] if hidden else in_features, num_classes)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.classifier

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C)."""
        logits: Tensor = self.classifier(self.body(x.flatten(1)))
        return logits
