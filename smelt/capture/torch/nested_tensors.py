"""Where PyTorch's own modules compute with nested tensors: graphs hold none, so there they end.

`nn.TransformerEncoder` asks `torch.compiler.is_compiling()` and goes another way where it is true. Both ways give the
same where a padding mask lets elements through. Elsewhere the one with nested tensors gives zeros.
"""

from __future__ import annotations

import torch
from torch import nn

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special

_ENCODER = nn.TransformerEncoder.forward.__code__


@special(torch.compiler.is_compiling)
def is_compiling(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """True, except where an encoder would leave out the padding in eager: it is to do so."""
    frame = vm.frames[-1]
    if frame.code is _ENCODER and _leaves_out_padding(dict(zip(_ENCODER.co_varnames, frame.locals, strict=False))):
        raise Break(
            "an encoder with a padding mask in eval",
            "eager computes it by nested tensors, which no graph holds, and gives zeros where the mask is set",
            "torch.backends.mha.set_fastpath_enabled(False) computes all positions, in eager as well",
        )
    return True


def _leaves_out_padding(named: Kwargs) -> bool:
    """What the encoder asks after this question, and nothing that needs values."""
    layer = named.get("first_layer")
    if named.get("mask") is not None or torch.is_autocast_enabled() or not isinstance(layer, nn.Module):
        return False
    return not torch.is_grad_enabled() or not any(x.requires_grad for x in (named["src"], *layer.parameters()))


@special(torch._nested_tensor_from_mask_left_aligned)
def left_aligned(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Its answer is a number of Python's, told by the mask's values."""
    raise Break("torch._nested_tensor_from_mask_left_aligned()", "it tells the values of a tensor")
