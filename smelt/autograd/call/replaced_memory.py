"""Inputs in whose place the backward finds another kind of tensor (`x.data = y`), or that it reads in two ways.

The compiled backward is for tensors of one size and type, which eager's formulas may broadcast or promote. Where
another kind is in the place of one, the backward is run once more by eager's engine, behind a forward from the memory
that the call has read. This module holds that memory and tells when it is wanted; of an input that nothing is computed
from before the backward reads it, any memory will do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import torch
from torch.nn import Parameter

from smelt.autograd.call.double_backward import DoubleBackward, in_former_memory
from smelt.autograd.call.unpacked import is_like, lie_together
from smelt.graph.ir.meta import TensorMeta

Own = Sequence[tuple[int, TensorMeta]]
Moved = Callable[[Collection[int]], bool]
"""Whether one of these inputs may have other memory than at the call."""


class ReadTwice:
    """The inputs of one compiled graph that eager reads in both ways.

    Args:
        inputs, saved: of the first call; where saved tensors come from is the same at each.
        own, aliased: positions of inputs that are saved by themselves, and as an alias.
        both: those inputs that eager saves in both ways.
        double_backward: makes gradients of the graph; None where nobody can.

    Attributes:
        retained: inputs whose memory is saved besides, last of all.
        kept: other leaves, not the parameters of modules, have theirs saved behind that, in case that another kind of
            tensor is in their place.
        holds: whether there is one of either.
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
        given = {id(tensor): i for i, tensor in enumerate(inputs)}
        self.aliases = {given[id(saved[k])]: k for k in aliased}
        found = [(given[id(saved[k])], k, meta) for k, meta in own]
        self._pairs = [(k, self.aliases[i]) for i, k, _ in found if i in self.aliases]
        self._found = found
        self._both = [(k, meta) for i, k, meta in found if i in both]
        self._double_backward = double_backward
        retained = double_backward.needed if self._both and double_backward is not None else frozenset[int]()
        self.retained = sorted(retained - self.aliases.keys())
        self.kept = sorted(i for i in self._wanted_in_other_kinds - retained if _is_leaf_of_its_own(inputs[i]))
        self.holds = bool(self.retained or self.kept)

    @property
    def _wanted_in_other_kinds(self) -> frozenset[int]:
        """Inputs saved by themselves alone, whose values at the call matter: eager's engine could run from these."""
        if self._double_backward is None or self._double_backward.recomputes:
            return frozenset()
        return self._computed_from & {i for i, _, _ in self._found} - self.aliases.keys()

    @property
    def remembered(self) -> frozenset[int]:
        """The inputs whose memory is saved, whoever replaces it."""
        return frozenset(self.aliases) | frozenset(self.retained)

    def all_retained(self, hooked: bool) -> list[int]:
        """Inputs whose memory is saved behind all else, in this order."""
        return [*self.retained, *self.kept_where(hooked)]

    def kept_where(self, hooked: bool) -> list[int]:
        """Those that are `kept`. Hooks on what is saved (`hooked`) see none of them: eager does not save them."""
        return [] if hooked else self.kept

    def former(self, saved: Sequence[torch.Tensor], hooked: bool) -> dict[int, torch.Tensor]:
        """The memory of those that the call has read."""
        retained = self.all_retained(hooked)
        first = len(saved) - len(retained)
        return {i: saved[k] for i, k in self.aliases.items()} | {i: saved[first + n] for n, i in enumerate(retained)}

    def moved(self, saved: Sequence[torch.Tensor]) -> bool:
        """Another tensor is in the place of an input of which the memory that was there is read as well."""
        return not all(lie_together(saved[k], saved[a]) or _is_equal(saved[k], saved[a]) for k, a in self._pairs)

    def in_other_kinds(self, saved: Sequence[torch.Tensor], hooked: bool) -> bool:
        """Whether `gradients` is asked because another kind of tensor is in an input's place.

        Where the memory of that input mattered and nobody has it, nobody could answer.
        """
        others = {i for i, k, meta in self._found if not is_like(saved[k], meta)}
        return bool(others) and (bool(self._both) or not others & self._computed_from - {*self.kept_where(hooked)})

    def with_history(self, moved: bool) -> bool:
        """Whether it is asked because gradients need one, and another tensor is in the place (`moved`)."""
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
        """Eager's gradients by primal, with a history.

        Raises:
            RuntimeError: there is no graph that could be run again, the inputs are gone (None), or another tensor is in
                the place of one whose memory nobody holds.
        """
        double_backward, known = self._double_backward, {*self.remembered, *self.kept_where(hooked)}
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
        new = {i: inputs[i].detach() for i, was in former.items() if not lie_together(inputs[i], was)}
        with torch.enable_grad():
            for i in new:
                inputs[i] = in_former_memory(inputs[i], former[i])
        return double_backward.replayed(inputs, tangents, new)


def _is_leaf_of_its_own(tensor: torch.Tensor) -> bool:
    """What a program may give another size by hand; for data, results and weights it is not worth the time."""
    return tensor.requires_grad and tensor.is_leaf and not isinstance(tensor, Parameter)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.device == other.device and one.dtype is other.dtype and torch.equal(one, other)
