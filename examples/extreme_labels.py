"""Ten thousand labels: dense logits, sparse positives, and the memory that a loss keeps for backward.

Short synthetic documents have 5 of 10,000 labels each, some labels far more often than others; a bag of words predicts
them. Positives are stored as lists of indices; those of a batch become a bool table, a quarter of the size of floats.

The example prints the bytes that the asymmetric loss stores from forward to backward in addition to logits and targets,
compared with its plain formula, for which autograd stores one tensor of the size of the logits per operation. It then
prints the precision of the five most probable labels and the number of labels with a probability above 1/2, for binary
cross-entropy and for the asymmetric loss. The asymmetric loss down-weights easy negatives and therefore predicts more
labels. Which loss ranks better depends on the data: on these documents, cross-entropy does.

    python examples/extreme_labels.py
    python examples/extreme_labels.py --documents 20000 --epochs 20
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equipoise

LABELS, WORDS, POSITIVES = 10_000, 5_000, 5
WORDS_OF_A_LABEL, NOISE = 4, 10


def make_documents(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Words (count, 30) and labels (count, 5) of documents; label 0 is the most frequent."""
    draw = torch.Generator().manual_seed(seed)
    frequency = 1.0 / (10.0 + torch.arange(LABELS))
    meaning = torch.randint(WORDS, (LABELS, WORDS_OF_A_LABEL), generator=torch.Generator().manual_seed(99))
    labels = torch.multinomial(frequency.expand(count, -1), POSITIVES, generator=draw)
    noise = torch.randint(WORDS, (count, NOISE), generator=draw)
    return torch.cat([meaning[labels].flatten(1), noise], dim=1), labels


def table(labels: Tensor) -> Tensor:
    """Bool (N, LABELS), True at the labels (N, 5) of each row."""
    return torch.zeros(len(labels), LABELS, dtype=torch.bool).scatter_(1, labels, True)


class BagOfWords(nn.Sequential):
    """The sum of word embeddings, and one logit per label, initialised at a probability of 1 / 2,000."""

    def __init__(self) -> None:
        super().__init__(nn.EmbeddingBag(WORDS, 128, mode="sum"), nn.Linear(128, LABELS))
        nn.init.constant_(self[1].bias, torch.logit(torch.tensor(POSITIVES / LABELS)).item())


def train(loss: nn.Module, words: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """A model trained with ``loss``."""
    torch.manual_seed(0)
    model = BagOfWords()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(epochs):
        for rows in torch.randperm(len(words)).split(250):
            optimizer.zero_grad()
            loss(model(words[rows]), table(labels[rows])).backward()
            optimizer.step()
    return model.eval()


def plain_asymmetric_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The asymmetric loss written as its formula, gamma 0 and 4, margin 0.05."""
    probs = logits.sigmoid()
    not_probs = (1 - probs + 0.05).clamp(max=1)
    likelihood = targets * F.logsigmoid(logits) + (1 - targets) * not_probs.log()
    focus = (1 - probs * targets - not_probs * (1 - targets)) ** (4 * (1 - targets))
    return -(likelihood * focus).sum() / len(logits)


def bytes_kept(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor) -> int:
    """Bytes that autograd stores for backward, excluding the logits and the targets."""
    logits = logits.detach().requires_grad_()
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        value = loss(logits, targets)  # keep it alive during the measurement
    for own in (logits, targets):
        kept.pop(own.untyped_storage().data_ptr(), None)
    value.backward()
    return sum(kept.values())


def main() -> None:
    """Print memory, then the precision of both losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=3000, help="training documents")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    words, labels = make_documents(options.documents, seed=0)
    test_words, test_labels = make_documents(1000, seed=1)
    asl, bce = equipoise.AsymmetricLoss(), equipoise.BinaryCrossEntropyLoss(reduction="batch_mean")

    targets = table(labels[:250])
    logits = torch.randn(targets.shape)
    print(f"a batch of 250: logits {logits.nbytes / 1e6:.1f} MB, targets {targets.nbytes / 1e6:.1f} MB")
    print(f"kept for backward by equipoise.AsymmetricLoss: {bytes_kept(asl, logits, targets) / 1e6:.1f} MB")
    plain = bytes_kept(plain_asymmetric_loss, logits, targets.float())
    print(f"kept for backward by the plain formula: {plain / 1e6:.1f} MB")

    for name, loss in {"bce": bce, "asl": asl}.items():
        model = train(loss, words, labels, options.epochs)
        with torch.no_grad():
            logits = model(test_words)
        likeliest, truth = logits.topk(POSITIVES).indices, table(test_labels)
        hits, chosen = truth.gather(1, likeliest).float(), logits > 0
        many, share = chosen.sum() / len(chosen), chosen[truth].float().mean()
        print(
            f"{name}: precision at 1 {hits[:, 0].mean():.1%}, at 5 {hits.mean():.1%}; "
            f"above 1/2 are {many:.1f} labels a document and {share:.1%} of the true ones"
        )


if __name__ == "__main__":
    main()
