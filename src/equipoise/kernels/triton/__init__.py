"""Fused Triton kernels: ``device`` holds what Triton compiles, ``launch`` how it is launched, autograd lies above."""
