"""`x[mask] = row`: where the row does not depend on how many elements of the mask are true, nobody counts them."""

from __future__ import annotations

import pytest
import torch

import smelt


def write(x, mask, row):
    x = x * 1
    x[mask] = row
    return x


@pytest.mark.parametrize(
    ("shape", "mask", "row"),
    [((4, 3, 5), (4, 3), (5,)), ((4, 3, 5), (4,), (3, 5)), ((4, 3, 5), (4,), (5,)), ((4, 3, 5), (4, 3), (1,))],
)
@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_a_row_for_each_true_element(backend, shape, mask, row):
    x, r = torch.randn(shape, requires_grad=True), torch.randn(row, requires_grad=True)
    run = smelt.compile(write, fullgraph=True, backend=backend)
    for share in (0.5, 0.0, 1.0):
        m = torch.rand(mask) < share
        want, got = write(x, m, r), run(x, m, r)
        assert torch.equal(want, got)
        g = torch.randn_like(want)
        for a, b in zip(torch.autograd.grad(want, (x, r), g), torch.autograd.grad(got, (x, r), g), strict=True):
            assert torch.allclose(a, b, atol=1e-5)
    explained = smelt.explain(write, backend=backend)(x, m, r)
    assert explained.graph_count == 1 and ".item()" not in explained.graphs[0].code


@pytest.mark.parametrize("value", [0.5, torch.tensor(2.0), torch.ones(5), torch.ones(3, 1)])
@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_one_flag_for_the_whole_tensor(backend, value):
    x = torch.randn(3, 5, requires_grad=True)
    value = value.requires_grad_() if isinstance(value, torch.Tensor) else value
    leaves = [x, value] if isinstance(value, torch.Tensor) else [x]
    run = smelt.compile(lambda x, flag, v: write(x, flag.sum() > 0, v), fullgraph=True, backend=backend)
    for flag in (torch.tensor([1.0]), torch.tensor([-1.0])):
        want, got = write(x, flag.sum() > 0, value), run(x, flag, value)
        assert torch.equal(want, got)
        g = torch.randn_like(want)
        for a, b in zip(torch.autograd.grad(want, leaves, g), torch.autograd.grad(got, leaves, g), strict=True):
            assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("row", [torch.zeros(2), torch.zeros(5).double(), torch.zeros(7, 5)])
def test_rows_that_do_not_fit(row):
    x, mask = torch.zeros(4, 3, 5), torch.ones(4, 3, dtype=torch.bool)
    for run in (write, smelt.compile(write, backend="eager")):
        with pytest.raises((RuntimeError, IndexError)):
            run(x, mask, row)


def test_functions_of_the_name_of_another_one():
    def fn(x, mask):
        return torch.masked.prod(x, 1, mask=mask), x.prod(1)

    found = []
    for run in (fn, smelt.compile(fn, fullgraph=True, dynamic=True)):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        results = run(x, torch.arange(12).reshape(3, 4) % 3 > 0)
        found.append([*results, *torch.autograd.grad(sum(r.sum() for r in results), x)])
    torch.testing.assert_close(found[1], found[0])
