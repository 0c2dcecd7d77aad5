"""Training step of ResNet-32 with two heads or two branches, relative to the step of the plain model.

Every candidate has a separate network with the same weights, and learns from the same batch; they take turns. The
plain model uses cross-entropy. SDN has its own losses, a recall loss and a class-balanced one, or cross-entropy in
place of the first; its overhead is given in units of the plain model with the first of its losses. BBN learns from two
batches per step and has no target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cases import long_tail
from benchmarks.measure import Quartiles, paired_ratio, take_turns
from benchmarks.targets import Check, add_checks
from equipoise.heads import DecoupledLoss, bilateral, decouple
from equipoise.losses import ClassBalancedLoss, CrossEntropyLoss, RecallLoss
from equipoise.models import CifarResNet

__all__ = ["PLAIN", "Settings", "run"]

TARGET = 1.05
PLAIN = "cross-entropy"
CLASSES = 10
BLOCK_SECONDS = 0.1  # a step is timed in blocks of at least this long, to resolve differences of a few percent


@dataclass(frozen=True)
class Settings:
    """Options of the command line; ``shape`` is that of a batch, (N, 3, H, W)."""

    device: torch.device
    shape: tuple[int, int, int, int] = (128, 3, 32, 32)
    rounds: int = 15
    autocast: bool = False
    filter: str = ""
    block: float = BLOCK_SECONDS


@dataclass(frozen=True)
class Step:
    """One step of SGD on fixed batches.

    Args:
        model: function from images to the input of the loss.
        loss: function of the outputs and labels.
        optimizer: optimizer of the model.
        batches: images and labels, alternating.
        autocast: whether forward and loss run under bfloat16 autocast.
    """

    model: nn.Module
    loss: Callable[..., Tensor]
    optimizer: torch.optim.Optimizer
    batches: tuple[Tensor, ...]
    autocast: bool

    def __call__(self) -> None:
        """Forward, backward and update."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.batches[0].device.type, torch.bfloat16, enabled=self.autocast):
            loss = self.loss(self.model(*self.batches[::2]), *self.batches[1::2])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def run(settings: Settings, progress: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """A row for the plain model, then one per candidate selected by the filter."""
    wanted = [name for name in CANDIDATES if settings.filter.lower() in name.lower()]
    if not wanted:
        return []
    names = list(dict.fromkeys([PLAIN, *(FIRST_LOSS[name] for name in wanted if name in FIRST_LOSS), *wanted]))
    progress(f"ResNet-32 on {settings.shape}: {len(names)} candidates, {settings.rounds} rounds")
    steps = {name: _step(name, settings) for name in names}
    times = take_turns(steps, settings.device, settings.rounds, settings.block)
    rows = []
    for name, seconds in times.items():
        ratio = paired_ratio(seconds, times[PLAIN])
        row: dict[str, Any] = {
            "name": name,
            "kind": "ours",
            "status": "ok",
            "milliseconds": asdict(Quartiles.of([1e3 * each for each in seconds])),
            "weights": sum(weight.numel() for weight in steps[name].model.parameters()),
            "ratio": asdict(ratio),
        }
        checks = []
        if name in FIRST_LOSS:
            added = paired_ratio(seconds, times[FIRST_LOSS[name]])
            row["added"] = asdict(added)
            checks = [Check("step", added.median, TARGET, f"times the step with {FIRST_LOSS[name]}")]
        add_checks(row, checks)
        rows.append(row)
    return rows


def _step(name: str, settings: Settings) -> Step:
    torch.manual_seed(0)
    samples, device = settings.shape[0], settings.device
    model, loss, batches = CANDIDATES[name](CifarResNet(num_classes=CLASSES))
    draw = torch.Generator().manual_seed(1)
    drawn: list[Tensor] = []
    for _ in range(batches):
        drawn += [torch.randn(settings.shape, generator=draw), torch.randint(CLASSES, (samples,), generator=draw)]
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if isinstance(loss, nn.Module):
        loss.to(device)
    return Step(model, loss, optimizer, tuple(each.to(device) for each in drawn), settings.autocast)


Candidate = tuple[nn.Module, Callable[..., Tensor], int]


def _plain(model: nn.Module) -> Candidate:
    return model, CrossEntropyLoss(), 1


def _recall(model: nn.Module) -> Candidate:
    return model, RecallLoss(CLASSES, momentum=0.1, sync=False), 1


def _sdn(model: nn.Module) -> Candidate:
    return decouple(model), DecoupledLoss.from_counts(long_tail(CLASSES), sync=False), 1


def _sdn_ce(model: nn.Module) -> Candidate:
    return decouple(model), DecoupledLoss(CrossEntropyLoss(), ClassBalancedLoss(long_tail(CLASSES))), 1


def _bbn(model: nn.Module) -> Candidate:
    net, loss = bilateral(model, epochs=2), CrossEntropyLoss()
    return net, lambda logits, one, other: net.mix(loss(logits, one), loss(logits, other)), 2


CANDIDATES: dict[str, Callable[[nn.Module], Candidate]] = {
    PLAIN: _plain,
    "recall": _recall,
    "SDN (recall)": _sdn,
    "SDN (cross-entropy)": _sdn_ce,
    "BBN": _bbn,
}
FIRST_LOSS = {"SDN (recall)": "recall", "SDN (cross-entropy)": PLAIN}  # the plain model for comparison
