"""Pretrained int8 networks from files: `NAME.json` with the architecture, `NAME.npz` beside it with the arrays.

A file describes a first convolution, blocks of up to three convolutions (pointwise, depthwise, pointwise) with or
without a residual connection, optionally a feature mix, and a classifier. BatchNorm is folded into the weights, and a
ReLU6 is represented by the range of its result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from smelt.base.errors import SmeltError
from smelt.tiny.graph import (
    MAX_BIAS,
    Add,
    AveragePool,
    Conv,
    Flatten,
    Head,
    Int8Graph,
    Linear,
    Operator,
    Parameter,
    Tensor,
)

CONVOLUTIONS = ("pointwise1", "depthwise", "pointwise2")


class ModelFileError(SmeltError):
    """A file that does not describe such a network."""


def load(path: str | Path, size: int | None = None) -> Int8Graph:
    """The network of a JSON file and the NPZ file beside it.

    Args:
        size: height and width of the images, in pixels; None: as in the file.

    Raises:
        ModelFileError: a file is missing, is not JSON or NPZ, or lacks an entry.
        GraphError: the entries do not fit together.
    """
    path = Path(path)
    try:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
            config = _with_arrays(json.loads(path.read_text()), dict(arrays))
        graph = _Builder(path.stem, config, size).graph()
    except FileNotFoundError as error:
        raise ModelFileError(
            f"there is no {error.filename}", hint="a model is NAME.json and NAME.npz in one folder"
        ) from error
    except (KeyError, TypeError, ValueError, EOFError, OSError, BadZipFile) as error:
        raise ModelFileError(f"{path} is not a model as expected", why=f"{type(error).__name__}: {error}") from error
    graph.verify()
    return graph


def with_head(graph: Int8Graph, classes: int, seed: int = 0) -> Int8Graph:
    """The network with a classifier in float32 for other classes; its weights are small random numbers from `seed`.

    Raises:
        ModelFileError: the network does not end in a linear layer, or there are no classes.
    """
    last = graph.operators[-1]
    if not isinstance(last, (Linear, Head)) or classes < 1:
        raise ModelFileError(f"{graph.name} needs a linear layer at its end for a classifier of {classes} classes")
    inputs = int(last.weight.data.shape[1])
    bound = inputs**-0.5
    weight = np.random.default_rng(seed).uniform(-bound, bound, (classes, inputs)).astype(np.float32)
    head = Head(
        "classifier",
        last.x,
        "logits",
        Parameter("classifier.weight", weight),
        Parameter("classifier.bias", np.zeros(classes, np.float32)),
    )
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name != last.y}
    tensors["logits"] = Tensor("logits", (classes,), "float32")
    made = Int8Graph(graph.name, tensors, (*graph.operators[:-1], head), graph.input, "logits")
    made.verify()
    return made


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The JSON value with each {"array": name} replaced by that array."""
    if isinstance(value, dict):
        if value.keys() == {"array"}:
            return arrays[value["array"]]
        return {key: _with_arrays(one, arrays) for key, one in value.items()}
    return [_with_arrays(one, arrays) for one in value] if isinstance(value, list) else value


class _Builder:
    """Builds the records of a graph from the entries of the file."""

    def __init__(self, name: str, config: Mapping[str, Any], size: int | None) -> None:
        self.name, self.config = name, config
        first = config["first_conv"]
        extent = first["in_shape"] if size is None else size
        quant = first["params"]
        shape = (extent, extent, first["in_channel"])
        self.tensors = {"image": Tensor("image", shape, "int8", float(quant["x_scale"]), int(quant["x_zero"]))}
        self.operators: list[Operator] = []

    def graph(self) -> Int8Graph:
        at = self.conv("first_conv", "image", self.config["first_conv"])
        for number, block in enumerate(self.config["blocks"]):
            at = self.block(f"blocks.{number}", at, block)
        if self.config["feature_mix"] is not None:
            at = self.conv("feature_mix", at, self.config["feature_mix"])
        x = self.tensors[at]
        self.add(
            AveragePool("pool", at, "pool.y", (x.shape[0], x.shape[1]), (1, 1)), (1, 1, x.channels), x.scale, x.zero
        )
        self.add(Flatten("flatten", "pool.y", "features"), (x.channels,), x.scale, x.zero)
        quant = self.config["classifier"]["params"]
        weight, bias = self.parameters("classifier", quant, lambda array: array.reshape(array.shape[0], -1))
        self.add(Linear("classifier", "features", "logits", weight, bias), bias.data.shape, *_result(quant))
        return Int8Graph(self.name, self.tensors, tuple(self.operators), "image", "logits")

    def block(self, name: str, x: str, block: Mapping[str, Any]) -> str:
        if block.get("se") is not None:
            raise ValueError(f"{name} has squeeze and excitation, which the target lacks")
        at = x
        for part in CONVOLUTIONS:
            if block.get(part) is not None:
                at = self.conv(f"{name}.{part}", at, block[part])
        if block["residual"] is None:
            return at
        return self.add(
            Add(f"{name}.sum", x, at, f"{name}.sum.y"), self.tensors[x].shape, *_result(block["residual"]["params"])
        )

    def conv(self, name: str, x: str, entry: Mapping[str, Any]) -> str:
        size = entry["kernel_size"]
        kernel = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        depthwise = entry["groups"] > 1

        def laid_out(array: np.ndarray) -> np.ndarray:
            return array[:, 0].transpose(1, 2, 0) if depthwise else array.transpose(0, 2, 3, 1)

        weight, bias = self.parameters(name, entry["params"], laid_out)
        padding, stride = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2), int(entry["stride"])
        shape = self.tensors[x].shape
        extents = [(n + 2 * p - k) // stride + 1 for n, k, p in zip(shape[:2], kernel, padding, strict=True)]
        made = Conv(name, x, f"{name}.y", weight, bias, kernel, stride, padding, depthwise)
        return self.add(made, (*extents, bias.data.shape[0]), *_result(entry["params"]))

    def parameters(self, name: str, quant: Mapping[str, Any], laid_out: Any) -> tuple[Parameter, Parameter]:
        weight, bias = quant["weight"], quant["bias"]
        if weight.dtype != np.int8 or bias.dtype != np.int32:
            raise ValueError(f"{name} has {weight.dtype} weights and {bias.dtype} biases")
        weight, scales, bias = _with_room(weight, np.array(quant["w_scales"], np.float32), bias)
        weight = np.ascontiguousarray(laid_out(weight))
        return Parameter(f"{name}.weight", weight, scales), Parameter(f"{name}.bias", bias)

    def add(self, op: Operator, shape: tuple[int, ...], scale: float, zero: int) -> str:
        self.tensors[op.y] = Tensor(op.y, tuple(shape), "int8", scale, zero)
        self.operators.append(op)
        return op.y


def _result(quant: Mapping[str, Any]) -> tuple[float, int]:
    return float(quant["y_scale"]), int(quant["y_zero"])


def _with_room(weight: np.ndarray, scales: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The parameters of an equivalent layer, with scales for which the biases are far from the limits of int32.

    Channels that died in training have a scale of about 1e-9: their bias uses the whole range of int32, and their
    weights are negligible beside it. Their scale is multiplied by a power of two.
    """
    over = np.abs(bias.astype(np.float64)) / (MAX_BIAS / 4)
    factor = np.exp2(np.ceil(np.log2(np.maximum(over, 1))))
    shape = (-1,) + (1,) * (weight.ndim - 1)
    smaller = np.rint(weight / factor.reshape(shape)).astype(np.int8)
    return smaller, (scales * factor).astype(np.float32), np.rint(bias / factor).astype(np.int32)
