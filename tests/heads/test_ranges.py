"""Heads at the ends of the ranges of their arguments, under autocast, and blocks of exactly half of a model."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.heads import (
    CosineClassifier,
    MetaEmbedding,
    find_last_block,
    keep_features,
    open_set_prediction,
    retrain_classifier,
    tau_normalize,
)
from equipoise.models import MLP


def trained(**options):
    model = MLP(4, 3, hidden=(5,))
    inputs, labels = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    return retrain_classifier(model, keep_features(model, [(inputs, labels)]), **({"epochs": 1} | options))


@pytest.mark.parametrize(
    ("build", "name", "legal", "wrong"),
    [
        (lambda v: CosineClassifier(v, 3), "in_features", [1], [0, -1]),
        (lambda v: CosineClassifier(3, v), "num_classes", [1], [0, -1]),
        (lambda v: CosineClassifier(3, 2, scale=v), "scale", [0.1], [0.0, -1.0]),
        (lambda v: MetaEmbedding(v, 3), "in_features", [1], [0]),
        (lambda v: MetaEmbedding(3, v), "num_classes", [2], [0]),
        (lambda v: MetaEmbedding(3, 2, scale=v), "scale", [0.1], [0.0, -1.0]),
        (lambda v: MetaEmbedding(3, 2, reach=v), "reach", [0.1], [0.0, -1.0]),
        (lambda v: open_set_prediction(torch.zeros(1, 2), threshold=v), "threshold", [0.0, 1.0], [-0.1, 1.1]),
        (lambda v: tau_normalize(torch.eye(2), v), "tau", [0.0], [-0.1]),
        (lambda v: trained(epochs=v), "epochs", [1], [0]),
        (lambda v: trained(batch_size=v), "batch_size", [1], [0]),
        (lambda v: trained(lr=v), "lr", [1e-6], [0.0]),
    ],
)
def test_ranges(build, name, legal, wrong):
    for value in legal:
        build(value)
    for value in wrong:
        with pytest.raises(ValueError, match=name):
            build(value)


def test_distances_and_cosines_stay_in_float32_under_autocast():
    """With a query and a selector of zeros nothing else multiplies."""
    torch.manual_seed(0)
    head = MetaEmbedding(8, 3)
    for layer in (head.query, head.selector):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    head.memory.fill(torch.randn(3, 8))
    rows = torch.randn(6, 8)
    exact = head(rows)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = head(rows)
    assert_close(outputs.float(), exact, rtol=1e-5, atol=1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.fc = Block(), Block(), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.last(self.first(x)))


def test_a_block_of_half_the_parameters_is_a_block():
    assert find_last_block(Halves()) == ("last",)
