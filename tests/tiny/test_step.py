"""Training steps: the generated C has the bits of the simulation, and the simulation the gradients of autograd."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from smelt.base.errors import OptionError, SmeltError
from smelt.tiny import quantize, render_c, simulate
from smelt.tiny.graph import Int8Graph
from smelt.tiny.host import HostModel
from smelt.tiny.infer import infer_program, inference_of
from smelt.tiny.models import load, with_head
from smelt.tiny.plan import lay_out
from smelt.tiny.program import BACKWARDS, ROUNDINGS, Program, StepOptions
from smelt.tiny.running import RULES, Run
from smelt.tiny.scheme import PRESETS, Scheme, last_layers, named
from smelt.tiny.simulate_backward import exponential, fractions, logarithm
from smelt.tiny.step import magnitude_channels, step_program
from tests.tiny import model_files as files
from tests.tiny.networks import DepthwiseKernels, Uneven

SCHEMES = {
    "classifier": Scheme("classifier"),
    "biases": Scheme("biases", 4),
    "sparse": Scheme("sparse", 3, {3: Fraction(1, 3), 4: Fraction(1, 2), 5: Fraction(1, 4)}),
    "weights without biases": Scheme("weights", 0, {2: Fraction(1)}),
    "full": Scheme("full", 7, dict.fromkeys(range(7), Fraction(1))),
    "sparse from the image on": Scheme("ratios", 7, dict.fromkeys(range(7), Fraction(1, 3))),
}


def network(folder: Path) -> Int8Graph:
    return with_head(load(files.write(folder)), 4, seed=1)


def images(graph: Int8Graph, count: int) -> np.ndarray:
    noise = np.random.default_rng(3).integers(-128, 128, (count, *graph.tensors[graph.input].shape))
    return (noise // 2).astype(np.int8)


def train_both(program: Program, steps: int, rate: float, *flags: str) -> tuple[simulate.Training, HostModel]:
    """Both after the same steps, at each of which losses and logits had the same bits."""
    graph = program.graph
    texts = render_c.render(infer_program(graph, program.trained), program)
    model, training = HostModel(texts, program, flags), simulate.Training(program)
    for number, image in enumerate(images(graph, steps)):
        label = number % graph.classes
        loss = training.step(image, label, rate)
        assert np.isfinite(loss) and loss == model.train_step(image, label, rate)
        assert training.logits is not None and np.array_equal(training.logits.numpy(), model.logits())
    return training, model


def check_same(training: simulate.Training, model: HostModel) -> None:
    held = model.trained()
    assert held.keys() == training.state.keys()
    for name, value in training.state.items():
        assert np.array_equal(value.numpy(), held[name]), name


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))
def test_c_has_the_bits_of_the_simulation(tmp_path: Path, scheme: Scheme, rounding: str) -> None:
    graph = network(tmp_path)
    program = step_program(graph, scheme, StepOptions(rounding, seed=5))
    before = simulate.Training(program).state
    training, model = train_both(program, 4, 0.05)
    check_same(training, model)
    for name in before:
        small = rounding != "stochastic" and before[name].dtype != torch.float32  # changes may be less than half a step
        assert not torch.equal(before[name], training.state[name]) or small, f"{name} did not train"
    image = images(graph, 9)[8]
    inferred = simulate.infer(infer_program(graph, program.trained), image[None], training.state)
    assert np.array_equal(inferred[0].numpy(), model.infer(image))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scaled", [True, False])
def test_momentum_has_the_bits_of_the_simulation(tmp_path: Path, rounding: str, scaled: bool) -> None:
    options = StepOptions(rounding, momentum=0.9, scaled=scaled)
    check_same(*train_both(step_program(network(tmp_path), SCHEMES["sparse"], options), 3, 0.05, "-DTINY_DUAL_MAC=1"))


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))
def test_a_backward_in_int8_has_the_bits_of_the_simulation(tmp_path: Path, scheme: Scheme) -> None:
    graph = network(tmp_path)
    for number, options in enumerate(
        (StepOptions(backward="int8"), StepOptions("latent", 0.5, False, 3, True, "int8"))
    ):
        flags = ["-DTINY_DUAL_MAC=1"] if number else []
        check_same(*train_both(step_program(graph, scheme, options), 3, 0.05, *flags))
    in_float, in_int8 = (lay_out(step_program(graph, scheme, StepOptions(backward=b))).size for b in BACKWARDS)
    assert in_int8 <= in_float


@pytest.mark.parametrize(
    ("options", "flag"), [(StepOptions("latent", 0.5), "-DTINY_DUAL_MAC=1"), (StepOptions(backward="int8"), "-O1")]
)
def test_depthwise_kernels_of_any_extent_have_the_bits_of_the_simulation(options: StepOptions, flag: str) -> None:
    graph = quantize(DepthwiseKernels(), torch.randn(8, 1, 9, 13))
    check_same(*train_both(step_program(graph, named("full", graph), options), 3, 0.05, flag))


def test_a_backward_in_int8_is_right_in_the_mean(tmp_path: Path) -> None:
    """Changes of latent weights over many draws come to those of the float32 backward."""
    graph, rate = network(tmp_path), 1e-3
    image = images(graph, 1)[0]
    found = {}
    for backward, draws in (("float32", 1), ("int8", 300)):
        program = step_program(graph, SCHEMES["full"], StepOptions("latent", backward=backward))
        total: dict[str, torch.Tensor] = {}
        for draw in range(draws):
            training = simulate.Training(program, steps=draw)
            before = dict(training.state)
            training.step(image, 2, rate)
            for name, value in training.state.items():
                if name.endswith(".latent"):
                    total[name] = total.get(name, 0) + (before[name] - value).double() / draws
        found[backward] = total
    for name, wanted in found["float32"].items():
        assert (found["int8"][name] - wanted).norm() < 0.05 * wanted.norm(), name


def test_a_gradient_of_nothing_or_of_no_numbers_is_zeros_in_int8(tmp_path: Path) -> None:
    graph = network(tmp_path)
    program = step_program(graph, SCHEMES["full"], StepOptions(backward="int8"))
    call = next(one for one in program.calls if one.kernel == "quantize_gradient")
    run = Run(program, {})
    shape = (1, *program.values[call.reads[0]].shape)
    for value in (0.0, float("nan"), 1e-35):
        run.values[call.reads[0]] = torch.full(shape, value)
        RULES["quantize_gradient"](run, call)
        assert run.values[call.writes[0]].abs().max() == (127 if value else 0) * (value != value), value


def test_the_scale_of_a_gradient_in_int8_is_rounded_once(tmp_path: Path) -> None:
    """As C divides: a product with the reciprocal differs for one in four of these."""
    program = step_program(network(tmp_path), SCHEMES["full"], StepOptions(backward="int8"))
    call = next(one for one in program.calls if one.kernel == "quantize_gradient")
    drawn = fractions(0, program.options.salt(call.label), 2)[1].item()
    for most in np.random.default_rng(0).uniform(1e-4, 1e3, 400).astype(np.float32):
        scale = np.float32(127) / most
        least = np.float32((drawn + 5) / np.float64(scale))  # at which the draw decides, or next to it
        for value in (least, np.nextafter(least, np.float32(0)), np.nextafter(least, np.float32(most))):
            run = Run(program, {call.reads[0]: torch.tensor([most, value])})
            RULES["quantize_gradient"](run, call)
            assert run.values[call.writes[0]][1] == 5 + (np.float32(drawn) < np.float32(value * scale) - np.float32(5))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_gradients_with_references_have_the_same_bits_and_take_more_memory(tmp_path: Path, rounding: str) -> None:
    graph = network(tmp_path)
    for scheme in (SCHEMES["sparse"], SCHEMES["full"]):
        reordered, held = (
            step_program(graph, scheme, StepOptions(rounding, momentum=0.5, held=held)) for held in (False, True)
        )
        training, model = train_both(held, 3, 0.05)
        check_same(training, model)
        other, _ = train_both(reordered, 3, 0.05)
        for name, value in other.state.items():
            assert torch.equal(value, training.state[name]), name
        states = (".velocity", ".latent")
        gradients = sum(4 * one.data.size for one in held.trained.values() if not one.name.endswith(states))
        assert lay_out(held).size >= gradients and lay_out(held).size > lay_out(reordered).size


def test_dead_channels_train_within_their_bounds(tmp_path: Path) -> None:
    graph = with_head(load(files.write(tmp_path, dead=True)), 4, seed=1)
    training, model = train_both(step_program(graph, SCHEMES["full"]), 3, 10.0)
    check_same(training, model)


@pytest.mark.parametrize("uneven", [False, True])
def test_gradients_are_those_of_the_real_network(uneven: bool, tmp_path: Path) -> None:
    """With a latent copy the change of weights is the rate times the gradient; autograd says what that is."""
    torch.manual_seed(0)
    graph = quantize(Uneven(), torch.randn(32, 2, 9, 8)) if uneven else network(tmp_path)
    program = step_program(graph, named("full", graph), StepOptions("latent"))
    image, rate = images(graph, 1)[0], 1e-2 if uneven else 1e-3  # large against the float32 steps of the copy
    training = simulate.Training(program)
    before = dict(training.state)
    training.step(image, 2, rate)
    real = _real_gradients(graph, image, 2)
    for layer in graph.layers:
        name = f"{layer.weight.name}.latent"
        scales = torch.from_numpy(np.array(layer.weight.scales)).double()
        scales = scales if layer.depthwise else scales.reshape(-1, 1, 1, 1)
        found = (before[name] - training.state[name]).double() * scales / rate
        inside = before[name].abs() < 126  # weights at the end of int8 stay there
        error = ((found - real[layer.weight.name]) * inside).norm() / real[layer.weight.name].norm()
        assert error < 0.01, (layer.name, error)


def _real_gradients(graph: Int8Graph, image: np.ndarray, label: int) -> dict[str, torch.Tensor]:
    """Autograd's gradients of the real weights; rounding passes gradients, clamping stops them."""
    import torch.nn.functional as F

    from smelt.tiny.graph import Add, AveragePool, Conv, Flatten, Head

    leaves: dict[str, torch.Tensor] = {}
    x = graph.tensors[graph.input]
    values = {x.name: ((torch.from_numpy(image).double() - x.zero) * x.scale).permute(2, 0, 1)[None]}

    def quantized(v: torch.Tensor, op: Conv | Add | AveragePool) -> torch.Tensor:
        y = graph.tensors[op.y]
        steps = (v / y.scale).clamp(op.low - y.zero, op.high - y.zero)
        return (steps + (steps.round() - steps).detach()) * y.scale

    for op in graph.operators:
        if isinstance(op, Conv):
            scales = torch.from_numpy(np.array(op.weight.scales)).double()
            shape = scales if op.depthwise else scales.reshape(-1, 1, 1, 1)
            leaf = leaves[op.weight.name] = (
                torch.from_numpy(np.array(op.weight.data)).double() * shape
            ).requires_grad_()
            weight = leaf.permute(2, 0, 1)[:, None] if op.depthwise else leaf.permute(0, 3, 1, 2)
            bias = torch.from_numpy(np.array(op.bias.data)).double() * scales * graph.tensors[op.x].scale
            groups = op.outputs if op.depthwise else 1
            padded = F.pad(values[op.x], op.border)
            values[op.y] = quantized(F.conv2d(padded, weight, bias, op.stride, groups=groups), op)
        elif isinstance(op, Add):
            values[op.y] = quantized(values[op.a] + values[op.b], op)
        elif isinstance(op, AveragePool):
            values[op.y] = quantized(F.avg_pool2d(values[op.x], op.kernel, op.stride), op)
        elif isinstance(op, Flatten):
            values[op.y] = values[op.x].flatten(1)
        elif isinstance(op, Head):
            weight, bias = (torch.from_numpy(np.array(one.data)).double() for one in (op.weight, op.bias))
            loss = F.cross_entropy(values[op.x] @ weight.T + bias, torch.tensor([label]))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def test_a_step_lowers_the_loss_of_its_image(tmp_path: Path) -> None:
    graph = network(tmp_path)
    image = images(graph, 1)[0]
    for rounding in ("stochastic", "latent"):
        training = simulate.Training(step_program(graph, SCHEMES["full"], StepOptions(rounding)))
        losses = [training.step(image, 1, 0.05) for _ in range(20)]
        assert losses[-1] < losses[0] / 2


def test_gradients_that_are_not_used_are_not_computed(tmp_path: Path) -> None:
    graph = network(tmp_path)
    kernels = [call.kernel for call in step_program(graph, SCHEMES["classifier"]).calls]
    assert kernels[-2:] == ["loss", "head_update"] and not any(
        "mask" in v for v in step_program(graph, SCHEMES["classifier"]).values
    )
    last = step_program(graph, Scheme("last bias", 1))
    assert [call.kernel for call in last.calls].count("conv_backward") == 0
    assert [v for v in last.values if "mask" in v] == ["blocks.1.pointwise2.mask", "blocks.1.sum.mask", "pool.mask"]


def test_channels_are_chosen_by_magnitude_or_given(tmp_path: Path) -> None:
    graph = network(tmp_path)
    layer = graph.layers[4]
    chosen = magnitude_channels(layer, 2)
    real = np.abs(layer.weight.data.astype(np.float64)) * layer.weight.scales.reshape(-1, 1, 1, 1)
    assert set(chosen) == set(np.argsort(real.sum((0, 1, 2)))[-2:])
    scheme = Scheme("one", 0, {4: Fraction(1, 3)})
    program = step_program(graph, scheme, channels={4: (1, 4)})
    assert program.trained[layer.weight.name].channels == (1, 4)
    check_same(*train_both(program, 2, 0.05))
    for wrong in ((4, 1), (1, 6), (1,), (1, 1)):
        with pytest.raises(OptionError, match="input channels, ascending"):
            step_program(graph, scheme, channels={4: wrong})


@pytest.mark.parametrize("network", files.NAMES)
@pytest.mark.parametrize("scheme", ["classifier", "bias", "last-6", "last-12", "full"])
def test_arenas_are_near_the_bound_of_their_lifetimes(network: str, scheme: str) -> None:
    graph = with_head(load(files.pretrained(network)), 10)
    layout = lay_out(step_program(graph, named(scheme, graph)))
    assert layout.size <= 1.05 * layout.least and layout.offsets[graph.input] == 0


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_inference_fits_the_arena_of_a_preset(name: str) -> None:
    graph = with_head(load(files.pretrained("mcunet-5fps")), 10)
    program = step_program(graph, PRESETS[name])
    assert lay_out(inference_of(program)).size <= lay_out(program).size <= 102_400


def test_the_smallest_preset_fits_200_kb_of_memory_and_a_megabyte_of_flash() -> None:
    graph = with_head(load(files.pretrained("mcunet-5fps")), 10)
    program = step_program(graph, PRESETS["mcunet-49kb"])
    texts = render_c.render(infer_program(graph, program.trained), program)
    figures = {name: int(number) for name, number in re.findall(r"#define (MODEL_\w+) (\d+)", texts["model.h"])}
    assert figures["MODEL_ARENA_BYTES"] + figures["MODEL_TRAINED_BYTES"] == 91_264 + 36_908
    assert figures["MODEL_FLASH_BYTES"] < 600_000


def test_a_pretrained_network_trains_with_the_bits_of_the_simulation() -> None:
    graph = with_head(load(files.pretrained("mcunet-5fps"), size=32), 10)
    check_same(*train_both(step_program(graph, PRESETS["mcunet-49kb"]), 2, 0.01))


def test_own_functions_are_near_the_real_ones() -> None:
    x = torch.linspace(-30, 0, 4001)
    assert ((exponential(x).double() / x.double().exp()) - 1).abs().max() < 3e-7
    assert exponential(torch.tensor([-1e9, float("nan")])).max() < 1e-37
    y = torch.linspace(1, 1000, 4001)
    assert (logarithm(y).double() - y.double().log()).abs().max() < 2e-6


def test_fractions_are_even_and_differ_by_step_and_update() -> None:
    drawn = fractions(7, 11, 100_000)
    assert 0 <= drawn.min() and drawn.max() < 1 and abs(drawn.mean().item() - 0.5) < 0.005
    assert not torch.equal(drawn, fractions(8, 11, 100_000)) and not torch.equal(drawn, fractions(7, 12, 100_000))


def test_invalid_training_configuration_is_refused(tmp_path: Path) -> None:
    graph = load(files.write(tmp_path))
    with pytest.raises(OptionError, match="int8 classifier"):
        step_program(graph, SCHEMES["classifier"])
    with pytest.raises(OptionError, match="unknown rounding 'nearst'"):
        StepOptions("nearst")
    with pytest.raises(OptionError, match="unknown backward 'int4'"):
        StepOptions(backward="int4")
    with pytest.raises(OptionError, match="momentum"):
        StepOptions(momentum=1.0)
    training = simulate.Training(step_program(network(tmp_path), last_layers(graph, 1)))
    with pytest.raises(SmeltError, match="label 4 is none of 4 classes"):
        training.step(images(graph, 1)[0], 4, 0.1)
    assert math.isfinite(training.step(images(graph, 1)[0], 3, 0.1))
