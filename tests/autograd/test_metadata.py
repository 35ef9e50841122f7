"""Every node's metadata in joint graphs is what the real CPU operator makes of inputs in the promised layouts."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from smelt.autograd.trace.joint import Joint, trace_joint
from smelt.base.options import Options
from smelt.graph.ir.meta import TensorMeta
from tests.autograd.joint_examples import MODELS, example, lifted

aten = torch.ops.aten


def laid_out(value: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    out = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
    return value if value.stride() == meta.stride else (out if 0 in meta.stride else out.copy_(value))


def example_of(meta: TensorMeta) -> torch.Tensor:
    values = torch.rand(meta.shape) if meta.dtype.is_floating_point else torch.zeros(meta.shape)
    return laid_out(values.to(meta.dtype), meta)


def same(value: Any, meta: Any, node: fx.Node) -> None:
    if isinstance(value, (tuple, list)):
        for one, its in zip(value, meta, strict=True):
            same(one, its, node)
    elif isinstance(value, torch.Tensor) and node.target is not aten.view.default:
        assert (tuple(value.shape), value.dtype) == (meta.shape, meta.dtype), node.format_node()
        if value.numel() > 1:
            for size, a, b in zip(value.shape, value.stride(), meta.stride, strict=True):
                assert size == 1 or a == b, f"{node.format_node()}: {value.stride()} against {meta.stride}"


def check_metadata(joint: Joint) -> None:
    env: dict[fx.Node, Any] = {}

    def promised(node: fx.Node) -> Any:
        value = env[node]
        return laid_out(value, node.meta["val"]) if isinstance(value, torch.Tensor) else value

    for node in joint.module.graph.nodes:
        if node.op == "placeholder":
            env[node] = example_of(node.meta["val"])
        elif node.op == "get_attr":
            env[node] = getattr(joint.module, node.target)
        elif node.op == "call_function":
            target = torch.reshape if node.target is aten.view.default else node.target
            env[node] = target(*fx.node.map_arg(node.args, promised), **fx.node.map_arg(node.kwargs, promised))
            same(env[node], node.meta["val"], node)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, train: bool, bf16: bool) -> None:
    gm, examples, region = example(name, train=train, bf16=bf16)
    with region():
        joint = trace_joint(gm, examples, Options())
    check_metadata(joint)


class Images(nn.Module):
    """Layers whose layouts depend on the memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8)])
        self.up = nn.ConvTranspose2d(8, 4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.deep(F.relu(self.norms[0](self.first(x))))
        parts = [
            F.max_pool2d(y, 2),
            F.avg_pool2d(y, 3, 1),
            F.adaptive_avg_pool2d(y, 2),
            F.adaptive_max_pool2d(y, 2),
            F.interpolate(y, scale_factor=2.0, mode="bilinear"),
            F.pixel_shuffle(y, 2),
            F.pad(y, (1, 1, 1, 1), mode="reflect"),
            F.gelu(y),
            torch.cat([y, y], 1),
            self.norms[1](y),
            self.norms[2](y),
            self.up(y),
        ]
        return sum((p * p).sum() for p in parts)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_images(last: bool, bf16: bool) -> None:
    x = torch.randn(2, 3, 14, 14).to(memory_format=torch.channels_last if last else torch.contiguous_format)
    gm, examples = lifted(Images(), (x.requires_grad_(),))
    with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
        joint = trace_joint(gm, examples, Options())
    check_metadata(joint)
