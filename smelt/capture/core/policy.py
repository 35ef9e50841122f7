"""Policies for calls of Python functions: inline, make a node, run uncaptured, defer, or end the graph.

The function's module and name decide, once per code object.
"""

from __future__ import annotations

import builtins
import enum
import importlib.util
import os
import sys
import sysconfig
import types
import weakref
from functools import cache, lru_cache

import numpy
import torch
import typing_extensions

from smelt.base.python_text import module_name
from smelt.capture.core.by_code import ByCode


class Policy(enum.Enum):
    """How capture treats a call of a Python function."""

    INLINE = "interpret its bytecode"
    LEAF = "one node of the graph"
    NATIVE = "run it as it is: it depends on its arguments alone"
    DEFER = "call it after the graph has run: its result is not used"
    KERNEL = "launch a Triton kernel: one node of the graph"
    BREAK = "end the graph"


LEAF_MODULES = (
    "torch.nn.functional",
    "torch.functional",
    "torch._tensor",
    "torch._tensor_str",
    "torch.nn.init",
    "torch._ops",
    "torch.special",
    "torch.fft",
    "torch.linalg",
    "torch._lobpcg",
    "torch._lowrank",
    "torch.nested",
    "torch.sparse",
    "torch.masked",
    "torch._VF",
    "torch._jit_internal",
)
NATIVE_MODULES = (
    "smelt.capture",
    "inspect",
    "re",
    "sre_parse",
    "typing",
    "abc",
    "_py_abc",
    "enum",
    "ast",
    "importlib",
    "textwrap",
    "packaging",
    "fractions",
    "numbers",
    "numpy",
    "torch._ops",
    "torch.version",
    "torch.backends",
    "torch.torch_version",
    "torch.cuda",
    "torch._utils_internal",
    "torch._sources",
)
INLINE_MODULES = (
    "torch._functorch.functional_call",
    "torch.distributed.algorithms._checkpoint",
    "torch.distributed._functional_collectives",
    "torch.distributed.nn.functional",
    "torch._higher_order_ops.cond",
    "torch._higher_order_ops.while_loop",
    "torch._higher_order_ops.scan",
    "torch._higher_order_ops.map",
    "torch._higher_order_ops.associative_scan",
    "torch._higher_order_ops.utils",
)
"""Modules that are inlined although calls into their package (BREAK_MODULES) end the graph."""
INTERPRETED = "smelt.capture.torch.higher_order_forms"
"""The module of capture whose functions are interpreted like the program's."""
INLINE_NAMES = {
    ("torch.autograd.graph", "__init__"),
    ("torch.autograd.graph", "disable_saved_tensors_hooks"),
    ("typing", "__call__"),  # in `Box[int](...)`, which makes objects of the program
}
DEFER_MODULES = ("logging", "warnings")
BREAK_MODULES = (
    "torch._functorch",
    "torch._higher_order_ops",
    "torch._dynamo",
    "torch._inductor",
    "torch.export",
    "torch.jit",
    "torch.distributed",
    "deepspeed",
    "random",
    "threading",
    "multiprocessing",
    "subprocess",
    "asyncio",
    "concurrent",
    "socket",
    "tempfile",
    "shutil",
    "pickle",
    "pdb",
    "traceback",
    "time",
    "torch.autograd.graph",
    "torch.multiprocessing",
    "torch.serialization",
    "torch.profiler",
    "torch.utils.data",
    "numpy.random",
)
NATIVE_NAMES = {
    ("torch.distributed", "is_available"),
    ("torch.distributed.distributed_c10d", "is_initialized"),
    ("torch.distributed.distributed_c10d", "get_backend"),
    ("torch.distributed.distributed_c10d", "get_rank"),
    ("torch.distributed.distributed_c10d", "get_world_size"),
    ("torch._functorch.utils", "unwrap_dead_wrappers"),
    ("torch.onnx", "is_in_onnx_export"),
    ("dataclasses", "fields"),
    ("dataclasses", "is_dataclass"),
    ("collections", "namedtuple"),
    ("torch._utils", "_get_device_index"),
    ("torch._C", "_get_privateuse1_backend_name"),
}
BREAK_NAMES = {
    ("abc", "register"),
    ("abc", "update_abstractmethods"),
    ("abc", "_abc_registry_clear"),
    ("abc", "_abc_caches_clear"),
    ("enum", "__setattr__"),
    ("enum", "__delattr__"),
    ("functools", "total_ordering"),
    ("typing", "runtime_checkable"),
    ("typing", "final"),
    ("typing", "no_type_check"),
}
"""(module, name) of functions of uncaptured modules that end the graph, since they change the class that they get."""
DEFER_NAMES = {
    ("transformers.utils.logging", "warning_once"),
    ("transformers.utils.logging", "warning_advice"),
    ("transformers.utils.logging", "info_once"),
}


@lru_cache(4096)
def _inside(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


_policies: ByCode[Policy] = ByCode()


def policy_of(function: types.FunctionType) -> Policy:
    """The policy for a Python function."""
    code = function.__code__
    return _policies.get(code) or _policies.put(code, _decide(function))


def _module_of(function: types.FunctionType) -> str:
    return module_name(function.__globals__.get("__name__")) or module_name(function.__module__)


def _decide(function: types.FunctionType) -> Policy:
    module = _module_of(function)
    name = (module, function.__name__)
    if name in NATIVE_NAMES:
        return Policy.NATIVE
    if name in INLINE_NAMES:
        return Policy.INLINE
    if function.__name__ == "run" and _inside(module, ("triton.runtime",)):
        return Policy.KERNEL
    if name in DEFER_NAMES or _inside(module, DEFER_MODULES):
        return Policy.DEFER if function.__name__ not in _LOGGING_STATE else Policy.INLINE
    if _inside(module, LEAF_MODULES):
        return Policy.LEAF
    if _ends_graph(module, name[1]):
        return Policy.BREAK
    if _inside(module, NATIVE_MODULES) and module != INTERPRETED:
        return Policy.NATIVE
    return Policy.INLINE


def _ends_graph(module: str, name: str) -> bool:
    if (module, name) in BREAK_NAMES or _inside(module, ("numpy",)) and name in _NUMPY_STATE:
        return True
    return _inside(module, BREAK_MODULES) and not _inside(module, INLINE_MODULES)


_LOGGING_STATE = frozenset(
    "getLogger isEnabledFor getEffectiveLevel get_logger __init__ hasHandlers "
    "format formatMessage formatTime formatException formatStack usesTime getMessage getLevelName".split()
)
"""Functions of logging whose results are used: calls of them are not deferred."""
_NUMPY_STATE = frozenset(
    "seterr geterr seterrcall geterrcall setbufsize getbufsize set_printoptions get_printoptions".split()
)
"""Functions of numpy that read or change its settings."""
_FROZEN = frozenset(sys.stdlib_module_names) | frozenset({"torch", "numpy", "typing_extensions"})


def is_frozen(module: object) -> bool:
    """Whether functions and classes of this module are assumed never to change while a program runs: they need no
    guard."""
    return type(module) is str and _is_frozen(module)


@lru_cache(4096)  # bounded: programs may make many modules
def _is_frozen(module: str) -> bool:
    return module.split(".")[0] in _FROZEN and module != "__main__"


_BUILTINS = vars(builtins)
_OWN = tuple(
    (name, value) for name, value in _BUILTINS.items() if callable(value) and name not in ("open", "print", "input")
)


def is_replaced() -> bool:
    """Whether the program has replaced a builtin, or an attribute of tensors that capture itself uses."""
    return _builtins_are_replaced() or _tensors_are_replaced()


def _builtins_are_replaced() -> bool:
    for name, value in _OWN:
        if _BUILTINS.get(name) is not value:
            return True
    return False


_DESCRIBING = (
    "shape dtype device layout requires_grad is_leaf grad_fn data itemsize is_cuda is_meta is_sparse is_quantized "
    "size stride dim numel storage_offset element_size data_ptr untyped_storage is_conj is_neg is_inference "
    "_version _base _is_view _is_zerotensor requires_grad_ as_strided detach item _make_wrapper_subclass"
).split()
"""Attributes of tensors that the compiler itself reads in Python or uses to make tensors."""
_OWN_OF_TENSORS = tuple((name, getattr(torch.Tensor, name)) for name in _DESCRIBING)


def _tensors_are_replaced() -> bool:
    of_tensors = torch.Tensor
    for name, value in _OWN_OF_TENSORS:
        if getattr(of_tensors, name, None) is not value:
            return True
    return False


def is_programs(function: types.FunctionType) -> bool:
    """Whether a Python function that C code calls is part of the program, not of the compiler, torch or uncaptured
    code.

    Finalizers are excluded, because Python may run them in any code that drops an object.
    """
    module = _module_of(function)
    if function.__name__ == "__del__" or _inside(module, ("torch", "smelt")) and not _inside(module, _USING_SMELT):
        return False
    return policy_of(function) is not Policy.NATIVE


_USERS = ("bench", "cli", "demo", "integrations")
"""The subpackages of smelt that only use the compiler: like user code, they contain functions to be compiled."""
_USING_SMELT = tuple(f"smelt.{name}" for name in _USERS)


@cache
def skipped_prefixes() -> tuple[str, ...]:
    """Prefixes of the files whose frames are never captured as roots: the standard library and `typing_extensions`,
    numpy, torch except its layers (including wrappers that recompute a layer), DeepSpeed (its hooks gather the
    parameters of each layer when the layer runs), and the compiler itself."""
    here = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
    paths = sysconfig.get_paths()
    folder = os.path.dirname(torch.__file__)
    layers = os.path.join(folder, "nn", "modules")
    found = ["<frozen", "<smelt host", os.path.dirname(numpy.__file__) + os.sep, *_entries(here, _USERS)]
    for standard in dict.fromkeys((paths["stdlib"], paths["platstdlib"])):
        found += _entries(standard, ("site-packages", "dist-packages"))
    found += _entries(folder, ("nn", "distributed")) + _entries(os.path.dirname(layers), ("modules",))
    for *above, inner in (("distributed", "algorithms"), ("distributed", "algorithms", "_checkpoint")):
        found += _entries(os.path.join(folder, *above), (inner,))
    found += _package_folders("deepspeed")
    found += [typing_extensions.__file__, os.path.join(layers, "module.py"), os.path.join(layers, "_functions.py")]
    return tuple(found)


def is_skipped(code: types.CodeType, globals: dict[str, object]) -> bool:
    """Whether frames of this code are never captured as roots, by its file; for code made from source text, by the file
    of its module."""
    file: object = code.co_filename if code.co_filename != "<string>" else globals.get("__file__")
    return type(file) is str and file.startswith(skipped_prefixes())


def quiet_prefixes() -> tuple[str, ...]:
    """Prefixes of files (of torch's compiler, and `weakref` for its finalizers) whose frames are not captured, nor the
    frames that they call."""
    folder = os.path.dirname(torch.__file__)
    files = ("_dynamo/convert_frame.py", "_functorch/aot_autograd.py", "_functorch/_aot_autograd/", "_inductor/")
    return (weakref.__file__, *(os.path.join(folder, *name.split("/")) for name in files))


def _package_folders(name: str) -> list[str]:
    """The folders of a top-level package, with a trailing separator; empty if it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # `sys.modules` has a module without a valid `__spec__`
        return []
    return [path + os.sep for path in (spec and spec.submodule_search_locations) or ()]


def _entries(folder: str, but: tuple[str, ...]) -> list[str]:
    """Paths of the files and folders (with a trailing separator) in a folder, except those named in `but`."""
    if not os.path.isdir(folder):
        return []
    return [entry.path + os.sep * entry.is_dir() for entry in os.scandir(folder) if entry.name not in but]
