"""Copies between devices."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta, meta_of
from smelt.prims import ops
from tests.prims.prim_check import checked

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)


def test_a_copy_to_the_same_device() -> None:
    for x in (torch.rand(2, 3), torch.tensor(3), torch.zeros(0, 2, dtype=torch.bool)):
        assert torch.equal(checked("to_device", x, CPU), x)


def test_a_copy_is_dense_and_elsewhere() -> None:
    x = meta_of(torch.rand(3, 4, dtype=torch.float16)[:, ::2].t())
    assert ops.to_device.meta(x, CUDA) == TensorMeta((2, 3), torch.float16, (3, 1), CUDA)


def test_zeros_stay_zeros() -> None:
    assert ops.to_device.facts.linear_in == (0,)
