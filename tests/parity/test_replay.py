"""Calls that are made again without Python: on a driver that is a few lines of C, and on a GPU."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import shutil
import subprocess
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import equipoise as eq
from equipoise._checks import is_batched
from equipoise.kernels import choice, native, recording, replay, use
from equipoise.weights import RecallWeights
from tests.losses.helpers import SIGMOID, SOFTMAX, batch_of, each, make
from tests.parity.budget import CUDA

pytest.importorskip("triton")

from equipoise.kernels import fused, launch

needs_compiler = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("ninja")), reason="needs a C++ compiler and ninja"
)
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


@pytest.fixture(scope="session")
def compiled_part(tmp_path_factory):
    """The compiled part, one for all processes of a test run."""
    before = os.environ.get("XDG_CACHE_HOME")
    base = tmp_path_factory.getbasetemp()
    os.environ["XDG_CACHE_HOME"] = str(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)
    native._loaded.clear()
    eq.kernels.build()
    yield native.native()
    native._loaded.clear()
    os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)


# ---------------------------------------------------------------------------------------------------------------------
# Without a GPU: kernels in C that a driver in C calls
# ---------------------------------------------------------------------------------------------------------------------

DRIVER = r"""
#include <stddef.h>
typedef void (*kernel)(void**);

int cuLaunchKernel(void* f, unsigned x, unsigned y, unsigned z, unsigned u, unsigned v, unsigned w, unsigned shared,
                   void* stream, void** parameters, void** more) {
  ((kernel)f)(parameters);
  return 0;
}
int cuFuncGetParamInfo(void* f, size_t i, size_t* offset, size_t* size) {
  *size = i == 5 ? 4 : 8;  /* five tensors, a number, two scratches */
  return i >= 8;
}
int cuCtxGetCurrent(void** context) { *context = (void*)1; return 0; }
int cuCtxSetCurrent(void* context) { return 0; }

/* sum of h t z^2, and of each element h t */
void forward(void** p) {
  float *z = *(float**)p[0], *t = *(float**)p[1], *h = *(float**)p[2], *state = *(float**)p[3], *loss = *(float**)p[4];
  *loss = 0;
  for (int i = 0; i < *(int*)p[5]; ++i) {
    state[i] = *h * t[i];
    *loss += state[i] * z[i] * z[i];
  }
}
void forward_at_once(void** p) {
  forward(p);
  float *z = *(float**)p[0], *gradient = *(float**)p[3];
  for (int i = 0; i < *(int*)p[5]; ++i) gradient[i] *= 2 * z[i];
}
void scale(void** p) {
  float *gradient = *(float**)p[0], *grad = *(float**)p[1];
  for (int i = 0; i < *(int*)p[5]; ++i) gradient[i] *= *grad;
}
void backward(void** p) {
  float *z = *(float**)p[0], *state = *(float**)p[1], *grad = *(float**)p[2], *h = *(float**)p[3];
  float* gradient = *(float**)p[4];
  (void)h;
  for (int i = 0; i < *(int*)p[5]; ++i) gradient[i] = *grad * 2 * state[i] * z[i];
}
"""


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """Path of the driver, and addresses of the kernels."""
    folder = tmp_path_factory.mktemp("driver")
    source, library = folder / "driver.c", folder / "driver.so"
    source.write_text(DRIVER)
    subprocess.run(["c++", "-x", "c", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


class Squares(torch.autograd.Function):
    """sum of h t z^2."""

    @staticmethod
    def forward(ctx, z, t, h):
        state, loss = torch.empty_like(z), torch.empty(())
        Squares.forward_kernel(z, t, h, state, loss)
        ctx.save_for_backward(z, t, h, state)
        return loss

    @staticmethod
    def backward(ctx, grad):
        z, t, h, state = ctx.saved_tensors
        if torch.is_grad_enabled() or is_batched(grad):
            return 2 * h * t * z * grad, None, None
        gradient = torch.empty_like(z)
        Squares.backward_kernel(z, state, grad, h, gradient)
        return gradient, None, None


class SquaresAtOnce(torch.autograd.Function):
    """The same, with the gradient written by forward and given away once."""

    @staticmethod
    def forward(ctx, z, t, h):
        ctx.gradient, loss = torch.empty_like(z), torch.empty(())
        Squares.forward_at_once_kernel(z, t, h, ctx.gradient, loss)
        ctx.save_for_backward(z, t, h)
        return loss

    @staticmethod
    def backward(ctx, grad):
        gradient, ctx.gradient = ctx.gradient, None
        z, t, h = ctx.saved_tensors
        if gradient is None or torch.is_grad_enabled() or is_batched(grad):
            return 2 * h * t * z * grad, None, None
        Squares.scale_kernel(gradient, grad, h, h, h)
        return gradient, None, None


class SquaresLoss(nn.Module):
    """A loss as the pipeline has them, with kernels that run on the CPU."""

    def __init__(self, function=Squares, extra=None):
        super().__init__()
        self.function, self.extra = function, extra
        self.register_buffer("h", torch.tensor([0.5]))

    def forward(self, z, t):
        loss = fused._applied(self.function, z, t, self.h)
        return loss if self.extra is None else self.extra(loss)


@pytest.fixture
def compiled(driver, monkeypatch):
    """Makes kernels of C functions that look like those that Triton has compiled for a batch of some size."""
    library = ctypes.CDLL(str(driver))
    metadata = SimpleNamespace(
        global_scratch_size=0, num_ctas=1, launch_cooperative_grid=False, num_warps=1, shared=0
    )  # fmt: skip
    monkeypatch.setattr(launch, "lasting", lambda device: [])

    def make_kernels(size, kinds=("*fp32",) * 5 + ("i32", "constexpr")):
        for name in ("forward", "backward", "forward_at_once", "scale"):
            signature = {f"p{i}": kind for i, kind in enumerate(kinds)}
            function = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            kernel = SimpleNamespace(
                metadata=metadata, src=SimpleNamespace(signature=signature), function=function
            )  # fmt: skip
            planned = launch.Launch(1, (size,), (), 1)
            planned.compiled = SimpleNamespace(get=lambda key, kernel=kernel: kernel)
            launcher = launch.Launcher(None)
            call = lambda *tensors, launcher=launcher, planned=planned: launcher(planned, *tensors)  # noqa: E731
            monkeypatch.setattr(Squares, f"{name}_kernel", staticmethod(call), raising=False)

    return make_kernels


@pytest.fixture
def replays(compiled_part, driver):
    """Recordings on that driver; a stream that can be changed."""
    stream = [0]
    made = compiled_part.Replays(str(driver), lambda device: stream[0], lambda: False)
    return SimpleNamespace(native=made, stream=stream, module=compiled_part)


def batch(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z, t = torch.randn(*shape, generator=generator), torch.rand(*shape, generator=generator)
    return z.requires_grad_(), t


def record(replays, loss, z, t):
    arguments = recording.recorded(replays.module, SquaresLoss.forward, loss, z, t)
    return replays.native.add(z, t, *arguments)


@pytest.fixture(params=[Squares, SquaresAtOnce])
def recorded(request, replays, compiled):
    compiled(12)
    loss = SquaresLoss(request.param)
    assert record(replays, loss, *batch(3, 4))
    return loss, replays


@needs_compiler
def test_value_and_gradient_of_another_batch(recorded):
    loss, replays = recorded
    z, t = batch(3, 4, seed=1)
    value = replays.native(z, t)
    torch.testing.assert_close(value, (0.5 * t * z * z).sum())
    (gradient,) = torch.autograd.grad(3 * value, z, retain_graph=True)
    torch.testing.assert_close(gradient, 3 * t * z.detach())
    loss.h.data.fill_(2.0)  # where it lies is on record, not what it is
    torch.testing.assert_close(replays.native(z, t), (2 * t * z * z).sum())


@needs_compiler
def test_backward_twice_and_a_second_derivative(recorded):
    _, replays = recorded
    z, t = batch(3, 4, seed=2)
    value = replays.native(z, t)
    first, second = (torch.autograd.grad(value, z, retain_graph=True)[0] for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    torch.testing.assert_close(first, second)
    (gradient,) = torch.autograd.grad(value, z, create_graph=True)
    torch.testing.assert_close(gradient, t * z)
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), z, retain_graph=True)[0], t)
    several = torch.tensor([1.0, -2.0])
    (gradients,) = torch.autograd.grad(value, z, several, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(gradients, several[:, None, None] * (t * z).detach())
    torch.autograd.grad(value, z)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, z)


@needs_compiler
@pytest.mark.parametrize("what", ["logits", "hyper-parameters"])
def test_a_change_before_backward_is_noticed(recorded, what):
    loss, replays = recorded
    z, t = batch(3, 4)
    inner = z * 1.0
    value, expected = replays.native(inner, t), t * z.detach()
    with torch.no_grad():
        (inner if what == "logits" else loss.h).mul_(2.0)
    if loss.function is SquaresAtOnce:  # which has its gradient already, and needs neither
        value.backward(retain_graph=True)
        torch.testing.assert_close(z.grad, expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@needs_compiler
def test_what_is_not_on_record_is_left_to_python(recorded):
    _, replays = recorded
    z, t = batch(3, 4)
    assert replays.native(z, t) is not None
    shifted = torch.empty(13)[1:].view(3, 4).requires_grad_()  # no longer where large loads may start
    for other in (z.detach(), z.double(), z.view(4, 3), z.t().contiguous().t(), z[:2], shifted):
        assert replays.native(other, t) is None
    assert replays.native(z, t.double()) is None
    assert replays.native(z, t.clone().requires_grad_()) is None  # Python says that there is no such gradient
    with torch.no_grad():
        assert replays.native(z, t) is None
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
        assert replays.native(z, t) is None
    with recording.Memory():
        assert replays.native(z, t) is None
    seen = []
    torch.func.vmap(lambda row: seen.append(replays.native(row, row)) or row)(z.expand(2, 3, 4))
    assert seen == [None]
    replays.stream[0] = 1
    assert replays.native(z, t) is None


@needs_compiler
def test_only_what_launches_kernels_is_put_on_record(replays, compiled):
    compiled(12)
    z, t = batch(3, 4)
    for extra in (lambda loss: loss * 2, lambda loss: loss + fused._applied(Squares, z, t, z)):
        with pytest.raises(recording.UnrepeatableError):
            record(replays, SquaresLoss(extra=extra), z, t)
    with pytest.raises(recording.UnrepeatableError, match="two tensors in one memory"):
        record(replays, SquaresLoss(), z, z.detach())
    compiled(12, ("*fp32",) * 5 + ("i64", "constexpr"))  # not what the driver says of these kernels
    assert not record(replays, SquaresLoss(), z, t)
    assert len(replays.native) == 0
    assert recording.recorder.tape is None


@needs_compiler
def test_recordings_of_several_kinds(recorded, compiled):
    loss, replays = recorded
    compiled(10)
    assert record(replays, loss, *batch(2, 5))
    for z, t in (batch(3, 4), batch(2, 5)):
        torch.testing.assert_close(replays.native(z, t), (0.5 * t * z * z).sum())


@needs_compiler
def test_a_recording_keeps_nothing_of_its_batch(replays, compiled):
    compiled(12)
    weight, (_, t) = torch.randn(3, 4, requires_grad=True), batch(3, 4)
    z = weight * 1.0
    alive = weakref.ref(z)
    assert record(replays, SquaresLoss(), z, t)
    replays.native(z, t).backward()
    del z
    gc.collect()
    assert alive() is None


def watching(loss):
    watcher = replay.Replays()
    watcher._watch(loss)
    return watcher


def test_what_a_recording_rests_on():
    loss = eq.RecallLoss(3, momentum=0.1, ignore_index=np.int64(255))
    watcher = watching(loss)
    assert not watcher._has_changed()
    for change in (
        lambda: setattr(loss, "reduction", "sum"),
        lambda: setattr(loss, "ignore_index", np.int64(0)),
        lambda: setattr(loss, "layout", (*loss.layout,) if loss.layout else []),
        lambda: setattr(loss.batch_weights[0], "momentum", 0.5),
        lambda: setattr(loss.batch_weights[0], "recall", torch.zeros(3)),
        lambda: loss.batch_weights.append(RecallWeights(3)),
        lambda: loss.register_buffer("more", torch.zeros(3)),
        lambda: loss.eval(),
    ):
        change()
        assert watcher._has_changed()
        watcher = watching(loss)
    with use("reference"):
        assert watcher._has_changed()
    assert not watcher._has_changed()


@each(SOFTMAX + SIGMOID)
def test_no_loss_changes_what_its_recordings_rest_on(entry):
    """Options and parts are the same objects after a call, so that recordings last; buffers are written in place."""
    z, y = batch_of(entry, (6, 5), dtype=torch.float32)
    loss = make(entry, 5)
    loss(z, y).sum().backward()
    watcher = watching(loss)
    buffers = {id(module._buffers) for module in loss.modules()}
    watcher._watched = [entry for entry in watcher._watched if id(entry[0]) not in buffers]
    for _ in range(3):
        loss(z, y).sum().backward()
        assert not watcher._has_changed()


def test_a_copy_begins_anew():
    loss = eq.FocalLoss()
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert twin._replays is not loss._replays
        assert twin._replays._native is None


# ---------------------------------------------------------------------------------------------------------------------
# When a loss is called from there: tensors that say that they are on a GPU
# ---------------------------------------------------------------------------------------------------------------------


class OnDevice(torch.Tensor):
    is_cuda = property(lambda self: True)
    __torch_function__ = torch._C._disabled_torch_function_impl


class PlainSquares(torch.autograd.Function):
    """What ``Squares`` gives, without its kernels."""

    @staticmethod
    def forward(ctx, z, t, h):
        ctx.save_for_backward(z, t, h)
        return (h * t * z * z).sum()

    @staticmethod
    def backward(ctx, grad):
        z, t, h = ctx.saved_tensors
        return 2 * h * t * z * grad, None, None


class RecordedLoss(SquaresLoss):
    """A loss that is called as those of the pipeline are, and tells how."""

    def __init__(self):
        super().__init__()
        self.factor = 1.0
        self._replays = replay.Replays()
        self._how = []

    def forward(self, z, t):
        replayed = self._replays(SquaresLoss.forward, self, z, t)
        self._how.append("Python" if replayed is None else "C++")
        return self.factor * super().forward(z, t) if replayed is None else replayed


@pytest.fixture
def device(compiled_part, driver, compiled, monkeypatch):
    """A device whose kernels have all run once. Change ``ready`` to have them not yet."""
    compiled(12)
    state = SimpleNamespace(ready=True, world=1)
    noted, applied = launch.Launcher._noted, fused._applied

    def note(self, *given):
        if not state.ready:
            raise recording.UnrepeatableError("a kernel that has not run yet")
        return noted(self, *given)

    def apply(function, *inputs):
        return applied(function if recording.recorder.tape is not None else PlainSquares, *inputs)

    monkeypatch.setattr(native, "_loaded", [compiled_part])
    monkeypatch.setattr(replay, "DRIVER", str(driver))
    monkeypatch.setattr(replay, "world_size", lambda: state.world)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    monkeypatch.setattr(choice, "triton_serves", lambda logits: True)
    monkeypatch.setattr(launch.Launcher, "_noted", note)
    monkeypatch.setattr(fused, "_applied", apply)
    return state


def on_device(*shape, seed=0):
    z, t = batch(*shape, seed=seed)
    return z.detach().as_subclass(OnDevice).requires_grad_(), t


def called(loss, times=1, seed=0):
    """How the last of some calls was made; all of them are right."""
    for _ in range(times):
        z, t = on_device(3, 4, seed=seed)
        expected = loss.factor * loss.h * t * z.detach() * z.detach()
        torch.testing.assert_close(loss(z, t).item(), expected.sum().item())
    return loss._how[-1]


@needs_compiler
def test_from_the_second_call_on(device):
    loss = RecordedLoss()
    assert [called(loss, seed=seed) for seed in range(4)] == ["Python", "C++", "C++", "C++"]
    loss.factor = 2.0
    assert called(loss) == "Python"


@needs_compiler
def test_kernels_that_have_not_run_yet_are_waited_for(device):
    loss, device.ready = RecordedLoss(), False
    assert called(loss, times=8) == "Python"  # the losses of eight heads before the first backward
    device.ready = True
    assert called(loss) == "C++"


@needs_compiler
def test_copies_and_replicas_have_options_of_their_own(device):
    loss = RecordedLoss()
    assert called(loss, times=3) == "C++"
    twin = copy.copy(loss)
    twin.factor = 3.0
    assert called(twin) == "Python"
    assert called(loss) == "C++"

    loss = RecordedLoss()
    for factor in (1.0, 2.0, 3.0):  # as DataParallel does for every batch
        loss.factor = factor
        replica = loss._replicate_for_data_parallel()
        replica._buffers = {name: buffer.clone() for name, buffer in loss._buffers.items()}
        assert called(replica, times=3) == "Python"


@needs_compiler
def test_other_processes_and_compiled_backward_are_left_to_python(device, monkeypatch):
    loss = RecordedLoss()
    loss.sync = True
    assert called(loss, times=3) == "C++"
    device.world = 2  # a process group that was made later
    assert called(loss) == "Python"
    device.world = 1
    monkeypatch.setitem(sys.modules, "torch._dynamo.compiled_autograd", SimpleNamespace(compiled_autograd_enabled=True))
    assert called(loss) == "Python"


@needs_compiler
def test_a_loss_whose_buffers_are_elsewhere_is_not_recorded(device):
    loss = RecordedLoss()
    loss.register_buffer("elsewhere", torch.zeros(3, device="meta"))
    assert called(loss, times=5) == "Python"


@needs_compiler
def test_checkpoints_are_computed_again_as_they_were(device):
    loss, (z, t) = RecordedLoss(), on_device(3, 4)
    for _ in range(3):
        value = checkpoint(lambda z: loss((z * 1.0).as_subclass(OnDevice), t), z, use_reentrant=False)
        z.grad = None
        value.backward()
        torch.testing.assert_close(z.grad.as_subclass(torch.Tensor), (t * z.detach()).as_subclass(torch.Tensor))
    assert set(loss._how) == {"Python"}


@needs_compiler
def test_ever_new_shapes_are_not_recorded_but_known_ones_are(device):
    loss = RecordedLoss()
    called(loss)
    for rows in range(5, 30):
        loss(*on_device(rows, 4))
    assert called(loss) == "C++"


@needs_compiler
def test_a_driver_that_is_too_old_is_done_without(device, tmp_path, monkeypatch):
    source, library = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text("int cuLaunchKernel() { return 0; }")
    subprocess.run(["c++", "-x", "c", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(replay, "DRIVER", str(library))
    assert called(RecordedLoss(), times=3) == "Python"
    assert not native.is_built()


# ---------------------------------------------------------------------------------------------------------------------
# On a GPU
# ---------------------------------------------------------------------------------------------------------------------


def is_replayed(loss):
    return type(loss.grad_fn).__name__ == "CppFunction"


def step(loss, z, y, scale):
    value = loss(z, y)
    return value, torch.autograd.grad(value * scale, z)[0]


IN_PYTHON = {"PrecisionLoss", "OHEMLoss", "MMCELoss", "DistributionBalancedLoss"}  # which need more than kernels


@pytest.mark.gpu
@needs_cuda
@needs_compiler
@each(SOFTMAX + SIGMOID)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 20), (4, 7, 5, 4)])
def test_every_loss_gives_the_same_bits(compiled_part, entry, dtype, shape):
    z, y = batch_of(entry, shape, dtype=dtype, ignored=0.1)
    z, y = z.detach().cuda().requires_grad_(), y.cuda()
    loss, plain = (make(entry, shape[1]).cuda() for _ in range(2))
    plain._replays = lambda *_: None
    replayed = []
    for i in range(6):
        got, expected = step(loss, z, y, 1 + i), step(plain, z, y, 1 + i)
        assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
        replayed.append(is_replayed(loss(z, y)))
        plain(z, y)
    assert replayed[-1] == (entry.name not in IN_PYTHON)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(loss.get_buffer(name), buffer, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.gpu
@needs_cuda
@needs_compiler
def test_options_schedules_streams_graphs_and_other_batches(compiled_part):
    z, y = torch.randn(64, 20, device="cuda", requires_grad=True), torch.randint(20, (64,), device="cuda")
    loss = eq.CyclicalFocalLoss(epochs=10)
    plain = eq.CyclicalFocalLoss(epochs=10)
    plain._replays = lambda *_: None

    def agree(z, y):
        got, expected = step(loss, z, y, 1.0), step(plain, z, y, 1.0)
        assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))

    for epoch in range(5):
        loss.set_epoch(epoch), plain.set_epoch(epoch)
        agree(z, y)
    assert is_replayed(loss(z, y))
    loss.reduction = plain.reduction = "sum"
    for _ in range(4):
        agree(z, y)
    assert is_replayed(loss(z, y))
    agree(z[:10], y[:10])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        agree(z, y)
    torch.cuda.current_stream().wait_stream(side)
    loss.eval(), plain.eval()
    agree(z, y)
    loss.train(), plain.train()
    with use("reference"):
        assert not is_replayed(loss(z, y))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, gradient = step(loss, z, y, 1.0)
    with torch.no_grad():
        z.mul_(0.5)
    graph.replay()
    expected = step(plain, z, y, 1.0)
    assert torch.equal(value, expected[0])
    assert torch.equal(gradient, expected[1])
