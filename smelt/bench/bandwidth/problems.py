"""Programs that are limited by memory bandwidth, each with the number of bytes that every implementation has to move.

The number assumes that the forward and the backward are one kernel each, which reads or writes every large tensor once.
Statistics of rows, weights and biases are small in comparison and not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from smelt.bench.verdict import Tensors


@dataclass(frozen=True)
class Sizes:
    """Sizes of the problems.

    Attributes:
        rows, columns: sizes of the matrices.
        classes: number of classes of a cross entropy over half of the rows.
        words: number of classes of another cross entropy, over a quarter of the rows; an odd number.
        width, blocks: sizes of the transformer whose parameters the optimizer updates.
    """

    rows: int
    columns: int
    classes: int
    words: int
    width: int
    blocks: int


LARGE = Sizes(rows=32768, columns=4096, classes=32000, words=50257, width=1024, blocks=24)
"""Sizes for measurements: a tensor has hundreds of MiB, several times the size of any cache."""

SMALL = Sizes(rows=64, columns=128, classes=100, words=157, width=16, blocks=2)
"""Sizes for tests."""


class Problem:
    """A function of large tensors, forward alone or with its backward.

    Args:
        function: the program that is compiled; its result is one tensor.
        inputs: its arguments. With `train`, floating-point inputs get gradients.
        moved: number of bytes that have to be moved.
        train: whether the backward follows.
    """

    def __init__(self, function: Callable[..., Tensor], inputs: Sequence[Tensor], moved: int, train: bool) -> None:
        self.function, self.moved, self.train = function, moved, train
        self.inputs = [x.requires_grad_(train and x.is_floating_point()) for x in inputs]
        with torch.no_grad():
            self.gradient = torch.randn_like(function(*self.inputs)) if train else None

    def once(self, call: Callable[..., Any]) -> Tensor:
        """Execute the compiled function once; returns its result."""
        with torch.set_grad_enabled(self.train):
            result = call(*self.inputs)
            if self.train:
                result.backward(self.gradient)
                self.forget()
        return result

    def forget(self) -> None:
        """Drop the gradients."""
        for x in self.inputs:
            x.grad = None

    def results(self, call: Callable[..., Any]) -> Tensors:
        """Returns all results of one execution by name."""
        with torch.set_grad_enabled(self.train):
            result = call(*self.inputs)
            if self.train:
                result.backward(self.gradient)
        found: Tensors = {"output": result.detach().clone()}
        for index, x in enumerate(self.inputs):
            if x.requires_grad:
                found[f"grad.{index}"] = x.grad
        self.forget()
        return found

    def widened(self) -> Problem:
        """Returns the same problem in float64."""
        wide = [x.detach().double() if x.is_floating_point() else x for x in self.inputs]
        problem = Problem(self.function, wide, self.moved, self.train)
        problem.gradient = None if self.gradient is None else self.gradient.double()
        return problem


class OptimizerProblem(Problem):
    """One step of an optimizer over many parameters."""

    def __init__(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        self.parameters = [nn.Parameter(x) for x in parameters]
        self.gradients = gradients
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3)
        self.function, self.train = self.optimizer.step, False
        # Parameters, gradients and two moments are read; all but the gradients are written.
        self.moved = 7 * sum(x.numel() * x.element_size() for x in parameters)

    def once(self, call: Callable[..., Any]) -> Any:
        return call()

    def results(self, call: Callable[..., Any]) -> Tensors:
        call()
        return {f"output.{index}": x.detach().clone() for index, x in enumerate(self.parameters)}

    def widened(self) -> Problem:
        parameters = [x.detach().double() for x in self.parameters]
        return OptimizerProblem(parameters, [x.double() for x in self.gradients])


Maker = Callable[[Sizes, torch.dtype, torch.device], Problem]


def layer_norm(train: bool) -> Maker:
    """Returns the maker of a layer norm: forward reads and writes a matrix; backward reads two and writes one."""

    def make(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Problem:
        x, weight, bias = _normal(dtype, device, (sizes.rows, sizes.columns), (sizes.columns,), (sizes.columns,))

        def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return F.layer_norm(x, (x.shape[-1],), weight, bias)

        return Problem(function, [x, weight, bias], (5 if train else 2) * _bytes(x), train)

    return make


def softmax(train: bool) -> Maker:
    """Returns the maker of a softmax: forward reads and writes a matrix; backward reads two and writes one."""

    def make(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Problem:
        (x,) = _normal(dtype, device, (sizes.rows, sizes.columns))

        def function(x: Tensor) -> Tensor:
            return torch.softmax(x, -1)

        return Problem(function, [x], (5 if train else 2) * _bytes(x), train)

    return make


def cross_entropy(train: bool, words: bool = False) -> Maker:
    """Returns the maker of a cross entropy: forward reads the scores; backward reads them a second time and writes
    their gradient.
    """

    def make(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Problem:
        rows, classes = (sizes.rows // 4, sizes.words) if words else (sizes.rows // 2, sizes.classes)
        (x,) = _normal(dtype, device, (rows, classes))
        target = torch.randint(0, classes, (rows,), device=device)

        def function(x: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(x, target)

        return Problem(function, [x, target], (3 if train else 1) * _bytes(x), train)

    return make


def gelu_chain(train: bool) -> Maker:
    """Returns the maker of a chain with GELU: forward reads two matrices and writes one; backward reads three and
    writes two.
    """

    def make(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Problem:
        shape = (sizes.rows, sizes.columns)
        x, y, bias = _normal(dtype, device, shape, shape, (sizes.columns,))

        def function(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
            return F.gelu(x + bias) * torch.sigmoid(y) + 0.5 * y

        return Problem(function, [x, y, bias], (8 if train else 3) * _bytes(x), train)

    return make


def adamw(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Problem:
    """Make a step of AdamW over the parameters of a transformer's blocks, which are in float32 as under autocast."""
    width = sizes.width
    block = [(3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width), (4 * width,)]
    block += [(width, 4 * width), *[(width,)] * 5]
    parameters, gradients = (_normal(torch.float32, device, *block * sizes.blocks) for _ in range(2))
    return OptimizerProblem(parameters, gradients)


PROBLEMS: dict[str, Maker] = {
    "layer norm": layer_norm(False),
    "layer norm, backward too": layer_norm(True),
    "softmax": softmax(False),
    "softmax, backward too": softmax(True),
    "cross entropy": cross_entropy(False),
    "cross entropy, backward too": cross_entropy(True),
    "cross entropy of 50257 classes": cross_entropy(False, words=True),
    "cross entropy of 50257 classes, backward too": cross_entropy(True, words=True),
    "GELU chain": gelu_chain(False),
    "GELU chain, backward too": gelu_chain(True),
    "AdamW": adamw,
}
"""Functions that make the problems, by name."""


def _normal(dtype: torch.dtype, device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()
