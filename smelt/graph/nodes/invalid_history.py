"""Tensors whose autograd history raises an error in a backward, or gives no gradients.

The reasons are: a saved tensor was overwritten or freed, an operator has no derivative, or the program's own derivative
fails. In eager such tensors exist, and only a backward that reaches them raises. Other tensors have a history that
leads to no tensor outside of the graph: a backward that reaches them does nothing.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch._library.autograd import make_autograd_impl
from torch.autograd.function import BackwardCFunction

from smelt.base.errors import SmeltError
from smelt.base.torch_c import recording
from smelt.graph.meta_rules.oversized import NoRoom
from smelt.graph.nodes.absent_gradients import skip_absent_below


class _ErrorNode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, error: Exception | None, anchor: torch.Tensor, *origins: torch.Tensor
    ) -> torch.Tensor:
        ctx.mark_dirty(tensor)  # the tensor itself, not a view of it
        ctx.set_materialize_grads(False)
        ctx.error = error
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is None or ctx.error is None:  # a compiled graph does not use the tensor in this backward
            for node, _ in ctx.next_functions:
                skip_absent_below(node)
            return (None,) * len(ctx.needs_input_grad)
        raise copy_of_error(ctx.error)


def copy_of_error(error: Exception) -> Exception:
    """Returns a copy of the error, one for each backward."""
    try:
        made = copy.copy(error)
    except Exception:  # its class cannot be copied
        return error.with_traceback(None)
    return made if type(made) is type(error) else error.with_traceback(None)


_ANCHOR = torch.zeros((), device="cpu", requires_grad=True)


def with_invalid_history(
    tensor: torch.Tensor, error: Exception | None, origins: Sequence[torch.Tensor] = ()
) -> torch.Tensor:
    """Make the tensor require gradients, with a history that raises the error in a backward that reaches it.

    Args:
        error: the error to raise; None: no error, and no gradients.
        origins: tensors to which its history leads: a derivative with respect to one of them reaches the error.
    """
    return recording(True, _ErrorNode.apply, tensor, error, _ANCHOR, *origins)


# -- errors of a backward ------------------------------------------------------------------------------------------

_ENGINE_ERRORS = re.compile(
    r"has been modified by an inplace operation"
    r"|more than one element of the written-to tensor"  # a write through expanded memory
    r"|^the derivative for"
    r"|^You must implement either the backward or vjp method"
    r"|^[Ff]unction \w+Backward returned an? (invalid gradient|incorrect number of gradients|gradient different than)"
    r"|^expected Variable or None"
)
"""Errors of the engine that the program causes; nodes of PyTorch's own functions have a number after "Backward"."""


def of_backward(error: Exception) -> Exception | None:
    """Returns the error in the form in which eager raises it in a backward; None if eager does not raise it.

    Eager raises such errors if a saved value was overwritten, an operator has no derivative, an operator writes
    elements that share memory, the program's derivative fails or returns unfit gradients, or there is no memory for a
    gradient.
    """
    if isinstance(error, NoRoom):
        return error.of_eager()
    if isinstance(error, SmeltError):
        return None
    known = isinstance(error, RuntimeError) and _ENGINE_ERRORS.search(str(error))
    if not (known or _is_from_operator(error.__traceback__) or _is_from_function(error.__traceback__)):
        return None
    error.__traceback__ = error.__context__ = None  # the traceback and context refer to the frames of the trace
    return error


_FORMULAS = make_autograd_impl.__code__.co_filename


_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_APPLY = BackwardCFunction.apply.__code__


def _is_from_function(entry: TracebackType | None) -> bool:
    """Whether the program's own code raised it, in the backward of a `torch.autograd.Function`."""
    code = None
    applied = False
    while entry is not None:
        code = entry.tb_frame.f_code
        applied = applied or code is _APPLY
        entry = entry.tb_next
    return applied and code is not None and code is not _APPLY and not code.co_filename.startswith(_PACKAGE)


def _is_from_operator(entry: TracebackType | None) -> bool:
    """Whether it was raised in the derivative of a library's operator, registered or not."""
    while entry is not None:
        code = entry.tb_frame.f_code
        if code.co_filename == _FORMULAS and code.co_name == "backward":
            return True
        entry = entry.tb_next
    return False
