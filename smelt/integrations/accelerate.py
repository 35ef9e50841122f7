"""Accelerate: `Accelerator(dynamo_plugin=SmeltPlugin())` compiles with smelt in `prepare`.

Accelerate calls `torch.compile(model, **plugin.to_kwargs())`, recognises compiled models by the class of the result,
and
names backends by an enumeration. Importing this module adds smelt to all three: the backend "smelt" of `torch.compile`
uses smelt's own capture, Accelerate recognises models compiled by smelt, and "smelt" becomes a `DynamoBackend`, so that
`Accelerator(dynamo_backend="smelt")` and `ACCELERATE_DYNAMO_BACKEND=smelt` work as well.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

try:
    from accelerate.utils import DynamoBackend, TorchDynamoPlugin, other
except ImportError as error:
    raise ImportError("smelt.integrations.accelerate needs accelerate: pip install accelerate") from error
from torch import nn

import smelt
from smelt.integrations.patches import take_named


def _add_backend() -> None:
    """Add the member `DynamoBackend("SMELT")` to the enumeration, which has no interface for new members."""
    if "SMELT" not in DynamoBackend.__members__:
        member = str.__new__(DynamoBackend, "SMELT")
        member._name_ = member._value_ = "SMELT"
        DynamoBackend._member_map_["SMELT"] = member
        DynamoBackend._value2member_map_["SMELT"] = member
        DynamoBackend._member_names_.append("SMELT")


class SmeltPlugin(TorchDynamoPlugin):
    """The settings with which `Accelerator.prepare` compiles models by smelt.

    Args:
        mode: as in `smelt.compile`; default: `ACCELERATE_DYNAMO_MODE`, else "default".
        fullgraph: default: `ACCELERATE_DYNAMO_USE_FULLGRAPH`, else False.
        dynamic: default: True if `ACCELERATE_DYNAMO_USE_DYNAMIC` is true, else None: sizes that change become symbols.
            (`accelerate launch` always sets that variable, by default to False.)
        options: as in `smelt.compile`, instead of a mode.
        disable: compile nothing.
        use_regional_compilation: `smelt.compile_regions`; default: `ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION`, else
            False.

    Raises:
        OptionError: an unknown mode or option, or both.
    """

    def __init__(
        self,
        mode: str | None = None,
        fullgraph: bool | None = None,
        dynamic: bool | None = None,
        options: dict[str, Any] | None = None,
        disable: bool = False,
        use_regional_compilation: bool | None = None,
    ) -> None:
        take_named()  # `smelt.uninstall` may have been called since the import
        super().__init__("smelt", mode, fullgraph, dynamic, options, disable, use_regional_compilation)
        if dynamic is None:
            self.dynamic = True if vars(self)["dynamic"] else None
        if options is not None and mode is None:
            self.mode = None
        smelt.compile(**self.to_kwargs())  # raises for wrong arguments

    def to_kwargs(self) -> dict[str, Any]:
        """The keyword arguments for `torch.compile`."""
        names = ("mode", "fullgraph", "dynamic", "options", "disable")
        return {"backend": "smelt", **{name: getattr(self, name) for name in names}}


def _is_compiled(module: nn.Module) -> bool:
    return isinstance(module, nn.Module) and smelt.is_compiled(module)


def _is_compiled_module(original: Callable[..., bool], module: nn.Module) -> bool:
    return _is_compiled(module) or original(module)


def _has_compiled_regions(original: Callable[..., bool], module: nn.Module) -> bool:
    return ("_orig_mod" in module.__dict__ and any(map(_is_compiled, module.modules()))) or original(module)


def _compile_regions(original: Callable[..., nn.Module], module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    if compile_kwargs.get("backend") != "smelt":
        return original(module, **compile_kwargs)
    result: nn.Module = smelt.compile_regions(module, **compile_kwargs)
    return result


def _extract_model(
    original: Callable[..., nn.Module],
    model: Any,
    keep_fp32_wrapper: bool = True,
    keep_torch_compile: bool = True,
    recursive: bool = False,
) -> nn.Module:
    regional = not _is_compiled(model) and _has_compiled_regions(lambda module: False, model)
    if not regional and not _is_compiled(model):
        return original(model, keep_fp32_wrapper, keep_torch_compile, recursive)
    outer = model.__dict__["_orig_mod"] if regional else model._orig_mod
    inner = original(outer, keep_fp32_wrapper, keep_torch_compile, recursive)
    if not keep_torch_compile:
        return inner
    if inner is outer:
        return model
    if not regional:
        return model._smelt_remake(inner)
    copies = {id(_original(copy)): copy for copy in model.modules()}  # the wrapped module has its own copy with regions
    return copies.get(id(inner), inner)


def _original(module: Any) -> Any:
    return module._orig_mod if _is_compiled(module) else module.__dict__.get("_orig_mod")


_REPLACED: dict[str, Callable[..., Any]] = {
    "is_compiled_module": _is_compiled_module,
    "has_compiled_regions": _has_compiled_regions,
    "compile_regions": _compile_regions,
    "extract_model_from_parallel": _extract_model,
}


def _replace(name: str, ours: Callable[..., Any]) -> None:
    """Replace the function `name` of Accelerate in each of Accelerate's modules that has imported it."""
    own = getattr(other, name)
    replacement = functools.wraps(own)(functools.partial(ours, own))
    for key, module in list(sys.modules.items()):
        if key.split(".")[0] == "accelerate" and getattr(module, name, None) is own:
            setattr(module, name, replacement)


_add_backend()
take_named()
for _name, _ours in _REPLACED.items():
    _replace(_name, _ours)
