"""Tensors made in inference mode: outside of it nobody may write to them, and autograd may not save them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from smelt.base import torch_c
from smelt.capture.core.breaks import UserError
from smelt.graph.trace.trace import TraceTensor


class InferenceTensors:
    """Which trace tensors stand for such tensors.

    Attributes:
        made: their memory, by identity.
    """

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}

    def note(self, tensor: TraceTensor) -> None:
        """The tensor was made in inference mode."""
        self.made[id(tensor.storage_view.storage)] = tensor.storage_view.storage

    def __contains__(self, tensor: object) -> bool:
        return type(tensor) is TraceTensor and id(tensor.storage_view.storage) in self.made

    def refuse_write(self, tensor: TraceTensor) -> None:
        """
        Raises:
            UserError: the tensor is one of them, and inference mode is off.
        """
        if tensor in self:
            raise UserError(RuntimeError(_no_write()))

    def watching(self) -> AbstractContextManager[object]:
        """While operators run outside of inference mode: what they save for the backward must be other tensors."""
        if not self.made or torch_c.saved_tensor_hooks_disabled():
            return nullcontext()
        return saved_tensors_hooks(self._save, _same)

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor in self:
            raise RuntimeError(_no_save())
        return tensor


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _refusal(run: Callable[[torch.Tensor], object]) -> str:
    """What PyTorch says when a program does this with a tensor of inference mode.

    Asked when it is needed: PyTorch looks up names for an error's backtrace: MiB of its libraries come to memory.
    """
    with _disable_current_modes():
        with torch_c.inference_mode(True):
            tensor = torch.ones(())
        try:
            with torch_c.inference_mode(False), torch.enable_grad():
                run(tensor)
        except RuntimeError as error:
            return str(error)
    return "a tensor of inference mode is used outside of it"


@functools.cache
def _no_write() -> str:
    return _refusal(lambda tensor: tensor.add_(1))


@functools.cache
def _no_save() -> str:
    return _refusal(lambda tensor: tensor * torch.ones((), requires_grad=True))
