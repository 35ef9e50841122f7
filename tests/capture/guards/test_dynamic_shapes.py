"""Symbolic sizes and numbers through capture: when they begin, what is guarded, what leaves the frame."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import smelt
from smelt.base.errors import OptionError, SpecializationError
from tests.autograd.sized import MATMUL_PINS
from tests.capture.harness import compiled, same


def versions(run):
    return sum(len(site.versions) for site in run._smelt_session.sites.values())


def check(fn, calls, limit, **options):
    """Equal results for each call, with at most `limit` versions."""
    run = compiled(fn, **options)
    for args in calls:
        assert same(run(*args), fn(*args)), args
    assert versions(run) <= limit, [v.guards.lines() for p in run._smelt_session.sites.values() for v in p.versions]
    return run


def sized(*sizes):
    return [(torch.randn(*size),) for size in sizes]


FUNCTIONS = {
    "elementwise": lambda x: x.sin() + 1,
    "shape": lambda x: (x.shape, x.size(0), x.numel(), list(x.size())),
    "views": lambda x: x.reshape(x.shape[0], -1, 2).transpose(0, 1).flatten(1),
    "arithmetic": lambda x: x.sum() * (x.shape[0] // 2 + x.shape[1] % 3) - x.size(-1) ** 2,
    "new tensors": lambda x: torch.arange(x.shape[0]).outer(torch.ones(x.shape[1])) + x.new_zeros(x.shape),
    "slices": lambda x: x[: x.shape[0] // 2, 1:-1] * x[-1, -1],
    "containers": lambda x: {"n": [x.shape[0], (x.shape[1] + 1,)], "y": x * x.shape[0]},
    "asked": lambda x: x * 2 if x.shape[0] > 1 and isinstance(x.shape[1], int) and type(x.size(0)) is int else x,
    "int": lambda x: x.view(int(x.shape[0]) * x.shape[1]) + len(x.shape),
    "matmul": lambda x: x @ x.T + torch.eye(x.shape[0]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_second_version_serves_every_size(name):
    check(FUNCTIONS[name], sized((4, 6), (6, 8), (5, 10), (10, 4), (16, 64)), limit=2, fullgraph=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dynamic_from_the_start(name):
    check(FUNCTIONS[name], sized((4, 6), (6, 8), (5, 10), (10, 4)), limit=1, fullgraph=True, dynamic=True)


def test_a_shape_that_leaves_twice_is_one_object():
    def program(x):
        shape = x.shape
        return {"first": shape, "second": [shape, x + 1]}

    run = compiled(program)
    for n in (1, 2, 3):
        out = run(torch.ones(n, 3))
        assert out["first"] is out["second"][0] and out["first"] == (n, 3) and type(out["first"]) is torch.Size


def test_dynamic_false_is_static():
    run = check(FUNCTIONS["elementwise"], sized((4, 6), (6, 8), (2, 10)), limit=3, dynamic=False)
    assert versions(run) == 3


def test_only_what_changed_is_symbolic():
    run = check(lambda x: x.sin(), sized((4, 6), (5, 6), (6, 6)), limit=2)
    check_more = [run(x) for (x,) in sized((9, 6), (9, 7))]
    assert len(check_more) == 2 and versions(run) == 3


def test_one_and_zero_have_versions_of_their_own():
    check(lambda x: (x + torch.ones(1, 3)).sum(0), sized((4, 3), (6, 3), (1, 3), (0, 3), (9, 3)), limit=4)


def test_equal_sizes_of_the_example_are_guarded():
    """Two sizes that are equal in the example share a symbol; where they differ there is another version."""
    sizes = ((4, 4), (5, 5), (7, 7), (8, 9), (3, 6))
    calls = [(torch.randn(n, 3), torch.randn(m, 3)) for n, m in sizes]
    run = check(lambda x, y: x.sum(0) + y.sum(0), calls, limit=3)
    lines = [line for p in run._smelt_session.sites.values() for v in p.versions for line in v.guards.lines()]
    assert any("y.shape[0] == x.shape[0]" in line for line in lines)


def test_a_branch_on_a_size_is_guarded():
    def fn(x):
        return x + 1 if x.shape[0] > 8 else x - 1

    check(fn, sized((4, 2), (5, 2), (6, 2), (9, 2), (20, 2), (8, 2), (3, 2)), limit=3, fullgraph=True)


def test_divisibility_is_guarded():
    def fn(x):
        return x.view(-1, 2) if x.shape[0] % 2 == 0 else x

    check(fn, sized((4,), (6,), (8,), (5,), (7,), (10,)), limit=3, fullgraph=True)


def test_strides_of_a_transposed_input():
    check(lambda x: x.contiguous() * 2, [(torch.randn(n, m).T,) for n, m in ((4, 6), (6, 8), (3, 5))], limit=2)
    calls = [(torch.randn(n, m),) for n, m in ((4, 6), (6, 8), (3, 5))]
    run = check(lambda x: x.view(-1) * 2, calls, limit=2)
    with pytest.raises(RuntimeError, match="view"):
        run(torch.randn(5, 3).T)


LAYOUTS = {
    "rows": lambda n, m: torch.randn(1, n, m),
    "one row of a wide table": lambda n, m: torch.randn(1, n, m).as_strided((1, n, m), (999, m, 1)),
    "batch of one, turned": lambda n, m: torch.randn(1, n, m).transpose(0, 1),
    "column": lambda n, m: torch.randn(n, 1),
    "column as a row": lambda n, m: torch.randn(n, 1).T,
    "a column of a table": lambda n, m: torch.randn(n, m)[:, :1].clone().T,
    "one channel": lambda n, m: torch.randn(n, 1, m, 3).to(memory_format=torch.channels_last),
    "one pixel": lambda n, m: torch.randn(n, m, 1, 1).to(memory_format=torch.channels_last),
    "empty": lambda n, m: torch.randn(n, 0),
    "empty, turned": lambda n, m: torch.randn(n, m, 0).transpose(0, 2),
    "empty with steps": lambda n, m: torch.randn(99).as_strided((0, n, m), (1, 5, 1)),
    "repeated": lambda n, m: torch.randn(1, n).expand(1, n).as_strided((1, n), (0, 1)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", LAYOUTS)
def test_strides_of_sizes_0_and_1_are_those_of_the_argument(first, dynamic):
    """They lead nowhere, but the program may ask for them, and results follow them."""

    def shown(t):
        return tuple(t.shape), t.stride(), t.is_contiguous()

    def fn(x):
        turned, doubled = x.transpose(0, -1), x * 2
        asked = [x.stride(), x.is_contiguous(), turned.is_contiguous(), doubled.stride(), turned.stride()]
        results = [x.view_as(x), turned, doubled, turned + 1, x.clone(), torch.empty_like(turned), turned.contiguous()]
        return asked, results, torch.ones(3) * x.stride(0)

    run = smelt.compile(fn, dynamic=dynamic, options={"recompile_limit": 99})
    for name in (first, *LAYOUTS):
        for n, m in ((4, 6), (5, 7), (9, 3)):
            x = LAYOUTS[name](n, m)
            (asked, got, number), (expected_asked, expected, expected_number) = run(x), fn(x)
            assert list(map(shown, got)) == list(map(shown, expected)), name
            assert asked == expected_asked and same(number, expected_number), name


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_version_serves_a_layout_with_sizes_of_1(name):
    check(lambda x: x.sin() + 1, [(LAYOUTS[name](n, m),) for n, m in ((4, 6), (5, 7), (9, 3), (12, 5))], limit=2)


def test_channels_last():
    def images(*sizes):
        return [(torch.randn(n, 3, h, w).to(memory_format=torch.channels_last),) for n, h, w in sizes]

    conv = nn.Conv2d(3, 4, 3)
    run = check(lambda x: conv(x).relu(), images((2, 8, 8), (3, 9, 7), (4, 12, 16)), limit=2)
    out = run(images((5, 10, 11))[0][0])
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_numbers_that_change():
    def fn(x, n, scale):
        return x[:n] * n, n + 1, scale * 2

    x = torch.randn(40)
    check(fn, [(x, n, 3) for n in (4, 5, 6, 20, 39)], limit=2, fullgraph=True)


def test_a_number_in_an_object():
    class Cache:
        def __init__(self):
            self.seen = 4

    def fn(x, cache):
        cache.seen += x.shape[0]
        return x + cache.seen

    run, cache, mirror = compiled(fn, fullgraph=True), Cache(), Cache()
    for _ in range(6):
        x = torch.randn(3, 2)
        assert torch.equal(run(x, cache), fn(x, mirror)) and cache.seen == mirror.seen and type(cache.seen) is int
    assert versions(run) <= 2


def test_text_of_a_size_pins_it():
    check(lambda x: (x + 1, f"{x.shape[0]}", str(x.shape)), sized((4, 2), (5, 2), (6, 2)), limit=3)


def test_loops_over_a_size_pin_it():
    def fn(x):
        total = 0
        for i in range(x.shape[0]):
            total = total + x[i]
        return total

    check(fn, sized((4, 2), (5, 2), (6, 2)), limit=3)


def test_graph_breaks_carry_sizes():
    def fn(x):
        n = x.shape[0]
        y = x * n
        if y.sum() > 0:
            return y + n
        return y - n

    check(fn, sized((4, 2), (5, 2), (6, 2), (9, 2)), limit=9)


def test_parameters_stay_static():
    linear = nn.Linear(3, 5)
    run = check(lambda x: linear(x), sized((4, 3), (5, 3), (2, 6, 3), (2, 7, 3)), limit=4)
    assert versions(run) <= 4


def test_mark_dynamic():
    run = compiled(lambda x: x.sin() * x.shape[0], fullgraph=True)
    x = torch.randn(4, 3)
    smelt.mark_dynamic(x, 0, min=2, max=64)
    run(x)
    for n in (2, 9, 64):
        y = torch.randn(n, 3)
        assert torch.equal(run(y), y.sin() * n)
    assert versions(run) == 1
    y = torch.randn(65, 3)
    assert torch.equal(run(y), y.sin() * 65) and versions(run) == 2
    with pytest.raises(OptionError, match="outside of"):
        smelt.mark_dynamic(x, 0, max=3)
    with pytest.raises(OptionError, match="whole number"):
        smelt.mark_static(torch.ones(2), torch.ones(2))  # of one element it would be one
    with pytest.raises(OptionError, match="dimension 2"):
        smelt.mark_dynamic(x, 2)


def test_a_marked_size_that_must_be_one_number():
    def fn(x):
        return x + torch.ones(4, 3)

    x = torch.randn(4, 3)
    smelt.mark_dynamic(x, 0)
    with pytest.raises(SpecializationError, match=r"marked dynamic[\s\S]*test_dynamic_shapes.py:\d+"):
        compiled(fn)(x)


def test_mark_static():
    x = torch.randn(4, 3)
    smelt.mark_static(x, 1)
    run = compiled(lambda x: x + 1, dynamic=True)
    run(x)
    for n in (5, 6):
        run(torch.randn(n, 3))
    assert versions(run) == 1
    run(torch.randn(5, 4))
    assert versions(run) == 2


@pytest.mark.skipif(MATMUL_PINS, reason="matmul of this torch reads plain sizes")
def test_the_whole_stack_of_aot():
    """A transformer layer, trained through `aot_eager`: one graph for every batch and length, eager's bits."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    smelt.reset()
    run = smelt.compile(layer, backend="aot_eager", dynamic=True)
    for batch, length in ((4, 6), (2, 3), (5, 17)):
        x = torch.randn(batch, length, 16)
        found = [torch.autograd.grad(f(x).square().sum(), list(layer.parameters())) for f in (run, layer)]
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert smelt.stats()["graphs"] == 1


def test_floats_that_change():
    """A learning rate is an input of the graph from its second value on."""

    def step(x, g, lr, decay):
        new = x - lr * (g + decay * x) / (1 - lr**2)
        return new, lr * 0.5, new * (x.shape[0] ** -0.5)

    x, g = torch.randn(4), torch.randn(4)
    check(step, [(x, g, lr, 0.25) for lr in (0.1, 0.2, 1e-3, 0.7, 0.05)], limit=2, fullgraph=True)


def test_floats_are_floor_divided_as_python_does():
    def fn(x, p, n):
        return x * (p // 2), p // n, n // p, p // 0.5, x.shape[0] // p

    x = torch.randn(4)
    check(fn, [(x, p, n) for p, n in ((0.75, 3), (-7.25, 4), (1e300, -2), (-0.0625, 5))], limit=3, fullgraph=True)
    run = smelt.compile(lambda x, p: (x, p // 2), backend="eager")
    signs = [math.copysign(1, run(x, p)[1]) for p in (0.5, 0.25, -0.0, 0.0)]
    assert signs == [1, 1, -1, 1]


def test_a_branch_on_a_float_is_guarded():
    def fn(x, p):
        return x * p if p > 0.5 else x / (p + 1)

    x = torch.randn(4)
    check(fn, [(x, p) for p in (0.75, 0.9, 0.6, 0.1, 0.2, 0.8)], limit=4, fullgraph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_float_does_not_widen(dtype):
    def fn(x, p):
        return x * p, p - x, x / p, x + p, x**p, torch.full_like(x, 2) * p, (x > p).sum()

    for backend in ("eager", "aot_eager"):
        x = torch.arange(1, 9).to(dtype)
        run = smelt.compile(fn, backend=backend, fullgraph=True)
        for p in (1.5, 2.5, 0.3):
            for ours, expected in zip(run(x, p), fn(x, p), strict=True):
                assert ours.dtype == expected.dtype
                torch.testing.assert_close(ours, expected)


def test_floats_through_gradients():
    smelt.reset()
    layer = nn.Linear(3, 3)

    def fn(x, scale):
        return (layer(x) * scale).tanh().sum() * scale

    run = smelt.compile(fn, backend="aot_eager", fullgraph=True)
    for scale in (0.5, 0.75, 2.0, -1.0):
        x = torch.randn(2, 3)
        found = [torch.autograd.grad(f(x, scale), list(layer.parameters())) for f in (run, fn)]
        torch.testing.assert_close(*found)
    assert smelt.stats()["graphs"] == 2


def test_a_size_becomes_a_float():
    def fn(x):
        return x / x.shape[0], (x @ x.T) * x.shape[1] ** -0.5, x * (x.shape[0] / 3)

    check(fn, sized((4, 6), (6, 8), (5, 10)), limit=1, fullgraph=True, dynamic=True)
    run = smelt.compile(fn, backend="aot_eager", fullgraph=True, dynamic=True)
    for (x,) in sized((4, 6), (6, 8), (5, 10)):
        torch.testing.assert_close(run(x), fn(x), rtol=0, atol=0)
