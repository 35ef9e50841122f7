"""Wrapper subclasses: `__torch_dispatch__` is interpreted, and the operators on inner tensors are the graph."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map, tree_map_only

from smelt.base.errors import Unsupported
from tests.capture.harness import compiled

LOG: list[str] = []
aten = torch.ops.aten


class Pair(torch.Tensor):
    """Computes with two tensors at once."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.size(), strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        first, second = (
            func(*tree_map_only(Pair, pick, args), **tree_map_only(Pair, pick, kwargs))
            for pick in (lambda pair: pair.a, lambda pair: pair.b)
        )
        if isinstance(first, torch.Tensor):
            out = Pair(first, second)
        else:
            out = type(first)(map(Pair, first, second)) if isinstance(first, (list, tuple)) else first
        return return_and_correct_aliasing(func, args, kwargs, out)


class Logged(torch.Tensor):
    """Notes each operator."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        LOG.append(str(func))
        unwrap = lambda value: value.inner if isinstance(value, Logged) else value  # noqa: E731
        out = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        return tree_map(lambda value: Logged(value) if isinstance(value, torch.Tensor) else value, out)


class Int8(torch.Tensor):
    """A weight as int8 with one scale a row."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values, scales):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scales.dtype, device=values.device)

    def __init__(self, values, scales):
        self.values_, self.scales = values, scales

    @classmethod
    def of(cls, weight):
        scales = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scales).round().to(torch.int8), scales)

    def dequantize(self):
        return self.values_.to(self.scales.dtype) * self.scales

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (aten.linear.default, aten.mm.default, aten.addmm.default):
            return func(*[each.dequantize() if isinstance(each, cls) else each for each in args], **(kwargs or {}))
        if func is aten.t.default:
            return cls(args[0].values_.t(), args[0].scales.t())
        if func is aten.detach.default:
            return cls(args[0].values_.detach(), args[0].scales.detach())
        raise NotImplementedError(f"{func} of int8 weights")


def x() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3) + 1


def pair() -> tuple[Pair]:
    return (Pair(x(), x() * 2),)


def alike(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (Pair, Logged, Int8)):
        seen = [(each.shape, each.stride(), each.dtype, each.requires_grad) for each in (a, b)]
        return seen[0] == seen[1] and alike(list(vars(a).values()), list(vars(b).values()))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b) and a.requires_grad == b.requires_grad
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b


def check(fn, make, breaks: int = 0) -> None:
    """Compare results, arguments and the logged operators of eager and of two compiled calls."""
    run = compiled(fn, fullgraph=breaks == 0)
    for _ in range(2):
        given, again = make(), make()
        LOG.clear()
        want = fn(*given), [*LOG], given
        LOG.clear()
        got = run(*again), [*LOG], again
        assert alike(want, got), f"eager {want}\ncompiled {got}"


@pytest.mark.parametrize("make", [pair, lambda: (Logged(x()),), lambda: (Pair(Pair(x(), x()), Pair(x(), x() + 1)),)])
@pytest.mark.parametrize(
    "fn",
    [
        lambda t: ((t * 2 + 1).sin(), t.sum(0), -t, t[0], t.view(-1), t.relu(), torch.nn.functional.gelu(t)),
        lambda t: (t.split(1), torch.stack([t, t]), torch.cat([t, t]), t.unbind(1), t @ t.t()),
        lambda t: (t.shape, t.dtype, len(t), type(t), t.size(0), t.is_contiguous(), t.clone(), t.to(torch.float64)),
        lambda t: (torch.zeros_like(t), torch.where(t > 2, t, -t), t.new_ones(2), t),
    ],
)
def test_functions_of_a_wrapper(fn, make):
    check(fn, make)


def test_wrappers_with_plain_tensors():
    check(lambda t, y: (t + y, y * t, torch.cat([t, y]), torch.add(y, t, alpha=2)), lambda: (*pair(), x()))


def test_wrappers_that_the_function_makes():
    check(lambda a, b: (Pair(a, b) * 2, Pair(a, b).a + 1, isinstance(Pair(a, b), Pair)), lambda: (x(), x() * 2))


def test_inner_tensors_and_attributes():
    check(lambda t: (t.a + t.b, t.a, t.a.sum().item()), pair)


def test_writes_reach_the_inner_tensors():
    def write(t):
        t.add_(1)
        t.mul_(t)
        t.a.zero_()
        return t

    check(write, pair)


def test_a_module_with_an_int8_weight():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4)
    model.weight = torch.nn.Parameter(Int8.of(model.weight.detach()), requires_grad=False)
    model.requires_grad_(False)
    check(model.forward, lambda: (x(),))
    run = compiled(model.forward, fullgraph=True)
    for rows in (2, 3, 4, 5):
        given = torch.ones(rows, 3)
        assert torch.allclose(run(given), model(given))


def test_an_error_of_the_dispatch_reaches_the_program():
    given = Int8.of(x())
    for run in (lambda a: a * 2, compiled(lambda a: a * 2)):
        with pytest.raises(NotImplementedError, match="aten.mul.Tensor of int8 weights"):
            run(given)


def test_inner_tensors_with_gradients_are_computed_with_below_autograd():
    check(lambda t: (t * 2, t.inner * 2), lambda: (Logged(x().requires_grad_()),))


def test_autocast_ends_the_graph():
    def product(t):
        with torch.autocast("cpu", torch.bfloat16):
            return t @ t.t()

    check(product, pair, breaks=1)


def test_views_of_wrappers_and_objects_that_hold_them():
    class Holder:
        pass

    holder = Holder()

    def views(t):
        v = t.view(-1)
        v.add_(1)
        w = t[0]
        w.mul_(3)
        holder.kept = t * 2
        return t, v, w, holder.kept

    check(views, pair)


def test_inner_tensors_are_guarded():
    run = compiled(lambda t: t * 2, fullgraph=True)
    for dtype in (torch.float32, torch.float64, torch.float32):
        given = Pair(x(), x().to(dtype))
        assert alike(run(given), given * 2)


def test_gradients_end_the_graph_and_are_those_of_eager():
    def square(t):
        return (t * t).sum()

    check(square, lambda: (Pair(x().requires_grad_(), x().requires_grad_()),), breaks=2)
    want, got = (Pair(x(), x()).requires_grad_() for _ in range(2))
    square(want).backward()
    compiled(square)(got).backward()
    assert alike(want.grad, got.grad)
    with pytest.raises(Unsupported, match="an operation on a Pair with gradients"):
        compiled(square, fullgraph=True)(got)

    def without(t):
        with torch.no_grad():
            return square(t), t.a * 2

    check(without, lambda: (Pair(x().requires_grad_(), x().requires_grad_()),))
