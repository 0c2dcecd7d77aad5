"""Launching kernels: strides, tiles, and the tensors that they fill."""
