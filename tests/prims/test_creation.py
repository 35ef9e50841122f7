"""Constants, ranges and random numbers, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims import ops
from tests.prims.prim_check import checked

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (2, 3)])
@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.5, torch.float64), (True, torch.bool), (-7, torch.int8), (2**62 + 1, torch.int64), (0.1, torch.bfloat16)],
)
def test_full(shape: tuple[int, ...], value: float, dtype: torch.dtype) -> None:
    got = checked("full", shape, value, dtype, CPU)
    assert got.flatten().tolist() == [torch.tensor(value, dtype=dtype).item()] * got.numel()


@pytest.mark.parametrize("length", [0, 1, 5])
def test_iota_of_whole_numbers_is_exact(length: int) -> None:
    start, step = 2**62 + 1, -3
    got = checked("iota", length, start, step, torch.int64, CPU)
    assert got.tolist() == [start + step * i for i in range(length)]


def test_iota_wraps_into_its_type() -> None:
    assert checked("iota", 4, 126, 1, torch.int8, CPU).tolist() == [126, 127, -128, -127]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_iota_of_floats_is_rounded_once(dtype: torch.dtype) -> None:
    """300 times a tenth: sums in the type itself drift, and a step in it is another one."""
    exact = torch.from_numpy(np.arange(300) * 0.1 + 0.7)
    assert torch.equal(checked("iota", 300, 0.7, 0.1, dtype, CPU), exact.to(dtype))


def test_random_numbers_depend_on_seed_stream_and_index() -> None:
    seed = torch.tensor(3)
    got = checked("random", seed, 1, (7, 9))
    assert torch.equal(got, checked("random", seed, 1, (7, 9)))
    assert torch.equal(got.flatten()[:20], ops.random(seed, 1, (20,)))
    assert not torch.equal(got, ops.random(seed, 2, (7, 9)))
    assert not torch.equal(got, ops.random(seed + 1, 1, (7, 9)))
    assert checked("random", seed, 1, (0, 2)).shape == (0, 2)
    assert 0 <= got.min() and got.max() < 1


@pytest.mark.parametrize("seed", [torch.tensor([1]), torch.tensor(1.0), torch.tensor(1, dtype=torch.int32)])
def test_a_seed_is_one_long(seed: torch.Tensor) -> None:
    with pytest.raises(CompileError, match="prim random"):
        ops.random.meta(meta_of(seed), 0, (2,))
