"""Triton kernels and the functions that they call."""
