"""Linear layers inside a network train as convolutions do; keyword spotting goes from PyTorch to C."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from smelt.tiny import quantize, render_c, simulate
from smelt.tiny.graph import Int8Graph, Linear
from smelt.tiny.host import HostModel
from smelt.tiny.infer import infer_program
from smelt.tiny.plan import lay_out
from smelt.tiny.program import BACKWARDS, ROUNDINGS, StepOptions
from smelt.tiny.ram import ram_of
from smelt.tiny.scheme import Scheme, memory, named
from smelt.tiny.step import magnitude_channels, step_program
from tests.tiny.networks import DsCnn, with_statistics


class Perceptron(nn.Module):
    """Pixels, two hidden layers with and without ReLU, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(30, 9), nn.Linear(9, 7, bias=False), nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(torch.relu(self.first(x.flatten(1)))))


def as_int8(graph: Int8Graph, images: torch.Tensor) -> np.ndarray:
    x = graph.tensors[graph.input]
    return (
        ((images / x.scale).round() + x.zero).clamp(-128, 127).to(torch.int8).permute(0, 2, 3, 1).contiguous().numpy()
    )


def train_both(
    graph: Int8Graph, scheme: Scheme, options: StepOptions, images: torch.Tensor, rate: float = 0.05
) -> None:
    """After a step for each image, in which C and simulation had the same bits; so have an inference, then."""
    program = step_program(graph, scheme, options)
    inference = infer_program(graph, program.trained)
    model, training = HostModel(render_c.render(inference, program), program), simulate.Training(program)
    given = as_int8(graph, images)
    for number, image in enumerate(given):
        assert training.step(image, number % 4, rate) == model.train_step(image, number % 4, rate)
    for name, value in model.trained().items():
        assert np.array_equal(value, training.state[name].numpy()), name
        if options.rounding != "nearest":
            first = program.trained[name].data
            assert not np.array_equal(value, first), f"{name} did not train"
    assert np.array_equal(model.infer(given[0]), simulate.infer(inference, given[:1], training.state)[0].numpy())


@pytest.mark.parametrize("backward", BACKWARDS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    "scheme", [Scheme("last", 1), Scheme("ratios", 2, {0: Fraction(1, 3), 1: Fraction(1, 2)}), "full"], ids=str
)
def test_hidden_linear_layers_train(scheme: Scheme | str, rounding: str, backward: str) -> None:
    images = torch.randn(6, 1, 6, 5)
    graph = quantize(Perceptron(), images)
    assert [type(layer) for layer in graph.layers] == [Linear, Linear]
    scheme = named(scheme, graph) if isinstance(scheme, str) else scheme
    train_both(graph, scheme, StepOptions(rounding, backward=backward), images)


def test_the_memory_model_counts_linear_layers() -> None:
    graph = quantize(Perceptron(), torch.randn(6, 1, 6, 5))
    found = memory(graph, Scheme("one", 2, {0: Fraction(1, 3)}))
    assert (found.inputs, found.masks, found.weights, found.biases) == (10 + 7, 2 + 1, 10 * 9, 4 * 16)
    chosen = magnitude_channels(graph.layers[0], 10)
    real = np.abs(graph.layers[0].weight.data * graph.layers[0].weight.scales[:, None]).sum(0)
    assert set(chosen) == set(np.argsort(real)[-10:])


@pytest.mark.parametrize("scheme", ["bias-5", "full", Scheme("sparse", 4, {5: Fraction(1, 4), 8: Fraction(1, 2)})])
def test_keyword_spotting_goes_from_pytorch_to_c(scheme: Scheme | str) -> None:
    torch.manual_seed(2)
    images = torch.randn(24, 1, 49, 10)
    model = with_statistics(DsCnn(16), 1, 49, 10)
    graph = quantize(model, images)
    logits, expected = simulate.infer(graph, as_int8(graph, images)), model.eval()(images)
    assert (logits - expected).norm() / expected.norm() < 0.1
    scheme = named(scheme, graph) if isinstance(scheme, str) else scheme
    train_both(graph, scheme, StepOptions(), images[:3], rate=2.0)
    if scheme.weights and scheme.name != "full":
        train_both(graph, scheme, StepOptions(backward="int8"), images[:3], rate=2.0)


def test_keyword_spotting_in_its_full_width_trains_within_96_kb() -> None:
    images = torch.randn(8, 1, 49, 10)
    graph = quantize(DsCnn(), images)
    layout = lay_out(step_program(graph, named("bias-6", graph)))
    assert layout.size <= 1.05 * layout.least and ram_of(graph, named("bias-6", graph), 4096) < 96 << 10
