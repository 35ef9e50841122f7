"""One ATen call through decompose, compared with eager: value, dtype, shape, and every meta on the way."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from smelt.base.options import Options
from smelt.graph.ir.meta import TensorMeta, meta_of
from smelt.prims.decompose import decompose, fallbacks
from smelt.prims.registry import COMPLEX, DECOMPOSITIONS

TOLERANCE = {
    torch.float64: (1e-7, 1e-9),
    torch.float32: (2e-5, 2e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
    torch.complex64: (2e-5, 2e-5),
    torch.complex128: (1e-7, 1e-9),
}


def metas(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return meta_of(value)
    if isinstance(value, (tuple, list)):
        return tuple(metas(v) for v in value)
    return value


def aten_graph(
    op: Callable[..., Any], args: Any, kwargs: Any, result: Any
) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A graph of this one call, with the tensors as placeholders."""
    graph, inputs = fx.Graph(), []

    def place(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        node = graph.placeholder(f"x{len(inputs)}")
        node.meta["val"] = meta_of(x)
        inputs.append(x)
        return node

    args, kwargs = tree_map(place, (tuple(args), kwargs))
    seed = graph.placeholder("seed")
    seed.meta["val"] = meta_of(torch.tensor(0))
    inputs.append(torch.tensor(1234))
    call = graph.call_function(op, args, kwargs)
    call.meta["val"] = metas(result)
    out: Any = call
    if isinstance(result, (tuple, list)):
        out = []
        for i, part in enumerate(result):
            item = graph.call_function(operator.getitem, (call, i))
            item.meta["val"] = metas(part)
            out.append(item)
    graph.output(tuple(out) if isinstance(out, list) else (out,))
    return fx.GraphModule(torch.nn.Module(), graph), inputs


class CheckedInterpreter(fx.Interpreter):
    """Runs a prim graph and holds every value against its meta."""

    def run_node(self, node: fx.Node) -> Any:
        value = super().run_node(node)
        if node.op == "call_function":
            self.check(node, value, node.meta["val"])
        return value

    def check(self, node: fx.Node, value: Any, meta: Any) -> None:
        if isinstance(meta, (tuple, list)):
            for v, m in zip(value, meta, strict=True):
                self.check(node, v, m)
        elif isinstance(meta, TensorMeta):
            got = (tuple(value.shape), value.dtype)
            assert got == (meta.shape, meta.dtype), f"{node.format_node()}: value {got}, meta {meta}"
        else:
            assert not isinstance(value, torch.Tensor), node.format_node()


VALUELESS = frozenset(
    "empty empty_like new_empty empty_strided new_empty_strided empty_permuted rand rand_like randn randn_like randint "
    "randint_like bernoulli native_dropout uniform normal_functional exponential cauchy geometric log_normal normal "
    "multinomial".split()
)
"""Operators whose values are arbitrary or random: only dtype and shape are compared."""


def run_prims(gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    return CheckedInterpreter(gm).run(*(x.detach() for x in inputs))


def assert_close(got: Any, want: Any, scale: float = 1.0, exact: bool = False) -> None:
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, scale, exact)
    elif isinstance(want, torch.Tensor):
        rtol, atol = (0.0, 0.0) if exact else TOLERANCE.get(want.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            got, want.detach(), rtol=rtol * scale, atol=atol * scale, equal_nan=True, check_stride=False
        )
    else:
        assert got is want or got == want


def check(
    op: Callable[..., Any], *args: Any, scale: float = 1.0, fallback: bool = False, **kwargs: Any
) -> fx.GraphModule:
    """Decompose one call, run it, compare with eager. Returns the prim graph."""
    with torch.no_grad():
        result = op(*args, **kwargs)
    return compare(op, args, kwargs, result, scale, fallback)


def compare(op: Any, args: Any, kwargs: Any, result: Any, scale: float = 1.0, fallback: bool = False) -> fx.GraphModule:
    gm, inputs = aten_graph(op, args, kwargs, result)
    prims = decompose(gm, Options())
    assert bool(fallbacks(prims)) == fallback, f"{op} stayed ATen" if not fallback else f"{op} decomposed"
    hold(op, prims, inputs, result, scale)
    return prims


def hold(
    op: Any,
    prims: fx.GraphModule,
    inputs: list[torch.Tensor],
    result: Any,
    scale: float,
    exact: Callable[[], Any] | None = None,
) -> None:
    """Run the prim graph and compare with eager's result (dtype and shape are held by decompose and the run)."""
    got = run_prims(prims, inputs)
    name = op.overloadpacket.__name__
    if name in VALUELESS:
        return
    if name.endswith("_backward"):  # eager computes some gradients that its mask leaves out
        pairs = zip(got, result if isinstance(result, (tuple, list)) else (result,), strict=True)
        got, result = map(tuple, zip(*((g, r) for g, r in pairs if g is not None), strict=True))
    got = got if isinstance(result, (tuple, list)) else got[0]
    if name == "_ctc_loss":  # eager leaves what no alignment reaches as it found the memory
        got, result = got[0], result[0]
    try:
        assert_close(got, result, scale)
    except AssertionError:
        if exact is None:
            raise
        assert_as_good(got, result, exact())


def assert_as_good(got: Any, eager: Any, exact: Any) -> None:
    """Where both round, the error against the exact result is at most twice eager's."""
    if isinstance(eager, (tuple, list)):
        for g, e, x in zip(got, eager, exact, strict=True):
            assert_as_good(g, e, x)
    elif isinstance(eager, torch.Tensor):
        x = exact.double()
        ours, theirs = (got.double() - x).abs().max(), (eager.detach().double() - x).abs().max()
        assert ours <= 2 * theirs, f"error {ours} where eager has {theirs}"


def widened(value: Any) -> Any:
    """bfloat16 and float16 tensors and dtypes in float32."""
    if isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16):
        return value.float()
    return torch.float32 if value in (torch.bfloat16, torch.float16) and isinstance(value, torch.dtype) else value


class CheckMode(TorchDispatchMode):
    """Compares every decomposed ATen call made under it; `seen` counts them by operator."""

    def __init__(self, scale: float = 1.0, skip: frozenset[Any] = frozenset()) -> None:
        super().__init__()
        self.seen: dict[Any, int] = {}
        self.missing: dict[Any, int] = {}
        self.scale, self.skip = scale, skip

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op._schema.is_mutable:
            return op(*args, **kwargs)
        result = op(*args, **kwargs)
        known = op in DECOMPOSITIONS or op in COMPLEX
        if known and op not in self.skip:
            self.seen[op] = self.seen.get(op, 0) + 1
            self.compare(op, args, kwargs, result)
        elif not known:
            self.missing[op] = self.missing.get(op, 0) + 1
        return result

    def compare(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        gm, inputs = aten_graph(op, args, kwargs, result)
        prims = decompose(gm, Options())
        if fallbacks(prims):
            return
        low = any(x.dtype in (torch.bfloat16, torch.float16) for x in inputs)
        exact = (lambda: op(*tree_map(widened, args), **tree_map(widened, kwargs))) if low else None
        hold(op, prims, inputs, result, self.scale, exact)
