"""The former name of `compiled_module`: compiled modules that were pickled under it are loaded by way of this one."""

from smelt.compiled_module import Remake as Remake
from smelt.compiled_module import _unpickle as _unpickle
