"""Graph breaks where PyTorch's own modules compute with nested tensors, which graphs do not support.

`nn.TransformerEncoder` calls `torch.compiler.is_compiling()` and avoids nested tensors if the result is true. Both
paths give the same values for elements that are not padding. For padding elements the path with nested tensors gives
zeros.
"""

from __future__ import annotations

import torch
from torch import nn

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.python.stack_opcodes import read_variable

_ENCODER = nn.TransformerEncoder.forward.__code__


@special(torch.compiler.is_compiling)
def is_compiling(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `is_compiling()`: True, but False for collectives that would refuse to be compiled. If an
    encoder would use nested tensors in eager, the graph ends instead.
    """
    frame = vm.frames[-1]
    if frame.globals.get("__name__") == _REFUSES:
        return False
    if frame.code is _ENCODER and _leaves_out_padding({name: _read(vm, frame, name) for name in _NAMES}):
        raise Break(
            "an encoder with a padding mask in eval",
            "eager computes it by nested tensors, which no graph holds, and gives zeros where the mask is set",
            "torch.backends.mha.set_fastpath_enabled(False) computes all positions, in eager as well",
        )
    return True


_REFUSES = "torch.distributed.nn.functional"
"""The module whose functions raise an error where `is_compiling()` is true."""

_NAMES = ("mask", "src", "first_layer")
"""Variables of the encoder's `forward` on which its use of nested tensors depends."""


def _read(vm: Interpreter, frame: Frame, name: str) -> object:
    """The value of the encoder's variable; a frame that resumes after a break has not read its variables yet."""
    return read_variable(vm, frame, _ENCODER.co_varnames.index(name))


def _leaves_out_padding(named: Kwargs) -> bool:
    """Whether the encoder's conditions for nested tensors hold, as far as they need no tensor values."""
    layer = named.get("first_layer")
    if named.get("mask") is not None or torch.is_autocast_enabled() or not isinstance(layer, nn.Module):
        return False
    return not torch.is_grad_enabled() or not any(x.requires_grad for x in (named["src"], *layer.parameters()))


@special(torch._nested_tensor_from_mask_left_aligned)
def left_aligned(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Refuse the check whether a padding mask is left-aligned, which depends on the mask's values."""
    raise Break("torch._nested_tensor_from_mask_left_aligned()", "its result depends on the values of a tensor")
