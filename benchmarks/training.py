"""A whole training step of a small segmentation network with each softmax loss, in units of the step with torch's.

There is one network; every loss takes turns on it with torch's, a few steps each, so that both see the same machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import TORCH, long_tail
from benchmarks.catalogue import all_cases
from benchmarks.measure import Quartiles, paired_ratio, take_turns
from benchmarks.targets import Check, add_checks

__all__ = ["Settings", "UNet", "run"]

TARGET = 1.03
IGNORED = -100  # the default ignore_index of torch and of our losses
BLOCK_SECONDS = 0.04  # a step is timed in blocks of at least this long: short, as others use the host as well


@dataclass(frozen=True)
class Settings:
    """What the command line can choose; ``shape`` is that of the logits, (N, C, H, W) with H and W multiples of 16."""

    device: torch.device
    shape: tuple[int, int, int, int] = (8, 11, 160, 208)
    width: int = 32
    rounds: int = 25
    autocast: bool = False
    filter: str = ""
    block: float = BLOCK_SECONDS


class UNet(nn.Module):
    """A U-Net of four levels behind a stem of stride 2, 1.9 million parameters at a width of 32.

    Shape: images (N, 3, H, W) to logits (N, classes, H, W).
    """

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(4)]
        self.stem = _block(3, width, stride=2)
        self.down = nn.ModuleList(_block(wide // 2, wide, stride=2) for wide in widths[1:])
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, wide // 2, 2, stride=2) for wide in widths[:0:-1])
        self.join = nn.ModuleList(_block(wide, wide // 2) for wide in widths[:0:-1])
        self.head = nn.ConvTranspose2d(width, classes, 2, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        """Logits in the size of the images."""
        features = [self.stem(images)]
        for down in self.down:
            features.append(down(features[-1]))
        x = features.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), features.pop()], dim=1))
        return self.head(x)


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


@dataclass(frozen=True)
class TrainingStep:
    """One step of SGD on a batch that stays the same."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    images: Tensor
    labels: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    autocast: bool

    def __call__(self) -> None:
        """Forward, backward and update."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=self.autocast):
            loss = self.loss(self.model(self.images), self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def run(settings: Settings, progress: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """A row for torch's cross-entropy, then one for each pointwise softmax loss that the filter leaves."""
    losses = _losses(settings)
    if len(losses) == 1:
        return []
    progress(f"training {settings.shape}: {len(losses)} losses, {settings.rounds} rounds")
    torch.manual_seed(0)
    model = UNet(settings.shape[1], settings.width).to(settings.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = _batch(settings)
    steps = {
        name: TrainingStep(model, optimizer, images, labels, loss, settings.autocast) for name, loss in losses.items()
    }
    baseline = TORCH["softmax"]
    times: dict[str, list[float]] = {}
    ratios: dict[str, Quartiles] = {}
    for name in [name for name in steps if name != baseline]:
        pair = {key: steps[key] for key in (baseline, name)}
        seconds_of = take_turns(pair, settings.device, settings.rounds, settings.block)
        times.setdefault(baseline, []).extend(seconds_of[baseline])
        times[name] = seconds_of[name]
        ratios[name] = paired_ratio(seconds_of[name], seconds_of[baseline])
    ratios[baseline] = paired_ratio(times[baseline], times[baseline])
    rows = []
    for name, seconds in times.items():
        ratio = ratios[name]
        row: dict[str, Any] = {
            "name": name,
            "kind": "torch" if name == TORCH["softmax"] else "ours",
            "status": "ok",
            "milliseconds": asdict(Quartiles.of([1e3 * each for each in seconds])),
            "ratio": asdict(ratio),
        }
        checks = [Check("step", ratio.median, TARGET, f"times the step with {TORCH['softmax']}")]
        add_checks(row, checks if row["kind"] == "ours" else [])
        rows.append(row)
    return rows


def _losses(settings: Settings) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Torch's cross-entropy and ours; those with distributions as targets are left out, labels are integers here."""
    counts = long_tail(settings.shape[1])
    ours = {
        case.name: case.module(counts).to(settings.device)
        for case in all_cases("softmax")
        if case.module is not None
        and case.pointwise
        and case.reads == "targets"
        and settings.filter.lower() in case.name.lower()
    }
    return {TORCH["softmax"]: F.cross_entropy, **ours}


def _batch(settings: Settings) -> tuple[Tensor, Tensor]:
    """Random images and a random label map, one pixel in twenty ignored."""
    samples, classes, *size = settings.shape
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(samples, 3, *size, generator=draw)
    labels = torch.randint(classes, (samples, *size), generator=draw)
    labels[torch.rand(labels.shape, generator=draw) < 0.05] = IGNORED
    return images.to(settings.device), labels.to(settings.device)
