"""Builds the records of an int8 graph node by node of a captured graph, by rules that modules enter in one table.

A rule converts an operator of the captured graph: it asks the builder which tensors its operands are, and adds records.
Rules of layers are in `quantization`, those of transformers in `attention.quantize`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import fx, nn

from smelt.tiny.captured.capture import Captured, QuantizeError, chain, described
from smelt.tiny.captured.views import VIEWS, View, image
from smelt.tiny.graph import HIGH, LOW, MAX_BIAS, Flatten, Int8Graph, Operator, Parameter, Tensor

aten = torch.ops.aten
getitem = operator.getitem
BOUNDS = (aten.relu.default, aten.hardtanh.default, aten.clamp.default, aten.clamp_min.default)

HAS = (
    "convolution (in one group, or one for each channel), BatchNorm, linear, add, constants added or "
    "taken off, padding by zeros before a convolution, mean and max pooling, ReLU, ReLU6, "
    "products of activations (of one shape, or by a number a channel), concatenation of channels, "
    "functions of one value such as GELU, layer norm, attention without a mask, views"
)

Rule = Callable[["GraphBuilder", fx.Node], None]

RULES: dict[Any, Rule] = {}
"""Operator -> the function that converts it; other operators are not supported."""


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Enter a function in the table for some operators."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return enter


class Partial(Protocol):
    """The value of a node that becomes part of an operator with later nodes.

    Attributes:
        what: what it is, for errors.
    """

    what: ClassVar[str]

    def through(self, before: tuple[int, ...], after: tuple[int, ...]) -> Partial | None:
        """The value after a view operator from one shape to another; None if the target lacks that."""
        ...


class GraphBuilder:
    """Builds the records of an int8 graph, node by node of the captured graph.

    Attributes:
        views: node -> the view that represents its value; a tuple for a node with several values.
        partial: nodes whose values become part of an operator with later nodes: no tensor holds them.
        skipped: nodes that became part of an operator before them.
        shaped: tensors that were reshaped.
        batch: the batch size of the captured graph.
        current: the node that a rule converts.
    """

    def __init__(self, captured: Captured, model: nn.Module, float_head: bool) -> None:
        self.captured, self.model, self.float_head = captured, model, float_head
        self.paths = {one.data_ptr(): path.rpartition(".")[0] for path, one in model.named_parameters()}
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.views: dict[fx.Node, View | tuple[View, ...]] = {}
        self.partial: dict[fx.Node, Partial] = {}
        self.skipped: set[fx.Node] = set()
        self.shaped: dict[tuple[str, tuple[int, ...]], str] = {}
        self.last = self.current = result_node(captured.graph.graph)
        self.batch = int(captured.image.meta["val"].shape[0])

    def graph(self, name: str) -> Int8Graph:
        first = self.captured.image
        shape, index = self.images_of(first)
        self.views[first] = View(self.tensor(first, shape, "image"), index)
        for node in self.captured.graph.graph.nodes:
            done = node in self.views or node in self.skipped
            if node.op == "call_function" and not done and not self.is_parameter(node):
                self.current, rule = node, RULES.get(node.target)
                if rule is None:
                    raise self.lacks(node, f"the target lacks {operator_name(node)}")
                rule(self, node)
        return Int8Graph(name, self.tensors, tuple(self.operators), "image", self.result_of_all())

    def result_of_all(self) -> str:
        """The tensor of the logits."""
        view = self.views.get(self.last)
        if (
            not isinstance(view, View)
            or view.factor != 1.0
            or not torch.equal(view.index, torch.arange(view.index.numel()).reshape(self.batch, -1))
        ):
            raise QuantizeError("the model's result is no tensor (n, classes) in the order in which it is computed")
        return view.name

    # -- operands of operators -------------------------------------------------------------------------------------

    def lacks(self, node: fx.Node, what: str) -> QuantizeError:
        line = node.meta.get("line")
        at = None if line is None else described(self.model, str(line))
        return QuantizeError(what, at=at, hint=f"it has {HAS}")

    def source(self, node: Any, of: fx.Node, scaled: bool = False) -> View:
        """The view that represents an operand `node` of the operator `of`; `scaled`: whether a tensor times a number is
        allowed, which only attention takes.
        """
        view = self.views.get(node) if isinstance(node, fx.Node) else None
        if not isinstance(view, View):
            partial = self.partial.get(node) if isinstance(node, fx.Node) else None
            kind = "a value that is no activation" if partial is None else partial.what
            raise self.lacks(of, f"the target lacks {operator_name(of)} of {kind}")
        if view.factor != 1.0 and not scaled:
            raise self.lacks(of, f"{operator_name(of)} of a tensor times a number, which only attention takes")
        return view

    def full_tensor(self, node: Any, of: fx.Node) -> View:
        """The view of an operand as in `source`, which must consist of all elements of a tensor, in any order."""
        view = self.source(node, of)
        if not view.covers_tensors(self.tensors[view.name].elements, self.batch):
            raise self.lacks(of, f"{operator_name(of)} of a part of a tensor")
        return view

    def images(self, node: Any, of: fx.Node) -> str:
        """The name of the tensor (height, width, channels) that represents an operand which is a batch of images."""
        view = self.full_tensor(node, of)
        if view.index.ndim not in (3, 4):
            raise self.lacks(of, f"{operator_name(of)} of {view.index.ndim} dimensions, not images or sequences")
        shape, index = self._images(view.index.shape)
        if not torch.equal(view.index, index):
            raise self.lacks(of, f"{operator_name(of)} of images whose channels do not lie together")
        return self.as_shape(view.name, shape)

    def images_of(self, node: fx.Node) -> tuple[tuple[int, int, int], torch.Tensor]:
        """The shape (height, width, channels) of a node's value that is a batch of images (n, channels, height, width),
        or of sequences (n, channels, length), which are images of one row; and its index in a tensor of that shape.
        """
        return self._images(node.meta["val"].shape)

    def _images(self, value: Sequence[int]) -> tuple[tuple[int, int, int], torch.Tensor]:
        _, channels, *extents = value
        shape = (extents[0] if len(extents) == 2 else 1, extents[-1], channels)
        return shape, image(self.batch, shape).reshape(tuple(value))

    def positions(self, view: View, channels: int) -> str:
        """The name of the tensor of a view with `channels` channels: unchanged, or reshaped to (positions, 1,
        channels).
        """
        tensor = self.tensors[view.name]
        if len(tensor.shape) == 3 and tensor.channels == channels:
            return view.name
        return self.as_shape(view.name, (tensor.elements // channels, 1, channels))

    def as_shape(self, name: str, shape: tuple[int, ...]) -> str:
        """The name of a tensor with the same elements in another shape."""
        if self.tensors[name].shape == shape:
            return name
        if (name, shape) not in self.shaped:
            x = self.tensors[name]
            base = f"{name}.flatten" if len(shape) == 1 else f"{name}.{'x'.join(map(str, shape))}"
            self.shaped[name, shape] = base
            self.tensors[base] = Tensor(base, shape, "int8", x.scale, x.zero)
            self.operators.append(Flatten(base, name, base))
        return self.shaped[name, shape]

    def is_parameter(self, node: Any) -> bool:
        """Whether a node is a parameter, or is computed from parameters and constants alone, without random numbers."""
        if not isinstance(node, fx.Node):
            return False
        if node.op == "call_function":
            tags = getattr(node.target, "tags", None)  # of operators; other functions have none
            if tags is None and not node.all_input_nodes or torch.Tag.nondeterministic_seeded in (tags or ()):
                return False
            return all(map(self.is_parameter, node.all_input_nodes))
        return node in self.captured.held

    def is_constant(self, node: Any) -> bool:
        """Whether an operand is a number or a value computed from parameters alone."""
        return not isinstance(node, fx.Node) or self.is_parameter(node)

    def value(self, node: Any) -> Any:
        """The value of a parameter, or of a node computed from parameters alone; other values than nodes are returned
        as such. An activation is an error of the operator that is converted.
        """
        if not isinstance(node, fx.Node):
            return node
        if not self.is_parameter(node):
            raise self.lacks(self.current, f"{operator_name(self.current)} by an activation instead of a parameter")
        if node.op == "call_function":
            with torch.no_grad():
                made = fx.map_arg((node.args, node.kwargs), self.value)
                return node.target(*made[0], **made[1])  # type: ignore[operator]
        return self.captured.held[node].detach()

    def array(self, node: Any) -> np.ndarray | None:
        """The result of `value` as a float64 array; None for None."""
        return None if node is None else self.value(node).double().numpy()

    def path(self, *nodes: Any) -> str:
        """An unused name for an operator: the path of the module that owns one of these parameters."""
        own = next((self.paths.get(self.captured.held[n].data_ptr()) for n in nodes if n in self.captured.held), None)
        taken = {op.name for op in self.operators}
        base = own or nodes[0].name
        numbered = (f"{base}_{i}" for i in itertools.count(1))
        return base if base not in taken else next(name for name in numbered if name not in taken)

    def tensor(self, node: fx.Node, shape: tuple[int, ...], name: str | None = None, like: str | None = None) -> str:
        """An int8 tensor for a node, with the scale of its range or that of another tensor."""
        name = name or node.name
        if like is not None:
            scale, zero = self.tensors[like].scale, self.tensors[like].zero
        else:
            scale, zero = scale_and_zero(*self.captured.ranges[node])
        self.tensors[name] = Tensor(name, shape, "int8", scale, zero)
        return name

    def result(self, node: fx.Node, shape: tuple[int, ...], index: torch.Tensor) -> tuple[str, int, int]:
        """Add the tensor of an operator's result: (its name, low, high). A ReLU that is the result's only user is
        included in the bounds.
        """
        passed, end = [node], chain(node, (*BOUNDS, *VIEWS))
        while end is not None and end.target in VIEWS:
            passed.append(end)
            end = chain(end, (*BOUNDS, *VIEWS))
        folds = end is not None and _limits(end) is not None
        name = self.tensor(end if folds and end is not None else node, shape)
        self.views[node] = View(name, index)
        if not folds or end is None:
            return name, LOW, HIGH
        for one in passed[1:]:
            RULES[one.target](self, one)
        last = self.views[passed[-1]]
        assert isinstance(last, View)
        self.views[end] = last
        return name, *self.bounds(end, name)

    def bounds(self, node: fx.Node, name: str) -> tuple[int, int]:
        """The bounds of a ReLU in steps of a tensor."""
        limits, tensor = _limits(node), self.tensors[name]
        if limits is None:
            raise self.lacks(node, f"the target lacks {operator_name(node)} that is no ReLU or ReLU6")
        low = max(LOW, tensor.zero)
        high = HIGH if limits == float("inf") else min(HIGH, round(limits / tensor.scale) + tensor.zero)
        return low, max(high, low + 1)

    def check_finite(self, node: fx.Node, name: str, *values: np.ndarray) -> None:
        """Raise an error if a layer's parameters are not finite."""
        if not all(np.isfinite(one).all() for one in values):
            raise self.lacks(node, f"{name} has weights or biases that are not finite")

    def weights(
        self, node: fx.Node, name: str, x: str, weight: np.ndarray, bias: np.ndarray
    ) -> tuple[Parameter, Parameter]:
        """int8 weights (outputs first) and the int32 bias of a layer that reads a tensor."""
        flat = np.abs(weight).reshape(len(weight), -1).max(1)
        self.check_finite(node, name, weight, bias)
        least = np.abs(bias) / (self.tensors[x].scale * (MAX_BIAS / 4))  # so that the bias has room in int32
        scales = np.maximum(np.maximum(flat / HIGH, least), 1e-12).astype(np.float32)
        shape = (-1,) + (1,) * (weight.ndim - 1)
        quantized = np.clip(np.rint(weight / scales.astype(np.float64).reshape(shape)), -HIGH, HIGH).astype(np.int8)
        biases = np.rint(bias / (scales.astype(np.float64) * self.tensors[x].scale)).astype(np.int32)
        return Parameter(f"{name}.weight", quantized, scales), Parameter(f"{name}.bias", biases)

    def only_first(self, node: fx.Node) -> fx.Node:
        """The node for the first of several results; the others must be unused."""
        end = chain(node, (getitem,))
        if end is None or arguments(end)[1] != 0:
            raise self.lacks(node, f"{operator_name(node)} of which more than the first result is used")
        return end


def arguments(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a node."""
    return node.args


def result_node(graph: fx.Graph) -> fx.Node:
    (values,) = arguments(next(node for node in graph.nodes if node.op == "output"))
    if len(values) != 1 or not isinstance(values[0], fx.Node):
        raise QuantizeError("the model returns more than its logits", hint="a module around it can return them alone")
    return values[0]


def _limits(node: fx.Node) -> float | None:
    """The upper bound of a ReLU (a number or infinity); None if the node is no ReLU."""
    if node.target is aten.relu.default:
        return float("inf")
    defaults: tuple[Any, ...] = (-1.0, 1.0) if node.target is aten.hardtanh.default else (None, None)
    given = arguments(node)[1:]
    low, high = (*given, *defaults[len(given) :])
    return None if low != 0 else float("inf") if high is None else float(high)


def operator_name(node: fx.Node) -> str:
    """The name of an operator for errors: that of ATen, and that of the function by which the program calls it."""
    return f"{node.target} (of {node.meta.get('from', node.name)})"


def scale_and_zero(low: float, high: float) -> tuple[float, int]:
    """(scale, zero) of int8 values for a range; 0 is always represented exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / (HIGH - LOW), 1e-8)
    return scale, int(np.clip(round(LOW - low / scale), LOW, HIGH))
