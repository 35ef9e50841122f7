"""Where the elements of a captured value lie in an int8 tensor, by index: every view is computed on the indices.

A tensor lies channels last, (positions, channels), one example behind the other. A value of the captured graph has an
index for each element, so that transposes, reshapes, slices and heads of attention need no rules of their own: an
operator asks whether the order that it wants is there.
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
        name: the int8 tensor that holds it.
        index: int64, of the value's shape: the element of a batch of such tensors.
        factor: what the tensor's values are multiplied by.
    """

    name: str
    index: torch.Tensor
    factor: float = 1.0

    def through(self, target: Any, arguments: tuple[Any, ...], more: dict[str, Any]) -> View | tuple[View, ...]:
        """What a view operator makes of it; some make several."""
        made = target(self.index, *arguments, **{k: v for k, v in more.items() if k != "memory_format"})
        if isinstance(made, torch.Tensor):
            return View(self.name, made, self.factor)
        return tuple(View(self.name, one, self.factor) for one in made)

    def whole(self, elements: int, batch: int) -> bool:
        """Whether it is all of a batch of tensors of so many elements, in any order."""
        count = elements * batch
        return self.index.numel() == count and bool((self.index.flatten().sort().values == torch.arange(count)).all())


def rows(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The begin of each row of (rows, columns), and the order of columns that all rows have in common.

    None: rows are no runs of as many elements that begin at a multiple of their length, or have different orders.
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
        elements, channels: of the tensor.
        count: of heads.

    None: they lie otherwise.
    """
    index = view.index.reshape(-1, count, *view.index.shape[-2:])
    batch, _, positions, width = index.shape
    start = int(index[0, 0, 0, 0])
    wanted = torch.arange(batch).reshape(-1, 1, 1, 1) * elements + torch.arange(count).reshape(-1, 1, 1) * width
    wanted = wanted + torch.arange(positions).reshape(-1, 1) * channels + torch.arange(width) + start
    return (start, width) if torch.equal(index, wanted) and start + count * width <= channels else None
