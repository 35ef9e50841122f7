"""smelt: a compiler for PyTorch programs. `model = smelt.compile(model)`, and training and inference get faster."""

import importlib
from typing import TYPE_CHECKING, Any

import torch

from smelt.base.errors import (
    BuildError,
    CompileError,
    OptionError,
    RecompileError,
    SmeltError,
    SmeltWarning,
    SpecializationError,
    Unsupported,
)
from smelt.base.imports import late
from smelt.base.options import list_mode_options, list_options
from smelt.base.stats import stats
from smelt.base.store_archive import load_cache, save_cache
from smelt.base.version import VERSION as __version__
from smelt.integrations.torch_controls import take_controls

if TYPE_CHECKING:
    from smelt.api import compile, explain, is_compiled, lookup_backend, reset
    from smelt.artefact.artefact import load
    from smelt.autograd.aot import aot_autograd
    from smelt.backends import list_backends, register_backend
    from smelt.capture.guards.dynamic_shapes import mark_dynamic, mark_static
    from smelt.capture.stance import stance
    from smelt.capture.torch.escapes import (
        allow_in_graph,
        assume_constant_result,
        disable,
        graph_break,
        is_compiling,
        substitute_in_graph,
    )
    from smelt.integrations.patches import install, uninstall
    from smelt.regions import compile_regions

_NAMES_OF = {
    "smelt.api": ("compile", "explain", "is_compiled", "lookup_backend", "reset"),
    "smelt.artefact.artefact": ("load",),
    "smelt.autograd.aot": ("aot_autograd",),
    "smelt.backends": ("list_backends", "register_backend"),
    "smelt.capture.guards.dynamic_shapes": ("mark_dynamic", "mark_static"),
    "smelt.capture.stance": ("stance",),
    "smelt.capture.torch.escapes": (
        "allow_in_graph",
        "assume_constant_result",
        "disable",
        "graph_break",
        "is_compiling",
        "substitute_in_graph",
    ),
    "smelt.integrations.patches": ("install", "uninstall"),
    "smelt.regions": ("compile_regions",),
}
"""Module -> public names that `__getattr__` imports from it on first access; loading an artefact imports no
compiler."""

ALONE = frozenset({"smelt.artefact.artefact"})
"""Modules that are imported without the compiler."""

_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}
_WITH_THEM = frozenset(
    "abi api autograd backends capture checked codegen compiled_module driver gpu graph loops passes pipeline prims "
    "program regions runtime schedule shapes".split()
)
"""Submodules that the compiler imports, and that are therefore attributes of `smelt` without an import statement."""


def __getattr__(name: str) -> Any:
    if name == "tiny":  # imported separately: the compiler does not need it
        return importlib.import_module("smelt.tiny")
    if name not in _MODULE_OF and name not in _WITH_THEM:
        raise AttributeError(f"module 'smelt' has no attribute {name!r}")
    # All modules of a group are imported at once, so that no import happens while a program is captured.
    group = ALONE if _MODULE_OF.get(name) in ALONE else _NAMES_OF.keys() - ALONE
    found = None
    try:
        collection = importlib.import_module("smelt.base.collection")  # needs the C extensions
        with collection.no_collection(collect=False):
            for module in sorted(group):
                found = importlib.import_module(module)
                globals().update({each: getattr(found, each) for each in _NAMES_OF[module]})
    except AttributeError as error:
        if not getattr(getattr(found, "__spec__", None), "_initializing", False):
            raise
        raise AttributeError(  # `hasattr` expects this class
            f"smelt.{name} is being imported by what a signal handler or finalizer has interrupted\n"
            f"  try: import {_MODULE_OF.get(name, 'smelt.api')} before the handler is set"
        ) from error
    except ImportError as error:
        if "_native" not in str(error):
            raise
        raise SmeltError(  # `import smelt` works without the C extensions, so that `smelt verify` can name them
            f"smelt.{name} needs the C extensions, which are not built",
            hint="pip install --no-build-isolation . (needs a C compiler and Python's headers), then smelt verify",
        ) from error
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})


REMAKERS = {
    "smelt.api": ("compiled_again",),
    "smelt.artefact.artefact": ("uncompiled",),
    "smelt.regions": ("block_group", "block_again"),
}
"""The functions that pickles of compiled modules name: `torch.load(weights_only=True)` may call them."""

torch.serialization.add_safe_globals(
    [(late(module, name), f"{module}.{name}") for module, names in REMAKERS.items() for name in names]
)

take_controls()

__all__ = [
    "BuildError",
    "CompileError",
    "OptionError",
    "RecompileError",
    "SmeltError",
    "SmeltWarning",
    "SpecializationError",
    "Unsupported",
    "__version__",
    "allow_in_graph",
    "aot_autograd",
    "assume_constant_result",
    "compile",
    "compile_regions",
    "disable",
    "explain",
    "graph_break",
    "install",
    "is_compiled",
    "is_compiling",
    "list_backends",
    "list_mode_options",
    "list_options",
    "load",
    "load_cache",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "register_backend",
    "reset",
    "save_cache",
    "stance",
    "stats",
    "substitute_in_graph",
    "uninstall",
]
