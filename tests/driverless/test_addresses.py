"""Whoever hands out the address of a tensor on "cuda" gets a real one: the graph ends there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base.stats import reset_stats


class Holder:
    """As other libraries take tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


ADDRESSES: dict[str, Callable[[torch.Tensor], int]] = {
    "interface": lambda y: y.__cuda_array_interface__["data"][0],
    "interface by name": lambda y: getattr(y, "__cuda_array_interface__")["data"][0],  # noqa: B009
    "interface of another object": lambda y: Holder(y).__cuda_array_interface__["data"][0],
    "interface by its property": lambda y: torch.Tensor.__cuda_array_interface__.fget(y)["data"][0],  # type: ignore[attr-defined]
    "made of an interface": lambda y: torch.as_tensor(Holder(y), device="cuda").data_ptr(),
    "data_ptr": lambda y: y.data_ptr(),
    "data_ptr of the class": lambda y: torch.Tensor.data_ptr(y),
    "of the storage": lambda y: y.untyped_storage().data_ptr() + 4 * y.storage_offset(),
    "DLPack": lambda y: torch.from_dlpack(y).data_ptr(),
    "capsule": lambda y: torch.utils.dlpack.from_dlpack(y.__dlpack__()).data_ptr(),
    "old capsule": lambda y: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y)).data_ptr(),
}


@pytest.mark.parametrize("name", ADDRESSES)
@pytest.mark.parametrize("kind", ["computed", "part", "argument"])
def test_addresses(name: str, kind: str):
    """Of a second tensor the second call gets that of the second."""
    found: list[tuple[int, torch.Tensor]] = []
    address = ADDRESSES[name]

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x if kind == "argument" else x * 2 if kind == "computed" else (x * 2)[1:]
        found.append((address(y), y))
        return y + 1

    run = smelt.compile(fn, backend="aot_eager")
    for _ in range(2):
        run(torch.zeros(4, device="cuda"))
    assert len(found) == 2 and all(at == y.data_ptr() != 0 for at, y in found)


def test_functions_of_jiterator_run_between_graphs():
    twice: Any = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
    reset_stats()
    with pytest.raises(RuntimeError):  # there is no driver that could build it
        smelt.compile(lambda x: twice(x * 2) + 1, backend="aot_eager")(torch.zeros(4, device="cuda"))
    (reason,) = smelt.stats()["break_reasons"]
    assert "twice, a function of torch.cuda.jiterator" in reason
