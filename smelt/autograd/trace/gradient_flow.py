"""The autograd graph of a traced program: the nodes that run, and the gradients they get, for each set of used results.

The joint graph is traced once, with a gradient for each result. Hooks on the engine's nodes insert marks where calls
differ in which some results were not used (`graph.ir.gradient_marks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from smelt.autograd.trace.functionalize import GraphRecorder
from smelt.autograd.trace.reachability import function_of, in_order
from smelt.graph.ir.gradient_marks import Choice, Chosen, Contribution, Flow, GradientMark, Materialized
from smelt.graph.nodes.gradients import keeps_absent
from smelt.graph.nodes.invalid_history import of_backward
from smelt.graph.trace.trace import TraceTensor, trace_like

MAX_RESULTS = 6
"""Maximum number of results of which every subset is examined, for functions that may get None; with more results, only
single results and their unions are examined.
"""

MAX_PATTERNS = 64
"""Maximum number of sets of gradients of such a function of which unions are formed; the backward is not compiled for
other sets."""

Gradients = tuple[torch.Tensor | None, ...]


class GradientFlow:
    """The nodes that the engine runs, and the gradients that they pass on, below some heads.

    Args:
        heads: results; each set of them may have gradients.

    Attributes:
        order: the nodes in topological order, heads first; edges: for each node, the nodes to which it gives gradients.
        visited: for each node, a bit mask of the heads from which the engine reaches it.
        below: nodes that get their gradients from a `torch.autograd.Function`, which may give none.
        gave: for each marked node, which of its gradients it has returned.
    """

    def __init__(self, rec: GraphRecorder, heads: Sequence[torch.Tensor]) -> None:
        self.rec, self.heads, self.flow = rec, heads, Flow(len(heads))
        self.edges = in_order(heads)
        self.order = [*self.edges]
        self.visited: dict[Any, int] = dict.fromkeys(self.order, 0)
        self.gave: dict[Any, list[bool]] = {}
        self.choices: dict[Any, Choice] = {}
        self.marks: list[tuple[GradientMark, Any, int]] = []
        self._walk()

    def _walk(self) -> None:
        """Find the nodes that the engine can visit, judged by the autograd graph only."""
        self.ways = dict.fromkeys(self.order, 0)
        self.functions = {node for node in self.order if function_of(node) is not None}
        self.below: set[Any] = set()
        self.coming: dict[Any, dict[int, int]] = {node: {} for node in self.functions}
        for i, head in enumerate(self.heads):
            if head.grad_fn is not None:
                self.visited[head.grad_fn] |= 1 << i
                self.ways[head.grad_fn] += 1
                self._come(head.grad_fn, head.output_nr, 1 << i)
        for node in self.order:
            open_ = node in self.functions or node in self.below
            for each, position in self.edges[node]:
                if each is not None:
                    self.visited[each] |= self.visited[node]
                    self.ways[each] += 1
                    self._come(each, position, self.visited[node])
                    if open_:
                        self.below.add(each)

    def _come(self, node: Any, position: int, mask: int) -> None:
        if node in self.coming:
            self._add(self.coming[node], position, mask)

    @contextmanager
    def marked(self) -> Iterator[None]:
        """A context in which the engine runs and its operators are recorded with marks."""
        handles = []
        for node in self.order:
            wanted = [k for k, (each, _) in enumerate(self.edges[node]) if each is not None and self._meet(node, each)]
            if node in self.functions:
                if not keeps_absent(node) and self._may_get_partial_gradients(node):
                    handles.append(node.register_prehook(partial(self._enter, node)))
                handles.append(node.register_hook(partial(self._leave, node, wanted)))
            elif wanted:
                handles.append(node.register_hook(partial(self._leave, node, wanted)))
        try:
            with self._replaced(self._alternatives):
                yield
        finally:
            for handle in handles:
                handle.remove()
        entries, returned = self._gradients()
        for mark, node, k in self.marks:
            mark.mask = entries[node].get(k, 0) if isinstance(mark, Materialized) else returned[node][k]

    @contextmanager
    def _replaced(self, apply: Callable[..., Any]) -> Iterator[None]:
        """A context in which the engine calls `apply(node, ...)` for functions that may be given None."""
        nodes = [node for node in self.functions if keeps_absent(node)]
        for node in nodes:
            node.apply = partial(apply, node)  # an instance attribute is found before the method of the class
        try:
            yield
        finally:
            for node in nodes:
                del node.apply

    def trying(self) -> AbstractContextManager[None]:
        """Returns a context in which the engine runs for some heads: functions that are given None may raise, and then
        return no gradients.

        Whether a call reaches such an error depends on the other results that it uses.
        """
        return self._replaced(self._tried)

    def _tried(self, node: Any, *got: torch.Tensor | None) -> Any:
        try:
            return type(node).apply(node, *got)
        except Exception as error:
            if of_backward(error) is None:
                raise
            return (None,) * len(node.needs_input_grad)

    def _meet(self, node: Any, other: Any) -> bool:
        """Whether `other`, a successor of the node, may also get gradients of results that do not lead to the node."""
        return self.visited[node] != self.visited[other] or (other in self.below and self.ways[other] > 1)

    def _may_get_partial_gradients(self, node: Any) -> bool:
        """Whether a function may be called with only some of its gradients, or with none."""
        return node in self.below or any(mask != self.visited[node] for mask in self.coming[node].values())

    # -- while the engine runs -------------------------------------------------------------------------------------

    def _enter(self, node: Any, gradients: Gradients) -> Gradients:
        marks = [Materialized(self.flow) for _ in gradients]
        self.marks += [(mark, node, k) for k, mark in enumerate(marks)]
        return tuple(None if g is None else self._mark(mark, g) for mark, g in zip(marks, gradients, strict=True))

    def _leave(self, node: Any, wanted: Sequence[int], returned: Gradients, _: Gradients) -> Gradients:
        self.gave[node] = [gradient is not None for gradient in returned]
        if node in self.choices:
            return returned
        out = [*returned]
        for k in wanted:
            gradient = out[k]
            if gradient is not None:
                mark = Contribution(self.flow)
                self.marks.append((mark, node, k))
                out[k] = self._mark(mark, gradient)
        return tuple(out)

    def _alternatives(self, node: Any, *got: torch.Tensor | None) -> Any:
        """Returns the gradients that a function returns for each possible set of absent gradients, passed to it as
        None.

        The engine calls this instead of the function's backward.
        """
        entries = self._gradients()[0][node]
        masks = [entries.get(k, 0) for k in range(len(got))]
        traced = _bits(got)
        patterns = [traced, *sorted(self._patterns(self.visited[node], masks) - {traced})]
        made = [self._applied(node, [g if one >> k & 1 else None for k, g in enumerate(got)]) for one in patterns]
        if len(made) == 1 and not isinstance(made[0], Exception):
            return made[0]
        choice = self.choices[node] = Choice(self.visited[node], masks, patterns, len(self.edges[node]))
        found = [self._by_edge(node, each) for each in made]
        choice.gives += [each if isinstance(each, Exception) else _bits(each) for each in found]
        self.flow.add(choice)
        out: list[torch.Tensor | None] = [None] * len(node.needs_input_grad)
        for k, i in self._edge_positions(node):
            out[i] = self._chosen(choice, k, [None if isinstance(each, Exception) else each[k] for each in found])
        return tuple(out)

    def _patterns(self, visited: int, masks: Sequence[int]) -> set[int]:
        """Returns the sets of gradients that a function may be given, by position."""
        count = self.flow.count
        sets: Iterable[int] = range(1, 1 << count) if count <= MAX_RESULTS else (1 << i for i in range(count))
        present = [self.flow.present([i for i in range(count) if not each >> i & 1]) for each in sets]
        found = {sum(1 << k for k, mask in enumerate(masks) if mask & each) for each in present if each & visited}
        if count > MAX_RESULTS:
            for one in [*found]:
                if len(found) < MAX_PATTERNS:
                    found |= {one | other for other in found}
        return found

    def _applied(self, node: Any, gradients: Sequence[torch.Tensor | None]) -> Any:
        """Returns the gradients that the function's backward returns; or the error that a call raises when it reaches
        this backward.
        """
        try:
            return type(node).apply(node, *gradients)
        except Exception as error:
            eager_error = of_backward(error)
            if eager_error is None:
                raise
            return eager_error

    def _by_edge(self, node: Any, made: Any) -> list[torch.Tensor | None] | Exception:
        """Returns the gradients for the node's edges in the form that the engine takes; or the error that the engine
        raises.
        """
        if isinstance(made, Exception):
            return made
        made = made if isinstance(made, tuple) else (made,)
        count = len(node.needs_input_grad)
        if len(made) < count or any(each is not None for each in made[count:]):
            text = f"returned an incorrect number of gradients (expected {count}, got {len(made)})"
            return RuntimeError(f"function {node.name()} {text}")
        out: list[torch.Tensor | None] = [None] * len(self.edges[node])
        for number, (k, i) in enumerate(self._edge_positions(node)):
            value, (each, position) = made[i], self.edges[node][k]
            if value is None:
                continue
            if not isinstance(value, torch.Tensor):
                return RuntimeError(f"expected Variable or None (got {type(value).__name__})")
            like = each._input_metadata[position]
            if value.shape != like.shape:
                try:
                    value = value.sum_to_size(like.shape)
                except RuntimeError:
                    text = f"got {[*value.shape]} but expected shape compatible with {[*like.shape]}"
                    return RuntimeError(
                        f"Function {node.name()} returned an invalid gradient at index {number} - {text}"
                    )
            out[k] = value.to(like.dtype)
        return out

    def _edge_positions(self, node: Any) -> list[tuple[int, int]]:
        """Returns for each edge to a node its position and the position of the function's argument."""
        edges = (k for k, (each, _) in enumerate(self.edges[node]) if each is not None)
        positions = (i for i, needed in enumerate(node.needs_input_grad) if needed)
        return [*zip(edges, positions, strict=True)]

    def _chosen(self, choice: Choice, edge: int, values: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        first = next((value for value in values if value is not None), None)
        if first is None:
            return None
        mark = Chosen(self.flow, choice)
        mark.mask = 1 << choice.first + edge
        nodes = tuple(None if value is None else self.rec.value(self._traced(value).storage_view) for value in values)
        return self._recorded(mark, nodes, self._traced(first))

    # -- the graph -------------------------------------------------------------------------------------------------

    def _traced(self, tensor: torch.Tensor) -> TraceTensor:
        return tensor if type(tensor) is TraceTensor else self.rec.constant(tensor)

    def _mark(self, mark: GradientMark, gradient: torch.Tensor) -> torch.Tensor:
        traced = self._traced(gradient)
        if traced.storage_view.rows is not None:  # a sparse gradient names its rows
            return gradient
        return self._recorded(mark, (self.rec.value(traced.storage_view),), traced)

    def _recorded(self, mark: GradientMark, args: tuple[Any, ...], like: TraceTensor) -> TraceTensor:
        node = self.rec.graph.call_function(mark, args)
        node.meta.update(val=next(each for each in args if each is not None).meta["val"], backward=True)
        out = trace_like(like.storage_view.layout.val, requires_grad=False)
        self.rec.bind(out, node)
        return out

    # -- afterwards ------------------------------------------------------------------------------------------------

    def _gradients(self) -> tuple[dict[Any, dict[int, int]], dict[Any, list[int]]]:
        """Returns for each node the conditions of the gradients that it is given, by position, and of those that it
        gives.
        """
        entries: dict[Any, dict[int, int]] = {node: {} for node in self.order}
        returned: dict[Any, list[int]] = {}
        for i, head in enumerate(self.heads):
            if head.grad_fn is not None:
                self._add(entries[head.grad_fn], head.output_nr, 1 << i)
        for node in self.order:
            mask = self.visited[node]
            if node not in self.functions:  # these nodes run without any gradient as well, on zeros or None
                mask = 0
                for each in entries[node].values():
                    mask |= each
            gave, choice = self.gave.get(node), self.choices.get(node)
            returned[node] = made = []
            for k, (each, position) in enumerate(self.edges[node]):
                if choice is not None and choice.first:
                    made.append(1 << choice.first + k)
                else:
                    made.append(mask if gave is None or gave[k] else 0)
                if each is not None:
                    self._add(entries[each], position, made[-1])
        return entries, returned

    @staticmethod
    def _add(entries: dict[int, int], position: int, mask: int) -> None:
        entries[position] = entries.get(position, 0) | mask

    def reaching(self, leaves: Mapping[int, torch.Tensor]) -> dict[int, int]:
        """Returns for each leaf, by its key, the conditions under which it has a gradient (zeros included)."""
        keys = {id(leaf): key for key, leaf in leaves.items()}
        entries, _ = self._gradients()
        found = dict.fromkeys(leaves, 0)
        for node in self.order:
            key = keys.get(id(getattr(node, "variable", None)))
            if key is not None:
                found[key] |= entries[node].get(0, 0)
        for i, head in enumerate(self.heads):
            key = keys.get(id(head)) if head.grad_fn is None else None
            if key is not None:
                found[key] |= 1 << i
        return found


def _bits(gradients: Sequence[torch.Tensor | None]) -> int:
    """Returns a bit mask of the gradients that are present."""
    return sum(1 << k for k, each in enumerate(gradients) if each is not None)
