"""The `torch._C` names that smelt needs because no public way exists: all of them here, one documented name each."""

from __future__ import annotations

import torch


def implementation_address(tensor: torch.Tensor) -> int:
    """Address of the tensor's TensorImpl."""
    return tensor._cdata


def dispatch_key_word(tensor: torch.Tensor) -> int:
    """The tensor's dispatch key set as its raw 64-bit representation."""
    return torch._C._dispatch_keys(tensor).raw_repr()


empty_strided = torch._C._VariableFunctions.empty_strided
"""`torch.empty_strided` without the Python frame around it."""

disabled_torch_function = torch._C._disabled_torch_function_impl
"""Assigned to a tensor subclass's `__torch_function__`: torch functions run without looking for overrides."""


def is_composite(op: torch._ops.OpOverload) -> bool:
    """True when the operator is only a recipe over other operators, also for the autograd engine."""
    return op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
