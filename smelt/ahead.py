"""Compiling ahead of the first call: `compiled.aot_compile(*args, **kwargs)` returns an artefact, and runs nothing.

Arguments only state shapes and dtypes: their values are not read, the program's side effects do not happen, random
generators stay unchanged. Tensors of the meta device and objects with a shape and a dtype replace tensors of the
model's device. The function has to be one graph, since the code after a graph break depends on computed values.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from smelt.abi.rendered import Rendered
from smelt.artefact import machine
from smelt.artefact.artefact import FUNCTION, MODULE, Artefact, function_of, slots_of, state_of
from smelt.artefact.codec import Encoder
from smelt.artefact.container import ArtefactError, Blobs, Container
from smelt.artefact.guards import GuardWriter, VersionGuards, hash_order, stable, values_of
from smelt.artefact.left_state import CallState, StateWrites
from smelt.artefact.programs import Kept, ProgramWriter
from smelt.artefact.references import Names, anchors_of, mark
from smelt.autograd.call.absent_tangents import Backward, without_tangents
from smelt.base.collection import no_collection
from smelt.base.default_device import name_devices
from smelt.base.errors import Unsupported
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.base.text import on_one_line
from smelt.base.torch_c import inference_mode
from smelt.capture import _native as native
from smelt.capture.cache import CacheEntry, CompileSite, Reader
from smelt.capture.core.breaks import BreakReason, UserError
from smelt.capture.core.frames import bind
from smelt.capture.core.plan import CapturePlan
from smelt.capture.interpreter import Interpreter
from smelt.capture.python.hash_order import are_salted
from smelt.capture.python.readers import by_text, set_items, set_items_by_text
from smelt.capture.residual.residual import Residual
from smelt.capture.session import Session
from smelt.driver import Halves, halves_of, render_and_build
from smelt.graph.ir.user_line import user_line
from smelt.graph.nodes.cut_points import cuts, in_pieces, why_cut
from smelt.program import Bound, load
from smelt.runtime.library.externs import Spec, spec_of
from smelt.runtime.tune import remembered
from smelt.shapes.unbacked import is_unbacked

_ELSEWHERE = "move it out of the function, or compile the functions on either side ahead, each by itself"

MAX_STATES = 5
"""Maximum number of versions for one kind of call. A Python number that changes at each call needs three: for 0, for 1,
and for all other values.
"""

MAX_BACKWARDS = 8
"""Maximum number of differentiable results of a graph for which each result gets its own backward program. The
gradients of any set of results are sums of the gradients that these programs compute.
"""


class Ahead(Artefact):
    """The result of `aot_compile`: an artefact to which versions for other calls can be added."""

    def __init__(self, target: Any, options: Options) -> None:
        self.target, self.options = target, options
        function = function_of(target)
        model = target if isinstance(target, nn.Module) else None
        blobs = Blobs()
        contents = {
            "kind": FUNCTION if model is None else MODULE,
            "name": function.__qualname__,
            "function": mark(function),
            "state": {} if model is None else state_of(model),
            "versions": [],
            "graphs": [],
        }
        super().__init__(Container(machine.present(), contents, blobs), f"the artefact of {function.__qualname__}")
        self.function, self.model, self.blobs = function, model, blobs

    def add(self, *args: Any, **kwargs: Any) -> Ahead:
        """Compile a version for calls with these kinds of arguments, in the present mode (`torch.no_grad()`,
        `model.eval()`); returns `self`.

        Raises:
            Unsupported: the function is not one graph, or each call changes state so that the next one needs another
                version.
            ArtefactError: the graph is for a GPU, or depends on objects that have no name in another process.
        """
        args, kwargs = pytree.tree_map(functools.partial(_stand_in, self._device()), (args, kwargs))
        if self.model is not None:
            args = (self.model, *args)
        kept: list[Kept] = []
        session = _AheadSession(functools.partial(_compile, kept), self.options)
        versions, graphs = [], {json.dumps(data): data for data in self.container.contents["graphs"]}
        try:
            for found in session.versions(self.function, args, kwargs):
                versions.append(self._data(found, kept.pop() if kept else None, graphs))
        finally:
            session.end()
        self.container.contents["versions"] += versions
        self.container.contents["graphs"] = [*graphs.values()]
        return self

    def _device(self) -> torch.device:
        """Device for which arguments without memory are compiled: the device of the model's parameters, else the CPU.

        Raises:
            ArtefactError: the parameters are on the meta device.
        """
        first = next(self.model.parameters(), None) if self.model is not None else None
        if first is None:
            return torch.device("cpu")
        if first.device.type == "meta":
            raise ArtefactError(
                "the model's parameters are on the meta device, and kernels are made for one that computes",
                hint='model.to_empty(device="cpu"): values are not needed',
            )
        return first.device

    def _data(self, found: CacheEntry, kept: Kept | None, graphs: dict[str, Any]) -> dict[str, Any]:
        """Returns the data of a version; the data of its graph is added to `graphs`, because several versions may run
        the same graph.
        """
        anchors = anchors_of(self.function, self.model)
        encode = Encoder(Names(anchors), self.blobs)
        guards = _guards_of(found)
        slot = None
        if self.model is not None:
            slot = 0 if self.function.__code__.co_argcount else self.function.__code__.co_kwonlyargcount
        slots = slots_of(self.function, self.model)
        values = values_of(guards.fetches, stable(guards.fetches, slot), slots, self.function)
        residual = found.residual
        if residual.points:
            raise ArtefactError("the function goes on after a graph break")
        return {
            "guards": GuardWriter(encode, guards, values).data(),
            "texts": self.blobs.number(guards.texts()),
            "residual": {
                "source": residual.source,
                "offset": residual.at.offset if residual.at is not None else 0,
                "constants": {name: _constant(encode, value) for name, value in residual.constants.items()},
                "named": [*residual.named],
            },
            "graph": None if kept is None else _number(ProgramWriter(encode).data(kept), graphs),
        }


def _guards_of(found: CacheEntry) -> VersionGuards:
    """The guards of a version. The order of sets is one of them only if the program reads it.

    Raises:
        ArtefactError: it reads the order of a set of objects, or a hash, which follow from addresses.
    """
    if found.guards.address_order:
        raise ArtefactError(
            "the program reads the order of a set of objects, or a hash",
            why="it follows from the addresses of objects, which differ in each process",
            hint="put the objects in a list or in the keys of a dictionary",
        )
    compiled, hashes = found.entry.guards, found.guards.hash_order
    fetches, checks = [*compiled.fetches], [*compiled.checks]
    lines, sources = found.guards.lines(), [source.text for source in found.guards.sources]
    if hashes:
        checks.append((-1, native.PYTHON, hash_order()))
        lines.append("hashes are the same: the program reads the order of a set, or a hash, which differ by process")
    inner = {parent for parent, _, _ in fetches}
    for number, (index, kind, operand) in enumerate(compiled.checks):
        if (
            hashes
            or kind != native.EQ
            or index in inner
            or fetches[index][2] is not set_items
            or not are_salted(operand)
        ):
            continue
        fetches[index] = (*fetches[index][:2], set_items_by_text)
        checks[number] = index, kind, by_text(operand)
        sources[index] = f"sorted({sources[index].removeprefix('tuple(')}"
        at = found.guards.locations[number]
        lines[number] = on_one_line(f"{sources[index]} == {[*by_text(operand)]}{f'  # {at}' if at else ''}")
    return VersionGuards(fetches, checks, compiled.outputs, lines, sources)


def _number(data: Any, known: dict[str, Any]) -> int:
    """Returns the position of `data` in `known` (data by JSON text), to which it is added if it is new."""
    text = json.dumps(data)
    known.setdefault(text, data)
    return [*known].index(text)


def _constant(encode: Encoder, value: Any) -> Any:
    """Encode a constant of residual code: by value if it is a plain value, else as a reference by name."""
    if isinstance(value, functools.partial) and value.func.__name__ == "_failed_later":
        return ["failed"]
    return ["ref", encode.names(value)] if isinstance(value, (dict, list, set)) else encode(value)


def compile_ahead(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> Ahead:
    """Returns the artefact of a module or function, with a version for calls with these kinds of arguments; see
    `Ahead.add`.
    """
    return Ahead(target, options).add(*args, **kwargs)


class CompileAhead:
    """The attribute `aot_compile` of a compiled function.

    Methods and callable objects are refused. For a callable object only its class is stored here, since copies of the
    compiled callable share this attribute.
    """

    def __init__(self, function: Any, options: Options) -> None:
        receiver = function.__self__ if type(function) is MethodType else function
        self.target = function if type(function) is FunctionType else type(receiver)
        self.options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Ahead:
        """Returns an artefact with a version for calls with arguments of these shapes and types; their values are not
        read.
        """
        return compile_ahead(self.target, args, kwargs, self.options)


def _stand_in(device: torch.device, value: Any) -> Any:
    """Returns a tensor without memory in place of an argument that only states a shape and a dtype; other values
    unchanged.
    """
    if isinstance(value, torch.Tensor):
        if value.device.type != "meta":
            return value
        with inference_mode(value.is_inference()):
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        made.requires_grad_(value.requires_grad)
        made.__dict__.update(value.__dict__)  # attributes that mark sizes as dynamic
        return made
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(dtype, torch.dtype) or not isinstance(shape, Sequence):
        return value
    made = torch.empty(tuple(shape), dtype=dtype, device=getattr(value, "device", None) or device)
    return made.requires_grad_(bool(getattr(value, "requires_grad", False)))


class _AheadSession(Session):
    """A session that captures one frame without running it, as one graph, and reads no tensor values."""

    def __init__(self, compile_graph: Callable[..., Any], options: Options) -> None:
        super().__init__(compile_graph, dataclasses.replace(options, fullgraph=True))
        self.left: StateWrites | None = None
        self.arguments: tuple[Any, ...] = ()

    def _interpreter(self, site: CompileSite, plan: CapturePlan) -> Interpreter:
        vm = super()._interpreter(site, plan)
        vm.tensors.speculation.allowed = False
        return vm

    def versions(self, function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[CacheEntry]:
        """Yields the versions for a call with these arguments; more than one if the call changes state so that the next
        call needs another version.

        Raises:
            TypeError: the arguments do not fit the function.
            Unsupported: the function cannot be captured as one graph, or needs more than MAX_STATES versions.
        """
        try:
            slots = bind(function, function.__defaults__, function.__kwdefaults__, tuple(args), dict(kwargs))
        except UserError as error:
            raise error.error from None
        arguments = self.arguments = tuple(slots[: native.argument_slots(function.__code__)])
        left = CallState()
        try:
            for _ in range(MAX_STATES):
                yield self._one(function, arguments)
                if self.left is None or not left.put(self.left):
                    return
                changes = Reader(arguments, function.__globals__, function).changes(self._site(function).versions)
                if len(changes) < len(self._site(function).versions):  # an existing version fits the next call
                    return
            raise Unsupported(
                f"each call of {function.__qualname__} needs a version of its own",
                why=str(changes[-1]),
                hint="keep what changes in a tensor: versions do not depend on values of buffers",
            )
        finally:
            left.restore_all()

    def _site(self, function: FunctionType) -> CompileSite:
        return self.sites[id(function.__code__)]

    def _one(self, function: FunctionType, slots: tuple[Any, ...]) -> CacheEntry:
        code = function.__code__
        site = self.sites.get(id(code))
        before = 0 if site is None else len(site.versions)
        try:
            self.frame(code, function, slots, function.__globals__)
        except Unsupported as error:
            if error.hint is not None:
                raise
            raise Unsupported(error.what, at=error.at, why=error.why, hint=_ELSEWHERE) from None
        site = self.sites.get(id(code))
        if site is None or len(site.versions) == before:
            raise Unsupported(f"{function.__qualname__} cannot be compiled ahead", why=self._why_not())
        return site.versions[-1]

    def _install(
        self, key: native.SiteKey, site: CompileSite, vm: Interpreter, residual: Residual, reason: BreakReason | None
    ) -> None:
        self.left = StateWrites(vm, self.arguments)
        super()._install(key, site, vm, residual, reason)

    def end(self) -> None:
        """Remove the compiled versions of this session from this process."""
        for site in self.sites.values():
            for version in site.versions:
                version.entry.remove()

    def _why_not(self) -> str:
        return "; ".join(str(reason) for reason in self.breaks) or "capture leaves it alone, or it raises"


# -- the graph --------------------------------------------------------------------------------------------------------


def _compile(
    kept: list[Kept], gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], report: Report, options: Options
) -> Callable[..., Any]:
    if options.backend != "smelt":
        raise Unsupported(f"the backend {options.backend!r} compiles nothing ahead", hint='backend="smelt"')
    if in_pieces(gm.graph, options.backend):
        first = cuts(gm.graph)[0]
        at = user_line(first)
        raise Unsupported(
            f"the graph is cut at {why_cut(first)}",
            at=str(at) if at is not None else None,
            why="the parts are compiled when they run",
            hint=_ELSEWHERE,
        )
    found = next(filter(_finds_a_size, gm.graph.nodes), None)
    if found is not None:
        at = user_line(found)
        raise Unsupported(
            f"{getattr(found.target, '__name__', found.target)} gives a data-dependent number of elements",
            at=str(at) if at is not None else None,
            why="programs compiled ahead have no such sizes",
            hint=_ELSEWHERE,
        )
    with no_collection():
        name_devices(gm)
        joint, device, halves = halves_of(gm, example_inputs, report, options)
        if device is not None:
            raise Unsupported(f"a graph for {device}", hint="artefacts hold programs for a CPU")
        backward = _backwards(halves, report, options) if halves.backward is not None else {}
        full_backward = Backward(halves.backward, lambda _: _never) if halves.backward is not None else None
        externs: list[Bound] = []
        for rendered in (halves.programs[0], *backward.values()):
            load(rendered, options, externs=externs)
        kept.append(
            Kept(
                joint,
                options,
                halves.programs[0],
                backward,
                draws=full_backward is not None and full_backward.draws,
                affine=full_backward is not None and full_backward.affine,
                choices=[choice for each in externs for choice in _choices(each)],
                references=any(each.kernel.candidates[0].name == "reference" for each in externs),
            )
        )
        report.forget()
    return _never


def _finds_a_size(node: fx.Node) -> bool:
    """Whether a size of the node's result is known only after it has run."""
    metas = pytree.tree_leaves(node.meta.get("val"), is_leaf=lambda value: hasattr(value, "shape"))
    return any(is_unbacked(*meta.shape) for meta in metas if hasattr(meta, "shape"))


def _never(*_: Any) -> Any:
    raise AssertionError("what is compiled ahead does not run here")


def _backwards(halves: Halves, report: Report, options: Options) -> dict[tuple[int, ...], Rendered]:
    """Returns backward programs, by the positions of the tangents (gradients of results) that they do not take. There
    is one for the usual set of results, one for all results, and one for each single result, from whose sums the
    gradients for any other set follow.
    """
    assert halves.backward is not None
    tangents = [n for n in halves.backward.graph.nodes if n.op == "placeholder" and n.name.startswith("tangents_")]
    count = len(tangents)
    wanted = {(): None, halves.absent: None}
    if count <= MAX_BACKWARDS:
        wanted |= {tuple(k for k in range(count) if k != i): None for i in range(count)}
    found = {halves.absent: halves.programs[1]} if len(halves.programs) > 1 else {}
    for number, absent in enumerate(wanted):
        if absent in found:
            continue
        graph = without_tangents(halves.backward, absent)
        (found[absent],) = render_and_build({f"backward{number}": graph}, options, report)
    return found


def _choices(bound: Bound) -> list[tuple[str, tuple[str, ...], str]]:
    """Returns the fastest candidate for each form of an operation, found by timing on operands of zeros: (operation,
    names of the candidates, the fastest). A compiled program would do this at its first call.
    """
    kernel = bound.kernel
    names = tuple(c.name for c in kernel.candidates)
    if len(names) < 2:
        return []
    found = []
    for form in ("call", "into") if kernel.supports_out else ("call",):
        operation = f"{kernel.operation} {form}"
        known = remembered(operation, names)
        if known is None:
            operands = [None if spec is None else _zeros(spec) for spec in map(spec_of, bound.inputs)]
            try:
                known = kernel.choose_for(form, operands, [_zeros(spec) for spec in kernel.outputs])
            except (RuntimeError, TypeError):  # the program does not call the operation in this form
                continue
        found.append((operation, names, known))
    return found


def _zeros(spec: Spec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="cpu").zero_()
