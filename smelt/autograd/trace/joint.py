"""Torch-level graph in; one functional joint ATen graph (forward and backward) and the plan of its call out.

The graph runs once on trace tensors under PyTorch's own autograd engine, in the caller's grad and autocast state, while
a `GraphRecorder` records each operator. Effects that the caller must see beyond values are kept beside the graph as
plain data: written inputs, outputs that share memory with inputs or with each other, inputs that get gradients.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes

from smelt.autograd.trace.backward_errors import ErrorKey, error_key, errors_of_backward
from smelt.autograd.trace.functionalize import GraphRecorder, is_view_node
from smelt.autograd.trace.gradient_flow import GradientFlow
from smelt.autograd.trace.inputs import make_inputs
from smelt.autograd.trace.known_sizes import put_known_sizes
from smelt.autograd.trace.plan import (
    Constant,
    Derived,
    Fresh,
    InvalidHistory,
    Joint,
    Mutation,
    OutputPlan,
    Repeated,
    SameInput,
    SizeInput,
    SparseGradient,
    View,
)
from smelt.autograd.trace.reachability import comes_through_function, heads_of
from smelt.autograd.trace.reads import JointReads
from smelt.autograd.trace.recomputed import is_recomputed
from smelt.autograd.trace.rng import seeded_devices
from smelt.autograd.trace.saved import Reads, read_as_saved, results_as_saved, saved_views
from smelt.base.errors import Unsupported
from smelt.base.options import Options
from smelt.base.torch_c import disable_autocast, engine_in_this_thread, inference_mode, is_plain_view
from smelt.base.torch_private import forbidden, is_view, version_of, view_base
from smelt.base.warned import heard
from smelt.graph.ir.ancestry import ancestors
from smelt.graph.ir.gradient_marks import Flow
from smelt.graph.ir.meta import TensorMeta, accumulated, is_dense, overlaps, without_gaps
from smelt.graph.ir.module import GraphModule, remove_dead
from smelt.graph.ir.schema import is_collective
from smelt.graph.ir.seeds import seed_name
from smelt.graph.ir.symint import owner_of, to_torch
from smelt.graph.ir.user_line import user_line
from smelt.graph.meta_rules.layouts import as_before
from smelt.graph.nodes.attention import for_attention
from smelt.graph.nodes.casts import casting, present_casts, set_casts
from smelt.graph.nodes.custom_functions import Writers, WritingBackward, has_functions, states_of
from smelt.graph.nodes.gradients import DERIVATIVES
from smelt.graph.nodes.invalid_history import of_backward
from smelt.graph.nodes.range_checks import AFTER, check_node, checks_of_dead, runs_by_itself
from smelt.graph.trace.composite_rewrites import for_trace_tensors
from smelt.graph.trace.overlap import overlapping
from smelt.graph.trace.trace import Step, Storage, StorageView, TraceMode, TraceTensor, trace_like
from smelt.graph.trace.unbacked import reading
from smelt.graph.trace.value_check_forms import in_checked_form
from smelt.shapes.real import Real
from smelt.shapes.size import Size, Symbol, as_symbol, of_factor, same

aten = torch.ops.aten


# -- the trace -----------------------------------------------------------------------------------------------------


class _Total(torch.autograd.Function):
    """A scalar whose derivatives by `heads` are `tangents`.

    Passing the tangents to `torch.autograd.grad` as `grad_outputs` would import sympy (half a second of cold start).
    """

    @staticmethod
    def forward(ctx: Any, tangents: Sequence[TraceTensor], *heads: torch.Tensor) -> torch.Tensor:
        ctx.tangents = tangents
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[Any, ...]:
        return (None, *ctx.tangents)


class _BackwardFailed(Exception):
    """Raised when some result cannot be differentiated: the graph is retraced to find out which."""


class _SharedWrite(Exception):
    """Raised when a written input shares memory with another input: the graph is retraced with their overlap known."""


def trace_joint(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], options: Options) -> Joint:
    """Trace forward and backward of `gm` into one functional ATen graph.

    Args:
        gm: a torch-level graph; its placeholders are in the order of `example_inputs`.
        example_inputs: tensors for whose metadata, identity, overlap and `requires_grad` the graph is made.
        options: `eager_rng` decides whether random operators get a seed input.

    Raises:
        Unsupported: a functional graph cannot express an operator or an aliasing.
    """
    shared = checks_each_root = False
    eager_errors = frozenset[ErrorKey]()
    with _tracing_state():
        while True:
            try:
                return _Trace(gm, example_inputs, options, shared, checks_each_root, eager_errors).run()
            except _SharedWrite:
                shared = True
            except _BackwardFailed:
                checks_each_root = True
            except RuntimeError as error:
                eager_errors = frozenset() if checks_each_root else errors_of_backward(gm, example_inputs)
                if error_key(error) not in eager_errors:
                    raise
                checks_each_root = True


@contextmanager
def _tracing_state() -> Iterator[None]:
    """A context with the caller's grad and autocast state, restored afterwards; casts of weights are not cached between
    traces.
    """
    grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    casts = present_casts()
    torch.set_autocast_cache_enabled(False)
    collecting = gc.isenabled()
    gc.disable()  # a full collection walks the user's whole heap; it costs more than a trace and finds little
    try:
        with inference_mode(False), engine_in_this_thread():
            torch.set_grad_enabled(grad)
            yield
    finally:
        if collecting:
            gc.enable()
        torch.set_autocast_cache_enabled(cache)
        set_casts(casts)
        torch.set_grad_enabled(grad)


def _first_covering_inputs(inputs: Sequence[Any]) -> dict[Storage, int]:
    """Returns for each storage the first input that covers all of it."""
    found: dict[Storage, int] = {}
    for i, one in enumerate(inputs):
        if one.storage_view.parent is None:
            found.setdefault(one.storage_view.storage, i)
    return found


class _Trace:
    """The state of one trace."""

    def __init__(
        self,
        gm: fx.GraphModule,
        examples: Sequence[torch.Tensor],
        options: Options,
        shared: bool,
        checks_each_root: bool,
        eager_errors: frozenset[ErrorKey],
    ) -> None:
        self.gm, self.options, self.checks_each_root, self.eager_errors = gm, options, checks_each_root, eager_errors
        self.invalid_histories: dict[int, InvalidHistory] = {}
        self.reached: dict[int, int] = {}
        self.flow: Flow | None = None
        self.saved: set[Storage] = set()
        self.eager_saved_views: set[StorageView] = set()
        self.found: dict[int, TraceTensor] = {}
        self.late: dict[fx.Node, fx.Node] = {}
        self.rec = GraphRecorder(options.eager_rng)
        self.reads = self.rec.reads = JointReads(self.rec, owner_of(gm))
        values = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
        values += [None] * (len(examples) - len(values))
        self.numbers = {i: val for i, val in enumerate(values) if isinstance(val, (Size, Real))}
        metas = [m if isinstance(m, TensorMeta) and m.symbolic else None for m in values]
        self.sizes = _size_inputs(values)
        self.examples = examples = [e for i, e in enumerate(examples) if i not in self.numbers]
        metas = [m for i, m in enumerate(metas) if i not in self.numbers]
        self.inputs = make_inputs(self.rec, examples, shared, metas)
        self.versions_before = [version_of(one.seen) for one in self.inputs]
        # index of the first occurrence of each
        self.first = {id(one): i for i, one in reversed(list(enumerate(self.inputs)))}
        self.by_storage = _first_covering_inputs(self.inputs)
        self.shared = shared
        self.program: list[TraceTensor] = []

    def run(self) -> Joint:
        with TraceMode(self.rec), reading(self.reads), self.reads.checking():
            with heard(None):  # capture has already shown the warnings of these functions
                results = run_graph(self.gm, self.arguments(), self.rec)
            with _disable_current_modes():  # views are read here, and meta kernels run on them
                mutations = self.mutations()
                touched = self.touched(mutations)
                outputs = tuple(self.plan(results))
                values = [self.rec.value(t.storage_view) for t in self.program]
                values += [self.rec.value(self.inputs[m.input].storage_view) for m in mutations]
            self.note_saved(mutations)
            self.written = self.versions()
            seed = self.rec.placeholder("seeds", TensorMeta((), torch.int64, (), torch.device("cpu")))
            heads = self.heads(mutations) if has_functions(self.gm.graph) else []
            with Writers(heads, self.versions) as writers:
                differentiable, found = self.backward(mutations)
                mutations = self.without_gradients(mutations)
                if self.versions() != self.written:
                    raise WritingBackward(writers.classes)
            with _disable_current_modes():
                grads, positions = self.gradients(found)
                grads = self.with_dead_collectives(values, grads)
        return self.finish(outputs, mutations, touched, values, differentiable, grads, positions, seed)

    def arguments(self) -> list[Any]:
        """Returns the arguments with which the torch-level graph is run."""
        tensors = iter(self.inputs)
        count = len(self.inputs) + len(self.numbers)
        return [to_torch(self.numbers[i]) if i in self.numbers else next(tensors).seen for i in range(count)]

    # -- after the forward ------------------------------------------------------------------------------------------

    def versions(self) -> list[int]:
        """Returns the write counts of the tensors that the caller can reach: inputs and, once the forward is traced,
        results.
        """
        return [storage.version for storage in (*self.by_storage, *(out.storage_view.storage for out in self.program))]

    def mutations(self) -> tuple[Mutation, ...]:
        if self.rec.changed_constants():
            raise Unsupported("writing to a tensor that is no argument of the graph", hint="pass it as an argument")
        overlapped = functools.cache(lambda: {i for group in overlapping(self.examples) for i in group})
        found = []
        for i, one in enumerate(self.inputs):
            if one.seen.storage_view is not one.storage_view:
                raise Unsupported("changing the shape or the storage of an argument in place")
            if self.by_storage.get(one.storage_view.storage) != i or one.storage_view.storage.version == 0:
                continue
            if not self.shared and i in overlapped():
                raise _SharedWrite
            moved = one.seen.requires_grad and one.seen.grad_fn is not one.history
            if moved or self.rec.value(one.storage_view) is not one.node:
                found.append(Mutation(i, moved, self.counted(i)))
        return tuple(found)

    def counted(self, i: int) -> int:
        """Returns the number of writes to input `i` that its version counter has counted."""
        return version_of(self.inputs[i].seen) - self.versions_before[i]

    def touched(self, mutations: Sequence[Mutation]) -> tuple[int, ...]:
        written = {m.input for m in mutations if m.grad or m.counted}
        own = [i for i, one in enumerate(self.inputs) if self.first[id(one)] == i and one.counts]
        return tuple(i for i in own if i not in written for _ in range(self.counted(i)))

    def plan(self, results: Sequence[Any]) -> Iterator[OutputPlan]:
        """Yields the plan for each user output; fills `self.program` with the tensors that the program returns."""
        same = {id(one.seen): self.first[id(one)] for one in self.inputs}
        sharing: dict[Storage, dict[int, TraceTensor]] = {}
        for out in results:
            if isinstance(out, torch.Tensor):
                sharing.setdefault(self.traced(out).storage_view.storage, {})[id(self.traced(out))] = self.traced(out)
        seen: dict[int, int] = {}
        for i, out in enumerate(results):
            if not isinstance(out, torch.Tensor):
                yield Constant(out)
                continue
            out = self.traced(out)
            if id(out) in same:
                yield SameInput(same[id(out)])
            elif id(out) in seen:
                yield Repeated(seen[id(out)])
            else:
                seen[id(out)] = i
                yield self.plan_output(out, sharing[out.storage_view.storage].values())

    def traced(self, out: torch.Tensor) -> TraceTensor:
        return out if type(out) is TraceTensor else self.rec.constant(out)

    def plan_output(self, out: TraceTensor, sharing: Collection[TraceTensor]) -> OutputPlan:
        storage = out.storage_view.storage
        val = out.storage_view.layout.val
        owner = self.by_storage.get(storage)
        if owner is not None:
            return self.plan_view(out, self.inputs[owner].seen, owner)
        lazy = out.storage_view.conjugate or out.storage_view.negative
        seen = lazy or len(sharing) > 1 or storage.resized or not is_dense(val.shape, val.stride)
        if out.storage_view.parent is not None and seen:
            base = _base_of(out, sharing)
            if base is not out:
                return self.plan_view(out, base, None)
        self.note_forbidden(out)
        return Fresh(self.program_index(out))

    def note_forbidden(self, out: TraceTensor) -> bool:
        """Whether autograd forbids use of the result; if so, a backward that reaches it has to raise that error.

        This applies to a view whose memory was written after the view was taken: see `forbidden`.
        """
        text = forbidden(out)
        if text is None:
            return False
        leaves = {i: one.leaf for i, one in enumerate(self.inputs) if one.wants_gradient and self.first[id(one)] == i}
        origins = heads_of([base], leaves) if isinstance(base := view_base(out), torch.Tensor) else {}
        reached = tuple(k for k, found in origins.items() if found)
        self.invalid_histories[self.program_index(out)] = InvalidHistory(RuntimeError(text), reached)
        return True

    def plan_view(self, out: TraceTensor, base: TraceTensor, owner: int | None) -> OutputPlan:
        """Returns the plan of `out` as a view of input `owner`, or of a program output that is `base`."""
        steps = _path(out.storage_view, base.storage_view)
        after: tuple[Step, ...] = ()
        history = None
        derived = _derived(out, base, len(steps), self.note_forbidden(out))
        if derived is not None:
            return View(owner is not None, self.base_index(base, owner), steps, self.program_index(out), (), derived)
        if _has_history(out) and not _replay_has_history(base, steps):
            written = _written_for(out)
            if not (
                _leads_to(base.storage_view, written.storage_view) and _leads_to(written.storage_view, out.storage_view)
            ):
                why = "it shares memory, and its history comes from a tensor that no views lead to"
                raise Unsupported("a result with a history of its own", why=why, hint="return a clone() of it")
            steps, after = _path(written.storage_view, base.storage_view), _path(out.storage_view, written.storage_view)
            history = self.program_index(written)
        return View(owner is not None, self.base_index(base, owner), steps, history, after)

    def base_index(self, base: TraceTensor, owner: int | None) -> int:
        return self.program_index(base) if owner is None else owner

    def program_index(self, tensor: TraceTensor) -> int:
        for i, known in enumerate(self.program):
            if known is tensor or (known.storage_view is tensor.storage_view and known.storage_view.parent is None):
                if _has_history(tensor) and not _has_history(known):  # `known` was added as the base of a detached view
                    self.program[i] = tensor
                return i
        self.program.append(tensor)
        return len(self.program) - 1

    # -- backward ---------------------------------------------------------------------------------------------------

    def heads(self, mutations: Sequence[Mutation]) -> list[TraceTensor]:
        """Returns the results and written inputs that have an autograd history."""
        return list(filter(_has_history, (*self.program, *(self.inputs[m.input].seen for m in mutations))))

    def note_saved(self, mutations: Sequence[Mutation]) -> None:
        """Record which tensors eager's autograd graph saves."""
        for view in saved_views(self.heads(mutations)):
            self.saved.add(view.storage)
            self.eager_saved_views.add(view)

    def unsaved(self, values: Sequence[fx.Node]) -> tuple[frozenset[int], ...]:
        """Returns the tensors that eager's autograd graph does not save or saves directly, as three sets of positions.

        Returns:
            The primals that it does not save, except parameters, which only optimizers write to; the program outputs
            (of nodes `values`) that it does not save; the primals that it saves directly, so that its backward reads
            the replacement after `x.data = y`.
        """
        numbered = enumerate(zip(self.inputs, self.examples, strict=True))
        primals = (
            i for i, (one, e) in numbered if not (one.storage_view.storage in self.saved or isinstance(e, Parameter))
        )
        results = enumerate(zip(self.program, values, strict=False))
        outputs = (i for i, (out, value) in results if not self.is_saved(out, value))
        itself = (
            i
            for i, one in enumerate(self.inputs)
            if self.is_saved_itself(one.node, one.leaf.storage_view, one.storage_view)
        )
        return frozenset(primals), frozenset(outputs), frozenset(itself)

    def is_saved_itself(self, node: fx.Node, *views: StorageView) -> bool:
        """Whether eager saves this input directly, not only a view of it; a `checkpoint` call rereads its inputs."""
        return any("checkpoint" in user.meta for user in node.users) or not self.eager_saved_views.isdisjoint(views)

    def saved_views(self) -> dict[Storage, list[StorageView]]:
        """Returns the views of inputs that eager saves, without those that a `checkpoint` call recreates."""
        wholes = {view for one in self.inputs for view in (one.leaf.storage_view, one.storage_view)}
        views: dict[Storage, list[StorageView]] = {}
        for view in self.eager_saved_views - wholes:
            if view.storage in self.by_storage and not is_recomputed(view):
                views.setdefault(view.storage, []).append(view)
        return views

    def is_read_late(self, i: int) -> bool:
        """Whether the backward may read this input with the value that it has when the backward runs."""
        late = self.late.get(self.inputs[i].node)
        return late is None or bool(late.users)

    def cloned(self) -> frozenset[int]:
        """Returns the primals that the program copies: the backward must not read the primal in place of its copy."""
        numbered = enumerate(self.inputs)
        return frozenset(
            i for i, one in numbered if one.storage_view.storage in self.rec.cloned and one.node not in self.late
        )

    def saved_as_views(self) -> frozenset[int]:
        """Returns the primals of which eager saves a view."""
        views = self.saved_views()
        return frozenset(i for i, one in enumerate(self.inputs) if one.storage_view.storage in views)

    def read_inputs(self) -> Iterator[Reads]:
        """Yields the inputs that eager's backward reads, or from which it recomputes."""
        views = self.saved_views()
        for storage, i in self.by_storage.items():
            one = self.inputs[i]
            itself = self.is_saved_itself(one.node, one.leaf.storage_view, one.storage_view)
            if itself or storage in self.saved:
                yield Reads(one, self.examples[i], itself, views.get(storage, ()))

    def is_saved(self, out: TraceTensor, value: fx.Node) -> bool:
        """Whether eager saves this program output; values of a `checkpoint` call are recomputed instead."""
        return out.storage_view.storage in self.saved and "checkpoint" not in value.meta

    def leaves_wanted(self) -> list[int]:
        """Returns the positions of the inputs that require gradients, each object once."""
        return [i for i, one in enumerate(self.inputs) if one.wants_gradient and self.first[id(one)] == i]

    def with_history(self, mutations: Sequence[Mutation]) -> list[int]:
        """Returns the positions, among results and new values of inputs, of those from which a backward pass starts."""
        with_grad = [_has_history(t) for t in self.program] + [m.grad for m in mutations]
        return [i for i, yes in enumerate(with_grad) if yes]

    def separate_saved(self) -> None:
        """Make the backward pass read inputs and results as they were saved, whatever is written to them afterwards."""
        self.late = read_as_saved(self.rec, self.read_inputs())
        self.rec.recompute(self.late)
        results_as_saved(self.rec, self.program, self.saved, self.by_storage)
        self.written = self.versions()

    def tangent(self, i: int, head: TraceTensor) -> TraceTensor:
        """Returns the gradient that the caller gives for a result or for the new value of an input."""
        tangent = trace_like(without_gaps(head.storage_view.layout.val), requires_grad=False)
        self.rec.bind(tangent, self.rec.placeholder(f"tangents_{i}", tangent.storage_view.layout.val))
        return tangent

    def derivatives(
        self,
        tangents: Sequence[TraceTensor],
        heads: Sequence[TraceTensor],
        leaves: Sequence[TraceTensor],
        wanted: Sequence[int],
    ) -> Any:
        """Returns the gradients of the leaves that PyTorch's engine computes from the heads and their tangents.

        Raises:
            _BackwardFailed: an error of the backward pass; a second trace, which checks each root, finds the results
                that cause it.
        """
        total = _Total.apply(tangents, *heads)
        owner = self.reads.owner
        owner.small_is_usual = True
        try:
            return self.engine(total, leaves, wanted, heads)
        except Exception as error:
            if self.checks_each_root or of_backward(error) is None:
                raise
            raise _BackwardFailed from None
        finally:
            owner.small_is_usual = False

    def backward(self, mutations: Sequence[Mutation]) -> tuple[tuple[int, ...], dict[int, TraceTensor]]:
        """Returns the positions that have tangents, and the gradient of each input that gets one."""
        heads = [*self.program, *(self.inputs[m.input].seen for m in mutations)]
        wanted = self.leaves_wanted()
        roots = self.with_history(mutations)
        if not roots or not wanted:
            self.invalid_histories |= {i: InvalidHistory(None, ()) for i in roots}
            return (), {}
        tangents = [self.tangent(i, heads[i]) for i in roots]
        self.rec.backward, self.rec.origin = True, None
        if self.options.backend in ("smelt", "aot_eager"):
            self.separate_saved()
        # the graph may end under the caller's no_grad and still have enabled gradients in between
        with torch.enable_grad(), disable_autocast():
            leaves = [self.inputs[i].leaf for i in wanted]
            if self.checks_each_root:
                roots, tangents = self.without_invalid(heads, roots, tangents, dict(zip(wanted, leaves, strict=True)))
            if not roots:
                return (), {}
            grads = self.derivatives(tangents, [heads[i] for i in roots], leaves, wanted)
        self.found = found = {i: self.traced(g) for i, g in zip(wanted, grads, strict=True) if g is not None}
        return tuple(roots), found

    def engine(
        self, total: torch.Tensor, leaves: Sequence[torch.Tensor], keys: Sequence[int], heads: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of the leaves; with several results, marked for calls in which some tangents are
        absent.
        """
        if len(heads) == 1 and not self.checks_each_root:
            return torch.autograd.grad(total, leaves, allow_unused=True)
        flow = GradientFlow(self.rec, heads)
        with flow.marked():
            grads = torch.autograd.grad(total, leaves, allow_unused=True)
        self.flow = flow.flow
        self.reached = flow.reaching(dict(zip(keys, leaves, strict=True)))
        return grads

    def without_invalid(
        self,
        heads: Sequence[TraceTensor],
        roots: Sequence[int],
        tangents: Sequence[TraceTensor],
        leaves: Mapping[int, TraceTensor],
    ) -> tuple[list[int], list[TraceTensor]]:
        """Returns the roots that have gradients, with their tangents; errors that eager raises for the others are
        recorded.
        """
        kept = []
        flow = GradientFlow(self.rec, [heads[i] for i in roots])
        for i, tangent in zip(roots, tangents, strict=True):
            try:
                total = _Total.apply([tangent], heads[i])
                with flow.trying():
                    torch.autograd.grad(total, [*leaves.values()], retain_graph=True, allow_unused=True)
                kept.append((i, tangent))
            except Exception as error:
                eager_error = error if error_key(error) in self.eager_errors else of_backward(error)
                if eager_error is None:
                    raise
                error.__traceback__ = error.__context__ = None  # their tracebacks keep the frames of the trace alive
                origins = heads_of([heads[i]], leaves)
                self.invalid_histories[i] = InvalidHistory(
                    eager_error, tuple(k for k, found in origins.items() if found)
                )
        return [i for i, _ in kept], [tangent for _, tangent in kept]

    def without_gradients(self, mutations: Sequence[Mutation]) -> tuple[Mutation, ...]:
        """Returns the mutations; those with an invalid history carry no gradient, and the call sets that history
        afterwards.
        """
        numbered = enumerate(mutations, len(self.program))
        return tuple(dataclasses.replace(m, grad=m.grad and k not in self.invalid_histories) for k, m in numbered)

    def gradients(self, found: dict[int, TraceTensor]) -> tuple[list[fx.Node], dict[int, int | SparseGradient]]:
        """Returns the gradients that the graph returns, and for each input the form in which its gradient is assembled
        from them.
        """
        nodes: list[fx.Node] = []
        positions: dict[int, int | SparseGradient] = {}
        for i, gradient in found.items():
            rows, here = gradient.storage_view.rows, len(nodes)
            if rows is None:
                positions[i] = here
                nodes.append(self.rec.value(gradient.storage_view))
            else:
                positions[i] = SparseGradient(here, here + 1, tuple(gradient.shape), rows.but)
                nodes += [self.rec.value(rows.indices.storage_view), self.rec.value(rows.values.storage_view)]
        return nodes, positions

    def layout_of_gradient(self, i: int) -> TensorMeta:
        """Returns the gradient's memory layout: the one that the derivatives leave; for a leaf, the one that the engine
        accumulates.
        """
        own, found = self.inputs[i].leaf.storage_view.layout.val, self.found.get(i)
        if found is None:
            return own
        computed = found.storage_view.layout.val
        return accumulated(own, computed) if self.examples[i].is_leaf else computed

    def layouts_returned(self, positions: Mapping[int, int | SparseGradient]) -> dict[int, TensorMeta]:
        """Returns for each leaf the layout of its gradient if `torch.autograd.grad` returns it instead of accumulating
        it; only leaves for which the two layouts differ.
        """
        made = (i for i, k in positions.items() if isinstance(k, int) and i in self.found)
        computed = {i: without_gaps(self.found[i].storage_view.layout.val) for i in made}
        return {i: val for i, val in computed.items() if val.stride != without_gaps(self.layout_of_gradient(i)).stride}

    def idle(self, positions: Collection[int]) -> tuple[int, ...]:
        """Returns the inputs that require a gradient and get none. An input that is passed twice is listed at its first
        position.
        """
        inputs = [(i, self.first[id(one)]) for i, one in enumerate(self.inputs) if one.wants_gradient]
        return tuple(i for i, first in inputs if first not in positions)

    # -- the graph --------------------------------------------------------------------------------------------------

    def checks_of_dead(self, results: Sequence[fx.Node]) -> list[fx.Node]:
        """Returns the nodes that must run although their results are unused.

        These are the checks that eager makes in operators with unused results, collectives, in which other processes
        take part, and, if random operators use PyTorch's generators (`eager_rng`), all random operators: each advances
        the generator's state for later ones.
        """
        self.rec.backward = False
        required = [node for node in self.rec.graph.nodes if runs_by_itself(node) or self._draws_for_all(node)]
        required = [self.first_of(node) for node in _unused(required, results)]
        ranges = list(checks_of_dead(self.rec.graph, lambda: ancestors([*results, *required])))
        return [*required, *(check_node(self.rec._node, each) for each in ranges)]

    def with_dead_collectives(self, results: Sequence[fx.Node], grads: list[fx.Node]) -> list[fx.Node]:
        """Returns the gradients; the first one waits for the backward's collectives whose results are unused."""
        found = [n for n in self.rec.graph.nodes if n.meta.get("backward") and is_collective(n.target)]
        dead = _unused(found, [*results, *grads])
        if not dead or not grads:
            return grads
        self.rec.backward = True
        dead = [self.first_of(node) for node in dead]
        first = self.rec._node(AFTER, (grads[0], dead), {}, grads[0].meta["val"])
        return [first, *grads[1:]]

    def _draws_for_all(self, node: fx.Node) -> bool:
        return self.options.eager_rng and bool(node.meta.get("random")) and not node.meta.get("backward")

    def first_of(self, node: fx.Node) -> fx.Node:
        """Returns the node itself, or, if it has several results, the node of the first that is not None."""
        val = node.meta["val"]
        if not isinstance(val, (list, tuple)):
            return node
        return self.rec.item(node, next(i for i, each in enumerate(val) if each is not None))

    def metas_of_gradients(self, grads: Sequence[fx.Node], positions: Mapping[int, int | SparseGradient]) -> list[Any]:
        """Returns the metadata of each gradient, in the layout that its input asks for, if any."""
        by_position = {k: self.layout_of_gradient(i) for i, k in positions.items() if isinstance(k, int)}
        return [by_position.get(k) or node.meta["val"] for k, node in enumerate(grads)]

    def names_of_numbers(self) -> dict[int, str]:
        """Returns, for each input that is a number, by position: the symbol of a floating-point one, "" for a size."""
        return {i: val.name if isinstance(val, Real) else "" for i, val in self.numbers.items()}

    def finish(
        self,
        outputs: tuple[OutputPlan, ...],
        mutations: tuple[Mutation, ...],
        touched: tuple[int, ...],
        values: list[fx.Node],
        differentiable: tuple[int, ...],
        grads: list[fx.Node],
        positions: dict[int, int | SparseGradient],
        seed: fx.Node,
    ) -> Joint:
        rec, graph = self.rec, self.rec.graph
        own = [True] * len(self.program) + [m.grad for m in mutations]
        unsaved, unsaved_outputs, saved_itself = self.unsaved(values)
        values = _own_memory(rec, values, own, {self.inputs[m.input].node for m in mutations})
        kept = [_kept(t.storage_view.layout.val) for t in self.program]
        metas = [self.inputs[m.input].storage_view.layout.val for m in mutations]
        metas += self.metas_of_gradients(grads, positions)
        found = [*self.reads.nodes.values(), *self.reads.checks]
        found += self.checks_of_dead([*values, *grads, *found])
        output = graph.output((*values, *grads, *found))
        output.meta["val"] = (*kept, *map(without_gaps, metas), *(node.meta["val"] for node in found))
        remove_dead(graph, random=not self.options.eager_rng)  # eager draws unused random numbers as well
        saved_itself = frozenset(filter(self.is_read_late, saved_itself))
        seeds = self.seeds(seed)
        _erase_tangents(graph, {f"tangents_{i}" for i in differentiable})
        for each in self.sizes:
            rec.placeholder(each.symbol.name, of_factor(each.symbol))  # type: ignore[arg-type]
        reals = [real for real, _ in rec.reals.values()]
        _placeholders_first(graph, [node for _, node in rec.reals.values()])
        if self.sizes or self.reads.nodes:
            put_known_sizes(graph)
        return Joint(
            module=GraphModule(rec.root, graph),
            num_primals=len(self.inputs) + len(reals),
            num_outputs=len(self.program),
            mutations=mutations,
            touched=touched,
            outputs=outputs,
            differentiable=differentiable,
            gradients=tuple(positions.get(i) for i in range(len(self.inputs) + len(reals))),
            layouts_returned=self.layouts_returned(positions),
            idle=self.idle(positions) if positions else (),
            seeds=seeds,
            autocast=casting(),
            cloned=self.cloned(),
            unsaved=unsaved,
            unsaved_outputs=unsaved_outputs,
            saved_itself=saved_itself,
            saved_both=saved_itself & self.saved_as_views(),
            sizes=self.sizes,
            invalid_histories=self.invalid_histories,
            reached=self.reached,
            flow=self.flow,
            numbers=self.names_of_numbers(),
            reals=tuple(reals),
            reads=tuple(self.reads.nodes),
            num_found=len(found),
            states=states_of(self.gm.graph),
        )

    def seeds(self, placeholder: fx.Node) -> tuple[torch.device, ...]:
        """Returns the devices that draw from seeds; each gets a seed input, inserted before `placeholder`."""
        graph = self.rec.graph
        following = placeholder.next
        graph.erase_node(placeholder)
        devices = () if self.options.eager_rng else seeded_devices(graph)
        for k, device in enumerate(devices):
            with graph.inserting_before(following):
                self.rec.placeholder(seed_name(k), TensorMeta((), torch.int64, (), device))
        return devices


def _unused(nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns the last of the nodes on which neither the results depend nor others of the nodes."""
    used = ancestors(results) if nodes else set()
    last: list[fx.Node] = []
    for node in reversed(nodes):
        if node not in used:
            last.insert(0, node)
            used |= ancestors([node])
    return last


def _size_inputs(values: Sequence[Any]) -> tuple[SizeInput, ...]:
    """Returns each symbol of the inputs' metadata, with the first input dimension that is the symbol itself."""
    found: dict[Symbol, SizeInput] = {}
    for i, val in enumerate(values):
        sizes = enumerate(val.shape) if isinstance(val, TensorMeta) else [(None, val)] if isinstance(val, Size) else ()
        for dim, size in sizes:
            symbol = as_symbol(size)
            if symbol is not None:
                found.setdefault(symbol, SizeInput(symbol, i, dim))
    return tuple(found.values())


def run_graph(gm: fx.GraphModule, inputs: Sequence[Any], rec: GraphRecorder | None = None) -> list[Any]:
    """Run a torch-level graph node by node; returns its flat outputs. Sets in `rec` which node is running."""
    env: dict[fx.Node, Any] = {}
    remaining, derivatives = iter(inputs), itertools.count()
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(remaining)
            continue
        args = fx.node.map_arg(node.args, env.__getitem__)
        if node.op == "output":
            if rec is not None:
                rec.derivative = None
            (result,) = args
            return list(result) if isinstance(result, (list, tuple)) else [result]
        if rec is not None:
            rec.origin, rec.line = node.name, user_line(node)
            rec.checkpoint = node.meta.get("checkpoint")
            rec.lines.begin(rec.origin, rec.line, rec.checkpoint)
            rec.derivative = next(derivatives) if node.target in DERIVATIVES else None
            if rec.reads is not None:
                rec.reads.running = node.meta.get("origin")
        env[node] = _run_node(gm, node, args, fx.node.map_arg(node.kwargs, env.__getitem__))
    return []


def _run_node(gm: fx.GraphModule, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target: Any = node.target
    match node.op:
        case "call_function":
            return for_trace_tensors(for_attention(target), args, kwargs)(*args, **kwargs)
        case "call_method":
            form = in_checked_form(target, args, kwargs)
            return getattr(args[0], target)(*args[1:], **kwargs) if form is None else form(*args, **kwargs)
        case "call_module":
            return gm.get_submodule(target)(*args, **kwargs)
        case "get_attr":
            value: Any = gm
            for name in target.split("."):
                value = getattr(value, name)
            return value
        case other:
            raise Unsupported(f"a graph node of kind {other!r}")


def _has_history(tensor: torch.Tensor) -> bool:
    """Whether gradients flow into the tensor. A view taken under no_grad has its base's `requires_grad`."""
    try:
        return tensor.grad_fn is not None or (tensor.requires_grad and not is_view(tensor))
    except RuntimeError:  # its base was written in another mode: autograd forbids any use of the view
        return False


def _replay_has_history(base: TraceTensor, steps: Sequence[Step]) -> bool:
    """Whether gradients flow into the tensor that `steps` make from `base`."""
    return _has_history(base) and steps[-1].grad and not any(s.op is aten.detach.default for s in steps)


def _derived(out: TraceTensor, base: TraceTensor, steps: int, forbidden: bool) -> Derived | None:
    """Returns the name of the `torch.autograd.Function` that recorded the history of `out`, and the kind of its result;
    None if no such function did.
    """
    if forbidden:  # reading its history raises
        return Derived("Function", True)
    if not (_has_history(out) and comes_through_function(out, base, steps)):
        return None
    node: Any = out.grad_fn
    return Derived(node.name().removesuffix("Backward"), is_view(out))


def _written_for(out: TraceTensor) -> TraceTensor:
    """Returns the tensor that was written so that `out` has a history: itself, or its base if autograd forbids writes
    to it.

    Autograd forbids writes to views that were taken under no_grad, or are one of several results.
    """
    base = view_base(out)
    return base if type(base) is TraceTensor and not is_plain_view(out) else out


def _path(view: StorageView, start: StorageView) -> tuple[Step, ...]:
    """Returns the view steps from a view to a view of it."""
    steps: list[Step] = []
    while view is not start and view.parent is not None:
        assert view.step is not None
        steps.append(view.step)
        view = view.parent
    return tuple(reversed(steps))


def _leads_to(start: StorageView, view: StorageView | None) -> bool:
    while view is not None and view is not start:
        view = view.parent
    return view is start


def _base_of(out: TraceTensor, sharing: Collection[TraceTensor]) -> TraceTensor:
    """Returns the tensor that covers the memory of `out` and of all outputs that share it.

    If its shape was changed in place, view steps lead from the storage's root to it, and from it to the others.
    """
    root = out.storage_view.storage.root
    assert root is not None
    count = root.layout.val.numel
    for each in sharing:
        moved = each if view_base(each) is None else view_base(each)
        if type(moved) is TraceTensor and all(_leads_to(moved.storage_view, other.storage_view) for other in sharing):
            val = moved.storage_view.layout.val
            stores_values = not (
                moved.storage_view.conjugate or moved.storage_view.negative
            )  # a base is made from the memory, which must contain its values
            if (
                stores_values
                and moved.storage_view is not root
                and is_dense(val.shape, val.stride)
                and same(val.numel, count)
            ):
                return moved
    base = view_base(out)
    return base if type(base) is TraceTensor and base.storage_view is root else TraceTensor(root)


def _kept(val: TensorMeta) -> TensorMeta:
    """Returns the layout in which the program returns a result: without gaps if elements overlap, else unchanged."""
    return without_gaps(val) if overlaps(val.shape, val.stride) else val


def _own_memory(
    rec: GraphRecorder, values: Sequence[fx.Node], own: Sequence[bool], written: set[fx.Node]
) -> list[fx.Node]:
    """Returns the forward results, copied if the caller could observe that two of them share memory.

    Results that become the caller's tensors (`own`) share no memory with an input, a constant or each other. The others
    are new values of inputs: they are only read, to be copied into the input, and must not be in the memory of an input
    that may be overwritten before that.
    """
    taken: set[fx.Node] = set()
    out = []
    for node, alone in zip(values, own, strict=True):
        memory, *views = _from_memory(node)
        if alone and memory in taken:
            node = _seen_through(rec, views, memory, _clone(rec, memory))  # the whole memory: keeps storage offsets
        elif memory.op != "call_function" if alone else memory in taken or memory in written:
            node = _clone(rec, node)
        elif alone:
            taken.add(memory)
        out.append(node)
    return out


def _from_memory(node: fx.Node) -> list[fx.Node]:
    """Returns the value of whose memory a node is a view, and the view nodes that lead from it to the node."""
    path = [node]
    while is_view_node(path[-1]) or _is_item_of_view(path[-1]):
        path.append(path[-1].all_input_nodes[0])
    return path[::-1]


def _clone(rec: GraphRecorder, node: fx.Node) -> fx.Node:
    copy = rec.graph.call_function(aten.clone.default, (node,))
    copy.meta["val"] = as_before(node.meta["val"]).val
    return copy


def _seen_through(rec: GraphRecorder, views: Sequence[fx.Node], memory: fx.Node, other: fx.Node) -> fx.Node:
    """Returns the value of `views`, which are taken from `memory`, when taken from `other` instead."""
    made = {memory: other}
    for view in views:
        made[view] = other = rec.graph.node_copy(view, lambda n: made.get(n, n))
    return other


def _is_item_of_view(node: fx.Node) -> bool:
    return node.target is operator.getitem and is_view_node(node.all_input_nodes[0])


def _erase_tangents(graph: fx.Graph, taken: Collection[str]) -> None:
    """Remove the placeholders of unused tangents."""
    for node in [n for n in graph.nodes if n.op == "placeholder" and n.name.startswith("tangents_")]:
        if node.name not in taken:
            graph.erase_node(node)


def _placeholders_first(graph: fx.Graph, numbers: Sequence[fx.Node]) -> None:
    """Move all inputs to the top, `numbers` after the primals: tangents are created only after the forward."""
    inputs = [n for n in graph.nodes if n.op == "placeholder" and n not in numbers]
    position = sum(n.name.startswith("primals_") for n in inputs)
    inputs[position:position] = numbers
    first = next((n for n in graph.nodes if n.op != "placeholder"), None)
    for node in inputs:
        if first is not None:
            first.prepend(node)
