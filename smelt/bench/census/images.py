"""timm's architectures as subjects of the census: random weights, images as small as the model takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from smelt.bench.census.examine import SEED, Subject
from smelt.bench.workload import Batch

SIZES = (64, 96, 128, 160, 192)
"""Edge lengths that are tried before the model's own."""


def timm_names() -> list[str]:
    """Every architecture that timm lists."""
    import timm

    return list(timm.list_models())


def timm_subject(name: str) -> Subject:
    """The architecture with the smallest images that it runs on.

    Raises:
        Exception: it does not build or run; the error of its own size is raised.
    """
    import timm

    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    channels, *edges = (config.input_size if config else None) or (3, 224, 224)
    sizes: list[tuple[int, ...]] = [(size, size) for size in SIZES if size < min(edges)]
    fixed = bool(config and config.fixed_input_size)
    model: nn.Module | None = None
    for size in (*sizes, tuple(edges)):
        last = size == tuple(edges)
        settings: dict[str, Any] = {"img_size": size} if fixed and not last else {}
        try:
            if model is None or fixed:
                with cheap_weights():
                    model = timm.create_model(name, pretrained=False, **settings)
            generator = torch.Generator().manual_seed(SEED)
            images = torch.randn(2, channels, *size, generator=generator)
            with torch.no_grad():
                model.eval()(images)
            return Subject(model, Batch((images,)), family(model), "x".join(map(str, images.shape)))
        except Exception:
            if last:
                raise
    raise AssertionError("the model's own size comes last")


def family(model: nn.Module) -> str:
    """The file of the model's class: architectures of one file are variants of each other."""
    return type(model).__module__.rpartition(".")[2]


class _CheapDraws(TorchFunctionMode):
    """Fills large tensors by repeating a few random numbers: values do not matter to capture, time does."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = torch.randn(65_537)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("normal_", "uniform_", "erfinv_", "trunc_normal_") and args and args[0].numel() > self.pool.numel():
            target = args[0]
            if name == "erfinv_":  # of values that were drawn here
                return target
            with torch.no_grad():
                flat = target.detach().view(-1) if target.is_contiguous() else None
                if flat is None:
                    return target.zero_()
                whole = flat.numel() // self.pool.numel() * self.pool.numel()
                flat[:whole].view(-1, self.pool.numel()).copy_(0.02 * self.pool)
                flat[whole:].copy_(0.02 * self.pool[: flat.numel() - whole])
            return target
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def cheap_weights() -> Iterator[None]:
    """Random weights for a fraction of the time."""
    with _CheapDraws():
        yield
