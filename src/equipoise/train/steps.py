"""The steps of an epoch, on a GPU replayed from CUDA graphs.

A captured step is the step of ``Training`` with everything around it: the choice of the batch from the data on the
device, augmentation, the learning rate, forward and backward pass, clipping, optimiser and averages. The first steps
run eagerly, because libraries allocate memory and choose algorithms in them; they also show whether the steps can be
captured. Steps with and without observed statistics are different graphs, and a graph of a small model holds several
steps, because launching it takes longer than the steps themselves.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.train.company import company
from equipoise.train.fabric import on_one_device
from equipoise.train.loaders import DeviceLoader, Loader, PairedLoaders
from equipoise.train.statistics import Observed, Wanted
from equipoise.train.training import Batch, Training

__all__ = ["TrainingSteps", "parts_of_epoch", "why_eager"]

EAGER = 3
"""Minimum number of eager steps before capturing."""
WORTHWHILE = 16
"""Minimum number of steps of a training that is captured."""
LONGEST, TENSORS = 16, 96
"""Maximum number of steps of a graph, and approximate maximum of the weight tensors that they update."""


class TrainingSteps:
    """Takes the steps of an epoch and runs the validation pass, captured if possible.

    Args:
        training: model, loss and optimiser.
        loader: training batches.
        tick: called with the number of steps taken.
        say: called with a line if steps cannot be captured on a GPU.
    """

    def __init__(
        self,
        training: Training,
        loader: Loader | PairedLoaders,
        *,
        tick: Callable[[int], None] = lambda steps: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.training, self.loader, self.tick, self.say = training, loader, tick, say
        self.looked_at = 0  # eager steps that could have been captured
        self.graphs: _StepGraphs | None = None
        self.validation: _ValidationGraphs | None = None
        self.captured = training.device.type == "cuda"
        if self.captured and (reason := why_eager(training, loader)) is not None:
            self._stay_eager(reason)

    def _stay_eager(self, reason: str) -> None:
        self.captured, self.graphs, self.validation = False, None, None  # frees their memory
        self.say(f"training steps are not captured as a CUDA graph, but run eagerly: {reason}")

    def epoch(self) -> None:
        """Take all steps of the epoch."""
        for _ in self.parts():
            pass

    def parts(self) -> Iterator[None]:
        """Take the steps of the epoch, part by part."""
        training = self.training
        if self.graphs is None or not self.captured:
            for batch in self.loader:
                self._take(batch)
                self.tick(training.steps_taken)
                if training.device.type == "cuda":
                    company().pace()
                yield
                if self.captured and self.looked_at >= EAGER and self._at_start_of_a_part():
                    break
        graphs = self.graphs
        if self.captured and graphs is not None and training.index < training.steps:
            graphs.begin_epoch()
            while self.captured and training.index < training.steps:
                try:
                    graphs.replay()
                except _CaptureError as error:
                    error.raise_if_crowded()
                    self._stay_eager(str(error))
                self.tick(training.steps_taken)
                company().pace()
                yield
            if not self.captured:
                self._take_rest()

    def _at_start_of_a_part(self) -> bool:
        if self.graphs is None:
            self.graphs = _StepGraphs(self.training, self.loader)
        return self.training.index in self.graphs.parts

    def _take(self, batch: Batch) -> None:
        """Take a step eagerly, and look whether it can be captured."""
        if not self.captured or self.looked_at >= EAGER:
            self.training.take(batch)
            return
        drawn = _host_generators()
        with _synchronisations() as seen:
            self.training.take(batch)
        self.looked_at += 1
        if seen and self.looked_at > 1:  # in the first step, libraries may wait while they are loaded
            self._stay_eager("the model or the loss waits for the device, e.g. by .item() or a condition on a tensor")
        elif drawn != _host_generators():
            self._stay_eager("the model or the loss draws random numbers on the host")

    def _take_rest(self) -> None:
        """Take the remaining steps of an epoch eagerly."""
        for index, batch in enumerate(self.loader):
            if index >= self.training.index:
                self.training.take(batch)

    def validate(self, loader: Loader) -> None:
        """Update the metrics of the training with a validation pass."""
        if self.graphs is None or not self.captured or not isinstance(loader, DeviceLoader):
            self.training.validate(loader)
            return
        if self.validation is None:
            self.validation = _ValidationGraphs(self.training, loader, self.graphs.pool)
        try:
            self.training.update_metrics(self.validation.batches())
        except _CaptureError as error:
            error.raise_if_crowded()
            self._stay_eager(str(error))
            self.training.validate(loader)


def why_eager(training: Training, loader: Loader | PairedLoaders) -> str | None:
    """Why the steps of a training on a GPU cannot be captured, as far as known before the first step; None if nothing.

    Args:
        training: model, loss and optimiser.
        loader: training batches.
    """
    if not on_one_device(training.fabric):
        return "several devices train, or a --strategy was chosen"
    if not all(isinstance(one, DeviceLoader) for one in _loaders(loader)):
        return "batches come from the host"
    if not training.optimizer.defaults.get("fused"):
        return f"{type(training.optimizer).__name__} has no implementation that can be captured"
    for module in training.loss.modules():
        if callable(getattr(module, "set_epoch", None)) and not type(module).__module__.startswith("equipoise."):
            return f"set_epoch of {type(module).__name__} may change numbers that are not in tensors"
    if training.steps * training.epochs < WORTHWHILE:
        return "there are few of them"
    return None


def parts_of_epoch(steps: int, every: int, longest: int, repeats: int = 4) -> list[range]:
    """The steps of an epoch in parts that are captured as one graph each.

    The parts are such that few of them differ in which of their steps are observed.

    Args:
        steps: steps of an epoch.
        every: each step with an index that is a multiple of it is observed.
        longest: maximum number of steps of a part.
        repeats: gradients are observed at each of so many observed steps.

    >>> parts_of_epoch(12, every=5, longest=3)
    [range(0, 3), range(3, 5), range(5, 8), range(8, 10), range(10, 12)]
    """
    if every >= longest:
        blocks = [range(start, min(start + every, steps)) for start in range(0, steps, every)]
    else:
        unit = repeats * every if repeats * every <= longest else every
        blocks, longest = [range(steps)], longest - longest % unit
    return [part for block in blocks for part in _cut(block, longest)]


def _cut(block: range, longest: int) -> Iterator[range]:
    return (block[start : start + longest] for start in range(0, len(block), longest))


class _CaptureError(RuntimeError):
    """A step cannot be captured."""

    def raise_if_crowded(self) -> None:
        """Raise the cause if other runs may have caused it: then the run is tried again without them."""
        if isinstance(self.__cause__, torch.OutOfMemoryError) and company().size > 1:
            raise self.__cause__


class _Graph:
    """A captured function; keeps everything that the graph reads or writes.

    Args:
        function: what to capture, on the current stream, which is not the default one.
        pool: memory of graphs that never run at the same time.
        generators: from which the function draws, besides the default one.
    """

    def __init__(self, function: Callable[[], Any], pool: Any, generators: Sequence[torch.Generator] = ()) -> None:  # noqa: ANN401
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        # other threads of the process may wait for their streams meanwhile
        self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            self.result = function()
            self.graph.capture_end()
        except BaseException as error:
            self._abandon(pool, generators)
            if not isinstance(error, RuntimeError):
                raise
            line = " ".join(str(error).split())[:200]
            raise _CaptureError(f"it failed with {type(error).__name__}: {line}") from error

    def _abandon(self, pool: Any, generators: Sequence[torch.Generator]) -> None:  # noqa: ANN401
        """End a failed capture: torch leaves the stream, the pool and the generators as if it went on."""
        with suppress(RuntimeError):
            self.graph.capture_end()
        with suppress(RuntimeError, AttributeError, TypeError):  # has no public function
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        for generator in (*torch.cuda.default_generators, *generators):
            generator.graphsafe_set_state(generator.clone_state())

    def replay(self) -> Any:  # noqa: ANN401
        """Run what was captured; the result is overwritten by the next replay."""
        self.graph.replay()
        return self.result


class _StepGraphs:
    """The steps of a training as graphs, by what is observed of them."""

    def __init__(self, training: Training, loader: Loader | PairedLoaders) -> None:
        self.training = training
        self.loaders = [one for one in _loaders(loader) if isinstance(one, DeviceLoader)]
        device, groups = training.device, training.optimizer.param_groups
        size = len(next(iter(self.loaders[0].order)))
        tensors = max(1, sum(len(group["params"]) for group in groups))
        longest = max(1, min(LONGEST, TENSORS // tensors))
        parts = parts_of_epoch(training.steps, training.statistics.every, longest)
        self.parts = {part.start: part for part in parts}
        self.rows = [torch.zeros((training.steps, size), dtype=torch.int64, device=device) for _ in self.loaders]
        self.rates = torch.zeros((training.steps, len(groups)), device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()  # of eager steps, whose memory graphs do not use
        self.graphs: dict[tuple[Wanted, ...], _Graph] = {}

    def begin_epoch(self) -> None:
        """Send the order and the learning rates of the epoch to the device."""
        training = self.training
        for rows, loader in zip(self.rows, self.loaders, strict=True):
            rows.copy_(loader.rows(list(loader.order)).view_as(rows))
        initial = [group["initial_lr"] for group in training.optimizer.param_groups]
        factors = [training.rate_factor(index) for index in range(training.steps)]
        rates = torch.tensor([[rate * factor for rate in initial] for factor in factors], dtype=torch.float32)
        self.rates.copy_(rates.pin_memory(), non_blocking=True)
        self.position.fill_(training.index)

    def replay(self) -> None:
        """Take the next steps of the epoch."""
        training = self.training
        part = self.parts[training.index]
        pattern = tuple(map(training.statistics.wanted, part))
        if pattern not in self.graphs:
            self.graphs[pattern] = _Graph(lambda: list(map(self._step, pattern)), self.pool, [training.generator])
        for observed in self.graphs[pattern].replay():
            training.statistics.add(observed.copied())
        training.index += len(part)

    def _step(self, wanted: Wanted) -> Observed:
        """Take the step at the position, and advance it."""
        chosen = [rows.index_select(0, self.position).squeeze(0) for rows in self.rows]
        batch = tuple(chain.from_iterable(loader.gather(own) for loader, own in zip(self.loaders, chosen, strict=True)))
        rates = self.rates.index_select(0, self.position).squeeze(0)
        for group, rate in zip(self.training.optimizer.param_groups, rates.unbind(), strict=True):
            group["lr"].copy_(rate)
        self.position.add_(1)
        return self.training.step(batch, wanted)


class _ValidationGraphs:
    """Logits of the batches of a validation pass, a graph for each size of a batch."""

    def __init__(self, training: Training, loader: DeviceLoader, pool: Any) -> None:  # noqa: ANN401
        self.training, self.loader, self.pool = training, loader, pool
        batches = list(loader.order)
        self.rows = torch.split(loader.rows(batches), [len(batch) for batch in batches])
        self.chosen = {len(rows): torch.empty_like(rows) for rows in self.rows}
        self.graphs: dict[int, _Graph] = {}

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and targets."""
        for rows in self.rows:
            chosen = self.chosen[len(rows)]
            chosen.copy_(rows)
            if len(rows) not in self.graphs:
                self._evaluated(chosen)  # libraries allocate memory and choose algorithms
                self.graphs[len(rows)] = _Graph(lambda: self._evaluated(chosen), self.pool)  # noqa: B023  (called now)
            logits, targets = self.graphs[len(rows)].replay()
            yield logits.clone(), targets.clone()

    def _evaluated(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self.loader.gather(rows)
        return self.training.logits(inputs).float(), targets


def _loaders(loader: Loader | PairedLoaders) -> Sequence[Loader]:
    return loader.loaders if isinstance(loader, PairedLoaders) else (loader,)


@contextmanager
def _synchronisations() -> Iterator[list[Any]]:
    """The operations inside that wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    seen: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield seen
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        if "synchronizing CUDA operation" in str(warning.message):
            seen.append(warning)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _host_generators() -> tuple[Any, ...]:
    """The states of the generators of the host, for comparison."""
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().numpy().tobytes()
