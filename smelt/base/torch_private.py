"""Private attributes of torch's tensors, storages and operators that smelt needs, each under one documented name.

They are as old as the dispatcher, the same from torch 2.11 to 2.15, and have no public counterpart. The readers are C
callables without a Python frame, so calls of compiled code may use them. `torch_c` contains the names of `torch._C`.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket

from smelt.base.torch_c import FunctionSchema

schema_of: Callable[[Any], FunctionSchema] = operator.attrgetter("_schema")
"""The names, types, defaults and alias marks of an operator's arguments and results (`OpOverload._schema`)."""

name_in_namespace: Callable[[Any], str] = operator.attrgetter("_opname")
"""`add` of `aten::add.Tensor` (`OpOverload._opname`); `name()` is public, but has namespace and overload in it."""

version_of: Callable[[torch.Tensor], int] = operator.attrgetter("_version")
"""Number of writes to a tensor's memory, as the autograd engine counts them (`Tensor._version`)."""

view_base: Callable[[Any], torch.Tensor | None] = operator.attrgetter("_base")
"""The base of a view in the autograd engine (`Tensor._base`); None for a tensor that is not a view."""

is_view: Callable[[Any], bool] = operator.methodcaller("_is_view")
"""Whether a tensor is a view of another one in the autograd engine (`Tensor._is_view`)."""

address_of_storage: Callable[[torch.UntypedStorage], int] = operator.attrgetter("_cdata")
"""The address of a storage's StorageImpl (`_cdata`), which identifies the storage even if its memory is empty."""

collectives_begun: Callable[[object], int] = operator.methodcaller("_get_sequence_number_for_group")
"""How many collectives a process has begun in a process group, compiled and eager ones."""

store_of_processes: Callable[[object], Any] = operator.methodcaller("_get_default_store")
"""The store through which the processes of the default group found each other; takes `dist.distributed_c10d`."""

backward_hooks: Callable[[torch.Tensor], Any] = operator.attrgetter("_backward_hooks")
"""The hooks of `register_hook` by number, in order; None if there are no hooks (`Tensor._backward_hooks`)."""


def set_backward_hooks(tensor: torch.Tensor, hooks: Any) -> None:
    """Replace the backward hooks of a tensor; None removes them."""
    tensor._backward_hooks = hooks


def saved_unchecked(node: Any) -> list[tuple[torch.Tensor, Callable[[], Any]]] | None:
    """The tensors that an autograd node has saved, without a check of their versions (`_raw_saved_tensors`). Each comes
    with a function that raises RuntimeError if the tensor was written since then, or is a result of the node. None if
    this version of torch does not expose them.

    Raises:
        RuntimeError: the node has freed its saved tensors.
    """
    raw = node._raw_saved_tensors
    if not all(hasattr(each, "data") and hasattr(each, "unpack") for each in raw):
        return None
    return [(each.data, each.unpack) for each in raw]


def forbidden(out: torch.Tensor) -> str | None:
    """The message of the error that autograd raises for a use of the tensor; None if it raises none.

    Autograd raises it for a view whose memory was written and for which it cannot make a new history: a result of a
    `torch.autograd.Function`, one of several views of an operation (`chunk`), or a view made without gradients.
    """
    try:
        _ = out.grad_fn
    except RuntimeError as error:
        return str(error)
    return None


def ddp_bucket_bytes() -> int:
    """Bytes of the gradient buckets of the DistributedDataParallel module whose forward is running.

    The result is 0 if no such module runs, or no process group exists.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    module = None if parallel is None else getattr(parallel.DistributedDataParallel, "_active_ddp_module", None)
    return 0 if module is None else int(module.bucket_bytes_cap)
