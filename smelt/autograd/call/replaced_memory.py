"""Inputs that eager saves both by themselves and as views, where another kind of tensor is in their place.

The compiled backward reads both, what is there (`x.data = y`) and what was. Where the former has another size or type,
which eager's formulas may broadcast, the backward is run once more by eager's engine, from the memory that the call has
read. This module holds that memory and tells when it is wanted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from smelt.autograd.call.double_backward import DoubleBackward, in_former_memory
from smelt.autograd.call.unpacked import is_like, lie_together
from smelt.graph.ir.meta import TensorMeta

Own = Sequence[tuple[int, TensorMeta]]


class ReadTwice:
    """The inputs of one compiled graph that eager reads in both ways.

    Args:
        inputs, saved: of the first call; where saved tensors come from is the same at each.
        own, aliased: positions of inputs that are saved by themselves, and as an alias.
        both: those inputs that eager saves in both ways.
        again: makes gradients of the graph; None where nobody can.

    Attributes:
        held: inputs whose memory is saved besides, last of all.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        own: Own,
        aliased: Sequence[int],
        both: Collection[int],
        again: DoubleBackward | None,
    ) -> None:
        given = {id(tensor): i for i, tensor in enumerate(inputs)}
        self.aliases = {given[id(saved[k])]: k for k in aliased}
        found = [(given[id(saved[k])], k, meta) for k, meta in own]
        self._pairs = [(k, self.aliases[i]) for i, k, _ in found if i in self.aliases]
        self._both = [(k, meta) for i, k, meta in found if i in both]
        self._again = again
        self.held = sorted((again.needed if self._both and again is not None else set()) - self.aliases.keys())

    @property
    def remembered(self) -> frozenset[int]:
        """The inputs whose memory is saved."""
        return frozenset(self.aliases) | frozenset(self.held)

    def former(self, saved: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The memory that the call has read."""
        first = len(saved) - len(self.held)
        return {i: saved[k] for i, k in self.aliases.items()} | {i: saved[first + n] for n, i in enumerate(self.held)}

    def moved(self, saved: Sequence[torch.Tensor]) -> bool:
        """Another tensor is in the place of an input of which the memory that was there is read as well."""
        return not all(lie_together(saved[k], saved[a]) or _is_equal(saved[k], saved[a]) for k, a in self._pairs)

    def run_by_eager(self, saved: Sequence[torch.Tensor], moved: bool) -> bool:
        """Whether `gradients` is asked: another kind of tensor is in the place of an input that is read as a view as
        well; or another one is (`moved`), and gradients need a history."""
        if not all(is_like(saved[k], meta) for k, meta in self._both):
            return True
        return moved and bool(self._both) and self._again is not None and not self._again.recomputes

    def gradients(
        self,
        inputs: list[torch.Tensor] | None,
        saved: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
    ) -> dict[int, torch.Tensor | None]:
        """Eager's gradients by primal, with a history.

        Raises:
            RuntimeError: there is no graph that could be run again, or the inputs are gone (None).
        """
        again = self._again
        if again is None or again.recomputes or inputs is None:
            raise RuntimeError(
                "smelt: the .data of an input was replaced after the call, and the backward reads both the input and "
                "a view of what it was"
            )
        former = {i: was for i, was in self.former(saved).items() if i in again.needed}
        moved = {i: inputs[i].detach() for i, was in former.items() if not lie_together(inputs[i], was)}
        with torch.enable_grad():
            for i in moved:
                inputs[i] = in_former_memory(inputs[i], former[i])
        return again.replayed(inputs, tangents, moved)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.device == other.device and one.dtype is other.dtype and torch.equal(one, other)
