"""``DistributedDataParallel`` under ``torchrun``: several processes train like one process on the full batch.

With ``sync=True`` a loss computes its denominator and its running statistics, here the moving average of the recall of
each class, over all processes. DDP averages gradients, so their average is the gradient of the full batch.
``sampler_for("square-root", ...)`` draws rare classes more often and distributes every epoch to the processes.

    torchrun --nproc-per-node 2 examples/distributed.py
    torchrun --nproc-per-node 1 examples/distributed.py --batch-size 32      # the same training
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import equipoise
from equipoise.data import digits_lt, sampler_for
from equipoise.losses import current_settings


def main() -> None:
    """Train on all processes, test on the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of a process")
    options = parser.parse_args()

    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if cuda else torch.device("cpu")
    data = digits_lt()
    train, test = (
        TensorDataset(torch.from_numpy(split.inputs).float() / 255, torch.from_numpy(split.labels))
        for split in (data.train, data.test)
    )
    # (3) uses torch.distributed to select the samples of this process
    sampler = sampler_for("square-root", data.train.labels)
    batches = DataLoader(train, options.batch_size, sampler=sampler, drop_last=True)

    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = equipoise.RecallLoss(num_classes=10, momentum=0.1, sync=True)  # (1) instead of nn.CrossEntropyLoss()

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        loss.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            loss(model(images.to(device)), labels.to(device)).backward()  # (2)
            optimizer.step()

    if dist.get_rank() == 0:
        images, labels = test.tensors
        with torch.no_grad():
            logits = network(images.to(device)).cpu()
        right = (logits.argmax(1) == labels).double()
        rare = torch.from_numpy(data.train_counts < 20)[labels]
        print("fraction of each digit that is missed in training:", current_settings(loss)["recall_weights"])
        print(f"accuracy {right.mean():.1%}, of digits with fewer than 20 images {right[rare].mean():.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
