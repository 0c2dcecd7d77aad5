"""The FCOS detector of torchvision with the asymmetric loss instead of its focal loss (Ridnik et al. 2021, appendix I).

A detector predicts objects at every location of an image, and nearly all locations are background. Of its three losses
(class, box, centre) only the first is affected. ``HeadWithLoss`` replaces that one and nothing else, with the
denominator of torchvision: the number of foreground locations. With ``BinaryFocalLoss(gamma=2.0, alpha=0.25)`` it is
the loss of torchvision; the appendix uses gamma 1 for positives and 2 for negatives and reports 44.4 against 44.0
mAP on COCO.

Here a tiny network learns synthetic squares and discs on noise in seconds; ``--device cuda`` uses a GPU. For
real training, build ``torchvision.models.detection.fcos_resnet50_fpn(...)`` and replace the head:

    head = HeadWithLoss(model.backbone.out_channels, 1, num_classes, loss=asymmetric_loss())
    head.load_state_dict(model.head.state_dict())
    model.head = head

    pip install torchvision      # tested with 0.26; without it, the example prints the reason and stops
    python examples/torchvision_fcos.py
"""

from __future__ import annotations

import argparse
import itertools
import time

import torch
from torch import Tensor, nn

import equipoise

try:
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.fcos import FCOS, FCOSHead
    from torchvision.ops import box_iou
except (ImportError, OSError, RuntimeError) as error:  # a torchvision built for another torch raises any of them
    print(f"skipped: torchvision cannot be imported here ({type(error).__name__}: {error})")
    raise SystemExit(0) from None

SIDE, STRIDE = 64, 8
SQUARE, DISC = 1, 2  # 0 is background, as in torchvision


class HeadWithLoss(FCOSHead):
    """The head of FCOS with another loss of the classes.

    Args:
        arguments: of ``FCOSHead``: in_channels, num_anchors, num_classes, num_convs.
        loss: any sigmoid loss of equipoise.
    """

    def __init__(self, *arguments: int, loss: nn.Module) -> None:
        super().__init__(*arguments)
        self.loss = loss

    def compute_loss(
        self,
        targets: list[dict[str, Tensor]],
        head_outputs: dict[str, Tensor],
        anchors: list[Tensor],
        matched_idxs: list[Tensor],
    ) -> dict[str, Tensor]:
        """The three losses; torchvision's own focal loss is computed, too, and dropped."""
        losses = super().compute_loss(targets, head_outputs, anchors, matched_idxs)
        logits = head_outputs["cls_logits"]  # (N, locations, C)
        present = torch.zeros_like(logits, dtype=torch.bool)
        for image, target, matched in zip(present, targets, matched_idxs, strict=True):
            foreground = (matched >= 0).nonzero().squeeze(1)
            image[foreground, target["labels"][matched[foreground]]] = True
        count = present.sum().clamp(min=1)  # one class per foreground location
        losses["classification"] = self.loss(logits.flatten(0, 1), present.flatten(0, 1), normalizer=count)
        return losses


def asymmetric_loss() -> nn.Module:
    """The loss of appendix I; it names no margin."""
    return equipoise.AsymmetricLoss(gamma_pos=1.0, gamma_neg=2.0, margin=0.0)


def focal_loss() -> nn.Module:
    """The loss that torchvision has by itself."""
    return equipoise.BinaryFocalLoss(gamma=2.0, alpha=0.25)


def detector(loss: nn.Module) -> FCOS:
    """A detector of three convolutions, with one place in 8 x 8 pixels."""
    widths = (3, 32, 64, 64)
    layers = [
        layer
        for before, after in itertools.pairwise(widths)
        for layer in (nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU())
    ]
    backbone = nn.Sequential(*layers)
    backbone.out_channels = widths[-1]
    return FCOS(
        backbone,
        num_classes=3,
        min_size=SIDE,
        max_size=SIDE,
        anchor_generator=AnchorGenerator(((STRIDE,),), ((1.0,),)),
        head=HeadWithLoss(widths[-1], 1, 3, 1, loss=loss),
    )


def make_images(count: int, seed: int, device: str) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Noise with a square in the left half and a disc in the right half, each with a probability of a half."""
    draw = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    images, targets = [], []
    for _ in range(count):
        image, boxes, labels = 0.5 * torch.rand(3, SIDE, SIDE, generator=draw), [], []
        for side, label in enumerate((SQUARE, DISC)):
            if torch.rand((), generator=draw) < 0.5:
                continue
            half = int(torch.randint(6, 13, (), generator=draw))
            x = 32 * side + int(torch.randint(half, 33 - half, (), generator=draw))
            y = int(torch.randint(half, SIDE + 1 - half, (), generator=draw))
            away = torch.stack([(rows - y + 0.5).abs(), (columns - x + 0.5).abs()])
            inside = (away.amax(0) if label == SQUARE else away.square().sum(0).sqrt()) < half
            image[:, inside] += 0.5
            boxes.append([x - half, y - half, x + half, y + half])
            labels.append(label)
        images.append(image.to(device))
        targets.append(
            {
                "boxes": torch.tensor(boxes, dtype=torch.float32, device=device).reshape(-1, 4),
                "labels": torch.tensor(labels, dtype=torch.int64, device=device),
            }
        )
    return images, targets


def train(loss: nn.Module, images: list[Tensor], targets: list[dict[str, Tensor]], epochs: int) -> FCOS:
    """A detector trained with ``loss`` for the classes."""
    torch.manual_seed(0)
    model = detector(loss).to(images[0].device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(16):
            optimizer.zero_grad()
            losses = model([images[i] for i in rows], [targets[i] for i in rows])
            sum(losses.values()).backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def precision_and_recall(model: FCOS, images: list[Tensor], targets: list[dict[str, Tensor]]) -> tuple[float, float]:
    """Of detections with a score above 0.3: right are those with the class and half of the area of an object."""
    detections = objects = hits = 0
    for output, target in zip(model(images), targets, strict=True):
        kept = output["scores"] > 0.3
        boxes, labels = output["boxes"][kept], output["labels"][kept]
        fits = (box_iou(boxes, target["boxes"]) > 0.5) & (labels.unsqueeze(1) == target["labels"])
        detections, objects, hits = (
            detections + len(boxes),
            objects + len(target["labels"]),
            hits + int(fits.any(0).sum()),
        )
    return hits / max(detections, 1), hits / max(objects, 1)


def main() -> None:
    """Train with both losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=128, help="training images")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    images, targets = make_images(options.images, 0, options.device)
    test = make_images(100, 1, options.device)
    for name, loss in {"focal": focal_loss(), "asymmetric": asymmetric_loss()}.items():
        start = time.perf_counter()
        model = train(loss, images, targets, options.epochs)
        precision, recall = precision_and_recall(model, *test)
        print(f"{name}: precision {precision:.1%}, recall {recall:.1%} ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
