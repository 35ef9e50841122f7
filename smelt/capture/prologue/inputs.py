"""Prologue values as inputs of the graph: tensors or symbolic numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy
import torch

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Interpreter, Prologue
from smelt.capture.core.prologue_value import PrologueValue, values_in
from smelt.capture.core.sources import PROLOGUE, Source
from smelt.graph.ir.symint import to_torch
from smelt.graph.trace.trace import TraceTensor, trace_like
from smelt.shapes.real import Real
from smelt.shapes.unbacked import LOWEST, Origin


class PrologueInputs:
    """The graph inputs that the prologue of one capture computes.

    Attributes:
        numbers: prologue values by the names of their symbols in the graph.
        locations: for each of these names, the instruction (code identity, index) that used the number first.
    """

    def __init__(self, vm: Interpreter, prologue: Prologue) -> None:
        self.vm, self.prologue = vm, prologue
        self.numbers: dict[str, PrologueValue] = {}
        self.locations: dict[str, tuple[int, int]] = {}
        self._lifted: dict[tuple[int, str], Any] = {}
        self._origins: list[Origin] = []
        self._made: dict[int, PrologueValue] = {}

    def lift(self, args: Any, key: bool = False) -> Any:
        """The arguments of a tensor operation, with prologue values replaced by numbers and tensors.

        Args:
            key: whether the arguments are an index of a tensor.
        """
        kind = type(args)
        if kind is PrologueValue:
            return self.number(args) if not isinstance(args.example, numpy.ndarray) else self._as_index(args, key)
        if kind is tuple or kind is list:
            if not any(True for _ in values_in(args)):
                return args
            return kind([self.lift(a, key) for a in args])
        if kind is slice:
            return slice(*(self.lift(bound) for bound in (args.start, args.stop, args.step)))
        if kind is dict:
            return {name: self.lift(a) for name, a in args.items()}
        return args

    def _as_index(self, value: PrologueValue, key: bool) -> object:
        if not key:
            raise Break("an array of numpy as argument of a tensor operation", "", "torch.from_numpy(array)")
        return self.tensor(self.prologue.run(torch.tensor, (value,), {}))

    def number(self, value: PrologueValue) -> object:
        """A prologue number as an argument of a tensor operation: a constant if its value is known or assumed, else a
        graph input.
        """
        if value.constant or value.index in self.prologue.pinned:
            return value.example
        example = value.example
        if isinstance(example, numpy.generic) and not isinstance(example, numpy.bool_):
            value = self.prologue.run(None, (value,), {}, method="item")
            example = value.example
        if type(example) is not int and type(example) is not float or self._location() in self.vm.control.pinned:
            return self.prologue.known(value)
        found = self._lifted.get((value.index, "number"))
        if found is None:
            found = self._lifted[value.index, "number"] = self._number(value, type(example))
        return found

    def _number(self, value: PrologueValue, kind: type) -> object:
        self.prologue.shape(value)
        vm, owner = self.vm, self.vm.sizes.owner
        origin = Origin(vm.step, str(vm.where() or "an unknown line"))
        low, high = value.range or (LOWEST, None)
        size = owner.unbacked_real(origin) if kind is float else owner.unbacked(origin, low, high)
        symbol = size if isinstance(size, Real) else owner.symbols[-1]
        self._origins.append(origin)
        self.numbers[symbol.name], self.locations[symbol.name] = value, self._location()
        node = vm.tensors.prologue_input(value.example, self._source(value), size)
        vm.tensors.number_node.add_input(size, node)
        return to_torch(size)

    def _location(self) -> tuple[int, int]:
        frame = self.vm.frames[-1]
        return id(frame.code), frame.pc

    def needs(self, names: Iterable[str]) -> bool:
        """Note that the values of these numbers are needed; returns whether another attempt can assume some of them."""
        locations = {self.locations[name] for name in names if name in self.locations} - self.vm.control.pinned
        self.vm.control.pinned.update(locations)
        return bool(locations)

    def origins(self) -> list[Origin]:
        """The origins of the prologue numbers that became graph inputs."""
        return self._origins

    def named(self, number: object) -> PrologueValue | None:
        """The prologue value of a number among the graph inputs; None for another number."""
        return self.numbers.get(number.name if hasattr(number, "name") else str(number))

    def tensor(self, value: object) -> Any:
        """A tensor computed by the prologue, as an input of the graph."""
        assert isinstance(value, PrologueValue) and isinstance(value.example, torch.Tensor)
        found = self._lifted.get((value.index, "tensor"))
        if found is None:
            self.prologue.shape(value)
            found = trace_like(value.example)
            node = self.vm.tensors.prologue_input(value.example, self._source(value), None)
            self.vm.tensors.own(found, node)
            self._lifted[value.index, "tensor"] = found
            self._made[id(found)] = value
        return found

    def made(self, tensor: TraceTensor) -> PrologueValue | None:
        """The prologue value of a tensor; None if the prologue does not make it."""
        return self._made.get(id(tensor))

    def condition(self, value: PrologueValue) -> TraceTensor:
        """The truth value of a prologue value as a tensor, for a branch."""
        found = self._lifted.get((value.index, "condition"))
        if found is None:
            truth = value if type(value.example) is bool else self.prologue.run(bool, (value,), {})
            found = self.tensor(self.prologue.run(torch.tensor, (truth,), {}))
            self._lifted[value.index, "condition"] = found
        return found

    def _source(self, value: PrologueValue) -> Source:
        return Source(None, PROLOGUE, value, value.name)
