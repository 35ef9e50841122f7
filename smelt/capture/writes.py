"""In-place writes to arguments that autograd refuses: inference tensors, and views whose history it cannot follow."""

from __future__ import annotations

from typing import Any

import torch

from smelt.base.torch_c import is_plain_view
from smelt.capture.breaks import Break
from smelt.capture.sources import Source


def check_write(vm: Any, written: torch.Tensor, argument: torch.Tensor, source: Source) -> None:
    """The program writes to the memory of an argument.

    Args:
        written: the stand-in that was written to, the argument itself or a view of it.

    Raises:
        Break: eager refuses. It does so in the middle of the program, so the operation runs there, in plain Python.
    """
    if argument.is_inference() and not torch.is_inference_mode_enabled():
        raise Break("a write to an inference tensor outside of inference mode", "eager raises an error")
    if not (torch.is_grad_enabled() and written.requires_grad):
        return
    if not may_be_written(argument):
        raise Break("a write to a view whose history autograd cannot follow", "eager raises an error")
    vm.guards.python(may_be_written, [source])


def may_be_written(tensor: torch.Tensor) -> bool:
    """Whether autograd records an in-place write to it; see `check_inplace` in PyTorch's VariableTypeUtils.h."""
    if tensor.is_inference():
        return True
    if not tensor._is_view():
        return not (tensor.is_leaf and tensor.requires_grad)
    base = tensor._base
    assert base is not None
    return is_plain_view(tensor) and not (tensor.requires_grad and base.is_leaf)
