"""Makes the outputs that the caller gets from the results of a compiled program and the inputs of the call.

Outputs that share memory with an input or with each other are made by the view operators that the program uses for
them.
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
    """Returns the function that makes user outputs from the inputs and the program outputs of a call."""
    plans = joint.outputs

    def finish(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        if joint.invalid_histories:
            _invalidate_histories(joint, inputs, results)
        call = _Call(inputs, results)
        for plan in plans:
            call.outputs.append(call.output(plan))
        return tuple(call.outputs)

    return finish


def _invalidate_histories(joint: Joint, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Give results and written inputs whose history is invalid in eager an autograd history whose backward raises the
    same error."""
    tensors = [*results[: joint.num_outputs], *(inputs[m.input] for m in joint.mutations)]
    for i, (error, origins) in joint.invalid_histories.items():
        with_invalid_history(tensors[i], error, [inputs[k] for k in origins if inputs[k] is not tensors[i]])


class _FromFunction(torch.autograd.Function):
    """Gives `view` the history of `value`, a tensor with the same elements, as if a `torch.autograd.Function` had
    returned it."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, view: torch.Tensor, is_view: bool) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return view.view_as(view) if is_view else view.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        return grad, None, None


@functools.cache
def _from_function_named(name: str) -> Any:
    """`_FromFunction` under the name of the user's function, which autograd's error messages mention."""
    return type(name, (_FromFunction,), {})


def _with_history(value: torch.Tensor, view: torch.Tensor, derived: Derived) -> torch.Tensor:
    if not value.requires_grad:
        return view
    return recording(True, _from_function_named(derived.name).apply, value, view, derived.is_view)


def _counted_already(tensor: torch.Tensor, of_input: bool, steps: Sequence[Step]) -> AbstractContextManager[Any]:
    """Returns a context in which a write to a view of an input does not change the version counter, which already
    includes the program's writes.
    """
    own = not of_input or tensor.is_inference() or any(step.data is not None for step in steps)
    return nullcontext() if own else uncounted(tensor)


class _Call:
    """The user outputs of one call, while they are made.

    Attributes:
        outputs: the outputs that have been made so far.
        written: tensors that got a history other than their base's, which their views share.
        apart: for each `.data` step, the tensor that it returned; views of that tensor share its version counter.
        bases: for each step that begins a new history (`detach()`, a view of another dtype), the tensor that it made; a
            later write to one of the views of that tensor enters the history of all of them.
    """

    __slots__ = ("inputs", "results", "outputs", "written", "apart", "bases")

    def __init__(self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        self.inputs, self.results = inputs, results
        self.outputs: list[Any] = []
        self.written: dict[int, torch.Tensor] = {}
        self.apart: dict[int, torch.Tensor] = {}
        self.bases: dict[Step, torch.Tensor] = {}

    def output(self, plan: OutputPlan) -> Any:
        """Make one user output."""
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
                    with _counted_already(tensor, of_input, steps):
                        recording(True, tensor.copy_, self.results[history])
                return self._replay(self.written[history], after, base)
            case Repeated(output):
                return self.outputs[output]
            case Constant(value):
                return value
        raise SmeltError(f"unknown output plan {plan!r}")

    def _replay(self, tensor: torch.Tensor, steps: Sequence[Step], base: torch.Tensor) -> torch.Tensor:
        """Returns the view that `steps` take of `tensor`, each step in the grad mode of the traced program."""
        enabled = torch.is_grad_enabled()
        for step in steps:
            if step.grad != enabled:
                tensor = recording(step.grad, self._take, step, tensor, base)
            else:
                tensor = self._take(step, tensor, base)
        return tensor

    def _another(self, tensor: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
        """Returns the tensor, or a detached alias if it is already an output: after `set_`, two outputs may be equal
        views.
        """
        if steps and self.bases.get(steps[-1]) is tensor and any(tensor is each for each in self.outputs):
            return tensor.detach()
        return tensor

    def _take(self, step: Step, tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        if step.op is aten.as_strided.default:  # its offset is relative to the start of the traced storage
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
