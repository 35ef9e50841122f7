"""What torch keeps in two places, or counts in Python, after a fault between the two: the next use works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd import forward_ad

from smelt.base.process_state import preserving
from tests.faults.state import changes, left_behind, look

NESTING = torch.func.jvp.__globals__


def _level_unknown_to_python() -> None:
    torch._C._enter_dual_level()


def _level_unknown_to_the_engine() -> None:
    forward_ad.enter_dual_level()
    torch._C._exit_dual_level(level=0)


def _level_left() -> None:
    forward_ad.enter_dual_level()


def _jvp_left_twice() -> None:
    NESTING["JVP_NESTING"] -= 1


def _jvp_not_left() -> None:
    NESTING["JVP_NESTING"] += 1


def _transform_left() -> None:
    torch._C._functorch._jvp_increment_nesting()
    NESTING["JVP_NESTING"] += 1


def _early_stop() -> None:
    torch.utils.checkpoint._enable_checkpoint_early_stop = False


def _saved_tensors() -> None:
    torch.autograd.graph._allow_mutation_on_saved_tensors_enabled = True


FAULTS = [
    *(_level_unknown_to_python, _level_unknown_to_the_engine, _level_left, _jvp_left_twice, _jvp_not_left),
    *(_transform_left, _early_stop, _saved_tensors),
]


def _derivative(x: Tensor) -> Tensor:
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]


def _interrupted(leave: Callable[[], None]) -> None:
    leave()
    raise KeyboardInterrupt


def _used() -> tuple[bool, bool]:
    graph: Any = torch.autograd.graph
    return torch.utils.checkpoint._enable_checkpoint_early_stop, graph._allow_mutation_on_saved_tensors_enabled


@pytest.mark.parametrize("leave", FAULTS, ids=lambda f: f.__name__.strip("_"))
def test_nothing_is_left(leave: Callable[[], None]) -> None:
    x = torch.rand(3)
    before, used = look(), _used()
    with pytest.raises(KeyboardInterrupt):
        preserving(_interrupted, leave)
    assert not changes(before, look()) and not left_behind() and _used() == used
    torch.testing.assert_close(_derivative(x), x.cos())
    with forward_ad.dual_level():
        pass


@pytest.mark.parametrize("leave", [_jvp_left_twice, _jvp_not_left, _early_stop, _saved_tensors])
def test_levels_of_the_caller_stay(leave: Callable[[], None]) -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.rand(3), torch.ones(3))
        with pytest.raises(KeyboardInterrupt):
            preserving(_interrupted, leave)
        assert forward_ad.unpack_dual(x.sin()).tangent is not None
