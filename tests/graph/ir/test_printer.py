"""Printed graphs run and give the graph's results."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from smelt.graph.ir.meta import meta_of
from smelt.graph.ir.printer import describe, print_graph


def run(text: str, inputs: list[torch.Tensor], **names: Any) -> Any:
    space: dict[str, Any] = dict(names)
    exec(compile(text, "printed", "exec"), space)
    return space["forward"](*inputs)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "functions": lambda x: torch.softmax(F.gelu(x), dim=-1) + F.relu(x),
    "operators": lambda x: -((x + 1) * 2 / (x - 3) ** 2) @ x.t(),
    "methods": lambda x: x.view(4, 3).transpose(0, 1).contiguous().to(torch.float64),
    "slices": lambda x: x[1:, ..., None][:, ::2],
    "odd_numbers": lambda x: torch.clamp(x, max=float("inf")).masked_fill(x > 1, float("-inf")),
    "lists": lambda x: torch.cat([x, x], dim=0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_torch_graphs_run_as_printed(name: str) -> None:
    gm = fx.symbolic_trace(PROGRAMS[name])
    x = torch.randn(3, 4)
    torch.testing.assert_close(run(print_graph(gm), [x]), gm(x), equal_nan=True)


def test_joint_graphs_run_as_printed() -> None:
    def fn(x: torch.Tensor) -> Any:
        q, k = (x * torch.tensor([1.0, 2.0, 3.0, 4.0])).chunk(2, 1)
        return (q @ k.t()).sort(dim=1)

    x = torch.randn(3, 4, requires_grad=True)
    joint = trace_joint(fx.symbolic_trace(fn), [x], Options())
    text = print_graph(joint.module)
    assert "constants['constant0']: float32[4]" in text and "# float32[3, 4]" in text
    inputs = [x.detach(), torch.ones(3, 3)]
    printed = run(text, inputs, constants=dict(joint.module.named_buffers()))
    for a, b in zip(printed, joint.module(*inputs), strict=True):
        assert torch.equal(a, b)


def test_functions_without_a_path_are_asked_for() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["source"] = "self.weight"
    graph.output(graph.call_function(lambda t: t + 1, (x,)))
    text = print_graph(fx.GraphModule(torch.nn.Module(), graph))
    assert "provided by the caller" in text and "self.weight" in text
    (name,) = [line.split("'")[1] for line in text.splitlines() if line.startswith("#   functions")]
    assert run(text, [torch.ones(1)], functions={name: lambda t: t + 1}).item() == 2


@pytest.mark.parametrize("kind", ["a packet", "an overload", "its C function"])
def test_operators_of_the_program_are_found_by_their_names(kind: str) -> None:
    library = torch.library.Library("smelt_printer", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    packet = torch.ops.smelt_printer.twice
    graph = fx.Graph()
    target = {"a packet": packet, "an overload": packet.default, "its C function": packet._op}[kind]
    graph.output(graph.call_function(target, (graph.placeholder("x"),)))
    text = print_graph(fx.GraphModule(torch.nn.Module(), graph))
    assert "torch.ops.smelt_printer.twice" in text
    assert run(text, [torch.ones(1)]).item() == 2


def test_a_graph_without_inputs() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(operator.add, (1, 2)))
    assert run(print_graph(fx.GraphModule(torch.nn.Module(), graph)), []) == 3


def test_describe() -> None:
    meta = meta_of(torch.zeros(2))
    assert describe((meta, None, 3)) == "(float32[2], , 3)"
