"""LSTM and GRU cells, each of which eager computes in one CUDA kernel, and their gradients."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from smelt.prims.registry import LIBRARY, Lowering, aten, decomposition, shape_of

Optional = Node | None

LIBRARY |= {aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default, aten._cudnn_rnn_flatten_weight.default}
LIBRARY |= {aten._cudnn_init_dropout_state.default}


def _gates(p: Lowering, x: Node, count: int) -> list[Node]:
    """Returns x of shape (batch, count * width), split into `count` gates of shape (batch, width), in the compute
    dtype.
    """
    batch, width = shape_of(x)[0], shape_of(x)[1] // count
    wide = p.widen(x)
    return [p.slice(wide, (0, i * width), (batch, (i + 1) * width), (1, 1)) for i in range(count)]


def _added(p: Lowering, gates: list[Node], bias: Optional) -> list[Node]:
    """Returns the gates plus the bias, whose shape is (gates * width,)."""
    if bias is None:
        return gates
    wide, (batch, width) = p.widen(bias), shape_of(gates[0])
    biases = [p.slice(wide, (i * width,), ((i + 1) * width,), (1,)) for i in range(len(gates))]
    return [p.add(g, p.broadcast(b, (batch, width))) for g, b in zip(gates, biases, strict=True)]


def _concatenated(p: Lowering, gates: list[Node], like: Any) -> Node:
    return p.cat(tuple(p.convert(gate, like.dtype) for gate in gates), 1)


def _slope_of_sigmoid(p: Lowering, y: Node) -> Node:
    return p.mul(y, p.sub(1.0, y))


def _slope_of_tanh(p: Lowering, y: Node) -> Node:
    return p.sub(1.0, p.mul(y, y))


@decomposition(aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    p: Lowering, x: Node, h: Node, c: Node, x_bias: Optional = None, h_bias: Optional = None
) -> tuple[Node, Node, Node]:
    """Returns (hidden, cell, the gates, which the backward needs). The gates are in the order input, forget, cell,
    output.
    """
    pairs = zip(_added(p, _gates(p, x, 4), x_bias), _added(p, _gates(p, h, 4), h_bias), strict=True)
    sums = [p.add(a, b) for a, b in pairs]
    input_gate, forget_gate, candidate, output_gate = (
        p.tanh(s) if i == 2 else p.sigmoid(s) for i, s in enumerate(sums)
    )
    cell = p.add(p.mul(forget_gate, p.widen(c)), p.mul(input_gate, candidate))
    hidden_meta, cell_meta, space = p.result
    hidden = p.mul(output_gate, p.tanh(cell))
    kept = _concatenated(p, [input_gate, forget_gate, candidate, output_gate], space)
    return p.convert(hidden, hidden_meta.dtype), p.convert(cell, cell_meta.dtype), kept


@decomposition(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(
    p: Lowering, g_hidden: Optional, g_cell: Optional, c: Node, cell: Node, space: Node, has_bias: bool
) -> tuple[Node, Node, Optional]:
    input_gate, forget_gate, candidate, output_gate = _gates(p, space, 4)
    curve = p.tanh(p.widen(cell))
    flows = [] if g_cell is None else [p.widen(g_cell)]
    if g_hidden is not None:
        flows.append(p.mul(p.mul(p.widen(g_hidden), output_gate), _slope_of_tanh(p, curve)))
    flow = flows[0] if len(flows) == 1 else p.add(*flows)
    shown = p.full_like(curve, 0.0) if g_hidden is None else p.mul(p.widen(g_hidden), curve)
    gates_in = [
        p.mul(p.mul(flow, candidate), _slope_of_sigmoid(p, input_gate)),
        p.mul(p.mul(flow, p.widen(c)), _slope_of_sigmoid(p, forget_gate)),
        p.mul(p.mul(flow, input_gate), _slope_of_tanh(p, candidate)),
        p.mul(shown, _slope_of_sigmoid(p, output_gate)),
    ]
    gates = _concatenated(p, gates_in, p.result[0])
    return gates, p.convert(p.mul(flow, forget_gate), p.result[1].dtype), _of_bias(p, gates, has_bias)


def _of_bias(p: Lowering, gates: Node, has_bias: bool) -> Optional:
    return p.convert(p.sum(p.widen(gates), (0,)), p.out.dtype) if has_bias else None


@decomposition(aten._thnn_fused_gru_cell.default)
def gru_cell(
    p: Lowering, x: Node, h: Node, hidden: Node, x_bias: Optional = None, h_bias: Optional = None
) -> tuple[Node, Node]:
    """Returns (hidden, workspace for the backward). The gates are in the order reset, update, new."""
    xs, hs = _added(p, _gates(p, x, 3), x_bias), _added(p, _gates(p, h, 3), h_bias)
    reset, update = (p.sigmoid(p.add(a, b)) for a, b in zip(xs[:2], hs[:2], strict=True))
    candidate = p.tanh(p.add(xs[2], p.mul(reset, hs[2])))
    old = p.widen(hidden)
    out = p.add(candidate, p.mul(update, p.sub(old, candidate)))
    return p.convert(out, p.result[0].dtype), _concatenated(p, [reset, update, candidate, old, hs[2]], p.result[1])


@decomposition(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(p: Lowering, grad: Node, space: Node, has_bias: bool) -> tuple[Optional, ...]:
    reset, update, candidate, old, inner = _gates(p, space, 5)
    g = p.widen(grad)
    to_update = p.mul(p.mul(g, p.sub(old, candidate)), _slope_of_sigmoid(p, update))
    to_new = p.mul(p.mul(g, p.sub(1.0, update)), _slope_of_tanh(p, candidate))
    to_reset = p.mul(p.mul(to_new, inner), _slope_of_sigmoid(p, reset))
    xs = _concatenated(p, [to_reset, to_update, to_new], p.result[0])
    hs = _concatenated(p, [to_reset, to_update, p.mul(to_new, reset)], p.result[1])
    to_old = p.convert(p.mul(g, update), p.result[2].dtype)
    return xs, hs, to_old, _of_bias(p, xs, has_bias), _of_bias(p, hs, has_bias)
