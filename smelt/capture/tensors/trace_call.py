"""Runs torch callables on trace tensors, and turns errors of tracing into graph breaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from smelt.base.class_tables import isinstance
from smelt.base.errors import Unsupported
from smelt.base.torch_private import OpOverload
from smelt.base.warned import Warned, heard
from smelt.capture.core.breaks import Break, UserError, too_deep, wants_memory
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.python.effects import DeferredWarning
from smelt.capture.python.warning_locations import location_of_torchs
from smelt.capture.tensors.inference_tensors import InferenceTensors
from smelt.capture.tensors.reads import version
from smelt.graph.ir.schema import Kind, op_info
from smelt.graph.ir.storage_view import StorageView
from smelt.graph.meta_rules.eager_errors import is_refusal
from smelt.graph.meta_rules.infer import DataDependent
from smelt.graph.meta_rules.kernel_warnings import warnings_of
from smelt.graph.nodes.gradients import DERIVATIVES
from smelt.graph.nodes.range_checks import looks_at_values
from smelt.graph.trace.composite_rewrites import for_trace_tensors
from smelt.graph.trace.trace import TraceMode, TraceTensor


class ValuesNeededError(Exception):
    """A call of torch needs the values of a tensor.

    Attributes:
        given_warnings: the warnings that the call gave before the error.
    """

    def __init__(self, error: Unsupported) -> None:
        super().__init__(error.what)
        self.error = error
        self.given_warnings: list[Warned] = []

    def to_break(self) -> Break:
        """The break that ends the graph here."""
        return Break(self.error.what, self.error.why or "", self.error.hint or "")


class _Operators(TraceMode):
    """Runs every operator of a torch function on trace tensors.

    Attributes:
        drew: whether an operator draws random numbers.
        looked: whether an operator raises an error for some values.
        refused: the tensor arguments of an in-place operator that raised an error.
        given_warnings: the warnings that the operators would give.
    """

    drew = looked = False

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[TraceTensor] = []
        self.given_warnings: list[Warned] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        info = op_info(func)
        self.drew = self.drew or info.random
        self.looked = self.looked or looks_at_values(func)
        self.given_warnings += warnings_of(func, args, kwargs or {})
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except Exception:
            if info.kind is Kind.WRITE:
                _collect(args, self.refused)
                _collect(kwargs or {}, self.refused)
            raise


def _hide_trace_class(error: Exception) -> None:
    """Replace the trace tensor's class name in an error's text by "Tensor"."""
    if any(isinstance(each, str) and "TraceTensor" in each for each in error.args):
        error.args = tuple(
            each.replace("TraceTensor", "Tensor") if isinstance(each, str) else each for each in error.args
        )


class Runner:
    """Runs calls of torch on trace tensors, one at a time, without recording nodes."""

    def __init__(self, vm: Interpreter, inference: InferenceTensors) -> None:
        self.vm, self.inference = vm, inference
        self._operators = _Operators()

    @property
    def drew(self) -> bool:
        """Whether the last call drew random numbers."""
        return self._operators.drew

    @property
    def looked(self) -> bool:
        """Whether the last call raises an error for some values."""
        return self._operators.looked

    @property
    def refused(self) -> list[TraceTensor]:
        """The tensor arguments of the in-place operator that raised an error in the last call."""
        return self._operators.refused

    def run(self, target: object, args: Args, kwargs: Mapping[str, object]) -> Any:
        """The result of a call. Its warnings become warnings of the program.

        Raises:
            ValuesNeededError: it needs a tensor's values.
            Break: it cannot be traced.
            UserError: an error that it raises in eager as well.
        """
        given_warnings: list[Warned] = []
        self._operators.given_warnings = given_warnings
        sizes = self.vm.sizes.owner
        sizes.written.clear()
        try:
            with heard(given_warnings):
                out = self._run(target, args, kwargs)
        except UserError:
            sizes.pin_written()
            self.warn(given_warnings)
            raise
        except ValuesNeededError as needed:
            needed.given_warnings = given_warnings
            raise
        self.warn(given_warnings)
        return out

    def warn(self, given_warnings: list[Warned], known: int | None = None) -> None:
        """Repeat warnings for the program.

        Args:
            known: index in the deferred effects; warnings whose text a later effect already gives are skipped, because
                the call ran before in another form.
        """
        if given_warnings:
            self.vm.sizes.owner.pin_written()
        deferred = [] if known is None else self.vm.effects.deferred[known:]
        texts = {str(call.args[0]) for call in deferred if isinstance(call, DeferredWarning)}
        for each in () if self.vm.effects.graph_warns else given_warnings:
            if str(each.message) in texts:
                continue
            self.vm.effects.warn(location_of_torchs(self.vm, each), each.message, each.category, each.source)

    def _run(self, target: object, args: Args, kwargs: Mapping[str, object]) -> Any:
        try:
            # the mode is on for tensors that composite operators make internally as well
            with self._operators, self._recording():
                if self.inference.made and not self.vm.ambient.inference:
                    with self.inference.refusing_saves():
                        return for_trace_tensors(target, args, dict(kwargs))(*args, **kwargs)
                return for_trace_tensors(target, args, dict(kwargs))(*args, **kwargs)
        except Unsupported as error:
            if isinstance(error, DataDependent):
                raise ValuesNeededError(error) from None
            raise Break(error.what, error.why or "", error.hint or "") from None
        except NotImplementedError as error:
            if is_refusal(error):
                raise UserError(error) from None
            first = next(iter(str(error).splitlines()), "")
            raise Break(f"{name_of(target)} cannot be traced", first) from None
        except RecursionError:
            raise too_deep() from None
        except Exception as error:
            is_refusal(error)
            if wants_memory(error):  # tensors have memory in eager, so this is not an error of the program
                text = f"{name_of(target)} reads the memory of a tensor"
                raise ValuesNeededError(Unsupported(text, why="its values are not known yet")) from None
            _hide_trace_class(error)
            raise UserError(error) from None

    def _recording(self) -> AbstractContextManager[object]:
        """A context that switches gradients off in inference mode, even if the program has switched them on."""
        off = self.vm.ambient.inference and torch.is_grad_enabled()
        return torch.no_grad() if off else nullcontext()

    def attempt(self, target: object, args: Args, kwargs: Mapping[str, object]) -> tuple[object, list[TraceTensor]]:
        """Run a torch callable on trace tensors: (its result, the tensors that it wrote to).

        Raises:
            ValuesNeededError: it needs a tensor's values.
            Break: it cannot be traced.
            UserError: an error that it raises in eager as well.
        """
        found: list[TraceTensor] = []
        _collect(args, found)
        if kwargs:
            _collect(kwargs, found)
        if target in DERIVATIVES:  # the backward of a custom function may write to any tensor that it can reach
            reached = (*(tensor for _, tensor in self.vm.tensors.made_tensors()), *found)
            found = [*{id(tensor.storage_view.storage): tensor for tensor in reached}.values()]
        versions = [(version(t), t.requires_grad) for t in found]  # `detach_` changes only the history
        outs = _trace_tensors(kwargs["out"]) if "out" in kwargs else []
        before = [(t.storage_view, t.storage_view.storage.version) for t in outs]
        self._operators.drew, self._operators.looked, self._operators.refused = False, False, []
        out = self.run(target, args, kwargs)
        if outs:
            self._check_outs(name_of(target), outs, before, out)
        return out, [t for t, v in zip(found, versions, strict=True) if (version(t), t.requires_grad) != v]

    def _check_outs(
        self, name: str, outs: list[TraceTensor], before: list[tuple[StorageView, int]], result: object
    ) -> None:
        """Require that a call wrote to its `out=` in a way that a graph can repeat.

        Raises:
            Break: the call changed the shape of an input, returned other tensors, wrote by an operator that does not
                declare the write (`torch.kron`), or gave the tensor a history without a derivative, which compilation
                would need.
        """
        for tensor, (view, _) in zip(outs, before, strict=True):
            if tensor.storage_view is not view and id(tensor) in self.vm.sources:
                tensor.move_to(TraceTensor(view))
                raise Break(f"out= of {name} is an argument that gets another shape", _INPUTS)
        returned = _trace_tensors(result)
        same = len(returned) == len(outs) and all(a is b for a, b in zip(returned, outs, strict=True))
        written = any(
            view.storage.version != count or tensor.storage_view is not view and tensor.storage_view.storage.version
            for tensor, (view, count) in zip(outs, before, strict=True)
        )
        if not same or not written and any(tensor.numel() for tensor in outs):
            raise Break(f"out= of {name}", "it is unknown what it writes there")
        if any(type(tensor.grad_fn).__name__ == "NotImplemented" for tensor in outs):
            raise Break(f"out= of {name} with a gradient", "it has no derivative")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context that suspends the dispatch mode of the running call."""
        self._operators.__exit__(None, None, None)
        try:
            yield
        finally:
            self._operators.__enter__()


_INPUTS = "inputs of a graph keep their shape and storage"


def _trace_tensors(value: object) -> list[TraceTensor]:
    """The trace tensors in an `out=` argument or a result."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if type(one) is TraceTensor]


def name_of(target: object) -> str:
    """The name of a callable for messages."""
    return getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)


def _collect(value: Any, found: list[TraceTensor]) -> None:
    """Append the trace tensors in nested tuples, lists and dicts."""
    for item in value.values() if type(value) is dict or isinstance(value, dict) else value:
        kind = type(item)
        if kind is TraceTensor:
            found.append(item)
        elif kind is tuple or kind is list or kind is dict:
            _collect(item, found)
