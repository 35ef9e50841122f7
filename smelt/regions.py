"""Regional compilation: the repeated blocks of a model are compiled, each class of blocks once.

A deep model consists mostly of one repeated block. If the model is compiled as a whole, each block is captured,
differentiated and scheduled. In regional compilation only the first block of a class is compiled, and the others run
its programs with their own parameters. Accelerate's `compile_regions` selects regions by the same rules.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

from torch import nn

from smelt.api import chosen_options, compile
from smelt.base.errors import OptionError, SmeltWarning, shown
from smelt.capture import compiled as capture
from smelt.compiled_module import compiled_module_of, is_compiled_module, original_of
from smelt.driver import compile_graph

REST = ("compile", "eager")


def compile_regions(model: nn.Module, *, rest: str = "compile", **compile_args: Any) -> Any:
    """A model whose repeated blocks are compiled, each class of blocks once.

    Repeated blocks are the children of a `ModuleList` whose children all have the class of the first child. Children of
    a `Sequential` have to be two or more, and the first child must have children itself. Blocks whose Python code takes
    another branch, or whose sizes differ, get separate versions.

    Args:
        model: a module. It stays as it is; the result shares its parameters, buffers and hooks, and has the same
            `state_dict` keys.
        rest: "compile": children without repeated blocks are compiled, each separately. "eager": they run in eager.
            Modules that contain repeated blocks always run their own `forward` in eager.
        compile_args: the keyword arguments of `smelt.compile`.

    Returns:
        A module of the same class. Without repeated blocks it is `smelt.compile(model)`, with a warning.

    Raises:
        OptionError: an unknown option, or one with a wrong value.
        TypeError: `model` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"smelt.compile_regions takes an nn.Module, and this is a {type(model).__name__}")
    if not isinstance(rest, str) or rest not in REST:
        raise OptionError(f"rest wants one of {', '.join(map(repr, REST))}, got {shown(rest)}")
    chosen_options(**compile_args)  # errors in the options come first
    model = original_of(model)
    if compile_args.pop("disable", False):
        return model
    if not any(map(is_repeated, model.modules())):
        text = f"{type(model).__name__} has no repeated blocks: it is compiled as a whole"
        warnings.warn(SmeltWarning(f"{text}\n  try: smelt.compile(model)"), stacklevel=2)
        return compile(model, **compile_args)
    return _Regions(compile_args, rest).built(model)


def is_repeated(module: nn.Module) -> bool:
    """Whether the children of a container are blocks that share a class."""
    children = list(module.children())
    if isinstance(module, nn.Sequential):
        alike = len(children) > 1 and any(True for _ in children[0].children())
    else:
        alike = isinstance(module, nn.ModuleList) and bool(children)
    return alike and all(isinstance(child, type(children[0])) for child in children)


class BlockGroup:
    """Compiles the blocks of one class, which share their versions. Copies of a block belong to the same group.

    Args:
        compile_args: the arguments of `smelt.compile`.
        count: number of blocks.
    """

    def __init__(self, compile_args: Mapping[str, Any], count: int) -> None:
        self.made_of = dict(compile_args), count
        options = chosen_options(**compile_args)
        # each block may read other Python numbers and then needs its own version
        self.options = replace(options, recompile_limit=options.recompile_limit + count)
        self._first: Any = None

    def __call__(self, module: nn.Module) -> Any:
        call = capture.compile_callable(module, compile_graph, self.options, self._first)
        if self._first is None:
            self._first = call
        return compiled_module_of(module, call, self)

    def reduced(self, module: nn.Module) -> tuple[Any, ...]:
        """Returns the pickled form of a block; all blocks of a model refer to one group."""
        return block_again, (self, module)

    def ahead(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Raise an error: blocks are compiled when they run."""
        raise OptionError("a block is not compiled ahead", hint="smelt.compile(model).aot_compile(...)")

    def __reduce__(self) -> tuple[Any, ...]:
        return block_group, self.made_of


def block_group(compile_args: Mapping[str, Any], count: int) -> BlockGroup:
    """Rebuild a pickled group. Pickles name this function, not a class: `torch.load` lets data set attributes of a
    class.
    """
    return BlockGroup(compile_args, count)


def block_again(group: BlockGroup, block: nn.Module) -> Any:
    """Rebuild a pickled block. `torch.load(weights_only=True)` also calls this function, on untrusted data."""
    if not isinstance(group, BlockGroup) or not isinstance(block, nn.Module):
        raise TypeError("a pickle of a compiled block holds a group and a module")
    return group(block)


class _Regions:
    """Builds the compiled regions of one model."""

    def __init__(self, compile_args: dict[str, Any], rest: str) -> None:
        self.compile_args, self.rest = compile_args, rest
        self.groups: dict[type, BlockGroup] = {}
        self.made: dict[int, nn.Module] = {}

    def built(self, module: nn.Module) -> nn.Module:
        """Returns the module with its regions compiled; the module itself if nothing in it is to be compiled."""
        if id(module) not in self.made:  # one block may be the child of two containers
            self.made[id(module)] = self._build(module)
        return self.made[id(module)]

    def _build(self, module: nn.Module) -> nn.Module:
        if is_compiled_module(module):
            return module
        if not any(map(is_repeated, module.modules())):
            return compile(module, **self.compile_args) if self.rest == "compile" else module
        repeated = is_repeated(module)
        copy: nn.Module = object.__new__(type(module))
        copy.__dict__.update(module.__dict__)
        for name, value in module.__dict__.items():  # for example an instance attribute `forward`
            if isinstance(value, MethodType) and value.__self__ is module:
                copy.__dict__[name] = MethodType(value.__func__, copy)
        copy.__dict__["_modules"] = {
            name: child if child is None else self._block(child, module) if repeated else self.built(child)
            for name, child in module._modules.items()
        }
        copy.__dict__["_orig_mod"] = module
        return copy

    def _block(self, block: nn.Module, container: nn.Module) -> nn.Module:
        if is_compiled_module(block):
            return block
        if id(block) not in self.made:
            group = self.groups.get(type(block))
            if group is None:
                group = self.groups[type(block)] = BlockGroup(self.compile_args, len(list(container.children())))
            self.made[id(block)] = group(block)
        return self.made[id(block)]
