"""`smelt.aot_autograd`: a backend made of compilers of functional FX graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

import smelt
from smelt.base.errors import OptionError, SmeltError
from smelt.prims.table import Prim
from tests.autograd.compare import nonleaf, same_tensor

aten = torch.ops.aten


class Collector:
    """A compiler that keeps the graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []
        self.examples: list[list[Any]] = []

    def __call__(self, gm: fx.GraphModule, examples: list[Any]) -> Any:
        self.graphs.append(gm)
        self.examples.append(examples)
        return gm.forward

    def targets(self) -> set[Any]:
        return {n.target for gm in self.graphs for n in gm.graph.nodes if n.op == "call_function"}


def train(run: Any, model: nn.Module, x: torch.Tensor) -> list[Any]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(0)
    run(x).square().sum().backward()
    return [x.grad, *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 2))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"opset": "prims"},
        {"opset": "prims", "activation_memory_budget": 0.0},
        {"opset": "prims", "partition": "save"},
    ],
)
def test_training_equals_eager(how: dict[str, Any]) -> None:
    forward, backward, x = Collector(), Collector(), torch.randn(3, 4)
    backend = smelt.aot_autograd(forward, backward, **how)
    eager, other = model(), model()
    run = smelt.compile(other, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(train(run, other, x), train(eager, eager, x))
    assert len(forward.graphs) == len(backward.graphs) == 1
    for compiler in (forward, backward):
        prims = any(isinstance(t, Prim) for t in compiler.targets())
        assert prims == (how.get("opset") == "prims")
        assert not any(t._schema.is_mutable for t in compiler.targets() if isinstance(t, torch._ops.OpOverload))
        assert all(e.device.type == "meta" for e in compiler.examples[0])


def test_one_compiler_serves_both_and_inference() -> None:
    compiler = Collector()
    run = smelt.compile(torch.sin, backend=smelt.aot_autograd(compiler))
    run(torch.ones(3))
    assert len(compiler.graphs) == 1
    run(torch.ones(3, requires_grad=True)).sum().backward()
    assert len(compiler.graphs) == 3


def test_mutation_and_aliasing_are_not_the_compilers_business() -> None:
    def fn(x, y):
        x.mul_(2)
        z = (x + y).t()
        return z[0], z, x

    compiler = Collector()
    run = smelt.compile(fn, backend=smelt.aot_autograd(compiler), fullgraph=True)
    seen = []
    for each in (fn, run):
        x, y = nonleaf(torch.ones(2, 3)), torch.arange(6.0).reshape(2, 3)
        out = each(x, y)
        sum(o.sum() for o in out).backward()
        assert out[2] is x and out[0]._base is out[1]._base
        seen.append([*out, x.leaf.grad])
    for a, b in zip(*seen, strict=True):
        same_tensor(a, b, "result")
    assert not any(t._schema.is_mutable for t in compiler.targets() if isinstance(t, torch._ops.OpOverload))


def test_dynamic_shapes() -> None:
    compiler = Collector()
    run = smelt.compile(lambda x: x.sin().sum(0) * x.shape[0], backend=smelt.aot_autograd(compiler), dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 2, requires_grad=True)
        run(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * rows)
    assert len(compiler.graphs) == 2


def test_second_derivatives() -> None:
    run = smelt.compile(lambda x: x.sin() ** 2, backend=smelt.aot_autograd(Collector(), opset="prims"))
    assert torch.autograd.gradgradcheck(run, (torch.randn(3, dtype=torch.float64, requires_grad=True),))


def test_a_partition_of_ones_own() -> None:
    from smelt.autograd.partition.eager_partition import split

    seen = []

    def partition(gm, plan):
        seen.append(plan.differentiable)
        return split(plan, gm)

    x = torch.ones(3, requires_grad=True)
    smelt.compile(torch.exp, backend=smelt.aot_autograd(Collector(), partition=partition))(x).sum().backward()
    assert seen == [(0,)]


def test_registered_under_a_name() -> None:
    smelt.register_backend(smelt.aot_autograd(Collector()), name="collects")
    assert torch.equal(smelt.compile(torch.cos, backend="collects")(torch.zeros(2)), torch.ones(2))


def test_wrong_arguments_and_compilers() -> None:
    for how in ({"opset": "fx"}, {"partition": "all"}, {"partition": "min-cut"}):
        with pytest.raises(OptionError):
            smelt.aot_autograd(Collector(), **how)
    with pytest.raises(SmeltError, match="returned 0 results"):
        smelt.compile(torch.sin, backend=smelt.aot_autograd(lambda gm, examples: lambda *a: ()))(torch.ones(2))
    with pytest.raises(SmeltError, match="return a callable"):
        smelt.compile(torch.sin, backend=smelt.aot_autograd(lambda gm, examples: None))(torch.ones(2))
