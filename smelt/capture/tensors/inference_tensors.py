"""Tensors made in inference mode: outside of the mode they must not be written to, and autograd must not save them."""

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
    """The set of trace tensors that represent tensors made in inference mode.

    Attributes:
        made: the storages of these tensors, by identity.
    """

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}

    def note(self, tensor: TraceTensor) -> None:
        """Note that the tensor was made in inference mode."""
        self.made[id(tensor.storage_view.storage)] = tensor.storage_view.storage

    def __contains__(self, tensor: object) -> bool:
        return type(tensor) is TraceTensor and id(tensor.storage_view.storage) in self.made

    def refuse_write(self, tensor: TraceTensor) -> None:
        """Refuse a write to the tensor.

        Raises:
            UserError: the tensor was made in inference mode, which is off now.
        """
        if tensor in self:
            raise UserError(RuntimeError(_write_error()))

    def refusing_saves(self) -> AbstractContextManager[object]:
        """A context for operators outside of inference mode, which raises an error if autograd saves a tensor of the
        mode.
        """
        if not self.made or torch_c.saved_tensor_hooks_disabled():
            return nullcontext()
        return saved_tensors_hooks(self._save, _unchanged)

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor in self:
            raise RuntimeError(_save_error())
        return tensor


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _eager_error(run: Callable[[torch.Tensor], object]) -> str:
    """The text of the error that PyTorch raises when `run` is applied to a tensor of inference mode.

    Obtained only when needed: PyTorch looks up symbols for the backtrace of an error, which brings several MiB of its
    libraries into memory.
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
def _write_error() -> str:
    return _eager_error(lambda tensor: tensor.add_(1))


@functools.cache
def _save_error() -> str:
    return _eager_error(lambda tensor: tensor * torch.ones((), requires_grad=True))
