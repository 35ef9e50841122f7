"""smelt/capture/torch/tensor_constructor.py: torch.tensor of lists in which tensors stand among the numbers."""

from __future__ import annotations

import pytest
import torch

from tests.capture.harness import check, compiled, same

X = torch.arange(6.0).reshape(2, 3)
WHOLE = torch.tensor([3, 4])


@pytest.mark.parametrize(
    "data",
    [
        lambda x, n: [n[0], n[1]],
        lambda x, n: (n[0], 2),
        lambda x, n: [x[0, 0], 2],
        lambda x, n: [n[0] > 1, True, n[1]],
        lambda x, n: [[n[0], 2.5], [x.sum(), 1]],
        lambda x, n: [x[0, 0].half(), 2.5],
        lambda x, n: [1j, n[0]],
        lambda x, n: [n.shape[0], n[0]],
    ],
)
def test_numbers_of_tensors_make_a_tensor(data):
    check(lambda x, n: torch.tensor(data(x, n)) + 1, X, WHOLE)


def test_its_dtype_is_as_asked_and_it_has_no_history():
    weights = X.clone().requires_grad_()

    def fn(w, n):
        found = torch.tensor([w.sum(), n[0]], dtype=torch.float64, device="cpu")
        return found, found.requires_grad, (w * 2).sum()

    check(fn, weights, WHOLE)


def test_tensors_with_dimensions_break():
    check(lambda x, n: torch.tensor([x[0], x[1]][:1][0].tolist()) + x.sum(), X, WHOLE, breaks=1)
    check(lambda x, n: torch.tensor([n[:1], n[1:]]) + x.sum(), X, WHOLE, breaks=1)


def test_types_of_tensors_make_tensors_of_lists():
    def fn(x, n):
        rows = torch.LongTensor((0, 1))
        held = torch.IntTensor([1.5, 2.9]), torch.FloatTensor([[1, 2.5]]), torch.BoolTensor([0, 2]), rows
        return x[rows] * torch.DoubleTensor([2.0]), held

    check(fn, X, WHOLE)
    check(lambda x, n: x + torch.FloatTensor(2, 3).zero_().sum(), X, WHOLE, breaks=1)


@pytest.mark.parametrize("dynamic", [None, True])
def test_new_of_a_size_has_that_shape(dynamic):
    def fn(x):
        rows, shape = x.new(x.shape[:1]), x.new(torch.Size([2, 3])).shape
        return (
            rows.fill_(2),
            shape,
            x.new((2, 3)),
            x.new([1, 2]),
            x.new(x.size()).fill_(1),
            x.new(3, 1).shape,
            x.new().shape,
        )

    run = compiled(fn, fullgraph=True, dynamic=dynamic)
    for rows in (2, 3, 5):
        assert same(fn(torch.ones(rows, 2)), run(torch.ones(rows, 2)))
