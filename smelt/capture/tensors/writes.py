"""In-place writes to arguments that eager refuses, and guards against arguments that share memory.

Eager refuses writes to inference tensors, to views whose history autograd cannot follow, and, in some operators, to
memory that arguments share.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from smelt.capture import _native as native
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.sources import PROLOGUE, Source
from smelt.capture.guards.questions import may_be_written, share_no_memory, span
from smelt.graph.ir.meta import is_opaque

if TYPE_CHECKING:
    from smelt.capture.tensors.tensors import Input


def check_write(vm: Interpreter, written: torch.Tensor, argument: torch.Tensor, source: Source) -> None:
    """Check a write of the program to the memory of an argument.

    Args:
        written: the trace tensor that was written to, the argument itself or a view of it.

    Raises:
        Break: eager refuses the write. The operation runs in eager, so that its error comes in order.
    """
    if argument.is_inference() and not vm.ambient.inference:
        raise Break("a write to an inference tensor outside of inference mode", "eager raises an error")
    if not (torch.is_grad_enabled() and written.requires_grad):
        return
    if not may_be_written(argument):
        raise Break("a write to a view whose history autograd cannot follow", "eager raises an error")
    vm.guards.python(may_be_written, [source])


def check_refused_write(vm: Interpreter, owners: Iterable[tuple[torch.Tensor, Source]]) -> None:
    """Check an error of an in-place operator, which the program may catch. If arguments share memory, eager reports
    that before it compares their sizes, so eager's error may be another one.

    Args:
        owners: the arguments whose memory the operator was given.

    Raises:
        Break: the arguments share memory.
    """
    inputs = [(tensor, source) for tensor, source in owners if source.kind != PROLOGUE]
    if len(inputs) < 2:
        return
    if not share_no_memory(*(tensor for tensor, _ in inputs)):
        raise Break("a write to an argument that shares memory with another one is refused", "eager raises an error")
    vm.guards.python(share_no_memory, [source for _, source in inputs], native.SHORT_DISJOINT)


def alias_was_written(vm: Interpreter, tensor: torch.Tensor, source: Source) -> bool:
    """Whether the program has written to another argument that shares memory with this one.

    A negative result is guarded, except for two tensors of modules: if those share memory, they are views of one
    another permanently.
    """
    for other in vm.tensors.inputs:
        if other.tensor is tensor or other.source.kind == PROLOGUE or not vm.tensors.is_written(other):
            continue
        if not share_no_memory(tensor, other.tensor):
            return True
        if native.MODULE_MEMBER not in (source.kind, other.source.kind):
            vm.guards.python(share_no_memory, [source, other.source], native.SHORT_DISJOINT)
    return False


def disjoint_groups(inputs: Iterable[Input]) -> list[list[Input]]:
    """Split the inputs into lists in which no two inputs share memory: for example a flat buffer in one, its views in
    the next.
    """
    known = [i for i in inputs if i.tensor.numel() and not is_opaque(i.tensor)]
    out: list[tuple[int, list[Input]]] = []
    for addresses, one in sorted(((span(i.tensor), i) for i in known), key=lambda pair: pair[0]):
        position = next((k for k, (end, _) in enumerate(out) if end <= addresses[0]), len(out))
        group = out[position][1] if position < len(out) else []
        out[position : position + 1] = [(addresses[1], [*group, one])]
    return [group for _, group in out]
