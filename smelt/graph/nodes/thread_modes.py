"""Modes of the thread that compiled pieces run in: inference mode, hooks on what autograd saves. Entered at boundaries.

What is made in inference mode is a tensor of its own kind, and what is saved goes through the hooks of the program: so
the mode has to be on while the piece runs, and to be off again for the next.
"""

from __future__ import annotations

from typing import Any

from torch.autograd.graph import saved_tensors_hooks

from smelt.base import torch_c
from smelt.graph.nodes.cut_points import EagerBoundary
from smelt.graph.nodes.modes import forget_region, note_region


class Entered:
    """The token that one of these boundaries hands to the one that leaves the mode.

    Args:
        region: a context manager that has been entered; None while capturing.
    """

    def __init__(self, region: Any = None) -> None:
        self.region = region


class EnterInference(EagerBoundary):
    """`torch.inference_mode(mode)`"""

    why = "inference mode is entered"

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.mode = mode

    def __call__(self) -> Entered:
        entered: list[Any] = []
        note_region(_leave, entered)
        entered.append(torch_c.inference_mode(self.mode))  # made, it is entered; one that nobody holds is left
        return Entered(entered[0])


def _leave(entered: list[Any]) -> None:
    for region in entered:
        region.__exit__(None, None, None)  # twice is as good as once


class EnterSavedHooks(EagerBoundary):
    """`torch.autograd.graph.saved_tensors_hooks(pack, unpack)`

    Args:
        fixed: the two functions; None for one that each call gives, as an argument of the node. The text of a graph has
            no form for functions among its arguments.
    """

    why = "hooks on what autograd saves"

    def __init__(self, fixed: tuple[Any, ...]) -> None:
        super().__init__()
        self.fixed = fixed

    def __call__(self, *given: Any) -> Entered:
        rest = iter(given)
        pack, unpack = (next(rest) if hook is None else hook for hook in self.fixed)
        region = saved_tensors_hooks(pack, unpack)
        note_region(torch_c.set_saved_tensor_hooks, torch_c.saved_tensor_hooks_state())
        region.__enter__()
        return Entered(region)


class Leave(EagerBoundary):
    """The end of a region."""

    why = "a mode of the thread is left"
    leaves = True

    def __call__(self, entered: Entered) -> None:
        entered.region.__exit__(None, None, None)
        forget_region()
