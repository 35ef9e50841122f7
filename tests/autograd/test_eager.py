"""Eager programs of functional graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.autograd.eager import compile_aot_eager, eager_program, restride
from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from smelt.graph.ir.meta import meta_of
from tests.autograd.joint_examples import graph_of_call


def test_results_have_eagers_strides() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(4, 3).t()
        y.copy_(x)
        return y

    x = torch.randn(3, 4)
    joint = trace_joint(graph_of_call(fn, 1), [x], Options())
    (y,) = eager_program(joint.module)([x])
    assert y.stride() == (1, 3) and torch.equal(x, y)


def test_a_program_owns_its_list() -> None:
    x = torch.randn(3)
    joint = trace_joint(graph_of_call(torch.exp, 1), [x], Options())
    inputs = [x]
    eager_program(joint.module)(inputs)
    assert inputs == []


def test_views_of_values_with_other_strides() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(3, 4)
        y.copy_(x.t())
        return y.view(12) * 2

    x = torch.randn(4, 3)
    assert torch.equal(compile_aot_eager(graph_of_call(fn, 1), [x], Options())(x)[0], fn(x))


def test_restride() -> None:
    x = torch.randn(1, 3)
    same = restride(x, meta_of(torch.empty_strided((1, 3), (7, 1))))
    assert same.data_ptr() == x.data_ptr() and same.stride() == (7, 1)
    other = restride(x.expand(2, 3), meta_of(torch.empty(3, 2).t()))
    assert other.stride() == (1, 2) and torch.equal(other, x.expand(2, 3))


def test_results_that_are_views_inside_may_be_written() -> None:
    for fn in (lambda x: torch.stack([x, x * 2]), lambda x: x.sin().view(-1)):
        found = []
        for call in (fn, smelt.compile(fn, backend="aot_eager")):
            x = torch.linspace(0, 1, 6).reshape(2, 3).requires_grad_()
            y = call(x)
            y.mul_(2)
            y.sum().backward()
            found.append((y.detach(), x.grad))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("find", [torch.argwhere, torch.nonzero, lambda x: x[x > 0], lambda x: x[x[:, 0] > 0].clone()])
def test_strides_where_a_later_call_finds_none(find: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    compiled = smelt.compile(find, backend=backend)
    for x in (torch.eye(3, 2), torch.zeros(3, 2), torch.ones(3, 2), torch.zeros(3, 2)):
        torch.testing.assert_close(compiled(x), find(x), check_stride=True)
