"""Forms of registered operators that graphs support: without writes, and with tensors as results.

A graph consists of values, so a node cannot write to its argument. PyTorch's in-place operators have a form that
returns the new value (`add_` and `add`); most in-place operators of other libraries lack such a form and get one in
this module: the same operator on copies of the arguments that it writes. A node has one result or a tuple of tensors,
whereas an operator may also return lists. The forms are registered operators, so that every stage treats them like any
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import is_dense

_SPACE = "smelt_forms"
_library = torch.library.Library(_SPACE, "FRAGMENT")
_forms: dict[tuple[Any, ...], OpOverload] = {}


def functional_form(op: OpOverload, written: tuple[str, ...]) -> OpOverload:
    """Returns an operator with the arguments of `op` that returns its fresh results, then the new value of each
    argument of `written`.

    The value of an optional written argument is a list, which is empty when the argument was None.
    """
    parameters = schema_of(op).arguments
    returned = [str(r.type) for r in schema_of(op).returns if r.alias_info is None]
    returned += ["Tensor" if str(a.type) == "Tensor" else "List[Tensor]" for a in parameters if a.name in written]
    return _register(op, "on_copies", returned, _on_copies(op, written))


def flat_form(op: OpOverload, counts: tuple[int | None, ...]) -> OpOverload:
    """Returns an operator that returns the results of `op`, with lists flattened, as one tuple.

    Args:
        counts: for each result the length of its list; None for a tensor, 0 for a result that is absent.

    A decomposition of `op` is used for the form as well (`base_of`); it returns the flat tuple.
    """
    name = "flat_" + "_".join("t" if n is None else str(n) for n in counts)
    total = sum(1 if n is None else n for n in counts)

    def run(*args: Any, **kwargs: Any) -> Any:
        values = tuple(flattened(op(*args, **kwargs)))
        return values[0] if total == 1 else values

    form = _register(op, name, ["Tensor"] * total, run)
    _bases[form] = op
    return form


def checked_form(op: OpOverload, index: int, api_name: str, is_matrix: bool) -> OpOverload:
    """Returns `op`, with the error of `torch.linalg` raised when result number `index` reports a failure."""
    name = f"checked_{index}_{api_name.replace('.', '_')}_{'matrix' if is_matrix else 'batch'}"

    def run(*args: Any, **kwargs: Any) -> Any:
        results = op(*args, **kwargs)
        torch.ops.aten._linalg_check_errors(results[index], api_name, is_matrix=is_matrix)
        return results

    form = _register(op, name, [str(r.type) for r in schema_of(op).returns], run)
    _checked.add(form)
    return form


_checked: set[OpOverload] = set()


def is_checked_form(target: Any) -> bool:
    """Whether the target was made by `checked_form`."""
    return target in _checked


def _expect_close(
    value: torch.Tensor, a: torch.Tensor, b: torch.Tensor, rtol: float, atol: float, equal_nan: bool
) -> torch.Tensor:
    """Returns `value`, whose derivative is only defined if `a` and `b` are close.

    Raises:
        RuntimeError: they are not close.
    """
    if not torch.allclose(a, b, rtol, atol, equal_nan):
        raise RuntimeError("a gradient that is not defined: the loss depends on what a decomposition leaves open")
    return value.clone()


def check_form(name: str, parameters: str, run: Callable[..., torch.Tensor]) -> OpOverload:
    """Returns a new operator that returns a flag, a bool without dimensions, or raises an error."""
    return _operator(name, f"({parameters}) -> Tensor", run)


def drawing_form(op: OpOverload) -> OpOverload:
    """Returns the random in-place operator `op` as an operator that returns a new tensor without gaps.

    Its arguments are sizes, strides, dtype, device, and those of `op` after the first. Strides matter: a kernel draws
    in the order of memory, and some draw other numbers for memory with gaps. The values of a graph have neither order
    nor gaps.
    """
    rest = [each for each in _parameters(op).split(", *")[0].split(", ")[1:]]
    parameters = ", ".join(["SymInt[] size", "SymInt[] stride", "ScalarType dtype", "Device device", *rest])

    def run(size: list[int], stride: list[int], dtype: torch.dtype, device: torch.device, *args: Any) -> torch.Tensor:
        drawn = op(torch.empty_strided(size, stride, dtype=dtype, device=device), *args)
        return drawn if is_dense(size, stride) else drawn.contiguous()

    return _register(op, "drawn", ["Tensor"], run, parameters)


_aten = torch.ops.aten
DRAWING: frozenset[OpOverload] = frozenset(
    {
        _aten.uniform_.default,
        _aten.normal_.default,
        _aten.bernoulli_.float,
        _aten.bernoulli_.Tensor,
        _aten.exponential_.default,
        _aten.geometric_.default,
        _aten.cauchy_.default,
        _aten.log_normal_.default,
        _aten.random_.default,
        _aten.random_.to,
        getattr(_aten.random_, "from"),
    }
)
"""Random in-place operators that do not read their first argument."""

LIKE: dict[OpOverload, tuple[OpOverload, Callable[..., tuple[Any, ...]]]] = {
    _aten.rand_like.default: (_aten.uniform_.default, lambda x: (0.0, 1.0)),
    _aten.randn_like.default: (_aten.normal_.default, lambda x: (0.0, 1.0)),
    _aten.randint_like.default: (getattr(_aten.random_, "from"), lambda x, high: (0, high)),
    _aten.randint_like.low_dtype: (getattr(_aten.random_, "from"), lambda x, low, high: (low, high)),
    _aten.bernoulli.default: (_aten.bernoulli_.Tensor, lambda x: (x,)),
    _aten.bernoulli.p: (_aten.bernoulli_.float, lambda x, p=0.5: (p,)),
}
"""For operators that draw a tensor like their first argument, the in-place operator that draws, and its further
arguments.
"""


def number_form(op: OpOverload, names: tuple[str, ...]) -> OpOverload:
    """Returns a form of `op` that takes tensors without dimensions for these parameters, for which `op` takes numbers.

    Graphs represent numbers that are known only at a call by such tensors. A decomposition of `op` is used for the form
    as well (`base_of`), if it can compute with tensors for these parameters.
    """
    parameters, named = [], False
    for a in schema_of(op).arguments:
        if a.kwarg_only and not named:
            parameters.append("*")
            named = True
        kind = str(a.type)
        if a.name in names:
            parameters.append(f"{'Tensor[]' if kind.startswith('List') else 'Tensor'} {a.name}")
        else:
            default = f"={a.default_value}" if a.has_default_value() else ""
            parameters.append(f"{_PARAMETERS[kind]} {a.name}{default}")
    returned = [str(r.type) for r in schema_of(op).returns]
    form = _register(op, f"number_{'_'.join(names)}", returned, _on_numbers(op, names), ", ".join(parameters))
    _bases[form] = op
    return form


def base_of(form: Any) -> Any:
    """Returns the operator from which a `number_form` or `flat_form` was made; any other target unchanged."""
    return _bases.get(form, form)


_bases: dict[OpOverload, OpOverload] = {}
_PARAMETERS = {"Tensor": "Tensor", "List[Tensor]": "Tensor[]", "number": "Scalar", "List[number]": "Scalar[]"}


def _on_numbers(op: OpOverload, names: tuple[str, ...]) -> Callable[..., Any]:
    parameters = [a.name for a in schema_of(op).arguments]

    def number(value: Any) -> Any:
        return [number(v) for v in value] if isinstance(value, (list, tuple)) else value.item()

    def run(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(parameters, args, strict=False)) | kwargs
        return op(**{name: number(value) if name in names else value for name, value in named.items()})

    return run


def flattened(values: Sequence[Any]) -> Iterator[Any]:
    """Yields the items of a sequence, with lists flattened and None left out."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from value
        elif value is not None:
            yield value


def _register(
    op: OpOverload, suffix: str, returned: Sequence[str], run: Callable[..., Any], parameters: str | None = None
) -> OpOverload:
    """Register `run` as an operator with the parameters of `op`, or with `parameters`."""
    form = _forms.get((op, suffix))
    if form is None:
        space, _, rest = op.name().partition("::")
        name = f"{space}__{rest.replace('.', '__')}__{suffix}"
        results = ", ".join(_TYPES[kind] for kind in returned)
        schema = f"({parameters or _parameters(op)}) -> ({results})"
        form = _forms[op, suffix] = _operator(name, schema, run, _tags(op))
    return form


def _operator(name: str, schema: str, run: Callable[..., Any], tags: Sequence[torch.Tag] = ()) -> OpOverload:
    """Register `run` as an operator of this name; the name gets a suffix if an interrupted registration
    has taken it.
    """
    ours = getattr(torch.ops, _SPACE)
    while hasattr(ours, name):
        name += "_"
    _library.define(name + schema, tags=tags)
    _library.impl(name, run, "CompositeExplicitAutograd")
    form: OpOverload = getattr(ours, name).default
    return form


EXPECT_CLOSE = check_form(
    "expect_close", "Tensor value, Tensor a, Tensor b, float rtol, float atol, bool equal_nan", _expect_close
)
"""An operator that returns its first argument, and raises an error where the next two are not close."""


_TYPES = {"Tensor": "Tensor", "List[Tensor]": "Tensor[]"}


def _tags(op: OpOverload) -> tuple[torch.Tag, ...]:
    # equal tags need not be the same object
    return tuple(tag for tag in op.tags if tag == torch.Tag.nondeterministic_seeded)


def _parameters(op: OpOverload) -> str:
    """Returns the parameters of an operator's schema as text, without alias annotations."""
    text = str(schema_of(op))
    inside, depth = "", 0
    for char in text[text.index("(") :]:
        depth += (char == "(") - (char == ")")
        if depth == 0:
            break
        if depth == 1 and char not in "()":  # alias annotations, the `(a!)` of `Tensor(a!)`, are deeper
            inside += char
    return inside


def _on_copies(op: OpOverload, written: tuple[str, ...]) -> Callable[..., Any]:
    parameters = schema_of(op).arguments
    optional = {a.name for a in parameters if str(a.type) == "Optional[Tensor]"}
    fresh = [i for i, r in enumerate(schema_of(op).returns) if r.alias_info is None]

    def run(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip((a.name for a in parameters), args, strict=False)) | kwargs
        named |= {name: _copied(named.get(name)) for name in written}
        out = op(**named)
        results = [out] if len(schema_of(op).returns) == 1 else out
        values = [results[i] for i in fresh]
        for name in written:
            value = named[name]
            values.append(([] if value is None else [value]) if name in optional else value)
        return values[0] if len(values) == 1 else tuple(values)

    return run


def _copied(value: Any) -> Any:
    """Returns a copy with the same strides, gaps included, because kernels may rely on them."""
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    if value is None:
        return None
    out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return out.copy_(value)
