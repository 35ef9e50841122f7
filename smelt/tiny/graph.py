"""Int8 graphs: typed records of tensors, parameters and operators, in the order in which they run.

A record contains all that is needed to compute the operator: `simulate` and `render_c` use nothing else.
`Int8Graph.verify` checks the invariants of a graph; all code that creates a graph calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import ClassVar

import numpy as np

from smelt.base.errors import SmeltError

LOW, HIGH = -128, 127
"""The range of int8."""

MAX_BIAS = 1 << 30
"""Maximum magnitude of an int32 bias, also while it is trained: the sum of the bias and all int8 products then stays
within int32.
"""


class GraphError(SmeltError):
    """A graph that breaks a rule of `Int8Graph.verify`."""


@dataclass(frozen=True)
class Tensor:
    """An activation of one example.

    Attributes:
        shape: (height, width, channels) or (features,).
        dtype: "int8", or "float32" for logits, which have scale 1 and zero 0.
        scale, zero: the real value is scale * (q - zero).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "int8"
    scale: float = 1.0
    zero: int = 0

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def channels(self) -> int:
        """The last extent."""
        return self.shape[-1]


@dataclass(frozen=True, eq=False)
class Parameter:
    """Weights or a bias.

    Attributes:
        data: int8 or float32 weights, int32 or float32 biases; read-only.
        scales: float32, one for each output channel, of int8 weights; None else.
    """

    name: str
    data: np.ndarray
    scales: np.ndarray | None = None

    def __post_init__(self) -> None:
        for array in (self.data, self.scales):
            if array is not None:
                array.flags.writeable = False


@dataclass(frozen=True, eq=False)
class Conv:
    """A convolution with an int8 result between `low` and `high`; these bounds include a ReLU or ReLU6 that follows.

    Attributes:
        kernel: height and width.
        padding: rows above, columns on the left.
        depthwise: whether each channel is convolved separately. Weights are (height, width, channels) then, else
            (outputs, height, width, inputs).
        end: rows of padding below, columns on the right; None: as many as `padding`.
    """

    name: str
    x: str
    y: str
    weight: Parameter
    bias: Parameter
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]
    depthwise: bool = False
    low: int = LOW
    high: int = HIGH
    end: tuple[int, int] | None = None

    @property
    def border(self) -> tuple[int, int, int, int]:
        """Padding: columns left and right, rows above and below, in the order of `torch.nn.functional.pad`."""
        (top, left), (bottom, right) = self.padding, self.end or self.padding
        return left, right, top, bottom

    def padded(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an input with its padding."""
        left, right, top, bottom = self.border
        return height + top + bottom, width + left + right

    @property
    def pointwise(self) -> bool:
        """Whether each position of the result is computed from the same position of the input alone."""
        return not self.depthwise and self.kernel == (1, 1) and self.stride == 1 and not any(self.border)

    @property
    def inputs(self) -> int:
        """Channels of the input."""
        return int(self.weight.data.shape[-1])

    @property
    def outputs(self) -> int:
        """Channels of the result."""
        return int(self.bias.data.shape[0])


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear layer with int8 weights (outputs, inputs) and an int8 result: a convolution of an image of 1 x 1."""

    name: str
    x: str
    y: str
    weight: Parameter
    bias: Parameter
    low: int = LOW
    high: int = HIGH
    kernel: ClassVar = (1, 1)
    stride: ClassVar = 1
    padding: ClassVar = (0, 0)
    depthwise: ClassVar = False

    @property
    def inputs(self) -> int:
        """The number of input features."""
        return int(self.weight.data.shape[1])

    @property
    def outputs(self) -> int:
        """The number of output features."""
        return int(self.weight.data.shape[0])


Layer = Conv | Linear
"""The operators that schemes number, and that can be trained besides the classifier."""


@dataclass(frozen=True, eq=False)
class Head:
    """The classifier in float32: logits = weight @ (scale * (x - zero)) + bias. The loss contains the softmax."""

    name: str
    x: str
    y: str
    weight: Parameter
    bias: Parameter


@dataclass(frozen=True)
class Add:
    """The sum of two tensors of one shape."""

    name: str
    a: str
    b: str
    y: str
    low: int = LOW
    high: int = HIGH


@dataclass(frozen=True)
class AveragePool:
    """Means over windows without padding; the window of a global pool is the whole image."""

    name: str
    x: str
    y: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    low: int = LOW
    high: int = HIGH


@dataclass(frozen=True)
class MaxPool:
    """The largest elements of windows; the scale and zero of the result are those of x.

    Attributes:
        padding: rows above and below, columns on the left and right that are less than any element.
    """

    name: str
    x: str
    y: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]


@dataclass(frozen=True)
class Multiply:
    """The product of two tensors of one shape, or of a tensor and one number for each channel (1, 1, channels)."""

    name: str
    a: str
    b: str
    y: str
    low: int = LOW
    high: int = HIGH


@dataclass(frozen=True)
class Concat:
    """The channels of several tensors (height, width, channels) together; each tensor once."""

    name: str
    xs: tuple[str, ...]
    y: str
    low: int = LOW
    high: int = HIGH


@dataclass(frozen=True)
class Clamp:
    """A ReLU or ReLU6 that is not part of another operator: bounds a tensor; scale and zero are unchanged."""

    name: str
    x: str
    y: str
    low: int
    high: int


@dataclass(frozen=True)
class Flatten:
    """The same bytes in another shape, such as (height, width, channels) as (features,)."""

    name: str
    x: str
    y: str


@dataclass(frozen=True, eq=False)
class AddConstant:
    """The sum of a tensor and an int8 constant of its shape, such as an embedding of positions.

    Attributes:
        table: int8; its real values are `scale` times it.
    """

    name: str
    x: str
    y: str
    table: Parameter
    scale: float
    low: int = LOW
    high: int = HIGH


@dataclass(frozen=True, eq=False)
class Lookup:
    """A function of one value, such as GELU: a table of its 256 results.

    Attributes:
        table: int8 (256,), the result of -128 first.
        slopes: float32 (256,), the derivative in steps of the result per step of the operand; 0 if the result is
            clamped.
    """

    name: str
    x: str
    y: str
    table: Parameter
    slopes: Parameter
    low: int = LOW
    high: int = HIGH


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Layer norm: the channels of each position, normalized to mean 0 and variance 1, times gain plus shift.

    Attributes:
        gain, shift: float32 (channels,); they do not train.
        epsilon: added to the variance of real values.
    """

    name: str
    x: str
    y: str
    gain: Parameter
    shift: Parameter
    epsilon: float
    low: int = LOW
    high: int = HIGH


@dataclass(frozen=True)
class Attention:
    """softmax(q k^T * scale) v for each head, over the positions of k and v.

    Attributes:
        q, k, v: the tensors of the operands; one tensor may contain several of them in different channels.
        starts: the first channel of q, k and v in their tensors; the channels of the heads are consecutive.
        heads: number of heads; the result has the channels of all heads.
        width: channels of a head of q and k.
        scale: the factor of the products of real values.
    """

    name: str
    q: str
    k: str
    v: str
    y: str
    starts: tuple[int, int, int]
    heads: int
    width: int
    scale: float
    low: int = LOW
    high: int = HIGH


Joining = MaxPool | Multiply | Concat
Operator = (
    Conv | Linear | Head | Add | AveragePool | Clamp | Flatten | AddConstant | Lookup | LayerNorm | Attention | Joining
)

MAX_TAPS = 11
"""Maximum height and width of a depthwise kernel, whose weights the C code copies; equal to TINY_MAX_TAPS there."""

MAX_PROBABILITY = 4095
"""The largest integer weight of a row of attention, before the row is divided by its sum."""


def sources(op: Operator) -> tuple[str, ...]:
    """Names of the tensors that an operator reads."""
    match op:
        case Add() | Multiply():
            return (op.a, op.b)
        case Concat():
            return op.xs
        case Attention():
            return (op.q, op.k, op.v)
    return (op.x,)


def parameters(op: Operator) -> tuple[Parameter, ...]:
    """The parameters of an operator that can be trained: weight and bias."""
    return (op.weight, op.bias) if isinstance(op, (Conv, Linear, Head)) else ()


def constants(op: Operator) -> tuple[Parameter, ...]:
    """The parameters of an operator that are never trained."""
    match op:
        case AddConstant():
            return (op.table,)
        case Lookup():
            return (op.table, op.slopes)
        case LayerNorm():
            return (op.gain, op.shift)
    return ()


def updated_channels(inputs: int, ratio: float | Fraction) -> int:
    """The number of input channels that are updated if a scheme trains this ratio of a layer: rounded to nearest,
    halves up, at least 1.
    """
    return min(inputs, max(1, int(inputs * Fraction(ratio).limit_denominator(1 << 16) + Fraction(1, 2))))


@dataclass(frozen=True, eq=False)
class Int8Graph:
    """A quantised network for one example.

    Attributes:
        tensors: every activation by name; the first is the input.
        operators: in the order in which they run; the last one computes `output`.
    """

    name: str
    tensors: dict[str, Tensor]
    operators: tuple[Operator, ...]
    input: str
    output: str

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The convolutions and linear layers, without the classifier, in the order in which schemes number them."""
        return tuple(op for op in self.operators if isinstance(op, Layer) and op.y != self.output)

    @property
    def classes(self) -> int:
        """Number of logits."""
        return self.tensors[self.output].elements

    def parameters(self) -> Iterator[Parameter]:
        """All parameters, in the order of their operators."""
        for op in self.operators:
            yield from (*parameters(op), *constants(op))

    def macs(self) -> int:
        """The number of multiply-accumulates of an inference."""
        total = 0
        for op in self.operators:
            if isinstance(op, Conv):
                y = self.tensors[op.y]
                total += y.elements * prod(op.kernel) * (1 if op.depthwise else op.inputs)
            elif isinstance(op, (Linear, Head)):
                total += op.weight.data.size
            elif isinstance(op, Attention):
                q, k, y = (self.tensors[name] for name in (op.q, op.k, op.y))
                pairs = (q.elements // q.channels) * (k.elements // k.channels)
                total += pairs * (op.heads * op.width + y.channels)
        return total

    def verify(self) -> None:
        """Check that each tensor is computed once and before it is read, and that shapes, types and ranges agree.

        Raises:
            GraphError: names the operator and the rule.
        """
        made = {self.input}
        if self.input not in self.tensors or self.output not in self.tensors:
            raise GraphError(f"{self.name}: its input or output is no tensor of it")
        for tensor in self.tensors.values():
            _verify_tensor(tensor)
        for op in self.operators:
            for source in sources(op):
                if source not in made:
                    raise GraphError(f"{op.name} reads {source!r}, which nothing before it makes")
            if op.y in made or op.y not in self.tensors:
                raise GraphError(f"{op.name} makes {op.y!r}, which is made already or is no tensor of the graph")
            made.add(op.y)
            wrong = _wrong(op, self.tensors)
            if wrong:
                raise GraphError(f"{op.name} ({type(op).__name__}): {wrong}")
        if self.output not in made:
            raise GraphError(f"{self.name}: nothing makes its output {self.output!r}")


def _verify_tensor(tensor: Tensor) -> None:
    if not tensor.shape or any(n < 1 for n in tensor.shape) or len(tensor.shape) not in (1, 3):
        raise GraphError(f"tensor {tensor.name!r} has shape {tensor.shape}", hint="(height, width, channels) or (n,)")
    if tensor.dtype not in ("int8", "float32"):
        raise GraphError(f"tensor {tensor.name!r} has dtype {tensor.dtype}", hint="int8, or float32 for logits")
    if tensor.dtype == "int8" and not (0 < tensor.scale < float("inf") and LOW <= tensor.zero <= HIGH):
        raise GraphError(f"tensor {tensor.name!r} has scale {tensor.scale} and zero {tensor.zero}")


def _wrong(op: Operator, tensors: dict[str, Tensor]) -> str | None:
    """The rule that an operator breaks, as text; None if it breaks none."""
    inputs, y = [tensors[name] for name in sources(op)], tensors[op.y]
    dtypes = [tensor.dtype for tensor in (*inputs, y)]
    if dtypes != ["int8"] * len(inputs) + ["float32" if isinstance(op, Head) else "int8"]:
        return f"it reads and makes {', '.join(dtypes)}"
    if not isinstance(op, (Head, Flatten, MaxPool)) and not LOW <= op.low < op.high <= HIGH:
        return f"it is bounded by {op.low} and {op.high}"
    match op:
        case Conv():
            return _wrong_conv(op, inputs[0], y)
        case Linear() | Head():
            return _wrong_linear(op, inputs[0], y)
        case AveragePool():
            return _wrong_pool(op, inputs[0], y)
        case Clamp() | Flatten():
            return _wrong_copy(op, inputs[0], y)
        case AddConstant() | Lookup() | LayerNorm():
            return _wrong_table(op, inputs[0], y)
        case Attention():
            return _wrong_attention(op, inputs, y)
        case Add() | MaxPool() | Multiply() | Concat():
            return _wrong_joining(op, inputs, y)


def _wrong_joining(op: Add | Joining, inputs: list[Tensor], y: Tensor) -> str | None:
    shapes = [one.shape for one in inputs]
    match op:
        case Add():
            return None if shapes[0] == shapes[1] == y.shape else "shapes differ"
        case Multiply():
            gate = (1,) * (len(y.shape) - 1) + y.shape[-1:]
            return None if shapes[0] == y.shape and shapes[1] in (y.shape, gate) else "shapes differ"
        case Concat():
            together = (*y.shape[:-1], sum(shape[-1] for shape in shapes))
            same = {(len(shape), *shape[:2]) for shape in shapes} == {(3, *y.shape[:2])}
            return None if same and together == y.shape and len(set(op.xs)) == len(op.xs) else f"{shapes} to {y.shape}"
        case MaxPool():
            return _wrong_max_pool(op, inputs[0], y)


def _wrong_max_pool(op: MaxPool, x: Tensor, y: Tensor) -> str | None:
    if (x.scale, x.zero) != (y.scale, y.zero) or len(x.shape) != 3 or min(*op.kernel, *op.stride) < 1:
        return "its result has another scale or zero, or its window or stride is below 1"
    if any(not 0 <= 2 * p <= k for p, k in zip(op.padding, op.kernel, strict=True)):
        return f"its padding {op.padding} is more than half of its window {op.kernel}"
    sides = zip(x.shape[:2], op.padding, op.kernel, op.stride, strict=True)
    wanted = (*((n + 2 * p - k) // s + 1 for n, p, k, s in sides), x.channels)
    return None if y.shape == wanted else f"its result is {wanted}, not {y.shape}"


def _wrong_copy(op: Clamp | Flatten, x: Tensor, y: Tensor) -> str | None:
    same = (x.elements, x.scale, x.zero) == (y.elements, y.scale, y.zero)
    right = same and (isinstance(op, Flatten) or y.shape == x.shape)
    return None if right else "its result has another shape, scale or zero"


def _wrong_table(op: AddConstant | Lookup | LayerNorm, x: Tensor, y: Tensor) -> str | None:
    if x.shape != y.shape:
        return f"its result is {x.shape}, not {y.shape}"
    wanted: tuple[tuple[Parameter, int, type], ...]
    match op:
        case AddConstant():
            wanted = ((op.table, x.elements, np.int8),)
        case Lookup():
            wanted = ((op.table, 256, np.int8), (op.slopes, 256, np.float32))
        case LayerNorm():
            wanted = ((op.gain, x.channels, np.float32), (op.shift, x.channels, np.float32))
            if not op.epsilon > 0:
                return f"its epsilon is {op.epsilon}"
    wrong = next((one for one, size, dtype in wanted if one.data.shape != (size,) or one.data.dtype != dtype), None)
    return None if wrong is None else f"{wrong.name} is {wrong.data.dtype} {wrong.data.shape}"


def _wrong_attention(op: Attention, inputs: list[Tensor], y: Tensor) -> str | None:
    q, k, v = inputs
    if any(len(one.shape) != 3 for one in (*inputs, y)):
        return "its tensors are (height, width, channels)"
    if y.channels % op.heads or y.shape[:2] != q.shape[:2] or k.shape[:2] != v.shape[:2]:
        return f"{op.heads} heads of q {q.shape}, k {k.shape} and v {v.shape} do not give {y.shape}"
    widths = (op.heads * op.width, op.heads * op.width, y.channels)
    if any(a < 0 or a + n > one.channels for a, n, one in zip(op.starts, widths, inputs, strict=True)):
        return f"heads from the channels {op.starts} on leave q {q.shape}, k {k.shape} or v {v.shape}"
    if k.elements // k.channels * MAX_PROBABILITY * (HIGH - LOW) > 2**31 - 1:
        return f"sums over the {k.elements // k.channels} positions of k {k.shape} may leave int32"
    return None


def _wrong_conv(op: Conv, x: Tensor, y: Tensor) -> str | None:
    if op.depthwise and max(op.kernel) > MAX_TAPS:
        return f"its kernel is {op.kernel}, a depthwise one is at most {MAX_TAPS} wide and high"
    if len(x.shape) != 3 or len(y.shape) != 3:
        return "images are (height, width, channels)"
    (kh, kw), (height, width, channels) = op.kernel, x.shape
    extents = tuple((n - k) // op.stride + 1 for n, k in zip(op.padded(height, width), op.kernel, strict=True))
    if min(op.border) < 0:
        return f"its padding is {op.border}"
    if y.shape != (*extents, op.outputs):
        return f"its result is {(*extents, op.outputs)}, not {y.shape}"
    wanted = (kh, kw, channels) if op.depthwise else (op.outputs, kh, kw, channels)
    if op.weight.data.shape != wanted or (op.depthwise and op.outputs != channels):
        return f"its weights are {op.weight.data.shape}, wanted {wanted}"
    return _wrong_parameters(op)


def _wrong_linear(op: Linear | Head, x: Tensor, y: Tensor) -> str | None:
    if op.weight.data.shape != (y.elements, x.elements) or len(y.shape) != 1:
        return f"its weights are {op.weight.data.shape}, wanted {(y.elements, x.elements)}"
    if isinstance(op, Linear):
        return _wrong_parameters(op) if len(x.shape) == 1 else "it reads features, not an image: flatten it before"
    if op.weight.data.dtype != np.float32 or op.bias.data.dtype != np.float32:
        return "its parameters are not float32"
    return None if op.bias.data.shape == y.shape else f"its bias is {op.bias.data.shape}"


def _wrong_parameters(op: Layer) -> str | None:
    outputs, weight = op.bias.data.shape, op.weight
    if weight.data.dtype != np.int8 or op.bias.data.dtype != np.int32:
        return "its weights are not int8 or its bias is not int32"
    if weight.scales is None or weight.scales.shape != outputs or weight.scales.dtype != np.float32:
        return "its weights need a float32 scale for each output channel"
    if not (np.isfinite(weight.scales).all() and (weight.scales > 0).all()):
        return "a scale of its weights is not positive"
    if int(np.abs(op.bias.data.astype(np.int64)).max(initial=0)) > MAX_BIAS:
        return f"its bias leaves the range of +-{MAX_BIAS}, which keeps accumulators within int32"
    return None


def _wrong_pool(op: AveragePool, x: Tensor, y: Tensor) -> str | None:
    if len(x.shape) != 3 or min(op.stride) < 1 or min(op.kernel) < 1:
        return "images are (height, width, channels), windows and strides at least 1"
    extents = tuple((n - k) // s + 1 for n, k, s in zip(x.shape[:2], op.kernel, op.stride, strict=True))
    return None if y.shape == (*extents, x.channels) else f"its result is {(*extents, x.channels)}, not {y.shape}"
