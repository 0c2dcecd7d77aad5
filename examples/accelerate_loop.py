"""Accelerate with gradient accumulation and class weights, exact on any number of processes.

The mean of a weighted loss is its sum divided by the sum of the weights of the labels. That sum differs between
batches, so the average of the means of four batches is not the mean over all their samples. This example first sums the
weights of the labels of a step, over its batches and over all processes, and passes the sum to the loss as
``normalizer``: the gradient equals that of a single large batch.

    python examples/accelerate_loop.py
    accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py
    torchrun --nproc-per-node 2 examples/accelerate_loop.py --batch-size 8 --accumulate 4
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise
from equipoise.data import digits_lt
from equipoise.schedules import Linear
from equipoise.weights import effective_number


def steps(batches: Iterable[list[Tensor]], accumulate: int) -> Iterator[list[list[Tensor]]]:
    """Yield the batches of each optimiser step; the last step may have fewer."""
    left = iter(batches)
    while together := list(islice(left, accumulate)):
        yield together


def main() -> None:
    """Train and print the accuracy of rare classes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8, help="samples of a process at a time")
    parser.add_argument("--accumulate", type=int, default=4, help="batches of a step")
    options = parser.parse_args()

    set_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # required to connect processes on CPUs
    data = digits_lt()
    train, test = (
        TensorDataset(torch.from_numpy(split.inputs).float() / 255, torch.from_numpy(split.labels))
        for split in (data.train, data.test)
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = DataLoader(train, options.batch_size, shuffle=True, generator=torch.Generator().manual_seed(0))
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    weight = effective_number(data.train_counts).float().to(accelerator.device)
    loss = equipoise.FocalLoss(Linear(2.0, 0.0), weight=weight, epochs=options.epochs)  # (1)
    accelerator.register_for_checkpointing(loss)  # accelerator.save_state saves its state

    for epoch in range(options.epochs):
        loss.set_epoch(epoch)
        for together in steps(batches, options.accumulate):
            total = accelerator.reduce(sum(weight[labels].sum() for _, labels in together))  # (2) over all processes
            for number, (images, labels) in enumerate(together, start=1):
                with nullcontext() if number == len(together) else accelerator.no_sync(model):
                    # (3) divide by their number, because gradients are averaged over the processes
                    value = loss(model(images), labels, normalizer=total / accelerator.num_processes)
                    accelerator.backward(value)
            optimizer.step()
            optimizer.zero_grad()

    images, labels = test.tensors
    with torch.no_grad():
        logits = accelerator.unwrap_model(model)(images.to(accelerator.device)).cpu()
    right = (logits.argmax(1) == labels).double()
    rare = torch.from_numpy(data.train_counts < 20)[labels]
    accelerator.print(f"accuracy {right.mean():.1%}, of digits with fewer than 20 images {right[rare].mean():.1%}")


if __name__ == "__main__":
    main()
