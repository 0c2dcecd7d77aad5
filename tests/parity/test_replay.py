"""Calls that are made again without Python: on a driver that is a few lines of C, and on a GPU."""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.kernels import replay, use
from tests.losses.helpers import SIGMOID, SOFTMAX, batch_of, each, make
from tests.parity.budget import CUDA

pytest.importorskip("triton")

from equipoise.kernels import fused, launch

needs_compiler = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("ninja")), reason="needs a C++ compiler and ninja"
)
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """The compiled part, one for all processes of a test run."""
    before = os.environ.get("XDG_CACHE_HOME")
    base = tmp_path_factory.getbasetemp()
    os.environ["XDG_CACHE_HOME"] = str(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)
    replay._loaded.clear()
    eq.kernels.build()
    yield replay._native()
    replay._loaded.clear()
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
        if torch.is_grad_enabled():
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
        if gradient is None or torch.is_grad_enabled():
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
def replays(native, driver):
    """Recordings on that driver; a stream that can be changed."""
    stream = [0]
    made = native.Replays(str(driver), lambda device: stream[0], lambda: False)
    return SimpleNamespace(native=made, stream=stream, module=native)


def batch(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z, t = torch.randn(*shape, generator=generator), torch.rand(*shape, generator=generator)
    return z.requires_grad_(), t


def record(replays, loss, z, t):
    arguments = replay._recorded(replays.module, SquaresLoss.forward, loss, z, t)
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
    torch.autograd.grad(value, z)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, z)


@needs_compiler
@pytest.mark.parametrize("what", ["logits", "hyper-parameters"])
def test_a_change_before_backward_is_noticed(recorded, what):
    loss, replays = recorded
    z, t = batch(3, 4)
    inner = z * 1.0
    value = replays.native(inner, t)
    with torch.no_grad():
        (inner if what == "logits" else loss.h).mul_(2.0)
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
    with torch.no_grad():
        assert replays.native(z, t) is None
    with replay.Memory():
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
        with pytest.raises(replay.UnrepeatableError):
            record(replays, SquaresLoss(extra=extra), z, t)
    with pytest.raises(replay.UnrepeatableError, match="two tensors in one memory"):
        record(replays, SquaresLoss(), z, z.detach())
    compiled(12, ("*fp32",) * 5 + ("i64", "constexpr"))  # not what the driver says of these kernels
    assert not record(replays, SquaresLoss(), z, t)
    assert len(replays.native) == 0
    assert replay.recorder.tape is None


@needs_compiler
def test_recordings_of_several_kinds(recorded, compiled):
    loss, replays = recorded
    compiled(10)
    assert record(replays, loss, *batch(2, 5))
    for z, t in (batch(3, 4), batch(2, 5)):
        torch.testing.assert_close(replays.native(z, t), (0.5 * t * z * z).sum())


def test_what_a_recording_rests_on():
    loss = eq.RecallLoss(3, momentum=0.1)

    def holds():
        return all(owner.get(name) is value for owner, name, value in watched)

    watched = list(replay._rests_on(loss))
    assert holds()
    for change in (
        lambda: setattr(loss, "reduction", "sum"),
        lambda: setattr(loss.batch_weights[0], "momentum", 0.5),
        lambda: setattr(loss.batch_weights[0], "recall", torch.zeros(3)),
        lambda: loss.eval(),
    ):
        change()
        assert not holds()
        watched = list(replay._rests_on(loss))
    with use("reference"):
        assert not holds()
    assert holds()


def test_a_copy_begins_anew():
    loss = eq.FocalLoss()
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert twin._replays is not loss._replays
        assert twin._replays._native is None


def test_without_a_compiler_the_error_says_what_is_missing(monkeypatch, tmp_path):
    from torch.utils import cpp_extension

    def missing(*_, **__):
        raise RuntimeError("Ninja is required to load C++ extensions")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(replay, "_loaded", [])
    monkeypatch.setattr(cpp_extension, "load", missing)
    with pytest.raises(RuntimeError, match=r"kernels.build\(\) needs a C\+\+ compiler, ninja .*: Ninja is required"):
        eq.kernels.build()
    assert not replay.is_built()


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
def test_every_loss_gives_the_same_bits(native, entry, dtype, shape):
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
def test_options_schedules_streams_graphs_and_other_batches(native):
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
