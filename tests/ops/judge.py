"""Says whether a result is eager's: dtype, shape, strides, and values within eager's own error.

A floating value is right when it is within a few units in the last place of eager's, or when its distance from the
exact result is within a small factor of eager's own. Exact is float64's result, or, for random operators and float64
itself, eager's on arguments that are rounded once more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from smelt.graph.ir.meta import is_dense

FACTOR = 4.0  # times eager's own error
ULPS = 16.0  # units in the last place of the value, where eager happens to be exact
ROUNDINGS = 4.0  # units in the last place of the largest value: what another order of a sum may do


def difference(
    got: Any,
    want: Any,
    exact: Any,
    where: str,
    *,
    values: bool = True,
    layout: bool = True,
    gaps: bool = True,
    scale: float = 0.0,
) -> str | None:
    """How `got` differs from eager's `want`; `exact` is what both are measured by, or None.

    Args:
        values, layout: whether to compare values, and what tells how elements lie in memory.
        gaps: whether `got` has gaps and repeats where `want` has: gradients have memory of their own.
        scale: how large values may be that cancel to these.
    """
    if isinstance(want, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            return f"{where}: {type(got).__name__} instead of a tensor"
        return _facts(got, want, where, layout, gaps) or (_values(got, want, exact, where, scale) if values else None)
    if isinstance(want, (tuple, list)):
        if not isinstance(got, (tuple, list)) or len(got) != len(want):
            return f"{where}: {got!r:.60} instead of {len(want)} results"
        if type(got) is not type(want):
            return f"{where}: a {type(got).__name__} instead of a {type(want).__name__}"
        references = exact if isinstance(exact, (tuple, list)) and len(exact) == len(want) else [None] * len(want)
        for i, (g, w, e) in enumerate(zip(got, want, references, strict=True)):
            found = difference(g, w, e, f"{where}[{i}]", values=values, layout=layout, gaps=gaps, scale=scale)
            if found:
                return found
        return None
    if not values or got is want or got == want or (got != got and want != want):
        return None
    if isinstance(want, float) and isinstance(got, float) and abs(got - want) <= 1e-6 * abs(want):
        return None
    return f"{where}: {got!r:.60} instead of {want!r:.60}"


def _facts(got: torch.Tensor, want: torch.Tensor, where: str, layout: bool, gaps: bool) -> str | None:
    for fact in ("dtype", "shape", "layout", "requires_grad"):
        g, w = getattr(got, fact), getattr(want, fact)
        if g != w and (layout or fact != "requires_grad"):
            return f"{where}: {fact} {g} instead of {w}"
    if not layout or want.layout is not torch.strided or not (gaps or is_dense(want.shape, want.stride())):
        return None
    if _strides(got) != _strides(want):
        return f"{where}: strides {got.stride()} instead of {want.stride()} for {tuple(want.shape)}"
    return None


def _strides(x: torch.Tensor) -> list[int]:
    """The strides; on a GPU those that say where an element lies."""
    if not x.is_cuda:
        return list(x.stride())
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1] if x.numel() else []


def _values(got: torch.Tensor, want: torch.Tensor, exact: Any, where: str, scale: float) -> str | None:
    got, want = plain(got), plain(want)
    if not (want.is_floating_point() or want.is_complex()):
        wrong = got != want
    else:
        wide = torch.complex128 if want.is_complex() else torch.float64
        g, w, eps = got.to(wide), want.to(wide), torch.finfo(want.dtype).eps
        tiny = torch.finfo(want.dtype).tiny if want.is_cuda else 0.0  # atomic sums have no subnormal numbers
        wrong = ~_near(g, w, tiny + eps * (ULPS * _finite(w) + ROUNDINGS * _largest(w).clamp(min=scale)))
        if isinstance(exact, torch.Tensor) and exact.shape == want.shape and wrong.any():
            e = plain(exact).to(want.device, wide)
            error = _finite(w - e)
            allowed = tiny + FACTOR * (error + _largest(w - e)) + eps * (ULPS * _finite(e) + ROUNDINGS * _largest(e))
            wrong &= ~_near(g, e, allowed) & ~_overflows(g, e, want.dtype)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in wrong.nonzero()[0])
    more = (
        f" (exact: {exact.detach()[at].item()})"
        if isinstance(exact, torch.Tensor) and exact.shape == want.shape
        else ""
    )
    count = f"{int(wrong.sum())} of {wrong.numel()}"
    return f"{where}: {got[at].item()} instead of {want[at].item()}{more} at {list(at)}, {count} {want.dtype}"


def plain(x: torch.Tensor) -> torch.Tensor:
    """The values in a strided tensor, without lazy bits."""
    x = x.detach()
    return (x.to_dense() if x.layout is not torch.strided else x).resolve_conj().resolve_neg()


def _near(a: torch.Tensor, b: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Within `allowed`; NaN and infinities only where the other has them."""
    if a.is_complex():
        parts = [_near(getattr(a, p), getattr(b, p), allowed) for p in ("real", "imag")]
        return parts[0] & parts[1]
    return (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= allowed) & a.isfinite() & b.isfinite()


def _overflows(a: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Infinite where the exact value is beyond the type; a sum whose steps are lost in rounding may stay below."""
    if a.is_complex():
        return torch.zeros_like(a, dtype=torch.bool)
    return a.isinf() & (a.sign() == exact.sign()) & (exact.abs() > torch.finfo(dtype).max)


def _finite(x: torch.Tensor) -> torch.Tensor:
    return x.abs().nan_to_num(0.0, 0.0, 0.0)


def _largest(x: torch.Tensor) -> torch.Tensor:
    return _finite(x).max() if x.numel() else x.new_zeros((), dtype=torch.float64)


def shared_memory(results: Any, given: Any) -> list[str]:
    """Which results lie in the memory of an argument, or of an earlier result, and which are one object."""
    owners: dict[int, str] = {}
    for i, x in enumerate(t for t in tree_leaves(given) if isinstance(t, torch.Tensor)):
        owners.setdefault(_memory(x), f"argument {i}")
    told = []
    objects: dict[int, str] = {}
    for i, x in enumerate(t for t in tree_leaves(results) if isinstance(t, torch.Tensor)):
        if objects.setdefault(id(x), f"result {i}") != f"result {i}":
            told.append(f"result {i} is {objects[id(x)]}")
            continue
        owner = owners.setdefault(_memory(x), f"result {i}")
        if _memory(x) and owner != f"result {i}":
            told.append(f"result {i} in {owner}")
    return told


def _memory(x: torch.Tensor) -> int:
    """Where its memory begins; 0 for a tensor without any."""
    return x.untyped_storage().data_ptr() if x.layout is torch.strided else 0


def same_bits(now: Any, was: Any) -> bool:
    """Whether tensors hold what they held; a NaN is equal to itself."""
    pairs = zip(tree_leaves(now), tree_leaves(was), strict=True)
    for a, b in pairs:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            a, b = plain(a), plain(b)
            if not (a == b).logical_or((a != a) & (b != b)).all():
                return False
    return True
