"""`torch.amp.GradScaler.step` in captured code: the update is made, and undone if a gradient was not finite.

Eager reads whether a gradient was infinite or NaN, and calls the optimizer only if all were finite. A graph does not
read this flag. Instead the optimizer's step joins the graph, and each tensor that it wrote gets its old value back if a
gradient was not finite. The result equals eager's bit for bit, provided that the step only writes to tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from smelt.capture import _native as native
from smelt.capture.calls import calls
from smelt.capture.core import sources
from smelt.capture.core.breaks import Break
from smelt.capture.core.conditional_value import PhiValue
from smelt.capture.core.interface import Args, Interpreter, Kwargs, Store
from smelt.capture.core.registry import special
from smelt.capture.python.snapshot import CannotUndo, Snapshot
from smelt.graph.ir.meta import meta_of
from smelt.graph.trace.trace import TraceTensor


@special(torch.amp.GradScaler._maybe_opt_step)
def maybe_step(vm: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """Captured form of `scaler._maybe_opt_step(optimizer, optimizer_state, ...)`.

    Raises:
        Break: the step does more than write to tensors.
    """
    _, optimizer, state, *rest = args
    mirror = vm.effects.mirror
    found = list(mirror(mirror(state)["found_inf_per_device"]).values())
    if not found or not all(type(each) is TraceTensor for each in found):
        return calls.inline(vm, torch.amp.GradScaler._maybe_opt_step, args, kwargs)
    total = found[0]
    for other in found[1:]:
        total = vm.tensors.run(torch.add, (total, vm.tensors.run(torch.Tensor.to, (other, total.device), {})), {})
    skipped = vm.tensors.run(torch.ne, (total, 0), {})
    try:
        region = _UndoneRegion(vm, skipped)
        if vm.call(vm.load_attr(optimizer, "step"), tuple(rest), kwargs) is not None:
            raise CannotUndo("it returns something")
        region.close()
    except CannotUndo as more:
        raise _refusal(vm, optimizer, str(more)) from None


class _UndoneRegion:
    """The nodes that are recorded after this object is made; their writes are undone if the condition is true."""

    def __init__(self, vm: Interpreter, condition: TraceTensor) -> None:
        self.vm, self.condition = vm, condition
        self.last: fx.Node = next(iter(reversed(vm.tensors.graph.nodes)))
        roots = [value for frame in vm.frames for value in (*frame.locals, *frame.stack)]
        self.before, self.stores = Snapshot(vm, roots), dict(vm.effects.stores)
        self.flags: list[Store] = []

    def close(self) -> None:
        """Record nodes that undo the writes of the region if the condition is true.

        Raises:
            CannotUndo: objects other than tensors were changed.
        """
        self._take_out_flags()
        if self.before.take_changes():
            raise CannotUndo("it changes objects of the program")
        for tensor in self._written():
            self._select_old_or_new(tensor)
        for store in self.flags:
            self.vm.effects.defer(_mark, (self.condition, store.target, store.name, store.value), {})
            undecided = PhiValue(self.condition, native.NULL, store.value, None, self.vm.step)
            self.vm.reads[id(store.target), store.name] = undecided
            self.vm.control.undecided = True

    def _take_out_flags(self) -> None:
        """Take assignments of True or False to attributes out of the region: schedulers mark in this way that the
        optimizer has run.

        An assignment of the present value is dropped. Other assignments are made after the graph, if the step was not
        undone.
        """
        vm = self.vm
        for key, store in list(vm.effects.stores.items()):
            attributes = getattr(store.target, "__dict__", None)
            if key in self.stores or store.kind != "attr" or type(store.value) is not bool or attributes is None:
                continue
            source = vm.sources[id(store.target)]
            del vm.effects.stores[key]
            if store.name in attributes:
                vm.guards.check(vm.attr_source(source, store.name, True), native.IS, attributes[store.name])
            else:
                vm.guards.check(sources.instance_dict(source), native.NOT_KEY, store.name)
            if attributes.get(store.name) is not store.value:
                self.flags.append(store)

    def _written(self) -> list[TraceTensor]:
        """The tensors that existed before the region and were written to in it, one for each storage."""
        tensors = self.vm.tensors
        nodes, node = set(), self.last.next
        while node.op != "root":
            nodes.add(node)
            node = node.next
        written = [key for key, writers in tensors.writers.items() if not nodes.isdisjoint(writers)]
        older = [t for node, t in tensors.made_tensors() if node not in nodes or node.op == "placeholder"]
        roots = {id(t.storage_view.storage): t for t in reversed(older) if t.storage_view.parent is None}
        if any(id(t.storage_view.storage) in written and id(t.storage_view.storage) not in roots for t in older):
            raise CannotUndo("it writes to part of a tensor")
        return [roots[key] for key in written if key in roots]

    def _select_old_or_new(self, tensor: TraceTensor) -> None:
        tensors, condition = self.vm.tensors, self.condition
        with self.vm.ambient.gradients(False):
            old = tensors.runner.run(torch.clone, (tensor,), {})
            with tensors.graph.inserting_after(self.last):
                node = tensors.graph.call_function(torch.clone, (tensors.nodes[id(tensor)],))
            node.meta["val"] = meta_of(old)
            tensors.own(old, node)
            if tensor.device != condition.device:
                condition = tensors.run(torch.Tensor.to, (condition, tensor.device), {}, method="to")
            chosen = tensors.run(torch.where, (condition, old, tensor), {})
            tensors.run(torch.Tensor.copy_, (tensor, chosen), {}, method="copy_")


def _mark(skipped: torch.Tensor, target: object, name: str, value: bool) -> None:
    """Set an attribute unless the optimizer's step was undone."""
    if not skipped:
        setattr(target, name, value)


def _refusal(vm: Interpreter, optimizer: object, why: str) -> Break:
    """The break for a step that cannot be undone. If the optimizer has no state yet, only this first step breaks the
    graph.
    """
    title = "GradScaler.step() with an optimizer whose step does more than write to tensors"
    stop = Break(title, f"it is undone where a gradient is not finite, but {why}")
    source = vm.source_of(optimizer)
    if source is not None and not getattr(optimizer, "state", True):
        stop.because.append((sources.instance_item(source, "state"), native.LEN, 0))
    return stop
