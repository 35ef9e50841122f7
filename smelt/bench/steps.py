"""Runs one training or inference step of one contender; every contender starts from the same state."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from smelt.bench.contenders import Prepare
from smelt.bench.meter import meter_of
from smelt.bench.preparation import move_attributes
from smelt.bench.workload import Batch, Settings, Workload


def build_model(workload: Workload, settings: Settings) -> nn.Module:
    """Build the workload's model with seeded weights, on its device, in train or eval mode."""
    torch.manual_seed(settings.seed)
    model = workload.build().to(settings.device).train(settings.train)
    move_attributes(model, settings.device)
    return model


def build_batch(workload: Workload, settings: Settings) -> Batch:
    """Make the workload's seeded batch on its device."""
    torch.manual_seed(settings.seed + 1)
    return workload.batch().to(torch.device(settings.device))


def precision(settings: Settings) -> contextlib.AbstractContextManager[Any]:
    """Returns the autocast context of a forward pass, or a context without effect."""
    if settings.precision == "amp":
        return torch.autocast(torch.device(settings.device).type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def use_tf32(settings: Settings) -> None:
    """Switch TF32 on or off in this process, in products and convolutions, for every contender.

    Under autocast TF32 is on, as in most training programs, where few operations run in float32.
    """
    allowed = settings.precision != "fp32"
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


class NoUpdate:
    """Replaces the optimizer if only forward and backward are measured: drops the gradients."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        pass

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            parameter.grad = None


OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "none": NoUpdate,
}


class Stepper:
    """One contender's model, optimizer and compiled callable. A call makes one step and waits for its end.

    A training step is forward, loss, backward, the optimizer and zero_grad; an inference step is forward without
    gradients. A contender compiles the model, or (`whole_step`) the whole step.
    """

    def __init__(self, workload: Workload, model: nn.Module, batch: Batch, settings: Settings) -> None:
        self.workload, self.batch, self.settings = workload, batch, settings
        self.model = model
        self.optimizer = OPTIMIZERS[settings.optimizer](self.model.parameters(), lr=settings.learning_rate)
        self.call: Any = None
        self.step: Callable[[], Tensor] = self._step

    def compile(self, prepare: Prepare) -> Stepper:
        """Let the contender compile the model. Compilation itself usually waits for the first step."""
        if self.settings.train and getattr(prepare, "whole_step", False):
            self.call, self.step = self.model, prepare(self._step, self.settings)  # type: ignore[arg-type]
        else:
            self.call = prepare(self.model, self.settings)
        return self

    def __call__(self) -> float:
        value = float(self.launch())
        meter_of(self.settings.device).wait_for_device()
        return value

    def launch(self) -> Tensor:
        """Make one step without waiting for a GPU; returns its loss."""
        if self.settings.train:
            return self.step().detach()
        with torch.no_grad():
            return self.forward()

    def _step(self) -> Tensor:
        loss = self.forward()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def eager_operators(self) -> dict[str, int]:
        """Returns the number of calls by ATen operator that torch itself makes in one more step (without the
        optimizer's).

        Operators that only allocate, move or view memory are left out, and those for which compilers call library
        kernels, too (products, convolutions, attention). A compiler is expected to have captured the remaining
        operators.
        """
        with torch.autograd.profiler.profile() as profile:
            if self.step != self._step:
                self.step()
            else:
                with torch.set_grad_enabled(self.settings.train):
                    loss = self.forward()
                if self.settings.train:
                    loss.backward()
        outermost = [e for e in profile.function_events if _is_operator(e) and not _inside_operator(e)]
        names = Counter(event.name.removeprefix("aten::") for event in outermost)
        return {name: number for name, number in names.most_common() if _counts(name)}

    def forward(self) -> Tensor:
        """Returns the loss of the batch, computed by the contender's callable."""
        with precision(self.settings):
            return self.workload.loss(self.call(*self.batch.args, **self.batch.kwargs), self.batch)


MEMORY = frozenset(
    "zeros zeros_like ones ones_like full full_like scalar_tensor zero fill resize set copy clone contiguous to "
    "_to_copy lift_fresh detach alias view view_as reshape unsqueeze squeeze expand expand_as permute transpose t T mT "
    "slice select split split_with_sizes chunk unbind narrow flatten unflatten item is_nonzero result_type "
    "is_same_size slice_backward select_backward resolve_conj resolve_neg "
    "_indices _values indices values coalesce sparse_coo_tensor _sparse_coo_tensor_unsafe".split()
)
"""Names of operators, without their trailing underscore, that make, move or view memory."""

PRODUCTS = frozenset("mm addmm bmm baddbmm matmul linear".split())
"""Names of operators that multiply matrices."""

OTHERS = ("empty", "new_", "as_strided", "conv", "_conv", "scaled_dot_product", "_scaled_dot_product", "_local_scalar")
"""Prefixes of the names of further operators of both kinds: convolutions, attention, ways to make memory."""


def _counts(name: str) -> bool:
    return name.rstrip("_") not in MEMORY | PRODUCTS and not name.startswith(OTHERS)


def _is_operator(event: Any) -> bool:
    return event.name.startswith("aten::")


def _inside_operator(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None and not _is_operator(parent):
        parent = parent.cpu_parent
    return parent is not None
