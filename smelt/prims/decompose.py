"""Joint ATen graph in, joint prim graph out: one walk with one decomposition per node; nothing is traced.

ATen operators without a decomposition, or with arguments or dtypes that the decomposition does not support, stay as
they are and run in eager; `fallbacks` lists them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from smelt.abi.fake_kernels import is_of_torch
from smelt.base.errors import CompileError, SmeltError
from smelt.base.options import Options
from smelt.base.stats import count_named
from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.aliasing import memory_of, shared_arguments
from smelt.graph.ir.functional_form import base_of
from smelt.graph.ir.gradient_marks import GradientMark
from smelt.graph.ir.meta import TensorMeta, contiguous_stride, is_dense, same_steps
from smelt.graph.ir.module import Graph, GraphModule, remove_dead
from smelt.graph.ir.schema import depends_on_strides
from smelt.graph.ir.seeds import is_seed
from smelt.graph.metadata_checks import inferred
from smelt.prims.dtypes import PLAIN, REAL
from smelt.prims.mixed import Mixed
from smelt.prims.operand_views import is_strided, with_recorded_strides
from smelt.prims.registry import ANY_DTYPE, COMPLEX, DECOMPOSITIONS, LIBRARY, Lowering, is_empty
from smelt.prims.rules import FAMILIES
from smelt.prims.table import PRIMS, Kind, Prim
from smelt.shapes.size import as_symbol, same_all
from smelt.shapes.unbacked import is_unbacked

_ALIASING = frozenset(
    {
        torch.ops.aten.alias.default,
        torch.ops.aten.detach.default,
    }
)


def decompose(gm: fx.GraphModule, options: Options | None = None, apart: bool = False) -> fx.GraphModule:
    """Returns the same program over primitives.

    Placeholders keep names, order and meta. The output node keeps its meta (the strides that the caller expects), and
    so do the values that it returns. An output whose decomposition is an input, or the same value as another output,
    becomes a copy, unless the ATen graph also returned one node at both positions.

    Args:
        gm: functional ATen graph; every node's `meta["val"]` is a TensorMeta, a tuple of them or a number.
        apart: whether the backward is a separate program. Then each node with `meta["as_saved"]` (an input or a result
            with the value that it has when the backward runs) becomes a placeholder, after all others. Otherwise it is
            replaced by the input or result.

    Raises:
        CompileError: a decomposition gave another dtype or shape than the operator.
    """
    assert FAMILIES
    graph = Graph()
    p = Lowering(graph, eager_rng=bool(options and options.eager_rng))
    values: dict[Node, Any] = {}
    mixed = Mixed(gm.graph)
    for node in gm.graph.nodes:
        p.scope = _scope(node)
        match node.op:
            case "placeholder":
                values[node] = _copy_placeholder(p, node)
            case "get_attr":
                values[node] = _constant(p, node, gm, mixed)
            case "call_function" if apart and "as_saved" in node.meta:
                values[node] = _as_saved(p, node)
            case "call_function" if isinstance(node.target, GradientMark):
                values[node] = _marked(p, node, values)
            case "call_function":
                values[node] = _decompose_node(p, node, values, mixed)
            case "output":
                p.scope = {}
                _finish(p, node, values)
            case other:
                raise CompileError(f"a joint ATen graph has no {other} nodes", why=str(node.format_node()))
    remove_dead(graph)
    result = GraphModule(gm, graph)
    count_named("extern_ops", fallbacks(result))
    return result


def fallbacks(gm: fx.GraphModule) -> Counter[str]:
    """Returns the ATen operators left in the graph, with the number of calls of each; queries of sizes are not counted.

    The operators of LIBRARY, and nodes that a graph on a GPU computes on the CPU, are not counted either.
    """
    mixed = Mixed(gm.graph)
    nodes = (n for n in gm.graph.nodes if n.op == "call_function" and isinstance(n.target, OpOverload))
    kept = (n.target for n in nodes if base_of(n.target) not in LIBRARY and not mixed.on_cpu(n))
    return Counter(str(target) for target in kept if target is not torch.ops.aten.sym_size.int)


def _scope(node: Node) -> dict[str, Any]:
    """Returns the meta entries of a node that are copied to the nodes of its decomposition (all but its value)."""
    return {k: v for k, v in node.meta.items() if k not in ("val", "as_saved")} if len(node.meta) > 1 else {}


def _copy_placeholder(p: Lowering, node: Node) -> Node:
    copy = p.graph.create_node("placeholder", node.target, node.args, {}, node.name)
    copy.meta = dict(node.meta)
    if is_seed(node):
        p.seeds[node.meta["val"].device] = copy
    return copy


def _as_saved(p: Lowering, node: Node) -> Node:
    """Returns a placeholder for an input or a result with the value that it has when the backward runs."""
    last = next(n for n in reversed(p.graph.nodes) if n.op == "placeholder")
    kind, which = node.meta["as_saved"]
    name = f"result_{which}_saved" if kind == "output" else f"{which}_{'memory' if kind == 'memory' else 'saved'}"
    with p.graph.inserting_after(last):
        later = p.graph.create_node("placeholder", name, (), {}, name)
    later.meta = {"val": node.meta["val"], "as_saved": node.meta["as_saved"]}
    return later


def _constant(p: Lowering, node: Node, gm: fx.GraphModule, mixed: Mixed) -> Any:
    """Returns the value of a constant tensor: a `full` for a single element, else a `get_attr` node."""
    value = operator.attrgetter(str(node.target))(gm)
    single = isinstance(value, torch.Tensor) and value.numel() == 1 and value.dtype in PLAIN
    if single and not mixed.active:
        return p.full(tuple(value.shape), value.item(), value.dtype, value.device)
    copy = p.graph.create_node("get_attr", node.target, (), {}, node.name)
    copy.meta = dict(node.meta)
    if single and value.device.type == "cpu":
        mixed.note_constant(copy, value.item())
    return copy


def _marked(p: Lowering, node: Node, values: dict[Node, Any]) -> Any:
    """Returns the node of a gradient mark; its metadata is that of its first present operand, until it is known which
    gradients are absent.
    """
    args = _mapped(node.args, values)
    target: Any = node.target
    return p.call(target, args, {}, next(each for each in args if each is not None).meta["val"])


def _decompose_node(p: Lowering, node: Node, values: dict[Node, Any], mixed: Mixed) -> Any:
    target: Any = node.target
    args = _mapped(node.args, values)
    if target is operator.getitem:
        return args[0][args[1]]
    kwargs = {k: _mapped(v, values) for k, v in node.kwargs.items()} if node.kwargs else {}
    if isinstance(target, Prim):
        return p.emit(target, *args, **kwargs)
    p.result = result = node.meta["val"]
    base = base_of(target)
    plain = _is_plain(node)
    any_dtype = plain or base in ANY_DTYPE
    rule = (DECOMPOSITIONS if any_dtype else COMPLEX).get(base)
    p.node = node
    p.of_cpu.clear()
    on_cpu = mixed.on_cpu(node)
    if rule is not None and not on_cpu and (any_dtype or _is_complex(node)):
        args = (*args, *_named_p(target, args, kwargs))
        args, kwargs = mixed.moved(p, args), {k: mixed.moved(p, v) for k, v in kwargs.items()}
        value = _by_rule(rule, p, node, (args, kwargs), plain and not mixed.is_of_cpu(result))
        if value is not NotImplemented:
            return value
    args = with_recorded_strides(p, node, args, values)
    return _called(p, node, (args, kwargs), result, mixed if on_cpu else None)


def _by_rule(
    rule: Callable[..., Any], p: Lowering, node: Node, call_args: tuple[Any, dict[str, Any]], plain: bool
) -> Any:
    """Returns the result of an operator's decomposition; NotImplemented if it does not support the arguments."""
    args, kwargs = call_args
    result = node.meta["val"]
    value = rule(p, *args, **kwargs)
    if value is NotImplemented and plain and _is_nothing(result):
        value = _nothing(p, result)
    if value is not NotImplemented:
        _check(node, value, result)
    return value


def _called(
    p: Lowering, node: Node, call_args: tuple[Any, dict[str, Any]], result: Any, creations: Mixed | None
) -> Any:
    """Returns the call of an operator without a decomposition, which stays in the graph. `creations`, if given, records
    the CPU tensors that the operator makes.
    """
    target: Any = node.target
    args, kwargs = call_args
    if isinstance(target, OpOverload) and target.namespace == "aten" and shared_arguments(target):
        args, result = _with_operand_strides(p, target, args, kwargs, result)
    elif isinstance(target, OpOverload) and depends_on_strides(target):
        args, kwargs, result = _as_recorded(p, node, args, kwargs, result)
    value = p.call(target, _listed(args), {k: _listed(v, False) for k, v in kwargs.items()}, result)
    if creations is not None:
        creations.note_creation(value, node, args, kwargs)
    symbol = as_symbol(result)
    if symbol is not None:  # a number read from a tensor: later sizes are expressions over its name
        value._rename(symbol.name)
    return value


def _as_recorded(
    p: Lowering, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Returns the arguments of a library's operator, copied to the strides recorded in the joint graph, and its
    result's metadata.

    Its kernel may rely on the strides that it gets in eager, and the strides of results depend on them. Values in a
    prim graph have no gaps: if the joint graph records some, the result's metadata is inferred anew from the values.
    """
    target: Any = node.target
    args, kwargs = _with_recorded_strides(p, node.args, args), _with_recorded_strides(p, node.kwargs, kwargs)
    made = [m for m in (result if isinstance(result, tuple) else (result,)) if is_strided(m)]
    follows = all(is_dense(m.shape, m.stride) for m in made)
    alike = _have_same_strides(node.args, args) and _have_same_strides(node.kwargs, kwargs)
    if follows and alike or any(is_unbacked(*m.shape) for m in made):
        return args, kwargs, result
    return args, kwargs, inferred(target, args, kwargs)


def _with_recorded_strides(p: Lowering, recorded: Any, actual: Any) -> Any:
    if isinstance(recorded, (list, tuple)):
        return tuple(_with_recorded_strides(p, *each) for each in zip(recorded, actual, strict=True))
    if isinstance(recorded, dict):
        return {name: _with_recorded_strides(p, value, actual[name]) for name, value in recorded.items()}
    recorded_meta = _metas(recorded)
    if (
        not is_strided(recorded_meta)
        or not is_dense(recorded_meta.shape, recorded_meta.stride)
        or _have_same_strides(recorded, actual)
    ):
        return actual
    return p.call(PRIMS["clone"], (actual,), {}, replace(_metas(actual), stride=recorded_meta.stride))


def _have_same_strides(recorded: Any, actual: Any) -> bool:
    if isinstance(recorded, (list, tuple)):
        return all(map(_have_same_strides, recorded, actual))
    if isinstance(recorded, dict):
        return all(_have_same_strides(value, actual[name]) for name, value in recorded.items())
    recorded_meta, actual_meta = _metas(recorded), _metas(actual)
    return not (is_strided(recorded_meta) and is_strided(actual_meta)) or same_steps(
        recorded_meta.shape, recorded_meta.stride, actual_meta.stride
    )


def _with_operand_strides(
    p: Lowering, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], recorded: Any
) -> tuple[tuple[Any, ...], Any]:
    """Returns the arguments of a view that runs in eager, and its result's metadata, inferred from the actual strides
    of its operand.

    The actual strides may differ from eager's: a copy may have been removed, or a constant expanded or transposed. If
    the view does not support them (`view(dtype)` of elements that are not contiguous), it is a view of a row-major
    copy.
    """
    copies = tuple(_row_major(p, a) if isinstance(a, Node) else a for a in args)
    for own in (args, copies):
        try:
            return own, inferred(target, own, kwargs)
        except (RuntimeError, SmeltError):
            continue
    return args, recorded


def _row_major(p: Lowering, value: Node) -> Node:
    meta = value.meta["val"]
    if not isinstance(meta, TensorMeta) or tuple(meta.stride) == tuple(contiguous_stride(meta.shape)):
        return value  # strides of dimensions of size 1 must agree, too: `view(dtype)` checks that of the last dimension
    made = replace(PRIMS["clone"].meta(meta), stride=contiguous_stride(meta.shape))
    return p.call(PRIMS["clone"], (value,), {}, made)


def _named_p(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Returns positional values for the parameters up to the one named `p`, removed from kwargs, because a rule's
    builder is also named `p`.
    """
    if "p" not in kwargs:
        return []
    rest = schema_of(target).arguments[len(args) :]
    last = next(i for i, argument in enumerate(rest) if argument.name == "p")
    return [kwargs.pop(a.name) if a.name in kwargs else a.default_value for a in rest[: last + 1]]


def _mapped(arg: Any, values: dict[Node, Any]) -> Any:
    if type(arg) is Node:
        return values[arg]
    if isinstance(arg, (list, tuple)):
        return tuple([values[a] if type(a) is Node else _mapped(a, values) for a in arg])
    return arg


def _listed(arg: Any, top: bool = True) -> Any:
    """Returns the arguments for an ATen call, with nested tuples replaced by lists."""
    if isinstance(arg, tuple):
        items = [_listed(a, False) for a in arg]
        return tuple(items) if top else items
    return arg


def _is_plain(node: Node) -> bool:
    if complex in map(type, node.args) or (node.kwargs and complex in map(type, node.kwargs.values())):
        return False
    return _plain(node.meta["val"]) and all([_plain(n.meta["val"]) for n in node.all_input_nodes])


def _is_complex(node: Node) -> bool:
    """Whether all dtypes of a node are supported if each complex dtype is replaced by the dtype of its components."""
    return all(_plain(m) for m in map(_components, (node.meta["val"], *(n.meta["val"] for n in node.all_input_nodes))))


def _components(meta: Any) -> Any:
    if isinstance(meta, TensorMeta):
        return replace(meta, dtype=REAL.get(meta.dtype, meta.dtype))
    return tuple(map(_components, meta)) if isinstance(meta, (tuple, list)) else meta


def _is_nothing(meta: Any) -> bool:
    """Whether none of the results has elements, so that there is nothing to compute."""
    if isinstance(meta, (tuple, list)):
        return bool(meta) and all(map(_is_nothing, meta))
    return isinstance(meta, TensorMeta) and is_empty(meta.shape)


def _nothing(p: Lowering, meta: Any) -> Any:
    if isinstance(meta, (tuple, list)):
        return tuple(_nothing(p, m) for m in meta)
    return p.full(meta.shape, 0, meta.dtype, meta.device)


def _plain(meta: Any) -> bool:
    if type(meta) is TensorMeta:
        return meta.dtype in PLAIN
    if isinstance(meta, (tuple, list)):
        return all(map(_plain, meta))
    return True


def _check(node: Node, value: Any, result: Any) -> None:
    """Check that a decomposition gave the operator's dtypes and shapes."""
    if isinstance(result, (tuple, list)):
        if len(value) != len(result):
            raise CompileError(f"the decomposition of {node.target} gave {len(value)} results, not {len(result)}")
        for one, meta in zip(value, result, strict=True):
            _check(node, one, meta)
    elif isinstance(result, TensorMeta) and value is not None:
        got = value.meta["val"]
        if got.dtype is not result.dtype or not (same_all(got.shape, result.shape) or got.shape == result.shape):
            raise CompileError(f"the decomposition of {node.target} gave {got}, not {result}", at=node.name)


def _finish(p: Lowering, node: Node, values: dict[Node, Any]) -> None:
    """Make the output node; values are copied where results must not share memory, as in the ATen graph."""
    metas = node.meta.get("val") or _metas(node.args[0])
    made = p.graph.output(_Outputs(p, values).with_layout(node.args[0], metas))
    made.meta = {**node.meta, "val": metas}


class _Outputs:
    """What a graph returns (no closure that calls itself, which would keep the graph until cycles are collected)."""

    def __init__(self, p: Lowering, values: dict[Node, Any]) -> None:
        self.p, self.values = p, values
        self.owner: dict[Node, Node] = {}
        self.memory = cache(_memory_of)

    def with_layout(self, arg: Any, meta: Any) -> Any:
        """The values of a result of the ATen graph, with its strides."""
        if isinstance(arg, (tuple, list)):
            return tuple(map(self.with_layout, arg, meta))
        if not isinstance(arg, Node):
            return arg
        value, source = self.values[arg], _source(arg)
        if value is None:
            return None
        kept = {"get_attr"} if source.op == "placeholder" else {"get_attr", "placeholder"}
        if any(n.op in kept or self.owner.setdefault(n, source) is not source for n in self.memory(value)):
            value = self.p.call(PRIMS["clone"], (value,), {}, PRIMS["clone"].meta(value.meta["val"]))
        return _laid_out(self.p, value, meta)


def _memory_of(value: Node) -> set[Node]:
    """Returns the nodes whose memory the value may share.

    A view prim usually gets new memory. But if a library's operator returns a view of its argument and that argument is
    a view prim, the library may be passed the prim's operand with other strides, and so the operand's memory.
    """
    roots = memory_of(value)
    return roots if roots == {value} else {n for root in roots for n in _without_views(root)}


def _without_views(node: Node) -> set[Node]:
    if not isinstance(node.target, Prim) or not (node.target.kind is Kind.VIEW or node.target is PRIMS["clone"]):
        return {node}
    source = node.args[0]
    assert isinstance(source, Node)
    behind = {n for root in memory_of(source) for n in _without_views(root)}
    return {node, *behind}  # the view may also have separate memory, if it is a result


def _laid_out(p: Lowering, value: Node, meta: TensorMeta) -> Node:
    """Returns an output with the strides that the joint graph promised the caller; prims only propose strides.

    Values inside of graphs have no gaps, so an output with gaps is a copy that nothing else reads. If possible, the
    kernel that computes the value writes it directly to that copy.
    """
    own = value.meta["val"]
    if value.op != "call_function" or not isinstance(own, TensorMeta) or same_all(own.stride, meta.stride):
        return value
    if not is_dense(meta.shape, meta.stride) or _is_library_result(value):
        return p.call(PRIMS["clone"], (value,), {}, replace(own, stride=meta.stride))
    _lay_out(value, own, meta)
    return value


def _is_library_result(value: Node) -> bool:
    """Whether the value is the result of a library's operator, so that its strides are those of the fake kernel."""
    while value.target is operator.getitem:
        value = value.args[0]  # type: ignore[assignment]
    return isinstance(value.target, OpOverload) and not is_of_torch(str(value.target))


def _lay_out(value: Node, own: TensorMeta, meta: TensorMeta) -> None:
    views = list(_views(value))
    value.meta["val"] = made = replace(own, stride=meta.stride)
    if value.target is operator.getitem:
        source, position = value.args
        assert isinstance(source, Node) and isinstance(position, int)
        metas = source.meta["val"]
        source.meta["val"] = (*metas[:position], made, *metas[position + 1 :])
    for view in views:
        view.meta["val"] = view.target.meta(*map(_metas, view.args))  # type: ignore[union-attr]


def _views(value: Node) -> Iterator[Node]:
    """Yields the views of a value, and views of these, whose recorded strides follow from the value's own.

    A view with other recorded strides is left out: it is a result with memory of its own.
    """
    for user in value.users:
        if isinstance(user.target, Prim) and user.target.kind is Kind.VIEW:
            if user.target.meta(*map(_metas, user.args)).stride == user.meta["val"].stride:
                yield user
                yield from _views(user)


def _source(node: Node) -> Node:
    while node.op == "call_function" and node.target in _ALIASING:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _metas(arg: Any) -> Any:
    if isinstance(arg, (tuple, list)):
        return tuple(_metas(a) for a in arg)
    return arg.meta["val"] if isinstance(arg, Node) else arg
