"""smelt/codegen/cpp/body.py: the C text of each op, where its lines stand, and what a kernel checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.base.errors import CompileError
from smelt.base.options import Options
from smelt.codegen.cpp.body import BodyRenderer, store_text, unsigned
from smelt.codegen.cpp.target import Renderer
from smelt.codegen.parameters import Arguments
from smelt.codegen.scope import Scopes, V
from smelt.loops.ir import REFUSE, Condition
from smelt.loops.lower import lower
from smelt.schedule.plan import schedule
from smelt.shapes.expr import Expr, Var, constant, variable
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
I64, I32, I16, I8, U8, BOOL = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool
OUTER, INNER = Var("outer", 100), Var("inner", 50)
I, J = variable(OUTER), variable(INNER)  # noqa: E741


class Body(BodyRenderer):
    """Two loops, i around j, over inputs of several dtypes."""

    def __init__(self, *shape: Any, g: GraphBuilder | None = None) -> None:
        g = g or GraphBuilder()
        dtypes = (F32, BF16, BOOL, I64)
        inputs = [g.input(*(shape or (100, 50)), dtype=dtype) for dtype in dtypes]
        plan = schedule(
            lower(g.build(*(g.where(x, x, x) if d is BOOL else g.abs(x) for x, d in zip(inputs, dtypes, strict=True)))),
            Options(),
        )
        super().__init__(plan, Renderer(), Scopes(), Arguments(), set())
        self.f32, self.bf16, self.bool, self.i64 = (x.name for x in inputs)
        for depth, (var, name) in enumerate(((OUTER, "i"), (INNER, "j")), 1):
            self.scopes.open()
            self.names[var], self.depths[var] = name, depth

    def at(self, depth: int) -> list[str]:
        return self.scopes.stack[depth].lines


def v(text: str, dtype: torch.dtype, depth: int = 2) -> V:
    return V(text, dtype, depth)


def test_loop_invariant_address_is_hoisted_into_a_pointer() -> None:
    body = Body()
    body.load(body.f32, (I, J))
    assert body.at(1) == ["const float *q0 = a0 + (50 * i);"] and body.at(2) == ["const float t0 = q0[j];"]
    body.load(body.f32, (I, J * 0 + 3))
    assert body.at(1)[1:] == ["const float t1 = a0[50 * i + 3];"] or "const float t1" in body.at(1)[-1]
    assert body.load(body.f32, (I, J)).text == "t0" and len(body.at(2)) == 1
    body = Body()
    body.load(body.f32, (constant(2), constant(1)))
    assert body.at(0) == ["const float t0 = a0[101];"], "what no loop changes is read once"


def test_pointer_to_written_memory_is_not_const() -> None:
    body = Body()
    text, depth = body.element(body.f32, (I, J), write=True)
    assert (text, depth) == ("q0[j]", 2) and body.at(1) == ["float *q0 = a0 + (50 * i);"]
    body = Body()
    body.arguments.written.add(body.f32)
    assert body.element(body.f32, (I, J)) == ("q0[j]", 2) and body.at(1)[0].startswith("float *")


def test_low_precision_and_booleans_are_widened_when_they_are_read() -> None:
    body = Body()
    for name in (body.bf16, body.bool, body.i64):
        body.load(name, (I, J))
    assert body.at(2) == [
        "const float t0 = bf16_load(q0[j]);",
        "const bool t1 = q1[j] != 0;",
        "const int64_t t2 = q2[j];",
    ]
    assert body.used == {"bf16_load"} and body.at(1)[0].startswith("const uint16_t *")
    assert [store_text(d, "x", body.used) for d in (F32, BF16, F16, BOOL)] == [
        "x",
        "bf16_store(x)",
        "f16_store(x)",
        "x",
    ]
    assert body.used == {"bf16_load", "bf16_store", "f16_store"}


def test_reads_under_conditions_are_guarded() -> None:
    body = Body()
    zero = v("0.0f", F32, 0)
    made = body.masked([Condition(I, 2, None), Condition(J, None, 9)], lambda: body.load(body.f32, (I, J)), zero)
    assert body.at(2) == [
        "const bool m0 = (i >= 2) & (j < 9);", "const float t0 = m0 ? q0[j] : (float)0;",
        "const float t1 = m0 ? t0 : 0.0f;",
    ]  # fmt: skip
    assert made == v("t1", F32) and body.met_mask and not body.masks
    body.masked([Condition(I, 0, 100, 3)], lambda: zero, zero)
    assert body.at(1)[-2:] == ["const bool m1 = ((i - 0) % 3 == 0);", "const float t2 = m1 ? 0.0f : 0.0f;"]
    body.masked([Condition(I, 1, None, 3)], lambda: zero, zero)
    assert "const bool m2 = (i >= 1) & ((i - 1) % 3 == 0);" in body.at(1)


def test_a_guarded_read_is_emitted_where_its_condition_is_known() -> None:
    body = Body()
    zero = v("0.0f", F32, 0)
    body.masked([Condition(J, None, 9)], lambda: body.load(body.f32, (I, constant(0))), zero)
    assert body.at(2)[1].startswith("const float t0 = m0 ? ") and not any("t0" in line for line in body.at(1))


CONVERSIONS = [
    (F32, BOOL, "const bool t0 = x != 0;"),
    (F32, BF16, "const float t0 = bf16_round((float)x);"),
    (I64, F16, "const float t0 = f16_round((float)x);"),
    (U8, F16, "const float t0 = (float)x;"),  # fits
    (U8, BF16, "const float t0 = bf16_round((float)x);"),
    (F32, I64, "const int64_t t0 = (int64_t)x;"),
    (F32, I32, "const int32_t t0 = (int32_t)x;"),
    (F32, I8, "const int8_t t0 = (int8_t)(int64_t)x;"),
    (F32, I16, "const int16_t t0 = (int16_t)(int32_t)x;"),
    (BF16, I16, "const int16_t t0 = (int16_t)(int64_t)x;"),
    (I64, I8, "const int8_t t0 = (int8_t)x;"),
    (F32, F64, "const double t0 = (double)x;"),
    (BOOL, F32, "const float t0 = (float)x;"),
]


@pytest.mark.parametrize(("source", "target", "line"), CONVERSIONS, ids=str)
def test_conversions(source: torch.dtype, target: torch.dtype, line: str) -> None:
    body = Body()
    made = body.convert(v("x", source), source, target)
    assert body.at(2) == [line] and made == v("t0", target)
    assert body.convert(made, target, target) is made


def test_low_precision_is_float32_already() -> None:
    body = Body()
    assert body.convert(v("x", BF16), BF16, F32) == v("x", F32) and not body.at(2)


def test_a_float_that_was_truncated_is_not_simply_itself_again() -> None:
    body = Body()
    whole = body.convert(v("x", F32), F32, I64)
    body.convert(whole, I64, F32)
    assert body.at(0) == ["const int32_t zero0 = unknown_zero();"]
    assert body.at(2)[1:] == ["const float t1 = (float)(t0 + zero0);"] and "unknown_zero" in body.used
    body = Body()
    body.constant(2.0**40, F32)
    body.convert(v("x", F32), F32, I32)
    assert body.at(2) == ["const int32_t t0 = (int32_t)(x + zero0);"]
    for number, beyond in ((2**31 - 1, False), (1 - 2**31, False), (2**31, True), (-(2**31) - 1, True)):
        body = Body()
        body.constant(number, I64)
        body.convert(v("x", F32), F32, I32)
        assert body.at(2) == [f"const int32_t t0 = (int32_t){'(x + zero0)' if beyond else 'x'};"]


def test_operators_round_and_compare_and_are_computed_once() -> None:
    body = Body()
    a, b = v("x", BF16, 1), v("y", BF16, 2)
    body.apply("add", BF16, a, b)
    body.apply("neg", BF16, a)
    made = body.apply("lt", BF16, a, b)
    assert body.at(2) == ["const float t0 = bf16_round(x + y);", "const bool t2 = x < y;"] and made.dtype is BOOL
    assert body.at(1) == ["const float t1 = -x;"], "exact, and known outside of the inner loop"
    assert body.apply("add", BF16, a, b).text == "t0"
    body.apply("exp", F32, v("z", F32))
    assert "exp" in body.used
    with pytest.raises(CompileError, match=r"has no erf of torch.int64"):
        body.apply("erf", I64, v("n", I64))


FAULT_LINE = "if ((n == 0)) *a0 = 2;"


def test_whole_numbers_over_0_set_the_fault_word() -> None:
    body = Body()
    body.apply("floor_div", I64, v("m", I64, 0), v("n", I64, 0))
    assert FAULT_LINE in body.at(0) and body.arguments.buffers == ["!fault"]
    before = len(body.at(0))
    body.apply("remainder", I64, v("m", I64, 0), v("n", I64, 0))
    assert [line for line in body.at(0) if line.startswith("if")] == [FAULT_LINE] and len(body.at(0)) == before + 1
    for dtype, divisor in ((I64, 3), (F32, 0.0)):
        body = Body()
        body.apply("floor_div", dtype, v("m", dtype), body.constant(divisor, dtype))
        assert not body.arguments.buffers, "a number that is not 0, or a float"
    body = Body()
    body.apply("floor_div", I64, v("m", I64), body.constant(0, I64))
    assert body.arguments.buffers == ["!fault"]


def test_checks_in_vectors_are_collected_and_hold_under_their_conditions() -> None:
    body = Body()
    body.scalar_depth = 1
    body.apply(f"{REFUSE}4", F32, v("x", F32), v("w", BOOL, 2))
    body.apply(f"{REFUSE}1", F32, v("x", F32), v("w", BOOL, 2))
    assert body.at(2) == ["bad0 |= (w) * 4;"], "a test is made once, whatever it tells"
    body.masked(
        [Condition(J, 3, None)], lambda: body.apply(f"{REFUSE}1", F32, v("x", F32), v("u", BOOL, 1)), v("0", F32)
    )
    assert "bad0 |= u & m0;" in body.at(2)
    body.apply(f"{REFUSE}1", F32, v("x", F32), v("s", BOOL, 1))
    assert body.at(1)[-1] == "if (s) *a0 = 1;"
    assert body.flag_target("bad") == "a0" and body.flag_target("far") == "far"


@pytest.mark.parametrize("wrap", [True, False])
def test_indices_are_checked_and_stay_inside(wrap: bool) -> None:
    body = Body()
    place = body.indirect(v("p", I64), 7, wrap)
    lines = body.at(2)
    assert lines[0] == "const int64_t j0 = (int64_t)p;"
    assert (lines[1] == "const int64_t j1 = j0 + (j0 < 0 ? 7 : 0);") is wrap
    last = "j1" if wrap else "j0"
    assert f"bad0 |= ((uint64_t){last} >= 7);" in lines
    assert lines[-1].endswith(f"= (uint64_t){last} < 7 ? {last} : 0;")
    ((atom, c),) = place.terms
    assert c == 1 and (atom.low, atom.high) == (0, 6) and body.depth_of(place) == 2
    assert (unsigned("7"), unsigned("z0")) == ("7", "(uint64_t)z0")


def test_symbolic_sizes_are_numbers_of_the_kernel() -> None:
    g = SymbolicBuilder(6)
    (n,) = g.symbols
    body = Body(n, 50, g=g)
    made = body.constant(n * 2, F32)
    assert body.arguments.symbols and made.depth == 0
    assert body.at(0) == ["const int64_t d0 = 2 * z0;", "const float t0 = (float)d0;"]
    whole = body.integer(I * 3 + J, I32)
    assert body.at(2) == ["const int32_t t1 = (int64_t)(3 * i + j);"] and whole.dtype is I32


def test_random_numbers_count_in_32_bits_and_mix_what_is_above() -> None:
    body = Body()
    made = body.random(v("s", I64, 0), 9, I * 50 + J + 4, 5000)
    assert body.at(0)[0] == "const uint64_t key0 = random_key(s, u0);" and body.arguments.streams == [9]
    assert body.at(1) == ["const uint32_t c0 = (uint32_t)(50 * i + 4);"]
    assert body.at(2) == ["const float t0 = random_uniform(key1, key2, c0 + (uint32_t)(j));"] and made.dtype is F32
    for place, start in ((J + 4, "const uint32_t c0 = (uint32_t)(4);"), (J + I, "const uint32_t c0 = (uint32_t)(i);")):
        body = Body()
        body.random(v("s", I64, 0), 9, place, 5000)
        assert start in [*body.at(0), *body.at(1)] and "c0 + (uint32_t)(j)" in body.at(2)[0]
    body = Body()
    body.random(v("s", I64, 0), 9, Expr(I.terms, 0) * 50 + J, 2**32 + 1)
    assert "0x9E3779B1" in body.at(2)[0] and ">> 32" in body.at(2)[0]
    body = Body()
    body.random(v("s", I64, 0), 9, Expr(I.terms, 0) * 50 + J, 2**32)
    assert "0x9E3779B1" not in body.at(2)[0]
