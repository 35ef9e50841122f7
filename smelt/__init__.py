"""smelt: a compiler for PyTorch programs. `model = smelt.compile(model)`, and training and inference get faster."""

from typing import Any

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
from smelt.base.options import list_mode_options, list_options
from smelt.base.stats import stats
from smelt.base.store_archive import load_cache, save_cache
from smelt.base.version import VERSION as __version__

try:
    from smelt.api import compile, explain, is_compiled, lookup_backend, reset
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
    from smelt.compiled_module import when_compiled
    from smelt.integrations.lightning import take_functions
    from smelt.integrations.patches import install, uninstall
    from smelt.integrations.torch_controls import take_controls
    from smelt.regions import compile_regions

    take_controls()
    when_compiled(take_functions)
except ImportError as error:
    if "_native" not in str(error):
        raise

    def __getattr__(name: str) -> Any:
        """Without its C extensions the package still imports, so that `smelt verify` can say what is missing."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise SmeltError(
            f"smelt.{name} needs the C extensions, which are not built",
            hint="pip install --no-build-isolation . (needs a C compiler and Python's headers), then smelt verify",
        )


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
