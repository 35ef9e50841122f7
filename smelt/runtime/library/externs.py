"""Operations that are not generated: `extern(name, params, inputs, outputs)` binds one to its best implementation.

The host program calls the result between generated segments: `k(*tensors)` returns fresh tensors and
`k.into(out, *tensors)` writes into a given one where `k.supports_out`. Modules that `smelt/runtime/__init__.py` imports
register implementations per operation in `EXTERNS`; if an operation has several, the first call times them on its
tensors (see `tune`). Programs run below autograd and autocast, so ATen calls dispatch directly to kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.base.errors import CompileError
from smelt.base.stats import count_named
from smelt.runtime.memory import empty_strided, trim
from smelt.runtime.refusals import is_refused_call, report_refusal
from smelt.runtime.tune import Clock, choose, remembered
from smelt.runtime.tuned import LIBRARY


@dataclass(frozen=True)
class Spec:
    """Shape and stride (both in elements) and dtype of one operand or result."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def channels_last(self) -> bool:
        """Whether images with several channels are in channels-last memory."""
        return self.stride[1] == 1 and self.shape[1] > 1

    @staticmethod
    def in_rows(shape: tuple[int, ...], dtype: torch.dtype) -> Spec:
        """Returns the spec of a contiguous tensor."""
        return Spec(shape, tuple(math.prod(shape[d + 1 :]) for d in range(len(shape))), dtype)

    @staticmethod
    def of_channels_last(shape: tuple[int, ...], dtype: torch.dtype) -> Spec:
        """Returns the spec of images in channels-last memory."""
        steps = (math.prod(shape[d + 1 :]) * shape[1] for d in range(2, len(shape)))
        return Spec(shape, (math.prod(shape[1:]), 1, *steps), dtype)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}:{list(self.stride)}"


@dataclass(frozen=True)
class Candidate:
    """One implementation: `call(*tensors)` returns new results; `into(out, *tensors)`, if any, writes the single result
    into `out`.
    """

    name: str
    call: Callable[..., Any]
    into: Callable[..., Any] | None = None
    certain: bool = False  # whether the candidate is known to be the best, without timing


Factory = Callable[[Mapping[str, Any], "list[Spec | None]", list[Spec]], list[Candidate]]
EXTERNS: dict[str, Factory] = {}
"""For each operation, the function that returns its candidates for given static parameters and operand metadata."""


ON_DEVICE: set[str] = set()
"""Names of the operations whose factories get the program's device, if known, as `params["device"]`."""


MEASURED: set[str] = set()
"""Names of the operations that have several candidates on a GPU if `params["measured"]` is set."""


def register(name: str, on_device: bool = False, measured: bool = False) -> Callable[[Factory], Factory]:
    """Enter a candidate factory in `EXTERNS`, and in `ON_DEVICE` and `MEASURED` if requested."""

    def enter(factory: Factory) -> Factory:
        EXTERNS[name] = factory
        if on_device:
            ON_DEVICE.add(name)
        if measured:
            MEASURED.add(name)
        return factory

    return enter


def spec_of(value: Any) -> Spec | None:
    """Convert None, a Spec, a tensor, a (shape, stride, dtype) tuple, or an object with shape, stride and dtype to a
    Spec (or None).
    """
    match value:
        case None | Spec():
            return value
        case torch.Tensor():
            return Spec(tuple(value.shape), value.stride(), value.dtype)
        case (shape, stride, dtype):
            named = getattr(torch, dtype) if isinstance(dtype, str) else dtype
            return Spec(tuple(shape), tuple(stride), named)
        case _:
            return Spec(tuple(value.shape), tuple(value.stride), value.dtype)


class ExternKernel:
    """An operation bound to static parameters and operand metadata.

    Attributes:
        call: `call(*tensors)` returns a tensor, or a tuple of several results, as a call of the kernel itself does.
        into: `into(out, *tensors)` writes the single result into `out`; raises TypeError unless `supports_out`.
        chosen: name of the implementation in use; None before the first call.
        reference: the fallback if a library refuses the call.
    """

    __slots__ = (
        "name", "candidates", "outputs", "operation", "call", "into", "chosen", "supports_out", "clock", "reference",
    )  # fmt: skip

    def __init__(
        self, name: str, candidates: list[Candidate], outputs: list[Spec], operation: str, clock: Clock | None = None
    ) -> None:
        self.name, self.candidates, self.outputs, self.operation = name, candidates, outputs, operation
        self.clock = clock
        self.reference: Candidate | None = None
        self.supports_out = len(outputs) == 1
        self.chosen: str | None = None
        self.call: Callable[..., Any] = self._first_call
        self.into: Callable[..., Any] = self._first_into if self.supports_out else self._no_into

    def __call__(self, *tensors: Any) -> Any:
        return self.call(*tensors)

    def __repr__(self) -> str:
        return f"<extern {self.name} {self.chosen or '|'.join(c.name for c in self.candidates)}>"

    def _first_call(self, *tensors: Any) -> Any:
        runs = {c.name: c.call for c in self.candidates}
        if self.clock is not None and len(runs) > 1 and self.clock.recording():
            # nothing can be timed during a recording
            return _conformed(self.candidates[0].call(*tensors), self.outputs)
        large = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in self.outputs) >= LIBRARY.released_bytes
        timed = {name: _given_back(run) for name, run in runs.items()} if large else runs
        self.chosen = self._decide("call", timed, tensors)
        if self.clock is not None:
            count_named("kernel_choices", {f"{self.name}: {self.chosen}": 1})
        call = runs[self.chosen]
        try:
            result = call(*tensors)
        except RuntimeError as error:
            call, result = self._otherwise(error, call, tensors)
        if _conforms(result, self.outputs):
            self.call = call
            return result
        self.call = _conforming(call, self.outputs)
        return _conformed(result, self.outputs)

    def choose_for(self, form: str, operands: list[Any], outputs: list[Any]) -> str:
        """Returns the fastest implementation for operands like these, timed at the first call of a form ("call",
        "into").
        """
        if form == "into":
            into = {c.name: c.into or _copied_into(c.call) for c in self.candidates}
            return self._decide(form, into, (outputs[0], *operands))
        return self._decide(form, {c.name: c.call for c in self.candidates}, tuple(operands))

    def _first_into(self, out: torch.Tensor, *tensors: Any) -> Any:
        runs = {c.name: c.into or _copied_into(c.call) for c in self.candidates}
        self.chosen = self._decide("into", runs, (out, *tensors))
        self.into = runs[self.chosen]
        try:
            return self.into(out, *tensors)
        except RuntimeError as error:
            chosen = next(c for c in self.candidates if c.name == self.chosen)
            call, result = self._otherwise(error, chosen.call, tensors)
            self.into = _copied_into(call)
            return out.copy_(result)

    def _otherwise(self, error: RuntimeError, call: Callable[..., Any], tensors: tuple[Any, ...]) -> Any:
        """Replace an implementation that has refused a call: first by the same one on contiguous operands, which some
        kernels require, then by the reference. Returns (the replacement, its results).

        Raises:
            RuntimeError: the given error, if it is about the operands' values or no replacement works.
        """
        replacements = [Candidate(f"{self.chosen} on copies", _on_copies(call)), self.reference]
        for candidate in replacements if self.reference is not None and is_refused_call(error) else ():
            if candidate is None:
                continue
            try:
                result = candidate.call(*tensors)
            except RuntimeError as other:
                if not is_refused_call(other):
                    raise
                continue
            self.chosen = candidate.name
            report_refusal(f"a call of {self.name}", error, f"{candidate.name} runs in its place")
            return candidate.call, result
        raise error

    def _decide(self, form: str, runs: dict[str, Callable[..., Any]], arguments: tuple[Any, ...]) -> str:
        if len(runs) == 1:
            return next(iter(runs))
        operation, family = f"{self.operation} {form}", f"{self.name} {self.outputs[0].dtype} {form}"
        known = remembered(operation, tuple(runs))
        bound = {name: _bound(run, arguments) for name, run in runs.items()}
        return known or choose(operation, bound, family, self.clock)

    def follow(self, other: ExternKernel) -> None:
        """Use, without timing, the implementation that the same operation uses at similar sizes."""
        if self.chosen is None and other.chosen is not None:
            self.candidates = [c for c in self.candidates if c.name == other.chosen] or self.candidates

    def _no_into(self, out: Any, *tensors: Any) -> Any:
        raise TypeError(f"extern {self.name} has {len(self.outputs)} results and cannot write into a given tensor")


def extern(
    name: str,
    params: Mapping[str, Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    only: str = "auto",
    device: torch.device | None = None,
    clock: Clock | None = None,
) -> ExternKernel:
    """Bind operation `name`.

    Args:
        name: a prim name in `EXTERNS`, or an ATen overload such as "aten.cumsum.default", whose `params` then contain
            `args` and `kwargs` with `Slot(i)` in the position of input i (see `fallback`).
        params: the static parameters by name (those of the prim, without its tensors).
        inputs: metadata of the tensors that calls will pass, None for an absent optional one.
        outputs: metadata of the results, which get exactly these strides.
        only: name of an implementation that is used if the operation has it (`options.gemm`).
        device: device of the program's tensors, for kernels that are built for it.
        clock: clock of a device on which candidates of operations in `MEASURED` are timed.

    Raises:
        CompileError: the operation does not exist.
    """
    specs, results = [spec_of(value) for value in inputs], [spec for value in outputs if (spec := spec_of(value))]
    clock = clock if name in MEASURED else None
    candidates = _factory(name)({**params, **_more(name, device, clock)}, specs, results)
    only = only if clock is None else "auto"
    forced = [c for c in candidates if c.name == only] or [c for c in candidates if c.certain]
    operation = f"{name} {_text(params)} {' '.join(map(str, specs))} -> {' '.join(map(str, results))}"
    if clock is not None:
        operation = f"{clock.name()} {operation}"
    return ExternKernel(name, forced or candidates, results, operation, clock)


def _factory(name: str) -> Factory:
    """Returns the function that makes the candidates of an operation."""
    factory = EXTERNS.get(name) or (EXTERNS["aten"] if name.count(".") == 2 else None)
    if factory is None:
        raise CompileError(f"no external kernel for {name!r}", hint=f"known: {', '.join(sorted(EXTERNS))}")
    return factory


def _more(name: str, device: torch.device | None, clock: Clock | None) -> dict[str, Any]:
    """Returns the arguments of a factory in addition to the operation's own parameters."""
    more: dict[str, Any] = {"measured": True} if clock is not None else {}
    if name not in EXTERNS:
        return more | {"overload": name, "device": device}
    return more | {"device": device} if name in ON_DEVICE else more


def _text(params: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value!r}" for key, value in sorted(params.items()))


def _bound(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: run(*arguments)


def _given_back(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `call` for timing, without its result, whose memory is released before the next candidate.

    Candidates use different allocators, which cannot share memory: the gradient of VGG-16's first linear layer would be
    in memory twice, 400 MiB above the program's peak.
    """

    def run(*tensors: Any) -> None:
        call(*tensors)
        trim()

    return run


def _on_copies(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*tensors: Any) -> Any:
        copies = (x.clone(memory_format=torch.contiguous_format) if isinstance(x, torch.Tensor) else x for x in tensors)
        return call(*copies)

    return run


def _copied_into(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda out, *tensors: out.copy_(call(*tensors))


def _conforms(result: Any, outputs: list[Spec]) -> bool:
    results = result if isinstance(result, (tuple, list)) else (result,)
    present = [tensor for tensor in results if isinstance(tensor, torch.Tensor)]
    return len(present) == len(outputs) and all(
        (tuple(tensor.shape), tensor.stride()) == (spec.shape, spec.stride) and not _is_lazy(tensor)
        for tensor, spec in zip(present, outputs, strict=True)
    )


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a lazy conjugate or negative view, as solvers return."""
    return tensor.is_conj() or tensor.is_neg()


def _conforming(call: Callable[..., Any], outputs: list[Spec]) -> Callable[..., Any]:
    return lambda *tensors: _conformed(call(*tensors), outputs)


def _conformed(result: Any, outputs: list[Spec]) -> Any:
    """Returns each result in the strides for which its consumers were compiled."""
    if not isinstance(result, (tuple, list)):
        return _laid_out(result, outputs[0])
    wanted = iter(outputs)
    return tuple(_laid_out(x, next(wanted)) if isinstance(x, torch.Tensor) else x for x in result)


def empty_as(spec: Spec, device: torch.device) -> torch.Tensor:
    """Returns an uninitialised tensor of a spec."""
    return empty_strided(spec.shape, spec.stride, spec.dtype, None if device.type == "cpu" else device)


def _laid_out(tensor: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Returns a tensor in these strides: itself, a view if only strides of dimensions of size 1 differ, or a copy.

    Strides of such dimensions address no element but are visible: to kernels that choose a memory format, to DDP's
    comparison of a gradient with its bucket, to the user.
    """
    strides = tensor.stride()
    if tensor.shape == spec.shape and not _is_lazy(tensor):
        if strides == spec.stride:
            return tensor
        if all(size == 1 or a == b for size, a, b in zip(spec.shape, strides, spec.stride, strict=True)):
            return tensor.as_strided(spec.shape, spec.stride, tensor.storage_offset())
    return empty_strided(spec.shape, spec.stride, spec.dtype, tensor.device).copy_(tensor)
