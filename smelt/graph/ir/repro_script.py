"""Writes a captured graph as a self-contained Python script: the function, and inputs, options and modes as literals.

The literal describes what may make a compiler fail: shapes, strides, offsets, shared memory, dtypes and devices.
Floating point values are replaced by random ones from a seed; integers, which may be indices, and small tensors are
kept.
"""

from __future__ import annotations

import base64
import math
import platform
import pprint
import traceback
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from smelt.base.options import Options, user_options
from smelt.base.text import Writer
from smelt.base.version import VERSION
from smelt.graph.ir.meta import TensorMeta, is_lazy, is_opaque, reach
from smelt.graph.ir.printer import print_graph, provided_by_caller
from smelt.shapes.size import is_symbolic

FORMAT_VERSION = 1
"""Version of the format of the literal `CASE`; other versions are not read."""

MAX_FLOAT_ELEMENTS = 64
"""Maximum number of elements of a floating-point buffer whose values are kept."""

MAX_INT_ELEMENTS = 2**18
"""Maximum number of elements of an integer buffer whose values are kept."""

MAX_VALUE_ELEMENTS = 2**22
"""Maximum number of elements of any buffer whose values are kept if the failure depends on the values."""

ALIGNMENT = 64
"""Alignment of buffers in elements of the original memory, which preserves the tensors' alignment."""


class Inputs(NamedTuple):
    """Inputs as literals.

    Attributes:
        buffers: for each, the number of elements, dtype, device, and contents or seed.
        tensors: views of the buffers; `{"value": 3}` is a number, `{"missing": "a DTensor"}` cannot be made by a
            script.
    """

    buffers: list[dict[str, Any]]
    tensors: list[dict[str, Any]]


def repro_script(
    gm: fx.GraphModule,
    inputs: Inputs,
    settings: Mapping[str, Any],
    name: str,
    error: Mapping[str, str],
) -> str:
    """Returns the text of the script.

    Args:
        settings: see `settings_of`.
        error: see `error_of`.
    """
    case = {
        "format": FORMAT_VERSION,
        "smelt": VERSION,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "name": name,
        "error": dict(error),
        **settings,
        "missing": [*provided_by_caller(gm), *(t["missing"] for t in inputs.tensors if "missing" in t)],
        "buffers": inputs.buffers,
        "inputs": inputs.tensors,
    }
    text = Writer()
    text('"""A graph that smelt failed on. `smelt repro FILE` runs it, `smelt minify FILE` makes it smaller."""', "")
    text("CASE = " + pprint.pformat(case, width=118, sort_dicts=False), "")
    ending = (
        'if __name__ == "__main__":\n    from smelt.debug.repro import main\n\n    raise SystemExit(main(__file__))\n'
    )
    return f"{text.text()}\n{print_graph(gm)}\n\n{ending}"


def settings_of(options: Options) -> dict[str, Any]:
    """Returns the options that differ from the default, and the modes of this thread, as literals."""
    default = Options()
    changed = {name: getattr(options, name) for name in user_options()}
    autocast = {
        device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    }
    return {
        "backend": options.backend,
        "dynamic": options.dynamic,
        "options": {name: value for name, value in changed.items() if value != getattr(default, name)},
        "modes": {
            "grad": torch.is_grad_enabled(),
            "autocast": autocast,
            "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        },
    }


def error_of(error: BaseException | None) -> dict[str, str]:
    """Describe the kind of an error, and its text. Errors of one class raised in one function of smelt are of
    one kind.
    """
    if error is None:
        return {"kind": "", "message": ""}
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(_PACKAGE)]
    met = [f for f in own if not f.filename.startswith(_CALLING_MODULES)]
    location = f" in smelt/{met[-1].filename.removeprefix(_PACKAGE)}: {met[-1].name}" if met else ""
    return {"kind": type(error).__qualname__ + location, "message": str(error)[:_MAX_MESSAGE_LENGTH]}


_PACKAGE = f"{Path(__file__).parents[2]}/"
_CALLING_MODULES = (f"{_PACKAGE}debug/", f"{_PACKAGE}passes.py")
"""Modules that only call the code that fails."""

_MAX_MESSAGE_LENGTH = 2000


def describe_inputs(inputs: Sequence[Any], gm: fx.GraphModule | None = None, values: bool = False) -> Inputs:
    """Returns the inputs of a graph as literals.

    Args:
        gm: the graph, from which symbolic sizes are known.
        values: whether to keep the values of all buffers, up to a size, and not only integers.
    """
    metas = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"] if gm is not None else []
    found = Inputs([], [])
    specs: dict[int, dict[str, Any]] = {}
    for start, members in _inputs_by_memory(inputs):
        for at in members:
            specs[at] = _spec(inputs[at], len(found.buffers), start, metas[at] if at < len(metas) else None)
        found.buffers.append(_buffer([inputs[i] for i in members], start, len(found.buffers), values))
    found.tensors.extend(specs.get(at) or _value(at, each) for at, each in enumerate(inputs))
    return found


def _value(at: int, value: Any) -> dict[str, Any]:
    if type(value) is float and not math.isfinite(value):
        return {"number": repr(value)}
    plain = type(value) in (type(None), bool, int, float, complex, str)  # a subclass may have any repr
    return {"value": value} if plain else {"missing": f"input {at}: a {type(value).__name__}"}


def _inputs_by_memory(inputs: Sequence[Any]) -> list[tuple[int, list[int]]]:
    """Returns for each buffer its offset in the original memory (elements), and the positions of the inputs in it."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at, each in enumerate(inputs):
        if not isinstance(each, Tensor) or type(each) not in (Tensor, nn.Parameter):
            continue
        if is_opaque(each) or is_lazy(each) or each.device.type == "meta":
            continue
        address = each.untyped_storage().data_ptr()
        groups.setdefault((address or -1 - at, each.dtype, each.device), []).append(at)
    begins = (min(inputs[i].storage_offset() for i in members) for members in groups.values())
    return [(at // ALIGNMENT * ALIGNMENT, members) for at, members in zip(begins, groups.values(), strict=True)]


def _spec(tensor: Tensor, buffer: int, start: int, meta: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "buffer": buffer,
        "shape": tuple(tensor.shape),
        "stride": tuple(tensor.stride()),
        "offset": tensor.storage_offset() - start,
    }
    if tensor.requires_grad:
        spec["requires_grad"] = "leaf" if tensor.is_leaf else "computed"
    if isinstance(tensor, nn.Parameter):
        spec["parameter"] = True
    if isinstance(meta, TensorMeta) and is_symbolic(meta.shape):
        spec["dynamic"] = [dim for dim, size in enumerate(meta.shape) if is_symbolic((size,))]
    return spec


def _buffer(members: Sequence[Tensor], start: int, seed: int, values: bool) -> dict[str, Any]:
    first = members[0]
    used = max(reach(tuple(t.shape), tuple(t.stride()), int(t.storage_offset())) for t in members)
    numel = max(used - start, 0)
    known: dict[str, Any] = {
        "numel": numel,
        "dtype": str(first.dtype).removeprefix("torch."),
        "device": str(first.device),
    }
    flat = torch.empty(0, dtype=first.dtype, device=first.device)
    with torch.no_grad():
        flat.set_(first.untyped_storage(), start, (numel,), (1,))
        real = first.dtype.is_floating_point
        most = (
            MAX_VALUE_ELEMENTS if values else MAX_FLOAT_ELEMENTS if real or first.dtype.is_complex else MAX_INT_ELEMENTS
        )
        if numel <= most:
            content = flat.cpu().contiguous().view(torch.uint8).numpy().tobytes()
            return known | {"data": base64.b64encode(zlib.compress(content)).decode("ascii")}
        if real:
            return known | {"seed": seed} | ({"positive": True} if bool((flat >= 0).all()) else {})
        if first.dtype.is_complex:
            return known | {"seed": seed}
        return known | {"seed": seed, "range": (int(flat.min()), int(flat.max()))}
