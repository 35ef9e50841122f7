"""Inputs and results that the caller writes between a call and its backward: gradients are those of eager's graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import smelt


def _and_tanh(y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return y, (y * w).tanh(), y.view(2, 4).t()


PROGRAMS: dict[str, Callable[..., Any]] = {
    "relu": lambda x, w: (x * 2).relu().exp(),
    "where": lambda x, w: torch.where(x > 0, x * 3, -x) * 2,
    "masked_fill": lambda x, w: x.masked_fill(x < 0.2, 0.5) + 1,
    "maximum of all": lambda x, w: (x + 1).max() * x.sum(),
    "sin": lambda x, w: ((x * 2).sin() * w).sum(),
    "input saved": lambda x, w: (x * w).sum(),
    "sigmoid twice": lambda x, w: torch.sigmoid(x + 1).sigmoid(),
    "norm": lambda x, w: F.layer_norm(x + 0.5, (8,)) * w,
    "tanh times one": lambda x, w: torch.tanh(x) * 1.0,
    "two results": lambda x, w: (torch.tanh(x) * 1.0, (x * 2).exp()),
    "softmax": lambda x, w: (x * 3).softmax(0) * w,
    "clone": lambda x, w: x.clone() * w,
    "cast": lambda x, w: x.double().exp().float() * w,
    "dropout of nothing": lambda x, w: F.dropout(x.exp(), 0.0) + 0,
    "saved beside its sine": lambda x, w: x.sin() * w,
    "in the formula and computed": lambda x, w: F.gelu(x) * x.erf() * w,
    "saved by hypot beside its result": lambda x, w: torch.hypot(x, w).abs().log(),
    "saved in another shape": lambda x, w: (x.view(2, 4).t() @ w.view(2, 4)).sin() * x.view(2, 4).exp().sum(),
    "saved beside a copy": lambda x, w: x.clone() * w + x * w.sin(),
    "saved result, read again": lambda x, w: _and_tanh((x * 2).exp(), w),
    "saved beside a sum": lambda x, w: x * x.sum() * w,
    "saved beside a norm": lambda x, w: F.silu(F.layer_norm(x, (8,), w, x)),
}


def _erf_beside(view: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x.view(2, 4) + w.view(2, 4)
        return view(y), y.erf()

    return fn


PROGRAMS |= {
    "saved whole of a transposed result": _erf_beside(torch.t),
    "saved whole of a result in another shape": _erf_beside(lambda y: y.view(4, 2)),
    "saved whole of a row": _erf_beside(lambda y: y[1]),
}


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.view(2, 4).t().contiguous().view(8),
    "of a type": lambda x: x.to(x.dtype, copy=True),
    "times one": lambda x: x * 1,
    "and zero": lambda x: x + 0,
    "view": lambda x: x.clone().view(2, 4).view(8),
}
READERS: dict[str, Callable[..., Any]] = {
    "product": lambda r, x, w: r * w,
    "logsumexp": lambda r, x, w: r.logsumexp(0) * r + w,
    "addcmul": lambda r, x, w: torch.addcmul(r, x, r) * w,
    "beside the input": lambda r, x, w: r * w + x * w.sin(),
}


def _beside_copies(copy: Callable[..., Any], read: Callable[..., Any], count: int) -> Callable[..., Any]:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        copies = [copy(x) for _ in range(count)]
        return *copies, sum(read(r, x, w * (i + 1)) for i, r in enumerate(copies))

    return fn


def _zero(x: torch.Tensor) -> None:
    with torch.no_grad():
        x.zero_()


def _refill(x: torch.Tensor) -> None:
    x.data.fill_(0.7)


def _numpy(x: torch.Tensor) -> None:
    x.detach().numpy()[...] = 0.3


WRITES = {"in place": _zero, "data": _refill, "numpy": _numpy}


def _gradients(run: Callable[..., Any], kind: str, write: Callable[[torch.Tensor], Any], what: str) -> list[Any]:
    found: list[Any] = []
    for start in (-1.0, -0.5):
        leaf = torch.linspace(start, 1, 8, requires_grad=kind != "buffer")
        w = torch.linspace(1, 2, 8, requires_grad=True)
        x = leaf * 1 if kind == "computed" else leaf
        out = run(x, w)
        results = out if isinstance(out, tuple) else (out,)
        for target in {"input": [x], "results": results, "first": results[:1], "weight": [w]}[what]:
            write(target)
        try:
            if results[0].requires_grad:
                sum(r.sum() for r in results).backward()
        except RuntimeError:
            found.append("error")
        else:
            found.append([None if t.grad is None else t.grad.tolist() for t in (leaf, w)])
    return found


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("kind", ["leaf", "computed", "buffer"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_written_after_the_call(name: str, kind: str, how: str, backend: str) -> None:
    _compare(name, kind, how, "input", backend)


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_written_before_the_backward(name: str, how: str, backend: str) -> None:
    _compare(name, "computed", how, "results", backend)


LARGE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "logits and their loss": lambda x, w: ((y := x @ w), F.cross_entropy(y, torch.arange(len(y)))),
    "logits in float32": lambda x, w: ((y := (x @ w).half()), F.cross_entropy(y.float(), torch.arange(len(y)))),
    "relu and twice": lambda x, w: ((x @ w).relu(), x * 2),
    "hidden and the next layer": lambda x, w: ((y := (x @ w).tanh()), F.gelu(y @ w.t())),
    "normalized and its sine": lambda x, w: ((y := F.layer_norm(x @ w, (160,))), y.sin() * y),
    "another shape": lambda x, w: ((y := x @ w).view(16, -1), F.silu(y) * 2, y.t()),
}


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("name", LARGE)
def test_large_results_written_before_the_backward(name: str, how: str, backend: str) -> None:
    """102,400 bytes and more: no size is large enough for the backward to read what the caller has changed."""
    x, w = torch.randn(160, 64), torch.randn(64, 160) / 8

    def gradients(run: Callable[..., Any]) -> Any:
        given = x.clone().requires_grad_(), w.clone().requires_grad_()
        first, *others = run(*given)
        WRITES[how](first)
        try:
            (first.sum() + sum(each.sum() for each in others)).backward()
        except RuntimeError:
            return "error"
        return tuple(each.grad for each in given)

    expected, found = gradients(LARGE[name]), gradients(smelt.compile(LARGE[name], backend=backend))
    if "error" in (expected, found):
        assert expected == found
    else:
        torch.testing.assert_close(found, expected, atol=2e-2 if "float32" in name else 1e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("copy", COPIES)
def test_copies_of_inputs_that_are_results_written_before_the_backward(
    copy: str, read: str, count: int, backend: str
) -> None:
    fn = _beside_copies(COPIES[copy], READERS[read], count)
    for kind in ("leaf", "computed"):
        _compare_program(fn, kind, lambda r: r.data.fill_(0.7), "first", backend)
        _compare_program(fn, kind, _numpy, "results", backend)


@pytest.mark.parametrize("name", ["relu", "sin", "norm", "softmax"])
def test_other_inputs_written_after_the_call(name: str) -> None:
    _compare(name, "buffer", "in place", "weight")


def _compare(name: str, kind: str, how: str, what: str, backend: str = "smelt") -> None:
    _compare_program(PROGRAMS[name], kind, WRITES[how], what, backend)


def _compare_program(
    fn: Callable[..., Any], kind: str, write: Callable[[torch.Tensor], Any], what: str, backend: str = "smelt"
) -> None:
    expected = _gradients(fn, kind, write, what)
    made = _gradients(smelt.compile(fn, backend=backend), kind, write, what)
    for a, b in zip(made, expected, strict=True):
        if a == "error" or b == "error":
            assert a == b
            continue
        for one, other in zip(a, b, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        r = x.tanh()
        ctx.save_for_backward(x, r)
        return r

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x, r = ctx.saved_tensors
        return grad * (1 - r * r) + x


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("inside", [_Kept.apply, torch.tanh, lambda x: (x * 2).exp()], ids=["function", "tanh", "exp"])
def test_results_of_a_checkpoint_written_before_the_backward(inside: Any, how: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        return checkpoint(inside, x * 1, use_reentrant=False), (x * 3).sin()

    def seen(run: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 1, 8, requires_grad=True)
        y, z = run(x)
        WRITES[how](y)
        (y.sum() + z.sum()).backward()
        return x.grad

    torch.testing.assert_close(seen(smelt.compile(fn)), seen(fn))


def _beside_one_saved_in_both_ways(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Eager saves x by itself and turned, and nothing of y."""
    return torch.maximum(F.linear(x, x), y + y.roll(1, 0))


@pytest.mark.parametrize("write", [lambda y: y.detach().fill_(0.7), lambda y: y.data.mul_(0), lambda y: None])
def test_an_unsaved_input_is_written_beside_one_saved_in_both_forms(
    write: Callable[[torch.Tensor], Any],
) -> None:
    """Its memory was held for a backward that finds another kind of tensor in the other's place, with its version."""
    found = []
    for run in (_beside_one_saved_in_both_ways, smelt.compile(_beside_one_saved_in_both_ways)):
        leaves = [torch.linspace(-1, 1.3, 16).roll(5 * k).view(4, 4).requires_grad_() for k in range(2)]
        x, y = (leaf * 1 for leaf in leaves)
        out = run(x, y)
        write(y)
        grads = torch.autograd.grad(out.sum(), leaves)
        found.append(list(grads))
    torch.testing.assert_close(*found)


def test_nor_is_it_read_when_the_other_one_is_replaced_by_another_kind() -> None:
    """Then the backward begins from the held memory: it says so, and gives no gradients of what was written."""
    leaves = [torch.linspace(-1, 1.3, 16).roll(5 * k).view(4, 4).requires_grad_() for k in range(2)]
    x, y = (leaf * 1 for leaf in leaves)
    out = smelt.compile(_beside_one_saved_in_both_ways)(x, y)
    with torch.no_grad():
        y.fill_(0.7)
    x.data = torch.ones(1, 4)
    with pytest.raises(RuntimeError, match=r"\.data of an input was replaced"):
        out.sum().backward()


PRODUCTS: dict[str, Callable[..., Any]] = {
    "of all": lambda x, w: x.prod() * x * w,
    "of rows": lambda x, w: x.view(2, 4).prod(1).sum() * w,
    "of columns": lambda x, w: torch.prod(input=x.view(2, 4), dim=0, keepdim=True) * w.view(2, 4),
    "of one each": lambda x, w: (x.view(8, 1).prod(-1) * w).prod(0, True),
    "in another type": lambda x, w: x.prod(dtype=torch.float64).float() * w,
}


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_inputs_written_after_the_call(name: str, backend: str) -> None:
    """Eager divides the former result by what is there now, unless that has zeros."""
    compiled = smelt.compile(PRODUCTS[name], backend=backend)
    for zeros in (0, 1, 2):
        for write in (*WRITES.values(), lambda x: x.data[3].zero_(), lambda x: None):
            found = []
            for run in (PRODUCTS[name], compiled):
                start = torch.linspace(-1.3, 1.1, 8)
                start[1 : 1 + zeros] = 0
                x, w = start.requires_grad_(), torch.linspace(1, 2, 8, requires_grad=True)
                out = run(x, w)
                write(x)
                try:
                    found.append(torch.autograd.grad(out.sum(), (x, w)))
                except RuntimeError:
                    found.append("error")
            if "error" in found:
                assert found[0] == found[1]
            else:
                torch.testing.assert_close(*found)


def test_second_derivatives_of_sizes_that_the_first_call_does_not_have() -> None:
    """A formula that asks for sizes is compiled for those of each call: guards are written before it is."""
    compiled = smelt.compile(lambda x: x.prod(0, True), dynamic=True)
    for shape in ((3, 4), (2, 4), (5, 7), (3, 4)):
        found = []
        for run in (lambda x: x.prod(0, True), compiled):
            x = torch.linspace(-1.3, 1.1, shape[0] * shape[1]).view(shape).requires_grad_()
            (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.sin().sum(), x)))
        torch.testing.assert_close(*found)


def test_second_derivatives_of_products_beside_zeros() -> None:
    for zeros in (0, 1, 2):
        found = []
        for run in (lambda x: x.prod(1), smelt.compile(lambda x: x.prod(1))):
            x = torch.linspace(-1.3, 1.1, 8)
            x[1 : 1 + zeros] = 0
            x = x.view(2, 4).requires_grad_()
            (first,) = torch.autograd.grad((run(x) ** 2).sum(), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.sin().sum(), x)))
        torch.testing.assert_close(*found)


UNUSED: dict[str, tuple[Callable[[torch.Tensor], Any], int, int | None]] = {
    "a result that saves itself": (lambda x: (x.tanh(), x * 3), 1, 0),
    "the input of one": (lambda x: (x.sin(), x + 3), 1, None),
    "a result that saves itself beside one that is read": (lambda x: (x.tanh(), x.exp(), x + 3), 1, 0),
    "a view of what is read": (lambda x: (x[1:].sin(), x[:2].cos(), x.exp()), 1, None),
    "a result beside a view of another one": (lambda x: ((x * 2).exp().t()[1:], x.tanh()), 0, 1),
    "the input of both": (lambda x: (x.sin(), x.cos()), 1, None),
    "the result that is used": (lambda x: (x.tanh(), x.exp()), 1, 1),
}
"""Programs, the result that is used, and the one that is written to (None: the input)."""


def _tells_of_each() -> bool:
    node = torch.ones(1, requires_grad=True).exp().grad_fn
    return all(hasattr(each, "unpack") and hasattr(each, "data") for each in [node._raw_saved_result])  # type: ignore[union-attr]


@pytest.mark.skipif(not _tells_of_each(), reason="this PyTorch tells of all saved tensors of a node or of none")
@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("name", UNUSED)
def test_saved_tensors_of_unused_results_may_be_written_to(name: str, backend: str) -> None:
    """Eager asks only nodes that lead to a used result; a compiled graph is one node. Errors are those of eager."""
    f, used, written = UNUSED[name]

    def gradients(run: Callable[..., Any], size: int) -> Any:
        leaf = torch.linspace(-1, 1, 4 * size).view(size, 4).requires_grad_()
        x = leaf * 1
        results = run(x)
        (x if written is None else results[written]).mul_(2)
        try:
            results[used].sum().backward()
        except RuntimeError as error:
            return str(error)[:40]
        return [round(value, 4) for value in leaf.grad.flatten().tolist()]  # type: ignore[union-attr]

    run = smelt.compile(f, backend=backend)
    for size in (3, 3, 5):
        assert gradients(run, size) == gradients(f, size)
