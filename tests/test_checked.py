"""smelt/checked.py and the verifier between passes: a layout that is not as recorded is an error under SMELT_STRICT."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx

import smelt
from smelt import driver, pipeline
from smelt.checked import WrongLayout, backward_boundary, boundary
from smelt.graph.ir.meta import meta_of
from smelt.graph.verify import InvalidGraph, verified

aten = torch.ops.aten


def doubled(x: torch.Tensor, recorded: torch.Tensor) -> fx.GraphModule:
    """A graph of `exp` with the metadata of these tensors."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = meta_of(x)
    made = graph.call_function(aten.exp.default, (node,))
    made.meta["val"] = meta_of(recorded)
    out = graph.output((made,))
    out.meta["val"] = (meta_of(recorded),)
    return fx.GraphModule(torch.nn.Module(), graph)


GAPS = torch.zeros(4, 8)[:, :3]


@pytest.mark.parametrize(
    "recorded", [torch.zeros(3, 4), torch.zeros(4, 3, dtype=torch.float64), GAPS, torch.zeros(4, 1).expand(4, 3)]
)
@pytest.mark.parametrize("stage", ["joint", "prims"])
def test_metadata_follows_from_operands(stage: str, recorded: torch.Tensor) -> None:
    with pytest.raises(InvalidGraph, match="its operands give"):
        verified(doubled(torch.zeros(4, 3), recorded), stage)
    verified(doubled(torch.zeros(4, 3), torch.zeros(3, 4).t()), stage)  # a dense order of one's own is a choice


@pytest.mark.parametrize(
    "given", [torch.zeros(4, 3), GAPS.double(), torch.zeros(5, 8)[:, :3], torch.zeros(4, 16)[:, :6:2]]
)
def test_another_layout_than_the_program_was_made_for(given: torch.Tensor) -> None:
    run = boundary("f", doubled(GAPS, torch.zeros(4, 3)).graph)(lambda inputs: [inputs[0].exp().contiguous()])
    run([GAPS])
    with pytest.raises(WrongLayout, match="f: x"):
        run([given])


def test_results_are_checked() -> None:
    run = boundary("f", doubled(torch.zeros(4, 3), torch.zeros(4, 3)).graph)(lambda inputs: [inputs[0].t()])
    with pytest.raises(WrongLayout, match="f: result 0"):
        run([torch.zeros(4, 3)])


def test_strides_that_no_kernel_relies_on_are_not_compared() -> None:
    graph = doubled(torch.zeros(4, 3), torch.zeros(4, 3)).graph
    for around in (lambda: backward_boundary("f", graph), lambda: boundary("f", graph, range(1))):
        around()(lambda inputs: [inputs[0].t().contiguous().t()])([torch.zeros(4, 3)])
        for wrong in (torch.zeros(3, 4), torch.zeros(4, 3).double()):
            with pytest.raises(WrongLayout, match="f: result 0"):
                around()(lambda inputs, wrong=wrong: [wrong])([torch.zeros(4, 3)])
        with pytest.raises(WrongLayout, match="f: x"):
            around()(lambda inputs: inputs)([torch.zeros(3, 4).t()])
    with pytest.raises(WrongLayout, match="f: result 0"):
        boundary("f", graph, [1])(lambda inputs: [inputs[0].t().contiguous().t()])([torch.zeros(4, 3)])


def turned(*shape: int) -> torch.Tensor:
    return torch.randn(shape[::-1]).permute(*range(len(shape))[::-1])


Tensors = tuple[torch.Tensor, ...]

PASSED_ON: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], Tensors]]] = {
    "a copy": (lambda a: a.contiguous(), lambda: (turned(4, 5),)),
    "a sum": (lambda a, b: a + b, lambda: (torch.randn(100).as_strided((16, 3), (1, 2)), turned(16, 3))),
    "a cast": (lambda a, b: a + b.half(), lambda: (torch.randn(100).as_strided((16, 3), (1, 2)), turned(16, 3))),
    "a factor": (lambda a, b: (a + b).exp(), lambda: (torch.randn(4, 5), turned(4, 5))),
    "a product": (torch.addmm, lambda: (turned(4, 5), turned(4, 6), turned(6, 5))),
    "a loss": (
        lambda a, b: F.mse_loss(a, b, reduction="none"),
        lambda: (torch.randn(2, 4, 5), torch.randn(4, 5).half()),
    ),
    "a smooth loss": (F.smooth_l1_loss, lambda: (torch.randn(4, 5).half(), turned(4, 5))),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", PASSED_ON)
def test_gradients_have_eagers_strides(name: str) -> None:
    function, make = PASSED_ON[name]
    if name == "a loss" and torch.__version__ < "2.13":
        pytest.skip("PyTorch refuses the backward of other dtypes there")

    def gradients(f: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        inputs = [x.detach().requires_grad_() for x in make()]
        out = f(*inputs)
        out.backward(torch.randn_like(out))
        return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]

    for ours, eager in zip(gradients(smelt.compile(function)), gradients(function), strict=True):
        assert (ours.dtype, ours.stride()) == (eager.dtype, eager.stride())
        assert torch.allclose(ours, eager, rtol=1e-2 if ours.dtype is torch.half else 1e-5, atol=1e-2)


DRAWS = {
    "exponential_": (1.0,), "cauchy_": (), "geometric_": (0.5,), "log_normal_": (), "normal_": (), "uniform_": (),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("key", [(slice(None), slice(1, 4)), (slice(None), slice(None, None, 2)), ...])
def test_numbers_drawn_into_a_tensor_with_gaps(name: str, key: object) -> None:
    base = torch.full((5, 6), -7.0)
    x = base[key] if key is not ... else base.t()  # type: ignore[index]
    smelt.compile(lambda x: getattr(x, name)(*DRAWS[name]))(x)
    assert (x != -7).all() and int((base == -7).sum()) == base.numel() - x.numel()


@pytest.mark.parametrize("train", [True, False])
def test_running_statistics_with_steps(train: bool) -> None:
    def run(f: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        mean, var = torch.zeros(8), torch.ones(8)
        out = f(torch.randn(5, 4, 6)[..., ::2], mean[::2], var[::2], torch.randn(8)[::2])
        return [out, mean, var]

    def norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.native_batch_norm(x, weight, weight, mean, var, train, 0.1, 1e-5)[0]

    for ours, eager in zip(run(smelt.compile(norm)), run(norm), strict=True):
        assert torch.allclose(ours, eager, atol=1e-5)


def test_a_pass_that_loses_a_layout_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(gm: fx.GraphModule) -> fx.GraphModule:
        copy = fx.GraphModule(gm, fx.Graph())
        copy.graph.output(copy.graph.graph_copy(gm.graph, {}))
        out = copy.graph.output_node()
        out.meta.update(gm.graph.output_node().meta)
        node = next(n for n in copy.graph.nodes if n.op == "call_function")
        node.meta["val"] = meta_of(torch.zeros(4, 8)[:, :3])
        return copy

    monkeypatch.setattr(pipeline, "PRIM_PASSES", (wrong,))
    with pytest.raises(InvalidGraph, match="it records strides"):
        smelt.compile(lambda x: x.exp() * 2)(torch.zeros(4, 3))


def test_nothing_is_checked_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")
    environment = driver.environment
    if hasattr(environment, "cache_clear"):
        environment.cache_clear()
    try:
        program = list[torch.Tensor].copy
        assert boundary("f", doubled(GAPS, GAPS).graph)(program) is program
    finally:
        monkeypatch.undo()
        if hasattr(environment, "cache_clear"):
            environment.cache_clear()
