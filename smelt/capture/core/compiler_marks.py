"""Marks that users of torch.compile left on functions (`torch.compiler.disable` and its kin): read without its import.

They are attributes of functions, or sets of identities in a module that is there already when somebody used it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.fx import _symbolic_trace as symbolic_trace

from smelt.base.class_tables import isinstance
from smelt.base.python_text import module_name
from smelt.capture import _native as native


class _UnlessExported:
    """True unless `torch.export` runs: torch.compile calls what smelt has compiled, an export looks into it."""

    def __bool__(self) -> bool:
        return not torch.compiler.is_exporting()


UNLESS_EXPORTED = _UnlessExported()

FOR_TORCH_ALONE = "smelt has compiled it"
"""The reason for torch.compile to leave a function alone that is none for smelt: `functools.wraps` copies marks."""


def disabled(function: object) -> str | None:
    """The reason why a function must not be captured; None when it may."""
    reason = getattr(function, "_smelt_disabled", None)
    if reason is None and getattr(function, "_torchdynamo_disable", False):
        given = getattr(function, "_torchdynamo_disable_msg", None)
        if given == FOR_TORCH_ALONE:
            return None
        return f"torch.compiler.disable marks it{f': {given}' if given else ''}"
    return reason


written_as_graph: Callable[[], bool] = getattr(symbolic_trace, "is_fx_symbolic_tracing", symbolic_trace.is_fx_tracing)
"""Whether `torch.fx.symbolic_trace` writes down, as a graph, what this thread does."""

REGION_CODES: set[CodeType] = set()
"""The codes of the functions that `smelt.compile` makes."""


def compiled_here(function: object) -> bool:
    """Whether `smelt.compile` made the function. Attributes do not tell: `functools.wraps` copies them to others."""
    function = function.__func__ if isinstance(function, MethodType) else function
    return isinstance(function, FunctionType) and function.__code__ in REGION_CODES


_WRAPPERS = os.path.join("torch", "_dynamo", "eval_frame.py")
"""Where the code of what torch.compile makes stands: `functools.wraps` copies attributes to other functions."""


def compiled_elsewhere(function: FunctionType) -> bool:
    """Whether torch.compile made the function, for another one that it holds as `_torchdynamo_orig_callable`."""
    attributes = function.__dict__
    if "_torchdynamo_orig_callable" not in attributes or attributes.get("_torchdynamo_disable"):
        return False
    return function.__code__.co_filename.endswith(_WRAPPERS) and disabled(function) is None


def hidden_by_torch(function: FunctionType) -> bool:
    """Whether torch hides a function of its optimizers from its own compiler: so it does at the first use of that."""
    attributes = function.__dict__
    ours = attributes.get("_torchdynamo_disable") and module_name(function.__module__).startswith("torch.optim")
    wraps = "_torchdynamo_orig_callable" in attributes
    return bool(ours) and wraps and function.__code__.co_filename.endswith(_WRAPPERS)


def held_original(function: FunctionType) -> str | None:
    """The attribute that holds the function in place of which torch has put this one; None: it is no such one."""
    if compiled_elsewhere(function) or hidden_by_torch(function):
        return "_torchdynamo_orig_callable"
    if _REGION in function.__dict__ and function.__code__.co_filename.endswith(_REGIONS):
        return _REGION
    return None


_REGION = "__marked_compile_region_fn__"
_REGIONS = os.path.join("torch", "_higher_order_ops", "invoke_subgraph.py")
"""Where `torch.compiler.nested_compile_region` wraps functions."""


def original_init(function: FunctionType) -> object:
    """What `Module.__init__` was before torch's compiler put this function in its place; None: it is another one."""
    code = function.__code__
    if code.co_name != "patched_init" or not code.co_filename.endswith(_TAGGING) or "init" not in code.co_freevars:
        return None
    return (function.__closure__ or ())[code.co_freevars.index("init")].cell_contents


_TAGGING = os.path.join("torch", "_dynamo", "mutation_guard.py")


def original_module(module: Any) -> object:
    """The module that torch.compile wrapped in this one; None: it is no such one."""
    elsewhere = sys.modules.get("torch._dynamo.eval_frame")
    if elsewhere is None or type(module) is not getattr(elsewhere, "OptimizedModule", None):
        return None
    return module._modules["_orig_mod"]


def respect(function: FunctionType) -> None:
    """A disabled function is met: what it calls runs as it is too, unless only the function itself is meant."""
    if getattr(function, "_torchdynamo_disable_recursive", False):
        native.quiet(function.__code__)
    inner = getattr(function, "_torchdynamo_orig_callable", None)
    if isinstance(inner, FunctionType) and getattr(function, "_torchdynamo_disable_recursive", None) is False:
        native.skip(inner.__code__)


def is_constant_result(function: FunctionType) -> bool:
    """`torch.compiler.assume_constant_result` marked it."""
    return "_dynamo_marked_constant" in function.__dict__


def is_allowed(function: object) -> bool:
    """`torch.compiler.allow_in_graph` marked it."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None or module_name(getattr(function, "__module__", None)).startswith("torch."):
        return False
    allowed = vars(rules).get("_allowed_callable_ids")
    return id(function) in (getattr(allowed, "function_ids", None) or ())


def quiet_wrappers() -> None:
    """The code that all functions under `torch.compiler.disable` share, once somebody has imported what makes it."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    if module is not None and hasattr(module, "DisableContext"):
        _quiet_wrapper(vars(module)["DisableContext"])


@cache
def _quiet_wrapper(context: Any) -> None:
    for code in context.__call__.__code__.co_consts:
        if isinstance(code, CodeType) and code.co_name == "_fn":
            native.quiet(code)


def asks_of_no_tensor(fn: Callable[..., object], args: Sequence[object]) -> bool:
    """Whether transformers asks if a tensor is traced, of a tensor that is not there.

    It asks before it reads the values of a padding mask, which a graph does not know. Where there is no such mask, yes
    would have models build masks (of nothing at all, or of what `is_causal` says) that they do without in eager.
    """
    return (
        len(args) == 1
        and args[0] is None
        and fn.__name__ == "is_tracing"
        and fn.__module__ == "transformers.utils.import_utils"
    )


@cache
def no_effect(module: str, name: str) -> bool:
    """Functions of the other compiler that only tell it something."""
    return module.startswith("torch._dynamo") and name in _HINTS


_HINTS = frozenset(
    {"mark_dynamic", "mark_static", "mark_static_address", "maybe_mark_dynamic", "mark_unbacked", "reset"}
    | {"maybe_mark_static", "unmark_dynamic"}
)
