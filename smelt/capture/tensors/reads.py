"""Numbers that a graph reads from tensors (see `graph.trace.unbacked`), and the nodes and residual code that
give them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from smelt.base.class_tables import isinstance
from smelt.base.torch_private import version_of
from smelt.capture.core.breaks import Break, Restart
from smelt.graph.ir.meta import meta_of
from smelt.graph.trace.trace import TraceTensor, trace_like
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.real import Real
from smelt.shapes.size import Size, as_symbol
from smelt.shapes.unbacked import DataDependent, Origin

if TYPE_CHECKING:
    from smelt.capture.tensors.tensors import Tensors


@dataclass
class Read:
    """The origin of one number: the value of `tensor` if `dim` is None, else its size in dimension `dim`.

    Attributes:
        version: the tensor's version when the number was read; the tensor may be written to later.
        node: the node that read the number.
    """

    tensor: TraceTensor
    dim: int | None
    version: tuple[int, int]
    node: fx.Node | None = None


class Reads:
    """The numbers that one capture reads.

    Attributes:
        known: numbers, by a key for the contents that were read.
        found: how each number was read, by the number's name.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.known: dict[Hashable, Size | Real] = {}
        self.found: dict[str, Read] = {}
        self._new: list[tuple[Size | Real, Read]] = []
        self._kept: list[object] = []

    @property
    def owner(self) -> Assumptions:
        """The owner of the numbers' symbols."""
        return self.tensors.vm.sizes.owner

    # -- called by operators (graph.unbacked.Numbers) ----------------------------------------------------------------

    def identity(self, tensor: TraceTensor) -> Hashable:
        """A key for the contents of a tensor until the next write to it."""
        self._kept.append(tensor.storage_view)
        return id(tensor.storage_view), version(tensor)[1]

    def origin(self) -> Origin:
        """The step and the line that are being interpreted."""
        vm = self.tensors.vm
        return Origin(vm.step, str(vm.where() or "an unknown line"))

    def read(self, number: Size | Real, tensor: TraceTensor) -> None:
        """Note that `number` is the value of `tensor`."""
        self._new.append((number, Read(tensor, None, version(tensor))))

    def read_size(self, number: Size, tensor: TraceTensor, dim: int) -> None:
        """Note that `number` is the size of `tensor` in `dim`."""
        self._new.append((number, Read(tensor, dim, version(tensor))))

    # -- called by the capture ---------------------------------------------------------------------------------------

    def take(self) -> list[tuple[Size | Real, Read]]:
        """The numbers that were noted since the last call."""
        new, self._new = self._new, []
        return new

    def record(self, node: fx.Node, new: list[tuple[Size | Real, Read]], out: object) -> None:
        """Note that `node`, whose result is `out`, read these numbers."""
        for number, read in new:
            read.node = node
            node.meta.setdefault("origin", leaf_of(number).origin)
            if read.dim is not None and id(read.tensor) not in self.tensors.nodes:
                read.tensor, read.dim = _result_of_size(out, number) or (read.tensor, read.dim)
            self.found[name_of(number)] = read

    def shown(self, number: object) -> tuple[str, tuple[object, ...]]:
        """The tensor method that gives a number in the graph, and its arguments.

        Raises:
            Break: no tensor of the graph contains the number, which exists only inside an operator.
        """
        read = self.found[name_of(number)]
        node = self.tensors.nodes.get(id(read.tensor))
        if node is None or (read.dim is None and version(read.tensor) != read.version):
            raise Break("a number that an operator read for itself", "no tensor of the program shows it")
        return ("item", (node,)) if read.dim is None else ("size", (node, read.dim))

    def shows(self, read: Read) -> bool:
        """Whether the graph has the tensor and the tensor still contains the value that was read."""
        return id(read.tensor) in self.tensors.nodes and version(read.tensor) == read.version

    def exposed(self, number: object) -> tuple[TraceTensor, int | None]:
        """(tensor, dim): a tensor that gives the number at the end of the graph, by its size in `dim`, or by its value
        if `dim` is None.

        Raises:
            Restart: there is no such tensor; the graph has to end where the number was read.
        """
        read = self.found.get(name_of(number))
        if read is None or read.node is None or id(read.tensor) not in self.tensors.nodes:
            step = leaf_of(number).origin.step
            raise Restart(step, Break("a number that an operator read for itself", "no tensor of the program shows it"))
        if read.dim is None and version(read.tensor) != read.version:
            graph, source = self.tensors.graph, self.tensors.nodes[id(read.tensor)]
            with graph.inserting_before(read.node):
                copy = graph.call_method("clone", (source,))
            copy.meta |= {**read.node.meta, "val": meta_of(read.tensor)}
            read.tensor = trace_like(copy.meta["val"], requires_grad=False)
            read.version = version(read.tensor)
            self.tensors.own(read.tensor, copy)
        return read.tensor, read.dim


def leaf_of(number: object) -> Any:
    """The symbol of a size; a floating-point number is its own leaf."""
    symbol = as_symbol(number) if isinstance(number, Size) else number
    assert symbol is not None
    return symbol


def name_of(number: object) -> str:
    """The name of a symbol or leaf."""
    name: str = leaf_of(number).name
    return name


def version(tensor: TraceTensor) -> tuple[int, int]:
    """A pair of counters that changes with every write to the tensor, whether PyTorch or the trace counts the write."""
    return version_of(tensor), tensor.storage_view.storage.version


def _result_of_size(out: object, number: object) -> tuple[TraceTensor, int] | None:
    """(tensor, dim) of the first tensor in a result whose size in `dim` is the number; None if there is none."""
    for each in out if isinstance(out, (list, tuple)) else [out]:
        if type(each) is TraceTensor:
            for dim, size in enumerate(each.storage_view.layout.val.shape):
                if as_symbol(size) is as_symbol(number):
                    return each, dim
    return None


def break_for(error: DataDependent) -> Break:
    """The break that ends the graph where a number is read."""
    return Break(error.what, error.why or "", error.hint or "")
