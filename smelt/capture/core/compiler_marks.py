"""Reads torch.compile's marks on functions (`torch.compiler.disable` and others) without importing torch's compiler.

A mark is an attribute of the function, or its identity in a set of a module of torch's compiler; the code that adds it
there has imported that module.
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
    """A value that is true unless `torch.export` runs: torch.compile calls functions that smelt has compiled, whereas
    an export traces into them."""

    def __bool__(self) -> bool:
        return not torch.compiler.is_exporting()


UNLESS_EXPORTED = _UnlessExported()

FOR_TORCH_ALONE = "smelt has compiled it"
"""The reason, stored on a function that smelt compiles, why torch.compile skips it. smelt ignores this reason:
`functools.wraps` copies it to other functions."""


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
"""Whether `torch.fx.symbolic_trace` is tracing on this thread."""

REGION_CODES: set[CodeType] = set()
"""The code objects of the functions that `smelt.compile` makes."""


def is_compiled_by_smelt(function: object) -> bool:
    """Whether `smelt.compile` made the function. Its code decides, because `functools.wraps` copies attributes to other
    functions."""
    function = function.__func__ if isinstance(function, MethodType) else function
    return isinstance(function, FunctionType) and function.__code__ in REGION_CODES


_WRAPPERS = os.path.join("torch", "_dynamo", "eval_frame.py")
"""The file of torch.compile's wrappers. Its name identifies them, because `functools.wraps` copies attributes."""


def compiled_elsewhere(function: FunctionType) -> bool:
    """Whether torch.compile wrapped the function, whose original is `_torchdynamo_orig_callable`."""
    attributes = function.__dict__
    if "_torchdynamo_orig_callable" not in attributes or attributes.get("_torchdynamo_disable"):
        return False
    return function.__code__.co_filename.endswith(_WRAPPERS) and disabled(function) is None


def is_disabled_by_torch(function: FunctionType) -> bool:
    """Whether torch has disabled a function of its optimizers for torch.compile, which it does when that compiler is
    first used."""
    attributes = function.__dict__
    ours = attributes.get("_torchdynamo_disable") and module_name(function.__module__).startswith("torch.optim")
    wraps = "_torchdynamo_orig_callable" in attributes
    return bool(ours) and wraps and function.__code__.co_filename.endswith(_WRAPPERS)


def original_attribute(function: FunctionType) -> str | None:
    """The attribute with the original of a function that torch has wrapped for its compiler; None for any other
    function."""
    if compiled_elsewhere(function) or is_disabled_by_torch(function):
        return "_torchdynamo_orig_callable"
    if _REGION in function.__dict__ and function.__code__.co_filename.endswith(_REGIONS):
        return _REGION
    return None


_REGION = "__marked_compile_region_fn__"
_REGIONS = os.path.join("torch", "_higher_order_ops", "invoke_subgraph.py")
"""The file in which `torch.compiler.nested_compile_region` wraps functions."""


def original_init(function: FunctionType) -> object:
    """The original `Module.__init__`, if this function is the wrapper that torch's compiler installs; None
    otherwise."""
    code = function.__code__
    if code.co_name != "patched_init" or not code.co_filename.endswith(_TAGGING) or "init" not in code.co_freevars:
        return None
    return (function.__closure__ or ())[code.co_freevars.index("init")].cell_contents


_TAGGING = os.path.join("torch", "_dynamo", "mutation_guard.py")


def original_module(module: Any) -> object:
    """The module that torch.compile wrapped in `module`; None if `module` is not such a wrapper."""
    elsewhere = sys.modules.get("torch._dynamo.eval_frame")
    if elsewhere is None or type(module) is not getattr(elsewhere, "OptimizedModule", None):
        return None
    return module._modules["_orig_mod"]


def respect(function: FunctionType) -> None:
    """Let a disabled function and every function that it calls run uncompiled. If the mark has `recursive=False`, only
    the function itself does."""
    if getattr(function, "_torchdynamo_disable_recursive", False):
        native.quiet(function.__code__)
    inner = getattr(function, "_torchdynamo_orig_callable", None)
    if isinstance(inner, FunctionType) and getattr(function, "_torchdynamo_disable_recursive", None) is False:
        native.skip(inner.__code__)


def is_constant_result(function: FunctionType) -> bool:
    """Whether `torch.compiler.assume_constant_result` marked the function."""
    return "_dynamo_marked_constant" in function.__dict__


def is_allowed(function: object) -> bool:
    """Whether `torch.compiler.allow_in_graph` marked the function."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None or module_name(getattr(function, "__module__", None)).startswith("torch."):
        return False
    allowed = vars(rules).get("_allowed_callable_ids")
    return id(function) in (getattr(allowed, "function_ids", None) or ())


def quiet_wrappers() -> None:
    """Exclude from compilation the wrapper code that all functions under `torch.compiler.disable` share, if its module
    has been imported."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    if module is not None and hasattr(module, "DisableContext"):
        _quiet_wrapper(vars(module)["DisableContext"])


@cache
def _quiet_wrapper(context: Any) -> None:
    for code in context.__call__.__code__.co_consts:
        if isinstance(code, CodeType) and code.co_name == "_fn":
            native.quiet(code)


def is_tracing_none(fn: Callable[..., object], args: Sequence[object]) -> bool:
    """Whether a call is `is_tracing(None)` of transformers.

    transformers calls `is_tracing` before it reads the values of a padding mask, which are unknown to a graph. Without
    a padding mask, the result True would make models build masks (empty or causal ones) that eager does not build.
    """
    return (
        len(args) == 1
        and args[0] is None
        and fn.__name__ == "is_tracing"
        and fn.__module__ == "transformers.utils.import_utils"
    )


@cache
def no_effect(module: str, name: str) -> bool:
    """Whether a function of torch's compiler only gives that compiler a hint."""
    return module.startswith("torch._dynamo") and name in _HINTS


_HINTS = frozenset(
    {"mark_dynamic", "mark_static", "mark_static_address", "maybe_mark_dynamic", "mark_unbacked", "reset"}
    | {"maybe_mark_static", "unmark_dynamic"}
)
