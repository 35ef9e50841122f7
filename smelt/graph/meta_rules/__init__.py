"""Metadata inference: what an operator returns and what it refuses. `infer` tries rules first, then PyTorch's meta
kernels.
"""
