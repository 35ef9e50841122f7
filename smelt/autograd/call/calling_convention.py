"""Wraps compiled forward and backward programs in a callable that behaves like the eager function.

The programs are functional and run below autograd and autocast. The callable adds: one `torch.autograd.Function`, which
saves tensors for backward; the writes of new values to inputs; the views of outputs that share memory; and the
conversion of gradients to the layout that was traced. The work of a call is decided once per graph: a call that needs
none of this only runs the program.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from smelt.abi.staged import Staged
from smelt.autograd.call.absent_tangents import Backward, GivenBackward, sum_of_gradients
from smelt.autograd.call.backward_notes import note_line
from smelt.autograd.call.batched import batched
from smelt.autograd.call.dispatch import called_plainly, excluding
from smelt.autograd.call.double_backward import DoubleBackward, Memory
from smelt.autograd.call.outputs import finisher
from smelt.autograd.call.replaced_memory import ReadTwice
from smelt.autograd.call.sized import wrap_reading, wrap_sized
from smelt.autograd.call.stages import Handover, chain_of
from smelt.autograd.call.unpacked import (
    copy_of,
    hold_memory,
    inputs_among,
    kinds_of,
    lay_out_replaced,
    packed_metas,
    same_kinds,
    unpacked,
)
from smelt.autograd.call.used_saved_tensors import used_saved_tensors
from smelt.autograd.trace.plan import Fresh, Joint, Mutation, SparseGradient, unreached
from smelt.autograd.trace.rng import Beginning, beginning, draws, from_beginning, generator_devices, seed, with_seeds
from smelt.base.errors import SmeltError
from smelt.base.torch_c import (
    below_autograd,
    disable_autocast,
    in_batches,
    recording,
    returns_gradient,
    saved_tensor_hooks,
)
from smelt.base.torch_private import address_of_storage, is_view, version_of
from smelt.graph.ir.meta import TensorMeta, is_lazy
from smelt.graph.nodes.absent_gradients import hooks_of, skip_absent, skip_absent_below
from smelt.graph.nodes.custom_functions import BackwardState
from smelt.graph.nodes.engine_nodes import nodes_below

Program = Callable[[list[torch.Tensor]], list[torch.Tensor]]
Compiled = Callable[..., tuple[Any, ...]]


def wrap(
    joint: Joint,
    compiled_forward: Program,
    compiled_backward: Program | None,
    double_backward: DoubleBackward | None = None,
) -> Compiled:
    """Returns the callable `(*inputs) -> tuple` of a compiled graph.

    Args:
        joint: the plan of the call.
        compiled_forward: primals (and seeds) -> program outputs, new values of written inputs, saved tensors.
        compiled_backward: saved tensors and tangents -> gradients; None when nothing is differentiable.
        double_backward: makes second derivatives.
    """
    if joint.num_found and not joint.reads:
        compiled_forward = _without_checks(compiled_forward, joint.num_found)
    if joint.reads:
        made = functools.partial(wrap, double_backward=double_backward)
        return wrap_reading(joint, compiled_forward, compiled_backward, made, _below_autograd)
    if joint.sizes or joint.numbers or joint.reals:
        return wrap_sized(
            joint, compiled_forward, compiled_backward, functools.partial(wrap, double_backward=double_backward)
        )
    forward = _with_seeds(joint, compiled_forward)
    if compiled_backward is None or not joint.differentiable:
        return _wrap_inference(joint, forward)
    return _wrap_training(joint, forward, compiled_backward, double_backward)


def _without_checks(program: Program, count: int) -> Program:
    """Returns the forward program without its last `count` results, which only come from checks."""

    def run(inputs: list[Any]) -> list[Any]:
        return program(inputs)[:-count]

    return run


def _with_seeds(joint: Joint, program: Program) -> Program:
    """Returns the forward program, wrapped to draw its seeds and to run outside of autocast regions."""
    if joint.seeds:
        program = _run_seeded(program, joint.seeds)
    return excluding(program, disable_autocast) if joint.autocast else program


def _below_autograd(joint: Joint, program: Program) -> Program:
    """Returns the forward program of `_with_seeds`, wrapped to run below autograd as well."""
    return excluding(_with_seeds(joint, program), below_autograd)


# -- without gradients ---------------------------------------------------------------------------------------------


def _wrap_inference(joint: Joint, forward: Program) -> Compiled:
    if joint.plain:
        return called_plainly(forward)
    finish, run = finisher(joint), excluding(forward, below_autograd)
    count = joint.num_outputs

    def call(*inputs: torch.Tensor) -> tuple[Any, ...]:
        results = run([*inputs])
        if joint.mutations:
            recording(False, _update, joint.mutations, inputs, results[count:])
        _touch(joint, inputs)
        return finish(inputs, results)

    return call


def _update(mutations: Sequence[Mutation], inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Write the new values to the mutated inputs. A program that has computed the new value in the input's memory
    returns the input itself."""
    written = []
    for mutation, value in zip(mutations, values, strict=False):
        tensor = inputs[mutation.input]
        counted = mutation.counted
        if value is not tensor:
            (tensor if counted or tensor.is_inference() else tensor.data).copy_(value)
            counted -= 1  # `copy_` has incremented the version once
        written += [tensor] * counted
    increment_version(written)  # one call for hundreds of writes; inference tensors have no version


def _touch(joint: Joint, inputs: Sequence[torch.Tensor]) -> None:
    if joint.touched:
        increment_version([inputs[i] for i in joint.touched])


def _run_seeded(program: Program, devices: Sequence[torch.device]) -> Program:
    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        inputs += map(seed, devices)
        return program(inputs)

    return run


# -- with gradients ------------------------------------------------------------------------------------------------


class _Plan:
    """The state of one compiled graph that all its calls share.

    Attributes:
        tangents: for each tangent of the graph, its position among the gradients that autograd passes, and its
            metadata.
        saving: the relation of saved tensors to the caller's memory; found at the first call.
        sparse: whether some gradients are sparse tensors.
        double_backward: computes second derivatives.
        why: the reason why second derivatives are unsupported, or None.
        memory: the form in which calls remember their inputs for second derivatives; found at the first call.
        draws: whether calls remember the state of their random numbers for second derivatives.
        generators: the devices whose generators' states calls remember, in addition to seeds.
        computed: positions of inputs that are not leaves; found at the first call.
        chain: the distribution of the gradients of a backward in stages over autograd nodes; None: the backward has one
            stage.
    """

    def __init__(
        self, joint: Joint, forward: Program, backward: Program, double_backward: DoubleBackward | None
    ) -> None:
        self.double_backward = double_backward
        self.why = "its gradients were not compiled for it" if double_backward is None else double_backward.refusal
        self.joint, self.backward = joint, backward
        self.forward = excluding(forward, below_autograd)
        self.num_outputs, self.num_forward = joint.num_outputs, joint.num_forward
        written = itertools.count(joint.num_outputs)  # only written inputs with gradients are outputs of the node
        self.tangents = tuple(
            (i if i < joint.num_outputs else next(written), joint.tangent_meta(i)) for i in joint.differentiable
        )
        self.detached = tuple(i for i in range(joint.num_outputs) if i not in joint.differentiable)
        self.with_grad = tuple(k for k, m in enumerate(joint.mutations) if m.grad)
        self.without_grad = tuple(k for k, m in enumerate(joint.mutations) if not m.grad)
        self.num_grads = joint.num_outputs + len(self.with_grad)
        self.saving: _Saving | None = None
        self.memory: Memory | None = None
        self.computed: list[int] = []
        self.draws = self.why is None and draws(joint)
        self.generators = generator_devices(joint) if self.draws else ()
        self.sparse = any(type(k) is SparseGradient for k in joint.gradients)
        self.chain = chain_of(joint, backward)
        self._absent: dict[tuple[int, ...], frozenset[int]] = {}
        self._wrapped: dict[Program, Program] = {}

    def wrapped(self, program: Program) -> Program:
        """Returns a backward program, wrapped to run below autograd and outside of autocast regions."""
        found = self._wrapped.get(program)
        if found is None:
            found = self._wrapped[program] = self.in_guards(program)
        return found

    def in_guards(self, program: Program) -> Program:
        """Returns a function, wrapped to run below autograd and outside of autocast regions, as backward
        programs do.
        """
        return excluding(program, below_autograd, disable_autocast)

    def run(self, saved: list[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        """Run the backward program on saved tensors and gradients."""
        return _gradients(self, saved, grads)

    def absent(self, grads: Sequence[torch.Tensor | None]) -> frozenset[int]:
        """Primals whose gradient is absent (None, as in eager, not zeros), because no used output depends on them."""
        unused = tuple(k for k, (position, _) in enumerate(self.tangents) if grads[position] is None)
        known = self._absent.get(unused)
        if known is None:
            known = self._absent[unused] = unreached(self.joint, unused)
        return known


class _Saving:
    """The relation of the tensors that calls save to memory that the caller can write to.

    Attributes:
        copied: positions of tensors that are saved as copies, for one of three reasons: the call writes to their
            memory; the program has cloned them, so that the caller may write to them although the graph has dropped the
            `clone()`; or they are inference tensors, which autograd cannot save.
        aliased: positions of inputs of which eager saves only views, so that its backward still reads the original
            memory after `x.data = y`. For these an alias is saved, which keeps that memory alive.
        own: (position, metadata for which the backward program was compiled) of the inputs that eager saves directly.
        kinds: `own` in a compact form, which each call compares (see `kinds_of`).
        twice: inputs that eager saves both directly and as views; their memory is saved in addition.
        results: positions of the call's results among the saved tensors; empty unless there are several tangents.
        watched_inputs, watched_outputs: positions of inputs and outputs that share memory with a saved view. They are
            saved as well, so that autograd checks their version counters in backward.
        count: the number of tensors that the backward program reads; further saved tensors come after them.
    """

    def __init__(self, plan: _Plan, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        outputs, saved = results[: plan.num_outputs], results[plan.num_forward :]
        written = {_memory(inputs[i]) for i in (*plan.joint.cloned, *(m.input for m in plan.joint.mutations))}
        self.copied = [k for k, s in enumerate(saved) if _memory(s) in written or s.is_inference()]
        self.aliased, self.own = inputs_among(saved, self.copied, inputs, plan.joint.saved_itself)
        self.kinds = kinds_of(saved, self.own)
        own = {id(t) for t in (*inputs, *outputs)}
        views = {_memory(s) for k, s in enumerate(saved) if id(s) not in own and k not in self.copied}
        self.watched_inputs = [i for i, t in enumerate(inputs) if _memory(t) in views]
        self.watched_outputs = [i for i, t in enumerate(outputs) if _memory(t) in views]
        self.count = len(saved)
        self.results = _results_among(
            [*saved, *self._watched(inputs, outputs)], outputs, self.copied, len(plan.tangents)
        )
        double_backward = plan.double_backward if plan.why is None else None
        self.twice = ReadTwice(inputs, saved, self.own, self.aliased, plan.joint.saved_both, double_backward)

    def additional(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors that are saved in addition, after those that the backward program reads."""
        found = self._watched(inputs, outputs)
        if self.twice.holds:  # `data` has no version check, as eager may not save these tensors
            found += [inputs[i].data for i in self.twice.all_retained(saved_tensor_hooks() is not None)]
        return found

    def _watched(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [inputs[i] for i in self.watched_inputs] + [outputs[i] for i in self.watched_outputs]

    def restore_layouts(self, saved: list[torch.Tensor], moved: bool, hooked: bool) -> bool:
        """Give the saved tensors the strides that the backward program reads, in place; returns False if eager's engine
        has to run instead.

        Args:
            moved: gradients need a history, and the memory of an input in `twice` was replaced.
            hooked: saved tensors went through hooks (`torch.autograd.graph.saved_tensors_hooks`).
        """
        other = not same_kinds(saved, self.kinds)
        if not (moved or other):
            return True
        if self.twice.with_history(moved) or (other and self.twice.needs_eager_engine(saved, hooked)):
            return False
        if other:
            lay_out_replaced(saved, self.own)
        return True

    def saved_themselves(self, saved: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Returns the saved tensors, with None for those of which a copy or an alias is saved."""
        others = {*self.copied, *self.aliased}
        return [None if k in others else s for k, s in enumerate(saved)]


def _results_among(
    saved: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], copied: Collection[int], tangents: int
) -> list[int]:
    """Returns the positions, among the saved tensors, of tensors that the call also returns; empty unless there are
    several tangents, of which some may be absent.
    """
    own = {id(each) for each in outputs} if tangents > 1 else ()
    return [k for k, tensor in enumerate(saved) if id(tensor) in own and k not in copied]


def _memory(tensor: torch.Tensor) -> int:
    """Returns the identity of the tensor's storage; for a tensor without elements, which shares no memory, its own
    identity.
    """
    return address_of_storage(tensor.untyped_storage()) if tensor.numel() else id(tensor)


_Call = tuple[_Plan, Sequence[torch.Tensor], list[torch.Tensor], Beginning | None, Handover | None]
"""A call whose forward program has run: the plan, the inputs, the program's results, the RNG state at its start, and
the state that the nodes of its stages share."""


def _computed(plan: _Plan, inputs: Sequence[torch.Tensor]) -> _Call:
    """Run the forward program without recording gradients.

    It runs before autograd creates a node with an edge for each parameter, so that the GPU does not wait for that.
    """
    begin = beginning(plan.joint, plan.generators) if plan.draws else None
    if begin is None or not begin.seeds:
        return plan, inputs, recording(False, plan.forward, [*inputs]), begin, None
    with with_seeds(begin):
        return plan, inputs, recording(False, plan.forward, [*inputs]), begin, None


def _begin_saving(plan: _Plan, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> _Saving:
    """Decide at the first call, for all later calls, which inputs are not leaves and how each value is saved."""
    plan.computed = [i for i, t in enumerate(inputs) if t.requires_grad and not t.is_leaf]
    plan.saving = _Saving(plan, inputs, results)
    return plan.saving


class _Compiled(torch.autograd.Function):
    """One call of a compiled graph, whose forward has run, as one node of the caller's autograd graph."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Save tensors and return the outputs. `edges` are the inputs (detached if gradients never reach them), then
        the tensor that leads to the next stage, if there is one."""
        plan, inputs, results, ctx.begin, ctx.handover = call
        saving = plan.saving
        if saving is None:
            saving = _begin_saving(plan, inputs, results)
        ctx.hooks = {i: hooks_of(inputs[i]) for i in plan.computed}
        saved = results[plan.num_forward :]
        if plan.why is None and plan.double_backward is not None:
            if plan.memory is None:
                plan.memory = Memory(
                    inputs, saving.saved_themselves(saved), plan.double_backward.needed, saving.twice.remembered
                )
            ctx.inputs = plan.memory.note(inputs)
            ctx.version = plan.memory.version(inputs)
            ctx.marks = plan.memory.marks(inputs)
        for k in saving.copied:
            saved[k] = copy_of(saved[k])
        hold_memory(saved, saving.aliased)
        outputs = results[: plan.num_outputs]
        mutations = plan.joint.mutations
        _update(
            [mutations[k] for k in plan.without_grad],
            inputs,
            [results[plan.num_outputs + k] for k in plan.without_grad],
        )
        _touch(plan.joint, inputs)
        saved += saving.additional(inputs, outputs)
        ctx.packed = packed_metas(saved)
        if saving.results:
            ctx.versions = [version_of(saved[k]) for k in saving.results]
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.plan = plan
        if plan.detached:
            ctx.mark_non_differentiable(*(outputs[i] for i in plan.detached))
        return (*outputs, *(results[plan.num_outputs + k] for k in plan.with_grad))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        handover: Handover | None = ctx.handover
        if handover is None:
            return _Compiled.gradients(ctx, *grads)
        handover.program = None  # left by an earlier backward that failed
        absent = frozenset(range(len(ctx.plan.joint.gradients)))
        if any(grad is not None for grad in grads):
            absent = ctx.plan.absent(grads)
        return handover.first(_Compiled.gradients(ctx, *grads), absent, ctx.hooks)

    @staticmethod
    def gradients(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients that `backward` returns; for a program in stages, those that are known after the first
        stage.
        """
        plan: _Plan = ctx.plan
        if all(grad is None for grad in grads):  # no result was used: another graph's backward passed None
            _skip_absent_inputs(ctx, range(len(plan.joint.gradients)))
            return (None,) * (1 + len(plan.joint.gradients))
        try:
            saved = [*ctx.saved_tensors]
        except RuntimeError as error:  # a saved tensor was written to: eager checks only the tensors of used results
            saved = _saved_for_used_results(ctx, plan, grads, error)
        if ctx.packed is not None:
            saved = unpacked(saved, ctx.packed)
        assert plan.saving is not None
        recorded = torch.is_grad_enabled()
        moved = recorded and plan.saving.twice.moved(saved)
        if not plan.saving.restore_layouts(saved, moved and ctx.begin is None, ctx.packed is not None):
            return _by_eager_engine(ctx, plan, saved, grads)
        absent = plan.absent(grads)
        _skip_absent_inputs(ctx, absent)
        changed = [state for state in plan.joint.states if not state.same()]
        if changed:
            return _in_changed_state(ctx, plan, saved, grads, changed)
        if recorded:
            return _recorded(ctx, plan, saved, grads, moved)
        if plan.memory is not None:
            ctx.inputs = plan.memory.release(ctx.inputs)
        ctx.maybe_clear_saved_tensors()  # unless retain_graph is set, `saved` has the last references from here on
        del saved[plan.saving.count :]
        if in_batches():
            return _by_input(ctx, batched(plan.run)(saved, grads), absent)
        return _by_input(ctx, _gradients(plan, saved, grads, ctx.handover), absent)


def _saved_for_used_results(
    ctx: Any, plan: _Plan, grads: Sequence[torch.Tensor | None], error: RuntimeError
) -> list[torch.Tensor]:
    """Returns the saved tensors, if no tensor that the gradients of the used results read was written to.

    Raises:
        RuntimeError: `error`, if such a tensor was written to, or if that cannot be decided.
    """
    backward, saving = plan.backward, plan.saving
    absent = tuple(position for position, (k, _) in enumerate(plan.tangents) if grads[k] is None)
    assert saving is not None
    if not absent or ctx.packed is not None or not isinstance(backward, (Backward, GivenBackward)):
        raise error
    read = backward.reads(absent, len(plan.tangents))
    if read is None:
        raise error
    return used_saved_tensors(
        ctx, read, saving.count, dict(zip(saving.results, ctx.versions if saving.results else (), strict=True)), error
    )


def _recorded(
    ctx: Any, plan: _Plan, saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None], moved: bool
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients that `backward` returns under `create_graph=True`. `moved`: whether the memory of an input
    in `_Saving.twice` was replaced.
    """
    outcome = _MOVED if moved else _by_double_backward(ctx, plan, saved, grads)
    if isinstance(outcome, tuple):
        return outcome
    assert plan.saving is not None
    anchor = torch.empty(0, device="cpu", requires_grad=True)
    counts = plan.saving.count, len(saved)
    found = _Gradients.apply(anchor, plan, outcome, counts, *saved, *grads, *_leaves_below(ctx))
    return _by_input(ctx, found, plan.absent(grads))


def _leaves_below(ctx: Any) -> list[torch.Tensor]:
    """Returns the leaves from which the inputs of a call were computed."""
    nodes = nodes_below(node for node, _ in ctx.next_functions)
    return [node.variable for node in nodes if getattr(node, "variable", None) is not None]


def _by_input(ctx: Any, found: Any, absent: frozenset[int]) -> tuple[torch.Tensor | None, ...]:
    plan = ctx.plan
    if plan.joint.layouts_returned and not in_batches():
        found = _in_layout_asked_for(ctx, found)
    if plan.sparse or absent:
        return (None, *(None if i in absent else _gradient(found, k) for i, k in enumerate(plan.joint.gradients)))
    return (None, *(None if k is None else found[k] for k in plan.joint.gradients))


def _in_layout_asked_for(ctx: Any, found: Any) -> list[torch.Tensor]:
    """Returns the gradients; those of leaves that `torch.autograd.grad` returns, instead of accumulating them, get the
    layout that the derivatives leave.
    """
    joint, made = ctx.plan.joint, [*found]
    for i, meta in joint.layouts_returned.items():
        node = ctx.next_functions[i][0]
        if node is not None and (not hasattr(node, "variable") or returns_gradient(node)):
            gradient = made[joint.gradients[i]]
            out = torch.empty_strided(meta.shape, meta.stride, dtype=gradient.dtype, device=gradient.device)
            made[joint.gradients[i]] = out.copy_(gradient)
    return made


def _skip_absent_inputs(ctx: Any, absent: Iterable[int]) -> None:
    """Make the engine skip the hooks and accumulation of inputs whose gradient is absent: it passes an undefined
    gradient to them, while in eager it would not reach them."""
    for i in absent:
        node = ctx.next_functions[i][0]
        if node is not None:
            skip_absent_below(node)
            if i in ctx.hooks:
                skip_absent(ctx.hooks[i]())
            elif not hasattr(node, "variable"):  # a leaf at the first call, but not at this one
                ctx.plan.computed.append(i)


def _gradients(
    plan: _Plan,
    saved: list[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    handover: Handover | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run the backward program. It empties `saved`, so that memory that it has read for the last time is freed for
    gradients.

    Args:
        handover: runs the later stages of a program that has several; None: the program has one.
    """
    program, tangents = plan.backward, plan.tangents
    absent = tuple(position for position, (k, _) in enumerate(tangents) if grads[k] is None)
    if absent and isinstance(program, (Backward, GivenBackward)):
        programs = program.without(absent, len(tangents))
        if len(programs) > 1:
            return _sum_of(programs, plan, saved, grads)
        ((absent, program),) = programs
        tangents = tuple(each for position, each in enumerate(tangents) if position not in absent)
    saved += [_tangent(grads[k], meta) for k, meta in tangents]
    if handover is not None and isinstance(program, Backward):
        ((_, program),) = program.without((), len(tangents))
    if handover is not None and isinstance(program, Staged):
        return tuple(handover.start(program, saved, plan.in_guards))  # type: ignore[arg-type]
    try:
        return tuple(plan.wrapped(program)(saved))
    except Exception as error:
        note_line(error)
        raise


def _sum_of(
    programs: Sequence[tuple[tuple[int, ...], Any]],
    plan: _Plan,
    saved: list[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor, ...]:
    results = []
    with below_autograd(), disable_autocast():  # the additions of gradients below run in these modes as well
        for absent, program in programs:
            dense_tangents = [_tangent(grads[k], meta) for i, (k, meta) in enumerate(plan.tangents) if i not in absent]
            results.append(program([*saved, *dense_tangents]))
        return tuple(sum_of_gradients(results))


def _gradient(found: Sequence[torch.Tensor], made: int | SparseGradient | None) -> torch.Tensor | None:
    """Returns one input's gradient, taken or assembled from the results `found` of the backward program."""
    match made:
        case None:
            return None
        case SparseGradient(first, second, size, but):
            indices, values = found[first], found[second]
            if but is not None:
                kept = indices[0] != but
                indices, values = indices[:, kept], values[kept]
            return torch.sparse_coo_tensor(indices, values, size, check_invariants=False)
        case position:
            return found[position]


def _tangent(grad: torch.Tensor | None, meta: TensorMeta) -> torch.Tensor:
    """Returns `grad` in the layout and dtype for which the backward program was traced; zeros if it is None."""
    if grad is None:
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device).zero_()
    if grad.layout is not torch.strided:
        grad = grad.to_dense()
    if grad.stride() != meta.stride or grad.dtype is not meta.dtype or is_lazy(grad):
        out = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
        return out.copy_(grad.detach())
    return grad


def _in_changed_state(
    ctx: Any,
    plan: _Plan,
    saved: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    changed: Sequence[BackwardState],
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients that `backward` returns if state that user-defined backward methods read has changed since
    compilation.
    """
    for state in changed:
        state.note_change()
    if not all(state.same_before() for state in changed):
        raise _state_changed(changed[0], "its forward reads it, too, and would have to be traced again as it was")
    with torch.enable_grad():
        found = _by_double_backward(ctx, plan, saved, grads, changed=True)
    if isinstance(found, str):
        raise _state_changed(changed[0], found)
    return found if torch.is_grad_enabled() else tuple(None if each is None else each.detach() for each in found)


def _state_changed(state: BackwardState, why: str) -> SmeltError:
    return SmeltError(
        f"the backward of {state.cls.__name__} reads what was changed since its forward ran",
        why=why,
        hint="keep what it needs in ctx; the next call of the compiled function runs this backward as eager does",
    )


_MOVED = "an input was given other memory (`x.data = y`) after the call"


def _by_double_backward(
    ctx: Any,
    plan: _Plan,
    saved: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    changed: bool = False,
) -> tuple[torch.Tensor | None, ...] | str:
    """Returns the gradients that `backward` returns, with an autograd history; or the reason why there are none."""
    double_backward, memory = plan.double_backward, plan.memory
    if double_backward is None or memory is None or plan.why is not None:
        return plan.why or ""
    if not double_backward.wanted:  # a user's function returns no gradients
        return (None,) * (1 + len(plan.joint.gradients))
    inputs = double_backward.inputs_of(memory.recall(ctx.inputs, saved))
    if inputs is None:
        return "an input that it begins from is gone: keep a reference to what the function is called with"
    if memory.version(inputs) != ctx.version:
        return "an input was written to after the call"
    assert plan.saving is not None
    hooked = ctx.packed is not None
    former = memory.with_former_memory(inputs, plan.saving.twice.former(saved, hooked), ctx.marks, hooked)
    if former is None:
        return _MOVED
    inputs = former

    def run(_: list[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        return tuple(
            double_backward(
                inputs, [_differentiable_tangent(gradients[k], meta) for k, meta in plan.tangents], bool(changed)
            ).values()
        )

    with from_beginning(ctx.begin):
        found = dict(zip(double_backward.wanted, (batched(run) if in_batches() else run)([], grads), strict=True))
    absent = plan.absent(grads)
    return (None, *(None if i in absent else found.get(i) for i in range(len(plan.joint.gradients))))


def _by_eager_engine(
    ctx: Any, plan: _Plan, saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients that `backward` returns if eager reads both an input's new memory (`x.data = y`) and values
    of its former memory.
    """
    double_backward, memory = plan.double_backward, plan.memory
    known = double_backward is not None and memory is not None and ctx.begin is None
    inputs = double_backward.inputs_of(memory.recall(ctx.inputs, saved)) if known else None  # type: ignore[union-attr]
    if inputs is not None and memory is not None and memory.version(inputs) != ctx.version:
        raise RuntimeError("smelt: the .data of an input was replaced after the call, and another one was written to")
    recorded, absent = torch.is_grad_enabled(), plan.absent(grads)
    with torch.enable_grad():
        tangents = [_differentiable_tangent(grads[k], meta) for k, meta in plan.tangents]
    assert plan.saving is not None

    def moved(among: Collection[int]) -> bool:
        assert inputs is not None and memory is not None
        return memory.moved(inputs, ctx.marks, ctx.packed is not None, among)

    found = plan.saving.twice.gradients(inputs, saved, tangents, moved, ctx.packed is not None)
    made = [None if i in absent else found.get(i) for i in range(len(plan.joint.gradients))]
    return (None, *(each if recorded or each is None else each.detach() for each in made))


def _differentiable_tangent(grad: torch.Tensor | None, meta: TensorMeta) -> torch.Tensor | None:
    """Returns `grad` in the traced layout and dtype, like `_tangent`, but with a history; None if it is None."""
    if grad is None:
        return None
    if grad.layout is not torch.strided:
        grad = grad.to_dense()
    if grad.stride() == meta.stride and grad.dtype is meta.dtype and not is_lazy(grad):
        return _tangent(grad, meta)
    out = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
    return out.copy_(grad)


class _Gradients(torch.autograd.Function):
    """The backward program under `create_graph=True` if second derivatives are unsupported: taking one raises an error
    with the reason.

    Its first argument requires grad, so that every second derivative reaches this node, although saved intermediate
    values have no history that leads back to the inputs. The leaves are its last arguments, so that a derivative by a
    leaf reaches it, too.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, plan: _Plan, why: str, counts: tuple[int, int], *tensors: torch.Tensor | None
    ) -> Any:
        """Run the backward program. `counts`: the numbers of tensors that it reads, and of all tensors that were
        saved."""
        ctx.why = why
        count, first = counts
        return _gradients(plan, [*tensors[:count]], tensors[first : first + plan.num_grads])  # type: ignore[list-item]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise SmeltError(
            "a second derivative through a compiled function",
            why=ctx.why,
            hint="take torch.autograd.grad inside the compiled function, or run this part in eager",
        )


def _wrap_training(
    joint: Joint, forward: Program, backward: Program, double_backward: DoubleBackward | None
) -> Compiled:
    """Returns the callable of a graph with gradients, even if the caller is currently in no_grad (guards make later
    calls the same).

    A frame that is resumed inside `with torch.no_grad()` may leave that block within the graph. Results that the graph
    computes without a history are marked as such individually.
    """
    plan = _Plan(joint, forward, backward, double_backward)
    finish = finisher(joint)
    plain = all(type(o) is Fresh and o.index == i for i, o in enumerate(joint.outputs)) and not joint.invalid_histories
    simple = plain and not plan.with_grad
    apply = _Compiled.apply if torch.is_grad_enabled() else functools.partial(recording, True, _Compiled.apply)
    run = (
        _with_edges(apply, plan)
        if joint.idle or plan.chain
        else lambda *inputs: apply(_computed(plan, inputs), *inputs)
    )
    if simple:
        return run
    written = [joint.mutations[k].input for k in plan.with_grad]
    more = [joint.mutations[k].input for k in plan.with_grad for _ in range(1, joint.mutations[k].counted)]

    def call(*inputs: torch.Tensor) -> tuple[Any, ...]:
        results = run(*inputs)
        recording(True, _overwrite_all, [inputs[i] for i in written], results[joint.num_outputs :])
        if more:
            increment_version([inputs[i] for i in more])
        return finish(inputs, results)

    return call


class _Overwritten(torch.autograd.Function):
    """Gives a written input the content and the history of `value`, whose own history includes the input's former
    one."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)  # increments the version counter
        ctx.set_materialize_grads(False)
        tensor.data.copy_(value)
        return tensor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[None, torch.Tensor | None]:
        return None, grad


def _overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if tensor.grad_fn is None or is_view(tensor):
        tensor.copy_(value)
    else:  # `copy_` would give zeros where the program gives no gradient
        _Overwritten.apply(tensor, value)


def _overwrite_all(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        _overwrite(tensor, value)


def _with_edges(apply: Callable[..., Any], plan: _Plan) -> Callable[..., Any]:
    """Returns a function that computes a call and applies the node to the inputs; inputs that gradients never reach, or
    whose gradients a later stage returns, are detached.
    """

    def run(*inputs: torch.Tensor) -> Any:
        call, edges = _computed(plan, inputs), [*inputs]
        for i in plan.joint.idle:
            edges[i] = edges[i].detach()
        if plan.chain is None:
            return apply(call, *edges)
        handover, more = plan.chain.begin(edges)
        return apply((*call[:-1], handover), *edges, *more)

    return run
