"""Fused Triton kernels: ``device`` contains them, ``launch`` launches them, ``autograd`` and ``region`` use both."""
