import torch
from torch.nn.functional import cross_entropy

from tests.examples.running import EXAMPLES


def made(**options):
    from equipoise.user_code import made_by

    name = f"{EXAMPLES / 'own_loss.py'}:PolyLoss"
    return made_by(name, "loss", needed={}, offered={"ignore_index": 255}, options=options)


def test_without_epsilon_it_is_cross_entropy():
    logits, targets = torch.randn(6, 3), torch.tensor([0, 1, 2, 255, 1, 0])
    torch.testing.assert_close(made(epsilon=0.0)(logits, targets), cross_entropy(logits, targets, ignore_index=255))


def test_the_formula():
    logits, targets = torch.randn(4, 3, dtype=torch.double).float(), torch.tensor([0, 1, 2, 1])
    p = logits.softmax(1).gather(1, targets[:, None])
    torch.testing.assert_close(made(epsilon=2.0)(logits, targets), (-p.log() + 2 * (1 - p)).mean())
