"""The records of the primitives against what their references and the targets' tables do (smelt/prims/table.py)."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from smelt.codegen.cpp import target as cpp
from smelt.codegen.cpp.reductions import fold
from smelt.codegen.cpp.target import Renderer
from smelt.codegen.cpp.vector_math import PRELUDE
from smelt.codegen.triton import target as triton
from smelt.codegen.triton.reductions import Accumulator
from smelt.codegen.triton.target import operator
from smelt.loops.facts import BOOLEAN, COSTS, DIVISIONS, EXACT, FOLDS, MOVES, PERIODIC
from smelt.loops.pointwise import PLAIN
from smelt.prims.ops import PRIMS
from smelt.prims.table import NO_FACTS, Keeps, Kind, Prim, Takes

DTYPES = (torch.float32, torch.int32, torch.bool)


def operands(prim: Prim, dtype: torch.dtype) -> list[torch.Tensor] | None:
    """Values for each parameter; None where the reference does not take the dtype."""
    torch.manual_seed(0)
    made = []
    for _ in prim.parameters:
        values = torch.rand(64) * 3 + 0.25
        made.append(
            values > 1.5
            if dtype is torch.bool
            else (values.to(dtype) if dtype.is_floating_point else values.ceil().to(dtype))
        )
    try:
        prim(*made)
    except (RuntimeError, TypeError):
        return None
    return made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_targets_have_what_references_take(name: str, dtype: torch.dtype) -> None:
    """Each target has a text for each op of a dtype, if its reference gives this dtype back (or bool)."""
    values = operands(PRIMS[name], dtype)
    if values is None or PRIMS[name](*values).dtype not in (dtype, torch.bool):
        return
    if name == "fma" and not dtype.is_floating_point:  # its reference computes in float64
        return
    arguments = [f"x{i}" for i in range(len(values))]
    for target in (Renderer().op, operator):
        text = target(name, dtype, arguments)
        assert "x0" in text or name in ("isnan", "isinf", "isfinite", "signbit")


@pytest.mark.parametrize("target", [cpp, triton], ids=["cpp", "triton"])
def test_tables_of_targets_are_complete(target: Any) -> None:
    """A text of floats and one of whole numbers for each primitive that takes them, and none of anything else."""
    floats, whole = ({*target.COMMON_OPS, *table} for table in (target.FLOAT_OPS, target.INTEGER_OPS))
    takes = {name: PRIMS[name].facts.takes for name in (*PLAIN, "where")}
    assert {name for name in takes if takes[name] is not Takes.WHOLE} == floats
    assert {name for name in takes if takes[name] is not Takes.FLOATS} == whole
    assert set(target.BOOL_OPS) <= floats | whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("kind", FOLDS)
def test_targets_fold_what_is_a_fold(kind: str, dtype: torch.dtype) -> None:
    if kind in ("any", "all") and dtype is not torch.bool:
        return
    accumulators = fold(kind, dtype, "a", nested=False), Accumulator(kind, dtype, 0)
    assert all(accumulator.start for accumulator in accumulators)
    assert accumulators[0].update("x", "i") and accumulators[1].step("a", "x")


def test_each_reduction_is_a_fold() -> None:
    assert {name for name, prim in PRIMS.items() if prim.kind is Kind.REDUCTION} == set(FOLDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("kind", [kind for kind, fold in FOLDS.items() if not fold.finds])
def test_neutral_elements_change_nothing(kind: str, dtype: torch.dtype) -> None:
    neutral = FOLDS[kind].neutral
    if neutral is None or (kind in ("any", "all")) != (dtype is torch.bool):
        return
    values = torch.tensor([3, 0, 2]).to(dtype)
    longer = torch.cat([values, torch.tensor([neutral], dtype=dtype)])
    assert torch.equal(PRIMS[kind](longer, (0,)), PRIMS[kind](values, (0,)))


@pytest.mark.parametrize("name", [name for name in PLAIN if PRIMS[name].facts.keeps is not Keeps.NOTHING])
def test_operands_are_returned_as_recorded(name: str) -> None:
    aten = getattr(torch, name)
    dtypes = [torch.bool] if PRIMS[name].facts.keeps is Keeps.BOOLS else [torch.int8, torch.uint8, torch.int64]
    for dtype in dtypes:
        x = torch.tensor([1, 0, 77, 100]).to(dtype)
        assert torch.equal(aten(x), x)


@pytest.mark.parametrize("name", [name for name in PLAIN if PRIMS[name].facts.for_bool is not None])
def test_bools_are_computed_by_another_primitive(name: str) -> None:
    prim, other = PRIMS[name], PRIMS[PRIMS[name].facts.for_bool or ""]
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    operands = (x, y)[: len(prim.parameters)]
    assert torch.equal(prim(*operands), other(*operands))


@pytest.mark.parametrize("name", [name for name in PLAIN if PRIMS[name].facts.of_whole is not None])
def test_whole_numbers_have_one_answer(name: str) -> None:
    x = torch.tensor([-128, 0, 127])
    assert PRIMS[name](x).tolist() == [PRIMS[name].facts.of_whole] * 3


@pytest.mark.parametrize("name", [name for name in PLAIN if PRIMS[name].facts.takes is Takes.WHOLE])
def test_floats_are_refused_as_recorded(name: str) -> None:
    operands = [torch.rand(3)] * len(PRIMS[name].parameters)
    if name.startswith("shift"):  # of floats torch multiplies by a power of two
        return
    with pytest.raises(RuntimeError, match="not implemented"):
        PRIMS[name](*operands)


@pytest.mark.parametrize("name", PLAIN)
def test_results_are_bool_as_recorded(name: str) -> None:
    results = {PRIMS[name](*v).dtype for dtype in DTYPES if (v := operands(PRIMS[name], dtype)) is not None}
    assert (results == {torch.bool}) == (name in BOOLEAN)


@pytest.mark.parametrize("name", [name for name in PLAIN if len(PRIMS[name].parameters) == 2])
def test_operands_commute_as_recorded(name: str) -> None:
    if not PRIMS[name].facts.commutative:
        return
    for dtype in DTYPES:
        values = operands(PRIMS[name], dtype)
        if values is not None:
            x, y = values[0], values[1].flip(0)
            assert torch.equal(PRIMS[name](x, y), PRIMS[name](y, x))


@pytest.mark.parametrize("name", sorted(EXACT & set(PLAIN)))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_results_need_no_rounding_as_recorded(name: str, dtype: torch.dtype) -> None:
    values = [v.to(dtype) for v in operands(PRIMS[name], torch.float32) or ()]
    exact = PRIMS[name](*(v.double() for v in values))
    assert torch.equal(exact.to(dtype).double(), exact)


@pytest.mark.parametrize("name", sorted(DIVISIONS))
def test_divisions_refuse_whole_zeros(name: str) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        PRIMS[name](torch.tensor([3, 4]), torch.tensor([1, 0]))


ANNIHILATED: dict[str, tuple[Any, ...]] = {
    "convert": (torch.int32,),
    "reshape": ((6, 2),),
    "permute": ((1, 0),),
    "broadcast_in_dim": ((2, 3, 4), (1, 2)),
    "slice": ((0, 0), (2, 4), (1, 2)),
    "flip": ((1,),),
    "sum": ((1,),),
}
"""The other arguments of primitives that have parameters."""


@pytest.mark.parametrize("name", [name for name, prim in PRIMS.items() if prim.facts.annihilated_by])
def test_results_of_annihilating_operands_are_zero_as_recorded(name: str) -> None:
    prim = PRIMS[name]
    shapes = {"mm": ((3, 4), (4, 3)), "bmm": ((2, 3, 4), (2, 4, 3))}.get(name, ((3, 4), (3, 4)))
    for zero in prim.facts.annihilated_by:
        tensors = [torch.zeros(shape) if i == zero else torch.rand(shape) + 1 for i, shape in enumerate(shapes)]
        arguments = ANNIHILATED.get(name)
        result = prim(tensors[0], *arguments) if arguments is not None else prim(*tensors[: len(prim.parameters)])
        assert not result.any()


def test_kinds_of_facts() -> None:
    assert {name for name in MOVES if PRIMS[name].kind not in (Kind.VIEW, Kind.COPY, Kind.INDEXING)} == set()
    assert {name for name, prim in PRIMS.items() if prim.kind is Kind.VIEW} <= MOVES
    assert {name for name, cost in COSTS.items() if cost > 1} <= {
        n for n, p in PRIMS.items() if p.kind in (Kind.POINTWISE, Kind.RANDOM)
    }
    assert set(PERIODIC) == {"sin", "cos"} and NO_FACTS.cost == 1


def test_functions_of_the_c_library_are_declared() -> None:
    """Kernels include no <math.h>: what a text calls with a suffix for float stands in the prelude."""
    texts = (text for text in cpp.FLOAT_OPS.values() if isinstance(text, str))
    called = {name for text in texts for name in re.findall(r"([a-z]\w*)\{f\}\(", text)}
    declared = {*re.findall(r"M\((\w+)\)", PRELUDE)}
    assert called and called <= declared, f"declare in PRELUDE of vector_math.py: {sorted(called - declared)}"
