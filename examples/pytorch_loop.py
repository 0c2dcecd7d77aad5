"""A plain PyTorch loop with mixed precision and ``torch.compile``: a drop-in replacement for ``nn.CrossEntropyLoss``.

Long-tailed digits (100 images of the digit 0, 2 of the digit 9) with cyclical focal loss, whose focus moves from easy
samples to hard ones and back. ``loss.set_epoch(epoch)`` updates it; the compiled step uses the new value without
recompiling. bfloat16 on the CPU, float16 with a ``GradScaler`` on a GPU. ``model.eval()`` does not affect a separate
loss: call ``loss.eval()`` too.

    python examples/pytorch_loop.py
    python examples/pytorch_loop.py --epochs 60
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise
from equipoise.data import digits_lt
from equipoise.losses import current_settings
from equipoise.metrics import ShotAccuracy


def main() -> None:
    """Train and print the accuracy of each group of classes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = digits_lt()
    train, test = (
        TensorDataset(torch.from_numpy(split.inputs).float() / 255, torch.from_numpy(split.labels))
        for split in (data.train, data.test)
    )
    batches = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = equipoise.CyclicalFocalLoss(epochs)  # (1) instead of nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    half = torch.float16 if device == "cuda" else torch.bfloat16

    @torch.compile(fullgraph=True)
    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        return loss(model(images), labels)  # (2) half-precision logits, float32 loss

    for epoch in range(epochs):
        loss.set_epoch(epoch)  # (3) before each epoch
        for images, labels in batches:
            with torch.autocast(device, half):
                value = loss_of(images.to(device), labels.to(device))
            optimizer.zero_grad()
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch + 1:2}  loss {value.item():.3f}  xi {current_settings(loss)['xi']:.3f}")

    images, labels = test.tensors
    model.eval(), loss.eval()  # (4) freezes running statistics; call loss.train() before the next epoch
    with torch.no_grad():
        logits = model(images.to(device)).cpu()
    shots = ShotAccuracy(data.train_counts)(logits, labels)
    print(f"test loss {loss(logits, labels):.3f}")
    print(f"accuracy {shots['all']:.1%}, of digits with fewer than 20 images {shots['few']:.1%}")


if __name__ == "__main__":
    main()
