"""Protocols of the interpreter and of the objects that it owns; other folders of capture implement them.

A handler takes an `Interpreter`, or the narrower object that it needs. The docstring of each protocol names the class
that implements it; mypy compares the two where the interpreter is made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch
    from numpy import ndarray
    from torch import fx, nn
    from torch.utils._pytree import PyTree

    from smelt.capture import _native as native
    from smelt.capture.core.breaks import At, Break, UserError
    from smelt.capture.core.bytecode import Decoded
    from smelt.capture.core.frames import Frame
    from smelt.capture.core.plan import CapturePlan, Site
    from smelt.capture.core.prologue_value import PrologueValue
    from smelt.capture.core.sources import Source
    from smelt.capture.core.state import Control, PythonState, ValuePolicy
    from smelt.graph.nodes.conditional import Conditional
    from smelt.graph.nodes.cut_points import EagerBoundary
    from smelt.graph.trace.trace import TraceTensor
    from smelt.shapes.assumptions import Assumed, Assumptions
    from smelt.shapes.real import Real
    from smelt.shapes.size import IntLike, Size, Symbol
    from smelt.shapes.unbacked import Origin

T = TypeVar("T")

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
"""The keyword arguments of a call that the program makes."""


class Copies(Protocol):
    """Copies of containers that were passed to C code, with their originals (`python.container_copies.Copies`)."""

    def own(self, value: object) -> Any:
        """The container that the value is a copy of; any other value unchanged."""

    def give_back(self, value: object) -> Any:
        """An object that C code returned or wrote to, with copies of containers replaced by the program's own
        containers.
        """


class Store(Protocol):
    """A deferred write to an external object (`python.effects.Store`)."""

    kind: str
    target: Any
    name: str
    value: Any
    maybe: bool
    anew: bool
    born: int
    version: int
    num_calls_before: int


class Mirror(Protocol):
    """The stand-in of an external container (`python.effects.Mirror`)."""

    original: Any
    copy: Any
    before: Any

    @property
    def changed(self) -> bool:
        """Whether the program wrote to the container."""

    def lost(self) -> list[object]:
        """The values that the program removed from the container."""


class ClassDict(Protocol):
    """The present content of a class (`python.effects.ClassDict`)."""

    cls: type
    items: dict[str, Any]
    views: list[MappingProxyType[str, Any]]

    def view(self) -> MappingProxyType[str, Any]:
        """A new view of the content, as the class's `__dict__` returns."""

    def write(self, name: str, value: object, anew: bool) -> None:
        """Record that the program set an attribute of the class, or removed it."""


class Effects(Protocol):
    """The effects of the frame on external objects so far (`python.effects.Effects`)."""

    graph_warns: bool
    graph_repeats_writes: bool
    cleared: list[TraceTensor]
    class_writes: set[str]
    tables: set[int]
    views: dict[int, tuple[object, Source]]
    shown: set[int]
    appended: dict[int, tuple[list[Any], list[Any]]]
    stores: dict[tuple[str, int, str], Store]
    class_dicts: dict[int, ClassDict]

    @property
    def mirrors(self) -> Mapping[int, Mirror]: ...
    @property
    def deferred(self) -> Sequence[object]: ...
    @property
    def copies(self) -> Copies: ...

    def store(self, kind: str, target: object, name: str, value: object) -> None:
        """Record a write to an external object; the value DELETED records a removal."""

    def store_variable(self, variables: dict[str, object], name: str, value: object) -> None:
        """Record a write to a module's variable."""

    def variable(self, module: ModuleType, name: str) -> Any:
        """The value that the program has written to a module's variable; None if it has written none."""

    def delete(self, kind: str, target: object, name: str) -> None:
        """Record the removal of an attribute, variable or item of an external object."""

    def defer(self, fn: Callable[..., object], args: Args, kwargs: Kwargs, at: At | None = None) -> None:
        """Defer a call until the graph has run; `at`: the location that a function which inspects its caller must
        see."""

    def warn(self, location: Any, message: object, category: object, source: object) -> None:
        """Defer a warning until the graph has run."""

    def make(self, handle: object) -> None:
        """Let residual code make an object that the captured frame made, unless the program has removed it."""

    def mirror(self, value: object) -> Any:
        """The mirror of an external container, with all items read and guarded; any other value unchanged."""

    def append(self, container: list[object], value: object) -> None:
        """`container.append(value)`"""

    def untouched(self, container: object) -> bool:
        """Whether the program has not written to the external container, and it has no mirror."""

    def pending(self) -> bool:
        """Whether effects are pending: some external object does not yet have the state that the program gave it."""

    def containers_changed(self) -> bool:
        """Whether the program wrote to an external container."""

    def original_source(self, value: object) -> Source | None:
        """The source of an external object, or of the external view that this view replaces."""

    def original(self, value: object) -> Any:
        """The container that a mirror or a copy replaces; any other value unchanged."""

    def read_items(self, value: list[object] | tuple[object, ...], source: Source) -> list[Any]:
        """All items of an external list or tuple."""

    def read_dict(self, value: dict[object, object], source: Source) -> dict[Any, Any]:
        """All items of an external dict."""

    def read_key(self, value: dict[object, object], source: Source, key: object) -> Any:
        """One item of an external dict that has the key."""

    def has_key(self, value: dict[object, object], source: Source, key: object) -> bool:
        """Whether an external dict has the key, with a guard on the answer."""

    def outside(self, key: object) -> Any:
        """The key of an external dict for a key of the program."""

    def refuse_opaque(self, fn: object, values: Iterable[object]) -> None:
        """End the graph if C code would read unguarded content of external objects."""

    def refuse_unguarded(self, value: object) -> None:
        """End the graph if C code would read an object whose content no guard can read."""

    def refuse_foreign(self, *values: object) -> None:
        """End the graph if an operator of C code other than Python's, PyTorch's or NumPy's would read external
        objects."""

    def refuse_iterators(self, values: Iterable[object]) -> None:
        """End the graph if C code would consume an external iterator."""

    def plain(self, value: object) -> Any:
        """The same value with mirrors in place of external containers."""

    def plain_all(self, values: Iterable[object]) -> Args:
        """The result of `plain` for each value; an object that occurs in several values is replaced by one object."""

    def opened(self, container: object) -> AbstractContextManager[None]:
        """Context of an iteration of the container; a nested iteration of it (it contains itself) ends the graph."""


class Compared(Protocol):
    """Objects that C code compared (`python.comparisons.Compared`)."""

    def are_one(self, left: object, right: object) -> bool:
        """`left is right`, guarded."""

    def guard_distinct(self, one: object, other: object) -> None:
        """Guard that these are two objects, because the program has compared their identities."""

    def read_nan(self, value: object, source: Source) -> None:
        """Note an external NaN; guards accept any other NaN until `ask_nan`."""

    @property
    def sources(self) -> list[Source]:
        """The sources of the objects whose identities may matter."""

    def describe_state(self) -> tuple[object, ...]:
        """What was compared so far; an equal description follows as long as no other object is compared."""

    def ask_nan(self, *values: object) -> None:
        """If all of these are NaN, guard their identities, because the program depends on them."""

    def nan_source(self, value: object) -> Source | None:
        """The source of an external NaN object; None for any other value."""

    def foreign(self, keys: Iterable[object]) -> None:
        """Guard the identities of the keys of an external dictionary that is copied."""

    def note(self, value: object, hashed: bool = True) -> None:
        """Guard everything that distinguishes the value from others."""

    def guard(self) -> None:
        """Add the guards for the comparisons so far."""


class Finalizers(Protocol):
    """Objects that run code of the program when they die (`python.finalizers.Finalizers`)."""

    allowed: bool
    owned: list[tuple[Any, Any]]

    def begin(self, values: Iterable[object]) -> None:
        """Record the variables, stack elements and handled exceptions that exist when the frame starts."""

    def add(self, value: object) -> None:
        """Record an external object that the frame refers to, or may change."""

    def exceptions(self) -> list[int]:
        """The slots and stack elements that were exceptions when the frame started."""

    def refuse_loss(self, value: object) -> None:
        """End the graph if the frame would remove a value with a finalizer from an external object."""

    def guard(self, frame: Frame) -> None:
        """Guard that the objects which the frame dropped have no finalizer in later calls either."""

    def is_reached(self, value: object) -> bool:
        """Whether the value is reachable from the frame, or from what it has stored."""

    def refers_to_finalizer(self, value: object) -> bool:
        """Whether a value of the capture is or refers to an object with a finalizer, or a generator."""

    def with_finalizers(self) -> list[Any]:
        """The objects with finalizers that the frame refers to, and the generators that it did not exhaust."""


class Observed(Protocol):
    """The objects that deferred calls may change (`calls.observers.Observed`)."""

    targets: set[Any]

    def add(self, vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> None:
        """Record a deferred call."""

    def look(self, target: object) -> None:
        """End the graph before a read of an external object or variable if a deferred call may change it."""


class Guards(Protocol):
    """The guards so far (`guards.guards.GuardList`)."""

    hash_order: bool
    address_order: bool
    instances: bool

    noted: list[tuple[Source, int, Any]] | None
    sources: list[Source]
    fetches: list[tuple[int, int, Any]]
    checks: list[tuple[int, int, Any]]
    locations: list[At | None]
    joint_checks: dict[Callable[..., bool], list[Source]]
    blamed: tuple[At | None, ...]

    def fetch(self, source: Source) -> int:
        """The index of a source among the fetches; equal sources share one."""

    def has(self, source: Source) -> bool:
        """Whether the source is fetched, so that guards check the reads of its value."""

    def check(self, source: Source, kind: int, operand: object) -> None:
        """Add a check on the value of a source, unless it is there already."""

    def same(self, a: Source, b: Source) -> None:
        """Guard that both sources give one object."""

    def different(self, a: Source, b: Source) -> None:
        """Guard that the sources give two objects."""

    def all_different(self, sources: Iterable[Source]) -> None:
        """Guard that no two of the sources give the same object."""

    def python(self, fn: Callable[..., bool], sources: Iterable[Source], shortcut: int | None = None) -> None:
        """Guard that `fn` of the values of these sources is true (evaluated in Python: for rare cases)."""

    def joint_check(self, fn: Callable[..., bool], source: Source) -> None:
        """Add the source to those of `fn`, and guard that `fn` of the values of all of them is true."""

    def state(self, state: tuple[object, ...]) -> None:
        """Guard that the ambient modes equal `state`, a result of `native.state()`."""

    def flag(self, fn: Callable[..., object], args: Args, value: object) -> None:
        """Guard that a setting of the process or the thread, `fn(*args)`, stays the same."""

    def finish(self, outputs: Iterable[int]) -> native.Guards:
        """The guards in the form that C evaluates; `outputs` are the fetches that residual code needs."""


class Profile(Protocol):
    """The sizes and numbers that the entries of one compile site have seen (`guards.dynamic_shapes.SiteProfile`)."""

    classes: Any
    unsteady: set[Site]

    def look_at_value(self, key: object, found: object) -> bool:
        """Whether a tensor's value was the same at all captures so far."""


class Sizes(Protocol):
    """The symbols of one capture (`guards.dynamic_shapes.Sizes`)."""

    dynamic: bool | None
    owner: Assumptions
    occurrences: list[tuple[Source, Source, Size]]
    reals: dict[str, Source]

    @property
    def changes(self) -> Profile: ...

    def of_tensor(self, tensor: torch.Tensor, source: Source) -> Any:
        """The guard operand of a tensor with symbolic sizes; None when all of them are static."""

    def of_number(self, value: int | float, source: Source) -> Size | Real | None:
        """The symbol of a number that has changed between calls; None when it is static."""

    def specialized(self) -> int:
        """The number of facts so far that are true only for the example's sizes."""

    def guard(self, guards: Any) -> None:
        """Add the checks that the symbols need."""

    def origin(self, symbol: Symbol | Real) -> tuple[Source, Source]:
        """The source of the input that contains a symbol, and the source of the number itself."""

    def expression(self, size: IntLike, fetched: Callable[[Source], str], read: Callable[[object], str]) -> str:
        """The Python expression of a size in residual code."""

    def real_expression(self, real: Real, fetched: Callable[[Source], str], read: Callable[[object], str]) -> str:
        """The Python expression of a floating-point number in residual code."""


class GraphInput(Protocol):
    """A graph input (`tensors.tensors.Input`)."""

    tensor: Any
    source: Source
    node: fx.Node


class Speculation(Protocol):
    """Values of masks and lengths that are assumed and guarded (`tensors.speculation.Speculation`)."""

    allowed: bool
    assume_values: bool

    def assumes(self, node: fx.Node) -> bool:
        """Whether something about the node's value was assumed."""

    def value(self, tensor: TraceTensor) -> torch.Tensor | None:
        """A real tensor with the known or assumed values of `tensor`; None if they stay unknown."""

    def count(self, mask: TraceTensor) -> int | None:
        """The known or assumed number of nonzero elements of `mask`; None if it stays unknown."""

    def preferring_reads(self) -> AbstractContextManager[None]:
        """Context in which values that are not the same at all calls stay unknown."""

    def finish(self) -> None:
        """Add the guard on all assumed values."""


class Read(Protocol):
    """A number that a capture reads from a tensor (`tensors.reads.Read`)."""

    tensor: TraceTensor
    dim: int | None
    version: tuple[int, int]
    node: fx.Node | None


class Reads(Protocol):
    """Numbers that a capture reads from tensors (`tensors.reads.Reads`)."""

    known: dict[Hashable, Size | Real]

    @property
    def found(self) -> Mapping[str, Read]: ...

    def shows(self, read: Any) -> bool:
        """Whether the tensor belongs to the graph and still has the value that was read."""

    def exposed(self, number: object) -> tuple[TraceTensor, int | None]:
        """A tensor that contains a number at the end of the graph, and the dimension whose size the number is, None if
        it is the tensor's value."""


class Runner(Protocol):
    """Runs torch callables on trace tensors (`tensors.trace_call.Runner`)."""

    def run(self, target: object, args: Args, kwargs: Mapping[str, object]) -> Any:
        """The call's result; the call's warnings become warnings of the program."""

    def attempt(self, target: object, args: Args, kwargs: Mapping[str, object]) -> tuple[Any, list[TraceTensor]]:
        """The call's result, and the tensors that it wrote to."""


class CCallbacks(Protocol):
    """Records tensor operations of C code (`tensors.c_callbacks.CCallbackMode`)."""

    def run(self, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> Any:
        """Call C code."""

    def pause(self, fn: Callable[..., object], *args: object) -> Any:
        """Call back into the interpreter from C code."""


class Numbers(Protocol):
    """The nodes of symbolic numbers (`tensors.number_nodes.NumberNodes`)."""

    def add_input(self, number: Size | Real, node: fx.Node) -> None:
        """Register `node` as the input that carries the number."""

    def known(self) -> dict[str, fx.Node]:
        """The nodes of numbers so far."""

    def restore(self, known: dict[str, fx.Node]) -> None:
        """Remove from the graph the numbers computed since `known` was taken; inputs stay."""

    def __call__(self, number: object) -> Any:
        """The node that computes a symbolic number; a plain number unchanged."""


class Inference(Protocol):
    """Tensors that were made in inference mode (`tensors.inference_tensors.InferenceTensors`)."""

    def note(self, tensor: TraceTensor) -> None:
        """Record that the tensor was made in inference mode."""

    def __contains__(self, tensor: object) -> bool:
        """Whether the tensor was made in inference mode."""


class Tensors(Protocol):
    """The tensors of a capture, the graph that makes them, and the graph's inputs (`tensors.tensors.Tensors`).

    The object lives as long as its graph is built; a function under a transform (`torch.func`) has another one.
    """

    branches: bool
    region: int | None
    asserts: bool
    caught: bool
    guarded: bool
    read_guarded: bool
    mutated: set[fx.Node]
    redraws: bool
    drawing_otherwise: set[fx.Node]
    drawing: set[fx.Node]
    looking: set[fx.Node]
    checks: set[fx.Node]
    traced: dict[int, TraceTensor]
    real: dict[int, torch.Tensor]
    nodes: dict[int, fx.Node]
    made: dict[fx.Node, Any]
    writers: dict[int, list[fx.Node]]
    inner: dict[int, int]
    born: dict[int, int]
    spent: dict[int, Any]
    kept_roots: dict[int, TraceTensor]
    named: list[str]
    computed: dict[int, TraceTensor]
    number_node: Numbers

    @property
    def graph(self) -> fx.Graph: ...
    @property
    def inputs(self) -> Sequence[GraphInput]: ...
    @property
    def speculation(self) -> Speculation: ...
    @property
    def reads(self) -> Reads: ...
    @property
    def runner(self) -> Runner: ...
    @property
    def c_callbacks(self) -> CCallbacks: ...
    @property
    def inference(self) -> Inference: ...

    def release(self) -> None:
        """Drop the references to the program's tensors."""

    def is_special(self, tensor: TraceTensor) -> bool:
        """Whether writes to the tensor are refused, or the program made it a leaf."""

    def describe_state(self) -> tuple[object, ...]:
        """What was noted besides nodes and tensors; equal descriptions follow as long as nothing else is noted."""

    def handle(self, value: object) -> Any:
        """The trace tensor of a real tensor that is an input; any other value unchanged."""

    def type_of(self, tensor: TraceTensor) -> type:
        """The class of a trace tensor as the program sees it."""

    def stand_in(self, tensor: TraceTensor) -> torch.Tensor:
        """A real tensor with the class of the traced one, for `isinstance` and the like."""

    def read(self, value: torch.Tensor, source: Source) -> TraceTensor:
        """The trace tensor of a real tensor at `source`, which becomes an input of the graph."""

    def read_number(self, value: int | float, size: Size | Real, source: Source) -> Any:
        """A number at `source` that may differ at the next call, as an input of the graph."""

    def object_input(self, value: object, source: Source) -> fx.Node:
        """The input for an external object that is no tensor or number; a node whose function runs uncaptured takes
        it."""

    def prologue_input(self, value: object, source: Source, number: Size | Real | None) -> fx.Node:
        """A tensor or number computed by the prologue, as an input of the graph."""

    def is_input_memory(self, tensor: TraceTensor) -> bool:
        """Whether the tensor shares the memory of an input."""

    def forbid_writes(self, tensor: TraceTensor) -> None:
        """Forbid writes to the tensor, because it shares memory with an object that the graph does not know."""

    def own(self, tensor: TraceTensor, node: fx.Node) -> None:
        """Record that the node makes the tensor."""

    def made_tensors(self) -> Iterator[tuple[fx.Node, TraceTensor]]:
        """Each node that makes a tensor, with the tensor."""

    def has_node(self, value: object) -> bool:
        """Whether a node makes this value, in this graph or in an outer one."""

    def refuse_inner(self, value: object) -> None:
        """End the graph if a tensor that belongs to a function under a transform (`torch.func`) is used outside of
        it."""

    def run(self, target: object, args: Args, kwargs: Mapping[str, object], method: str | None = None) -> Any:
        """Run a torch callable on trace tensors; if it made or changed a tensor, record a node."""

    def note(
        self,
        out: object,
        written: Sequence[TraceTensor],
        drew: bool,
        target: object,
        args: Args,
        kwargs: Mapping[str, object],
        method: str | None = None,
        raises: bool = False,
    ) -> Any:
        """Record a call that has run, unless its effects are invisible; returns its result."""

    def check(self, fact: Assumed, text: str, error: str) -> None:
        """Record a check of a fact about a number, which the program asserts; if it fails, it raises `error`."""

    def record_boundary(self, target: EagerBoundary, args: Args) -> None:
        """Record an eager boundary without results."""

    def note_used_up(self, nodes: Iterable[object]) -> None:
        """Record that a backward has used these autograd nodes."""

    def writers_of(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that wrote to the memory of the node's tensor so far."""

    def first_view(self, tensor: TraceTensor) -> int | None:
        """The step that first made another tensor in this tensor's memory; None if none did, or if nothing was written
        there."""

    def make_leaf(self, tensor: TraceTensor) -> TraceTensor:
        """`tensor.requires_grad_()` on a tensor that the graph makes and does not return."""

    def is_made_leaf(self, node: fx.Node) -> bool:
        """Whether the node's tensor was made a leaf by the program."""

    def contains_made_leaf(self, outputs: Iterable[TraceTensor]) -> bool:
        """Whether one of the tensors was made a leaf by the program."""

    def phi_tensor(self, condition: TraceTensor, a: TraceTensor | None, b: TraceTensor | None) -> TraceTensor:
        """A new tensor with the metadata and the history of `a` or `b`, whichever the condition chooses."""

    def replace_by_conditional(
        self,
        target: Conditional,
        condition: TraceTensor,
        operands: list[fx.Node],
        nodes: list[fx.Node],
        metas: tuple[object, ...],
        outputs: list[TraceTensor],
    ) -> None:
        """Replace the nodes of a branch's two arms by one node; `outputs` are the tensors that it returns."""

    def refuse_cut(self, what: str) -> None:
        """End the graph where it cannot be cut: in a checkpoint, transform or branch, or after gradients."""

    def writes_inputs(self) -> bool:
        """Whether the graph writes to memory that existed before it."""

    def is_written(self, entry: Any) -> bool:
        """Whether the graph writes to an input that does not come from the prologue."""

    def argument(self, value: object) -> Any:
        """A value as an argument of an fx node."""


class Ambient(Protocol):
    """The modes of the thread that the program has switched (`tensors.ambient.Ambient`)."""

    log: list[tuple[Callable[..., Any], Args, Kwargs]]
    dirty: bool
    indexes_by_tensors: bool
    left_switched: bool
    inference: bool
    torch_functions: tuple[bool, bool]

    @property
    def names_devices(self) -> bool: ...

    def begin(self, inference: bool, gradients: bool, torch_functions: tuple[bool, bool] = (True, False)) -> None:
        """Record the initial modes: inference mode, whether gradients are enabled (possible in inference mode, too),
        and which `__torch_function__`s are called."""

    def switch_torch_functions(self, state: tuple[bool, bool]) -> None:
        """Switch which `__torch_function__`s the program's torch functions call: (of subclasses, none at all)."""

    def switch_device(self, fn: Callable[..., object], args: Args) -> None:
        """Run a function that switches the default device."""

    def switch(self, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> Any:
        """Run a function that switches a mode; if a number decides what it does, the number's value is assumed."""

    def gradients(self, enabled: bool) -> AbstractContextManager[None]:
        """Context in which the program runs with gradients on or off."""

    def unrecorded(self, graph: fx.Graph) -> AbstractContextManager[None]:
        """Context without gradients, for a write to a tensor that requires none."""

    def sync(self, graph: fx.Graph) -> None:
        """Open and close regions of the graph so that they match the present modes."""

    def inside_region(self, graph: fx.Graph) -> bool:
        """Whether the next node would be in a region of the graph."""

    def begin_enclosing_mode(self) -> None:
        """Begin a mode that is no region of the graph; regions opened from here on are closed before the mode ends."""

    def begin_enclosing_grad_mode(self, graph: fx.Graph, gradients: bool) -> None:
        """Begin a mode that is no region of the graph and that switches gradients on or off."""

    def end_enclosing_mode(self, graph: fx.Graph) -> None:
        """End the mode that `begin_enclosing_mode` or `begin_enclosing_grad_mode` began."""

    def close(self, graph: fx.Graph) -> None:
        """Leave every region that is open in the graph."""

    def switched(self) -> bool:
        """Whether the modes differ from the initial ones."""

    def restore(self) -> None:
        """Undo the switches on this thread, at the end of the capture."""


class PrologueInputs(Protocol):
    """The inputs of a graph that the prologue computes (`prologue.inputs.PrologueInputs`)."""

    numbers: dict[str, PrologueValue]

    def lift(self, args: object, key: bool = False) -> Any:
        """Arguments of a tensor operation, with prologue values replaced by numbers and tensors."""

    def number(self, value: PrologueValue) -> Any:
        """The input of the graph that represents a number as an argument of a tensor operation."""

    def needs(self, names: Iterable[str]) -> bool:
        """Record that the program or a later stage needs these numbers; whether another attempt can assume their
        values."""

    def origins(self) -> list[Origin]:
        """The origins of the prologue numbers that became inputs of the graph."""

    def named(self, number: object) -> PrologueValue | None:
        """The prologue value of a number that is an input of the graph; None if it is no such number."""

    def tensor(self, value: object) -> Any:
        """A tensor computed by the prologue, as an input of the graph."""

    def made(self, tensor: TraceTensor) -> PrologueValue | None:
        """The prologue value of a tensor; None if the prologue does not make it."""

    def condition(self, value: PrologueValue) -> TraceTensor:
        """A tensor with the truth of a value, as the condition of a branch."""


class Prologue(Protocol):
    """The Python that runs before the graph (`prologue.prologue.Prologue`)."""

    allowed: bool
    acts: int
    used: dict[int, PrologueValue]
    pinned: dict[int, Any]
    arrays: dict[int, PrologueValue]

    @property
    def inputs(self) -> PrologueInputs: ...
    @property
    def ops(self) -> Sequence[Any]: ...

    def external(self, array: ndarray, source: Source) -> PrologueValue:
        """The prologue value of an external array, which is read at each call; its shape and dtype are guarded."""

    def handle(self, value: object) -> Any:
        """The prologue value of an external array; any other value unchanged."""

    def read_from(self, value: PrologueValue) -> tuple[ndarray, Source] | None:
        """The external array that the value represents, and its source; None if the value is computed."""

    def known(self, value: PrologueValue) -> Any:
        """The plain value, assumed and guarded."""

    def shape(self, value: PrologueValue) -> None:
        """Assume the value's type and shape, which residual code checks."""

    def length(self, value: PrologueValue) -> Any:
        """`len(value)`; the length of a text is a prologue value."""

    def items(self, value: PrologueValue) -> list[Any]:
        """`list(value)`"""

    def shares(self, array: PrologueValue) -> None:
        """Record that a tensor shares memory with the array, so that neither may be written."""

    def run(self, fn: Any, args: Args, kwargs: Kwargs, method: str | None = None) -> Any:
        """Run an operation on the examples and record it; returns its result."""

    def run_function(self, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> Any:
        """Run a function of the program that draws random numbers as one operation."""

    def arguments(self, value: object) -> Any:
        """The arguments as they are now: containers copied, since the program may change them, and sizes as numbers."""

    def use(self, value: PrologueValue) -> str:
        """Mark the value as used by residual code; returns its name."""

    def program(self) -> Sequence[Any]:
        """The operations that the values used so far depend on."""

    def check_disjoint(self) -> None:
        """Check and guard that the graph writes to no memory of external arrays: they are read before it runs."""

    def guard(self) -> None:
        """Add the guard on the values that were assumed."""

    def restore(self) -> None:
        """Restore the state of random generators at the end of the capture, as if nothing had been drawn."""


class Subclasses(Protocol):
    """The tensors of a capture whose class is a subclass (`subclasses.instances.Subclasses`).

    Attributes:
        present: whether the capture has met such a tensor.
    """

    present: bool

    def class_of(self, tensor: TraceTensor) -> type | None:
        """The subclass of a tensor; None for a tensor of one of torch's own classes."""

    def overrides(self, tensor: TraceTensor) -> bool:
        """Whether torch functions of the program now call a `__torch_function__` for this tensor."""

    def overridden(self, values: Iterable[object]) -> list[TraceTensor]:
        """The tensors among the values, also in lists and tuples, that `overrides` is true for."""

    def is_instance(self, source: Source) -> bool:
        """Whether an input at this source is of a subclass."""

    def holds_instance(self, value: object) -> bool:
        """Whether the value, or a value in its tuples, lists and dictionaries, is a tensor of a subclass."""

    def note_input(self, tensor: TraceTensor, cls: type) -> None:
        """Note the class of an input."""

    def adopt(self, tensor: TraceTensor, cls: type) -> TraceTensor:
        """Give a tensor that the graph makes the class; returns the tensor."""

    def attributes(self, tensor: TraceTensor) -> Kwargs | None:
        """The attributes that the program has set on an instance that the frame made; None for other tensors."""

    def read_attr(self, tensor: TraceTensor, cls: type, name: str) -> PyTree:
        """An attribute that the subclass `cls` or the program gives a tensor; `NO_OVERRIDE` for one of torch's."""

    def write_attr(self, tensor: TraceTensor, cls: type, name: str, value: object) -> bool:
        """`tensor.name = value` for a tensor of the subclass `cls`; False where torch's own rules hold."""

    def stand_in(self, tensor: TraceTensor) -> torch.Tensor | None:
        """A real instance of the class of a tensor that the frame gave a subclass; None for other tensors."""

    def proxy(self, start: type, tensor: TraceTensor) -> object:
        """`super(start, tensor)`"""

    def dispatch(self, found: PyTree, args: Args, kwargs: Kwargs, error: Callable[[], Exception]) -> PyTree:
        """The result of a call that the classes of a `probes.Dispatch` are asked for; `error` if none has one."""

    def is_wrapper(self, value: object) -> bool:
        """Whether the value is a tensor of a wrapper subclass, which no graph holds."""

    def adopt_wrapper(self, tensor: TraceTensor, cls: type) -> TraceTensor:
        """Note a wrapper that the frame makes; returns the tensor, which stands for it."""

    def note_wrapper(self, tensor: TraceTensor, cls: type) -> None:
        """Note a wrapper from outside."""

    def desugar(self, target: PyTree, args: Args, kwargs: Mapping[str, object]) -> PyTree:
        """The result of an operation by the `__torch_dispatch__` of its wrappers; `NO_OVERRIDE` without any."""

    def disabled(self) -> AbstractContextManager[None]:
        """Context in which the program's torch functions call no `__torch_function__` of subclasses."""

    def intercept(self, fn: PyTree, args: Args, kwargs: Kwargs) -> PyTree:
        """The result of the call by `__torch_function__`; `NO_OVERRIDE` if torch calls none."""

    def release(self) -> None:
        """Drop the references to the program's objects."""


NO_OVERRIDE = object()
"""Result of `Subclasses.intercept` for calls that no `__torch_function__` gets."""


class EqualCalls(Protocol):
    """Calls of equal modules (`equal_calls.calls.EqualCalls`)."""

    def begin(self, code: CodeType) -> None:
        """Begin the capture of a frame; calls are not copied if its code seems to compute gradients."""

    def call(self, module: nn.Module, args: Args, kwargs: Kwargs, interpret: Callable[[], object]) -> object:
        """The result of calling a module without hooks: by a copy of an earlier call, or else by `interpret`."""

    def require_history(self) -> None:
        """Start over without copies if there are any: their tensors have no autograd history of their own."""


class Interpreter(Protocol):
    """One capture of one frame; the docstring of `capture.interpreter.Interpreter` explains the attributes."""

    tensors: Tensors
    ambient: Ambient
    python: PythonState
    control: Control
    decode: Callable[[CodeType], Decoded]
    plan: CapturePlan
    values: ValuePolicy
    sources: dict[int, Source]
    frames: list[Frame]
    work: int
    step: int
    reads: dict[tuple[int, str], Any]

    @property
    def guards(self) -> Guards: ...
    @property
    def sizes(self) -> Sizes: ...
    @property
    def prologue(self) -> Prologue: ...
    @property
    def outermost(self) -> Tensors: ...
    @property
    def subclasses(self) -> Subclasses: ...
    @property
    def effects(self) -> Effects: ...
    @property
    def compared(self) -> Compared: ...
    @property
    def observed(self) -> Observed: ...
    @property
    def finalizers(self) -> Finalizers: ...
    @property
    def equal_calls(self) -> EqualCalls: ...
    @property
    def step_counts(self) -> Callable[[torch.Tensor, Source], Any]: ...

    def release(self) -> None:
        """Drop the references to the program's objects."""

    def where(self) -> At | None:
        """The user's line that is being interpreted."""

    def sibling(self) -> Interpreter:
        """An interpreter that shares the guards, sizes and external objects, but has its own tensors and effects."""

    def keep(self, value: object) -> None:
        """Keep a value alive during the capture, because its identity is a key."""

    def run(self, frame: Frame) -> object:
        """Interpret until the frame returns or yields; the result is in `frame.value`."""

    def run_root(self, frame: Frame, stop_at: int = -1) -> Break | None:
        """Interpret the captured frame itself, up to instruction `stop_at`; returns the break, None if it returned."""

    def unwind(self, frame: Frame, error: UserError) -> None:
        """Continue at the handler that covers the present instruction, or raise out of the frame."""

    def close_generators(self, kept: Callable[[object], bool]) -> None:
        """Close generators that the frame abandons inside of a `try`, as Python does when it drops them."""

    def handled(self) -> BaseException | None:
        """The exception that the program is handling; None without one."""

    def context(self) -> Any:
        """The context that an exception raised now would get."""

    def outer_exception(self) -> Any:
        """The exception that the caller of the captured frame is handling, with its guard."""

    def external(self, value: object, source: Source) -> Any:
        """The handle of a value that was read through `source`; adds the guards that reading it requires."""

    def check_type(self, value: object, source: Source) -> None:
        """Guard the class of an external value."""

    def register(self, value: T, source: Source) -> T:
        """Register `value` as external."""

    def externals(self) -> list[Any]:
        """All external objects, and the other objects that the capture keeps alive."""

    def source_of(self, value: object) -> Source | None:
        """The source of an external object; None for plain data and for objects that the frame made."""

    def is_external(self, identity: int) -> bool:
        """Whether an external object, or a dictionary of globals, has the identity."""

    def globals_source(self, globals: dict[str, object]) -> Source:
        """The source of an (inlined) function's dictionary of globals."""

    def root_globals(self, globals: dict[str, object]) -> None:
        """Use these globals as those of the captured frame: guards read them from the frame and do not keep them
        alive."""

    def load_global(self, frame: Frame, name: str) -> Any:
        """A global variable or builtin, as LOAD_GLOBAL finds it."""

    def cell(self, cell: CellType, name: str) -> Any:
        """The content of a closure cell; NULL when it is empty."""

    def adopt_cells(self, function: FunctionType, source: Source) -> None:
        """Register the cells of an external function's closure as external."""

    def call(self, fn: object, args: Args, kwargs: Kwargs) -> Any:
        """`fn(*args, **kwargs)`"""

    def load_attr(self, obj: object, name: str) -> Any:
        """`obj.name`"""

    def native(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Any:
        """Run C code of the user's program."""

    def type_of(self, value: object) -> type:
        """`type(value)` as the program sees it."""

    def reenter(self, run: Callable[[], object]) -> Any:
        """Run interpreted code that C code called."""

    def attr_source(self, source: Source, name: str, in_dict: bool) -> Source:
        """An attribute of a tensor object, from its dictionary or through C code."""
