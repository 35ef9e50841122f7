"""The calls of the kernels of a training step, as C."""

from __future__ import annotations

from math import prod

from smelt.tiny.graph import Add, AddConstant, AveragePool, Conv, Head, Layer
from smelt.tiny.program import Call, bordered, gradient_name, latent_name, velocity_name
from smelt.tiny.render_forward import chosen, extents, weights_of
from smelt.tiny.rendering import Rendering, called, identifier, number, rule
from smelt.tiny.rescale import accumulator_scales, add_scales, dequantize_scale, gradient_factors, pool_scale


def sgd(r: Rendering, parameter: str, call: Call) -> str:
    """The C arguments for the update of a parameter by a call, or for the buffer in which it stores the gradient."""
    held = gradient_name(parameter)
    gradient = r.at(held) if held in call.writes else "0"
    options, trained = r.program.options, r.program.trained
    states = [
        f"model_trained.{identifier(name)}" if name in trained else "0"
        for name in (velocity_name(parameter), latent_name(parameter))
    ]
    rounding = f"TINY_{options.rounding.upper()}"
    fields = [
        "rate",
        number(options.momentum),
        rounding,
        "model_trained.steps",
        f"{options.salt(call.label)}u",
        *states,
        gradient,
    ]
    return f"(tiny_sgd){{{', '.join(fields)}}}"


@rule("loss")
def _loss(r: Rendering, call: Call, at: int) -> str:
    return "loss = " + called("tiny_loss", r.at(call.reads[0]), r.graph.classes, "label", r.at(call.writes[0]))


@rule("head_backward")
def _head_backward(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Head)
    x = r.graph.tensors[op.x]
    args = [r.at(call.reads[0]), r.graph.classes, r.parameter(op.weight), x.elements, number(dequantize_scale(x))]
    return called("tiny_head_backward", *args, r.at(call.writes[0]))


@rule("head_update")
def _head_update(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Head)
    x = r.graph.tensors[op.x]
    args = [r.at(call.reads[0]), r.graph.classes, r.at(call.reads[1]), x.zero, number(dequantize_scale(x)), x.elements]
    weight = [r.parameter(op.weight), sgd(r, op.weight.name, call)]
    return called("tiny_head_update", *args, *weight, r.parameter(op.bias), sgd(r, op.bias.name, call))


@rule("unclamp")
def _unclamp(r: Rendering, call: Call, at: int) -> str:
    op, scales = call.op, "0"
    assert op is not None
    if isinstance(op, Layer):
        scales = r.constant(f"{op.name}.scales", accumulator_scales(r.graph, op))
    y = r.graph.tensors[op.y]
    return called("tiny_unclamp", *map(r.at, call.reads), scales, y.channels, y.elements, r.at(call.writes[0]))


@rule("scale_a")
@rule("scale_b")
def _scale(r: Rendering, call: Call, at: int) -> str:
    assert isinstance(call.op, (Add, AddConstant))
    scale = number(add_scales(r.graph, call.op)[call.kernel == "scale_b"])
    return called("tiny_scale", r.at(call.reads[0]), scale, _elements(r, call), r.at(call.writes[0]))


@rule("accumulate")
def _accumulate(r: Rendering, call: Call, at: int) -> str:
    return called("tiny_accumulate", *map(r.at, call.reads), _elements(r, call), r.at(call.writes[0]))


def _elements(r: Rendering, call: Call) -> int:
    return prod(r.program.values[call.writes[0]].shape)


@rule("pool_backward")
def _pool_backward(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, AveragePool)
    args = [r.at(call.reads[0]), *extents(r.graph, op.y), number(pool_scale(r.graph, op)), *op.kernel, *op.stride]
    return called("tiny_pool_backward", *args, r.at(call.writes[0]), *extents(r.graph, op.x)[:2])


def _gradient(r: Rendering, call: Call) -> list[str]:
    """The C arguments for the gradient of an accumulator: a pointer to float32, or to int8 with its scale."""
    return [r.at(call.reads[0]), *([r.at(call.reads[-1])] if call.kernel.endswith("_int8") else [])]


@rule("quantize_gradient")
def _quantize_gradient(r: Rendering, call: Call, at: int) -> str:
    count, salt = prod(r.program.values[call.writes[0]].shape), r.program.options.salt(call.label)
    args = [r.at(call.reads[0]), count, "model_trained.steps", f"{salt}u"]
    return called("tiny_quantize_gradient", *args, *map(r.at, call.writes))


@rule("conv_backward")
@rule("conv_backward_int8")
def _conv_backward(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Layer)
    args = [*_gradient(r, call), *extents(r.graph, op.y), *weights_of(r, op), *op.kernel, op.stride, *op.padding]
    columns = [r.scratch(at) if call.scratch else 0] if call.kernel.endswith("_int8") else []
    return called(f"tiny_{call.kernel}", *args, r.at(call.writes[0]), *extents(r.graph, op.x), *columns)


@rule("depthwise_backward")
@rule("depthwise_backward_int8")
def _depthwise_backward(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Conv)
    args = [*_gradient(r, call), *extents(r.graph, op.y), *weights_of(r, op), *op.kernel, op.stride, *op.padding]
    args += [r.at(call.writes[0]), *extents(r.graph, op.x)[:2]]
    if call.kernel.endswith("_int8"):
        return called("tiny_depthwise_backward_int8", *args, r.scratch(at), int(bordered(op)))
    return called("tiny_depthwise_backward", *args, r.scratch(at, "float"), int(bordered(op)))


def _factors(r: Rendering, op: Layer, which: str) -> str:
    factors = gradient_factors(r.graph, op, r.program.options.scaled)[which == "bias"]
    return r.constant(f"{op.name}.{which}.factors", factors)


@rule("update_bias")
def _update_bias(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Layer)
    height, width, outputs = extents(r.graph, op.y)
    args = [r.at(call.reads[0]), height * width, outputs, _factors(r, op, "bias")]
    return called("tiny_update_bias", *args, r.parameter(op.bias), sgd(r, op.bias.name, call))


@rule("update_weight")
@rule("update_weight_int8")
@rule("update_depthwise")
@rule("update_depthwise_int8")
def _update_weight(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Layer)
    trained = r.program.trained[op.weight.name]
    args: list[object] = [*_gradient(r, call), *extents(r.graph, op.y)]
    if op.depthwise:
        args.append(chosen(r, op) if trained.channels is not None else 0)
    args += [r.at(call.reads[1]), *extents(r.graph, op.x)[:2], trained.data.shape[-1], r.graph.tensors[op.x].zero]
    args += [*op.kernel, op.stride, *op.padding, _factors(r, op, "weight")]
    return called(f"tiny_{call.kernel}", *args, r.parameter(op.weight), sgd(r, op.weight.name, call))


@rule("apply")
def _apply(r: Rendering, call: Call, at: int) -> str:
    (name,) = call.updates
    trained = r.program.trained[name]
    held = f"model_trained.{identifier(name)}"
    args = [r.at(call.reads[0]), trained.data.size, held, sgd(r, name, call)]
    return called(f"tiny_apply_{trained.data.dtype.name}", *args)
