"""Backward hooks of modules as boundaries: PyTorch's own machinery, set up on the tensors between two compiled pieces.

The hooks are looked up when the graph runs: hooks may be added and removed without a new capture while at least one is
registered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.hooks import BackwardHook

from smelt.base.torch_c import recording
from smelt.graph.nodes.absent_gradients import propagate_absent_gradients, skipping_absent_of_module
from smelt.graph.nodes.cut_points import EagerBoundary


class Around:
    """PyTorch's BackwardHook of one call of a module, passed from the node before its forward to the node after it."""

    def __init__(self, hook: Any = None) -> None:
        self.hook = hook


def through(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors, passed through the autograd node that calls the hooks."""
    return list(BackwardHookFunction.apply(*tensors))


class _ModuleHooks(EagerBoundary):
    why = "a module with backward hooks"

    def __init__(self, count: int, positions: Sequence[int]) -> None:
        """Args:
        count: the number of arguments (or results) of the module. positions: positions of the tensors among them on
        which hooks are set up; empty if none requires gradients.
        """
        super().__init__()
        self.count, self.positions = count, tuple(positions)

    def set_up(self, through: Any, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Make PyTorch set up its hooks on the tensors, and return the tensors that replace them. Arguments (or
        results) that are not tensors are passed as None: PyTorch needs only their number.
        """
        values: list[Any] = [None] * self.count
        for position, tensor in zip(self.positions, tensors, strict=True):
            values[position] = tensor
        out = recording(True, through, tuple(values))
        results = [out[position] for position in self.positions]
        for node in {each.grad_fn for each in results if each.grad_fn is not None}:
            propagate_absent_gradients(node)
        return results


class BeforeForward(_ModuleHooks):
    """The boundary before a module's forward: (module, tensors among the arguments) -> the Around object, and the
    tensors that forward gets.
    """

    def __call__(self, module: nn.Module, *tensors: torch.Tensor) -> tuple[Any, ...]:
        full, _ = module._get_backward_hooks()
        before = module._get_backward_pre_hooks()
        hook = BackwardHook(module, [*map(skipping_absent_of_module, full)], [*map(skipping_absent_of_module, before)])
        return Around(hook), *self.set_up(hook.setup_input_hook, tensors)


class AfterForward(_ModuleHooks):
    """The boundary after a module's forward: (the Around object, tensors among the results) -> the tensors that the
    module returns.
    """

    def __call__(self, around: Around, *tensors: torch.Tensor) -> tuple[Any, ...]:
        return tuple(self.set_up(around.hook.setup_output_hook, tensors))
