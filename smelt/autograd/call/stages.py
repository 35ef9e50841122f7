"""A backward program in stages as a chain of autograd nodes: each returns its gradients before the next stage runs.

The engine accumulates a gradient in its leaf, and calls the leaf's hooks, before it visits nodes that were created
earlier. The first node starts the program, returns the gradients that are final after the program's first stage, and
passes an empty gradient to the node of the second stage, which continues the program. In this way the hooks of leaves,
such as those of DistributedDataParallel, run before later kernels are launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from smelt.abi.staged import Staged
from smelt.autograd.call.absent_tangents import Backward
from smelt.autograd.call.backward_notes import note_line
from smelt.autograd.trace.plan import Joint
from smelt.graph.nodes.absent_gradients import skip_absent, skip_absent_below

Gradients = tuple[torch.Tensor | None, ...]


class Chain:
    """The distribution of the inputs of one compiled graph over autograd nodes.

    Args:
        stages: for each stage, the positions of the inputs whose gradients its node returns; the first stage's node is
            the call's own.
        joint: the plan of calls.
        device: the device of the gradients.
    """

    def __init__(self, stages: Sequence[Sequence[int]], joint: Joint, device: torch.device) -> None:
        self.stages, self.device = [list(stage) for stage in stages], device
        self.positions = {i: k for i, k in enumerate(joint.gradients) if isinstance(k, int)}
        self.token = torch.empty(0, device=device)

    def begin(self, edges: list[torch.Tensor]) -> tuple[Handover, list[torch.Tensor]]:
        """Create the nodes of one call for all stages but the first; `edges` keeps the first node's inputs.

        Returns:
            The state that the nodes share, and the edge from the first node to the second.
        """
        handover = Handover(self)
        edge: list[torch.Tensor] = []
        with torch.enable_grad():
            for number in range(len(self.stages) - 1, 0, -1):
                edge = [_Stage.apply(handover, number, *(edges[i] for i in self.stages[number]), *edge)]
        for stage in self.stages[1:]:
            for i in stage:
                edges[i] = self.token
        return handover, edge


def chain_of(joint: Joint, backward: object) -> Chain | None:
    """Returns the chain for a graph whose backward was compiled in stages; None if the backward is one node."""
    if not isinstance(backward, Backward) or not all(isinstance(k, int | None) for k in joint.gradients):
        return None
    program = next((p for p in backward.programs.values() if isinstance(p, Staged)), None)
    if program is None:
        return None
    stages = _inputs_by_stage(joint, program)
    devices = [joint.tangent_meta(i).device for i in joint.differentiable]
    device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
    return Chain(stages, joint, device) if len(stages) > 1 else None


def _inputs_by_stage(joint: Joint, program: Staged) -> list[list[int]]:
    """Returns the inputs whose gradients each stage returns; stages after the first that return none are omitted."""
    stage_of = {position: number for number, positions in enumerate(program.positions) for position in positions}
    stages: list[list[int]] = [[] for _ in program.positions]
    for i, position in enumerate(joint.gradients):
        if isinstance(position, int):
            stages[stage_of[position]].append(i)
    return [stages[0], *filter(None, stages[1:])]


class Handover:
    """The state that the nodes of one call share during a backward.

    Attributes:
        program: the running backward program, a generator; None if no stage is left.
        resume: function that runs the program to the end of its next stage.
        positions: for each remaining stage, the positions of its results among the program's.
        found: gradients that are known and not yet returned, by position among the program's results.
        left: gradients that are not yet returned, by input, if all gradients were computed at once.
        absent: inputs without a gradient in this backward.
        hooks: hooks of inputs that are not leaves, by input.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.program: Iterator[list[Any]] | None = None
        self.resume: Callable[[list[Any]], list[Any]] = _next
        self.positions: Iterator[tuple[int, ...]] = iter(())
        self.found: dict[int, torch.Tensor] = {}
        self.left: dict[int, torch.Tensor | None] = {}
        self.absent: frozenset[int] = frozenset()
        self.hooks: dict[int, Any] = {}

    def start(self, program: Staged, inputs: list[Any], wrap: Callable[[Any], Any]) -> list[torch.Tensor | None]:
        """Run the first stage of a backward program.

        Args:
            wrap: function that wraps a boxed function to run below autograd and outside of autocast regions.

        Returns:
            The program's results, None for those of later stages.
        """
        self.program, self.positions, self.resume = program.begin(inputs), iter(program.positions), wrap(_next)
        self.found.clear()
        self._advance()
        return [self.found.pop(position, None) for position in range(program.count)]

    def _advance(self) -> None:
        """Run one more stage."""
        positions = next(self.positions, None)
        if positions is None:
            self.program = None
            return
        try:
            results = self.resume([self.program])
        except Exception as error:
            self.program = None
            note_line(error)
            raise
        for position in positions:
            self.found[position] = results[0]
            del results[0]

    def first(self, made: Gradients, absent: frozenset[int], hooks: dict[int, Any]) -> Gradients:
        """Returns the gradients that the first node returns: those of its own inputs, and an empty one that leads the
        engine to the next node.

        Args:
            made: the gradients of all arguments of the node except the last one.
        """
        self.absent, self.hooks, self.left = absent, hooks, {}
        own = [*made]
        for stage in self.chain.stages[1:]:
            for i in stage:
                if self.program is None:
                    self.left[i] = own[i + 1]
                own[i + 1] = None
        del made
        return (*own, self.chain.token.detach())

    def take(self, number: int) -> list[torch.Tensor | None]:
        """Returns the gradients that the node of stage `number` returns; runs the program until they are known."""
        inputs = self.chain.stages[number]
        if self.left:
            return [self.left.pop(i) for i in inputs]
        positions = [self.chain.positions[i] for i in inputs]
        while self.program is not None and any(position not in self.found for position in positions):
            self._advance()
        taken = [None if i in self.absent else self.found.get(k) for i, k in zip(inputs, positions, strict=True)]
        for position in positions:
            self.found.pop(position, None)
        if number == len(self.chain.stages) - 1:
            self._end()
        return taken

    def _end(self) -> None:
        """Run the program to its end after its last results, so that it releases its memory."""
        while self.program is not None:
            self._advance()
        self.found.clear()


def _next(program: list[Iterator[list[Any]]]) -> list[Any]:
    return next(program[0])


class _Stage(torch.autograd.Function):
    """A stage of a call's backward as an autograd node, which the engine reaches through an empty tensor."""

    @staticmethod
    def forward(ctx: Any, handover: Handover, number: int, *edges: torch.Tensor) -> torch.Tensor:
        """Create the node. `edges`: the stage's inputs, and the tensor that leads to the next stage."""
        ctx.handover, ctx.number = handover, number
        ctx.set_materialize_grads(False)
        return torch.empty(0, device=handover.chain.device)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> Gradients:
        handover: Handover = ctx.handover
        inputs = handover.chain.stages[ctx.number]
        for at, i in enumerate(inputs):
            if i in handover.absent:
                node = ctx.next_functions[at][0]
                if node is not None:
                    skip_absent_below(node)
                    if i in handover.hooks:
                        skip_absent(handover.hooks[i]())
        last = ctx.number == len(handover.chain.stages) - 1
        return (None, None, *handover.take(ctx.number), *(() if last else (handover.chain.token.detach(),)))
