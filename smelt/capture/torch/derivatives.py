"""`torch.autograd.grad` in captured code: one node, as long as the history lies within the graph."""

from __future__ import annotations

from typing import Any

import torch

from smelt.base.class_tables import isinstance
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.python.backward import check_leaf, leaves_below, refuse_pieces
from smelt.capture.tensors.torch_calls import call_torch
from smelt.graph.nodes.engine_nodes import history
from smelt.graph.trace.trace import TraceTensor


@special(torch.autograd.grad)
def grad(vm: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """Captured form of `torch.autograd.grad`: runs the engine on trace tensors, which have the same history as in
    eager.

    Raises:
        Break: the history continues in computations that were made before the captured function.
    """
    vm.equal_calls.require_history()
    outputs = vm.effects.plain(args[0] if args else kwargs.get("outputs"))
    refuse_pieces(vm, "torch.autograd.grad")
    heads = [t for t in (outputs if isinstance(outputs, (list, tuple)) else (outputs,)) if type(t) is TraceTensor]
    for leaf in leaves_below(heads):
        check_leaf(vm, leaf)
    nodes = list(history(heads))
    found = call_torch(vm, torch.autograd.grad, args, kwargs)
    if not _keeps_history(*args, **kwargs):
        vm.tensors.note_used_up(nodes)
    return found


def _keeps_history(
    outputs: object,
    inputs: object,
    grad_outputs: object = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    **_: object,
) -> bool:
    return bool(create_graph if retain_graph is None else retain_graph)
