"""The min-cut partition: same values as the joint graph, what it saves, what it recomputes, budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._ops import OpOverload

import smelt
from smelt.autograd.partition.partition import Saved, partition
from smelt.autograd.trace.joint import Joint, trace_joint
from smelt.base.options import Options
from smelt.prims.decompose import decompose
from smelt.prims.table import Prim
from tests.autograd.joint_examples import example, graph_of_call


class Parts:
    """A joint graph and its two halves."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[torch.Tensor], options: Options) -> None:
        self.inputs = list(inputs)
        self.joint: Joint = trace_joint(gm, inputs, options)
        self.prims = decompose(self.joint.module, options)
        self.forward, backward = partition(self.prims, self.joint, options)
        self.backward: Any = backward
        self.saved: list[Saved] = self.forward.meta.get("saved", [])

    @property
    def saved_bytes(self) -> int:
        """Bytes of saved values that are no inputs."""
        metas = {n.name: n.meta["val"] for n in self.prims.graph.nodes}
        return sum(metas[s.name].nbytes for s in self.saved if s.kind != "input")

    def arguments(self) -> list[torch.Tensor]:
        """Values for all placeholders of the joint graph."""
        values: list[torch.Tensor] = [x.detach().clone() for x in self.inputs]
        for node in [n for n in self.prims.graph.nodes if n.op == "placeholder"][len(values) :]:
            meta = node.meta["val"]
            values.append(torch.tensor(77) if node.name == "seed" else torch.randn(meta.shape, dtype=meta.dtype))
        return values

    def check(self) -> None:
        """Forward then backward give what the joint graph gives."""
        values, count = self.arguments(), self.joint.num_primals + len(self.joint.seeds)
        with torch.no_grad():
            want = self.prims(*values)
            results = self.forward(*values[:count])
            kept = results[self.joint.num_forward :]
            assert len(kept) == len(self.saved)
            got = (*results[: self.joint.num_forward], *self.backward(*kept, *values[count:]))
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, equal_nan=True)


def parts(fn: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> Parts:
    return Parts(graph_of_call(lambda *xs: (fn(*xs),), len(inputs)), inputs, Options(**options))


def targets(gm: fx.GraphModule) -> list[str]:
    called = [n.target for n in gm.graph.nodes if n.op == "call_function"]
    return [t.name if isinstance(t, Prim) else str(t) for t in called]


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


@pytest.mark.parametrize("budget", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet", "vit"])
def test_models(name: str, budget: float):
    gm, inputs, region = example(name, train=budget != 0.4, bf16=budget == 1.0)
    with region():
        Parts(gm, inputs, Options(activation_memory_budget=budget)).check()


def mlp(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.gelu(x @ a), 0.2) @ b


def mlp_inputs() -> list[torch.Tensor]:
    return [leaf(32, 16), leaf(16, 64), leaf(64, 16)]


def test_pointwise_results_are_recomputed_and_masks_never_stored():
    p = parts(mlp, *mlp_inputs())
    p.check()
    kinds = [(s.kind, s.name) for s in p.saved]
    assert [k for k, _ in kinds].count("intermediate") == 1 and ("intermediate", "mm") in kinds
    assert "random" in targets(p.backward) and targets(p.backward).count("mm") == 4


def test_saved_values_are_described():
    p = parts(lambda x: torch.exp(x), leaf(64))
    p.check()
    assert p.saved == [Saved("output", 0, "exp")]
    p = parts(lambda x: x * x, leaf(64))
    p.check()
    assert [(s.kind, s.index) for s in p.saved] == [("input", 0)]


def test_products_are_not_recomputed_by_default_but_for_a_budget():
    full = parts(mlp, *mlp_inputs())
    least = parts(mlp, *mlp_inputs(), activation_memory_budget=0.0)
    least.check()
    assert full.saved_bytes > 0 and least.saved_bytes == 0
    assert all(s.kind == "input" for s in least.saved)
    assert targets(least.backward).count("mm") == targets(full.backward).count("mm") + 1


def test_budgets_are_kept():
    gm, inputs, _ = example("bert")
    sizes = [Parts(gm, inputs, Options(activation_memory_budget=b)).saved_bytes for b in (0.0, 0.3, 0.6, 1.0)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    for size, budget in zip(sizes, (0.0, 0.3, 0.6), strict=False):
        assert size <= sizes[0] + budget * (sizes[-1] - sizes[0])


def test_eager_random_operators_run_once():
    for budget in (1.0, 0.0):
        p = parts(mlp, *mlp_inputs(), eager_rng=True, activation_memory_budget=budget)
        assert any("bernoulli" in t for t in targets(p.forward))
        assert not [n for n in p.backward.graph.nodes if isinstance(n.target, OpOverload)]


def test_views_are_not_saved():
    p = parts(
        lambda x, w: ((x @ w).reshape(4, 8, 8).permute(2, 0, 1).contiguous().sin()).sum(), leaf(32, 8), leaf(8, 8)
    )
    p.check()
    assert [s.name for s in p.saved if s.kind == "intermediate"] == ["mm"]


def test_of_logits_that_are_returned_one_value_of_the_backwards_own_is_saved():
    """The caller may write to them: eager saves the logarithms of their softmax."""

    def loss_and_logits(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = F.linear(x, w)
        return F.cross_entropy(logits.view(-1, 2000), labels), logits

    inputs = leaf(3, 4, 16), leaf(2000, 16), torch.randint(0, 2000, (12,))
    p = Parts(graph_of_call(loss_and_logits, 3), inputs, Options())
    p.check()
    assert not [s for s in p.saved if s.kind == "output"]
    assert 12 * 2000 * 4 <= p.saved_bytes < 2 * 12 * 2000 * 4


def test_a_small_slice_is_saved_instead_of_its_base():
    def first_row(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w)[:2].sin().sum()

    p = parts(first_row, leaf(64, 8), leaf(8, 8))
    p.check()
    assert p.saved_bytes == 2 * 8 * 4


def test_unused_gradients_are_not_computed():
    frozen = [leaf(32, 16), torch.randn(16, 64), leaf(64, 16)]
    p = parts(mlp, *frozen)
    p.check()
    everything = parts(mlp, *mlp_inputs())
    assert targets(p.backward).count("mm") == targets(everything.backward).count("mm") - 1
    assert p.joint.gradients == (0, None, 1)


def test_an_input_that_only_backward_reads_is_saved():
    """Results without elements need no index, the gradient's scatter takes one."""
    p = parts(lambda x, index: torch.gather(x, 0, index), leaf(5), torch.zeros(2, 0, dtype=torch.int64))
    assert [s.kind for s in p.saved] == ["input"]
    p.check()


def test_inference_has_no_backward():
    p = parts(mlp, *[x.detach() for x in mlp_inputs()])
    assert p.backward is None and p.forward is p.prims and p.saved == []


def test_output_metas_are_eagers():
    p = parts(lambda x, w: (x @ w).t(), leaf(4, 8), leaf(8, 6))
    metas = p.forward.graph.output_node().meta["val"]
    assert len(metas) == p.joint.num_forward + len(p.saved)
    assert [m.shape for m in p.backward.graph.output_node().meta["val"]] == [(4, 8), (8, 6)]


def test_residual_streams_are_not_recomputed_from_the_start():
    depth = 6
    weights = [leaf(16, 16) for _ in range(depth)]

    def net(x: torch.Tensor, *ws: torch.Tensor) -> torch.Tensor:
        for w in ws:
            x = x + F.layer_norm(x, (16,)) @ w
        return x.sum()

    p = parts(net, leaf(256, 16), *weights)
    p.check()
    stream = 256 * 16 * 4
    assert p.saved_bytes >= (depth - 1) * stream  # each block's input, or what stands for it
    assert targets(p.backward).count("add") <= targets(p.prims).count("add")


def test_bytes_that_a_transformer_saves_fall_with_the_budget():
    """What autograd keeps between forward and backward, counted as it is packed; inputs and parameters exist anyway."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True) for _ in range(2)])
    x = torch.randn(4, 8, 16)
    anyway = {p.data_ptr() for p in model.parameters()} | {x.data_ptr()}
    found, gradients = [], []
    for budget in (0.0, 0.25, 0.5, 0.75, 1.0):
        smelt.reset()
        run = smelt.compile(model, options={"activation_memory_budget": budget}, fullgraph=True)
        kept = {}

        def pack(tensor, kept=kept):
            if tensor.data_ptr() not in anyway:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        model.zero_grad()
        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = run(x)
        out.square().sum().backward()
        found.append(sum(kept.values()))
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert found == sorted(found) and len(set(found)) > 2 and 2 * found[0] < found[-1], found
    for each in gradients[1:]:  # the same random numbers, however much is computed again
        torch.testing.assert_close(each, gradients[0], rtol=1e-4, atol=1e-4)


def test_second_derivatives_are_there_under_every_budget():
    for budget in (0.0, 1.0):
        run = smelt.compile(lambda x: (x.sin() @ x.t()).tanh(), options={"activation_memory_budget": budget})
        assert torch.autograd.gradgradcheck(run, (torch.randn(2, 2, dtype=torch.float64, requires_grad=True),))
