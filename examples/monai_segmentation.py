"""Equipoise losses in MONAI or with segmentation-models-pytorch.

A MONAI ``UNet`` is trained by MONAI's ``SupervisedTrainer`` on label maps of handwritten digits, some of them rare,
with MONAI's ``DiceCELoss`` and with ``equipoise.RecallLoss``. MONAI's own ``DiceMetric`` evaluates both.

Note two differences. Label maps in MONAI have a channel, (N, 1, height, width), and ours do not:
``WithoutChannel`` removes it. A loss with a schedule or with deferred weights needs ``set_epoch``, which is one
event handler. The example first prints that the definitions agree:

* MONAI's ``DiceLoss(softmax=True, to_onehot_y=True)`` is ``DiceLoss(classes="all", per_image=True, smooth=5e-6)`` here,
* MONAI's ``FocalLoss(use_softmax=True, to_onehot_y=True)`` is ``FocalLoss`` here divided by the number of classes.

A network of segmentation-models-pytorch maps images (N, channels, height, width) to logits (N, C, height, width)
and needs no adapter; ``--network smp`` trains one in the same loop, if that package is installed.

    pip install '.[examples]'
    python examples/monai_segmentation.py
    python examples/monai_segmentation.py --network smp --epochs 10
"""

from __future__ import annotations

import argparse

import monai
import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from monai.metrics import DiceMetric
from torch import Tensor, nn

import equipoise
from equipoise.data import Arrays, digit_maps

CLASSES = 11  # background and ten digits


class WithoutChannel(nn.Module):
    """A loss for label maps (N, 1, d1, ..., dk) of MONAI."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of logits (N, C, d1, ..., dk)."""
        return self.loss(logits, labels.squeeze(1))


def tensors(split: Arrays, count: int) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 32, 32) in [0, 1] and label maps of the same shape."""
    images, maps = torch.from_numpy(split.inputs[:count]), torch.from_numpy(split.labels[:count])
    return images.float() / 255, maps.unsqueeze(1)


def network(kind: str) -> nn.Module:
    """An untrained U-Net of either package with one input channel."""
    torch.manual_seed(0)
    if kind == "smp":
        import segmentation_models_pytorch as smp

        return smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=CLASSES)
    return monai.networks.nets.UNet(
        spatial_dims=2, in_channels=1, out_channels=CLASSES, channels=(16, 32, 64), strides=(2, 2), norm="batch"
    )


def train(model: nn.Module, loss: nn.Module, images: Tensor, maps: Tensor, epochs: int) -> nn.Module:
    """Train with the trainer of MONAI."""
    pairs = [{"image": image, "label": labels} for image, labels in zip(images, maps, strict=True)]
    draw = torch.Generator().manual_seed(0)
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs,
        train_data_loader=torch.utils.data.DataLoader(pairs, batch_size=32, shuffle=True, generator=draw),
        network=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loss_function=loss,
    )
    if isinstance(loss, WithoutChannel):

        @trainer.on(Events.EPOCH_STARTED)
        def follow(engine: SupervisedTrainer) -> None:
            loss.loss.set_epoch(engine.state.epoch - 1)  # ignite counts from 1

    trainer.run()
    return model.eval()


def compare_definitions(logits: Tensor, labels: Tensor) -> None:
    """Print the values of MONAI's losses and ours on the same batch."""
    ours = WithoutChannel(equipoise.DiceLoss(classes="all", per_image=True, smooth=5e-6))
    theirs = monai.losses.DiceLoss(softmax=True, to_onehot_y=True)
    print(f"dice: MONAI {theirs(logits, labels):.6f}, equipoise {ours(logits, labels):.6f}")
    ours = WithoutChannel(equipoise.FocalLoss(gamma=2.0))
    theirs = monai.losses.FocalLoss(use_softmax=True, to_onehot_y=True, gamma=2.0)
    print(f"focal: MONAI {theirs(logits, labels):.6f}, equipoise / C {ours(logits, labels) / CLASSES:.6f}")


def main() -> None:
    """Compare the definitions, then train with both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=("monai", "smp"), default="monai")
    parser.add_argument("--images", type=int, default=600, help="training images, 1500 at most")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    data = digit_maps(seed=0)
    images, maps = tensors(data.train, options.images)
    test_images, test_maps = tensors(data.test, 400)
    compare_definitions(torch.randn(4, CLASSES, 32, 32, generator=torch.Generator().manual_seed(0)), maps[:4])

    losses = {
        "monai.losses.DiceCELoss": monai.losses.DiceCELoss(softmax=True, to_onehot_y=True),
        "equipoise.RecallLoss": WithoutChannel(equipoise.RecallLoss(num_classes=CLASSES)),
    }
    print("Dice of the classes, background first")
    for name, loss in losses.items():
        model = train(network(options.network), loss, images, maps, options.epochs)
        with torch.no_grad():
            predicted = model(test_images).argmax(1, keepdim=True)
        metric = DiceMetric(reduction="mean_batch", num_classes=CLASSES)
        metric(predicted, test_maps)
        dice = metric.aggregate()
        print(f"{name:24} mean {dice.mean():.1%} ", " ".join(f"{100 * value:3.0f}" for value in dice))


if __name__ == "__main__":
    main()
