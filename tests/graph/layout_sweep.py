"""`python -m tests.graph.layout_sweep`: what metadata rules say of results, against every operator in every layout.

OpInfo's samples run in eager, forward and backward, with their tensors in layouts of all kinds. Each ATen operator that
this calls is asked of its metadata rule three times: with the sizes as they are, with symbols in their place, and once
more with other sizes in place of the symbols. Compared are shapes, dtypes and strides. With `--sizes` the samples have
0 and 1 in place of each of their sizes, in six layouts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pickle
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from smelt.autograd.call.sized import meta_in_numbers
from smelt.base.errors import SmeltError
from smelt.capture.guards.dynamic_shapes import MIN_SYMBOLIC_SIZE, _layout
from smelt.graph.ir.meta import TensorMeta, extent
from smelt.graph.ir.schema import op_info
from smelt.graph.ir.storage_view import StorageView, layout_for
from smelt.graph.trace.trace import DataDependent, TraceMode, TraceTensor
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.size import Size

CPU = torch.device("cpu")
Found = tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class Given:
    """A tensor among the arguments of a call, without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    offset: int = 0

    def __repr__(self) -> str:
        return f"{str(self.dtype)[6:]}{list(self.shape)}/{self.stride}" + (f"+{self.offset}" if self.offset else "")


@dataclass
class Call:
    """One call of an ATen operator in eager, and what it gave."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    found: list[Found]
    values: tuple[Any, Any] = field(repr=False, default=((), {}))

    @property
    def key(self) -> str:
        return f"{self.func}{self.args}{self.kwargs}"


def given(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if x.layout is not torch.strided or x.is_quantized:
        raise TypeError("no strides")
    return Given(tuple(x.shape), x.dtype, x.stride(), x.storage_offset())


def found(x: Any) -> list[Found]:
    return [(tuple(t.shape), t.dtype, t.stride()) for t in tree_leaves(x) if isinstance(t, torch.Tensor)]


class Calls(TorchDispatchMode):
    """Writes down the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Call] = {}

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            arguments = tree_map(given, (tuple(args), dict(kwargs)))
            kept = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (tuple(args), dict(kwargs)))
        except (TypeError, RuntimeError):
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        try:
            call = Call(func, *arguments, found(out), kept)
        except RuntimeError:  # sparse results
            return out
        self.calls.setdefault(call.key, call)
        return out


# -- layouts ---------------------------------------------------------------------------------------------------------


def _room(x: torch.Tensor, shape: Sequence[int], cut: Any) -> torch.Tensor:
    return torch.zeros(*shape, dtype=x.dtype)[cut].copy_(x)


def _permuted(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    back = [list(order).index(d) for d in range(x.dim())]
    return x.permute(*order).clone(memory_format=torch.contiguous_format).permute(back)


def in_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """`x` in that layout, or as it is where it has none."""
    n = x.dim()
    if x.layout is not torch.strided or not n or x.is_conj() or x.is_neg() or x.is_quantized:
        return x
    match layout:
        case "transposed" if n > 1:
            return _permuted(x, [*range(n - 2), n - 1, n - 2])
        case "reversed" if n > 1:
            return _permuted(x, range(n)[::-1])
        case "rotated" if n > 2:
            return _permuted(x, [*range(1, n), 0])
        case "last" if n in (4, 5):
            return x.clone(memory_format=torch.channels_last if n == 4 else torch.channels_last_3d)
        case "gaps":
            return _room(x, [*x.shape[:-1], x.shape[-1] + 3], (..., slice(0, x.shape[-1])))
        case "steps":
            return _room(x, [*x.shape[:-1], x.shape[-1] * 2], (..., slice(None, None, 2)))
        case "steps turned" if n > 2:
            twice = [x.shape[1], x.shape[0], *(2 * m for m in x.shape[2:])]
            return _room(x.transpose(0, 1), twice, (..., *[slice(None, None, 2)] * (n - 2))).transpose(0, 1)
        case "expanded":
            return x[:1].expand(x.shape)
        case "columns" if n > 1:
            return x[..., :1].expand(x.shape)
        case "none":
            return x[:0]
        case "one":
            return x[:1]
        case "no columns" if n > 1:
            return x.transpose(-1, 0)[..., :0].transpose(-1, 0)
        case "no columns, turned" if n > 1:
            return _permuted(x, range(n)[::-1])[..., :0]
        case "one column" if n > 1:
            return x[..., 1:2] if x.shape[-1] > 1 else x
        case "one column, turned" if n > 1:
            return _permuted(x, range(n)[::-1])[..., :1]
        case "windows" if n > 1 and x.numel():
            return x.flatten()[0].repeat(sum(x.shape)).as_strided(x.shape, [1] * n)
        case "offset":
            return _room(x.flatten(), [x.numel() + 1], slice(1, None)).view(x.shape)
    return x


LAYOUTS = (
    "own", "transposed", "reversed", "rotated", "last", "gaps", "steps", "steps turned", "expanded", "columns", "none",
    "one", "no columns", "no columns, turned", "one column", "one column, turned", "windows", "offset",
)  # fmt: skip


CUTS = ("cut", "own", "reversed", "last", "gaps", "repeated")


def cut(x: torch.Tensor, dims: Sequence[int], size: int, layout: str) -> torch.Tensor:
    """`x` with that size, 0 or 1, in some dimensions: a part of it, or of memory in that layout."""
    if not dims or x.layout is not torch.strided or x.is_quantized:
        return x
    part = x
    if layout in ("reversed", "last"):  # of a part all layouts may be one
        part = in_layout(part, layout)
    for d in dims:
        part = part.narrow(d, 0, min(size, part.shape[d]))
    match layout:
        case "own":
            return part.clone(memory_format=torch.contiguous_format)
        case "gaps":
            return in_layout(part, layout)
        case "repeated":  # as a sum gives its gradient
            return part.flatten()[:1].reshape([1] * part.dim()).expand(part.shape) if part.numel() else part
    return part


def cut_variants(sample: Any) -> Iterator[tuple[str, Any]]:
    """The sample's arguments with 0 and 1 in place of each size: in all tensors, or in one dimension of the first."""
    everything = (sample.input, sample.args, sample.kwargs)
    tensors = [t for t in tree_leaves(everything) if isinstance(t, torch.Tensor)]
    sizes = sorted({n for t in tensors for n in t.shape if n > 1})
    places = [("size", n) for n in sizes]
    places += [("dim", d) for d in range(tensors[0].dim() if tensors else 0) if tensors[0].shape[d] > 1]
    for (kind, which), size, layout in itertools.product(places, (0, 1), CUTS):
        seen = itertools.count()

        def lay(x: Any, kind: str = kind, at: int = which, n: int = size, way: str = layout, seen: Any = seen) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            first = next(seen) == 0
            dims = [d for d, m in enumerate(x.shape) if m == at] if kind == "size" else [at] if first else []
            return cut(x.detach(), dims, n, way).requires_grad_(x.requires_grad)

        yield f"{kind} {which} is {size}, {layout}", tree_map(lay, everything)


def variants(sample: Any, most: int) -> Iterator[tuple[str, Any]]:
    """The sample's arguments with all tensors, or the first alone, or all others, in each layout."""
    everything = (sample.input, sample.args, sample.kwargs)
    for layout, which in itertools.islice(itertools.product(LAYOUTS, ("all", "first", "others")), most):
        seen = itertools.count()

        def lay(x: Any, layout: str = layout, which: str = which, seen: Any = seen) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            first = next(seen) == 0
            wanted = which == "all" or first == (which == "first")
            made = in_layout(x.detach(), layout) if wanted else x.detach()
            return made.requires_grad_(x.requires_grad)

        yield f"{layout} {which}", tree_map(lay, everything)


def _differentiable(values: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.requires_grad]


def calls_of(info: Any, dtype: torch.dtype, samples: int, most: int = 99, sizes: bool = False) -> dict[str, Call]:
    """The operators that samples of an operator call, forward and backward, in every layout or with sizes 0 and 1."""
    mode = Calls()
    torch.manual_seed(0)
    gradients = dtype.is_floating_point and info.supports_autograd
    try:
        given_samples = list(info.sample_inputs("cpu", dtype, requires_grad=gradients))
    except Exception:
        return {}
    step = max(1, len(given_samples) // samples)
    for sample in given_samples[::step][:samples]:
        for _, (x, args, kwargs) in cut_variants(sample) if sizes else variants(sample, most):
            try:
                with mode:
                    out = info.op(x, *args, **kwargs)
                    heads, leaves = _differentiable(out), _differentiable((x, args, kwargs))
                    if heads and leaves:
                        torch.autograd.grad(heads, leaves, [torch.ones_like(h) for h in heads], allow_unused=True)
            except Exception:  # sizes that the operator refuses
                continue
    return mode.calls


# -- what rules say --------------------------------------------------------------------------------------------------


class _Symbols:
    """Symbols in place of sizes, as a capture with dynamic sizes makes them.

    Args:
        more: sizes are those of inputs less this number (`x[1:]`, windows): computed ones, which may be 1.
    """

    def __init__(self, more: int = 0) -> None:
        self.owner = Assumptions()
        self.alike: dict[int, list[Size]] = {}
        self.more = more

    def shape(self, sizes: Sequence[int]) -> tuple[Any, ...]:
        taken: list[Size] = []
        for size in sizes:
            if size + self.more < MIN_SYMBOLIC_SIZE:
                continue
            known = next((s for s in self.alike.setdefault(size, []) if not any(s is t for t in taken)), None)
            if known is None:
                known = self.owner.symbol(size + self.more) - self.more
                self.alike[size].append(known)
            taken.append(known)
        each = iter(taken)
        return tuple(size if size + self.more < MIN_SYMBOLIC_SIZE else next(each) for size in sizes)

    def traced(self, x: Any) -> Any:
        if not isinstance(x, Given):
            return x
        shape = self.shape(x.shape)
        _, stride = _layout(torch.empty_strided(x.shape, x.stride, device="meta"), shape)
        return TraceTensor(StorageView(layout_for(shape, x.dtype, stride, CPU, x.offset)))


def _plain(x: Any) -> Any:
    if not isinstance(x, Given):
        return x
    return TraceTensor(StorageView(layout_for(x.shape, x.dtype, x.stride, CPU, x.offset)))


def _is_given(x: Any) -> bool:
    return isinstance(x, Given)


def _answer(call: Call, make: Any) -> list[TensorMeta]:
    args, kwargs = tree_map(make, (call.args, call.kwargs), is_leaf=_is_given)
    with TraceMode(), torch.no_grad():
        out = call.func(*args, **kwargs)
    return [x.storage_view.layout.val for x in tree_leaves(out) if isinstance(x, TraceTensor)]


def _in_numbers(metas: list[TensorMeta], values: dict[Any, int]) -> list[Found]:
    numbers = [meta_in_numbers(m, values) for m in metas]
    return [(tuple(m.shape), m.dtype, tuple(m.stride)) for m in numbers]


def differences(call: Call) -> Iterator[tuple[str, str]]:
    """(kind, text) of what rules say otherwise than eager."""
    if call.func.namespace != "aten" or not call.found or op_info(call.func).composite:
        return
    try:
        said = _in_numbers(_answer(call, _plain), {})
        if said != call.found:
            yield "static", _told(call.found, said)
    except DataDependent:
        return
    except SmeltError as error:
        yield "static refused", f"{type(error).__name__}: {str(error).splitlines()[0]}"
    except Exception as error:
        yield "static error", f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    for more in (0, 1):
        for kind, text in _symbolic_differences(call, _Symbols(more)):
            yield kind + " computed" * more, text


def _symbolic_differences(call: Call, symbols: _Symbols) -> Iterator[tuple[str, str]]:
    owner = symbols.owner
    try:
        metas = _answer(call, symbols.traced)
    except SmeltError as error:
        yield "symbolic refused", f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return
    except Exception as error:
        yield "symbolic error", f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        return
    if not owner.symbols:
        return
    said = _in_numbers(metas, dict(zip(owner.symbols, [s.hint for s in owner.symbols], strict=True)))
    if said != call.found:
        yield "symbolic", _told(call.found, said)
        return
    if any(fact.sign == "==" for fact in owner.assumed):
        return
    yield from _other_sizes(call, symbols, metas)


def _other_sizes(call: Call, symbols: _Symbols, metas: list[TensorMeta]) -> Iterator[tuple[str, str]]:
    if any(type(x) is int and x > 1 for x in tree_leaves((call.args, call.kwargs), is_leaf=_is_given)):
        return  # numbers that belong to the sizes
    for change in ({}, {0: 1}):
        numbers = [n.hint + 1 + (7 if change and i == 0 else 0) for i, n in enumerate(symbols.owner.symbols)]
        values = dict(zip(symbols.owner.symbols, numbers, strict=True))
        if not all(fact.holds(values) for fact in symbols.owner.assumed):
            continue
        again = _Symbols(symbols.more)
        again.owner, again.alike = symbols.owner, symbols.alike

        def real(x: Any, values: Any = values, again: Any = again) -> Any:
            if not isinstance(x, Given):
                return x
            meta = meta_in_numbers(again.traced(x).storage_view.layout.val, values)
            fill = int(x.dtype.is_floating_point or x.dtype.is_complex)  # indices stay inside: kernels do not check all
            memory = torch.full((extent(meta.shape, meta.stride) + x.offset,), fill, dtype=x.dtype)
            return memory.as_strided(meta.shape, meta.stride, x.offset)

        try:
            args, kwargs = tree_map(real, (call.args, call.kwargs), is_leaf=_is_given)
            out = found(call.func(*args, **kwargs))
        except Exception:
            continue
        said = _in_numbers(metas, values)
        if said != out:
            yield "other sizes", f"with {numbers}: {_told(out, said)}"


def _told(eager: list[Found], said: list[Found]) -> str:
    if len(eager) != len(said):
        return f"{len(said)} results instead of {len(eager)}"
    for e, s in zip(eager, said, strict=True):
        if e != s:
            return f"{s[0]} {s[1]} {s[2]} instead of {e[0]} {e[1]} {e[2]}"
    return ""


def of_operator(info: Any, name: str, samples: int, each: int, sizes: bool = False) -> dict[tuple[str, str], int]:
    """(operator, kind) -> how many calls differ, of which `each` are printed."""
    counts: dict[tuple[str, str], int] = {}
    for call in calls_of(info, getattr(torch, name), samples, sizes=sizes).values():
        for kind, text in differences(call):
            at = (str(call.func), kind)
            counts[at] = counts.get(at, 0) + 1
            if counts[at] <= each:
                print(f"{kind}: {call.func} {call.args} {call.kwargs or ''}: {text}", flush=True)
    return counts


def _apart(info: Any, *rest: Any) -> dict[tuple[str, str], int]:
    """The same in a process of its own: kernels may end it that are given memory in unusual order."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writing, "wb") as out:
            pickle.dump(of_operator(info, *rest), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as found:
        text = found.read()
    os.waitpid(child, 0)
    return pickle.loads(text) if text else {(info.full_name, "crash"): 1}


def main() -> int:
    """How many calls differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32,int64,bool")
    parser.add_argument("--ops", default="", help="only operators with one of these names, separated by commas")
    parser.add_argument("--after", default="", help="only operators behind the one with this name")
    parser.add_argument("--sizes", action="store_true", help="0 and 1 in place of each size, in place of the layouts")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--each", type=int, default=2, help="how many differences of a kind are printed in full")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from tests.opinfo import database

    total: dict[tuple[str, str], int] = {}
    named = set(filter(None, options.ops.split(",")))
    for name in options.dtypes.split(","):
        waiting = bool(options.after)
        for info in database.op_db:
            if waiting or (named and not named & {info.name, info.full_name}):
                waiting = waiting and info.full_name != options.after
                continue
            if getattr(torch, name) in info.supported_dtypes("cpu"):
                for at, count in _apart(info, name, options.samples, options.each, options.sizes).items():
                    total[at] = total.get(at, 0) + count
    for (func, kind), count in sorted(total.items()):
        print(f"{count:5} {kind:18} {func}")
    return sum(total.values())


if __name__ == "__main__":
    raise SystemExit(min(main(), 1))
