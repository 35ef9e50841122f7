"""The state of rendering a program as C: expressions for its values and parameters, and the table of the kernels'
renderers.
"""

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
    Concat,
    Int8Graph,
    Layer,
    LayerNorm,
    Multiply,
    Parameter,
)
from smelt.tiny.plan import Layout, scratch_name
from smelt.tiny.program import Call, Program, adapter_names
from smelt.tiny.rescale import accumulator_scales, bounds

C_TYPES = {"int8": "int8_t", "uint8": "uint8_t", "uint16": "uint16_t", "int32": "int32_t", "float32": "float"}

Rule = Callable[["Rendering", Call, int], str]
RULES: dict[str, Rule] = {}
"""Name of a kernel -> the function that renders a call of it as C."""


@dataclass
class Rendering:
    """Renders one program as C.

    Attributes:
        constants: name -> declaration of a constant in flash, so far; the programs of one model share them.
        functions: body of a function in C -> its name; shared, too.
    """

    program: Program
    layout: Layout
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)

    @property
    def graph(self) -> Int8Graph:
        """The graph of the program."""
        return self.program.graph

    def constant(self, name: str, data: np.ndarray) -> str:
        """Declare a constant array; returns its name in C."""
        name = identifier(name)
        self.constants[name] = data
        return name

    def function(self, body: str) -> str:
        """Declare a function without arguments and result; returns its call in C. Nests of loops are functions of their
        own because compilers optimize the rest of a long function less if they are part of it.
        """
        return f"{self.functions.setdefault(body, f'rows_{len(self.functions)}')}();"

    def at(self, value: str) -> str:
        """The C expression of a pointer to a value in the arena."""
        held = self.program.values[value]
        pointer = "uint8_t" if held.dtype == "bit" else C_TYPES[held.dtype]
        return f"({pointer} *)(arena + {self.layout.offsets[value]})"

    def scratch(self, number: int, pointer: str = "int8_t") -> str:
        """The C expression of a pointer to the scratch memory of call `number`."""
        return f"({pointer} *)(arena + {self.layout.offsets[scratch_name(number)]})"

    def parameter(self, parameter: Parameter) -> str:
        """The C expression of a parameter: in RAM if it is trained, else in flash."""
        if parameter.name in self.program.trained:
            return f"model_trained.{identifier(parameter.name)}"
        return self.constant(parameter.name, parameter.data)

    def weights(self, op: Layer, call: Call) -> list[object]:
        """The C arguments `fixed`, `kept`, `trained` and `updated`, which describe a layer's weights to kernels."""
        trained = self.program.trained.get(op.weight.name)
        if trained is None:
            return [self.parameter(op.weight), 0, 0, 0]
        inputs = trained.data.shape[-1]
        if trained.channels is None:
            return [0, self.at(call.reads[0]), self.parameter(op.weight), inputs]
        return [self.fixed(op), self.at(call.reads[1]), self.parameter(op.weight), inputs]

    def fixed(self, op: Layer) -> str:
        """The weights of a sparse layer that are not trained, with zeros in place of those that are."""
        channels = self.program.trained[op.weight.name].channels
        rest = np.array(op.weight.data)
        rest[..., list(channels or ())] = 0
        return self.constant(f"{op.weight.name}.fixed", rest)

    def result(
        self,
        op: Layer | Add | AveragePool | Clamp | AddConstant | LayerNorm | Attention | Multiply | Concat,
        call: Call | None,
        first: str = "0",
    ) -> str:
        """The C argument of type `tiny_result`, which describes an operator's result.

        Args:
            call: the call that computes it, if that may keep a clamp mask.
            first: C expression of the index of the first element that the kernel computes.
        """
        y = self.graph.tensors[op.y]
        scales = "0"
        if isinstance(op, Layer):
            scales = self.constant(f"{op.name}.scales", accumulator_scales(self.graph, op))
        mask = self.at(call.writes[1]) if call is not None and len(call.writes) > 1 else "0"
        least, most = bounds(y, op.low, op.high)
        fields = [scales, number(least), number(most), y.zero, mask, *self.adapter(op, call), first]
        return f"(tiny_result){{{', '.join(map(str, fields))}}}"

    def adapter(self, op: object, call: Call | None) -> list[object]:
        """The fields of `tiny_result` that describe the adapter of the layer; without an adapter the rank is 0."""
        up = self.program.trained.get(adapter_names(op)[1]) if isinstance(op, Layer) else None
        if up is None or call is None:
            return [0, 0, 0, 1, "0.0f"]
        assert isinstance(op, Layer)
        step = float(np.float32(1.0 / self.graph.tensors[op.y].scale))
        held = f"model_trained.{identifier(up.name)}"
        return [self.at(call.reads[-1]), held, up.data.shape[1], op.outputs, number(step)]


def rule(name: str) -> Callable[[Rule], Rule]:
    """Decorator: register the function that renders calls of a kernel."""

    def enter(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return enter


def identifier(name: str) -> str:
    """A name turned into a C identifier."""
    text = "".join(c if c.isalnum() else "_" for c in name)
    return text if text[:1].isalpha() else f"v_{text}"


def number(value: float) -> str:
    """An exact C literal of a float32."""
    if np.isfinite(value):
        return f"{float(np.float32(value)).hex()}f" if value != int(value) or abs(value) > 1e6 else f"{int(value)}.0f"
    raise ValueError(f"{value} is no constant")


def called(function: str, *arguments: object) -> str:
    """The text of a C call."""
    return f"{function}({', '.join(str(a) for a in arguments)});"
