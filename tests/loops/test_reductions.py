"""smelt/loops/reductions.py: folds of every kind over every choice of dimensions, against numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from smelt.loops.ir import Pointwise, Reduction
from smelt.loops.lower import lower
from tests.loops.graphs import GraphBuilder, interpreted

NUMPY = {"sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min, "any": np.any, "all": np.all}
CHOICES = [c for n in range(4) for c in itertools.combinations(range(3), n)]
DTYPES = {"any": [torch.bool], "all": [torch.bool]}


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


@pytest.mark.parametrize("kind", NUMPY)
def test_folds_are_those_of_numpy(kind: str) -> None:
    for dtype in DTYPES.get(kind, [torch.float64, torch.int64]):
        x = values(dtype, 2, 3, 1)
        got = interpreted(lambda g, x: tuple(getattr(g, kind)(x, dims) for dims in CHOICES), x)
        for dims, result in zip(CHOICES, got, strict=True):
            want = NUMPY[kind](x.numpy(), axis=dims) if dims else x.numpy()
            assert result.dtype is dtype
            np.testing.assert_array_equal(result.numpy(), want)


@pytest.mark.parametrize(("kind", "neutral"), [("sum", 0), ("prod", 1), ("any", False), ("all", True)])
def test_nothing_folds_to_what_changes_nothing(kind: str, neutral: int) -> None:
    x = values(DTYPES.get(kind, [torch.float32])[0], 4, 0)
    got = interpreted(
        lambda g, x: (getattr(g, kind)(x, (1,)), getattr(g, kind)(x, (0, 1)), getattr(g, kind)(x, (0,))), x
    )
    assert [r.tolist() for r in got] == [[neutral] * 4, neutral, []]


def test_a_fold_reads_the_dtype_and_the_shape_of_its_operand() -> None:
    g = GraphBuilder()
    x = g.input(4, 5, dtype=torch.float16)
    program = lower(g.build(g.argmax(x, 1), g.sum(x, (0, 1)), g.amin(x, ()), g.sum(g.input(0, 3), (0,))))
    found, total, same, none = (program.nodes[o.name] for o in program.outputs)
    assert isinstance(found, Reduction) and isinstance(total, Reduction)
    assert (found.kind, found.dtype, found.meta.dtype, found.dims) == ("argmax", torch.float16, torch.int64, (1,))
    assert (total.kind, total.source_shape, total.dims, total.meta.shape) == ("sum", (4, 5), (0, 1), ())
    assert isinstance(same, Pointwise) and same.view, "over no dimensions it is its operand"
    assert isinstance(none, Pointwise) and not none.inputs, "nothing is read of what has no elements"


def test_the_first_of_equals_is_found_and_nan_wins() -> None:
    nan = float("nan")
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, nan, nan], [-1.0, -1.0, 5.0]])
    largest, smallest = interpreted(lambda g, x: (g.argmax(x, 1), g.argmin(x, 1)), x)
    assert (largest.tolist(), smallest.tolist()) == ([1, 0, 1, 2], [0, 0, 1, 0])
