"""Equal random numbers on both sides of a comparison: seeds, and float64 draws that equal the float32 ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and Python: some models draw with numpy inside of forward."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def random_states() -> list[Any]:
    """The states of the generators of torch, numpy and Python."""
    name, keys, *rest = np.random.get_state()
    return [torch.get_rng_state(), (name, torch.from_numpy(np.array(keys, dtype=np.int64)), *rest), random.getstate()]


class SingleDraws(TorchDispatchMode):
    """A mode that draws float64 random numbers as float32 ones, so that a float64 run follows a float32 run with the
    same seed.

    For float64, torch takes other and more bits from its generator. In this mode every random operator is called with
    float32 tensors and dtypes, and its results are converted to float64.
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if not func._schema.is_mutable:
            return pytree.tree_map(_widen, func(*pytree.tree_map(_narrow, args), **_narrow_options(func, kwargs)))
        target, *rest = args
        target.copy_(func(_narrow(target), *pytree.tree_map(_narrow, rest), **_narrow_options(func, kwargs)))
        return target


def _narrow(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float64:
        return value.float()
    return torch.float32 if value is torch.float64 else value


def _widen(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def _narrow_options(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    found = {name: pytree.tree_map(_narrow, value) for name, value in kwargs.items()}
    # Without a dtype a floating point factory follows torch's default dtype, which is float64 here.
    makes_floats = func._schema.name in ("aten::rand", "aten::randn", "aten::normal")
    if makes_floats and found.get("dtype") is None and any(a.name == "dtype" for a in func._schema.arguments):
        found["dtype"] = torch.float32
    return found
