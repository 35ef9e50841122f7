"""Attention on a GPU: gives masks a layout that the library's fused kernels accept.

These kernels do not accept a mask whose last dimension is expanded, as models make it if nothing is masked; the
remaining kernel computes the whole matrix of weights, in float32. A copy of the mask costs one byte for each element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ATTENTION = torch.nn.functional.scaled_dot_product_attention


def for_attention(target: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function to call in a trace instead of a function of the program; None if none is needed."""
    return _with_dense_mask if target is _ATTENTION else target


def _with_dense_mask(*args: Any, **kwargs: Any) -> Any:
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    if mask is not None and mask.device.type == "cuda" and mask.dim() and mask.stride(-1) != 1:
        mask = mask.contiguous()
        args, kwargs = (*args[:3], mask, *args[4:]), kwargs
        if len(args) == 4:
            kwargs = {name: value for name, value in kwargs.items() if name != "attn_mask"}
    return _ATTENTION(*args, **kwargs)
