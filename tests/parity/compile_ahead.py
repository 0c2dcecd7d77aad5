"""Compile all kernels that the losses of one link launch for GPUs that are not present; a test runs this script.

The losses go through their usual code on the CPU; only the launch is replaced, by a compilation.
"""

import re
import sys

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from equipoise.kernels import choice, use
from equipoise.kernels.triton.launch import launcher as launch
from equipoise.kernels.triton.launch import softmax as softmax_launch
from tests.losses.helpers import REGION, SIGMOID, SOFTMAX, batch_of, make

TYPES = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.uint8: "*u8",
}  # fmt: skip
OF_LOGITS = ("forward_kernel", "backward_kernel", "sums_kernel", "errors_kernel", "gradient_kernel")
compiled = set()
wide = []  # loads of several numbers at once, in these
mixed = []  # layouts in three dimensions, which the kernels do not have of themselves
rounded = []  # log 2 and its inverse to 24 bits, in kernels of float64
ROUNDED = [f"0d{np.float64(np.float32(number)).view(np.uint64):016X}" for number in (np.log(2), 1 / np.log(2))]


def compile_instead(self, settings, *tensors):
    names = self.kernel.arg_names
    given = [*tensors, *settings.numbers, *settings.constants]
    signature, constexprs, attributes = {}, {}, {}
    for place, (name, value) in enumerate(zip(names, given, strict=True)):
        if isinstance(value, torch.Tensor):
            signature[name] = TYPES[value.dtype]
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif place < len(tensors) + len(settings.numbers) and value != 1:
            signature[name] = "i32"
            if value % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name], constexprs[name] = "constexpr", value
    for capability in (80, 90):
        key = (capability, str(signature), str(constexprs), str(attributes), self.kernel.fn.__name__)
        if key not in compiled:
            source = ASTSource(fn=self.kernel, signature=signature, constexprs=constexprs, attrs=attributes)
            made = triton.compile(
                source, target=GPUTarget("cuda", capability, 32), options={"num_warps": settings.warps}
            )
            compiled.add(key)
            rounded.extend(re.findall("|".join(ROUNDED), made.asm["ptx"]))
            if self.kernel.fn.__name__ in OF_LOGITS and not constexprs.get("EACH"):  # which may be loaded at once
                wide.extend(re.findall(r"ld\.global\S*\.v[248]", made.asm["ptx"]))
                mixed.extend(re.findall(r"#ttg.blocked<{sizePerThread = \[\d+, \d+, \d+\]", made.asm["ttgir"]))


def pointwise(entries):
    """Index targets in two bytes, in two passes and in one; those that look at the batch, with many classes too."""
    for entry in entries:
        for dtype in (torch.float16, torch.bfloat16):
            yield entry, *batch_of(entry, (2, 19, 16, 24), dtype=dtype)
        if entry.name in ("RecallLoss", "PrecisionLoss"):
            yield entry, *batch_of(entry, (2, 150, 16, 24), dtype=torch.float32)


def regions():
    """Few and many classes per thread, strided or not, aligned or not, index and dense targets."""
    losses = {entry.name: entry for entry in REGION}
    dice, lovasz = losses["DiceLoss"], losses["LovaszSoftmaxLoss"]
    for shape in ((2, 4, 16, 24), (2, 19, 16, 24), (2, 19, 7, 9), (2, 150, 16, 24), (2, 150, 7, 9), (6, 30), (6, 2100)):
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            logits, targets = batch_of(dice, shape, dtype=dtype)
            yield dice, logits, targets
            if dtype is torch.bfloat16:
                yield lovasz, logits, targets
                yield dice, logits.movedim(1, -1).contiguous().movedim(-1, 1), targets
            if dtype is torch.float32:
                yield dice, logits, logits.detach().softmax(1)


def slices():
    """Every second pixel of aligned planes, in rows that do not fill the tiles."""
    for entry in SOFTMAX + [entry for entry in REGION if entry.name in ("DiceLoss", "LovaszSoftmaxLoss")]:
        logits, targets = batch_of(entry, (2, 19, 48, 52), dtype=torch.float32)
        yield entry, logits.detach()[:, :, ::2, ::2], targets[:, ::2, ::2]


def dense():
    """Distributions over more classes than a tile holds, which are read in a loop."""
    names = ("CrossEntropyLoss", "FocalLoss", "BrierLoss", "DiceLoss")
    for entry in [entry for entry in SOFTMAX + REGION if entry.name in names]:
        for shape in ((2, 150, 16, 24), (2, 150, 7, 9), (6, 9000)):
            logits, _ = batch_of(entry, shape, dtype=torch.float32)
            yield entry, logits, logits.detach().softmax(1)


def double():
    """All losses in float64."""
    for entry in SOFTMAX + SIGMOID + REGION:
        yield entry, *batch_of(entry, (2, 5, 6, 4), dtype=torch.float64)


if __name__ == "__main__":
    launch.Launcher.__call__ = compile_instead
    choice.obstacle = lambda logits: None
    softmax_launch.LEAST_AT_ONCE = 0
    batches = {
        "softmax": lambda: pointwise(SOFTMAX),
        "sigmoid": lambda: pointwise(SIGMOID),
        "region": regions,
        "slices": slices,
        "dense": dense,
        "double": double,
    }
    for entry, logits, targets in batches[sys.argv[1]]():
        with use("triton"):
            make(entry, logits.shape[1])(logits.requires_grad_(), targets).sum().backward()
    sys.stdout.write(f"{len(compiled)} {len(wide)} {len(mixed)} {len(rounded)}\n")
