"""Thread modes that boundaries enter, in which compiled pieces run: inference mode, and hooks on saved tensors.

Tensors made in inference mode are of a special kind, and saved tensors go through the program's hooks: so the mode has
to be enabled while one piece runs, and disabled for the next.
"""

from __future__ import annotations

from typing import Any

from torch.autograd.graph import saved_tensors_hooks

from smelt.base import torch_c
from smelt.graph.nodes.cut_points import EagerBoundary
from smelt.graph.nodes.modes import forget_region, note_region


class Entered:
    """The token passed from the boundary that enters a mode to the boundary that leaves it.

    Args:
        region: a context manager that has been entered; None during capture.
    """

    def __init__(self, region: Any = None) -> None:
        self.region = region


class EnterInference(EagerBoundary):
    """The boundary that enters `torch.inference_mode(mode)`."""

    why = "inference mode is entered"

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.mode = mode

    def __call__(self) -> Entered:
        entered: list[Any] = []
        note_region(_leave, entered)
        # the object enters the mode when it is made, and leaves it when it is freed
        entered.append(torch_c.inference_mode(self.mode))
        return Entered(entered[0])


def _leave(entered: list[Any]) -> None:
    for region in entered:
        region.__exit__(None, None, None)  # leaving twice has no further effect


class EnterSavedHooks(EagerBoundary):
    """The boundary that enters `torch.autograd.graph.saved_tensors_hooks(pack, unpack)`.

    Args:
        fixed: the two functions; None for one that differs between calls and is an argument of the node. The text of a
            graph has no form for functions among its arguments.
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
    """The boundary at the end of a region."""

    why = "a mode of the thread is left"
    leaves = True

    def __call__(self, entered: Entered) -> None:
        entered.region.__exit__(None, None, None)
        forget_region()
