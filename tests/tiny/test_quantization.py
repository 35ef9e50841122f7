"""From PyTorch models to int8 graphs: near the float model, the same bits in C, trained by steps; what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smelt.tiny import quantize, render_c, simulate
from smelt.tiny.captured.capture import QuantizeError
from smelt.tiny.graph import AddConstant, AveragePool, Clamp, Conv, Head, Int8Graph, Linear
from smelt.tiny.host import HostModel
from smelt.tiny.infer import infer_program
from smelt.tiny.program import ROUNDINGS, StepOptions
from smelt.tiny.scheme import named
from smelt.tiny.step import step_program
from tests.tiny.networks import Norms, Uneven, with_statistics


class Net(nn.Module):
    """All that the target has: three kinds of convolutions, BatchNorm, both ReLUs, sums, both ways to pool, flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6())
        self.wide = nn.Conv2d(6, 12, 1)
        self.own = nn.Conv2d(12, 12, 3, 1, 1, groups=12, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.thin = nn.Conv2d(12, 6, 1)
        self.drop = nn.Dropout(0.5)
        self.hidden = nn.Linear(24, 10)
        self.head = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = F.relu(self.norm(self.own(F.relu6(self.wide(x)))))
        x = F.relu(x + self.thin(y))
        x = F.avg_pool2d(x, 2)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1) if x.shape[-1] > 2 else torch.flatten(x, 1)
        return self.head(self.drop(torch.relu_(self.hidden(x))))


def trained_net() -> Net:
    """A net whose BatchNorms have statistics."""
    net = Net()
    for _ in range(8):
        net(torch.randn(8, 2, 8, 8))
    return net


def as_int8(graph: Int8Graph, images: torch.Tensor) -> torch.Tensor:
    x = graph.tensors[graph.input]
    return ((images / x.scale).round() + x.zero).clamp(-128, 127).to(torch.int8).permute(0, 2, 3, 1).contiguous()


def test_a_model_stays_near_its_float_results() -> None:
    net, images = trained_net(), torch.randn(50, 2, 8, 8)
    graph = quantize(net, images)
    assert net.training and net.norm.training
    logits = simulate.infer(graph, as_int8(graph, images))
    expected = net.eval()(images)
    assert (logits - expected).norm() / expected.norm() < 0.05
    assert [type(op) for op in graph.operators[-2:]] == [Linear, Head]
    assert not any(isinstance(op, Clamp) for op in graph.operators)  # every ReLU is part of what it follows
    assert [layer.name for layer in graph.layers] == ["first.0", "wide", "own", "thin", "hidden"]


@pytest.mark.parametrize(
    ("scheme", "rounding"),
    [("classifier", "latent"), ("bias-2", "stochastic"), ("last-2", "nearest"), *(("full", one) for one in ROUNDINGS)],
)
def test_a_model_trains_in_c_with_the_bits_of_the_simulation(scheme: str, rounding: str) -> None:
    images = torch.randn(20, 2, 8, 8)
    graph = quantize(trained_net(), images)
    program = step_program(graph, named(scheme, graph), StepOptions(rounding))
    model = HostModel(render_c.render(infer_program(graph, program.trained), program), program)
    training = simulate.Training(program)
    for number, image in enumerate(as_int8(graph, images[:4]).numpy()):
        assert training.step(image, number % 3, 0.05) == model.train_step(image, number % 3, 0.05)
    for name, value in model.trained().items():
        assert np.array_equal(value, training.state[name].numpy()), name


def test_an_int8_classifier_and_batches_of_a_loader() -> None:
    net, images = trained_net(), torch.randn(40, 2, 8, 8)
    loader = [(images[i : i + 12], torch.zeros(12)) for i in range(0, 40, 12)]
    graph = quantize(net, loader, float_head=False, name="net")
    assert isinstance(graph.operators[-1], Linear) and graph.name == "net"
    program = infer_program(graph)
    given = as_int8(graph, images[:3])
    model = HostModel(render_c.render(program), program)
    assert np.array_equal(np.stack([model.infer(one) for one in given.numpy()]), simulate.infer(graph, given).numpy())


@pytest.mark.parametrize(("network", "shape"), [(Uneven, (2, 9, 8)), (Norms, (2, 8, 8))])
@pytest.mark.parametrize("backward", ["float32", "int8"])
def test_padding_of_each_side_and_norms_of_each_place(
    network: type[nn.Module], shape: tuple[int, ...], backward: str
) -> None:
    net, images = with_statistics(network(), *shape), torch.randn(40, *shape)
    graph = quantize(net, images)
    with torch.no_grad():
        expected = net.eval()(images)
    assert (simulate.infer(graph, as_int8(graph, images)) - expected).norm() < 0.05 * expected.norm()
    program = step_program(graph, named("full", graph), StepOptions(backward=backward))
    model = HostModel(render_c.render(infer_program(graph, program.trained), program), program)
    training = simulate.Training(program)
    for number, image in enumerate(as_int8(graph, images[:3]).numpy()):
        assert training.step(image, number % 3, 0.05) == model.train_step(image, number % 3, 0.05)
    assert all(np.array_equal(training.state[name].numpy(), value) for name, value in model.trained().items())


def test_a_convolution_of_all_positions_is_a_classifier() -> None:
    net, images = (
        nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten()),
        torch.randn(8, 2, 3, 3),
    )
    graph = quantize(net, images)
    assert isinstance(graph.operators[-1], Head) and graph.operators[-1].name == "2"
    for one in (graph, quantize(net, images, float_head=False)):
        found = simulate.infer(one, as_int8(one, images))
        assert found.shape == (8, 3) and (found - net(images)).norm() < 0.05 * net(images).norm()


class One(nn.Module):
    """A convolution, something, and a classifier."""

    def __init__(self, middle: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.middle, self.head = nn.Conv2d(2, 4, 1), middle, nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.conv(x)).mean((2, 3)))


@pytest.mark.parametrize(
    ("middle", "told"),
    [
        (torch.erf, "lacks aten.erf"),
        (lambda x: x * 2.0, "times a number, which only attention takes"),
        (lambda x: x.softmax(1), "lacks softmax but that of attention"),
        (lambda x: torch.maximum(x, F.relu(x)), "lacks aten.maximum"),
        (lambda x: x - F.relu(x), "lacks differences of activations"),
        (lambda x: torch.add(x, F.relu(x), alpha=2), "their sums with a factor"),
        (lambda x: 1.0 - x, "the target lacks"),
        (lambda x: F.adaptive_avg_pool2d(x, 3), r"of \(4, 4\) to \(3, 3\), which do not divide it"),
        (lambda x: x + x[:, :, :1], "of a part of a tensor"),
        (lambda x: x + x.transpose(2, 3), "or in different orders"),
        (lambda x: F.conv2d(F.pad(x, (1, 0), value=1.0), torch.ones(4, 4, 1, 1)), "padding but by zeros"),
        (lambda x: F.conv2d(F.pad(x, (-1, 0)), torch.ones(4, 4, 1, 1)), "padding but by zeros"),
        (lambda x: F.conv2d(F.pad(x, (0, 0, 0, 0, 1, 0)), torch.ones(4, 5, 1, 1)), "padding but by zeros"),
        (lambda x: F.avg_pool2d(F.pad(x, (1, 1)), 2), "avg_pool2d.* of a padded tensor, which only convolutions take"),
        (lambda x: F.pad(x, (1, 1))[:, :, 1:], "lacks aten.slice.* of a padded tensor"),
        (lambda x: F.hardtanh(x), "that is no ReLU or ReLU6"),
        (nn.Conv2d(4, 4, 1, groups=2), "in 2 groups of 4 channels"),
        (lambda x: F.avg_pool2d(x, 3, 1, 1), "mean pooling with padding"),
        (lambda x: x / (1 + torch.sigmoid(x)), "by an activation instead of a parameter"),
        (lambda x: x + torch.randn(4, 4), "lacks .*rand"),
        (lambda x: F.conv2d(x, x[:4, :, :1, :1]), "by an activation instead of a parameter"),
        (lambda x: F.linear(x, x[0, 0]), "by an activation instead of a parameter"),
        (
            lambda x: F.conv3d(x[:, :, None], torch.ones(4, 4, 1, 1, 1))[:, :, 0],
            "of 5 dimensions, not images or sequences",
        ),
        (lambda x: x.reshape(-1, 8, 4, 2).transpose(1, 2), "but those over all positions"),
    ],
)
def test_unsupported_operator_is_named_with_its_line(middle: Callable[[torch.Tensor], torch.Tensor], told: str) -> None:
    with pytest.raises(QuantizeError, match=told) as caught:
        quantize(One(middle), torch.randn(4, 2, 4, 4))
    assert ".py:" in str(caught.value.at)


def test_a_clamp_that_is_not_alone_is_an_operator() -> None:
    graph = quantize(One(lambda x: x + F.relu(x)), torch.randn(4, 2, 4, 4))
    assert [type(op) for op in graph.operators[:2]] == [Conv, Clamp]
    quantize(One(lambda x: F.hardtanh(x, 0.0, 6.0)), torch.randn(4, 2, 4, 4))
    quantize(One(lambda x: x.clamp(min=0)), torch.randn(4, 2, 4, 4))


@pytest.mark.parametrize("extents", [2, (1, 4), (4, 2)])
def test_adaptive_pooling_is_that_of_its_windows(extents: int | tuple[int, int]) -> None:
    adaptive = quantize(One(lambda x: F.adaptive_avg_pool2d(F.relu(x), extents)), images := torch.randn(4, 2, 4, 8))
    high, wide = (extents, extents) if isinstance(extents, int) else extents
    pooled = quantize(One(lambda x: F.avg_pool2d(F.relu(x), (4 // high, 8 // wide))), images)
    for one, other in zip(adaptive.operators, pooled.operators, strict=True):
        if isinstance(one, AveragePool) and isinstance(other, AveragePool):
            assert (one.kernel, one.stride) == (other.kernel, other.stride)


class Normalized(nn.Module):
    """Means of channels are taken off the image, and a number is added to what a convolution makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, -0.4, 0.3]).view(3, 1, 1))
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(torch.sub(x, self.mean, alpha=2)) - 0.5
        return self.head(F.relu(torch.full((4, 1, 1), 0.25) + x).mean((2, 3)))


def test_constants_are_added_and_taken_off() -> None:
    net, images = Normalized(), torch.randn(8, 3, 6, 5)
    graph = quantize(net, images)
    assert [type(op) for op in graph.operators[:4]] == [AddConstant, Conv, AddConstant, AddConstant]
    found = simulate.infer(graph, as_int8(graph, images))
    assert (found - net(images)).norm() < 0.03 * net(images).norm()


class Prepared(nn.Module):
    """Computes values of buffers and of a weight before it uses its images."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, -0.4, 0.3]).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor([1.0, 2.0, 0.5]).view(3, 1, 1))
        self.weight, self.head = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift, weight = self.mean / self.deviation, self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self.head(F.relu(F.conv2d(x - shift, weight)).mean((2, 3)))


def test_parameters_may_be_used_before_the_images() -> None:
    net, images = Prepared(), torch.randn(20, 3, 6, 5)
    graph = quantize(net, images)
    assert [type(op) for op in graph.operators[:2]] == [AddConstant, Conv]
    assert graph.tensors[graph.input].shape == (6, 5, 3)
    found = simulate.infer(graph, as_int8(graph, images))
    assert (found - net(images)).norm() < 0.03 * net(images).norm()


class Constant(nn.Module):
    """A result that is that of a parameter alone."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Parameter(torch.randn(4)), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features.expand(x.shape[0], 4))


def test_a_model_that_does_not_use_its_images_is_an_error() -> None:
    with pytest.raises(QuantizeError, match="does not depend on its images"):
        quantize(Constant(), torch.randn(4, 2, 4, 4))


class Layers(nn.Module):
    """Takes images of two channels and of more than two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.third = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU()), nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.third(self.stem(x)).mean((2, 3)))


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((4, 3, 8, 8), r"shape \(4, 3, 8, 8\)[^$]*stem\.0 \(Conv2d\) of an input \(4, 3, 8, 8\)"),
        ((4, 2, 1, 1), r"shape \(4, 2, 1, 1\)[^$]*third \(Conv2d\) of an input \(4, 4, 1, 1\)"),
    ],
)
def test_images_that_the_model_does_not_take_are_told_with_the_layer(shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(QuantizeError, match=told) as caught:
        quantize(Layers(), torch.randn(shape))
    assert ".py:" in str(caught.value.at) and "model(images)" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "needs calibration data"),
        ([], "hold no images"),
        (torch.zeros(0, 2, 4, 4), "hold no images"),
        (torch.zeros(4, 2, 4, 4, dtype=torch.uint8), "are torch.uint8"),
        (torch.full((1, 2, 4, 4), float("nan")), "not finite"),
        (torch.full((1, 2, 4, 4), float("inf")), "not finite"),
        (torch.zeros(4, 2, 0, 4), "hold no images"),
        (torch.zeros(2, 4, 4), r"of shape \(2, 4, 4\)"),
        ([(torch.zeros(2, 4, 4), 1)], r"of shape \(2, 4, 4\)"),
        ([torch.tensor(1.0)], r"of shape \(\)"),
        (torch.zeros(4, 2, 4, 4, dtype=torch.complex64), "are torch.complex64"),
        (torch.zeros(4, 2, 4, 4, dtype=torch.bool), "are torch.bool"),
        (torch.zeros(4, 2, 4, 4, device="meta"), "are on meta"),
        ([("image",)], "is a tuple"),
    ],
)
def test_data_that_cannot_calibrate(data: object, told: str) -> None:
    with pytest.raises(QuantizeError, match=told):
        quantize(One(F.relu), data)


def test_tiny_is_found_after_import_smelt_which_does_not_import_it() -> None:
    program = (
        "import smelt, sys; smelt.compile; assert 'smelt.tiny' not in sys.modules;"
        "assert callable(smelt.tiny.quantize) and callable(smelt.tiny.search);"
        "import smelt.tiny.quantization as module; assert module.quantize is smelt.tiny.quantize"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (torch.randn(4, 2, 8, 8).double(), "are torch.float64, the model's parameters torch.float32"),
        (torch.randn(4, 2, 8, 8).half(), "are torch.float16, the model's parameters torch.float32"),
        ([torch.randn(2, 2, 8, 8), torch.randn(2, 2, 9, 8)], r"differ: .*\(n, 2, 8, 8\) and .*\(n, 2, 9, 8\)"),
        (5, "the calibration data are of type int"),
    ],
)
def test_calibration_data_of_other_types_are_an_error(data: object, told: str) -> None:
    with pytest.raises(QuantizeError, match=told):
        quantize(Net(), data)


def test_an_operator_of_a_module_of_torch_is_named_with_the_module() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 1), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(QuantizeError, match="ceil_mode") as caught:
        quantize(net, torch.randn(4, 2, 4, 4))
    assert str(caught.value.at).startswith("1 (MaxPool2d): ")
    many = nn.Sequential(*(nn.Conv2d(2, 2, 1, groups=1 + (n == 4), dilation=1 + (n == 2)) for n in range(5)))
    with pytest.raises(QuantizeError, match="dilated") as caught:
        quantize(nn.Sequential(many, nn.Flatten(), nn.Linear(32, 2)), torch.randn(4, 2, 4, 4))
    assert str(caught.value.at).startswith("0.0 (Conv2d), 0.1 (Conv2d), 0.2 (Conv2d) and 2 more: ")


def test_a_classifier_with_nan_or_infinity_is_an_error() -> None:
    net = Net()
    with torch.no_grad():
        net.head.weight[0, 0] = float("nan")
    with pytest.raises(QuantizeError, match="head has weights or biases that are not finite"):
        quantize(net, torch.randn(4, 2, 8, 8))


def test_depthwise_kernels_have_a_largest_extent() -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, (1, 12), groups=2), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(QuantizeError, match="depthwise kernels of more than 11"):
        quantize(net, torch.randn(4, 2, 2, 14))


@pytest.mark.parametrize("size", [1, 5])
def test_a_flattened_convolution_trains_with_the_bits_of_the_simulation(size: int) -> None:
    """No pooling stands before the classifier, and there is a stride larger than its kernel."""
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, 3), nn.Flatten(), nn.LazyLinear(3))
    images = torch.randn(8, 1, size, size)
    net(images)
    graph = quantize(net, images)
    program = step_program(graph, named("full", graph))
    model = HostModel(render_c.render(infer_program(graph, program.trained), program), program)
    training = simulate.Training(program)
    for image in as_int8(graph, images[:3]).numpy():
        assert training.step(image, 1, 0.05) == model.train_step(image, 1, 0.05)
    assert all(np.array_equal(training.state[name].numpy(), value) for name, value in model.trained().items())
