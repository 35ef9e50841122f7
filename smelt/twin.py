"""The former name of `compiled_module`; pickles of compiled modules that contain the former name import this module."""

from smelt.compiled_module import CompiledModule as CompiledTwin
from smelt.compiled_module import Remake, _unpickle

__all__ = ["CompiledTwin", "Remake", "_unpickle"]
