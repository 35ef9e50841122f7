"""smelt: a compiler for PyTorch programs. `model = smelt.compile(model)`, and training and inference get faster."""

from smelt.api import compile, explain, is_compiled, reset
from smelt.backends import list_backends, register_backend
from smelt.base.errors import BuildError, CompileError, OptionError, SmeltError, SmeltWarning, Unsupported
from smelt.base.stats import stats
from smelt.base.version import VERSION as __version__
from smelt.capture.escapes import allow_in_graph, assume_constant_result, disable, graph_break, is_compiling

__all__ = [
    "BuildError",
    "CompileError",
    "OptionError",
    "SmeltError",
    "SmeltWarning",
    "Unsupported",
    "__version__",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "disable",
    "explain",
    "graph_break",
    "is_compiled",
    "is_compiling",
    "list_backends",
    "register_backend",
    "reset",
    "stats",
]
