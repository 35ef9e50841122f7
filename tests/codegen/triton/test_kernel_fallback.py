"""smelt/codegen/triton/kernel_fallback.py: what a kernel would have written, computed node by node in its memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from smelt.abi.random_source import key_step
from smelt.base.options import Options
from smelt.codegen.triton.host import _kernels
from smelt.codegen.triton.kernel import TritonKernel
from smelt.codegen.triton.kernel_fallback import KernelFallback, _Buffers, _stream, kernel_fallback
from smelt.loops.lower import lower
from smelt.prims.random_bits import uniform
from smelt.schedule.machine import GPU
from smelt.schedule.plan import Schedule, schedule
from tests.loops.graphs import GraphBuilder, softmax
from tests.loops.symbolic import SymbolicBuilder

pytest.importorskip("triton")
CPU = torch.device("cpu")


class Memory:
    """Flat storages by made-up addresses."""

    def __init__(self) -> None:
        self.at: dict[int, torch.Tensor] = {}

    def put(self, tensor: torch.Tensor) -> int:
        address = 4096 * (len(self.at) + 1)
        self.at[address] = tensor
        return address

    def __call__(
        self, address: int, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        assert self.at[address].dtype is dtype
        return self.at[address].as_strided(shape, stride)


def planned(g: GraphBuilder, *made: Any) -> tuple[Schedule, list[TritonKernel]]:
    plan = schedule(lower(g.build(*made)), Options(target="triton"), {}, GPU)
    return plan, [kernel for n in plan.steps if n in plan.groups for kernel in _kernels(plan, n, False)]


def run(
    plan: Schedule, kernels: list[TritonKernel], numbers: tuple[int, ...] = (), **given: torch.Tensor
) -> dict[str, Any]:
    """All kernels by their fallbacks, in order; the tensors by the names of their values."""
    memory = Memory()
    tensors = dict(given)
    addresses = {name: memory.put(tensor) for name, tensor in tensors.items()}
    for kernel in kernels:
        for name in kernel.buffers:
            if name not in tensors and name in plan.program.nodes:
                meta = plan.program.nodes[name].meta
                shape = [n if isinstance(n, int) else numbers[0] for n in meta.shape]
                tensors[name] = torch.full(shape, -77, dtype=meta.dtype)
                addresses[name] = memory.put(tensors[name])
        way = kernel_fallback(kernel, plan, CPU)
        assert way is not None
        streams = tuple(key_step(stream) for stream in kernel.streams)
        way(memory, [addresses.get(name, 0) for name in kernel.buffers], (*numbers[: len(kernel.symbols)], *streams))
    return tensors


def test_rows_and_columns_and_what_is_inlined() -> None:
    g = GraphBuilder()
    x = g.input(6, 10)
    plan, kernels = planned(g, softmax(g, g.mul(x, 0.5), 1), g.sum(x, (0,)))
    a = torch.randn(6, 10)
    found = run(plan, kernels, x0=a.clone())
    torch.testing.assert_close(found["div"], (a * 0.5).softmax(1))
    total = plan.program.outputs[1].name
    assert total is not None
    torch.testing.assert_close(found[total], a.sum(0))
    assert torch.equal(found["x0"], a), "what it reads stays as it was"


def test_everything_is_computed_before_anything_is_written() -> None:
    """A value that is written over an input which another one reads."""
    g = GraphBuilder()
    x = g.input(1024)
    plan, (kernel,) = planned(g, g.mul(x, 2.0), g.neg(x))
    memory, a = Memory(), torch.arange(1024.0)
    shared = memory.put(a.clone())
    other = memory.put(torch.zeros(1024))
    places = {"x0": shared, "mul": shared, "neg": other}
    kernel_fallback(kernel, plan, CPU)(memory, [places[name] for name in kernel.buffers], ())
    assert torch.equal(memory.at[shared], a * 2) and torch.equal(memory.at[other], -a)


def test_scatters_are_two_kernels_the_base_and_the_elements() -> None:
    g = GraphBuilder()
    x, place, src = g.input(5, 4), g.input(7, dtype=torch.int64), g.input(7, 4)
    plan, kernels = planned(g, g.index_put(x, (place, None), src, True))
    a, p, s = torch.randn(5, 4), torch.randint(0, 5, (7,)), torch.randn(7, 4)
    assert {"base", "elements"} <= {kernel.scatter_step for kernel in kernels}
    found = run(plan, kernels, x0=a, x1=p, x2=s)
    torch.testing.assert_close(found["index_put"], a.index_put((p,), s, accumulate=True))


def test_sizes_are_those_of_the_launch() -> None:
    g = SymbolicBuilder(6)
    (n,) = g.symbols
    x = g.input(n, 3)
    plan, kernels = planned(g, g.mul(g.exp(x), n))
    for size in (6, 1, 9):
        a = torch.randn(size, 3)
        torch.testing.assert_close(run(plan, kernels, (size,), x0=a)["mul"], a.exp() * size)


def test_streams_are_those_of_the_launch() -> None:
    assert all(_stream(key_step(stream)) == stream for stream in (0, 1, 17, 2**31, 2**40))
    g = GraphBuilder()
    seed = g.input(dtype=torch.int64)
    plan, (kernel,) = planned(g, g.random(seed, 3, (4, 5)))
    memory, seeds, out = Memory(), torch.tensor(99), torch.zeros(4, 5)
    places = {"x0": memory.put(seeds), "random": memory.put(out)}
    for stream in (3, 8):  # another layer's launch of the same kernel
        kernel_fallback(kernel, plan, CPU)(memory, [places[name] for name in kernel.buffers], (key_step(stream),))
        assert torch.equal(out, uniform(seeds, stream, (4, 5)))


def test_a_kernel_that_computes_a_product_has_none() -> None:
    g = GraphBuilder()
    plan, (kernel,) = planned(g, g.exp(g.input(4)))
    product = TritonKernel(kernel.source, kernel.buffers, (), ())
    assert kernel_fallback(product, plan, CPU) is None and kernel_fallback(kernel, plan, CPU) is not None


def test_views_at_one_address_have_one_pointer() -> None:
    """A bundle's kernel is given the memory of an input, in which the new value lies, once."""
    g = GraphBuilder()
    x = g.input(1024)
    program = lower(g.build(g.mul(g.add(x, 1.0), 2.0), g.exp(g.input(1024))))
    plan = schedule(program, Options(target="triton"), {0: "x0"}, GPU)
    assert plan.over_inputs == {"mul": "x0"} and "add" not in plan.stored
    number = next(n for n in plan.groups if "mul" in plan.made_by(n))
    (kernel,) = _kernels(plan, number, False)
    memory = Memory()
    address = memory.put(torch.arange(1024.0))
    buffers = _Buffers(KernelFallback(replace(kernel, buffers=("x0",)), plan, CPU), memory, [address], {})
    assert buffers.known("x0") and buffers.known("mul") and torch.equal(buffers["mul"], memory.at[address])
    assert not buffers.known("add") and not buffers.known("exp")
