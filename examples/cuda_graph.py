"""A whole training step as a CUDA graph: model, loss, backward and optimizer without Python.

Batches of long-tailed digits are so small that Python takes longer than the GPU. The loss has a schedule and running
statistics: focal loss whose gamma falls, weighted by running recalls. Both are tensors that are written in place, so
``loss.set_epoch(epoch)`` between two replays changes the next one, and every replay updates the recalls. The same
training without a graph ends with the same weights.

    python examples/cuda_graph.py
    python examples/cuda_graph.py --epochs 60
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import equipoise
from equipoise.data import digits_lt
from equipoise.losses import current_settings
from equipoise.schedules import Linear
from equipoise.weights import RecallWeights

Step = Callable[[Tensor, Tensor], Tensor]
BATCH = 32
WARM_UP = 3  # steps before the capture: they compile kernels and make the state of the optimizer


class Training:
    """What a step changes: a model, the state of the loss, and that of the optimizer."""

    def __init__(self, device: str, epochs: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
        weights = RecallWeights(10, momentum=0.1)
        self.loss = equipoise.FocalLoss(gamma=Linear(2.0, 0.0), weight=weights, epochs=epochs).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, capturable=device == "cuda")  # (1)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """One step of a plain loop."""
        self.optimizer.zero_grad(set_to_none=True)
        value: Tensor = self.loss(self.model(images), labels)
        value.backward()
        self.optimizer.step()
        return value.detach()


def capture(step: Step, images: Tensor, labels: Tensor) -> Step:
    """The step as a CUDA graph, for batches of the same shapes; capturing it does not run it."""
    images, labels = images.clone(), labels.clone()  # (2) the graph reads every batch from here
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step(images, labels)

    def replay(new_images: Tensor, new_labels: Tensor) -> Tensor:
        images.copy_(new_images)
        labels.copy_(new_labels)
        graph.replay()
        return value.clone()  # (3) the next replay writes over it

    return replay


def train(device: str, epochs: int, captured: bool) -> tuple[Training, list[float], float]:
    """Train with or without a graph; losses of all steps, and seconds of a step."""
    training, data = Training(device, epochs), digits_lt().train
    images = (torch.from_numpy(data.inputs).float() / 255).to(device)
    labels = torch.from_numpy(data.labels).to(device)
    draw, step, values, start = torch.Generator().manual_seed(0), training.step, [], 0.0
    for epoch in range(epochs):
        training.loss.set_epoch(epoch)  # (4) as in any loop
        for rows in torch.randperm(len(labels), generator=draw).to(device).split(BATCH)[:-1]:
            if len(values) < WARM_UP and captured:
                value = aside(step, images[rows], labels[rows])
            else:
                if len(values) == WARM_UP:
                    step = capture(step, images[rows], labels[rows]) if captured else step
                    start = time.perf_counter()
                value = step(images[rows], labels[rows])
            values.append(value)
    losses = torch.stack(values).tolist()  # waits for the device
    return training, losses, (time.perf_counter() - start) / (len(values) - WARM_UP)


def aside(step: Step, images: Tensor, labels: Tensor) -> Tensor:
    """A step on another stream than the current one, as PyTorch wants it before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        value = step(images, labels)
    torch.cuda.current_stream().wait_stream(side)
    return value


def main() -> None:
    """Train twice, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    if not torch.cuda.is_available():
        print("a CUDA graph needs a CUDA device, and this machine has none")
        return
    for name, captured in (("eager", False), ("captured", True)):
        training, losses, seconds = train("cuda", epochs, captured)
        settings = current_settings(training.loss)
        print(f"{name:8}  {1e3 * seconds:.3f} ms a step, last loss {losses[-1]:.4f}, gamma {settings['gamma']:.2f}")


if __name__ == "__main__":
    main()
