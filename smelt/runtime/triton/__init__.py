"""Triton kernels: compiled by worker processes, tuned, bound to launches; or run by Triton's interpreter."""
