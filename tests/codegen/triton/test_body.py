"""smelt/codegen/triton/body.py: the text of each op over the axes of a tile, masks, and checks of either machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.abi.faults import DIVIDED_BY_ZERO, OUT_OF_RANGE, Check
from smelt.base.errors import CompileError
from smelt.base.options import Options
from smelt.codegen.scope import V
from smelt.codegen.triton.body import TileBody
from smelt.loops.ir import REFUSE, Condition
from smelt.loops.lower import lower
from smelt.schedule.machine import CPU, GPU, Machine
from smelt.schedule.plan import Schedule, schedule
from smelt.shapes.expr import Var, constant, variable
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
I64, I32, I8, U8, BOOL = torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool
Y, X = 1, 2
"""The bits of the axes."""
ROWS, COLUMNS = Var("rows", 100), Var("columns", 50)
I, J = variable(ROWS), variable(COLUMNS)  # noqa: E741


class OnGpu(Schedule):
    """A schedule of tensors that lie on a GPU."""

    on_gpu = True


class Body(TileBody):
    """A tile of rows and columns, of which the columns have a mask."""

    def __init__(self, machine: Machine = CPU, g: GraphBuilder | None = None, rows: Any = 100) -> None:
        g = g or GraphBuilder()
        dtypes = (F32, BF16, BOOL)
        inputs = [g.input(rows, 50, dtype=dtype) for dtype in dtypes]
        made = [g.where(x, x, x) if d is BOOL else g.abs(x) for x, d in zip(inputs, dtypes, strict=True)]
        plan: Schedule = schedule(lower(g.build(*made)), Options(target="triton"), None, machine)
        if machine is GPU:
            plan.__class__ = OnGpu
        super().__init__(plan)
        self.f32, self.bf16, self.bool = (x.name for x in inputs)
        self.names |= {ROWS: "yindex", COLUMNS: "xindex"}
        self.depths |= {ROWS: Y, COLUMNS: X}
        self.axis_masks = {X: V("xmask", BOOL, X)}

    def zeros(self, axes: int) -> str:
        return " + ".join(name for bit, name in ((Y, "yindex * 0"), (X, "xindex * 0")) if axes & bit)

    def lines(self) -> list[str]:
        return [line for scope in self.scopes.stack for line in scope.lines]


def v(text: str, dtype: torch.dtype, axes: int = X) -> V:
    return V(text, dtype, axes)


def test_values_vary_along_the_axes_of_what_they_are_made_of() -> None:
    body = Body()
    assert [body.depth_of(e) for e in (constant(3), I, J, I * 50 + J, (I + J) // 3)] == [0, Y, X, X | Y, X | Y]
    assert body.apply("add", F32, v("a", F32, Y), v("b", F32, X)).depth == Y | X
    assert body.choose(v("m", BOOL, Y), v("a", F32, 0), v("b", F32, X)).depth == Y | X
    assert body.integer(J * 2 + 1, I32).depth == X and body.lines()[-1].endswith("= (2 * xindex + 1).to(tl.int32)")
    assert body.integer(constant(7), I64).depth == 0 and body.lines()[-1].endswith("= tl.full([], 7, tl.int64)")


def test_loads_have_the_masks_of_their_axes() -> None:
    body = Body()
    assert body.load(body.f32, (I, J)).depth == Y | X and body.loaded == Y | X
    body.load(body.f32, (I, constant(0)))
    body.load(body.bf16, (I, J))
    body.load(body.bool, (I, J))
    texts = [line.split(" = ")[1] for line in body.lines()]
    assert sorted(texts) == sorted([
        "tl.load(a0 + (xindex + 50 * yindex), xmask, other=0)",
        "tl.load(a0 + (50 * yindex))",
        "tl.load(a1 + (xindex + 50 * yindex), xmask, other=0).to(tl.float32)",
        "(tl.load(a2 + (xindex + 50 * yindex), xmask, other=0) != 0)",
    ])  # fmt: skip


def test_loads_under_conditions_vary_as_these_do() -> None:
    body = Body()
    zero = v("0.0", F32, 0)
    made = body.masked([Condition(J, 2, 9, 3)], lambda: body.load(body.f32, (I, constant(0))), zero)
    assert made.depth == Y | X and not body.masks
    mask, load, chosen = (line.split(" = ")[1] for line in body.lines())
    assert mask == "((xindex) >= 2) & ((xindex) < 9) & (((xindex) - 2) % 3 == 0)"
    assert load == "tl.load(a0 + (50 * yindex) + xindex * 0, m0, other=0)" and chosen == "tl.where(m0, t0, 0.0)"


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (F32, BOOL, "(x != 0)"),
        (F32, BF16, "x.to(tl.bfloat16).to(tl.float32)"),
        (BF16, F16, "x.to(tl.float16).to(tl.float32)"),
        (I64, F16, "x.to(tl.float32).to(tl.float16).to(tl.float32)"),
        (F32, I64, "x.to(tl.int64)"),
        (I64, I8, "x.to(tl.int8)"),
        (F32, F64, "x.to(tl.float64)"),
        (BOOL, F32, "x.to(tl.float32)"),
    ],
    ids=str,
)
def test_conversions(source: torch.dtype, target: torch.dtype, text: str) -> None:
    body = Body()
    made = body.convert(v("x", source), source, target)
    assert made == V("t0", target, X) and body.lines() == [f"t0 = {text}"]


def test_floats_beyond_a_small_integer_keep_their_low_bits() -> None:
    body = Body()
    body.convert(v("x", F32), F32, I8)
    (line,) = body.lines()
    assert line.startswith("t0 = x.to(tl.int") and line.endswith(").to(tl.int8)") and line.count(".to(") == 2
    body = Body()
    assert body.convert(v("x", BF16), BF16, F32) == v("x", F32) and not body.lines()
    same = v("x", I64)
    assert body.convert(same, I64, I64) is same


def test_value_rounded_to_bfloat16_uses_the_fast_function() -> None:
    body = Body()
    made = body.apply("exp", F32, v("x", F32))
    body.convert(made, F32, BF16)
    assert body.lines() == ["t0 = libdevice.exp(x)", "t1 = tl.exp(x).to(tl.bfloat16).to(tl.float32)"]
    body = Body()
    body.convert(body.apply("exp", F64, v("x", F64)), F64, BF16)
    assert "tl.exp" not in " ".join(body.lines())


def test_operators_call_the_library_and_small_integers_keep_their_width() -> None:
    body = Body()
    body.apply("sigmoid", F32, v("x", F32))
    body.apply("add", I8, v("m", I8), v("n", I8))
    body.apply("maximum", I8, v("m", I8), v("n", I8))
    made = body.apply("lt", I8, v("m", I8), v("n", I8))
    assert body.lines() == [
        "t0 = m_sigmoid(x)", "t1 = (m + n).to(tl.int8)", "t2 = tl.maximum(m, n)", "t3 = (m < n)",
    ]  # fmt: skip
    assert "m_sigmoid" in body.used and made.dtype is BOOL
    three = body.constant(3.0, F32)
    body.apply("div", F32, v("x", F32), three)
    assert body.lines()[-1].startswith("t4 = m_div_by(x, ") and "m_div_by" in body.used
    with pytest.raises(CompileError, match=r"triton has no erf of torch.int8"):
        body.apply("erf", I8, v("n", I8))


def test_whole_numbers_over_0_are_a_fault_where_eager_refuses_them() -> None:
    body = Body()
    body.apply("floor_div", I64, v("m", I64), v("n", I64))
    assert body.lines()[0] == f"tl.store(a0 + xindex * 0, {DIVIDED_BY_ZERO}, (n == 0) & xmask)"
    assert "m_floor_div_int(m, n)" in body.lines()[1]
    body = Body(GPU)
    body.apply("floor_div", I64, v("m", I64), v("n", I64))
    assert body.lines() == ["t0 = m_floor_div_any(m, n)"] and not body.arguments.buffers
    for machine in (CPU, GPU):
        body = Body(machine)
        body.apply("floor_div", I64, v("m", I64), body.constant(3, I64))
        assert not body.arguments.buffers and "_any" not in body.lines()[0]


@pytest.mark.parametrize("wrap", [True, False])
def test_indices_are_checked_and_stay_inside(wrap: bool) -> None:
    body = Body()
    place = body.indirect(v("p", I64), 7, wrap)
    lines = body.lines()
    last = "j1" if wrap else "j0"
    assert lines[0] == "j0 = p.to(tl.int64)" and ("j1 = tl.where(j0 < 0, j0 + 7, j0)" in lines) is wrap
    out = f"(({last} < 0) | ({last} >= 7))"
    assert f"tl.store(a0 + xindex * 0, {OUT_OF_RANGE}, {out} & xmask)" in lines
    assert lines[-1].endswith(f"= tl.where({out}, 0, {last})") and body.depth_of(place) == X


def test_a_kernel_on_a_gpu_reports_which_check_failed() -> None:
    body = Body(GPU)
    body.running = ["gather"]
    body.indirect(v("p", I64), 7, True)
    body.running = []
    body.apply(f"{REFUSE}4", F32, v("x", F32, 0), v("w", BOOL, 0))
    assert body.checks == [Check(OUT_OF_RANGE, "gather", True), Check(4, "", reports_index=False)]
    first, second = (line for line in body.lines() if line.startswith("m_refuse"))
    assert first == "m_refuse(a0, ((j1 < 0) | (j1 >= 7)) & xmask, 1, j1, 7)"
    assert second == "m_refuse(a0, w, 2, tl.full([], 0, tl.int64), 0)" and "m_refuse" in body.used
    assert body.check_number(body.checks[1]) == 2 and body.check_number(Check(8, "")) == 3


def test_a_check_is_made_once_under_the_same_conditions() -> None:
    body = Body()
    for _ in range(2):
        body.fault("w", v("w", BOOL, 0), 4)
    assert body.lines() == ["tl.store(a0, 4, w)"]
    body.masked([Condition(J, 3, None)], lambda: body.fault("w", v("w", BOOL, 0), 4) or v("x", F32), v("0", F32))
    assert "tl.store(a0 + xindex * 0, 4, w & m0)" in body.lines()


def test_errors_about_values_without_a_buffer_name_their_node() -> None:
    g = GraphBuilder()
    x = g.input(100, 50)
    plan = schedule(lower(g.build(g.sin(g.neg(x)))), Options(target="triton"), None, CPU)
    body = Body()
    body.plan = plan
    seen: list[list[str]] = []
    plan.program.nodes["neg"].body = lambda ops, index: seen.append([*ops.running]) or v("n", F32)
    body.load("neg", (I, J))
    assert seen == [["neg"]] and body.running == []


def test_symbolic_sizes_and_random_numbers() -> None:
    g = SymbolicBuilder(100)
    (n,) = g.symbols
    body = Body(g=g, rows=n)
    made = body.constant(n * 2, F32)
    assert made.depth == 0 and "tl.full([], d0, tl.int64)" in " ".join(body.lines())
    for count, kind in ((5000, "tl.int32"), (2**32 + 1, "tl.int64"), (n * 50, "tl.int64")):
        body = Body()
        drawn = body.random(v("s", I64, 0), 9, I * 50 + J, count)
        text = " ".join(body.lines())
        assert drawn.dtype is F32 and drawn.depth == Y | X and body.arguments.streams == [9]
        assert "random_key(s, u0)" in text and f"(xindex + 50 * yindex).to({kind})" in text
        assert {"random_key", "random_uniform"} <= body.used
