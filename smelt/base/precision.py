"""Reads torch's precision settings of float32 products: when kernels are generated, and later in a guard."""

from __future__ import annotations

import torch


def products_round_to_tf32() -> bool:
    """Whether CUDA products may round float32 factors to TF32, by whichever setting of torch."""
    return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


def convolutions_round_to_tf32() -> bool:
    """Whether cuDNN may round float32 factors to TF32. (`allow_tf32 = False` sets the precision "none", not "ieee".)"""
    return str(torch.backends.cudnn.conv.fp32_precision) == "tf32"  # type: ignore[attr-defined]
