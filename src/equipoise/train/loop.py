"""The loop of a training: epochs of steps, a validation pass after each, and a record of both."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.train.company import company
from equipoise.train.loaders import Loader, PairedLoaders
from equipoise.train.recorder import Recorder
from equipoise.train.steps import TrainingSteps
from equipoise.train.training import Training

__all__ = ["fit"]


def fit(
    training: Training,
    loader: Loader | PairedLoaders,
    validation: Loader,
    recorder: Recorder,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Train all epochs, or those that are missing if the run is resumed.

    Args:
        training: model, loss and optimiser.
        loader: training batches.
        validation: all validation samples.
        recorder: records each epoch, and has the state to resume from.
        say: called with a line if steps cannot be captured on a GPU.
    """
    steps = TrainingSteps(training, loader, tick=recorder.tick, say=say)
    with recorder:
        for epoch in range(recorder.resume(training), training.epochs):
            training.begin(epoch)
            loader.set_epoch(epoch)
            recorder.begin_epoch()
            steps.epoch()
            company().wait(training.device)
            recorder.end_steps(training)
            steps.validate(validation)
            company().wait(training.device)
            recorder.end_epoch(training)
    training.fabric.barrier()  # other processes read the weights that the leader has written
