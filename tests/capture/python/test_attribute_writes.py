"""`tensor.data = value` for tensors that the frame makes: the object shows the new memory, its views the old."""

from __future__ import annotations

import pytest
import torch

from tests.capture.harness import check, compiled

X = torch.arange(12.0).reshape(3, 4) / 7


def _other_memory(x):
    y = x * 2
    before, z = y[0], x + 1
    y.data = z
    y.add_(1)
    return y, before, z, y[1]


def _memory_of_an_argument(x):
    y = x * 2
    y.data = x
    y.mul_(2)
    return y + 1


@pytest.mark.parametrize("fn", [_other_memory, _memory_of_an_argument])
def test_a_tensor_that_the_frame_makes_gets_other_data(fn):
    check(fn, X)


def test_what_autograd_may_have_saved_ends_the_graph():
    def fn(x, w):
        y = x * 2
        z = y * w
        y.data = x + 5
        return z.sum() + (y * w).sum()

    weights = torch.ones(4, requires_grad=True)
    (want,) = torch.autograd.grad(fn(X, weights), weights)
    (got,) = torch.autograd.grad(compiled(fn)(X, weights), weights)
    torch.testing.assert_close(got, want)
