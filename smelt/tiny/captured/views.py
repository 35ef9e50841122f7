"""Represents captured values by indices into int8 tensors; view operators are applied to the indices.

Tensors are channels-last, (positions, channels), with examples one after the other. A value of the captured graph has
an index for each element, so transposes, reshapes, slices and heads of attention need no rules of their own: a rule
only tests whether its operand's indices are in the order that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

aten = torch.ops.aten

VIEWS = frozenset(
    {
        *(aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.t.default),
        *(aten.transpose.int, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
        *(aten.select.int, aten.slice.Tensor, aten.expand.default, aten.clone.default, aten.alias.default),
        *(aten.detach.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.chunk.default),
    }
)


@dataclass(frozen=True)
class View:
    """A value of the captured graph.

    Attributes:
        name: the int8 tensor that contains its elements.
        index: int64, in the value's shape: positions of its elements in a batch of these tensors.
        factor: the factor by which the tensor's values are multiplied.
    """

    name: str
    index: torch.Tensor
    factor: float = 1.0

    def through(self, target: Any, arguments: tuple[Any, ...], more: dict[str, Any]) -> View | tuple[View, ...]:
        """The view after a view operator; several for operators with several results."""
        made = target(self.index, *arguments, **{k: v for k, v in more.items() if k != "memory_format"})
        if isinstance(made, torch.Tensor):
            return View(self.name, made, self.factor)
        return tuple(View(self.name, one, self.factor) for one in made)

    def covers_tensors(self, elements: int, batch: int) -> bool:
        """Whether the value consists of all elements of `batch` tensors of `elements` elements, in any order."""
        count = elements * batch
        return self.index.numel() == count and bool((self.index.flatten().sort().values == torch.arange(count)).all())


def rows(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """For an index of shape (rows, columns): the first element of each row, and the order of columns that all rows
    share.

    None if rows are not permutations of consecutive elements that start at a multiple of the row length, or differ in
    order.
    """
    begin = index.min(-1, keepdim=True).values
    columns = index - begin
    wide = index.shape[-1]
    same = (columns == columns[0]).all() and (begin % wide == 0).all()
    if not same or not torch.equal(columns[0].sort().values, torch.arange(wide)):
        return None
    return begin, columns[0]


def image(batch: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """The index of images as PyTorch has them, (batch, channels, height, width)."""
    return torch.arange(batch * prod(shape)).reshape(batch, *shape).permute(0, 3, 1, 2)


def heads(view: View, elements: int, channels: int, count: int) -> tuple[int, int] | None:
    """The first channel and the width of heads of an operand of attention, (batch * heads, positions, width) by index.

    Args:
        elements, channels: the number of elements and of channels of the tensor.
        count: the number of heads.

    Returns None if the elements are in another order.
    """
    index = view.index.reshape(-1, count, *view.index.shape[-2:])
    batch, _, positions, width = index.shape
    start = int(index[0, 0, 0, 0])
    wanted = torch.arange(batch).reshape(-1, 1, 1, 1) * elements + torch.arange(count).reshape(-1, 1, 1) * width
    wanted = wanted + torch.arange(positions).reshape(-1, 1) * channels + torch.arange(width) + start
    return (start, width) if torch.equal(index, wanted) and start + count * width <= channels else None
