"""The rows of the judge: one for each operator of OpInfo's database, each dtype that it takes and each layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .layouts import LAYOUTS, SIZES, laid_out

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float32,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.float64,
        torch.float16,
        torch.int32,
        torch.complex64,
    )
}

Change = Callable[[torch.Tensor], torch.Tensor]

UNKNOWN: dict[str, Iterable[str]] = {"_segment_reduce": SIZES, "nn.functional.multi_margin_loss": ("zero",)}
"""Layouts in which eager's result is what memory held before: it reads outside of its arguments, or writes nothing."""


@dataclass(frozen=True)
class Sample:
    """One call of an operator: `fn(input, *args, **kwargs)`, where `fn` ends in what OpInfo does to its result."""

    number: int
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    process: Callable[[Any], Any]
    change: Change | None = None

    def fresh(self, change: Change | None = None) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Arguments of their own in the same layout; `change`, after the sample's own, is done to floating ones."""
        given = (self.input, self.args, self.kwargs)
        if self.change is not None:
            given = tree_map(lambda x: copy(x, self.change) if isinstance(x, torch.Tensor) else x, given)
        return tree_map(lambda x: copy(x, change) if isinstance(x, torch.Tensor) else x, given)


@dataclass(frozen=True)
class Case:
    """An operator with a dtype, on a device, with its tensors in a layout.

    Attributes:
        most: how many samples to take, those of tensors with rows and columns first; 0 for all.
        target: the option of `smelt.compile`: "triton" on a CPU means Triton's interpreter.
        dynamic: whether sizes are symbols in the graph.
    """

    info: Any
    dtype: torch.dtype
    layout: str = "own"
    device: str = "cpu"
    most: int = 0
    target: str = "auto"
    dynamic: bool = False

    @property
    def name(self) -> str:
        name = f"{self.info.full_name} {str(self.dtype).removeprefix('torch.')}"
        name = name if self.layout == "own" else f"{name} {self.layout}"
        return f"{name} dynamic" if self.dynamic else name

    @property
    def gradients(self) -> bool:
        """Whether eager differentiates the operator in this dtype."""
        differentiable = self.dtype.is_floating_point or self.dtype.is_complex
        return bool(differentiable and self.info.supports_autograd and self.dtype in self.info.backward_dtypes)

    def samples(self) -> Iterator[Sample]:
        """OpInfo's samples, the same ones each time; of other layouts than their own those that have this one."""
        torch.manual_seed(0)
        made = list(self._samples())
        if not self.most:
            return iter(made)
        made.sort(key=lambda sample: _plainness(sample))  # stable: the order of the database among equals
        start = LAYOUTS.index(self.layout) if len(made) >= self.most + len(LAYOUTS) else 0  # not always the same ones
        return iter(made[start : start + self.most])

    def _samples(self) -> Iterator[Sample]:
        given = self.info.sample_inputs(self.device, self.dtype, requires_grad=self.gradients)
        for number, s in enumerate(given):
            # in memory of its own: some generators write to what they have handed out before
            own = tree_map(_copied, (s.input, tuple(s.args), dict(s.kwargs)))
            for part, made in enumerate(laid_out(own, self.layout)):
                yield Sample(number + 1000 * part, *made, s.output_process_fn_grad)


def _plainness(sample: Sample) -> int:
    """0 for a sample whose first tensor has rows and columns, more for one that can go wrong in fewer ways."""
    first = next((x for x in tree_leaves((sample.input, sample.args)) if isinstance(x, torch.Tensor)), None)
    if first is None or not first.numel():
        return 3
    return 0 if first.dim() > 1 and first.numel() > 3 else 1 if first.numel() > 1 else 2


def all_cases(
    dtypes: list[str],
    layouts: Sequence[str] = ("own",),
    device: str = "cpu",
    most: int = 0,
    target: str = "auto",
    dynamic: bool = False,
) -> list[Case]:
    """The rows of these dtypes and layouts, in the order of the database."""
    from tests.opinfo import database

    database.wrapper_set_seed = _without_seed  # random operators: the judge seeds, outside of the graph
    op_db = database.op_db
    return [
        Case(info, DTYPES[d], layout, device, most, target, dynamic)
        for d in dtypes
        for layout in layouts
        for info in op_db
        if DTYPES[d] in info.supported_dtypes(torch.device(device).type)
        if layout not in UNKNOWN.get(info.name, ())
    ]


def _copied(value: Any) -> Any:
    return copy(value) if isinstance(value, torch.Tensor) else value


def _without_seed(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def copy(x: torch.Tensor, change: Change | None = None) -> torch.Tensor:
    """A leaf with the values of `x`, and with its strides, overlaps and offset where nothing is changed."""
    with torch.no_grad():
        if change is not None and (x.is_floating_point() or x.is_complex()):
            made = change(x.detach())
            if made.dtype is x.dtype and made.layout is torch.strided and not (x.is_conj() or x.is_neg()):
                made = _as(x, made)
        elif x.layout is not torch.strided or x.is_conj() or x.is_neg():
            made = x.detach().clone()
        else:
            made = torch.empty(0, dtype=x.dtype, device=x.device)
            made.set_(x.untyped_storage().clone(), x.storage_offset(), x.shape, x.stride())
    if type(x) is torch.nn.Parameter:
        return torch.nn.Parameter(made, x.requires_grad)
    return made.requires_grad_(x.requires_grad)


def _as(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """These values in the layout of `x`."""
    made = torch.empty(0, dtype=x.dtype, device=x.device)
    made.set_(x.untyped_storage().clone(), x.storage_offset(), x.shape, x.stride())
    try:
        return made.copy_(values)
    except RuntimeError:  # elements that lie in the same place
        return values


def widened(x: torch.Tensor) -> torch.Tensor:
    """The same values in double precision."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64, copy=True)


def single(x: torch.Tensor) -> torch.Tensor:
    """The same values in single precision."""
    return x.to(torch.float32, copy=True)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """The values as if each had been rounded once more."""
    signs = torch.arange(x.numel(), dtype=torch.float64, device=x.device).remainder(2).mul(2).sub(1).reshape(x.shape)
    return x * (1 + signs * torch.finfo(x.dtype).eps).to(x.dtype)


def reversed_values(x: torch.Tensor) -> torch.Tensor:
    """The same values in another order, the last first: still symmetric, or positive definite, if they were."""
    return x.flip(tuple(range(x.dim()))) if x.layout is torch.strided and x.dim() else x.clone()


def shifted_values(x: torch.Tensor) -> torch.Tensor:
    """Values a little smaller, in place of all that were there: probabilities stay probabilities."""
    return (x * 0.75).to(x.dtype)
