"""How torch multiplies matrices in float32 at the moment: asked for when kernels are written, and by a guard later."""

from __future__ import annotations

import torch


def products_round_to_tf32() -> bool:
    """Whether CUDA products may round float32 factors to TF32, however that was switched on."""
    return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"
