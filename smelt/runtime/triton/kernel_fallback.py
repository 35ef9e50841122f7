"""The alternatives that replace a refused kernel: simpler configurations, then PyTorch's operators.

Triton may refuse to build a kernel, the driver to load it, the device to launch it. Then simpler configurations are
tried, and after these the fallback that codegen supplies with each kernel: it computes the same values by PyTorch's
operators, over the same memory (codegen/triton/kernel_fallback.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from smelt.abi.arena import extent
from smelt.abi.kernel_source import Config
from smelt.base.torch_c import recording
from smelt.runtime.launch import Table
from smelt.runtime.triton.plan import Argument

Memory = Callable[[int, tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
KernelFallback = Callable[[Memory, Sequence[int], Sequence[int]], None]
"""Function `second(memory, addresses of buffers, other arguments)`."""


def simpler_configs(config: Config) -> Iterator[Config]:
    """Yields configurations with lower requirements, for a kernel that is correct for any blocks that divide these.

    Blocks of whole rows are not reduced.
    """
    flat = sum(name.endswith("BLOCK") for name, _ in config.constants) < 2
    if config.num_stages > 1:
        config = replace(config, num_stages=1)
        yield config
    for _ in range(2):
        constants = tuple(
            (name, max(32 if flat else 1, value // 4) if name in ("XBLOCK", "YBLOCK") and value >= 4 else value)
            for name, value in config.constants
        )
        if constants == config.constants:
            return
        config = replace(config, constants=constants)
        yield config


def fallback_step(
    second: KernelFallback, arguments: Sequence[Argument], device: torch.device
) -> Callable[[Table], None]:
    """Returns the fallback of one launch as a step of its segment."""
    pointers = [a for a in arguments if isinstance(a, tuple)]
    numbers = [a for a in arguments if not isinstance(a, tuple)]
    memory = memory_of(device)

    def run(table: Table) -> None:
        recording(False, second, memory, [table.get(slot) + offset for slot, offset in pointers], numbers)

    return run


def memory_of(device: torch.device) -> Memory:
    """Returns a function that makes tensors at addresses on a device; they do not own the memory."""

    def tensor(address: int, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = extent(shape, stride) * dtype.itemsize
        if 0 in shape or not size:
            return torch.empty_strided(shape, stride, dtype=dtype, device=device)
        if device.type == "cpu":
            raw = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)
        else:
            raw = torch.as_tensor(_Bytes(address, size), device=device)
        return raw.view(dtype).as_strided(shape, stride)

    return tensor


class _Bytes:
    """Memory of a GPU in the CUDA array interface, which PyTorch accepts."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
