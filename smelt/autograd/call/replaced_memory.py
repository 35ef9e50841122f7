"""Inputs whose memory was replaced (`x.data = y`) after the forward, by another kind of tensor or while both are read.

The compiled backward is specialized to sizes and dtypes; eager's formulas would broadcast or promote a replacement of
another kind. In that case eager's engine runs the backward, after a second forward from the memory that the call has
read. This module keeps that memory alive and decides when it is needed; the old memory of an input from which the
forward computes nothing is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import torch
from torch.nn import Parameter

from smelt.autograd.call.double_backward import DoubleBackward, on_former_memory
from smelt.autograd.call.unpacked import is_like, is_same_view
from smelt.graph.ir.meta import TensorMeta

Own = Sequence[tuple[int, TensorMeta]]
Moved = Callable[[Collection[int]], bool]
"""Function from positions of inputs to whether the memory of one of them may have been replaced since the call."""


class ReadTwice:
    """Inputs of one compiled graph that eager's backward reads both directly and through views.

    Args:
        inputs, saved: the inputs and saved tensors of the first call; later calls save the same ones.
        own, aliased: positions among `saved` of inputs that are saved directly, and as an alias.
        both: the inputs that eager saves both directly and as views.
        double_backward: computes the graph's gradients with a history; None if that is unsupported.

    Attributes:
        retained: inputs whose memory is saved in addition, after everything else.
        kept: other leaves, except parameters of modules, whose memory is saved after that, for the case that a tensor
            of another kind (size, dtype or device) replaces it.
        holds: whether `retained` or `kept` has an input.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        own: Own,
        aliased: Sequence[int],
        both: Collection[int],
        double_backward: DoubleBackward | None,
    ) -> None:
        positions = {id(tensor): i for i, tensor in enumerate(inputs)}
        self.aliases = {positions[id(saved[k])]: k for k in aliased}
        found = [(positions[id(saved[k])], k, meta) for k, meta in own]
        self._pairs = [(k, self.aliases[i]) for i, k, _ in found if i in self.aliases]
        self._found = found
        self._both = [(k, meta) for i, k, meta in found if i in both]
        self._double_backward = double_backward
        retained = double_backward.needed if self._both and double_backward is not None else frozenset[int]()
        self.retained = sorted(retained - self.aliases.keys())
        self.kept = sorted(i for i in self._needed_by_eager_engine - retained if _is_free_leaf(inputs[i]))
        self.holds = bool(self.retained or self.kept)

    @property
    def _needed_by_eager_engine(self) -> frozenset[int]:
        """Returns the inputs that are saved only directly, and whose values at the call are needed if eager's engine
        has to run.
        """
        if self._double_backward is None or self._double_backward.recomputes:
            return frozenset()
        return self._computed_from & {i for i, _, _ in self._found} - self.aliases.keys()

    @property
    def remembered(self) -> frozenset[int]:
        """Returns the inputs whose former memory is available after it was replaced."""
        return frozenset(self.aliases) | frozenset(self.retained)

    def all_retained(self, hooked: bool) -> list[int]:
        """Returns the inputs whose memory is saved after all other tensors, in this order."""
        return [*self.retained, *self.kept_inputs(hooked)]

    def kept_inputs(self, hooked: bool) -> list[int]:
        """Returns the inputs in `kept`; none if there are hooks on saved tensors (`hooked`), which would see tensors
        that eager does not save.
        """
        return [] if hooked else self.kept

    def former(self, saved: Sequence[torch.Tensor], hooked: bool) -> dict[int, torch.Tensor]:
        """Returns for each input the memory of it that the call has read."""
        retained = self.all_retained(hooked)
        first = len(saved) - len(retained)
        return {i: saved[k] for i, k in self.aliases.items()} | {i: saved[first + n] for n, i in enumerate(retained)}

    def moved(self, saved: Sequence[torch.Tensor]) -> bool:
        """Whether the memory of an input in `retained` was replaced, so that both its memories are read."""
        return not all(is_same_view(saved[k], saved[a]) or _is_equal(saved[k], saved[a]) for k, a in self._pairs)

    def needs_eager_engine(self, saved: Sequence[torch.Tensor], hooked: bool) -> bool:
        """Whether eager's engine has to compute the gradients because a tensor of another kind has replaced an input.

        The result is False if the former memory of that input is needed and was not saved.
        """
        others = {i for i, k, meta in self._found if not is_like(saved[k], meta)}
        return bool(others) and (bool(self._both) or not others & self._computed_from - {*self.kept_inputs(hooked)})

    def with_history(self, moved: bool) -> bool:
        """Whether `gradients` has to be called because the gradients need a history and memory was replaced
        (`moved`)."""
        return moved and bool(self._both) and self._double_backward is not None and not self._double_backward.recomputes

    @cached_property
    def _computed_from(self) -> frozenset[int]:
        double_backward = self._double_backward
        if double_backward is None or double_backward.recomputes:
            return frozenset(i for i, _, _ in self._found)
        return double_backward.computed_from

    def gradients(
        self,
        inputs: list[torch.Tensor] | None,
        saved: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        moved: Moved,
        hooked: bool,
    ) -> dict[int, torch.Tensor | None]:
        """Returns eager's gradients by primal, with a history.

        Raises:
            RuntimeError: there is no graph to rerun, the inputs no longer exist (None), or the memory of one was
                replaced and not saved.
        """
        double_backward, known = self._double_backward, {*self.remembered, *self.kept_inputs(hooked)}
        if (
            double_backward is None
            or double_backward.recomputes
            or inputs is None
            or moved(self._computed_from - known)
        ):
            raise RuntimeError(
                "smelt: the .data of an input was replaced after the call, and the backward reads both the input and "
                "a view of what it was, or what was computed of it"
            )
        former = {i: was for i, was in self.former(saved, hooked).items() if i in double_backward.needed}
        for i, _, meta in self._found:
            if i not in former and i not in self._computed_from:
                former[i] = torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device)
        new = {i: inputs[i].detach() for i, was in former.items() if not is_same_view(inputs[i], was)}
        with torch.enable_grad():
            for i in new:
                inputs[i] = on_former_memory(inputs[i], former[i])
        return double_backward.replayed(inputs, tangents, new)


def _is_free_leaf(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a leaf that requires a gradient and is not a parameter of a module. A program may replace
    such a leaf by a tensor of another size; parameters are assumed to keep their size.
    """
    return tensor.requires_grad and tensor.is_leaf and not isinstance(tensor, Parameter)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.device == other.device and one.dtype is other.dtype and torch.equal(one, other)
