"""smelt/codegen/triton/host.py: launches as data, sources once, and checks that tell the user's lines."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import fx

from smelt.abi.faults import CHECK_BYTES, OUT_OF_RANGE, Check
from smelt.abi.random_source import key_step
from smelt.abi.rendered import Rendered
from smelt.base.errors import CompileError
from smelt.base.options import Options
from smelt.codegen.triton.host import locate_checks, print_kernels, render_triton
from smelt.loops.lower import lower
from smelt.schedule.machine import GPU
from smelt.schedule.plan import Schedule, schedule
from tests.codegen.triton.test_body import OnGpu
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder

CPU = torch.device("cpu")


def plan_of(g: GraphBuilder, *outputs: Any, options: Options | None = None, on_gpu: bool = False) -> Schedule:
    plan = schedule(lower(g.build(*outputs)), options or Options(target="triton"), {}, GPU)
    if on_gpu:
        plan.__class__ = OnGpu
    return plan


def rendered(g: GraphBuilder, *outputs: Any, **how: Any) -> Rendered:
    return render_triton(plan_of(g, *outputs, **how), CPU)


def launches(host: str) -> list[tuple[int, Any, Any]]:
    """(number of the source, extents, arguments) of each launch, in the order of the segments."""
    names = {"offsets": ["offset"] * 9, **{f"s{i}": f"s{i}" for i in range(4)}}
    found = []
    for text in re.findall(r"kernels\.segment\(\[\n(.*?)\n\s*\]\)", host, re.DOTALL):
        found += eval(f"[{text}]", names)
    return found


def test_a_launch_is_its_source_its_grid_and_the_offsets_of_its_buffers() -> None:
    g = GraphBuilder()
    x, w = g.input(32, 32), g.input(32, 32)
    made = rendered(g, g.sin(g.mm(g.exp(x), w)))
    first, second = launches(made.host_source)
    assert first[0] == 0 and second[0] == 1 and len(made.kernels) == len(made.fallbacks) == 2
    assert first[2] == ((0, 0), (1, 0)) or first[2] == ((1, 0), (0, 0)), (
        "the input by its slot, the result in the arena"
    )
    assert (first[1][0][0]) == 32 * 32 and isinstance(first[1][0][1], str)
    assert made.host_source.count("(table)") == 2 and made.exports == [] and made.device == CPU


def test_equal_kernels_are_built_once() -> None:
    g = GraphBuilder()
    x = g.input(64, 64)
    for op in ("exp", "exp", "neg"):
        x = g.mm(getattr(g, op)(x), g.input(64, 64))
    made = rendered(g, x)
    assert [number for number, _, _ in launches(made.host_source)] == [0, 0, 1] and len(made.kernels) == 2
    contract = render_triton(plan_of(g2 := GraphBuilder(), g2.exp(g2.input(64))), CPU, contract=True)
    assert contract.kernels[0].contract and not made.kernels[0].contract


def test_symbols_streams_and_indices_that_sizes_decide() -> None:
    g = SymbolicBuilder(6)
    (n,) = g.symbols
    x, w, seed = g.input(n, 8), g.input(8, 8), g.input(dtype=torch.int64)
    made = rendered(g, g.mm(g.mul(g.random(seed, 7, (n, 8)), x), w))
    ((_, extents, arguments),) = launches(made.host_source)
    assert arguments[-2:] == ("s0", key_step(7)) and (0, "offset") in arguments
    assert "def at(s0):" in made.host_source and "s0" in made.host_source.split("segment0 = ")[1].split("])")[0]


def test_a_kernel_needs_no_size_that_is_no_input() -> None:
    g = SymbolicBuilder(6)
    (n,) = g.symbols
    plan = plan_of(g, g.exp(g.input(n, 8)))
    plan.program.symbols.clear()
    with pytest.raises(CompileError, match="needs the size s0, which is no input"):
        render_triton(plan, CPU)


def test_groups_without_elements_have_no_launch_and_scatters_have_two() -> None:
    g = GraphBuilder()
    assert not rendered(g, g.exp(g.input(0, 4))).kernels
    g = GraphBuilder()
    x, place, src = g.input(9), g.input(4, dtype=torch.int64), g.input(4)
    made = rendered(g, g.scatter_add(x, 0, place, src))
    assert len([kernel for kernel in made.kernels if "scatter" in kernel.name]) == 2 or len(made.kernels) == 3
    assert "fault=" in made.host_source and made.host_source.count("workspaces.refuse(workspace)") == 1


def lookups(g: GraphBuilder) -> tuple[fx.Node, ...]:
    """Two lookups with the product of one between them: two kernels that check."""
    table, one, other = g.input(9), g.input(64, 64, dtype=torch.int64), g.input(7, dtype=torch.int64)
    first = g.gather(table, 0, g.reshape(one, (4096,)))
    first.meta |= {"line": "model.py:3", "from": "embedding"}
    second = g.gather(table, 0, other)
    return g.mm(g.reshape(first, (64, 64)), g.input(64, 64)), g.sum(second, (0,))


def test_each_launch_on_a_gpu_has_its_own_slot_for_failed_checks() -> None:
    g = GraphBuilder()
    plan = plan_of(g, *lookups(g), on_gpu=True)
    made = render_triton(plan, CPU)
    assert len(made.checks) == 2 and all(isinstance(checks[0], Check) for _, checks in made.checks)
    slot = re.search(r"fault=(\d+),", made.host_source)
    assert slot is not None
    words = [a for _, _, arguments in launches(made.host_source) for a in arguments if a[0] == int(slot.group(1))]
    assert words == [(int(slot.group(1)), 0), (int(slot.group(1)), CHECK_BYTES)]
    assert "workspaces.refuse(workspace)" not in made.host_source, "the kernels end everything"


def test_checks_are_located_in_the_users_program() -> None:
    g = GraphBuilder()
    outputs = lookups(g)
    plan = plan_of(g, *outputs, on_gpu=True)
    made = locate_checks(render_triton(plan, CPU), g.graph)
    told = {(check.operator, check.line) for _, checks in made.checks for check in checks}
    assert told == {("embedding", "model.py:3"), ("", "")}
    parts = Rendered(
        [], [], "", [], checks=[("k", (Check(OUT_OF_RANGE, "gather_3_part"), Check(OUT_OF_RANGE, "lost")))]
    )
    graph = fx.Graph()
    node = graph.placeholder("gather_3")
    node.meta |= {"line": "a.py:9", "from": "take"}
    (_, (known, lost)) = locate_checks(parts, graph).checks[0]
    assert (known.line, known.operator, lost.line) == ("a.py:9", "take", "")
    plain = Rendered([], [], "", [])
    assert locate_checks(plain, graph) is plain


def test_a_product_is_called_with_all_its_candidates() -> None:
    g = GraphBuilder()
    a, b, bias = g.input(256, 64), g.input(64, 128), g.input(128)
    made_of = g.add(g.mm(g.exp(a), b), g.broadcast_in_dim(bias, (256, 128), (1,)))
    plan = plan_of(g, made_of, options=Options(target="triton", gemm="template"))
    made = render_triton(plan, CPU)
    ((_, product),) = plan.products.items()
    assert product.prologues and product.epilogue is not None
    text = made.host_source
    assert re.search(r"product0\(table, .+, .+, .+\)", text) and "product0 = kernels.product(" in text
    assert len([kernel for kernel in made.kernels if "tl.dot" in kernel.source]) == 2, "with its factor inside, and not"
    assert made.text_of is not None and made.text_of(product.number)[0] == f"product {product.name}"


def test_kernels_are_printed_with_their_names_and_configurations() -> None:
    g = GraphBuilder()
    made = rendered(g, g.exp(g.input(64)))
    text = print_kernels([*made.kernels, *made.kernels])
    assert (
        text.startswith(f"# kernel 0: {made.kernels[0].name}\n#   ")
        and f"\n\n# kernel 1: {made.kernels[0].name}" in text
    )
    assert text.count("def kernel(") == 2 and print_kernels([]) == ""


def test_names_and_texts_of_units() -> None:
    g = GraphBuilder()
    plan = plan_of(g, g.exp(g.input(64)))
    made = render_triton(plan, CPU)
    (number,) = plan.groups
    assert made.text_of is not None
    assert (
        made.text_of(number) == (made.kernels[0].name, made.kernels[0].source) and made.text_of(999)[0] == "no kernel"
    )
