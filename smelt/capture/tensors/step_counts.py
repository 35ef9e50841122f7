"""Step counts of optimizers, as numbers that are read from their tensors before the graph runs, as Python would."""

from __future__ import annotations

from typing import Any

import torch

from smelt.capture import _native as native
from smelt.capture.core import sources
from smelt.capture.core.interface import Interpreter


class StepCounts:
    """The step counts of one capture. A guard requires that counts which are equal during capture stay equal."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self._known: dict[float, Any] = {}

    def __call__(self, tensor: torch.Tensor, source: sources.Source) -> Any:
        """The value of a tensor with one element, as a symbolic number."""
        value = float(tensor)
        if value not in self._known:
            number = sources.called(source, torch.Tensor.item, "item()")
            real = self.vm.sizes.owner.real(value)
            self.vm.sizes.reals[real.name] = number
            self._known[value] = self.vm.tensors.read_number(value, real, number), _Equal()
        known, equal = self._known[value]
        self.vm.guards.joint_check(equal, source)
        return known


class _Equal:
    """A guard that all of the given tensors contain the same number."""

    __name__ = "equal step counts"
    shortcut = native.SHORT_EQUAL_NUMBERS

    def __call__(self, first: torch.Tensor, *others: torch.Tensor) -> bool:
        value = first.item()
        return all(other.item() == value for other in others)
