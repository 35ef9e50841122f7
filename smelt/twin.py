"""The former name of `compiled_module`: compiled modules that were pickled under it are loaded by way of this one."""

from smelt.compiled_module import CompiledModule as CompiledTwin
from smelt.compiled_module import Remake, _unpickle

__all__ = ["CompiledTwin", "Remake", "_unpickle"]
