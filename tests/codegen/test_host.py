"""smelt/codegen/host.py: host programs, run with stand-ins for what they are handed, and what they drop when."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

from smelt.base.options import Options
from smelt.codegen.cpp.host import render_cpp
from smelt.codegen.host import literal
from smelt.loops.lower import lower
from smelt.schedule.plan import Schedule, schedule
from tests.loops.graphs import GraphBuilder

VALUES = [
    None, True, 3, -(2**63), 1.5, -0.0, 1e-310, math.inf, -math.inf, "it's \n \\ \"", torch.float16, (), (1,),
    (1, (2.0, [])), [torch.int8, None], {"k": (1, 2), 3: [4]}, torch.device("cpu"), torch.channels_last,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_literals_are_read_as_they_were(value: Any) -> None:
    read = eval(literal(value), {"torch": torch, "inf": math.inf, "nan": math.nan, "float": float})
    assert read == value and type(read) is type(value) and repr(read) == repr(value)
    assert math.isnan(eval(literal(math.nan), {"float": float, "nan": math.nan}))


def plan_of(g: GraphBuilder, *outputs: fx.Node, updates: dict[int, str] | None = None) -> Schedule:
    return schedule(lower(g.build(*outputs)), Options(), updates)


class Extern:
    """A call of a library, by the operator of this name."""

    def __init__(self, name: str, parameters: dict[str, Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.name, self.parameters, self.inputs, self.outputs = name, parameters, inputs, outputs

    def call(self, *tensors: torch.Tensor) -> Any:
        for given, (shape, stride, dtype) in zip(tensors, self.inputs, strict=True):
            assert (tuple(given.shape), given.stride(), given.dtype) == (shape, stride, dtype)
        if self.name == "topk":
            return torch.topk(*tensors, self.parameters["k"], self.parameters["dim"])
        return getattr(torch, self.name)(*tensors)

    def into(self, out: torch.Tensor, *tensors: torch.Tensor) -> None:
        out.copy_(self.call(*tensors))


def fresh(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    return lambda: torch.empty_strided(shape, stride, dtype=dtype)


def run(plan: Schedule, *inputs: torch.Tensor) -> list[Any]:
    """What the program gives, which has no kernels."""
    rendered = render_cpp(plan)
    assert not rendered.cpp_sources
    names: dict[str, Any] = {"extern": Extern, "fresh": fresh, "torch": torch, "constants": rendered.constants}
    exec(rendered.host_source, names)
    boxed = list(inputs)
    results = names["call"](boxed)
    assert boxed == [], "the list is emptied"
    return results


def test_calls_of_libraries_and_their_results() -> None:
    g = GraphBuilder()
    x, w = g.input(4, 6), g.input(5, 6)
    product = g.mm(x, g.permute(w, (1, 0)))
    values, _ = g.topk(x, 2, 1, True, True)
    plan = plan_of(g, product, values, x, product)
    a, b = torch.randn(4, 6), torch.randn(5, 6)
    one, top, same, other = run(plan, a, b)
    torch.testing.assert_close(one, a @ b.T)
    assert torch.equal(top, a.topk(2).values) and same is a and other is one


def test_a_program_of_one_or_no_input_and_results_that_are_no_tensors() -> None:
    g = GraphBuilder()
    x = g.input(3, 3)
    a = torch.randn(3, 3)
    torch.testing.assert_close(run(plan_of(g, g.mm(x, x)), a), [a @ a])
    g = GraphBuilder()
    x = g.input(3)
    g.graph.output([x, None, 7])
    assert run(schedule(lower(fx.GraphModule({}, g.graph)), Options()), a[0])[1:] == [None, 7]
    assert run(plan_of(GraphBuilder())) == []


def test_a_product_writes_into_the_shape_that_the_caller_wants() -> None:
    g = GraphBuilder()
    x, w = g.input(6, 4), g.input(4, 5)
    logits = g.mm(x, w)
    a, b = torch.randn(6, 4), torch.randn(4, 5)
    (shown,) = run(plan_of(g, g.reshape(logits, (2, 3, 5))), a, b)
    torch.testing.assert_close(shown, (a @ b).reshape(2, 3, 5))


def test_a_product_has_its_own_buffer_or_one_that_it_overwrites() -> None:
    g = GraphBuilder()
    x, w = g.input(6, 4), g.input(4, 4)
    plan = plan_of(g, g.mm(g.mm(x, w), w))
    first = next(name for name in plan.memory.offsets)
    a, b = torch.randn(6, 4), torch.randn(4, 4)
    assert "mm_0.into(v[0]" in render_cpp(plan).host_source
    plan.memory.offsets.clear()
    plan.dedicated.add(first)
    assert "mm_0.into(o0, " in render_cpp(plan).host_source
    (got,) = run(plan, a, b)
    torch.testing.assert_close(got, a @ b @ b)


def host(plan: Schedule) -> list[str]:
    """The lines of `call`."""
    text = render_cpp(plan).host_source
    return [line.strip() for line in text[text.index("def call") :].splitlines()]


def test_tensors_are_dropped_after_their_last_use() -> None:
    g = GraphBuilder()
    x, w = g.input(64, 64), g.input(64, 64)
    values, places = g.topk(g.mm(x, w), 3, 1, True, True)
    g.graph.erase_node(places)
    lines = host(plan_of(g, g.neg(values)))
    product = next(i for i, line in enumerate(lines) if line.startswith("mm_"))
    call = next(i for i, line in enumerate(lines) if "topk_" in line)
    gone = next(i for i, line in enumerate(lines) if line.startswith("del x0"))
    assert lines[gone] == "del x0, x1" and product < gone < call and "inputs.clear()" in lines[:product]
    assert lines[call].startswith("e0, _ = topk_") and lines[call + 1] == "del _"


def test_inputs_are_written_over_once_no_index_was_out_of_range() -> None:
    def lines(updates: dict[int, str] | None) -> list[str]:
        g = GraphBuilder()
        x, table, place = g.input(4096), g.input(9), g.input(16, dtype=torch.int64)
        program = lower(g.build(g.mul(x, 0.5), g.gather(table, 0, place)))
        return host(schedule(program, Options(), updates, caller_owned=range(3)))

    refuse = "if workspace.fault[0]:"
    plain, over = lines(None), lines({0: "x0"})
    assert plain.count(refuse) == 1 and over.count(refuse) == 2
    first, last = (i for i, line in enumerate(over) if line == refuse)
    runs = [i for i, line in enumerate(over) if line.startswith("launch")]
    assert len(runs) == 2 and runs[0] < first < runs[1] < last
    assert len([line for line in plain if line.startswith("launch")]) == 1
    g = GraphBuilder()
    assert refuse not in host(plan_of(g, g.mul(g.input(4096), 0.5), updates={0: "x0"}))


def test_an_unused_arena_is_freed() -> None:
    g = GraphBuilder()
    x, w = g.input(64, 64), g.input(64, 64)
    values, _ = g.topk(g.input(64, 64), 3, 1, True, True)
    lines = host(plan_of(g, g.mm(g.exp(x), w)))
    assert "release(workspace)" not in lines and "give(workspace)" in lines
    assert "workspace" not in " ".join(host(plan_of(GraphBuilder())))


def test_equal_views_of_the_arena_and_equal_makers_are_one() -> None:
    g = GraphBuilder()
    x, w = g.input(16, 16), g.input(16, 16)
    whole = g.exp(x)
    text = render_cpp(plan_of(g, g.mm(whole, w), g.mm(w, whole), g.sin(w), g.cos(w))).host_source
    assert text.count("= fresh((16, 16), (16, 1), torch.float32)") == 1
    assert text.count("(0, torch.float32, (16, 16), (16, 1)),") == 1 and text.count("v[0]") == 2


def test_symbols_that_are_no_inputs_and_constants_have_slots() -> None:
    g = GraphBuilder()
    weight = torch.randn(4)
    node = g.graph.get_attr("weight")
    x = g.input(4)
    node.meta["val"] = x.meta["val"]
    made = g.add(x, node)
    g.graph.output([made])
    module = torch.nn.Module()
    module.weight = weight
    rendered = render_cpp(schedule(lower(fx.GraphModule(module, g.graph)), Options()))
    assert len(rendered.constants) == 1 and torch.equal(rendered.constants[0], weight)
    assert "constants[0]" in rendered.host_source
