"""Own metadata rules against the real CPU operators, and the reason why they exist."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.graph.ir.schema import op_info
from smelt.graph.meta_rules.rules import rule_for
from tests.graph.real_answers import check, traced

aten = torch.ops.aten


def last(*shape: int) -> torch.Tensor:
    return torch.rand(*shape).to(memory_format=torch.channels_last)


CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "vector norm": lambda: (aten.linalg_vector_norm.default, torch.rand(4, 3, 5), 2, [-2]),
    "vector norm over one": lambda: (aten.linalg_vector_norm.default, torch.rand(7, 1, 9), 2, [-2]),
    "vector norm of a transposed one": lambda: (aten.linalg_vector_norm.default, torch.rand(4, 1, 3).mT, 3.0, [1]),
    "vector norm over all": lambda: (aten.linalg_vector_norm.default, last(2, 3, 4, 4), float("inf"), None, True),
    "encoder layer": lambda: (
        aten._transformer_encoder_layer_fwd.default, torch.rand(2, 3, 4), 4, 2, torch.rand(12, 4), torch.rand(12),
        torch.rand(4, 4), torch.rand(4), False, False, 1e-5, *[torch.rand(4)] * 4, torch.rand(8, 4), torch.rand(8),
        torch.rand(4, 8), torch.rand(4),
    ),
    "addmm": lambda: (aten.addmm.default, torch.ones(3), torch.ones(2, 4), torch.ones(3, 4).t()),
    "convolution": lambda: (
        aten.convolution.default, torch.ones(2, 4, 7, 9), torch.ones(6, 2, 3, 2), None, [2, 1], [1, 0], [1, 2], False,
        [0, 0], 2,
    ),
    "convolution of one padding": lambda: (
        aten.convolution.default, torch.ones(2, 4, 7, 9), torch.ones(6, 4, 3, 2), None, [2], [0], [1], False, [0], 1,
    ),
    "convolution last": lambda: (
        aten.convolution.default, last(2, 4, 7, 9), torch.ones(6, 4, 3, 3), torch.ones(6), [1, 1], [0, 0], [1, 1],
        False, [0, 0], 1,
    ),
    "convolution float64": lambda: (
        aten.convolution.default, last(2, 4, 7, 9).double(), torch.ones(6, 4, 3, 3).double(), None, [1, 1], [0, 0],
        [2, 2], False, [0, 0], 1,
    ),
    "convolution transposed": lambda: (
        aten.convolution.default, last(2, 4, 5, 5), torch.ones(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True,
        [1, 1], 1,
    ),
    "convolution 1d": lambda: (
        aten.convolution.default, torch.ones(2, 4, 9), torch.ones(6, 4, 3), None, [2], [1], [1], False, [0], 1
    ),
    "convolution 3d": lambda: (
        aten.convolution.default, torch.ones(2, 4, 5, 5, 5), torch.ones(6, 4, 3, 3, 3), None, [1] * 3, [1] * 3,
        [1] * 3, False, [0] * 3, 1,
    ),
    "convolution backward": lambda: (
        aten.convolution_backward.default, torch.ones(2, 6, 5, 7), last(2, 4, 7, 9), torch.ones(6, 4, 3, 3), [6],
        [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False],
    ),
    "cat": lambda: (aten.cat.default, [torch.ones(2, 3), torch.ones(4, 3)]),
    "cat last": lambda: (aten.cat.default, [last(2, 3, 4, 4), last(2, 5, 4, 4)], 1),
    "cat mixed": lambda: (aten.cat.default, [last(2, 3, 4, 4), torch.ones(2, 5, 4, 4)], -3),
    "stack": lambda: (aten.stack.default, [torch.ones(2, 3).t()] * 3, -1),
    "index_add": lambda: (
        aten.index_add.default, torch.ones(4, 3), -1, torch.tensor([0, 2, 2, 1]), torch.ones(4, 4)
    ),
    "multi margin backward": lambda: (
        aten.multi_margin_loss_backward.default, torch.ones(()), torch.rand(4, 3), torch.tensor([0, 2, 1, 0]), 1, 1.0,
    ),
    "multilabel margin backward": lambda: (
        aten.multilabel_margin_loss_backward.default, torch.ones(()), torch.rand(2, 3), torch.tensor([[0, -1, 2]] * 2),
        1, torch.ones(2, 3),
    ),
    "ctc backward": lambda: (
        aten._ctc_loss_backward.default, torch.ones(2), torch.rand(5, 2, 3), torch.tensor([[1, 2]] * 2), [5, 5],
        [2, 2], torch.ones(2), torch.ones(2, 5, 5), 0,
    ),
    "fractional pool backward": lambda: (
        aten.fractional_max_pool3d_backward.default, torch.ones(1, 2, 2, 2, 2), torch.rand(1, 2, 4, 4, 4), [2, 2, 2],
        [2, 2, 2], torch.zeros(1, 2, 2, 2, 2, dtype=torch.int64),
    ),
    "searchsorted": lambda: (aten.searchsorted.Tensor, torch.tensor([0, 2]), torch.arange(6).view(2, 3).t()),
    "embedding bag, quick": lambda: (
        aten._embedding_bag.default, torch.ones(9, 4), torch.tensor([8, 1, 2]), torch.tensor([0, 2]), False, 0
    ),
    "embedding bag, padded": lambda: (
        aten._embedding_bag.default, torch.ones(9, 4), torch.tensor([8, 1, 2]), torch.tensor([0, 2, 3]), False, 0,
        False, torch.ones(3), True, 8,
    ),
    "embedding bag, mean": lambda: (
        aten._embedding_bag.default, torch.ones(9, 4).double(), torch.tensor([8, 1, 2]), torch.tensor([0, 2]), False, 1
    ),
    "embedding bag, maximum, no gradient": lambda: (
        aten._embedding_bag_forward_only.default, torch.ones(9, 4), torch.tensor([8, 1]), torch.tensor([0, 2]), False, 2
    ),
    "mean": lambda: (aten.mean.dim, torch.ones(2, 3, 4), [1, -1], True),
    "mean dropped": lambda: (aten.mean.dim, torch.ones(2, 3, 4), [0]),
    "mean of a transposed": lambda: (aten.mean.dim, torch.ones(2, 3, 4).permute(2, 0, 1), [0], True),
    "sum": lambda: (aten.sum.dim_IntList, last(2, 3, 4, 5), [0, -1]),
    "sum of all": lambda: (aten.sum.dim_IntList, torch.ones(2, 3, dtype=torch.bool), [], True),
    "embedding": lambda: (aten.embedding.default, torch.ones(5, 3), torch.zeros(2, 4, dtype=torch.int64), 0),
    "gather": lambda: (aten.gather.default, torch.ones(3, 4).t(), 1, torch.zeros(2, 7, dtype=torch.int64)),
    "index": lambda: (
        aten.index.Tensor, torch.ones(3, 4, 5),
        [torch.zeros(2, 1, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)],
    ),
    "index inside": lambda: (aten.index.Tensor, torch.ones(3, 4, 5), [None, torch.zeros(2, dtype=torch.int64)]),
    "index all": lambda: (
        aten.index.Tensor, torch.ones(4).expand(3, 4),
        [torch.zeros(2, 1, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)],
    ),
    "select backward": lambda: (aten.select_backward.default, torch.ones(3), [2, 3], 0, 1),
    "empty like": lambda: (aten.empty_like.default, torch.ones(3, 4).t()),
    "full like": lambda: (aten.full_like.default, torch.ones(3, 4, dtype=torch.int64).t(), 2),
    "rand like": lambda: (aten.rand_like.default, last(2, 3, 4, 5)),
    "new zeros": lambda: (aten.new_zeros.default, torch.ones(3, dtype=torch.float16), [2, 4]),
    "zeros": lambda: (aten.zeros.default, [2, 4]),
    "full": lambda: (aten.full.default, [2, 4], 3),
    "full bool": lambda: (aten.full.default, [2, 4], True),
    "scalar": lambda: (aten.scalar_tensor.default, 3),
    "arange": lambda: (aten.arange.default, 5),
    "arange start": lambda: (aten.arange.start, -3, 5),
    "arange step": lambda: (aten.arange.start_step, 7, 0, -2),
    "max pool": lambda: (aten.max_pool2d_with_indices.default, last(2, 3, 9, 8), [3, 2], [2, 2], [1, 1], [1, 2], True),
    "max pool short": lambda: (aten.max_pool2d_with_indices.default, torch.ones(2, 3, 9, 8), [3, 3]),
    "max pool backward": lambda: (
        aten.max_pool2d_with_indices_backward.default, torch.ones(2, 3, 4, 4), last(2, 3, 8, 8), [2, 2], [2, 2],
        [0, 0], [1, 1], False, torch.zeros(2, 3, 4, 4, dtype=torch.int64),
    ),
    "avg pool": lambda: (aten.avg_pool2d.default, last(2, 3, 9, 8), [3, 3], [2, 2], [1, 1], True, False),
    "avg pool short": lambda: (aten.avg_pool2d.default, torch.ones(2, 3, 9, 8), [2, 2]),
    "avg pool backward": lambda: (
        aten.avg_pool2d_backward.default, torch.ones(2, 3, 4, 4), last(2, 3, 8, 8), [2, 2], [2, 2], [0, 0], False,
        True, None,
    ),
    "attention": lambda: (
        aten._scaled_dot_product_flash_attention_for_cpu.default, *(torch.ones(2, 3, n, 8) for n in (4, 5, 5))
    ),
    "attention bf16": lambda: (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        *(torch.ones(2, 3, 4, 8, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)), 0.0, True,
    ),
    "mm": lambda: (aten.mm.default, torch.ones(3, 2).t(), torch.ones(3, 4)),
    "bmm": lambda: (aten.bmm.default, torch.ones(2, 3, 4), torch.ones(2, 5, 4).mT),
    "cumsum": lambda: (aten.cumsum.default, torch.ones(2, 3, dtype=torch.bool).t(), 1),
    "softmax": lambda: (aten._softmax.default, torch.ones(2, 3).t(), -1, False),
    "log softmax": lambda: (aten._log_softmax.default, last(2, 3, 4, 4), 1, False),
    "safe softmax": lambda: (aten._safe_softmax.default, torch.ones(2, 3).bfloat16(), -1),
    "softmax backward": lambda: (
        aten._softmax_backward_data.default, torch.ones(2, 3).t(), torch.ones(3, 2), 1, torch.float32
    ),
    "nll": lambda: (aten.nll_loss_forward.default, torch.ones(4, 3), torch.zeros(4, dtype=torch.int64), None, 1, -100),
    "nll each": lambda: (
        aten.nll_loss_forward.default, torch.ones(4, 3), torch.zeros(4, dtype=torch.int64), None, 0, -100
    ),
    "nll backward": lambda: (
        aten.nll_loss_backward.default, torch.ones(()), torch.ones(4, 3), torch.zeros(4, dtype=torch.int64),
        None, 1, -100, torch.ones(()),
    ),
    "layer norm": lambda: (aten.native_layer_norm.default, last(2, 3, 4, 5), [4, 5], None, torch.ones(4, 5), 1e-5),
    "layer norm bf16": lambda: (
        aten.native_layer_norm.default, torch.ones(2, 3).bfloat16(), [3], torch.ones(3), torch.ones(3), 1e-5
    ),
    "layer norm backward": lambda: (
        aten.native_layer_norm_backward.default, torch.ones(2, 3), torch.ones(2, 3), [3], torch.ones(2, 1),
        torch.ones(2, 1), torch.ones(3), torch.ones(3), [True, True, False],
    ),
    "batch norm": lambda: (
        aten._native_batch_norm_legit_functional.default, last(2, 3, 4, 4).bfloat16(), None, None,
        torch.zeros(3), torch.ones(3), True, 0.1, 1e-5,
    ),
    "batch norm with a reserve": lambda: (
        aten._batch_norm_with_update_functional.default, last(2, 3, 4, 4).bfloat16(), None, None,
        torch.zeros(3).bfloat16(), torch.ones(3).bfloat16(), 0.1, 1e-5,
    ),
    "batch norm without statistics": lambda: (
        aten._native_batch_norm_legit.no_stats, torch.rand(2, 3, 4), torch.ones(3), None, True, 0.1, 1e-5
    ),
    "batch norm in evaluation": lambda: (
        aten._native_batch_norm_legit_no_training.default, last(2, 3, 4, 4), torch.ones(3), torch.ones(3),
        torch.zeros(3), torch.ones(3), 0.1, 1e-5,
    ),
    "batch norm backward": lambda: (
        aten.native_batch_norm_backward.default, last(2, 3, 4, 4), last(2, 3, 4, 4), torch.ones(3), None, None,
        torch.zeros(3), torch.ones(3), True, 1e-5, [True, True, True],
    ),
    "group norm": lambda: (
        aten.native_group_norm.default, last(2, 4, 3, 3), torch.ones(4), torch.ones(4), 2, 4, 9, 2, 1e-5
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    op, *args = CASES[name]()
    check(op, *args)


@pytest.mark.parametrize(
    "args",
    [
        (aten.addmm.default, torch.ones(3), torch.ones(2, 4), torch.ones(3, 3)),
        (aten.convolution.default, torch.ones(2, 4, 9), torch.ones(6, 3, 3), None, [1], [0], [1], False, [0], 1),
        (aten.add.Tensor, torch.ones(2), torch.ones(3)),
        (aten.cat.default, [torch.ones(2, 3), torch.ones(2, 4)]),
        (aten._softmax.default, torch.ones(2), 3, False),
        (aten.native_layer_norm.default, torch.ones(2, 3), [4], None, None, 1e-5),
        (aten.mean.dim, torch.ones(2, dtype=torch.int64), [0]),
    ],
)
def test_wrong_arguments_are_left_to_the_meta_kernel(args: tuple[Any, ...]) -> None:
    op, *rest = args
    assert rule_for(op, op_info(op))(op, tuple(map(traced, rest)), {}) is None


TRAINING_STEP = """
import sys, torch
from torch import nn
from smelt.autograd.eager import compile_aot_eager
from smelt.base.options import Options
from torch import fx

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.ln, self.fc = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LayerNorm(8), nn.Linear(8, 8)
    def forward(self, x, y):
        h = torch.relu(self.bn(self.conv(x))).flatten(2).transpose(1, 2)
        h = self.ln(h) + nn.functional.gelu(self.fc(h))
        h = nn.functional.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], dropout_p=0.1)
        return nn.functional.cross_entropy(nn.functional.dropout(h).mean((1, 2)), y)

net = Net()
state = list(net.parameters()) + list(net.buffers())
names = [n for n, _ in net.named_parameters()] + [n for n, _ in net.named_buffers()]
graph = fx.Graph()
inputs = [graph.placeholder(f"x{i}") for i in range(len(state) + 2)]
def call(*xs):
    return (torch.func.functional_call(net, dict(zip(names, xs)), xs[len(names):]),)
graph.output(graph.call_function(call, tuple(inputs)))
x, y = torch.randn(2, 3, 6, 6), torch.tensor([1, 2])
compiled = compile_aot_eager(fx.GraphModule(nn.Module(), graph), [*state, x, y], Options())
compiled(*state, x, y)[0].backward()
print([m for m in ("torch._dynamo", "torch._inductor", "sympy") if m in sys.modules])
"""


def test_a_training_step_loads_no_compiler_of_torch() -> None:
    done = subprocess.run([sys.executable, "-c", TRAINING_STEP], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
