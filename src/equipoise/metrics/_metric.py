"""Base class of metrics: merging over batches and processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self, TypedDict, Unpack

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric

from equipoise._checks import check_tensors, checks_values, warn_of_probabilities
from equipoise._keywords import RealSignature, check_keywords

__all__: list[str] = []


class MetricOptions(TypedDict, total=False):
    """Keyword arguments of ``torchmetrics.Metric``."""

    compute_on_cpu: bool
    dist_sync_on_step: bool
    process_group: Any
    dist_sync_fn: Callable[..., Any] | None
    distributed_available_fn: Callable[..., bool] | None
    sync_on_compute: bool
    compute_with_cache: bool


class StreamingMetric(Metric):
    """A metric whose states are sums, added over batches and processes, or lists of scores, joined.

    This extends ``torchmetrics.Metric`` in two ways. A process without batches takes part: its lists are empty tensors
    of the type and shape of the other processes, and sums that get the number of classes from the first batch, marked
    by ``by_class``, use the size of the others. Lists of scores are exchanged as float64 for any input type.
    """

    __signature__ = RealSignature()
    option_defaults: ClassVar[MetricOptions] = {
        "compute_on_cpu": False,
        "dist_sync_on_step": False,
        "process_group": None,
        "dist_sync_fn": None,
        "distributed_available_fn": None,
        "sync_on_compute": True,
        "compute_with_cache": True,
    }
    is_differentiable = False
    full_state_update = False
    by_order = False
    """Whether only the order of the scores matters, so that probabilities can be passed as logits."""

    def __new__(cls, *args: object, **options: object) -> Self:
        """Reject unknown arguments in the name of the metric."""
        check_keywords(cls, options)
        return super().__new__(cls)

    def __init__(self, *, from_logits: bool, validate: bool, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)
        self.from_logits, self.validate = from_logits, validate
        self._looked = not from_logits or self.by_order
        self._kept: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._by_class: list[str] = []

    def add_sum(self, name: str, *shape: int, dtype: torch.dtype = torch.int64, by_class: bool = False) -> None:
        """Add a summed state; with ``by_class`` the first dimension of ``shape`` is 1 until the first batch."""
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")
        if by_class:
            self._by_class.append(name)

    def add_kept(self, name: str, *shape: int, dtype: torch.dtype = torch.float64) -> None:
        """Add a state that stores a tensor (n, *shape) of each batch."""
        self.add_state(name, [], dist_reduce_fx="cat")
        self._kept[name] = (shape, dtype)

    def joined(self, name: str) -> Tensor:
        """Concatenated content of a stored state, (n, *shape)."""
        state = getattr(self, name)
        if isinstance(state, Tensor):  # already concatenated by a synchronisation
            return state
        shape, dtype = self._kept[name]
        return torch.cat(state) if state else torch.zeros(0, *shape, dtype=dtype, device=self.device)

    def parts(self, name: str) -> list[Tensor]:
        """Tensors of a stored state, at least one."""
        state = getattr(self, name)
        return state if isinstance(state, list) and state else [self.joined(name)]

    def add_to(self, **increments: Tensor) -> None:
        """Add to the sums; a sum by class is resized to the number of classes by the first batch."""
        for name, increment in increments.items():
            setattr(self, name, getattr(self, name) + increment)

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch; an invalid one leaves the metric unchanged."""
        before = {
            name: state if isinstance(state, Tensor) else list(state) for name, state in self.metric_state.items()
        }
        check_tensors(scores, targets, ("scores", "targets"))
        try:
            self.add_batch(scores, targets)
        except BaseException:
            for name, state in before.items():
                setattr(self, name, state)
            raise
        if not self._looked and checks_values(scores, self.validate):
            self._looked = True
            one_label = targets.shape != scores.shape
            warn_of_probabilities("scores", scores, one_label=one_label, advice="say from_logits=False")

    @abstractmethod
    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch; states are replaced, not modified."""

    @contextmanager
    def synced(self) -> Iterator[None]:
        """Use the states of all processes inside the context, as ``compute`` does."""
        with self.sync_context(should_sync=self.sync_on_compute and not self._is_synced, should_unsync=True):
            yield

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,  # noqa: ANN401
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Gather the states of all processes; see ``torchmetrics.Metric.sync``."""
        available = distributed_available or self.distributed_available_fn or _distributed
        if should_sync and not self._is_synced and available():
            self._make_alike(process_group or self.process_group)
        super().sync(dist_sync_fn or self.dist_sync_fn, process_group, should_sync, distributed_available)

    def _make_alike(self, group: Any) -> None:  # noqa: ANN401
        for name, (_, dtype) in self._kept.items():
            setattr(self, name, [self.joined(name).to(dtype)])
        if not self._by_class:
            return
        rows = torch.tensor(len(getattr(self, self._by_class[0])), device=self.device)
        dist.all_reduce(rows, dist.ReduceOp.MAX, group=group)
        for name in self._by_class:
            state = getattr(self, name)
            if len(state) == 1:
                setattr(self, name, torch.cat([state, state.new_zeros(int(rows) - 1, *state.shape[1:])]))


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
