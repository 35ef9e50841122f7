"""Workloads of the bench as data: how to build a model, its inputs and its loss."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from smelt.base.errors import SmeltError, unknown_name


@dataclass(frozen=True)
class Batch:
    """One batch: the arguments of `model(*args, **kwargs)`, and the target if the model does not compute the loss."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    target: Tensor | None = None

    def to(self, target: torch.device | torch.dtype) -> Batch:
        """Returns the batch on another device, or with its floating point tensors in another dtype."""

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value if isinstance(target, torch.dtype) and not value.is_floating_point() else value.to(target)

        return Batch(*pytree.tree_map(move, (self.args, dict(self.kwargs), self.target)))

    def clone(self) -> Batch:
        """Returns a copy, so that a model that writes into its inputs does not change those of the next run."""
        values = self.args, dict(self.kwargs), self.target
        return Batch(*pytree.tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, values))


@dataclass(frozen=True)
class Workload:
    """One row of a benchmark. `build` and `batch` draw from torch's seeded generator.

    Args:
        name, suite, shape: names of the row and of its suite, and a description of the inputs.
        needs: names of the packages that the workload needs.
        noise: relative error of eager's own float32 gradients that is known for this model.
        draws: names of random operators other than dropout. With any, a comparison needs eager's random numbers.
        wake: whether a comparison may give parameters that start at zero other values.
        note: remark on an unusual property.
        defaults: settings by name that apply to this workload unless the user chose others.
        modes: the compilers' modes in which it is measured; empty: any mode.
        unable: precisions (`amp`, `amp on cuda`) in which eager cannot run it, with the reason. It then runs in fp32.
    """

    name: str
    suite: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[Any, Batch], Tensor]
    needs: tuple[str, ...] = ()
    shape: str = ""
    noise: float = 0.0
    draws: tuple[str, ...] = ()
    wake: bool = True
    note: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = ()
    unable: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The unique name of this workload: models of different suites may have the same name."""
        return f"{self.suite}/{self.name}"

    def why_not(self, precision: str, device: str) -> str | None:
        """Returns the reason why eager cannot run the workload in that precision, or None."""
        return self.unable.get(precision) or self.unable.get(f"{precision} on {torch.device(device).type}")

    def missing(self) -> list[str]:
        """The packages that this workload needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


class MissingPackages(SmeltError):
    """Raised when a workload's optional packages are not installed: its row is skipped, not failed."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run of a workload, equal for every contender of a row.

    Args:
        size: size of the entries of the suites: `cpu` or `full`.
        eager_rng: compilers draw the random numbers that eager draws (slower; for comparisons).
        threads: number of torch's threads, or None for torch's own choice.
        precision: one of PRECISIONS.
        optimizer: the optimizer of a training step; `none`: only forward and backward.
    """

    train: bool = True
    precision: str = "fp32"
    device: str = "cpu"
    mode: str | None = None
    dynamic: bool | None = None
    seed: int = 0
    learning_rate: float = 1e-3
    size: str = "cpu"
    eager_rng: bool = False
    threads: int | None = None
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZERS)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


OPTIMIZERS = ("sgd", "adam", "adamw", "none")
PRECISIONS = ("fp32", "tf32", "amp")
"""fp32; fp32 with TF32 in products and convolutions; bfloat16 autocast around the forward pass."""
