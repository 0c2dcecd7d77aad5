"""Launching kernels: strides, tiles and output tensors."""
