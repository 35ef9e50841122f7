"""smelt/codegen/cpp/reductions.py: accumulators in C, compiled and run, against numpy."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch

from smelt.codegen.cpp.reductions import Accumulator, fold
from smelt.codegen.cpp.target import VALUE_TYPES
from smelt.codegen.cpp.vector_math import header
from smelt.runtime.build import Library, build

NUMPY = {
    "sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min, "any": np.any, "all": np.all, "argmax": np.argmax,
    "argmin": np.argmin,
}  # fmt: skip
DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
CASES = [
    (kind, dtype)
    for kind in NUMPY
    for dtype in DTYPES
    if (kind in ("any", "all")) <= (dtype is torch.bool) and not (dtype is torch.bool and kind in ("prod", "amin"))
]
ROWS, COLUMNS = 5, 7


def name_of(kind: str, dtype: torch.dtype) -> str:
    return f"{kind}_{str(dtype).removeprefix('torch.')}"


def function(made: Accumulator, name: str, ctype: str, result: str, across: bool = False) -> str:
    """Folds ROWS x COLUMNS numbers, a part of each row at a time where the accumulator has parts.

    `across`: the outer loop goes over what is next to each other in memory.
    """
    place = "j * ROWS + i" if across else "i * COLUMNS + j"
    lines = [
        *made.declare, "for (int i = 0; i < ROWS; i++) {", *made.begin_partial, "for (int j = 0; j < COLUMNS; j++) {",
        f"const {ctype} x = a[{place}];", *made.update("x", place), "}", *made.end_partial,
        *made.add_full_partials("i"), "}", f"*out = {made.result};",
    ]  # fmt: skip
    return f'extern "C" void {name}(const {ctype} *a, {result} *out) {{\n' + "\n".join(lines) + "\n}\n"


def columns(made: Accumulator, name: str, ctype: str) -> str:
    """Folds each column by itself."""
    lines = [
        f"for (int j = 0; j < COLUMNS; j++) {{ {made.ctype} s = {made.start};", "for (int i = 0; i < ROWS; i++) {",
        f"const {ctype} x = a[i * COLUMNS + j];", made.update_slot("s", "x"), "}", "out[j] = s; }",
    ]  # fmt: skip
    return f'extern "C" void {name}(const {ctype} *a, {made.ctype} *out) {{\n' + "\n".join(lines) + "\n}\n"


@pytest.fixture(scope="module")
def library() -> Library:
    source = header(set()) + f"enum {{ ROWS = {ROWS}, COLUMNS = {COLUMNS} }};\n"
    for kind, dtype in CASES:
        ctype, name = VALUE_TYPES[dtype], name_of(kind, dtype)
        result = "int64_t" if kind.startswith("arg") else ctype
        source += function(fold(kind, dtype, "a0", nested=False), f"plain_{name}", ctype, result)
        source += function(fold(kind, dtype, "a0", nested=True, ends=(1, 3)), f"nested_{name}", ctype, result)
        if kind.startswith("arg"):
            source += function(fold(kind, dtype, "a0", False, ordered=False), f"across_{name}", ctype, result, True)
        else:
            source += columns(fold(kind, dtype, "a0", nested=False), f"slot_{name}", ctype)
    (built,) = build([source], ("-O1",))
    return built


def run(library: Library, name: str, x: torch.Tensor, out: torch.Tensor) -> np.ndarray:
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address(name))(x.data_ptr(), out.data_ptr())
    return out.numpy()


def inputs(kind: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Numbers, extremes and, of floats, NaN and infinities; of products small numbers."""
    if dtype is torch.bool:
        return [torch.rand(ROWS, COLUMNS) < p for p in (0.0, 0.03, 0.5, 0.97, 1.1)]
    few = torch.randint(1, 3, (ROWS, COLUMNS)).to(dtype)
    if kind == "prod":
        return [torch.where(torch.rand(ROWS, COLUMNS) < 0.3, few, torch.ones_like(few)), few]
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    found = [few, torch.randint(0, 100, (ROWS, COLUMNS)).to(dtype)]
    if kind != "sum":
        found += [
            torch.full((ROWS, COLUMNS), info.min, dtype=dtype),
            torch.full((ROWS, COLUMNS), info.max, dtype=dtype),
        ]
    if dtype.is_floating_point:
        signed = torch.randint(-40, 40, (ROWS, COLUMNS)).to(dtype)
        with_nan, below = signed.clone(), signed.clone()
        with_nan[2, 3] = with_nan[3, 1] = math.nan
        below[:, 1] = -math.inf
        found += [signed, with_nan, below, torch.full((ROWS, COLUMNS), -math.inf, dtype=dtype), below.neg()]
    return found


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=lambda v: str(v).removeprefix("torch."))
def test_folds_are_those_of_numpy(library: Library, kind: str, dtype: torch.dtype) -> None:
    name = name_of(kind, dtype)
    for x in inputs(kind, dtype):
        values = x.numpy()
        one = NUMPY[kind](values) if dtype is not torch.bool or kind != "sum" else np.any(values)
        forms = ["plain", "nested"] + ["across"] * kind.startswith("arg")
        for form in forms:
            out = torch.empty(1, dtype=torch.int64 if kind.startswith("arg") else dtype)
            got = run(library, f"{form}_{name}", x, out)[0]
            np.testing.assert_array_equal(got, np.asarray(one).astype(got.dtype), err_msg=form)
        if not kind.startswith("arg"):
            each = NUMPY[kind](values, axis=0) if dtype is not torch.bool or kind != "sum" else np.any(values, axis=0)
            slots = run(library, f"slot_{name}", x, torch.empty(COLUMNS, dtype=dtype))
            np.testing.assert_array_equal(slots, each.astype(slots.dtype))


def test_whole_numbers_wrap_and_do_not_overflow() -> None:
    for dtype, ctype in ((torch.int64, "uint64_t"), (torch.int8, "uint8_t")):
        assert fold("sum", dtype, "s", False).ctype == ctype and fold("amax", dtype, "s", False).ctype != ctype


def test_openmp_clauses_of_vector_loops() -> None:
    """The operator of OpenMP's clause, for the accumulator of the innermost loop; NaN has a flag of its own."""
    signs = {"sum": "+", "prod": "*", "amax": "max", "amin": "min"}
    for kind, sign in signs.items():
        assert fold(kind, torch.int32, "s", nested=True).clauses == [f"reduction({sign}:s_part)"]
        nan = ["reduction(|:s_nan)"] if kind in ("amax", "amin") else []
        assert fold(kind, torch.float32, "s", nested=False).clauses == [f"reduction({sign}:s)", *nan]
    assert fold("any", torch.bool, "s", False).clauses == ["reduction(|:s)"]
    assert fold("all", torch.bool, "s", False).clauses == ["reduction(&:s)"]
    assert fold("argmax", torch.float32, "s", True).clauses == []


def test_only_sums_of_floats_are_put_away() -> None:
    assert fold("sum", torch.float32, "s", False, ends=(7,)).levels == ["s", "s_level1"]
    for kind, dtype in (("sum", torch.int64), ("amax", torch.float32), ("prod", torch.float64)):
        assert fold(kind, dtype, "s", False, ends=(7,)).add_full_partials("i") == []
    (line,) = fold("sum", torch.float32, "s", False, ends=(7,)).add_full_partials("i", "4")
    assert line.strip() == ("if ((i & 7) == 7) { for (int i = 0; i < 4; i++) { s_level1[i] += s[i]; s[i] = 0; } }")
