"""Functions of the program below a compiled graph: in eager the engine comes to what used results lead to alone."""

import itertools

import pytest
import torch

import smelt

CALLS = []


class Adds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        CALLS.append("adds")
        return a + b + 1


class Insists(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        CALLS.append("insists")
        if a is None and b is None:
            raise ValueError("nothing")
        return a if b is None else b * 7 if a is None else a * b


def _deep(x):
    return Adds.apply(Insists.apply(x)[0] * 1)


def _gradients(function, below, used, retain=False):
    CALLS.clear()
    x, y = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    results = function(*below(x), *below(y), y)
    for _ in range(1 + retain):
        sum(results[k].sum() for k in used).backward(retain_graph=True)
    return [None if each.grad is None else each.grad.tolist() for each in (x, y)], sorted(CALLS)


def several(a, b, c, d, y):
    return a * 2, b * c, d * 3, c * y


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
@pytest.mark.parametrize("below", [Adds.apply, Insists.apply, _deep], ids=["adds", "insists", "deep"])
def test_functions_below_a_graph_are_called_as_in_eager(below, backend, retain):
    compiled = smelt.compile(several, backend=backend)
    for used in itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in (1, 2, 3)):
        assert _gradients(compiled, below, used, retain) == _gradients(several, below, used, retain), used


def test_a_function_is_not_kept_alive():
    import gc
    import weakref

    compiled = smelt.compile(lambda a, b: (a * 2, b * 3))
    gc.disable()
    try:
        x = torch.ones(3, requires_grad=True)
        a = Adds.apply(x)[0]
        held = weakref.ref(a.grad_fn)
        compiled(a, x)[1].sum().backward()
        assert x.grad.tolist() == [3.0] * 3
        del a
        assert held() is None
    finally:
        gc.enable()
