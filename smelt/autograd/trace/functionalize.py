"""The recorder of the joint trace: records operators as a functional ATen graph.

Values never change. A write to a tensor makes a new value for its storage view and for all its parents up to the
storage's root; sibling views detect the write by the storage's version, and their values are derived anew when they are
used next. Views are recorded not when they are made but when their value is needed. Equal nodes are merged and
operators that change no element (clone, detach, a cast to the same dtype) are dropped while recording, so most
operators that eager would run never become nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from smelt.autograd.trace.backward_lines import BackwardLines
from smelt.autograd.trace.canonicalize import PURE, WRITES, full, identity
from smelt.autograd.trace.reads import JointReads
from smelt.autograd.trace.recomputed import Recomputed
from smelt.autograd.trace.scalar_operands import has_real, with_numbers
from smelt.autograd.trace.views import WRITTEN_VIEWS, read_view, write_memory, write_view
from smelt.base.errors import CompileError, Unsupported
from smelt.base.torch_c import run_recipe
from smelt.base.torch_private import OpOverload, name_in_namespace, schema_of
from smelt.graph.ir.functional_form import DRAWING, EXPECT_CLOSE, LIKE, checked_form, drawing_form, flat_form, flattened
from smelt.graph.ir.meta import (
    TensorMeta,
    contiguous_stride,
    extent,
    is_channels_last,
    is_dense,
    may_overlap,
    same_steps,
    without_gaps,
)
from smelt.graph.ir.module import Graph
from smelt.graph.ir.schema import Kind, OpInfo, depends_on_strides, is_collective, op_info
from smelt.graph.ir.storage_view import Storage
from smelt.graph.meta_rules.constant_values import forget, remember
from smelt.graph.trace.overlapping_writes import overlaps_itself
from smelt.graph.trace.trace import (
    Layout,
    StorageView,
    TraceMode,
    TraceTensor,
    argument,
    infer_meta,
    resize_out,
    trace_like,
)
from smelt.shapes.real import Real
from smelt.shapes.size import same, same_all
from smelt.shapes.unbacked import is_unbacked

aten = torch.ops.aten


def _shared_by(
    op: OpOverload, inside: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """Returns the key that equal nodes have; None for a collective, of which each call runs.

    Nodes inside a checkpoint are recomputed, so nodes outside of it must not share them.
    """
    if is_collective(op):
        return None
    return (op, inside, *map(_key, args), *((k, _key(v)) for k, v in kwargs.items()))


class GraphRecorder:
    """Builds one functional graph.

    Attributes:
        graph: the graph so far.
        root: the module that will own the constants.
        origin: name of the torch-level node that is running; becomes `node.meta["from"]`.
        line: the user's line of that node; becomes `node.meta["line"]`.
        lines: the forward operations from which the engine's nodes come; they become `node.meta["of"]` and
            `node.meta["line"]`.
        checkpoint: the `torch.utils.checkpoint` region of that node; becomes `node.meta["checkpoint"]`.
        backward: whether the autograd engine is running; becomes `node.meta["backward"]`.
        derivative: number of the program's own call of the engine that is running; becomes `node.meta["derivative"]`.
        reads: numbers that the program reads from tensors.
        drawn: number of operators that drew random numbers so far; becomes `node.meta["random"]`.
        eager_draws: whether random operators draw the same numbers from torch's generators as eager.
        cloned: storages that the program copies by `clone()`; the graph, whose values never change, has no copy.
        recomputed: the recomputed values of `checkpoint` calls that the backward reads.
    """

    def __init__(self, eager_draws: bool = False) -> None:
        self.graph = Graph()
        self.eager_draws = eager_draws
        self.root = torch.nn.Module()
        self.origin: str | None = None
        self.line: Any = None
        self.lines = BackwardLines()
        self.checkpoint: int | None = None
        self.backward = False
        self.derivative: int | None = None
        self.cloned: set[Storage] = set()
        self.recomputed: Recomputed | None = None
        self.reads: JointReads | None = None
        self.drawn = 0
        self.reals: dict[str, tuple[Real, fx.Node]] = {}
        self._known: dict[tuple[Any, ...], fx.Node] = {}
        self._constants: dict[int, tuple[torch.Tensor, TraceTensor]] = {}

    # -- values ----------------------------------------------------------------------------------------------------

    def placeholder(self, name: str, val: TensorMeta) -> fx.Node:
        """Make a new input of the graph."""
        node = self.graph.placeholder(name)
        node.meta["val"] = val
        return node

    def bind(self, tensor: TraceTensor, node: fx.Node) -> None:
        """Make `node` the value of `tensor`, which must be the root of its storage."""
        tensor.storage_view.node, tensor.storage_view.version = node, tensor.storage_view.storage.version

    def value(self, view: StorageView) -> fx.Node:
        """Returns the current value of a storage view."""
        if self.recomputed and self.lines.region() is not None:
            return self._recomputed_value(view)
        if view.node is not None and view.version == view.storage.version:
            return view.node
        if view.parent is None:
            raise CompileError(f"a traced tensor {view.layout.val} that this graph did not make")
        view.node = read_view(self.emit, self.value(view.parent), view)
        view.version = view.storage.version
        return view.node

    def _recomputed_value(self, view: StorageView) -> fx.Node:
        """Returns the value of `view` in the second run of the `checkpoint` call from which the engine's running node
        comes.
        """
        assert self.recomputed is not None
        if view.node is not None and view.version == view.storage.version:
            return self.recomputed.of(view.node)
        if view.parent is None:
            raise CompileError(f"a traced tensor {view.layout.val} that this graph did not make")
        return read_view(self.emit, self._recomputed_value(view.parent), view)

    def recompute(self, late: Mapping[fx.Node, fx.Node]) -> None:
        """Make the backward, from this time on, recompute `checkpoint` calls from these values instead of the
        inputs.
        """

        def append_like(node: fx.Node, operand: Callable[[fx.Node], fx.Node]) -> fx.Node:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), operand)
            return self._node(node.target, args, kwargs, node.meta["val"])  # type: ignore[arg-type]

        self.recomputed = Recomputed(self.graph.nodes, late, append_like)

    def _note_backward(self, meta: dict[str, Any]) -> None:
        """Record the backward to which a node belongs, and its operation of the forward."""
        if self.backward:
            meta["backward"] = True
        if self.derivative is not None:
            meta["derivative"] = self.derivative
        meta |= self.lines.of_running()

    def assign(self, view: StorageView, node: fx.Node) -> None:
        """Give `view` the value `node`; the values of its bases change with it."""
        if _overlaps(view):
            root = view.storage.root
            assert root is not None
            self.assign(root, write_memory(self.emit, self.value(root), node, view))
            return
        values = [node]
        above = []
        while view.parent is not None:
            above.append(view)
            values.append(write_view(self.emit, self.value(view.parent), values[-1], view))
            view = view.parent
        view.storage.version += 1
        for changed, value in zip([*above, view], values, strict=True):
            changed.node, changed.version = value, view.storage.version

    def number(self, real: Real) -> fx.Node:
        """Returns a floating-point number that differs between calls, as a 0-d tensor: an input, or computed from
        tensors.
        """
        if self.reads is not None and is_unbacked(real):
            return self.reads.float_node(real)
        return self.given_number(real)

    def given_number(self, real: Real) -> fx.Node:
        """Returns a floating-point number that is an input of each call, as a 0-d tensor."""
        known = self.reals.get(real.key)
        if known is None:
            val = TensorMeta((), torch.float64, (), torch.device("cpu"))
            known = self.reals[real.key] = (real, self.placeholder(f"real_{len(self.reals)}", val))
        return known[1]

    def _values(self, args: Any) -> Any:
        if type(args) is TraceTensor:
            return self.value(args.storage_view)
        if isinstance(args, (list, tuple)):
            return type(args)(map(self._values, args))
        return args

    def _operands(self, op: OpOverload, args: Any) -> Any:
        """Returns the values of an operator's arguments, in the program's strides if the operator depends on
        strides.
        """
        return self._strided_values(args) if depends_on_strides(op) else self._values(args)

    def _strided_values(self, args: Any) -> Any:
        if isinstance(args, (list, tuple)):
            return type(args)(map(self._strided_values, args))
        if type(args) is not TraceTensor:
            return args
        node, val = self.value(args.storage_view), args.storage_view.layout.val
        is_copy = args.storage_view.parent is None and is_view_node(node)  # a copy of unknown strides
        if not is_dense(val.shape, val.stride):
            return node
        if same_steps(val.shape, val.stride, node.meta["val"].stride) and not is_copy:
            return node
        last = {4: torch.channels_last, 5: torch.channels_last_3d} if is_channels_last(val.shape, val.stride) else {}
        form = {"memory_format": last.get(val.ndim, torch.contiguous_format)}
        return self._node(aten.clone.default, (node,), form, val)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def emit(self, op: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        """Append an operator that is not a call of the user's program; its metadata comes from the operator's rule."""
        unchanged = identity(op, args)
        if unchanged is not None:
            return unchanged
        vals = None
        first: Any = args[0] if args else None
        if op is aten.view.default and first.target is op:  # a view of a view is one view
            return self.emit(op, first.args[0], args[1])
        if op is aten.permute.default:
            if first.target is op:
                return self.emit(op, first.args[0], [first.args[1][d] for d in args[1]])
            shape = first.meta["val"].shape
            if (
                sorted(moved := [d for d in args[1] if not same(shape[d], 1)]) == moved
            ):  # only dimensions of size 1 move
                return self.emit(aten.view.default, first, [shape[d] for d in args[1]])
        if op is aten.view.default:  # values have no strides that could rule out a reshape
            val = args[0].meta["val"]
            vals = TensorMeta(tuple(args[1]), val.dtype, contiguous_stride(args[1]), val.device)
        return self._node(op, args, kwargs, vals)

    def _note_origin(self, meta: dict[str, Any], inside: Any) -> None:
        """Record the line of the program, the checkpoint (None: none) and the derivative to which a node belongs."""
        if self.origin is not None:
            meta["from"], meta["line"] = self.origin, self.line
        if inside is not None:
            meta["checkpoint"] = inside
        if self.backward or self.derivative is not None:
            self._note_backward(meta)

    def _node(self, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], vals: Any) -> fx.Node:
        """Returns a node with these arguments: an existing equal node, or a new one. If `vals` is None, the operator's
        rule gives the metadata.
        """
        if has_real(args) or has_real(kwargs.values()):
            op, args, kwargs = with_numbers(self, op, args, kwargs, vals)
        random = op is not operator.getitem and op_info(op).random and _draws(op, args)
        inside = None if self.backward else self.checkpoint
        key = None if random else _shared_by(op, inside, args, kwargs)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            return known
        if vals is None:
            vals = _vals(infer_meta(op, _metas(args), _metas(kwargs)))
        if isinstance(vals, TensorMeta) and op in WRITTEN_VIEWS:
            vals = without_gaps(vals)
        node = self.graph.create_node("call_function", op, args, dict(kwargs))
        node.meta["val"] = vals
        self._note_origin(node.meta, inside)
        if random:
            self.drawn += 1  # its position among all random operators of the program, unused ones included
            node.meta["random"] = self.drawn
        if key is not None:
            self._known[key] = node
        return node

    def item(self, node: fx.Node, index: int) -> fx.Node:
        """Returns one result of a node that has several."""
        return self._node(operator.getitem, (node, index), {}, node.meta["val"][index])  # type: ignore[arg-type]

    # -- the recorder protocol -------------------------------------------------------------------------------------

    def pure(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Any, outputs: Any) -> None:
        """Record a pure operator: `outputs` are bound to its node, or to an item of it each."""
        if type(outputs) is TraceTensor:
            val = outputs.storage_view.layout.val
            if op is aten.clone.default and not self.backward and "memory_format" not in kwargs:
                self.cloned.add(args[0].storage_view.storage)
            rule = PURE.get(op)
            if self.eager_draws and op in LIKE:
                into, given = LIKE[op]
                self._options(op, kwargs)
                node = self._draw(into, val, given(*args))
            elif rule is not None:
                node = rule(self, args, kwargs, val)
            else:
                node = self._node(op, self._operands(op, args), self._options(op, kwargs), val)
            self.bind(outputs, node)
            return
        if op is torch.ops.aten._linalg_check_errors.default:
            return self._checked(*args, **kwargs)
        if not isinstance(outputs, (list, tuple)):
            raise Unsupported(f"{op} in a graph", why="it returns no tensor", hint="call it outside the compiled code")
        for output, item in zip(outputs, self._items(op, args, kwargs, answer), strict=True):
            if type(output) is TraceTensor:
                self.bind(output, item)
            elif isinstance(output, (list, tuple)):
                for each, node in zip(output, item, strict=True):
                    self.bind(each, node)

    def _checked(self, info: TraceTensor, api_name: str, *, is_matrix: bool) -> None:
        """Make the operator that computed `info`, its status, raise the error itself: a separate check would have no
        reader."""
        node = self.value(info.storage_view)
        made, index = node.args if node.target is operator.getitem else (None, None)
        if not isinstance(made, fx.Node) or not isinstance(index, int) or not isinstance(made.target, OpOverload):
            raise Unsupported(f"{api_name} in a graph", why="whether it succeeded is known only when it runs")
        if made.target.namespace == "aten":  # otherwise the check has already been made
            made.target = checked_form(made.target, index, api_name, is_matrix)

    def expect_close(self, a: TraceTensor, b: TraceTensor, rtol: float, atol: float, equal_nan: bool) -> None:
        """Record a check that `a` and `b` are close: the value of `a` becomes the result of the check, since a node
        without readers is removed."""
        root = a.storage_view.storage.root
        assert root is not None
        node = self.value(root)
        args = (node, self.value(a.storage_view), self.value(b.storage_view), rtol, atol, equal_nan)
        root.node = self._node(EXPECT_CLOSE, args, {}, node.meta["val"])

    def _items(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Any) -> list[Any]:
        """Returns the nodes of an operator's results: for a list among them a list of nodes, None for a result that is
        not a tensor.
        """
        if not any(isinstance(each, (list, tuple)) for each in answer):
            node = self._node(op, self._operands(op, tuple(args)), self._options(op, kwargs), _vals(answer))
            return [None if each is None else self.item(node, i) for i, each in enumerate(answer)]
        counts = tuple(len(each) if isinstance(each, (list, tuple)) else 0 if each is None else None for each in answer)
        flat_answer = tuple(flattened(answer))
        form = flat_form(op, counts)
        if len(flat_answer) == 1:
            flat = iter(
                [
                    self._node(
                        form, self._operands(form, tuple(args)), self._options(form, kwargs), _vals(flat_answer[0])
                    )
                ]
            )
        else:
            flat = iter(self._items(form, args, kwargs, flat_answer))
        return [
            None if each is None else next(flat) if n is None else [next(flat) for _ in range(n)]
            for n, each in zip(counts, answer, strict=True)
        ]

    def write(
        self,
        op: OpOverload,
        info: OpInfo,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        answer: Any,
        outputs: Sequence[Any],
    ) -> None:
        """Record a writing operator: compute the new values functionally, then assign them."""
        rule = WRITES.get(op)
        if rule is not None and kwargs.get("generator") is None:
            self.assign(args[0].storage_view, self.like(rule(self, args, kwargs), args[0].storage_view))
            return
        if op in _INTO and same_all(args[-1], kwargs["out"].storage_view.layout.val.shape):
            draw, given = _INTO[op]
            filled = (kwargs["out"], *(args[i] for i in given))
            return self.write(draw, op_info(draw), filled, {}, answer, outputs)
        if _in_turn(info, op, args, kwargs):
            for i in range(len(args[0])):
                one = tuple(a[i : i + 1] if isinstance(a, (list, tuple)) else a for a in args)
                self.write(op, info, one, kwargs, answer, outputs)
            return
        if op in DRAWING and self._drawn(op, args, kwargs):
            return
        if info.functional is None:
            raise Unsupported(f"{op} in a graph", why="it writes to its arguments and has no functional form")
        self._assign_results(op, info, args, kwargs, answer, outputs)

    def _assign_results(
        self,
        op: OpOverload,
        info: OpInfo,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        answer: Any,
        outputs: Sequence[Any],
    ) -> None:
        """Bind the new tensors of an operator's functional form, and give the written ones its other results."""
        results = self._functional(info, op, args, kwargs)
        for output, node in zip(outputs, results, strict=False):
            self.bind(output, node)
        answers = answer if isinstance(answer, (list, tuple)) else [answer]
        shown = dict(zip(info.returned, answers, strict=False))
        for name, result in zip(info.written, results[len(outputs) :], strict=True):
            target = argument(op, args, kwargs, name)
            targets = [target] if type(target) is TraceTensor else target or []
            nodes = result if isinstance(result, list) else [result]
            for one, node in zip(targets, nodes, strict=True):
                self._overwrite(one, node, shown.get(name))

    def constant(self, tensor: torch.Tensor) -> TraceTensor:
        """Returns the trace tensor of a real tensor that the program uses, which is the same at each use."""
        known = self._constants.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.requires_grad:
            raise Unsupported("a tensor that requires grad and is no input of the graph", hint="pass it as an argument")
        traced = self.literal(tensor)
        if tensor.numel() != 1:  # the graph contains the tensor itself, to which its owner may write
            forget(traced)
        self._constants[id(tensor)] = (tensor, traced)
        return traced

    def literal(self, tensor: torch.Tensor) -> TraceTensor:
        """Make a constant: a single number becomes `full`, others an attribute of the module."""
        traced = trace_like(tensor, requires_grad=False)
        remember(traced, tensor)
        if tensor.numel() == 1:
            self.bind(traced, full(self, traced.storage_view.layout.val, tensor.item()))
            return traced
        name = f"constant{sum(1 for _ in self.root.buffers())}"
        self.root.register_buffer(name, tensor.detach())
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = traced.storage_view.layout.val
        self.bind(traced, node)
        return traced

    def changed_constants(self) -> bool:
        """Whether the traced program wrote to a real tensor that was not an input."""
        return any(t.storage_view.storage.version > 0 for _, t in self._constants.values())

    # -- helpers of write ---------------------------------------------------------------------------------------------

    def _functional(self, info: OpInfo, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns nodes (or lists of nodes) of the functional form: fresh results, then new values of the written
        tensors.
        """
        function = info.functional
        assert function is not None
        wanted = {a.name: a for a in schema_of(function).arguments}
        all_kwargs = dict(kwargs)
        kwargs = {k: v for k, v in kwargs.items() if k in wanted}
        for parameter in schema_of(op).arguments[len(args) :]:  # calls leave out defaults that the other may not have
            if parameter.name in wanted and not wanted[parameter.name].has_default_value():
                kwargs.setdefault(parameter.name, parameter.default_value)
        if "dtype" in wanted and info.outs:
            kwargs |= _as_out(op, function, argument(op, args, all_kwargs, info.written[0]), args, all_kwargs)
        if op_info(function).composite:
            with TraceMode(self):
                made = run_recipe(function, args, kwargs)
            return [self.value(t.storage_view) for t in (made if isinstance(made, (list, tuple)) else [made])]
        answer = infer_meta(function, args, kwargs)
        if isinstance(answer, Layout):
            return [
                self._node(
                    function, self._operands(function, tuple(args)), self._options(function, kwargs), _vals(answer)
                )
            ]
        items = self._items(function, args, kwargs, answer)
        return [items] if len(schema_of(function).returns) == 1 else items

    def _drawn(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Bind the result of a random operator if it needs special treatment: eager's own random numbers, or elements
        that share memory and get one number per address.

        Returns:
            Whether the result needed special treatment.
        """
        target, *rest = args
        val = target.storage_view.layout.val
        if self.eager_draws:
            rest = _positional(op, args, self._options(op, kwargs))[1:]
            self._overwrite(target, self._draw(op, val, rest), None)
            return True
        if not overlaps_itself(target):
            return False
        with TraceMode(self):
            memory = target.new_empty([extent(val.shape, val.stride)])
            op(memory, *rest, **kwargs)
            drawn = memory.as_strided(val.shape, val.stride, 0)
        self.assign(target.storage_view, self.value(drawn.storage_view))
        return True

    def _draw(self, op: OpOverload, val: TensorMeta, given: Sequence[Any]) -> fx.Node:
        """Returns the values that eager's `op` would draw into memory of this layout."""
        memory = (list(val.shape), list(val.stride), val.dtype, val.device)
        return self._node(drawing_form(op), (*memory, *map(self._values, given)), {}, without_gaps(val))

    def _overwrite(self, target: TraceTensor, node: fx.Node, shown: Any) -> None:
        fresh = resize_out(target, shown.val if type(shown) is Layout else node.meta["val"])
        if fresh is not None:
            self.bind(fresh, node)
        else:
            self.assign(target.storage_view, self.like(node, target.storage_view))

    def like(self, node: fx.Node, view: StorageView) -> fx.Node:
        """Returns `node` with the dtype, device and shape of `view`."""
        val, want = node.meta["val"], view.layout.val
        if val.device != want.device:
            node = self.emit(aten._to_copy.default, node, dtype=want.dtype, device=want.device)
        elif val.dtype != want.dtype:
            node = self.emit(aten._to_copy.default, node, dtype=want.dtype)
        if not same_all(val.shape, want.shape):
            node = self.emit(aten.expand.default, node, list(want.shape))
        return node

    def _options(self, op: OpOverload, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns keyword arguments in the form of a graph: nodes in place of tensors, without arguments that have no
        effect.
        """
        out = {k: self._operands(op, v) for k, v in kwargs.items() if v is not None and k not in _MEANINGLESS}
        if "generator" in out:
            raise Unsupported(f"{op} with a generator of its own", hint="use torch.manual_seed and no generator=")
        return out


_MEANINGLESS = frozenset({"pin_memory", "memory_format", "non_blocking", "layout"})
"""Keyword arguments that do not change values: strides are part of the metadata, and the layout is always strided."""

_DROPOUT_AT: dict[OpOverload, int | None] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: None,
    aten._scaled_dot_product_flash_attention.default: 3,
    aten._scaled_dot_product_efficient_attention.default: 5,
    aten._scaled_dot_product_efficient_attention_backward.default: None,
    aten._scaled_dot_product_cudnn_attention.default: 5,
    aten._scaled_dot_product_cudnn_attention_backward.default: None,
    aten._cudnn_rnn.default: 11,
}
"""For each operator that is tagged as random, the position of its dropout rate (0 if it is left out), or None if it has
no dropout.
"""


def _as_out(
    op: OpOverload, function: OpOverload, out: TraceTensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the keyword arguments (dtype, device) that a call with `out=` implies for the operator's
    functional form.
    """
    if any(a.name == "device" for a in schema_of(function).arguments):  # `torch.arange(4, out=x)`
        return {"dtype": out.dtype, "device": out.device}
    if name_in_namespace(op) in _IN_TYPE_OF_OUT and argument(op, args, kwargs, "dtype") is None:
        return {"dtype": out.dtype}
    return {}


_IN_TYPE_OF_OUT = frozenset({"sum", "nansum", "mean", "prod", "cumsum", "cumprod"})
"""Names of operators that convert their elements to the dtype of `out=` before they reduce them, unless `dtype` is
given.
"""

_INTO: dict[OpOverload, tuple[OpOverload, tuple[Any, ...]]] = {
    aten.rand.out: (aten.uniform_.default, ()),
    aten.randn.out: (aten.normal_.default, ()),
    aten.randint.out: (aten.random_.to, (0,)),
    aten.randint.low_out: (getattr(aten.random_, "from"), (0, 1)),
}
"""For each operator that fills an `out=` with random numbers in memory order, the operator and arguments that compute
them.
"""


def _draws(op: OpOverload, args: Sequence[Any]) -> bool:
    """Whether an operator tagged as random draws numbers in this call."""
    at = _DROPOUT_AT.get(op, -1)
    return at == -1 or at is not None and len(args) > at and bool(args[at])


def _positional(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns the arguments of `op` that are not keyword-only."""
    left = [a for a in schema_of(op).arguments[len(args) :] if not a.kwarg_only]
    return [*args, *(kwargs.get(a.name, a.default_value) for a in left)]


def _overlaps(view: StorageView) -> bool:
    """Whether two elements of the view, or of one of its bases, share memory."""
    while view.parent is not None:
        if may_overlap(view.layout.val.shape, view.layout.val.stride):
            return True
        view = view.parent
    return False


def _key(value: Any) -> Any:
    kind = type(value)
    if kind is fx.Node:
        return value
    if kind is float:
        return (float, value.hex())  # 0.0 and -0.0 are equal but not the same
    if kind is int or kind is bool:
        return (kind, value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return value


def _vals(answer: Any) -> Any:
    """Returns the value of `node.meta["val"]` for an operator's result."""
    if type(answer) is Layout:
        return answer.val
    if isinstance(answer, (list, tuple)):
        return tuple(map(_vals, answer))
    return answer


def _metas(args: Any) -> Any:
    """Returns arguments with each node replaced by a trace tensor of its metadata."""
    if isinstance(args, fx.Node):
        return trace_like(args.meta["val"], requires_grad=False)
    if isinstance(args, dict):
        return {k: _metas(v) for k, v in args.items()}
    if isinstance(args, (list, tuple)):
        return type(args)(map(_metas, args))
    return args


def is_view_node(node: fx.Node) -> bool:
    """Whether the node's result in eager may share memory with its first argument."""
    return node.op == "call_function" and isinstance(node.target, OpOverload) and op_info(node.target).kind is Kind.VIEW


def _in_turn(info: OpInfo, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator on lists of tensors (`_foreach_add_`) writes memory that two of its items share."""
    if not isinstance(args[0] if args else None, (list, tuple)) or len(args[0]) < 2:
        return False
    written = [id(t.storage_view.storage) for t in argument(op, args, kwargs, info.written[0])]
    lists = [a for a in args if isinstance(a, (list, tuple)) and a and type(a[0]) is TraceTensor]
    if any(len(a) != len(written) for a in lists):
        return False
    list_of: dict[int, int] = {}
    shared = set(written)
    storages = ((i, id(t.storage_view.storage)) for a in lists for i, t in enumerate(a))
    return any(list_of.setdefault(storage, i) != i for i, storage in storages if storage in shared)
