"""Initializes models in a fraction of the time: large tensors are filled late, with a few random numbers repeated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = frozenset(
    {"normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_"}
    | {"orthogonal_"}
)
"""Names of the functions that draw initial values: methods of tensors and functions of `torch.nn.init`."""

CHANGES = frozenset({"erfinv_", "mul_", "add_", "div_", "clamp_", "zero_", "fill_", "constant_"}) | DRAWS
METADATA = frozenset(
    {"size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "element_size", "data_ptr"}
)
PROPERTIES = frozenset({"shape", "ndim", "device", "dtype", "requires_grad", "is_leaf", "is_meta", "layout", "data"})


class CheapWeights(TorchFunctionMode):
    """A mode in which large tensors are drawn cheaply: capture does not depend on the values, but drawing them takes
    time.

    While the mode is active, large parameters stay uninitialized (which costs no memory yet) until an operation reads
    them; `fill` then initializes those that the model still has.
    """

    def __init__(self) -> None:
        super().__init__()
        # The values are truncated, so that code which redraws values that are too large finds none.
        self.pool = 0.02 * torch.randn(65_537).clamp(-1, 1)
        self._pending: dict[int, Tensor] = {}
        self._parameters: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        target = args[0] if args else (kwargs or {}).get("tensor")
        if isinstance(target, Tensor):
            if name in CHANGES and self._leave(target, name):
                return target
            if isinstance(target, nn.Parameter) and _property(func, name) == "data":
                self._parameters.add(target.data_ptr())
        if self._pending and not _metadata(func, name):
            for value in (*args, *(kwargs or {}).values()):
                if isinstance(value, Tensor) and value.device.type == "cpu":
                    self._initialize(value)
        return func(*args, **(kwargs or {}))

    def fill(self, model: nn.Module) -> None:
        """Initialize the model's parameters and buffers that are still uninitialized."""
        for value in (*model.parameters(), *model.buffers()):
            self._initialize(value)
        self._pending.clear()

    def _leave(self, target: Tensor, name: str) -> bool:
        """Whether the tensor may stay uninitialized for now."""
        if target.numel() <= self.pool.numel() or target.device.type != "cpu" or not target.is_contiguous():
            return False
        if target.data_ptr() in self._pending:
            return True
        if name not in DRAWS or not (isinstance(target, nn.Parameter) or target.data_ptr() in self._parameters):
            return False  # tensors that are not weights need truly random values
        if target.numel() * target.element_size() != target.untyped_storage().nbytes():
            return False
        self._pending[target.data_ptr()] = target.detach()
        return True

    def _initialize(self, value: Tensor) -> None:
        if value.layout != torch.strided or value.device.type != "cpu":
            return
        waiting = self._pending.pop(value.untyped_storage().data_ptr(), None)
        if waiting is None:
            return
        flat = waiting.view(-1)
        covered = flat.numel() // self.pool.numel() * self.pool.numel()
        flat[:covered].view(-1, self.pool.numel()).copy_(self.pool)
        flat[covered:].copy_(self.pool[: flat.numel() - covered])


def _metadata(func: Any, name: str) -> bool:
    """Whether the function reads or writes only metadata."""
    return name in METADATA or _property(func, name) in PROPERTIES


def _property(func: Any, name: str) -> str:
    """Returns the name of the property that `func` reads or sets, or an empty string if it is no property's
    accessor.
    """
    return getattr(getattr(func, "__self__", None), "__name__", "") if name in ("__get__", "__set__") else ""
