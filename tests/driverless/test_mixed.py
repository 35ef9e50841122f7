"""Tensors of the CPU in graphs on "cuda"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from smelt.graph.ir.seeds import devices_of
from smelt.prims.decompose import decompose, fallbacks
from smelt.prims.mixed import cpu_values
from smelt.prims.table import PRIMS
from tests.autograd.joint_examples import graph_of_call

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")


def prims_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    joint = trace_joint(graph_of_call(fn, len(inputs)), inputs, Options())
    return decompose(joint.module, Options())


def on_cuda(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="cuda", requires_grad=True)


def computed_on(gm: fx.GraphModule, device: torch.device) -> list[str]:
    """Names of the nodes that are no inputs and live there."""
    return [n.name for n in gm.graph.nodes if n.op == "call_function" and device in devices_of(n)]


def test_a_constant_is_made_on_the_gpu():
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * torch.tensor(2.0) + torch.ones(()), torch.where(x > 0, x, torch.tensor(0.0)))

    gm = prims_of(fn, on_cuda(4, 8))
    assert not computed_on(gm, CPU) and not cpu_values(gm.graph)
    assert all(n.target is not PRIMS["to_device"] for n in gm.graph.nodes)


def test_an_argument_without_dimensions_is_copied_once():
    scale = torch.tensor(2.0)
    gm = prims_of(lambda x, s: (x * s, x + s), on_cuda(4, 8), scale)
    (move,) = (n for n in gm.graph.nodes if n.target is PRIMS["to_device"])
    assert move.args == (next(n for n in gm.graph.nodes if n.name == "primals_1"), CUDA)
    assert not computed_on(gm, CPU)
    assert list(cpu_values(gm.graph)) == ["primals_1"]


def test_indices_of_the_cpu():
    gm = prims_of(lambda x, i: (x[i],), on_cuda(4, 8), torch.tensor([1, 2]))
    assert any(n.target is PRIMS["to_device"] for n in gm.graph.nodes) and not fallbacks(gm)


def test_cpu_computation_stays_on_the_cpu():
    """A step counter of an optimizer: eager never waits for the GPU to count."""

    def fn(x: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, ...]:
        step.add_(1)
        return (x * (1 - 0.9**step),)

    gm = prims_of(fn, on_cuda(4, 8), torch.tensor(0.0))
    on_host = [n for n in gm.graph.nodes if n.op == "call_function" and devices_of(n) == {CPU}]
    assert on_host and all(isinstance(n.target, torch._ops.OpOverload) for n in on_host)
    moved = [n for n in gm.graph.nodes if n.target is PRIMS["to_device"]]
    assert moved and all(n.args[1] == CUDA for n in moved)  # nothing comes back
    assert not fallbacks(gm)


def test_copies_between_devices():
    gm = prims_of(lambda x, c: (x.cpu(), c.cuda()), on_cuda(4, 8), torch.ones(4, 8))
    copies = [n.args[1] for n in gm.graph.nodes if n.target is PRIMS["to_device"]]
    assert copies == [CPU, CUDA, CUDA]  # the last: a tangent
    assert not fallbacks(gm)


def test_half_precision_is_converted_on_the_gpu():
    gm = prims_of(lambda x, c: (x.to("cpu", torch.float64), c.to("cuda", torch.bfloat16)), on_cuda(4), torch.ones(4))
    assert all(CPU not in devices_of(n) for n in gm.graph.nodes if n.target is PRIMS["convert"])


NOTHING: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "mse_loss": (lambda x: F.mse_loss(x, (x * 2).detach().half()), (0, 3)),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, (x * 2).detach().half()), (3, 0)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (1, 6)), (2, 0, 3, 6)),
    "batch_norm": (lambda x: torch.ops.aten._batch_norm_with_update(x, *_statistics(x), 0.1, 1e-5)[0], (0, 3, 2)),
}


def _statistics(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.new_ones(x.shape[1]) for _ in range(4)]


@pytest.mark.parametrize("name", NOTHING)
def test_gradients_of_nothing(name: str):
    """Meta kernels divide by the number of elements, or refuse; the kernels of a GPU do not."""
    fn, shape = NOTHING[name]
    assert prims_of(lambda x: (fn(x),), on_cuda(*shape)).graph.output_node() is not None


@pytest.mark.parametrize("size", [0, 3])
def test_drawn_on_the_cpu_like_a_tensor_of_the_gpu(size: int):
    gm = prims_of(lambda x: (torch.randint_like(x, 5, device="cpu"), x * 2), on_cuda(size))
    assert all(n.target is not PRIMS["full"] for n in gm.graph.nodes if CPU in devices_of(n))
