"""Attention from PyTorch to C: near the float model, gradients of the real network, the same bits in C."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from smelt.tiny import quantize, simulate
from smelt.tiny.attention.simulate import reciprocal_root
from smelt.tiny.graph import (
    HIGH,
    LOW,
    Add,
    AddConstant,
    Attention,
    AveragePool,
    Conv,
    Flatten,
    Head,
    Int8Graph,
    LayerNorm,
    Lookup,
)
from smelt.tiny.plan import lay_out
from smelt.tiny.program import ROUNDINGS, StepOptions
from smelt.tiny.scheme import Scheme, named
from smelt.tiny.step import step_program
from tests.tiny.networks import FORMS, VisionTransformer
from tests.tiny.test_linear import as_int8, train_both

ADAPTERS = Scheme("some", 2, {4: Fraction(1, 2)}, {1: 2, 3: 4, 4: 1})


def transformer(form: str = "fused", **more: int) -> tuple[nn.Module, torch.Tensor, Int8Graph]:
    torch.manual_seed(1)
    model, images = VisionTransformer(form=form, **more), torch.randn(24, 1, 28, 28)
    return model.eval(), images, quantize(model, images)


@pytest.mark.parametrize("form", FORMS)
def test_a_transformer_stays_near_its_float_results(form: str) -> None:
    model, images, graph = transformer(form)
    logits, expected = simulate.infer(graph, as_int8(graph, images)), model(images)
    assert (logits - expected).norm() / expected.norm() < 0.1
    kinds = [type(op) for op in graph.operators]
    assert kinds.count(Attention) == 1 and kinds.count(LayerNorm) == 3 and kinds.count(Lookup) == 1
    assert len(graph.layers) == 5


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scheme", ["classifier", "bias", "full", "lora-2", ADAPTERS], ids=str)
def test_a_transformer_trains_in_c_with_the_bits_of_the_simulation(scheme: str | Scheme, rounding: str) -> None:
    _, images, graph = transformer()
    scheme = named(scheme, graph) if isinstance(scheme, str) else scheme
    train_both(graph, scheme, StepOptions(rounding), images[:3])


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("options", [StepOptions(backward="int8"), StepOptions(momentum=0.5, held=True)], ids=str)
def test_so_do_other_forms_and_options(form: str, options: StepOptions) -> None:
    _, images, graph = transformer(form, width=18, heads=3)
    train_both(
        graph,
        Scheme("all", 5, dict.fromkeys(range(5), Fraction(1)), dict.fromkeys(range(1, 5), 2)),
        options,
        images[:2],
    )


def real_gradients(
    graph: Int8Graph, state: dict[str, torch.Tensor], image: np.ndarray, label: int
) -> dict[str, torch.Tensor]:
    """Autograd's gradients of the real parameters, float64; rounding passes gradients, clamping stops them."""
    tensors, leaves = graph.tensors, {}
    x = tensors[graph.input]
    values = {x.name: (torch.from_numpy(image).double() - x.zero) * x.scale}

    def leaf(name: str, data: torch.Tensor) -> torch.Tensor:
        leaves[name] = data.double().requires_grad_()
        return leaves[name]

    def quantised(v: torch.Tensor, op: Any) -> torch.Tensor:
        y = tensors[op.y]
        steps = (v / y.scale).clamp(op.low - y.zero, op.high - y.zero)
        return ((steps + (steps.round() - steps).detach()) * y.scale).reshape(y.shape)

    for op in graph.operators:
        match op:
            case Conv():
                scales = torch.from_numpy(np.array(op.weight.scales)).double()
                weight = leaf(op.weight.name, torch.from_numpy(np.array(op.weight.data)) * scales.reshape(-1, 1, 1, 1))
                bias = torch.from_numpy(np.array(op.bias.data)) * scales * tensors[op.x].scale
                given = values[op.x].permute(2, 0, 1)[None]
                made = functional.conv2d(given, weight.permute(0, 3, 1, 2), bias, op.stride)[0].permute(1, 2, 0)
                if f"{op.name}.up" in state:
                    down, up = (leaf(f"{op.name}.{kind}", state[f"{op.name}.{kind}"]) for kind in ("down", "up"))
                    made = made + values[op.x] @ down.T @ up.T
                values[op.y] = quantised(made, op)
            case Add():
                values[op.y] = quantised(values[op.a] + values[op.b], op)
            case AddConstant():
                table = torch.from_numpy(np.array(op.table.data)).reshape(tensors[op.x].shape) * op.scale
                values[op.y] = quantised(values[op.x] + table, op)
            case Lookup():
                given, y = values[op.x], tensors[op.y]
                smooth = functional.gelu(given).clamp((LOW - y.zero) * y.scale, (HIGH - y.zero) * y.scale)
                values[op.y] = quantised(smooth, op)
            case LayerNorm():
                gain, shift = (torch.from_numpy(one.data.copy()).double() for one in (op.gain, op.shift))
                values[op.y] = quantised(functional.layer_norm(values[op.x], gain.shape, gain, shift, op.epsilon), op)
            case Attention():
                q, k, v = (
                    values[name].flatten(0, 1)[:, start : start + op.heads * op.width].unflatten(1, (op.heads, -1))
                    for name, start in zip((op.q, op.k, op.v), op.starts, strict=True)
                )
                weights = (torch.einsum("ihc,jhc->hij", q, k) * op.scale).softmax(-1)
                values[op.y] = quantised(torch.einsum("hij,jhd->ihd", weights, v), op)
            case AveragePool():
                values[op.y] = quantised(values[op.x].mean((0, 1)), op)
            case Flatten():
                values[op.y] = values[op.x].reshape(tensors[op.y].shape)
            case Head():
                weight, bias = (torch.from_numpy(np.array(one.data)).double() for one in (op.weight, op.bias))
                loss = functional.cross_entropy((weight @ values[op.x] + bias)[None], torch.tensor([label]))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def test_gradients_are_those_of_the_real_network() -> None:
    """With latent copies a change is the rate times the gradient."""
    _, images, graph = transformer()
    scheme = Scheme("all", 5, dict.fromkeys(range(5), Fraction(1)), dict.fromkeys(range(1, 5), 3))
    program, given, rate = step_program(graph, scheme, StepOptions("latent")), as_int8(graph, images[:1])[0], 1e-4
    state = simulate.first_state(program)
    for name in [name for name in state if name.endswith(".up")]:  # zeros would hide the gradients of the others
        state[name] = torch.randn(state[name].shape, generator=torch.Generator().manual_seed(3)) * 0.05
    training, before = simulate.Training(program, state), dict(state)
    training.step(given, 2, rate)
    real = real_gradients(graph, before, given, 2)
    for layer in graph.layers:
        for name in (layer.weight.name, f"{layer.name}.down", f"{layer.name}.up"):
            if name not in state:
                continue
            held = f"{name}.latent" if f"{name}.latent" in state else name
            change = (before[held] - training.state[held]).double() / rate
            inside = torch.ones_like(change)
            if held != name:
                change = change * torch.from_numpy(np.array(layer.weight.scales)).reshape(-1, 1, 1, 1)
                inside = (before[held].abs() < 126).double()  # weights at the end of int8 stay there
            error = ((change - real[name]) * inside).norm() / real[name].norm()
            assert error < 0.02, (name, error)


def test_adapters_add_nothing_before_they_train() -> None:
    _, images, graph = transformer()
    given = as_int8(graph, images[:1])
    training = simulate.Training(step_program(graph, named("lora-3", graph)))
    training.step(given[0], 1, 1e-3)
    assert training.logits is not None and torch.equal(training.logits[None], simulate.infer(graph, given))


def test_steps_lower_the_loss_of_their_image() -> None:
    _, images, graph = transformer()
    given = as_int8(graph, images[:1])[0]
    for name in ("lora-4", "full"):
        training = simulate.Training(step_program(graph, named(name, graph)))
        losses = [training.step(given, 1, 0.05) for _ in range(20)]
        assert losses[-1] < losses[0] / 2, (name, losses)


@pytest.mark.parametrize("name", ["classifier", "bias", "lora-4", "full"])
def test_arenas_are_near_the_bound_of_their_lifetimes(name: str) -> None:
    _, _, graph = transformer(width=32, heads=4)
    layout = lay_out(step_program(graph, named(name, graph)))
    assert layout.size <= 1.05 * layout.least


def test_the_own_root_is_near_the_real_one() -> None:
    v = torch.logspace(-12, 12, 4001)
    assert ((reciprocal_root(v).double() * v.double().sqrt()) - 1).abs().max() < 5e-7
