"""The present precision of float32 products in torch: read when kernels are generated, and by a guard later."""

from __future__ import annotations

import torch


def products_round_to_tf32() -> bool:
    """Whether CUDA products may round float32 factors to TF32, however that was switched on."""
    return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


def convolutions_round_to_tf32() -> bool:
    """Whether cuDNN may round float32 factors to TF32. `allow_tf32 = False` leaves "none" there, not "ieee"."""
    return str(torch.backends.cudnn.conv.fp32_precision) == "tf32"  # type: ignore[attr-defined]
