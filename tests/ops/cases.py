"""The rows of the judge: one for each operator of OpInfo's database and each dtype that it takes on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

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


@dataclass(frozen=True)
class Sample:
    """One call of an operator: `fn(input, *args, **kwargs)`, where `fn` ends in what OpInfo does to its result."""

    number: int
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    process: Callable[[Any], Any]

    def fresh(self, change: Change | None = None) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Arguments of their own with the same values and layout; `change` is done to floating ones."""
        given = (self.input, self.args, self.kwargs)
        return tree_map(lambda x: copy(x, change) if isinstance(x, torch.Tensor) else x, given)


@dataclass(frozen=True)
class Case:
    """An operator with a dtype."""

    info: Any
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"{self.info.full_name} {str(self.dtype).removeprefix('torch.')}"

    @property
    def gradients(self) -> bool:
        """Whether eager differentiates the operator in this dtype."""
        differentiable = self.dtype.is_floating_point or self.dtype.is_complex
        return bool(differentiable and self.info.supports_autograd and self.dtype in self.info.backward_dtypes)

    def samples(self) -> Iterator[Sample]:
        """OpInfo's samples, the same ones each time."""
        torch.manual_seed(0)
        given = self.info.sample_inputs("cpu", self.dtype, requires_grad=self.gradients)
        for number, s in enumerate(given):
            # in memory of its own: some generators write to what they have handed out before
            own = tree_map(_copied, (s.input, tuple(s.args), dict(s.kwargs)))
            yield Sample(number, *own, s.output_process_fn_grad)


def all_cases(dtypes: list[str]) -> list[Case]:
    """The rows of these dtypes, in the order of the database."""
    from tests.opinfo import database

    database.wrapper_set_seed = _without_seed  # random operators: the judge seeds, outside of the graph
    op_db = database.op_db
    return [Case(info, DTYPES[d]) for d in dtypes for info in op_db if DTYPES[d] in info.supported_dtypes("cpu")]


def _copied(value: Any) -> Any:
    return copy(value) if isinstance(value, torch.Tensor) else value


def _without_seed(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def copy(x: torch.Tensor, change: Change | None = None) -> torch.Tensor:
    """A leaf with the values of `x`, and with its strides, overlaps and offset where nothing is changed."""
    with torch.no_grad():
        if change is not None and (x.is_floating_point() or x.is_complex()):
            made = change(x.detach())
        elif x.layout is not torch.strided or x.is_conj() or x.is_neg():
            made = x.detach().clone()
        else:
            made = torch.empty(0, dtype=x.dtype)
            made.set_(x.untyped_storage().clone(), x.storage_offset(), x.shape, x.stride())
    if type(x) is torch.nn.Parameter:
        return torch.nn.Parameter(made, x.requires_grad)
    return made.requires_grad_(x.requires_grad)


def widened(x: torch.Tensor) -> torch.Tensor:
    """The same values in double precision."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64, copy=True)


def single(x: torch.Tensor) -> torch.Tensor:
    """The same values in single precision."""
    return x.to(torch.float32, copy=True)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """The values as if each had been rounded once more."""
    signs = torch.arange(x.numel(), dtype=torch.float64).remainder(2).mul(2).sub(1).reshape(x.shape)
    return x * (1 + signs * torch.finfo(x.dtype).eps).to(x.dtype)
