"""The ways to distribute a model over processes, each combined with a contender's compilation.

A wrapper takes the model with its parameters on the rank's device and returns the callable of a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from smelt.base.errors import OptionError, unknown_name
from smelt.bench.contenders import Prepare
from smelt.bench.workload import Settings


@dataclass(frozen=True)
class Wrapper:
    """One way to distribute a model.

    Attributes:
        wrap: (model, prepare, settings, number of processes) -> the callable that computes the model's output.
        same_batch: whether all ranks take the same batch, instead of one batch each.
    """

    wrap: Callable[[nn.Module, Prepare, Settings, int], Any]
    same_batch: bool = False


def single(model: nn.Module, prepare: Prepare, settings: Settings, processes: int) -> Any:
    """Compile the model of a single process."""
    return prepare(model, settings)


def ddp(model: nn.Module, prepare: Prepare, settings: Settings, processes: int) -> Any:
    """Compile `DistributedDataParallel` of the model, in the order that PyTorch's documentation recommends."""
    return prepare(DistributedDataParallel(model, device_ids=device_ids(settings)), settings)


def ddp_inside(model: nn.Module, prepare: Prepare, settings: Settings, processes: int) -> Any:
    """Wrap the compiled model in `DistributedDataParallel`."""
    return DistributedDataParallel(prepare(model, settings), device_ids=device_ids(settings))


def fsdp2(model: nn.Module, prepare: Prepare, settings: Settings, processes: int) -> Any:
    """Compile each repeated block and shard it with `fully_shard`, then shard the model with the remaining
    parameters.
    """
    mesh = init_device_mesh(torch.device(settings.device).type, (processes,))
    for container, name, block in list(repeated_blocks(model)):
        compiled: Any = prepare(block, settings)
        container.register_module(name, compiled)
        fully_shard(compiled, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp2_whole(model: nn.Module, prepare: Prepare, settings: Settings, processes: int) -> Any:
    """Shard each repeated block and the model with `fully_shard`, then compile the model as a whole."""
    mesh = init_device_mesh(torch.device(settings.device).type, (processes,))
    for _, _, block in list(repeated_blocks(model)):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return prepare(model, settings)


def tensor_parallel(model: nn.Module, prepare: Prepare, settings: Settings, processes: int) -> Any:
    """Split attention and feed-forward layers of a Llama by columns, then rows, over all processes; then compile the
    model.

    Raises:
        OptionError: the model has no layers with Llama's names.
    """
    mesh = init_device_mesh(torch.device(settings.device).type, (processes,))
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    rows = ("self_attn.o_proj", "mlp.down_proj")
    blocks = [block for _, _, block in repeated_blocks(model) if hasattr(block, "self_attn") and hasattr(block, "mlp")]
    if not blocks:
        raise OptionError(
            f"{type(model).__name__} has no layers that tensor parallelism here can split",
            hint="choose llama-246m or llama-tiny, or another --wrapper",
        )
    for block in blocks:
        plan: dict[str, Any] = {name: ColwiseParallel() for name in columns} | {
            name: RowwiseParallel() for name in rows
        }
        parallelize_module(block, mesh, plan)
    return prepare(model, settings)


WRAPPERS = {
    "single": Wrapper(single),
    "ddp": Wrapper(ddp),
    "ddp-inside": Wrapper(ddp_inside),
    "fsdp2": Wrapper(fsdp2),
    "fsdp2-whole": Wrapper(fsdp2_whole),
    "tp": Wrapper(tensor_parallel, same_batch=True),
}


def find_wrapper(name: str) -> Wrapper:
    """Returns the wrapper of that name.

    Raises:
        OptionError: the name is unknown (the message lists the valid names).
    """
    if name not in WRAPPERS:
        raise unknown_name("wrapper", name, tuple(WRAPPERS))
    return WRAPPERS[name]


def device_ids(settings: Settings) -> list[torch.device] | None:
    """Returns the argument `device_ids` of DDP: the rank's GPU, or None on a CPU."""
    device = torch.device(settings.device)
    return [device] if device.type == "cuda" else None


def repeated_blocks(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yields (list of modules, name in it, block) of each block in a list of at least two blocks of one class.

    Lists inside a block are not searched.
    """
    for child in model.children():
        members = list(child.named_children())
        if isinstance(child, nn.ModuleList) and len(members) > 1 and len({type(block) for _, block in members}) == 1:
            yield from ((child, name, block) for name, block in members)
        else:
            yield from repeated_blocks(child)
