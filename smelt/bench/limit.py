"""The least time that a machine needs for a step of a model, whichever compiler is used: the limit of the benchmark.

It is the larger of two times: that of the operations of the step's matrix products, convolutions and attention at the
measured rate of a large product of the same dtype, and that of reading each parameter once and, in training, writing it
and reading and writing the optimizer's state, at the measured bandwidth. Recurrent layers that PyTorch runs as one
operator are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from smelt.base.imports import late
from smelt.bench.steps import Stepper

if TYPE_CHECKING:
    from smelt.abi.ceilings import Ceilings
    from smelt.roofline.measure import ceilings
else:  # processes that measure the start of a compiler import nothing of it before
    ceilings = late("smelt.roofline.measure", "ceilings")


class _ProductCounter(TorchDispatchMode):
    """Counts the operations of products by dtype of the first tensor operand."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            operand = next(each for each in args if isinstance(each, torch.Tensor))
            self.flops[str(operand.dtype).removeprefix("torch.")] += count(*args, **(kwargs or {}), out_val=out)
        return out


def product_flops(step: Callable[[], object]) -> dict[str, int]:
    """The operations of the matrix products, convolutions and attention of one step in eager, by dtype."""
    # attention as separate products: PyTorch does not state the operations of its fused attention on a CPU
    with sdpa_kernel(SDPBackend.MATH), _ProductCounter() as counter:
        step()
    return dict(counter.flops)


def least_bytes(stepper: Stepper) -> int:
    """The bytes that each step has to move: parameters are read; in training they are written, and the optimizer's
    state is read and written.
    """
    parameters = sum(map(_bytes, stepper.model.parameters()))
    if not stepper.settings.train or stepper.settings.optimizer == "none":
        return parameters
    states: Iterable[dict[str, Any]] = getattr(stepper.optimizer, "state", {}).values()
    return 2 * parameters + 2 * sum(_bytes(each) for state in states for each in state.values())


def _bytes(value: object) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def limit_of_step(stepper: Stepper) -> float:
    """The least seconds of one step of a model in eager, at the ceilings of this machine."""
    stepper()  # makes the optimizer's state
    return least_seconds(product_flops(stepper.launch), least_bytes(stepper), ceilings(stepper.settings.device))


def least_seconds(flops: dict[str, int], moved: int, machine: Ceilings) -> float:
    """The larger of the time of the products and the time of the memory."""
    arithmetic = sum(count / machine.arithmetic(dtype) for dtype, count in flops.items())
    return max(arithmetic, moved / machine.bandwidth(moved))
