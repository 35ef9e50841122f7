"""A program on its way to C: where its values and parameters are, and the table of the calls of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from smelt.tiny.graph import (
    Add,
    AddConstant,
    Attention,
    AveragePool,
    Clamp,
    Int8Graph,
    Layer,
    LayerNorm,
    Parameter,
)
from smelt.tiny.plan import Layout, scratch_name
from smelt.tiny.program import Call, Program, adapter_names
from smelt.tiny.rescale import accumulator_scales, bounds

C_TYPES = {"int8": "int8_t", "uint8": "uint8_t", "uint16": "uint16_t", "int32": "int32_t", "float32": "float"}

Rule = Callable[["Rendering", Call, int], str]
RULES: dict[str, Rule] = {}
"""The call of each kernel as C."""


@dataclass
class Rendering:
    """One program on its way to C.

    Attributes:
        constants: declared in flash so far, by name; programs of one model share them.
    """

    program: Program
    layout: Layout
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def graph(self) -> Int8Graph:
        """The graph of the program."""
        return self.program.graph

    def constant(self, name: str, data: np.ndarray) -> str:
        """A constant array by its name in C."""
        name = identifier(name)
        self.constants[name] = data
        return name

    def at(self, value: str) -> str:
        """A pointer to a value in the arena."""
        held = self.program.values[value]
        pointer = "uint8_t" if held.dtype == "bit" else C_TYPES[held.dtype]
        return f"({pointer} *)(arena + {self.layout.offsets[value]})"

    def scratch(self, number: int, pointer: str = "int8_t") -> str:
        """A pointer to what a call needs besides."""
        return f"({pointer} *)(arena + {self.layout.offsets[scratch_name(number)]})"

    def parameter(self, parameter: Parameter) -> str:
        """Where a parameter is: in RAM if it trains, else in flash."""
        if parameter.name in self.program.trained:
            return f"model_trained.{identifier(parameter.name)}"
        return self.constant(parameter.name, parameter.data)

    def weights(self, op: Layer, call: Call) -> list[object]:
        """fixed, kept, trained, updated: how a layer's weights are told to kernels."""
        trained = self.program.trained.get(op.weight.name)
        if trained is None:
            return [self.parameter(op.weight), 0, 0, 0]
        inputs = trained.data.shape[-1]
        if trained.channels is None:
            return [0, self.at(call.reads[0]), self.parameter(op.weight), inputs]
        return [self.fixed(op), self.at(call.reads[1]), self.parameter(op.weight), inputs]

    def fixed(self, op: Layer) -> str:
        """The weights of a sparse layer that do not train, with zeros in the place of those that do."""
        channels = self.program.trained[op.weight.name].channels
        rest = np.array(op.weight.data)
        rest[..., list(channels or ())] = 0
        return self.constant(f"{op.weight.name}.fixed", rest)

    def result(
        self, op: Layer | Add | AveragePool | Clamp | AddConstant | LayerNorm | Attention, call: Call | None
    ) -> str:
        """The form of an operator's result; `call` is the one that makes it, if its mask may be kept."""
        y = self.graph.tensors[op.y]
        scales = "0"
        if isinstance(op, Layer):
            scales = self.constant(f"{op.name}.scales", accumulator_scales(self.graph, op))
        mask = self.at(call.writes[1]) if call is not None and len(call.writes) > 1 else "0"
        least, most = bounds(y, op.low, op.high)
        fields = [scales, number(least), number(most), y.zero, mask, *self.adapter(op, call)]
        return f"(tiny_result){{{', '.join(map(str, fields))}}}"

    def adapter(self, op: object, call: Call | None) -> list[object]:
        """What a result says of its layer's adapter: of none, that its rank is 0."""
        up = self.program.trained.get(adapter_names(op)[1]) if isinstance(op, Layer) else None
        if up is None or call is None:
            return [0, 0, 0, 1, "0.0f"]
        assert isinstance(op, Layer)
        step = float(np.float32(1.0 / self.graph.tensors[op.y].scale))
        held = f"model_trained.{identifier(up.name)}"
        return [self.at(call.reads[-1]), held, up.data.shape[1], op.outputs, number(step)]


def rule(name: str) -> Callable[[Rule], Rule]:
    """Enter the call of a kernel in the table."""

    def enter(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return enter


def identifier(name: str) -> str:
    """A name as C takes it."""
    text = "".join(c if c.isalnum() else "_" for c in name)
    return text if text[:1].isalpha() else f"v_{text}"


def number(value: float) -> str:
    """A float32 in C, to the last bit."""
    if np.isfinite(value):
        return f"{float(np.float32(value)).hex()}f" if value != int(value) or abs(value) > 1e6 else f"{int(value)}.0f"
    raise ValueError(f"{value} is no constant")


def called(function: str, *arguments: object) -> str:
    """A call as text."""
    return f"{function}({', '.join(str(a) for a in arguments)});"
