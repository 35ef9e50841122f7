"""Numbers that the program reads from its input tensors: `int(self.step)`, `scale.item()`.

If such a tensor has not been written to since the frame began, its element is known when the frame begins, like an
argument: the element is guarded at first, and becomes an input of the graph once it has changed between calls.
"""

from __future__ import annotations

import torch

from smelt.capture.core import sources
from smelt.capture.core.interface import Interpreter
from smelt.capture.tensors.writes import alias_was_written
from smelt.graph.trace.trace import TraceTensor


def number_at_entry(vm: Interpreter, tensor: TraceTensor) -> object:
    """The number in an input tensor with one element; None if the number is not known before the graph runs."""
    real = vm.tensors.real.get(id(tensor))
    if real is None or real.numel() != 1 or real.dtype == torch.bool or real.dtype.is_complex:
        return None
    if not vm.values.speculates or vm.tensors.writers_of(vm.tensors.nodes[id(tensor)]) or real.device.type == "meta":
        return None
    if alias_was_written(vm, real, vm.sources[id(tensor)]):
        return None
    key = (id(tensor), "item()")
    if key not in vm.reads:
        source = sources.called(vm.sources[id(tensor)], torch.Tensor.item, "item")
        source.local = True  # the element may change while the tensor object stays the same
        vm.reads[key] = vm.external(real.item(), source)
    return vm.reads[key]
