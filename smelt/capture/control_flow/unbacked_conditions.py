"""`n = mask.sum().item()`, then `if n > 2`: branches on unbacked numbers.

The comparison becomes a tensor of the graph, and the branch a node, as for other tensors' values (`conditionals`). If
one of the arms only raises, the compiled code checks the comparison, and capture assumes its result from there on.
"""

from __future__ import annotations

import torch

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Interpreter
from smelt.graph.ir.sym_bool import SymbolicPredicate, compare, opposite
from smelt.graph.ir.symint import symbolic_value, to_torch
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.size import Size, as_symbol
from smelt.shapes.unbacked import is_unbacked

COMPARE = {"==": torch.eq, "!=": torch.ne, "<": torch.lt, ">=": torch.ge}


def predicate_of(vm: Interpreter, value: object) -> SymbolicPredicate | None:
    """The predicate that `bool(number)` tests; None unless it depends on tensors' values and the graph may read
    them.
    """
    if not vm.values.are_read or vm.tensors is not vm.outermost:
        return None
    predicate = symbolic_value(value) if type(value) is torch.SymBool else None
    if type(value) is torch.SymInt:
        predicate = compare("==", symbolic_value(value), 0, True)
    if not isinstance(predicate, SymbolicPredicate) or predicate.fact is None or predicate.prove() is not None:
        return None
    return predicate if is_unbacked(*predicate.sizes()) else None


def check_predicate(vm: Interpreter, predicate: SymbolicPredicate, raises: bool) -> bool:
    """Record a check that the predicate is not `raises` (True or False). Returns False if it cannot be checked here."""
    if not vm.plan.checks or vm.control.branching or vm.tensors.region is not None:
        return False
    wanted = opposite(predicate) if raises else predicate
    if not isinstance(wanted, SymbolicPredicate) or wanted.fact is None or not wanted.expect("", "RuntimeError"):
        return False
    vm.tensors.check(wanted.fact, f"{wanted.fact} does not hold", "RuntimeError")
    vm.tensors.asserts = True
    return True


def as_condition(vm: Interpreter, predicate: SymbolicPredicate) -> TraceTensor:
    """The predicate as a tensor of the graph.

    Raises:
        Break: no tensor of the graph has one of the numbers.
    """
    fact = predicate.fact
    assert fact is not None
    left, right = (_tensor(vm, side) if isinstance(side, Size) else side for side in (fact.left, fact.right))
    if not isinstance(left, torch.Tensor):
        left = vm.tensors.run(torch.full, ((), left), {"dtype": torch.int64})
    answer: TraceTensor = vm.tensors.run(COMPARE[fact.sign], (left, right), {})
    return answer


def _tensor(vm: Interpreter, size: Size) -> TraceTensor:
    """A tensor that contains the number: the tensor that it was read from, if that is unchanged."""
    symbol = as_symbol(size)
    read = None if symbol is None else vm.tensors.reads.found.get(symbol.name)
    if read is not None and read.dim is None and vm.tensors.reads.shows(read):
        source: TraceTensor = read.tensor
        return vm.tensors.run(torch.Tensor.reshape, (source, ()), {}, "reshape") if source.dim() else source
    made: TraceTensor = vm.tensors.run(torch.full, ((), to_torch(size)), {"dtype": torch.int64})
    if type(made) is not TraceTensor:
        raise Break("a branch on a data-dependent number", "no tensor of the graph holds it")
    return made
