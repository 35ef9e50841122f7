"""What handlers see of the interpreter and of the objects that it owns, which higher folders make.

A handler takes an `Interpreter`, or the narrower object that it needs. The classes that implement these are named in
their docstrings; mypy compares them where the interpreter is made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch
    from numpy import ndarray
    from torch import fx

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
"""The arguments of a call that the program makes."""


class Copies(Protocol):
    """Copies of containers that C code was given, and what they are copies of (`python.container_copies.Copies`)."""

    def own(self, value: object) -> Any:
        """The container that this is a copy of; anything else unchanged."""

    def give_back(self, value: object) -> Any:
        """What C code returned or wrote to, with the program's own containers in it."""


class Store(Protocol):
    """A write to an object from outside that is put off (`python.effects.Store`)."""

    kind: str
    target: Any
    name: str
    value: Any
    maybe: bool
    anew: bool
    born: int
    version: int
    behind: int


class Mirror(Protocol):
    """The stand-in of an external container (`python.effects.Mirror`)."""

    original: Any
    copy: Any
    before: Any

    @property
    def changed(self) -> bool:
        """True when the program wrote to it."""

    def lost(self) -> list[object]:
        """What the program took out of it."""


class ClassDict(Protocol):
    """What a class holds by now (`python.effects.ClassDict`)."""

    cls: type
    items: dict[str, Any]
    views: list[MappingProxyType[str, Any]]

    def view(self) -> MappingProxyType[str, Any]:
        """A view, as `__dict__` of the class gives it."""

    def write(self, name: str, value: object, anew: bool) -> None:
        """The program gave the class an attribute, or removed it."""


class Effects(Protocol):
    """What the frame did to the outside so far (`python.effects.Effects`)."""

    graph_warns: bool
    graph_writes_again: bool
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
        """Remember a write to an external object (DELETED: it is removed)."""

    def store_variable(self, variables: dict[str, object], name: str, value: object) -> None:
        """Remember a write to a module's variable."""

    def variable(self, module: ModuleType, name: str) -> Any:
        """What the program has written to a module's variable; None: nothing."""

    def delete(self, kind: str, target: object, name: str) -> None:
        """Remember that something is removed."""

    def defer(self, fn: Callable[..., object], args: Args, kwargs: Kwargs, at: At | None = None) -> None:
        """Make a call after the graph has run; `at`: for a function that looks who calls it."""

    def warn(self, location: Any, message: object, category: object, source: object) -> None:
        """Give a warning after the graph has run."""

    def make(self, handle: object) -> None:
        """Have residual code make an object, unless it was removed by then."""

    def mirror(self, value: object) -> Any:
        """The stand-in of an external container, with all its items read; anything else unchanged."""

    def append(self, container: list[object], value: object) -> None:
        """`container.append(value)`"""

    def untouched(self, container: object) -> bool:
        """Nothing was written to this external container, nor was it taken whole."""

    def pending(self) -> bool:
        """Something outside is not yet as the program left it."""

    def containers_changed(self) -> bool:
        """The program wrote to a container from outside."""

    def source_behind(self, value: object) -> Source | None:
        """Where an object from outside was read, or the view from outside that this one stands for."""

    def original(self, value: object) -> Any:
        """The container that a mirror or a copy stands for; anything else unchanged."""

    def read_items(self, value: list[object] | tuple[object, ...], source: Source) -> list[Any]:
        """All items of an external list or tuple."""

    def read_dict(self, value: dict[object, object], source: Source) -> dict[Any, Any]:
        """All items of an external dict."""

    def read_key(self, value: dict[object, object], source: Source, key: object) -> Any:
        """One item of an external dict that has the key."""

    def has_key(self, value: dict[object, object], source: Source, key: object) -> bool:
        """Whether an external dict has the key, with the guard."""

    def outside(self, key: object) -> Any:
        """A key of the program as an external dict holds it."""

    def refuse_opaque(self, fn: object, values: Iterable[object]) -> None:
        """C code must not look into objects from outside that have no guards for what is inside."""

    def refuse_unguarded(self, value: object) -> None:
        """C code is about to read an object that may be one of those that no guard can read."""

    def refuse_foreign(self, *values: object) -> None:
        """An operator of C code outside of Python, PyTorch and NumPy is about to read these."""

    def refuse_iterators(self, values: Iterable[object]) -> None:
        """An iterator from outside is used up by whoever iterates it."""

    def plain(self, value: object) -> Any:
        """The same value with mirrors in place of external containers."""

    def plain_all(self, values: Iterable[object]) -> Args:
        """Each value as `plain` gives it; what is the same object in two of them still is."""

    def opened(self, container: object) -> AbstractContextManager[None]:
        """While the items of a container are looked at: nothing may look at them meanwhile."""


class Compared(Protocol):
    """Objects that C code compared (`python.comparisons.Compared`)."""

    def are_one(self, left: object, right: object) -> bool:
        """`left is right`, guarded."""

    def tell_apart(self, one: object, other: object) -> None:
        """The program has asked whether these are one object, and they are not."""

    def read_nan(self, value: object, source: Source) -> None:
        """A NaN from outside, which any other will do for until `ask_nan`."""

    def ask_nan(self, *values: object) -> None:
        """Where all of these are NaN, the program asks which objects they are."""

    def nan_source(self, value: object) -> Source | None:
        """Where this very NaN was read."""

    def foreign(self, keys: Iterable[object]) -> None:
        """A dictionary from outside is copied: which objects its keys are is known."""

    def note(self, value: object, hashed: bool = True) -> None:
        """All that tells the value from another is guarded."""

    def guard(self) -> None:
        """Add the guards."""


class Finalizers(Protocol):
    """Objects whose death runs code of the program (`python.finalizers.Finalizers`)."""

    allowed: bool
    owned: list[tuple[Any, Any]]

    def begin(self, given: Iterable[object]) -> None:
        """A frame is about to start with these variables and stack elements, and what it handles."""

    def add(self, value: object) -> None:
        """An object from outside that the frame holds, or may change."""

    def exceptions(self) -> list[int]:
        """The slots and stack elements that were exceptions when the frame started."""

    def refuse_loss(self, value: object) -> None:
        """What the frame is about to take from an object outside."""

    def guard(self, frame: Frame) -> None:
        """What the frame dropped has no finalizer in later calls either."""

    def is_reached(self, value: object) -> bool:
        """Whether what the frame holds now, or has stored, leads to the value."""

    def leads_to_one(self, value: object) -> bool:
        """Whether a value of the capture is or holds an object with a finalizer, or a generator."""

    def doomed(self) -> list[Any]:
        """The objects with finalizers around the frame, and the generators that it did not exhaust."""


class Observed(Protocol):
    """What calls that are put off may change (`calls.observers.Observed`)."""

    targets: set[Any]

    def add(self, vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> None:
        """A call is put off."""

    def look(self, target: object) -> None:
        """The program looks at an object from outside, or at a global variable."""


class Guards(Protocol):
    """The guards so far (`guards.guards.GuardList`)."""

    noted: list[tuple[Source, int, Any]] | None

    def fetch(self, source: Source) -> int:
        """The index of a source among the fetches; equal paths share one."""

    def has(self, source: Source) -> bool:
        """The source is fetched: what the capture read of it is checked."""

    def check(self, source: Source, kind: int, operand: object) -> None:
        """Add a check on the value of a source, unless it is there already."""

    def same(self, a: Source, b: Source) -> None:
        """Both sources give one object."""

    def different(self, a: Source, b: Source) -> None:
        """The sources give two objects."""

    def all_different(self, sources: Iterable[Source]) -> None:
        """No two of the sources give the same object."""

    def python(self, fn: Callable[..., bool], sources: Iterable[Source], shortcut: int | None = None) -> None:
        """`fn` of the values of these sources is true (evaluated by Python: for rare cases)."""

    def together(self, fn: Callable[..., bool], source: Source) -> None:
        """`fn` of the values of all the sources that were given for it is true."""

    def state(self, state: tuple[object, ...]) -> None:
        """The ambient modes are what `native.state()` gave."""

    def flag(self, fn: Callable[..., object], args: Args, value: object) -> None:
        """A setting of the process or the thread is as now: `fn(*args)` is asked each time."""

    def finish(self, outputs: Iterable[int]) -> native.Guards:
        """The guards in evaluable form; `outputs` are the fetches that residual code needs."""


class Profile(Protocol):
    """What the versions of one compile site saw (`guards.dynamic_shapes.SiteProfile`)."""

    classes: Any
    unsteady: set[Site]

    def look_at_value(self, asked: object, found: object) -> bool:
        """Whether a value of a tensor was always the same."""


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
        """The symbol of a number that was another one before; None when it is static."""

    def specialized(self) -> int:
        """Counts what makes the version one for the example."""

    def guard(self, guards: Any) -> None:
        """Add the checks that the symbols need."""

    def origin(self, symbol: Symbol | Real) -> tuple[Source, Source]:
        """The input that shows a symbol, and the source of the number itself."""

    def expression(self, size: IntLike, fetched: Callable[[Source], str], read: Callable[[object], str]) -> str:
        """Python source of a size in residual code."""

    def real_expression(self, real: Real, fetched: Callable[[Source], str], read: Callable[[object], str]) -> str:
        """Python source of a floating-point number in residual code."""


class GraphInput(Protocol):
    """A graph input (`tensors.tensors.Input`)."""

    tensor: Any
    source: Source
    node: fx.Node


class Speculation(Protocol):
    """Values of masks and lengths that are taken for granted (`tensors.speculation.Speculation`)."""

    allowed: bool
    insists: bool

    def value(self, tensor: TraceTensor) -> torch.Tensor | None:
        """A real tensor with the values of `tensor`, known or taken for granted; None: they stay unknown."""

    def count(self, mask: TraceTensor) -> int | None:
        """How many elements of `mask` are not zero."""

    def yielding(self) -> AbstractContextManager[None]:
        """Inside, values that are not always the same stay unknown."""

    def finish(self) -> None:
        """Add the guard for everything that was taken for granted."""


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
        """Whether the tensor is one of the graph's and still has the value that was read."""

    def exposed(self, number: object) -> tuple[TraceTensor, int | None]:
        """A tensor that shows a number at the end of the graph, and in which dimension."""


class Runner(Protocol):
    """Runs torch callables on trace tensors (`tensors.trace_call.Runner`)."""

    def run(self, target: object, args: Args, kwargs: Mapping[str, object]) -> Any:
        """Its result; what it warns of, the program will be warned of."""

    def attempt(self, target: object, args: Args, kwargs: Mapping[str, object]) -> tuple[Any, list[TraceTensor]]:
        """Its result, and the tensors that it wrote to."""


class Watch(Protocol):
    """Records tensor operations of C code (`tensors.c_callbacks.Watch`)."""

    def run(self, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> Any:
        """Call C code."""

    def pause(self, fn: Callable[..., object], *args: object) -> Any:
        """Call back into the interpreter from C code."""


class Numbers(Protocol):
    """The nodes of symbolic numbers (`tensors.number_nodes.NumberNodes`)."""

    def given(self, number: Size | Real, node: fx.Node) -> None:
        """`node` is an input that brings the number."""

    def known(self) -> dict[str, fx.Node]:
        """The nodes so far."""

    def restore(self, known: dict[str, fx.Node]) -> None:
        """Forget what was computed since `known`: those nodes leave the graph. Inputs stay."""

    def __call__(self, number: object) -> Any:
        """The number itself, or the node that computes it."""


class Inference(Protocol):
    """Tensors that were made in inference mode (`tensors.inference_tensors.InferenceTensors`)."""

    def note(self, tensor: TraceTensor) -> None:
        """The tensor was made in inference mode."""

    def __contains__(self, tensor: object) -> bool:
        """Whether the tensor was."""


class Tensors(Protocol):
    """The tensors of a capture, the graph that makes them, its inputs (`tensors.tensors.Tensors`).

    Lives as long as the graph that it builds; a function that a transform captures has its own.
    """

    branches: bool
    region: int | None
    asserts: bool
    caught: bool
    guarded: bool
    read_guarded: bool
    mutated: set[fx.Node]
    draws_anew: bool
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
    kept_whole: dict[int, TraceTensor]
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
    def watch(self) -> Watch: ...
    @property
    def inference(self) -> Inference: ...

    def release(self) -> None:
        """Let go of the program's tensors."""

    def handle(self, value: object) -> Any:
        """The trace tensor of a real tensor that is an input; any other value unchanged."""

    def type_of(self, tensor: TraceTensor) -> type:
        """The class of a trace tensor as the program sees it."""

    def stand_in(self, tensor: TraceTensor) -> torch.Tensor:
        """A real tensor that answers isinstance and the like as the traced one would."""

    def read(self, value: torch.Tensor, source: Source) -> TraceTensor:
        """The trace tensor of a real tensor met at `source`, which becomes an input of the graph."""

    def read_number(self, value: int | float, size: Size | Real, source: Source) -> Any:
        """A number that is not the same at every call, met at `source`, as an input of the graph."""

    def given(self, value: object, source: Source) -> fx.Node:
        """Another object from outside as an input, for a node that runs as it is."""

    def prologue_input(self, value: object, source: Source, number: Size | Real | None) -> fx.Node:
        """A tensor or number that the prologue makes, as an input of the graph."""

    def is_given(self, tensor: TraceTensor) -> bool:
        """Whether the tensor lies in the memory of an input."""

    def forbid_writes(self, tensor: TraceTensor) -> None:
        """The tensor shares its memory with something that the graph does not see."""

    def own(self, tensor: TraceTensor, node: fx.Node) -> None:
        """The node is where the tensor comes from."""

    def made_tensors(self) -> Iterator[tuple[fx.Node, TraceTensor]]:
        """Each node that makes a tensor, with the tensor."""

    def knows(self, value: object) -> bool:
        """Whether a node makes this value, here or in the graph around."""

    def refuse_inner(self, value: object) -> None:
        """A tensor that a function saw while it was transformed stands for many, or for one that holds derivatives."""

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
        """Record a call that has run, unless nobody can tell that it has; returns its result."""

    def check(self, fact: Assumed, text: str, error: str) -> None:
        """The program says what holds of a number, and raises where it does not."""

    def act(self, target: EagerBoundary, args: Args) -> None:
        """Record a cut point that gives nothing."""

    def spend(self, nodes: Iterable[object]) -> None:
        """A backward came to these autograd nodes."""

    def writers_of(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that wrote to the memory of the node's tensor so far."""

    def first_view(self, tensor: TraceTensor) -> int | None:
        """The step that first made another tensor in this one's memory; None where none did, or nobody wrote there."""

    def ask_gradient(self, tensor: TraceTensor) -> TraceTensor:
        """`tensor.requires_grad_()` on a tensor that the graph makes and keeps to itself."""

    def asked_gradient(self, node: fx.Node) -> bool:
        """Whether the node's tensor was made a leaf by the program."""

    def asks_gradient(self, outputs: Iterable[TraceTensor]) -> bool:
        """Whether one of the tensors was made a leaf by the program."""

    def either(self, condition: TraceTensor, a: TraceTensor | None, b: TraceTensor | None) -> TraceTensor:
        """A new tensor with the metadata and the history of one that is `a` or `b`."""

    def join(
        self,
        target: Conditional,
        condition: TraceTensor,
        operands: list[fx.Node],
        nodes: list[fx.Node],
        metas: tuple[object, ...],
        outputs: list[TraceTensor],
    ) -> None:
        """Put a branch in place of the nodes of its two ways; `outputs` are the tensors that it gives."""

    def refuse_cut(self, what: str) -> None:
        """A graph is cut between its own nodes only."""

    def writes_inputs(self) -> bool:
        """Whether the graph writes to memory that existed before it."""

    def is_written(self, given: Any) -> bool:
        """Whether the graph writes to an input that is not the prologue's."""

    def argument(self, value: object) -> Any:
        """A value as an argument of an fx node."""


class Ambient(Protocol):
    """The modes of the thread that the program has switched (`tensors.ambient.Ambient`)."""

    log: list[tuple[Callable[..., Any], Args, Kwargs]]
    dirty: bool
    left_switched: bool
    inference: bool

    @property
    def names_devices(self) -> bool: ...

    def begin(self, inference: bool, gradients: bool) -> None:
        """The modes that the program began in: inference mode, and whether gradients are switched on, maybe inside."""

    def switch_device(self, fn: Callable[..., object], args: Args) -> None:
        """Run a function that switches the default device."""

    def switch(self, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> Any:
        """Run a function that switches a mode; one that a number decides is decided here."""

    def gradients(self, enabled: bool) -> AbstractContextManager[None]:
        """The program runs with gradients on or off for a time."""

    def unrecorded(self, graph: fx.Graph) -> AbstractContextManager[None]:
        """Gradients are off for a write to what requires none."""

    def sync(self, graph: fx.Graph) -> None:
        """Make the graph's open regions those of the present modes."""

    def inside_region(self, graph: fx.Graph) -> bool:
        """Whether a node that comes next would stand in a region of the graph."""

    def begin_inside(self) -> None:
        """Regions of the graph that come next lie inside of a mode that is none of them: they are left before it is."""

    def begin_switched(self, graph: fx.Graph, gradients: bool) -> None:
        """The same for a mode that switches gradients on or off."""

    def end_inside(self, graph: fx.Graph) -> None:
        """The end of what `begin_inside` began."""

    def close(self, graph: fx.Graph) -> None:
        """Leave every region that is open in the graph."""

    def switched(self) -> bool:
        """Whether the modes are now others than at the beginning."""

    def restore(self) -> None:
        """Undo the switches on this thread; the capture is over."""


class PrologueInputs(Protocol):
    """The inputs of a graph that its prologue makes (`prologue.inputs.PrologueInputs`)."""

    numbers: dict[str, PrologueValue]

    def lift(self, args: object, key: bool = False) -> Any:
        """Arguments of a tensor operation with numbers and tensors in place of values."""

    def number(self, value: PrologueValue) -> Any:
        """A number as an argument of a tensor operation: an input of the graph."""

    def needs(self, names: Iterable[str]) -> bool:
        """The program, or a stage, needs to know these numbers: whether a new capture can take them for granted."""

    def origins(self) -> list[Origin]:
        """Where numbers became inputs of the graph."""

    def named(self, number: object) -> PrologueValue | None:
        """The value that a number of the graph's inputs is."""

    def tensor(self, value: object) -> Any:
        """A tensor that the prologue makes, as an input of the graph."""

    def made(self, tensor: TraceTensor) -> PrologueValue | None:
        """The value that a tensor is, if the prologue makes it."""

    def condition(self, value: PrologueValue) -> TraceTensor:
        """The truth of a value as a tensor, for a branch."""


class Prologue(Protocol):
    """What Python computes before the graph runs (`prologue.prologue.Prologue`)."""

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
        """An array from outside: read at each call, its shape and dtype are guarded."""

    def handle(self, value: object) -> Any:
        """The value of an array from outside; anything else unchanged."""

    def read_from(self, value: PrologueValue) -> tuple[ndarray, Source] | None:
        """The array from outside that it is, and its source."""

    def known(self, value: PrologueValue) -> Any:
        """The plain value, taken for granted from now on."""

    def shape(self, value: PrologueValue) -> None:
        """The kind of the value is taken for granted: residual code checks it."""

    def length(self, value: PrologueValue) -> Any:
        """`len(value)`; that of a text is a value of its own."""

    def items(self, value: PrologueValue) -> list[Any]:
        """`list(value)`"""

    def shares(self, array: PrologueValue) -> None:
        """A tensor shares memory with the array from now on: neither may be written."""

    def run(self, fn: Any, args: Args, kwargs: Kwargs, method: str | None = None) -> Any:
        """Run an operation on the examples and write it down; gives its result."""

    def whole(self, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> Any:
        """Run a function of the program that draws random numbers."""

    def arguments(self, value: object) -> Any:
        """Arguments as they are now."""

    def use(self, value: PrologueValue) -> str:
        """Residual code mentions the value."""

    def program(self) -> Sequence[Any]:
        """The operations that have to run, for what is used so far."""

    def check_apart(self) -> None:
        """Arrays from outside are read before the graph runs: it must not write to them."""

    def guard(self) -> None:
        """Add the guard on the values that were taken for granted."""

    def restore(self) -> None:
        """The capture ends: nobody has drawn anything."""


class Interpreter(Protocol):
    """One capture of one frame; `capture.interpreter.Interpreter` says what each attribute holds."""

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
    def effects(self) -> Effects: ...
    @property
    def compared(self) -> Compared: ...
    @property
    def observed(self) -> Observed: ...
    @property
    def finalizers(self) -> Finalizers: ...
    @property
    def step_counts(self) -> Callable[[torch.Tensor, Source], Any]: ...

    def release(self) -> None:
        """Let go of the program's objects."""

    def where(self) -> At | None:
        """The user's line that is being interpreted."""

    def sibling(self) -> Interpreter:
        """An interpreter with the same guards, sizes and objects from outside; tensors and effects of its own."""

    def keep(self, value: object) -> None:
        """Identities are keys: nothing that is one may die during the capture."""

    def run(self, frame: Frame) -> object:
        """Interpret until the frame returns or yields; `frame.value` is what it gave."""

    def run_root(self, frame: Frame, stop_at: int = -1) -> Break | None:
        """Interpret the captured frame itself."""

    def unwind(self, frame: Frame, error: UserError) -> None:
        """Continue at the handler that covers the present instruction, or raise out of the frame."""

    def close_generators(self, kept: Callable[[object], bool]) -> None:
        """Generators that the frame leaves in the middle of a `try` run its end when Python drops them."""

    def handled(self) -> BaseException | None:
        """The exception that the program is handling."""

    def context(self) -> Any:
        """What an exception that is raised now gets as its context."""

    def outer_exception(self) -> Any:
        """What the caller of the captured frame is handling, with its guard."""

    def external(self, value: object, source: Source) -> Any:
        """The handle of a value that was read through `source`, with the guards that reading it takes."""

    def check_type(self, value: object, source: Source) -> None:
        """Guard the class of an external value."""

    def register(self, value: T, source: Source) -> T:
        """From now on `value` is external."""

    def externals(self) -> list[Any]:
        """Objects from outside, and what else the capture keeps."""

    def source_of(self, value: object) -> Source | None:
        """The source of an external object; None for leaves and for what the frame made."""

    def is_external(self, identity: int) -> bool:
        """Whether an external object has the identity, or a dictionary of globals."""

    def globals_source(self, globals: dict[str, object]) -> Source:
        """The dictionary of an (inlined) function's globals."""

    def root_globals(self, globals: dict[str, object]) -> None:
        """The captured frame's globals are read from the frame, not held by the guards."""

    def load_global(self, frame: Frame, name: str) -> Any:
        """A global variable or builtin, as LOAD_GLOBAL finds it."""

    def cell(self, cell: CellType, name: str) -> Any:
        """What a closure cell holds; NULL when it is empty."""

    def adopt_cells(self, function: FunctionType, source: Source) -> None:
        """Make the cells of an external function's closure external."""

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
