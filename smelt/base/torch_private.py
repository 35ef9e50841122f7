"""Private attributes of torch's tensors, storages and operators that smelt needs, each under a name of its own.

They are as old as the dispatcher and the same from torch 2.11 to 2.15; no public name gives what they do. The readers
are C callables without a Python frame, so calls of compiled code may use them. `torch_c` has what `torch._C` holds.
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
"""How often a tensor's memory was written to, as the autograd engine counts (`Tensor._version`)."""

view_base: Callable[[Any], torch.Tensor | None] = operator.attrgetter("_base")
"""The tensor that one is a view of, for the autograd engine; None: of none (`Tensor._base`)."""

is_view: Callable[[Any], bool] = operator.methodcaller("_is_view")
"""Whether the autograd engine knows a tensor as a view of another one (`Tensor._is_view`)."""

address_of_storage: Callable[[torch.UntypedStorage], int] = operator.attrgetter("_cdata")
"""The address of a storage's StorageImpl: what is one storage, also where its memory is empty (`_cdata`)."""

backward_hooks: Callable[[torch.Tensor], Any] = operator.attrgetter("_backward_hooks")
"""The hooks of `register_hook`, by number, in order; None without any (`Tensor._backward_hooks`)."""


def set_backward_hooks(tensor: torch.Tensor, hooks: Any) -> None:
    """Replace the backward hooks of a tensor; None removes them."""
    tensor._backward_hooks = hooks


def saved_unchecked(node: Any) -> list[tuple[torch.Tensor, Callable[[], Any]]] | None:
    """What an autograd node has saved, without a look at versions, each with a call that raises RuntimeError if it was
    written to since, or is a result of the node; None where this torch does not tell (`_raw_saved_tensors`).

    Raises:
        RuntimeError: the node has let go of them.
    """
    raw = node._raw_saved_tensors
    if not all(hasattr(each, "data") and hasattr(each, "unpack") for each in raw):
        return None
    return [(each.data, each.unpack) for each in raw]


def forbidden(out: torch.Tensor) -> str | None:
    """The error that autograd raises if a view is used whose memory was written and for which it cannot make a new
    history.

    Such views are what a `torch.autograd.Function` returned, one of several (`chunk`), or taken without gradients.
    """
    try:
        _ = out.grad_fn
    except RuntimeError as error:
        return str(error)
    return None


def ddp_bucket_bytes() -> int:
    """Bytes of the gradient buckets of the DistributedDataParallel module whose forward is running.

    0 where there is none, or no group of processes.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    module = None if parallel is None else getattr(parallel.DistributedDataParallel, "_active_ddp_module", None)
    return 0 if module is None else int(module.bucket_bytes_cap)
