"""Makes programs from generated source text: builds kernels, binds external kernels, executes the host program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from smelt.abi.arena import place_buffers
from smelt.abi.rendered import Rendered
from smelt.abi.staged import Staged
from smelt.base.imports import late
from smelt.base.malloc import release_freed
from smelt.base.options import Options
from smelt.prims.table import PRIMS
from smelt.runtime.build import Library, build, flags_for
from smelt.runtime.host_code import host_code
from smelt.runtime.launch import launch, launch_short
from smelt.runtime.library.externs import EXTERNS, Candidate, ExternKernel, extern, spec_of
from smelt.runtime.library.fallback import Slot
from smelt.runtime.library.nonzero import nonzero
from smelt.runtime.memory import fresh
from smelt.runtime.observed import Noted, observe
from smelt.runtime.sizes import Sized, Version
from smelt.runtime.tune import Clock
from smelt.runtime.watched_memory import Watch
from smelt.runtime.workspace import Workspaces

if TYPE_CHECKING:
    from smelt.runtime.cuda.clock import DeviceClock
    from smelt.runtime.triton.kernels import Kernels
else:  # programs of the CPU need neither
    DeviceClock = late("smelt.runtime.cuda.clock", "DeviceClock")
    Kernels = late("smelt.runtime.triton.kernels", "Kernels")

Program = Callable[[list[Any]], list[Any]]
"""A function from a list of inputs to a list of results. It may clear the list of inputs, so that memory that it no
longer needs is freed. Results have the strides that the graph records. If the graph has symbolic sizes, its last inputs
are the values of its symbols.
"""


class Bound(NamedTuple):
    """An external kernel and the descriptions of its operands."""

    kernel: ExternKernel
    inputs: list[Any]


def load(
    rendered: Rendered,
    options: Options,
    around: Callable[[Program], Program] | None = None,
    externs: list[Bound] | None = None,
) -> Program:
    """Build the kernels and execute the host text.

    Args:
        externs: receives the external kernels of a program whose sizes are known.
        around: function that wraps the program of each part on a GPU, if the program is split into parts.
    """
    if rendered.parts or rendered.operators:
        programs = [load(part, options, externs=externs) for part in rendered.parts]
        return _host_of_parts(rendered, programs, around or (lambda program: program))
    addresses: dict[str, int] = {}
    libraries = _libraries(rendered, options)
    for library, names in zip(libraries, rendered.exports, strict=True):
        addresses |= {name: library.address(name) for name in names}

    on_gpu = rendered.device is not None and rendered.device.type != "cpu"
    scope: dict[str, Any] = {
        "extern": _binder(rendered, options, on_gpu, externs),
        "Slot": Slot,
        "Workspaces": Workspaces,
        "launch": launch,
        "launch_short": launch_short,
        "fresh": fresh,
        "place_buffers": place_buffers,
        "Watch": Watch,
        "Sized": Sized,
        "Version": Version,
        "Staged": Staged,
        "torch": torch,
        "address": addresses.__getitem__,
        "libraries": libraries,  # stay loaded as long as the host program, which has their addresses
        "constants": rendered.constants,
    }
    if rendered.device is not None:
        scope |= _on_device(rendered, options)
    program = _observable(rendered, scope, addresses)
    if rendered.device is not None and not isinstance(scope["call"], Sized) and "product0" not in scope:
        scope["kernels"].fallbacks.clear()  # all segments exist and keep the fallbacks that they may need
    if not on_gpu:
        _release_after_first_call(scope)
    return program if rendered.empty is None else UnlessEmpty(program, rendered)


def _binder(
    rendered: Rendered, options: Options, on_gpu: bool, externs: list[Bound] | None
) -> Callable[[str, dict[str, Any], list[Any], list[Any]], ExternKernel]:
    """Returns the function that the host text calls to bind its external kernels."""
    only = "aten" if on_gpu else options.gemm  # other candidates are CPU kernels
    clock = _clock(rendered.device, options)

    def bound(name: str, params: dict[str, Any], inputs: list[Any], outputs: list[Any]) -> ExternKernel:
        if name in EXTERNS or name.count(".") == 2:
            kernel = extern(name, params, inputs, outputs, only, rendered.device, clock)
            if on_gpu and name in PRIMS:
                (kernel.reference,) = _reference(name, params, outputs).candidates
        else:
            kernel = _reference(name, params, outputs)
        if externs is not None:
            externs.append(Bound(kernel, inputs))
        return kernel

    return bound


def _libraries(rendered: Rendered, options: Options) -> list[Library]:
    if rendered.libraries is not None:
        return rendered.libraries
    return build(rendered.cpp_sources, flags_for(options)) if rendered.cpp_sources else []


def _host_of_parts(rendered: Rendered, programs: list[Program], around: Callable[[Program], Program]) -> Program:
    """Returns the host program that calls the programs of the parts in order; `around`: see `load`."""
    parts = [
        around(program) if part.device is not None else program
        for program, part in zip(programs, rendered.parts, strict=True)
    ]
    operators = list(map(_of_the_runtime, rendered.operators))
    return _executed(rendered, {"parts": parts, "operators": operators, "torch": torch})


def _of_the_runtime(op: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that a host program calls for an operator between its parts: smelt's `nonzero`, else
    `op`.
    """
    return nonzero if op is torch.nonzero else op


def _clock(device: torch.device | None, options: Options) -> Clock | None:
    """Returns the clock by which library kernels are timed for a choice; None if kernels are not chosen by time."""
    if device is None or device.type != "cuda" or not options.max_autotune:
        return None
    return None if torch.are_deterministic_algorithms_enabled() else DeviceClock(device)


MAX_EMPTIED = 16
"""Maximum number of programs of one graph for calls with empty sizes: one for each set of sizes that is 0 in a call."""


class UnlessEmpty:
    """A program that passes calls in which unbacked sizes are 0 to a program compiled for that set of sizes.

    That program is compiled at the second call with the set: many sets occur only once, so the first call runs operator
    by operator. On a GPU it is compiled at the first call, since the second call may be recorded as a CUDA graph.
    """

    def __init__(self, program: Program, rendered: Rendered) -> None:
        assert rendered.empty is not None and rendered.by_operators is not None
        self.program, self.compile, self.counts = program, rendered.empty, rendered.counts
        self.lowest = min(self.counts)
        self.by_operators = rendered.by_operators()
        self.at_once = rendered.device is not None
        self.known: dict[tuple[int, ...], Program | None] = {}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run one call; see `Program` for inputs and results."""
        if 0 not in inputs[self.lowest :]:
            return self.program(inputs)
        zeros = tuple([i for i in self.counts if inputs[i] == 0])
        if not zeros:
            return self.program(inputs)
        program = self.known.get(zeros)
        if program is None:
            program = self._met(zeros)
        return program(inputs)

    def _met(self, zeros: tuple[int, ...]) -> Program:
        """Returns the program to run for a set of empty sizes that has no compiled program yet."""
        if zeros not in self.known and not self.at_once:
            if len(self.known) < MAX_EMPTIED:
                self.known[zeros] = None
            return self.by_operators
        if zeros not in self.known and len(self.known) >= MAX_EMPTIED:
            return self.by_operators
        made = self.compile(zeros)
        self.known[zeros] = program = self.by_operators if made is None else _without(made, zeros)
        return program


def _without(program: Program, positions: tuple[int, ...]) -> Program:
    """The program, called without the inputs at `positions` (negative indices, in ascending order)."""

    def run(inputs: list[Any]) -> list[Any]:
        for position in positions:  # negative indices that follow stay valid
            del inputs[position]
        return program(inputs)

    return run


def _on_device(rendered: Rendered, options: Options) -> dict[str, Any]:
    """The globals by which the host text of a Triton program differs from that of a C++ program."""
    device = rendered.device
    assert device is not None
    kernels = Kernels(rendered.kernels, device, measured=options.gemm != "template", fallbacks=rendered.fallbacks)
    if device.type == "cpu":  # Triton's interpreter
        return {"kernels": kernels}
    return {
        "kernels": kernels,
        "Workspaces": functools.partial(Workspaces, device=device, checks=rendered.checks),
        "Watch": functools.partial(Watch, device=device),
        "fresh": functools.partial(fresh, device=device),
    }


def _observable(rendered: Rendered, scope: dict[str, Any], addresses: dict[str, int]) -> Program:
    """Execute the host text and register the program's steps, so that they can be inspected and timed."""
    kernels = scope.get("kernels")
    noted = Noted(kernels)
    if kernels is not None:
        scope["kernels"] = noted
    program = _executed(rendered, scope)
    scope["kernels"] = kernels
    observed: Program = observe(rendered.steps, scope, addresses, noted.launches, program)
    return observed


def _executed(rendered: Rendered, scope: dict[str, Any]) -> Program:
    for code in rendered.code or host_code(rendered.host_source, rendered.host_code):
        exec(code, scope)
    rendered.code = None
    return scope["call"]


def prepare(rendered: Rendered) -> None:
    """Compile the host text before `load`, for example while kernels are being built."""
    rendered.code = host_code(rendered.host_source, rendered.host_code)
    for part in rendered.parts:
        prepare(part)


def _release_after_first_call(scope: dict[str, Any]) -> None:
    """Return heap memory to the system after the first call of a host program.

    That call chooses external kernels among candidates, whose results and scratch memory are freed afterwards. Nothing
    is done for programs without a workspace, or with symbolic sizes, which allocate workspaces at many calls.
    """
    give = scope.get("give")
    if give is None:
        return

    def give_first(workspace: Any) -> None:
        scope["give"] = give  # the host text looks this name up at each call
        give(workspace)
        release_freed()

    scope["give"] = give_first


def _reference(name: str, params: dict[str, Any], outputs: list[Any]) -> ExternKernel:
    """Returns an external kernel that runs the eager reference of a prim; results may have strides other than the
    recorded ones.
    """
    prim = PRIMS[name]

    def call(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        return prim.reference(*(params[p] if p in params else next(rest) for p in prim.parameters))

    results = [spec for value in outputs if (spec := spec_of(value))]
    return ExternKernel(name, [Candidate("reference", call)], results, name)
