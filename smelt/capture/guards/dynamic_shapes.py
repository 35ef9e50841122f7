"""Selects the sizes and numbers of a frame's inputs that become symbols; writes their guards and expressions.

With `dynamic=None` all sizes and numbers are static at first. If a later call of the same compile site has another
value of a size or number, it becomes a symbol in the next cache entry, which is valid for every value. `True` makes
symbols from the first entry on, `False` never.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.base.class_tables import isinstance
from smelt.base.errors import OptionError, shown
from smelt.capture import _native as native
from smelt.capture.core import sources
from smelt.capture.core.sources import Source
from smelt.capture.guards.guards import GuardList
from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.real import Real, leaves, real_text, sizes_in
from smelt.shapes.size import LARGEST, IntLike, Size, Symbol, as_symbol, hint, substitute_names, symbols, text

_SCHEDULED = frozenset({"lr"})
"""Settings in an optimizer's parameter groups that schedulers change at each step."""

MIN_SYMBOLIC_SIZE = 2
"""Minimum size that can be a symbol: sizes 0 and 1 behave differently (empty tensors, broadcasting)."""
MAX_SYMBOLS = 1000
"""Maximum number of symbols of a graph; further numbers (in lists of thousands of numbers) are guarded by value."""


@dataclass
class SiteProfile:
    """The shapes and numbers in the cache entries of one compile site.

    Attributes:
        shapes: text of a source -> shape of its tensor in the first entry that read it.
        numbers: text of a source -> its number in the first entry that read it.
        changing: (text of a source, dim) of the sizes that have changed, (text of a source, None) of the numbers.
        classes: (module, qualified name) -> the first class of this name.
        values: key of a read of a tensor's value at a line of the program -> the value in the first entry that assumed
            it.
        unsteady: (id of a code object, instruction) at which an array's size differs from call to call.
    """

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: dict[str, int | float] = field(default_factory=dict)
    changing: set[tuple[str, int | None]] = field(default_factory=set)
    unsteady: set[tuple[int, int]] = field(default_factory=set)
    classes: dict[tuple[str, str], weakref.ref[type]] = field(default_factory=dict)
    values: dict[Any, Any] = field(default_factory=dict)

    def look(self, source: Source, shape: tuple[int, ...]) -> None:
        """Compare a tensor's shape with that of earlier entries, and record changes."""
        before = self.shapes.setdefault(source.text, shape)
        if len(before) == len(shape) and before != shape:
            self.changing |= {(source.text, d) for d, (a, b) in enumerate(zip(before, shape, strict=True)) if a != b}

    def look_at_number(self, source: Source, number: int | float) -> None:
        """Compare a number with that of earlier entries, and record a change."""
        if type(self.numbers.setdefault(source.text, number)) is not type(number):
            return
        if self.numbers[source.text] != number:
            self.changing.add((source.text, None))

    def look_at_value(self, key: object, found: object) -> bool:
        """Whether a value read from a tensor equals the one of the first capture with this key."""
        return bool(self.values.setdefault(key, found) == found)


@dataclass(frozen=True)
class Sized:
    """The operand of a tensor guard with symbolic sizes: an example tensor, and the pattern of shape and strides for
    `TensorSpec`.

    Attributes:
        shape, stride: sizes and strides as numbers; None for a symbolic one.
        order: dimensions whose strides follow from the sizes, innermost first.
    """

    tensor: torch.Tensor
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    order: tuple[int, ...]
    meta: TensorMeta


class Sizes:
    """The symbols of one capture.

    Args:
        changes: the profile of the compile site.
        dynamic: the option `dynamic` of `smelt.compile`.
        where: returns the user's line that is being interpreted, as text.
        symbols: whether symbols are allowed.
    """

    def __init__(
        self, changes: SiteProfile, dynamic: bool | None, where: Callable[[], str], symbols: bool = True
    ) -> None:
        self.changes, self.dynamic, self.symbols = changes, dynamic, symbols
        self.owner = Assumptions(where)
        # source of the tensor (or number), source of the size, symbol
        self.occurrences: list[tuple[Source, Source, Size]] = []
        self._origins: dict[Symbol | Real, tuple[Source, Source]] = {}  # cache of `origin`
        self._searched = 0
        self._by_hint: dict[int, list[Size]] = {}
        self.reals: dict[str, Source] = {}
        self._unchanged = 0  # count of numbers that have changed, but are not symbols

    # -- reading inputs -------------------------------------------------------------------------------------------

    def of_tensor(self, tensor: torch.Tensor, source: Source) -> Sized | None:
        """The guard operand of a tensor with symbolic sizes; None when all of them are static."""
        shape = tuple(tensor.shape)
        marked = _marked_dynamic(tensor)
        if not self._may_change(tensor, source, bool(marked)):
            return None
        self.changes.look(source, shape)
        fixed, likely = _marked(tensor, _STATIC, _TORCH_STATIC), _marked(tensor, *_TORCH_LIKELY)
        sizes: list[IntLike] = list(shape)
        taken: list[Size] = []
        for dim, size in enumerate(shape):
            if size < MIN_SYMBOLIC_SIZE or dim in fixed:
                continue
            if dim in marked:
                low, high = marked[dim]
                sizes[dim] = self._symbol(size, taken, max(low, MIN_SYMBOLIC_SIZE), high, True)
            elif self.dynamic or dim in likely or (source.text, dim) in self.changes.changing:
                sizes[dim] = self._symbol(size, taken)
            if isinstance(sizes[dim], Size):
                self.occurrences.append((source, sources.size(source, dim), sizes[dim]))  # type: ignore[arg-type]
        if not any(isinstance(n, Size) for n in sizes):
            return None
        return self._sized(tensor, source, tuple(sizes))

    def _may_change(self, tensor: torch.Tensor, source: Source, marked: bool) -> bool:
        if not self.symbols or (self.dynamic is False and not marked):
            return False
        parameter = isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer))
        return marked or (source.local and not parameter and source.kind != native.MODULE_MEMBER)

    def _symbol(
        self, value: int, taken: list[Size], low: int = MIN_SYMBOLIC_SIZE, high: int | None = None, kept: bool = False
    ) -> Size:
        """The symbol of a size, new or shared with an equal size of another tensor.

        Equal sizes of different tensors share a symbol, and a guard checks that they are equal: for example, ids and
        masks have the same batch and length. Equal sizes of one tensor (`taken` has its symbols so far), such as height
        and width, get different symbols; if the program needs them equal, the comparison adds a guard.
        """
        alike = self._by_hint.setdefault(value, [])
        known = next((s for s in alike if not any(s is t for t in taken)), None)
        if known is None:
            known = self.owner.symbol(value, low, high, kept)
            alike.append(known)
        taken.append(known)
        symbol = as_symbol(known)
        assert symbol is not None
        symbol.low = max(symbol.low, low)
        if high is not None:
            symbol.high = high if symbol.high is None else min(symbol.high, high)
        if kept:
            self.owner.kept.add(symbol)
        return known

    def _sized(self, tensor: torch.Tensor, source: Source, shape: tuple[Any, ...]) -> Sized:
        order, made = _layout(tensor, shape)
        wanted = tuple(None if d in order else s for d, s in enumerate(made))
        meta = TensorMeta(shape, tensor.dtype, made, tensor.device, bool(tensor.requires_grad))
        return Sized(tensor, tuple(None if isinstance(n, Size) else n for n in shape), wanted, order, meta)

    def of_number(self, value: int | float, source: Source) -> Size | Real | None:
        """The symbol of a number that has changed between calls; None if the number is static."""
        if not self.symbols or self.dynamic is False:
            return None
        scheduled = type(value) is float and _is_scheduled(source)
        if not source.local and not scheduled and not _is_kept(source):
            return None
        if value != value:  # a NaN: a guard that compares it would always fail
            return None
        self.changes.look_at_number(source, value)
        if not scheduled and (source.text, None) not in self.changes.changing:
            return None
        if isinstance(value, float):
            real = self.owner.real(value)
            self.reals[real.name] = source
            return real
        if value < MIN_SYMBOLIC_SIZE or value > LARGEST or len(self.occurrences) >= MAX_SYMBOLS:
            self._unchanged += 1
            return None
        # wide=True: a number equal to a size does not share the size's symbol, since they are equal by coincidence
        size = self.owner.symbol(value, MIN_SYMBOLIC_SIZE, LARGEST, wide=True)
        self.occurrences.append((source, source, size))
        return size

    def specialized(self) -> int:
        """The number of facts so far that restrict the graph to the example's values: assumptions about symbols, and
        changed numbers that are not symbols.
        """
        return len(self.owner.assumed) + self._unchanged

    # -- guards and expressions -----------------------------------------------------------------------------------

    def guard(self, guards: GuardList) -> None:
        """Add the checks that the symbols need."""
        if not self.occurrences and not self.reals:
            return
        first: dict[Symbol, Source] = {}
        equal: list[tuple[Source, Source]] = []
        for _, source, size in self.occurrences:
            symbol = as_symbol(size)
            assert symbol is not None
            if symbol in first:
                equal.append((source, first[symbol]))
            else:
                first[symbol] = source
        conditions = [(_range(symbol), "") for symbol in first]
        conditions += [(str(fact), fact.reason) for fact in self.owner.assumed]
        names = {symbol.name: source for symbol, source in first.items()} | self.reals
        guards.sizes(names, equal, conditions or [("True", "")])

    def origin(self, symbol: Symbol | Real) -> tuple[Source, Source]:
        """The source of the input that contains a symbol, and the source of the number itself."""
        for container, source, size in self.occurrences[self._searched :]:
            found = as_symbol(size)
            if found is not None:
                self._origins.setdefault(found, (container, source))
        self._searched = len(self.occurrences)
        return self._origins[symbol]

    def expression(self, size: IntLike, fetched: Callable[[Source], str], read: Callable[[object], str]) -> str:
        """The Python expression of a size in residual code.

        Args:
            fetched: returns the expression of an input, by its source.
            read: returns the expression of a number that the graph reads from a tensor.
        """
        names = {s.name: self._read(s, fetched, read) for s in symbols(size)}
        return substitute_names(text(size), names)

    def real_expression(self, real: Real, fetched: Callable[[Source], str], read: Callable[[object], str]) -> str:
        """The Python expression of a floating-point number in residual code."""
        names = {s.name: self._read(s, fetched, read) for s in sizes_in(real)}
        for leaf in leaves(real):
            names[leaf.name] = fetched(self.reals[leaf.name]) if leaf.origin is None else read(leaf)
        return substitute_names(real_text(real), names)

    def _read(self, symbol: Symbol, fetched: Callable[[Source], str], read: Callable[[object], str]) -> str:
        if symbol.origin is not None:
            return read(symbol)
        container, source = self.origin(symbol)
        return fetched(container) if container is source else f"{fetched(container)}.shape[{source.key}]"


def _is_scheduled(source: Source) -> bool:
    """Whether the source is a dictionary item (not an attribute) whose key is a scheduled setting."""
    return _is_entry(source) and source.key in _SCHEDULED


def _is_kept(source: Source) -> bool:
    """Whether an object or function keeps the number between calls: it may count them, or be set at each step."""
    return source.kind in _KEEPING


_KEEPING = {native.DICT_ITEM, native.LIST_ITEM, native.TUPLE_ITEM, native.CELL}
"""Kinds of sources of numbers in attributes, containers and closures."""


def _is_entry(source: Source) -> bool:
    plain = source.base is not None and source.base.kind != native.INSTANCE_DICT
    return plain and source.kind == native.DICT_ITEM


def _range(symbol: Symbol) -> str:
    upper = "" if symbol.high is None else f" <= {symbol.high}"
    return f"{symbol.low} <= {symbol.name}{upper}"


def _layout(tensor: torch.Tensor, shape: Sequence[Any]) -> tuple[tuple[int, ...], Any]:
    """(dense dimensions, innermost first; strides of all dimensions). The strides of dense dimensions are computed from
    the sizes, the others are the tensor's strides as numbers.

    The stride of a dimension of size 1 has no effect on addresses, but the program may read it, also from results. Such
    a dimension is among the dense ones if its stride follows from the sizes; else its stride is a number.
    """
    stride, sizes = tensor.stride(), tensor.shape
    every = sorted(range(tensor.ndim), key=lambda d: (stride[d], sizes[d] > 1, -d))
    longer = [d for d in every if sizes[d] != 1]
    for order in (list(range(tensor.ndim))[::-1], every, longer):
        inner = contiguous_stride([shape[d] for d in reversed(order)])
        made: list[Any] = list(stride)
        for d, step in zip(order, reversed(inner), strict=True):
            made[d] = step
        if tuple(map(hint, made)) == stride:
            return tuple(order), tuple(made)
    return (), tuple(stride)


# -- marks ---------------------------------------------------------------------------------------------------------

_DYNAMIC, _STATIC = "_smelt_dynamic_sizes", "_smelt_static_sizes"

_TORCH_DYNAMIC, _TORCH_RANGES, _TORCH_STATIC = (
    "_dynamo_dynamic_indices",
    "_dynamo_dynamic_range",
    "_dynamo_static_indices",
)
"""Attributes of a tensor that `mark_dynamic` and `mark_static` of torch's compiler set."""

_TORCH_LIKELY = ("_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices")
"""Attributes that `maybe_mark_dynamic` and `mark_unbacked` of torch's compiler set: these marks allow specialization to
one size."""


def _marked(tensor: torch.Tensor, *names: str) -> set[int]:
    """Dimensions in these attributes of the tensor, as nonnegative numbers; torch stores negative dimensions as
    given."""
    return {_from_start(tensor, dim) for name in names for dim in getattr(tensor, name, ())}


def _from_start(tensor: torch.Tensor, dim: int) -> int:
    return dim + tensor.dim() if dim < 0 else dim


def _marked_dynamic(tensor: torch.Tensor) -> dict[int, tuple[int, int | None]]:
    """Dimension that is marked dynamic -> (minimum size, maximum size or None)."""
    marked: dict[int, tuple[int, int | None]] = {
        dim: (MIN_SYMBOLIC_SIZE, None) for dim in _marked(tensor, _TORCH_DYNAMIC)
    }
    for given in getattr(tensor, _TORCH_RANGES, ()):
        dim = _from_start(tensor, given.dim)
        marked[dim] = _range_of(tensor, dim, given.min, given.max)
    return marked | getattr(tensor, _DYNAMIC, {})


def _range_of(tensor: torch.Tensor, dim: int, min: int | None, max: int | None) -> tuple[int, int | None]:
    """The range of a dimension's sizes as (minimum, maximum or None).

    Raises:
        OptionError: the tensor's own size is outside of the range.
    """
    size, low = tensor.shape[dim], MIN_SYMBOLIC_SIZE if min is None else min
    if size < low or (max is not None and size > max):
        raise OptionError(f"mark_dynamic: dimension {dim} has {size} elements, outside of {low} to {max}")
    return low, max


def mark_dynamic(tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None) -> None:
    """Compile for every size of this dimension from the first call on.

    Args:
        tensor: an argument of a compiled function.
        dim: index of the dimension; negative ones are counted from the end.
        min, max: the range of sizes to expect. Sizes of 0 and 1 always get separate cache entries.

    Raises:
        OptionError: the tensor has no such dimension, or the range excludes its size.
        SpecializationError: raised later, by the call, if the program works only for one size; names the program's
            line.
    """
    dim = _checked(tensor, dim)
    for bound in (min, max):
        if bound is not None and not _is_whole(bound):
            raise OptionError(f"mark_dynamic: a size is a whole number or None, got {shown(bound)}")
    vars(tensor).setdefault(_DYNAMIC, {})[dim] = _range_of(tensor, dim, min, max)
    vars(tensor).get(_STATIC, set()).discard(dim)


def mark_static(tensor: torch.Tensor, dim: int | None = None) -> None:
    """Compile for the tensor's present size of a dimension (of every dimension if `dim` is None), even if
    `dynamic=True`."""
    for each in range(tensor.ndim) if dim is None else [_checked(tensor, dim)]:
        vars(tensor).setdefault(_STATIC, set()).add(each)
        vars(tensor).get(_DYNAMIC, {}).pop(each, None)


def _is_whole(value: object) -> bool:
    """Whether `operator.index` accepts the value; it accepts tensors and arrays with certain numbers of elements,
    too."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _checked(tensor: torch.Tensor, dim: int) -> int:
    if not isinstance(tensor, torch.Tensor):
        raise OptionError(f"sizes of tensors are marked, not of a {type(tensor).__name__}")
    if not _is_whole(dim):
        raise OptionError(f"a dimension is a whole number, got {shown(dim)}")
    if not -tensor.ndim <= dim < tensor.ndim:
        raise OptionError(f"dimension {dim} of a tensor with {tensor.ndim}")
    return dim % tensor.ndim
