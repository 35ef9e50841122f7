"""Joint graphs of real models: they hold their stage's invariants, and run as eager does."""

from __future__ import annotations

import pytest
import torch

from smelt.autograd.eager import compile_aot_eager
from smelt.autograd.trace.joint import Joint, SameInput, View, trace_joint
from smelt.base.errors import Unsupported
from smelt.base.options import Options
from smelt.graph.trace.trace import DataDependent
from smelt.graph.verify import verify
from tests.autograd.compare import compiled
from tests.autograd.joint_examples import MODELS, example, graph_of_call

aten = torch.ops.aten


def joint_of(fn, *inputs: torch.Tensor, options: Options | None = None) -> Joint:  # noqa: ANN001
    joint = trace_joint(graph_of_call(fn, len(inputs)), inputs, options or Options())
    verify(joint.module, stage="joint")
    return joint


def targets(joint: Joint) -> list[object]:
    return [n.target for n in joint.module.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_models_match_eager(name: str, train: bool, bf16: bool) -> None:
    gm, examples, region = example(name, train=train, bf16=bf16)
    with region():
        call = compile_aot_eager(gm, examples, Options(eager_rng=True))
    seen = []
    for f in (gm, call):
        known: dict[int, torch.Tensor] = {}
        inputs = [known.setdefault(id(e), e.detach().clone().requires_grad_(e.requires_grad)) for e in examples]
        torch.manual_seed(1)
        with region():
            outputs = f(*inputs)
        sum((o.float() ** 2).sum() for o in outputs if o.requires_grad).backward()
        seen.append((outputs, [i.grad for i in inputs], inputs))
    for kind in range(3):
        for a, b in zip(seen[0][kind], seen[1][kind], strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert torch.equal(a.detach(), b.detach())
                assert a.dtype == b.dtype and (kind == 1 or a.stride() == b.stride())


@pytest.mark.parametrize("name", MODELS)
def test_models_hold_the_invariants(name: str) -> None:
    gm, examples, _ = example(name)
    joint = trace_joint(gm, examples, Options())
    verify(joint.module, stage="joint")
    assert joint.num_primals == len(examples)
    assert [k is not None for k in joint.gradients] == [
        e.requires_grad and all(e is not other for other in examples[:i]) for i, e in enumerate(examples)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_inference_has_no_tangents_and_no_recipes(name: str) -> None:
    gm, examples, _ = example(name, train=False)
    with torch.no_grad():
        joint = trace_joint(gm, examples, Options())
    verify(joint.module, stage="joint")
    assert not joint.differentiable and set(joint.gradients) == {None}
    assert sum(n.op == "placeholder" for n in joint.module.graph.nodes) == len(examples)


def test_attention_without_dropout_is_one_operator() -> None:
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    joint = joint_of(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), q)
    assert aten._scaled_dot_product_flash_attention_for_cpu.default in targets(joint)
    assert aten._scaled_dot_product_flash_attention_for_cpu_backward.default in targets(joint)
    assert not joint.seeds


def test_attention_with_dropout_is_the_math_path() -> None:
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    joint = joint_of(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5), q)
    assert aten.bernoulli.p in targets(joint)
    assert joint.seeds and "seed" in [n.name for n in joint.module.graph.nodes]


def test_eager_rng_has_no_seed() -> None:
    x = torch.randn(3)
    fn = torch.nn.functional.dropout
    assert joint_of(fn, x).seeds
    joint = joint_of(fn, x, options=Options(eager_rng=True))
    assert not joint.seeds
    assert [n.meta.get("random", False) for n in joint.module.graph.nodes].count(True) == 1


def test_casts_of_one_weight_are_merged() -> None:
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        joint = joint_of(lambda w, x: x @ w + (x * 2) @ w, w, x)
    casts = [n for n in joint.module.graph.nodes if n.target is aten._to_copy.default and n.args[0].name == "primals_0"]
    assert len(casts) == 1 and joint.autocast


def test_dead_code_and_empty_operators_are_gone() -> None:
    x = torch.randn(3, 4)

    def fn(x: torch.Tensor) -> torch.Tensor:
        x.sin()
        y = x.detach().clone().to(torch.float32).view(4, 3).view(3, 4).t().t().contiguous()
        return y * 2

    assert targets(joint_of(fn, x)) == [aten.mul.Tensor]


def test_plan_of_aliases() -> None:
    joint = joint_of(lambda x: (x, x[0], x.t()), torch.randn(3, 4))
    same, row, turned = joint.outputs
    assert same == SameInput(0)
    assert isinstance(row, View) and row.of_input and isinstance(turned, View)
    assert joint.num_outputs == 0


def test_origin_and_backward_marks() -> None:
    joint = joint_of(torch.exp, torch.randn(3, requires_grad=True))
    marks = {n.target: (n.meta.get("from"), n.meta.get("backward")) for n in joint.module.graph.nodes}
    assert marks[aten.exp.default] == ("exp", None)
    assert marks[aten.mul.Tensor] == (None, True)


def test_unused_parameters_get_none() -> None:
    w, v = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    assert joint_of(lambda w, v: w * 2, w, v).gradients == (0, None)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: torch.tensor(x.tolist()),
    ],
)
def test_values_are_refused(fn) -> None:  # noqa: ANN001
    with pytest.raises(DataDependent, match="needs the values of a tensor"):
        compiled(fn, [torch.randn(3)])


@pytest.mark.parametrize("fn", [lambda x: x.sum().item() * x, lambda x: x[x > 0] * 2, lambda x: x.nonzero()])
def test_values_that_stay_in_the_graph(fn) -> None:  # noqa: ANN001
    call = compiled(fn, [torch.randn(3)])
    for x in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-1.0, -2.0, -3.0])):
        (found,) = call(x)
        assert torch.equal(found, fn(x))


def test_writing_to_a_closure_is_refused() -> None:
    captured = torch.zeros(3)
    with pytest.raises(Unsupported, match="no argument of the graph"):
        compiled(lambda x: captured.add_(x), [torch.randn(3)])


def test_state_is_restored_after_an_error() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        return x if x.sum() > 0 else -x

    cache = torch.is_autocast_cache_enabled()
    with pytest.raises(DataDependent):
        compiled(fn, [torch.randn(3)])
    assert torch.is_grad_enabled() and torch.is_autocast_cache_enabled() == cache


def test_leaf_written_in_place_is_eagers_error() -> None:
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        compiled(lambda w: w.mul_(2), [torch.randn(3, requires_grad=True)])


def test_views_that_only_the_results_read() -> None:
    """The meta kernel that is asked about them makes no constants of the graph."""
    for size in (1, 2):
        joint = joint_of(lambda x, size=size: torch.nonzero_static(x, size=size).t().unbind(0), torch.ones(size))
        assert [n for n in joint.module.graph.nodes if n.op == "get_attr"] == []
