"""Operations that raise for some values, where the program catches what they raise.

A graph that fails ends its frame: the frame runs in eager once more, from its start, and comes to its own `except`
clauses there. Where that cannot be, since the graph writes to its inputs or draws random numbers, such an operation is
not the graph's.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from smelt.capture.breaks import Break
from smelt.capture.running import name_of
from smelt.graph.trace import TraceTensor

_BY_INDEX = frozenset({"getitem", "__getitem__", "setitem", "__setitem__"})

_MAY_RAISE = frozenset(
    {"index", "index_select", "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "gather", "scatter"}
    | {"scatter_add", "scatter_reduce", "take", "take_along_dim", "put", "embedding", "embedding_bag"}
    | {"nll_loss", "cross_entropy", "multi_margin_loss", "multilabel_margin_loss", "masked_scatter", "unravel_index"}
    | {"cholesky", "inv", "inverse", "solve", "solve_triangular", "eigh", "eig", "eigvals", "eigvalsh", "svd", "lstsq"}
    | {"matrix_power", "linalg_cholesky", "linalg_inv", "linalg_solve", "linalg_eigh", "linalg_eig", "linalg_svd"}
    | {"repeat_interleave", "bincount", "multinomial", "bernoulli", "poisson", "one_hot", "unflatten", "pack_padded"}
)
"""Operators whose errors depend on values, by name, without the last underscore of those that write."""


def may_raise(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether values decide if the operation raises."""
    name = str(getattr(target, "__name__", ""))
    if name in _BY_INDEX:
        index: Any = args[1] if len(args) > 1 else None
        return any(type(i) is TraceTensor for i in (index if isinstance(index, (tuple, list)) else (index,)))
    return name.removesuffix("_").removeprefix("linalg_") in _MAY_RAISE


def note_caught(vm: Any, target: Any, error: str = "RuntimeError") -> None:
    """An operation that raises for some values joins the graph.

    Raises:
        Break: the program catches the error, and the frame cannot run again to find it.
    """
    errors = (IndexError, RuntimeError, getattr(builtins, error))
    if not any(frame.decoded.catches(frame.pc - 1, errors) for frame in vm.frames):
        return
    if not vm.changes.repeats or error not in ("RuntimeError", "IndexError"):
        vm.work += 1  # what was learned from the operation is forgotten: capture begins again
        what = target if isinstance(target, str) else name_of(target)
        raise Break(f"{what} in a try statement", "only values tell whether it raises", "move it out of the statement")
    vm.tensors.caught = True
