"""Shortens models: in a chain of repeated blocks, one block of each kind is kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import nn

MIN_BLOCKS = 2
"""Minimum number of blocks that a chain keeps, so that a loop over them still runs more than once."""

PLAIN = (bool, int, str, type(None))


def shorten(model: nn.Module) -> int:
    """Remove blocks from the model's chains until one of each kind, or MIN_BLOCKS, are left; returns the number of
    removed blocks.

    Blocks of one kind are equal in class, submodules, parameter shapes and plain settings; rates (of dropped paths) may
    differ. The caller has to try whether the model still runs: some models count their blocks elsewhere.
    """
    taken = sum(shorten(child) for child in model.children())
    if not isinstance(model, (nn.Sequential, nn.ModuleList)) or len(model) <= MIN_BLOCKS:
        return taken
    met: set[Hashable] = set()
    spare: list[str] = []
    for name, block in model.named_children():
        kind = kind_of(block)
        if kind in met and has_children(block):
            spare.append(name)
        met.add(kind)
    spare = spare[max(0, MIN_BLOCKS - (len(model) - len(spare))) :]
    kept = [(name, block) for name, block in model.named_children() if name not in spare]
    if spare:
        counted = all(name.isdigit() for name, _ in kept)
        for name in list(model._modules):
            del model._modules[name]
        for index, (name, block) in enumerate(kept):
            model.add_module(str(index) if counted else name, block)
    return taken + len(spare)


def has_children(block: nn.Module) -> bool:
    """Whether the block has submodules; a single layer is not worth removing."""
    return next(block.children(), None) is not None


def kind_of(block: nn.Module) -> Hashable:
    """Returns a key that is equal for blocks which compute the same function of the same shapes."""
    modules = tuple((name, type(module), settings(module)) for name, module in block.named_modules())
    return modules, tuple((name, tuple(value.shape)) for name, value in block.named_parameters())


def settings(module: nn.Module) -> Hashable:
    """Returns the plain values among a module's own attributes."""
    return tuple((name, value) for name, value in vars(module).items() if _plain(value))


def _plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(each, PLAIN) for each in value))
