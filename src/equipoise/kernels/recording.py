"""What a call of a loss does, written down instead of done, so that ``replay.cpp`` can do it again.

Only calls that do nothing but launch compiled kernels can be written down, which a dispatch mode sees to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Memory", "Note", "UnrepeatableError", "recorded", "recorder"]

ALIGNMENT = 256  # of the pieces of memory

_aten = torch.ops.aten
ALLOCATIONS = {_aten.empty, _aten.empty_strided, _aten.empty_like, _aten.new_empty, _aten.new_empty_strided}
VIEWS = {
    _aten.alias, _aten.as_strided, _aten.detach, _aten.expand, _aten.permute, _aten.select, _aten.slice, _aten.squeeze,
    _aten.t, _aten.transpose, _aten.unsqueeze, _aten.view,
}  # fmt: skip


class UnrepeatableError(Exception):
    """A call that does more than launching compiled kernels on what it is given."""


class Note(NamedTuple):
    """One launch."""

    compiled: Any
    programs: int
    numbers: tuple[int, ...]
    tensors: tuple[Tensor, ...]


class Tape:
    """What a loss does, written down instead of done."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.function: type[torch.autograd.Function] | None = None
        self.context = Context()

    def applied(self, function: type[torch.autograd.Function], inputs: Sequence[Any]) -> Any:  # noqa: ANN401
        """Forward of an autograd function, without autograd."""
        if self.function is not None:
            raise UnrepeatableError("more than one function")
        self.function = function
        with torch.no_grad():
            return function.forward(self.context, *inputs)


class Context:
    """What an autograd function keeps for backward."""

    saved_tensors: Sequence[Tensor | None] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Of no concern here, as only the loss has a gradient."""

    def set_materialize_grads(self, value: bool) -> None:
        """Of no concern either."""


class Recorder(threading.local):
    """The tape that the launches of this thread are written to, where there is one."""

    tape: Tape | None = None


class Memory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets tensors be allocated, which it remembers, and viewed; refuses all other operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fresh: dict[int, Tensor] = {}

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run an operation that no device will notice."""
        if func.overloadpacket in ALLOCATIONS:
            tensor = func(*args, **(kwargs or {}))
            self.fresh[tensor.untyped_storage().data_ptr()] = tensor
            return tensor
        if func.overloadpacket not in VIEWS:
            raise UnrepeatableError(str(func))
        return func(*args, **(kwargs or {}))


recorder = Recorder()


@contextmanager
def _recording(tape: Tape) -> Iterator[Memory]:
    with Memory() as memory:
        recorder.tape = tape
        try:
            yield memory
        finally:
            recorder.tape = None


class Slots:
    """Where the arguments of kernels lie: see the slots of ``replay.cpp``."""

    def __init__(self) -> None:
        self.places: dict[int, tuple[int, int]] = {}
        """Slot, and address of its start, by the start of the memory."""

    def put(self, tensor: Tensor, slot: int, offset: int = 0) -> None:
        """The memory of a tensor, from its first element on ``offset`` bytes into a slot."""
        start = tensor.untyped_storage().data_ptr()
        if start in self.places:
            raise UnrepeatableError("two tensors in one memory")
        self.places[start] = slot, tensor.data_ptr() - offset

    def find(self, tensor: Tensor) -> tuple[int, int]:
        """Slot of a tensor and how many bytes it is into it; none for an empty one."""
        if not tensor.numel():
            return -1, 0
        place = self.places.get(tensor.untyped_storage().data_ptr())
        if place is None:
            raise UnrepeatableError("a tensor from elsewhere")
        slot, start = place
        return slot, tensor.data_ptr() - start


LOGITS, TARGETS, LOSS, GRAD, GRADIENT, KEPT, PASSING, HELD = range(8)


def recorded(
    native: ModuleType, forward: Callable[..., Tensor], loss: nn.Module, logits: Tensor, targets: Tensor
) -> tuple[Any, ...]:
    """The arguments of ``Replays::add`` of ``replay.cpp`` but for the batch itself."""
    from equipoise.kernels.launch import lasting  # Triton is optional

    ahead, back = Tape(), Tape()
    with _recording(ahead) as memory:
        value = forward(loss, logits, targets)
    function, context = ahead.function, ahead.context
    if function is None:
        raise UnrepeatableError("no function")
    at_once = getattr(context, "gradient", None) is not None
    with _recording(back) as more, torch.no_grad():
        grad = torch.empty_like(value)
        gradient = function.backward(context, grad)[0]
    if gradient.shape != logits.shape or gradient.stride() != logits.stride():
        raise UnrepeatableError("a gradient that does not lie as the logits do")

    if not logits.numel():
        raise UnrepeatableError("nothing to launch")
    slots = Slots()
    for tensor, slot in ((logits, LOGITS), (targets, TARGETS), (value, LOSS), (grad, GRAD), (gradient, GRADIENT)):
        slots.put(tensor, slot)
    buffers = [buffer for buffer in loss.buffers() if buffer.device == logits.device and buffer.numel()]
    held = [*buffers, *lasting(logits.device)]
    for index, tensor in enumerate(held):
        slots.put(tensor, HELD + index)
    later = {tensor.untyped_storage().data_ptr() for note in back.notes for tensor in note.tensors}
    later |= {tensor.untyped_storage().data_ptr() for tensor in context.saved_tensors if tensor is not None}
    sizes = {KEPT: 0, PASSING: 0}
    for start, tensor in memory.fresh.items():
        if start not in slots.places:
            slot = KEPT if start in later else PASSING
            slots.put(tensor, slot, sizes[slot])
            sizes[slot] += -(-tensor.untyped_storage().nbytes() // ALIGNMENT) * ALIGNMENT
    if any(start not in slots.places for start in more.fresh):
        raise UnrepeatableError("backward takes memory of its own")

    read_later = {slots.find(tensor)[0] - HELD for note in back.notes for tensor in note.tensors}
    checked = [index for index in range(len(buffers)) if index in read_later]
    kernels = [[_kernel(native, note, slots) for note in tape.notes] for tape in (ahead, back)]
    in_python = _in_python(function, context, logits, targets, slots)
    return value.dtype, at_once, sizes[KEPT], sizes[PASSING], held, checked, *kernels, in_python


def _kernel(native: ModuleType, note: Note, slots: Slots) -> Any:  # noqa: ANN401
    """A launch as ``replay.cpp`` takes it: parameters that a kernel was compiled for are not passed to it."""
    compiled, metadata = note.compiled, note.compiled.metadata
    if metadata.global_scratch_size or metadata.num_ctas != 1 or metadata.launch_cooperative_grid:
        raise UnrepeatableError("a kernel that needs more than a launch")
    arguments = []
    for kind, given in zip(compiled.src.signature.values(), (*note.tensors, *note.numbers), strict=False):
        if kind == "constexpr":
            continue
        if isinstance(given, Tensor):
            arguments.append(native.Argument(*slots.find(given), 8))
        else:
            arguments.append(native.Argument(-1, given, 8 if kind.endswith("64") else 4))
    arguments += [native.Argument(-1, 0, 8)] * 2  # scratch memory that Triton's kernels might ask for
    return native.Kernel(compiled.function, note.programs, 32 * metadata.num_warps, metadata.shared, arguments)


def _in_python(
    function: type[torch.autograd.Function], context: Context, logits: Tensor, targets: Tensor, slots: Slots
) -> Callable[..., Tensor]:
    """Backward by the function itself, from a batch and the memory that was kept."""
    attributes = {
        name: None if isinstance(value, Tensor) else value
        for name, value in vars(context).items()
        if name != "saved_tensors"  # nothing of this batch, whose graph would live as long as the recording
    }
    saved = [_restoring(tensor, logits, targets, slots) for tensor in context.saved_tensors]

    def backward(grad: Tensor, logits: Tensor, targets: Tensor, kept: Tensor) -> Tensor:
        restored = Context()
        vars(restored).update(attributes)
        restored.saved_tensors = [restore(logits, targets, kept) for restore in saved]
        gradient: Tensor = function.backward(restored, grad)[0]
        return gradient

    return backward


def _restoring(
    tensor: Tensor | None, logits: Tensor, targets: Tensor, slots: Slots
) -> Callable[[Tensor, Tensor, Tensor], Tensor | None]:
    """How a tensor that was kept is found again in a later call."""
    if tensor is None:
        return lambda *_: None
    slot, offset = slots.find(tensor)
    if slot in (LOGITS, TARGETS):
        like = logits if slot == LOGITS else targets
        if tensor.shape != like.shape or tensor.stride() != like.stride() or offset:
            raise UnrepeatableError("a view of the batch is kept")
        return lambda logits, targets, _: logits if slot == LOGITS else targets
    if slot >= HELD or slot < 0:
        return lambda *_: tensor
    dtype, shape, strides, start = tensor.dtype, tensor.shape, tensor.stride(), offset // tensor.element_size()

    def from_memory(logits: Tensor, targets: Tensor, kept: Tensor) -> Tensor:
        empty = torch.empty(0, dtype=dtype, device=kept.device)
        return empty.set_(kept.untyped_storage(), start, shape, strides)

    return from_memory
