"""The state of a capture on which a call of a module may depend, in a form that can be compared.

A value that the comparison cannot describe raises `Indescribable`; the call is then interpreted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from smelt.capture import _native as native
from smelt.capture.core.values import LEAVES, is_constant
from smelt.capture.tensors.ambient import present_modes
from smelt.capture.tensors.reads import version
from smelt.graph.ir.symint import SYMBOLIC_CLASSES, from_torch
from smelt.graph.trace.trace import TraceTensor

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

    from smelt.capture.core.interface import Interpreter


class Indescribable(Exception):
    """A call depends on a value, or on a state, that cannot be compared with that of another call."""


def describe(vm: Interpreter, value: PyTree, found: list[TraceTensor]) -> object:
    """A description of a value that is equal for another value exactly if both behave alike; trace tensors are
    described by their position in `found`, to which they are added.

    Raises:
        Indescribable: the value is a mutable object of the program, or contains one.
    """
    kind = type(value)
    if kind is TraceTensor:
        return TraceTensor, _position(value, found)
    if kind in SYMBOLIC_CLASSES:
        return kind, str(from_torch(value))
    if kind in LEAVES:
        return kind, value, repr(value)  # two zeros are equal
    if id(value) in vm.sources:
        return object, id(value)  # an external object; the capture keeps it alive
    if kind is tuple or kind is list:
        return kind, tuple([describe(vm, item, found) for item in value])
    if kind is dict:
        return kind, tuple([(_name(key), describe(vm, item, found)) for key, item in value.items()])
    return object, _constant(vm, value)


def _position(tensor: TraceTensor, found: list[TraceTensor]) -> int:
    """The tensor's position in `found`, to which it is added if it is new."""
    for index, known in enumerate(found):
        if known is tensor:
            return index
    found.append(tensor)
    return len(found) - 1


def _name(key: object) -> str:
    if type(key) is str:
        return key
    raise Indescribable


def _constant(vm: Interpreter, value: object) -> int:
    """The identity of a constant that the program has not made."""
    if is_constant(value) and id(value) not in vm.python.created and id(value) not in vm.python.made_classes:
        vm.keep(value)
        return id(value)
    raise Indescribable


def describe_tensor(vm: Interpreter, tensor: TraceTensor) -> tuple[object, ...]:
    """Everything that a call can learn from a trace tensor, but for its identity."""
    view = tensor.storage_view
    memory, key = view.storage, id(tensor)
    return (
        view.layout,
        (view.conjugate, view.negative, view.rows, memory.filled, memory.reshaped, memory.resized),
        (tensor.requires_grad, tensor.is_leaf, tensor.output_nr, tensor.retains_grad),
        version(tensor),
        tensor in vm.tensors.inference,
        len(vm.tensors.writers.get(id(memory), ())),
        len(vm.python.hooks.get(key, ())),
    )


def is_plain_result(vm: Interpreter, tensor: TraceTensor) -> bool:
    """Whether a tensor was made by an operation and has memory of its own, so that one call may get it in the place of
    another.
    """
    view, tensors = tensor.storage_view, vm.outermost
    memory, key = view.storage, id(tensor)
    if view.parent is not None or view.conjugate or view.negative or memory.constant is not None:
        return False
    if tensors.speculation.assumes(tensors.nodes[key]):
        return False
    if key in vm.sources or key in tensors.inner or key in tensors.computed or id(memory) in tensors.kept_roots:
        return False
    if tensors.is_special(tensor) or key in vm.python.hooks or tensor.__dict__:
        return False
    return view.layout.offset == 0 and not tensor.output_nr and not tensor.retains_grad


def describe_context(vm: Interpreter) -> tuple[object, ...]:
    """The state of the capture and of the thread that calls of modules may read.

    Raises:
        Indescribable: the state depends on objects whose content has no description, or calls are not comparable here.
    """
    effects, tensors, sizes = vm.effects, vm.outermost, vm.sizes
    if vm.tensors is not tensors or tensors.region is not None or vm.control.branching or vm.ambient.dirty:
        raise Indescribable
    if (
        vm.subclasses.present
        or vm.observed.targets
        or len(effects.stores) > _MAX_STORES
        or effects.containers_changed()
    ):
        raise Indescribable
    if tensors.reads.known or any(frame.handled for frame in vm.frames) or vm.control.undecided or vm.python.settings:
        raise Indescribable
    return (
        tuple([(frame.code, frame.pc) for frame in vm.frames]),
        (native.state(), present_modes(), vm.ambient.inference, vm.ambient.names_devices),
        _lengths(effects.class_writes, effects.class_dicts, effects.tables, effects.views, effects.cleared),
        _lengths(vm.python.regions, vm.python.read_later, vm.python.made_classes, vm.python.remade),
        _lengths(vm.prologue.ops, vm.prologue.arrays, vm.prologue.used, vm.prologue.pinned),
        _lengths(vm.control.refused, vm.control.pinned, vm.control.slices),
        _lengths(sizes.owner.symbols, sizes.owner.assumed, sizes.occurrences, sizes.reals),
        (sizes.owner.tightened, sizes.owner.granted, vm.guards.hash_order, vm.guards.address_order),
        tensors.describe_state(),
        vm.compared.describe_state(),
        len(vm.finalizers.owned),
    )


def describe_traces(vm: Interpreter) -> tuple[object, ...]:
    """What a call leaves behind that later calls do not read, but residual code does; a call that is copied must leave
    it unchanged.
    """
    return (vm.prologue.acts, vm.control.arm_iterations, *_lengths(vm.ambient.log, vm.effects.deferred))


_MAX_STORES = 32
"""Maximum number of deferred writes that are compared for each call."""


def describe_writes(vm: Interpreter, found: list[TraceTensor]) -> object:
    """The deferred writes to attributes and variables, which the program reads back; see `describe`.

    Raises:
        Indescribable: one of the values has no description.
    """
    return tuple([(key, describe(vm, store.value, found)) for key, store in vm.effects.stores.items()])


def _lengths(*collections: Iterable[object]) -> tuple[int, ...]:
    return tuple([len(each) for each in collections])  # type: ignore[arg-type]
