"""Kernels for GPUs: a group of the schedule becomes one Triton function over tiles."""
