"""Max pooling, products, concatenation, convolutions of sequences: from PyTorch to C with the simulation's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from smelt.tiny import quantize, simulate
from smelt.tiny.captured.capture import QuantizeError
from smelt.tiny.graph import Concat, GraphError, Int8Graph, MaxPool, Multiply
from smelt.tiny.host import HostModel
from smelt.tiny.infer import inference_of
from smelt.tiny.program import StepOptions
from smelt.tiny.project.figures import Runs, measured
from smelt.tiny.render_c import render
from smelt.tiny.scheme import named
from smelt.tiny.step import step_program
from tests.tiny.emulated import board_or_skip


class Gated(nn.Module):
    """A squeeze-and-excite block on what max pooling with padding gives, a concatenation, a square."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem, self.squeeze = nn.Conv2d(2, width, 3, padding=1), nn.Conv2d(width, 8, 1)
        self.excite, self.own = nn.Conv2d(8, width, 1), nn.Conv2d(width, 3, 1)
        self.last, self.head = nn.Conv2d(width + 3 + width, 5, 1), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(x)), 3, 2, 1)
        gate = self.excite(functional.relu(self.squeeze(functional.adaptive_avg_pool2d(x, 1))))
        gated = functional.hardsigmoid(gate) * x
        x = self.last(torch.cat([functional.hardswish(self.own(gated)), gated, x], 1))
        return self.head(functional.max_pool2d(x * x, (1, 2), (2, 1)).mean((2, 3)))


class Gates(nn.Module):
    """Two features that gate each other without a view between, and the largest of all positions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(torch.cat([self.a(x)], 1) * torch.sigmoid(self.b(x)))
        return self.head(functional.adaptive_max_pool2d(y, 1).flatten(1))


class Sequences(nn.Module):
    """Convolutions of sequences (n, 3, length), with BatchNorm and both poolings."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(3, 8, 5, 2, 2, bias=False), nn.BatchNorm1d(8)
        self.own, self.thin = nn.Conv1d(8, 8, 3, groups=8), nn.Conv1d(8, 5, 1)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool1d(functional.relu(self.norm(self.first(x))), 2)
        x = functional.avg_pool1d(functional.relu(self.own(functional.pad(x, (2, 0)))), 2)
        return self.head(self.thin(x).mean(-1))


SHAPES = {"gated": (Gated, (2, 9, 11)), "gates": (Gates, (1, 5, 4)), "one position": (Gated, (2, 1, 3))}


def network(name: str) -> tuple[nn.Module, Int8Graph, torch.Tensor]:
    torch.manual_seed(1)
    kind, shape = SHAPES[name]
    model, data = kind(), torch.randn(48, *shape)
    return model, quantize(model, data), data


def as_int8(graph: Int8Graph, data: torch.Tensor) -> np.ndarray:
    image = graph.tensors["image"]
    rows = data.permute(0, 2, 3, 1) if data.ndim == 4 else data.permute(0, 2, 1)[:, None]
    return (rows / image.scale + image.zero).round().clamp(-128, 127).to(torch.int8).numpy()


def train_alike(graph: Int8Graph, given: np.ndarray, scheme: str, options: StepOptions) -> None:
    """Steps of C and simulation, with the same bits of losses and parameters."""
    program = step_program(graph, named(scheme, graph), options)
    model = HostModel(render(inference_of(program), program), program, ("-O1",))
    training = simulate.Training(program)
    for number, image in enumerate(given[:4]):
        assert training.step(image, number % 3, 0.02) == model.train_step(image, number % 3, 0.02)
    assert all(np.array_equal(training.state[name], value) for name, value in model.trained().items())
    expected = simulate.infer(inference_of(program), given[:2], training.state)
    assert np.array_equal(np.stack([model.infer(image) for image in given[:2]]), expected)


@pytest.mark.parametrize("name", SHAPES)
def test_c_has_the_bits_of_the_simulation(name: str) -> None:
    _, graph, data = network(name)
    for scheme, options in (("full", StepOptions(seed=1)), ("last-2", StepOptions("latent", backward="int8"))):
        train_alike(graph, as_int8(graph, data), scheme, options)


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_the_float_model(name: str) -> None:
    model, graph, data = network(name)
    program = step_program(graph, named("full", graph), StepOptions("latent"))
    training = simulate.Training(program)
    image, before = as_int8(graph, data[:1])[0], dict(training.state)
    training.step(image, 1, 1e-2)
    functional.cross_entropy(model(data[:1]), torch.tensor([1])).backward()  # type: ignore[no-untyped-call]
    for layer in graph.layers:
        scales = torch.from_numpy(np.array(layer.weight.scales)).reshape(-1, 1, 1, 1)
        change = before[f"{layer.weight.name}.latent"] - training.state[f"{layer.weight.name}.latent"]
        found = (change * scales).permute(0, 3, 1, 2).flatten()
        wanted = model.get_parameter(layer.weight.name).grad
        assert wanted is not None
        likeness = torch.cosine_similarity(found, wanted.flatten(), 0)
        assert wanted.abs().max() < 1e-6 or likeness > 0.9, (layer.name, likeness)


def test_what_an_int8_graph_computes_is_near_the_model() -> None:
    for name in SHAPES:
        model, graph, data = network(name)
        found, wanted = simulate.infer(graph, as_int8(graph, data)), model(data)
        assert (found - wanted).abs().max() < 0.05 * (wanted.max() - wanted.min()), name


def test_squeeze_and_excite_is_a_product_by_one_number_a_channel() -> None:
    _, graph, _ = network("gated")
    kinds = [type(op) for op in graph.operators]
    assert kinds.count(MaxPool) == 2 and kinds.count(Multiply) == 2 and kinds.count(Concat) == 1
    first = next(op for op in graph.operators if isinstance(op, Multiply))
    assert graph.tensors[first.b].shape == (1, 1, 6) and graph.tensors[first.a].shape == (5, 6, 6)


@pytest.mark.parametrize("length", [17, 40])
def test_sequences_are_images_of_one_row(length: int) -> None:
    torch.manual_seed(2)
    model, data = Sequences(), torch.randn(32, 3, length)
    for _ in range(4):
        model(torch.randn(8, 3, length))
    graph = quantize(model.eval(), data)
    assert graph.tensors["image"].shape == (1, length, 3)
    wanted = model(data)
    assert (simulate.infer(graph, as_int8(graph, data)) - wanted).abs().max() < 0.1 * (wanted.max() - wanted.min())
    train_alike(graph, as_int8(graph, data), "full", StepOptions())


@pytest.mark.parametrize("name", ["mps2-an500", "rv32-virt"])
def test_boards_have_the_bits_of_the_simulation(name: str) -> None:
    board, (_, graph, _) = board_or_skip(name), network("gated")
    measured(graph, named("full", graph), Runs(board, steps=2, check=True))  # an error where bits differ


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda x: functional.max_pool2d(x, 2, ceil_mode=True), "max pooling with dilation or ceil_mode"),
        (lambda x: functional.max_pool2d(x, 2, dilation=2), "max pooling with dilation or ceil_mode"),
        (lambda x: functional.max_pool2d(x, 2, return_indices=True)[1].float(), "more than the first result"),
        (lambda x: functional.adaptive_max_pool2d(x, 3), "which do not divide it"),
        (lambda x: torch.cat([x, x], 1), "but along channels, each tensor once"),
        (lambda x: torch.cat([x, torch.sigmoid(x)], 2), "but along channels, each tensor once"),
        (lambda x: x * torch.sigmoid(x).transpose(2, 3), "products of tensors in different orders|do not lie together"),
        (lambda x: x * functional.adaptive_avg_pool2d(x, (1, 4)), "different shapes but by one number a channel"),
        (lambda x: functional.pad(x.flatten(2), (0, 0, 1, 0)), "padding but by zeros, of rows and columns"),
    ],
)
def test_what_the_target_lacks_is_told(what, message: str) -> None:  # type: ignore[no-untyped-def]
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.LazyLinear(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(what(functional.relu(x)).flatten(1))

    model, data = Model(), torch.randn(8, 2, 4, 4)
    model(data)
    with pytest.raises(QuantizeError, match=message):
        quantize(model, data)


def test_records_that_do_not_fit_are_refused() -> None:
    _, graph, _ = network("gated")
    for kind, changes in ((MaxPool, {"padding": (2, 1)}), (Multiply, {"b": "image"}), (Concat, {"xs": ("image",)})):
        at = next(i for i, op in enumerate(graph.operators) if isinstance(op, kind))
        wrong = object.__new__(kind)
        for name, value in {**vars(graph.operators[at]), **changes}.items():
            object.__setattr__(wrong, name, value)
        operators = (*graph.operators[:at], wrong, *graph.operators[at + 1 :])
        with pytest.raises(GraphError, match=kind.__name__):
            Int8Graph("wrong", graph.tensors, operators, graph.input, graph.output).verify()
