"""Results of a compiled program and the inputs of a call in; what the caller gets out.

Results that share memory, with an input or with each other, are made by the operators that made them in the program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from smelt.autograd.trace.plan import Constant, Derived, Fresh, Joint, OutputPlan, Repeated, SameInput, View
from smelt.base.errors import SmeltError
from smelt.base.torch_c import recording, uncounted
from smelt.graph.ir.storage_view import Step
from smelt.graph.nodes.invalid_history import with_invalid_history

aten = torch.ops.aten
_DETACH, _DTYPE = aten.detach.default, aten.view.dtype
Finish = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], tuple[Any, ...]]


def finisher(joint: Joint) -> Finish:
    """Makes user outputs from inputs and program outputs."""
    plans = joint.outputs

    def finish(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        if joint.invalid_histories:
            _spoil(joint, inputs, results)
        call = _Call(inputs, results)
        for plan in plans:
            call.outputs.append(call.output(plan))
        return tuple(call.outputs)

    return finish


def _spoil(joint: Joint, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Give results and written inputs autograd histories whose backward raises, as theirs does in eager."""
    tensors = [*results[: joint.num_outputs], *(inputs[m.input] for m in joint.mutations)]
    for i, (error, origins) in joint.invalid_histories.items():
        with_invalid_history(tensors[i], error, [inputs[k] for k in origins if inputs[k] is not tensors[i]])


class _FromFunction(torch.autograd.Function):
    """A tensor with the history of another one of the same values, as a `torch.autograd.Function` would return it."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, view: torch.Tensor, is_view: bool) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return view.view_as(view) if is_view else view.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        return grad, None, None


@functools.cache
def _called(name: str) -> Any:
    """The same under the name of the user's function, which autograd's errors mention."""
    return type(name, (_FromFunction,), {})


def _with_history(value: torch.Tensor, view: torch.Tensor, derived: Derived) -> torch.Tensor:
    if not value.requires_grad:
        return view
    return recording(True, _called(derived.name).apply, value, view, derived.is_view)


def _counted_before(tensor: torch.Tensor, of_input: bool, steps: Sequence[Step]) -> AbstractContextManager[Any]:
    """Keeps the version counter during a write to a view of an input: it has counted the program's writes already."""
    own = not of_input or tensor.is_inference() or any(step.data is not None for step in steps)
    return nullcontext() if own else uncounted(tensor)


class _Call:
    """The results of one call.

    Attributes:
        outputs: those made so far.
        written: tensors that got a history of their own: views of them share it.
        apart: what `.data` gave, by the step: views of it count writes with it.
        bases: what steps made that begin a history of their own (`detach()`, a view of another dtype), by the step:
            a later write to one of the views derived from it enters the history of all of them.
    """

    __slots__ = ("inputs", "results", "outputs", "written", "apart", "bases")

    def __init__(self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        self.inputs, self.results = inputs, results
        self.outputs: list[Any] = []
        self.written: dict[int, torch.Tensor] = {}
        self.apart: dict[int, torch.Tensor] = {}
        self.bases: dict[Step, torch.Tensor] = {}

    def output(self, plan: OutputPlan) -> Any:
        """One user output."""
        match plan:
            case Fresh(index):
                return self.results[index]
            case SameInput(i):
                return self.inputs[i]
            case View(of_input, index, steps, history, after, derived):
                base = self.inputs[index] if of_input else self.results[index]
                if derived is not None and history is not None:
                    return _with_history(self.results[history], self._replay(base, steps, base), derived)
                if history is None:
                    return self._another(self._replay(base, steps, base), steps)
                if history not in self.written:
                    self.written[history] = tensor = self._replay(base, steps, base)
                    with _counted_before(tensor, of_input, steps):
                        recording(True, tensor.copy_, self.results[history])
                return self._replay(self.written[history], after, base)
            case Repeated(output):
                return self.outputs[output]
            case Constant(value):
                return value
        raise SmeltError(f"unknown output plan {plan!r}")

    def _replay(self, tensor: torch.Tensor, steps: Sequence[Step], base: torch.Tensor) -> torch.Tensor:
        """The view of `tensor` that `steps` lead to, each taken in the grad mode of the traced program."""
        enabled = torch.is_grad_enabled()
        for step in steps:
            if step.grad != enabled:
                tensor = recording(step.grad, self._take, step, tensor, base)
            else:
                tensor = self._take(step, tensor, base)
        return tensor

    def _another(self, tensor: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
        """The tensor, or a detached one where it is an output already: after `set_` two tensors may be one view."""
        if steps and self.bases.get(steps[-1]) is tensor and any(tensor is each for each in self.outputs):
            return tensor.detach()
        return tensor

    def _take(self, step: Step, tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        if step.op is aten.as_strided.default:  # counted from the traced storage's first element
            size, stride, offset = step.args
            return tensor.as_strided(size, stride, offset + base.storage_offset() * base.itemsize // tensor.itemsize)
        if step.data is None and (step.op is _DETACH or step.op is _DTYPE):
            if step not in self.bases:
                self.bases[step] = step(tensor)
            return self.bases[step]
        made: torch.Tensor = step(tensor)
        if step.data is None:
            return made
        first = self.apart.setdefault(step.data, made)
        return made if first is made else first.as_strided(made.size(), made.stride(), made.storage_offset())
