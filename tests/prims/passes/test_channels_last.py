"""Images in channels-last memory: the same values, the strides of convolutions, the strides that callers expect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from smelt.autograd.call.absent_tangents import without_tangents
from smelt.autograd.partition.partition import partition
from smelt.autograd.trace.joint import Joint, trace_joint
from smelt.base.options import Options
from smelt.base.precision import convolutions_round_to_tf32
from smelt.base.report import Report
from smelt.driver import compile_program
from smelt.graph.ir.meta import TensorMeta, is_channels_last
from smelt.graph.verify import verify
from smelt.prims.decompose import decompose
from smelt.prims.passes.channels_last import pays_on_cuda, with_channels_last
from smelt.prims.table import PRIMS
from smelt.runtime.library import depthwise
from tests.autograd.joint_examples import lifted


class Block(nn.Module):
    """Branches, a sum, a join of channels, pools, an image that is also a result."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(16, 4, 2, stride=2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.max_pool2d(F.relu(self.stem(x * 2 - 1)), 2)
        y = torch.cat((F.relu(self.norm(self.one(x))) + x, self.two(x)), 1)
        return self.head(F.gelu(self.up(y)).mean((2, 3))), y


def joint_of() -> tuple[Joint, fx.GraphModule, list[torch.Tensor]]:
    torch.manual_seed(0)
    gm, inputs = lifted(Block(), (torch.randn(2, 3, 8, 8),))
    joint = trace_joint(gm, inputs, Options())
    return joint, decompose(without_tangents(joint.module, ()), Options()), inputs


def images(gm: fx.GraphModule, name: str) -> list[TensorMeta]:
    """The metas of the 4-d operands and results of a prim."""
    found: list[TensorMeta] = []
    for node in gm.graph.nodes:
        if node.target is PRIMS[name]:
            metas: Any = [n.meta["val"] for n in node.all_input_nodes]
            val = node.meta["val"]
            metas += val if isinstance(val, tuple) else [val]
            found += [m for m in metas if isinstance(m, TensorMeta) and m.ndim == 4]
    return found


def last(meta: TensorMeta) -> bool:
    return is_channels_last(meta.shape, meta.stride) or 1 in (meta.shape[1], *meta.shape[2:])


def test_images_are_in_channels_last():
    _, prims, _ = joint_of()
    made = with_channels_last(prims, lambda node: True)
    verify(made, stage="prims")
    for name in ("convolution", "convolution_backward", "max_pool2d", "cat"):
        assert images(made, name) and all(map(last, images(made, name))), name
    # of pointwise values only those of the input are left in rows
    rows = [n for n in made.graph.nodes if n.target is PRIMS["mul"] and n.meta["val"].shape[1:2] == (3,)]
    others = [n for n in made.graph.nodes if n.target is PRIMS["maximum"] and n.meta["val"].ndim == 4]
    assert rows and all(last(n.meta["val"]) for n in others)


def test_the_graph_keeps_its_promises():
    """Results have the strides that the plan says, and the values of before."""
    joint, prims, inputs = joint_of()
    made = with_channels_last(prims, lambda node: True)
    metas = [n.meta["val"] for n in prims.graph.nodes if n.op == "placeholder"]
    given = [*inputs, *(torch.randn(m.shape) for m in metas[len(inputs) :])]
    for before, after in zip(prims(*given), made(*given), strict=True):
        torch.testing.assert_close(after, before)
    assert made.graph.output_node().meta["val"] == prims.graph.output_node().meta["val"]
    forward, backward = partition(made, joint, Options())
    assert backward is not None
    with torch.no_grad():
        results = compile_program(forward, Options(), Report("", None))([*inputs])
        count = joint.num_forward
        saved = results[count:]
        gradients = compile_program(backward, Options(), Report("", None))([*saved, *given[len(inputs) :]])
    want = prims(*given)
    for got, expected, meta in zip([*results[:count], *gradients], want, joint.output_metas, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        assert got.stride() == meta.stride


def test_convolutions_are_called_with_these_strides(monkeypatch: pytest.MonkeyPatch):
    """Copies that only change strides are not looked through."""
    seen = []
    plain = torch.convolution

    def watched(x: torch.Tensor, w: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append((x.stride(), w.stride(), x.shape, w.shape))
        return plain(x, w, *rest)

    joint, prims, inputs = joint_of()
    forward, _ = partition(with_channels_last(prims, lambda node: True), joint, Options())
    program = compile_program(forward, Options(gemm="aten"), Report("", None))
    monkeypatch.setattr(torch, "convolution", watched)
    with torch.no_grad():
        program([*inputs])
    assert len(seen) == 4
    for x, w, image, weight in seen:
        assert last(TensorMeta(image, torch.float32, x, torch.device("cpu")))
        assert last(TensorMeta(weight, torch.float32, w, torch.device("cpu")))


class Depthwise(nn.Module):
    """Two layers of MobileNet's kind."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(8, 8, 5, 2, 2, groups=8, bias=False), nn.Conv2d(8, 16, 3, groups=8)
        self.between, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(F.hardswish(self.norm(self.between(F.relu(self.one(x * 2))))))


def test_weights_of_depthwise_convolutions_are_ordered_by_element(monkeypatch: pytest.MonkeyPatch):
    """They are laid out once, for both directions; smelt's kernels compute eager's values and gradients."""
    pytest.importorskip("triton")
    gm, inputs = lifted(Depthwise(), (torch.randn(2, 8, 9, 10, requires_grad=True),))
    options = Options(target="triton")
    joint = trace_joint(gm, inputs, options)
    prims = decompose(joint.module, options)
    made = with_channels_last(prims, lambda node: True)
    verify(made, stage="prims")
    weights = [n.args[1] for n in made.graph.nodes if n.target is PRIMS["convolution"] and n.args[-1] == 8]
    assert [w.meta["val"].stride for w in weights] == [(1, 8, 40, 8), (1, 16, 48, 16)]
    again = {n.args[2] for n in made.graph.nodes if n.target is PRIMS["convolution_backward"] and n.args[-2] == 8}
    assert again == set(weights)
    seen = []
    plain = depthwise.Bound.__call__
    monkeypatch.setattr(depthwise.Bound, "__call__", lambda self, given: seen.append(self.names) or plain(self, given))
    forward, backward = partition(made, joint, options)
    assert backward is not None
    metas = [n.meta["val"] for n in prims.graph.nodes if n.op == "placeholder"]
    given = [*inputs, *(torch.randn(m.shape) for m in metas[len(inputs) :])]
    with torch.no_grad():
        results = compile_program(forward, options, Report("", None))([*inputs])
        saved = results[joint.num_forward :]
        gradients = compile_program(backward, options, Report("", None))([*saved, *given[len(inputs) :]])
    assert len(seen) == 4
    want = prims(*given)
    for got, expected in zip([*results[: joint.num_forward], *gradients], want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_it_is_done_only_where_it_pays():
    _, prims, _ = joint_of()
    assert with_channels_last(prims) is prims  # on a CPU the runtime tries both
    stem = next(n for n in prims.graph.nodes if n.target is PRIMS["convolution"])
    assert with_channels_last(prims, lambda node: node.args[:2] == stem.args[:2]) is prims


@pytest.mark.parametrize(
    ("dtype", "channels", "groups", "pays"),
    [
        (torch.bfloat16, 64, 1, True),
        (torch.float16, 64, 64, True),
        (torch.float32, 64, 1, True),
        (torch.float32, 64, 64, False),
        (torch.float64, 64, 1, False),
        (torch.bfloat16, 3, 1, False),
    ],
)
def test_the_rule_for_cuda(dtype: torch.dtype, channels: int, groups: int, pays: bool):
    graph, device = fx.Graph(), torch.device("cuda:0")
    x, w = graph.placeholder("x"), graph.placeholder("w")
    x.meta["val"] = TensorMeta((2, channels, 8, 8), dtype, (channels * 64, 64, 8, 1), device)
    w.meta["val"] = TensorMeta((64, channels // groups, 3, 3), dtype, (channels // groups * 9, 9, 3, 1), device)
    options = ((1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    node = graph.call_function(PRIMS["convolution"], (x, w, None, *options))
    node.meta["val"] = PRIMS["convolution"].meta(x.meta["val"], w.meta["val"], None, *options)
    assert pays_on_cuda(node) is pays


def test_float32_without_tf32_stays_as_it_is():
    """cuDNN's plain float32 kernels read rows; of one group for each channel they are many times as fast."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert not convolutions_round_to_tf32()
        test_the_rule_for_cuda(torch.float32, 64, 1, False)
        test_the_rule_for_cuda(torch.bfloat16, 64, 1, True)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert convolutions_round_to_tf32()
