"""Second derivatives: the gradients of a compiled graph as a differentiable graph, compiled at first use.

Under `create_graph=True` this graph runs instead of the compiled backward. It consists of the captured program and a
node for `torch.autograd.grad` on its results. It is traced, compiled and wrapped like any other graph, so that its own
backward is the second derivative, and so on. Its inputs are those of the original call, which `Memory` remembers, and
the tangents.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils.weak import TensorWeakRef

from smelt.autograd.call.unpacked import is_same_view, memory_marks
from smelt.autograd.trace.plan import Fresh, Joint, SparseGradient, computed_from, needed, recomputes
from smelt.base._native import heard_from_handlers
from smelt.base.process_state import preserving
from smelt.base.torch_private import version_of
from smelt.graph.ir.module import Graph, GraphModule
from smelt.graph.ir.symint import owner_of
from smelt.graph.nodes.casts import present_casts, under_casts
from smelt.graph.nodes.custom_functions import forget_state
from smelt.graph.nodes.modes import enter_autocast, exit_autocast

CompileGraph = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Any]]


class DoubleBackward:
    """Compiles the gradients of one captured graph.

    Args:
        gm: the torch-level graph.
        joint: its joint graph and the plan of its calls.
        compile_graph: compiles a graph in the way in which `gm` was compiled.
    """

    def __init__(self, gm: fx.GraphModule, joint: Joint, compile_graph: CompileGraph) -> None:
        self.gm, self.joint, self.compile = gm, joint, compile_graph
        self.casts = present_casts()
        self._made: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._in_numbers = False

    @cached_property
    def refusal(self) -> str | None:
        """The reason why second derivatives are unsupported; None if they are supported."""
        joint = self.joint
        if joint.numbers or joint.reals:
            return "the graph takes numbers that change between calls (with dynamic=False each number has its graph)"
        if any(type(made) is SparseGradient for made in joint.gradients):
            return "a gradient is sparse"
        if self.joint.reads:
            return "the graph reads numbers from tensors (with dynamic=False it ends there)"
        if any(m.grad for m in joint.mutations) or any(m.input in self.needed for m in joint.mutations):
            return "the graph writes to an input that its gradients depend on"
        if not all(Fresh(k) in joint.outputs for k in joint.differentiable):
            return "an output shares memory with an input or another output"
        return None

    @cached_property
    def recomputes(self) -> bool:
        """Whether nodes of the graph are inside `torch.utils.checkpoint`, which eager runs twice."""
        return recomputes(self.joint)

    @cached_property
    def needed(self) -> frozenset[int]:
        """Positions of the primals on whose values the gradients depend."""
        return needed(self.joint)

    @cached_property
    def computed_from(self) -> frozenset[int]:
        """Positions of the primals of `needed` whose values at the forward matter. The others are read only by the
        backward, with the values that they have when it runs.
        """
        return computed_from(self.joint)

    @cached_property
    def wanted(self) -> tuple[int, ...]:
        """Positions of the primals that have gradients."""
        return tuple(i for i, made in enumerate(self.joint.gradients) if made is not None)

    def inputs_of(self, found: Sequence[torch.Tensor | None]) -> list[torch.Tensor] | None:
        """Returns the recalled inputs, with zeros for missing ones that are not needed; None if a needed one is
        missing.
        """
        out = []
        metas = [n.meta["val"] for n in self.joint.module.graph.nodes if n.op == "placeholder"]
        for i, tensor in enumerate(found):
            if tensor is None and (i in self.needed or metas[i].symbolic):
                return None
            if tensor is None:
                m = metas[i]
                tensor = torch.zeros(m.shape, dtype=m.dtype, device=m.device, requires_grad=i in self.wanted)
            out.append(tensor)
        return out

    def __call__(
        self, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None], changed: bool = False
    ) -> dict[int, Any]:
        """Returns the gradients by primal, with a history that leads to `inputs` and `tangents`.

        Args:
            tangents: one for each result that has gradients; None for a result that was not used.
            changed: whether state that a user-defined backward reads has changed, so that compiled graphs are out of
                date.
        """
        if changed:
            self._made.clear()
        used = tuple(k for k, tangent in enumerate(tangents) if tangent is not None)
        operands = [*inputs, *(tangent for tangent in tangents if tangent is not None)]
        run = self._made.get(self._key(operands, used))
        if run is None:
            with under_casts(self.casts):
                run = self._compiled(operands, used)
        return dict(zip(self.wanted, run(*operands), strict=True))

    def _key(self, operands: Sequence[torch.Tensor], used: tuple[int, ...]) -> tuple[Any, ...]:
        tracked = (used, *(t.requires_grad for t in operands[len(operands) - len(used) :]))
        return (*tracked, *(t.shape for t in operands)) if self._in_numbers else tracked

    def _compiled(self, operands: Sequence[torch.Tensor], used: tuple[int, ...]) -> Callable[..., Any]:
        """Returns the compiled graph, for symbolic sizes if possible; some formulas need numbers, or are valid only for
        the sizes of the first call.
        """
        run = preserving(self._compiled_in_some_way, self.graph(used), operands)
        self._made[self._key(operands, used)] = run
        return run

    def _compiled_in_some_way(self, graph: fx.GraphModule, operands: Sequence[torch.Tensor]) -> Callable[..., Any]:
        if not self.joint.sizes or self._in_numbers:
            return self.compile(self._as_known(graph), operands)
        roll_back = owner_of(
            self.gm
        ).assumption_rollback()  # no guards can be added: this graph must be valid for every size
        try:
            run = self.compile(self._as_known(graph), operands)
        except RuntimeError:
            if heard_from_handlers() is not None:
                raise
        else:
            if not roll_back():
                return run
        roll_back()
        self._in_numbers = True
        return self.compile(self._as_known(graph), operands)

    def _as_known(self, graph: fx.GraphModule) -> fx.GraphModule:
        if self._in_numbers:
            for node in graph.graph.nodes:
                if node.op == "placeholder":
                    node.meta.pop("val", None)
        return graph

    def replayed(
        self,
        inputs: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        replaced: Mapping[int, torch.Tensor],
    ) -> dict[int, Any]:
        """Returns the gradients computed by eager's engine; the inputs `replaced` get new memory (`x.data = y`) between
        forward and backward.
        """
        used = tuple(k for k, tangent in enumerate(tangents) if tangent is not None)

        def engine(*args: Any, **options: Any) -> Any:
            for i, new in replaced.items():
                inputs[i].data = new
            return torch.autograd.grad(*args, **options)

        run = self.graph(used, engine)
        with under_casts(self.casts), torch.enable_grad():
            found = run(*inputs, *(tangent for tangent in tangents if tangent is not None))
        return dict(zip(self.wanted, found, strict=True))

    def graph(self, used: Sequence[int], engine: Callable[..., Any] = torch.autograd.grad) -> fx.GraphModule:
        """Returns the program and its gradients as one graph: (inputs, tangents of the results `used`) -> gradients of
        `wanted`.

        As in eager, the engine does not visit nodes that lead only to unused results.
        """
        joint, graph = self.joint, Graph()
        differentiable = [joint.differentiable[k] for k in used]
        env: dict[fx.Node, fx.Node] = {}
        inputs: list[fx.Node] = []
        outputs: Any = None
        for node in self.gm.graph.nodes:
            if node.op == "output":
                outputs = node.args[0]
                continue
            env[node] = graph.node_copy(node, env.__getitem__)
            forget_state(env[node])
            if node.op == "placeholder":
                inputs.append(env[node])
        body = next((n for n in graph.nodes if n.op != "placeholder"), None)
        assert body is not None
        with graph.inserting_before(body):
            tangents = [self._tangent(graph, i) for i in differentiable]
            for each in joint.mutations:  # the caller's tensor was already written by the first run
                copy = graph.call_method("clone", (inputs[each.input],))
                copy.meta["val"] = inputs[each.input].meta.get("val")
                inputs[each.input].replace_all_uses_with(copy)
                copy.args = (inputs[each.input],)
        heads = [env[outputs[joint.outputs.index(Fresh(k))]] for k in differentiable]
        regions = [graph.call_function(enter_autocast, (device, None, False)) for device in joint.autocast]
        leaves = [inputs[i] for i in self.wanted]
        options: dict[str, Any] = {"create_graph": True, "allow_unused": True}
        found = graph.call_function(engine, (heads, leaves, tangents), options)
        for region in reversed(regions):
            graph.call_function(exit_autocast, (region,))
        graph.output(tuple(graph.call_function(operator.getitem, (found, k)) for k in range(len(leaves))))
        return GraphModule(self.gm, graph)

    def _tangent(self, graph: fx.Graph, output: int) -> fx.Node:
        node = graph.placeholder(f"tangent_{output}")
        node.meta["val"] = self.joint.tangent_meta(output)
        return node


class _OnFormerMemory(torch.autograd.Function):
    """An alias of the memory that a tensor had before `x.data = y`; its gradient is passed to the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return memory.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


def on_former_memory(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Returns `tensor` if its memory is still `memory`, else a tensor on its former memory that passes gradients to
    `tensor`.
    """
    if is_same_view(tensor, memory):
        return tensor
    return _OnFormerMemory.apply(tensor, memory)


class Memory:
    """The memory of calls of one compiled graph about their inputs for second derivatives; it keeps as few tensors
    alive as possible.

    Args:
        inputs, saved: the inputs and saved tensors of the first call; later calls save the same ones.
        needed: positions of inputs on whose values the gradients depend.
        remembered: positions of inputs whose memory is saved in addition, and so survives `x.data = y`.

    Attributes:
        leaves: positions of the caller's leaves, which live as long as the autograd graph.
        saved: for positions of inputs, the position among the saved tensors.
        kept: positions of the other needed inputs. Eager keeps most of them, or values computed from them, alive, too.
            They are released once gradients have been computed without a history.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor | None],
        needed: frozenset[int],
        remembered: frozenset[int],
    ) -> None:
        self.leaves = frozenset(i for i, t in enumerate(inputs) if t.is_leaf and t.requires_grad)
        positions = {id(t): k for k, t in enumerate(saved)}
        self.saved = {i: positions[id(t)] for i, t in enumerate(inputs) if id(t) in positions and i not in self.leaves}
        self.kept = needed - self.leaves - self.saved.keys()
        self._released = [i for i in range(len(inputs)) if i not in self.leaves and i not in self.kept]
        self._checked = sorted(needed - self.saved.keys())  # autograd checks the versions of saved tensors
        self._remembered = needed & remembered
        alone = needed - remembered
        self._marked = (*sorted(alone - self.saved.keys()), *sorted(alone & self.saved.keys()))
        self._noted = sum(i not in self.saved for i in self._marked)

    def note(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Returns the notes that a call keeps of its inputs: the input itself, a weak reference, or None for a saved
        one.
        """
        noted: list[Any] = [*inputs]
        for i in self._released:
            noted[i] = None if i in self.saved else TensorWeakRef(inputs[i])
        return noted

    def marks(self, inputs: Sequence[torch.Tensor]) -> bytes | None:
        """Returns a mark of the memory of each needed input that is not kept alive: `x.data = y` replaces memory
        without counting a write. None if an input cannot be described.
        """
        return memory_marks([*inputs], self._marked, True)

    def with_former_memory(
        self, inputs: list[torch.Tensor], former: Mapping[int, torch.Tensor], marks: bytes | None, hooked: bool
    ) -> list[torch.Tensor] | None:
        """Returns the inputs with the memory that the call has read; None if the memory of one is gone.

        Args:
            former: the memory that the call has saved in addition, by input.
            marks: the result of `marks` at the call.
            hooked: whether saved tensors went through hooks, which may have returned them in other memory.
        """
        found = self.marks(inputs)
        size = 8 * self._noted if hooked else None
        if found is None or marks is None or found[:size] != marks[:size]:
            return None if found is not None and marks is not None else inputs
        return [
            on_former_memory(tensor, former[i]) if i in self._remembered else tensor for i, tensor in enumerate(inputs)
        ]

    def moved(self, inputs: Sequence[torch.Tensor], marks: bytes | None, hooked: bool, among: Collection[int]) -> bool:
        """Whether the memory of one of the inputs `among` may have been replaced since the call; for `marks` and
        `hooked` see `with_former_memory`."""
        found = self.marks(inputs)
        if found is None or marks is None:
            return bool(among)
        known = self._marked[: self._noted] if hooked else self._marked
        return any(found[8 * k : 8 * k + 8] != marks[8 * k : 8 * k + 8] for k, i in enumerate(known) if i in among)

    def release(self, noted: list[Any]) -> list[Any]:
        """Returns the notes of a call with weak references to the tensors that may be released."""
        if not self.kept:
            return noted
        return [TensorWeakRef(t) if i in self.kept and type(t) is not TensorWeakRef else t for i, t in enumerate(noted)]

    def recall(self, noted: Sequence[Any], saved: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Returns the inputs of the call; None for inputs that no longer exist."""
        found = [saved[self.saved[i]] if i in self.saved else t for i, t in enumerate(noted)]
        return [t() if type(t) is TensorWeakRef else t for t in found]

    def version(self, inputs: Sequence[Any]) -> int:
        """Returns a number that grows with every write to a needed input."""
        try:
            return sum([version_of(inputs[i]) for i in self._checked])
        except RuntimeError:  # inference tensors have no version counter
            return -1
