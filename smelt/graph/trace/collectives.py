"""Collectives that write to their arguments, in a program that is traced below capture.

The code of a `torch.autograd.Function` runs on trace tensors. Schemas of these operators name no argument as written,
so each is replaced by the functional collective and a copy. The returned handle has nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.base.errors import Unsupported
from smelt.base.torch_c import finished_work
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.collective_calls import CALL
from smelt.graph.ir.meta import contiguous_stride
from smelt.graph.trace.trace import SPECIAL, Recorder, TraceTensor, propagate
from smelt.shapes.size import same_all

if torch.distributed.is_available():
    import torch.distributed as dist
    import torch.distributed._functional_collectives  # registers the operators' shapes

    c10d = torch.ops.c10d
    functional = torch.ops._c10d_functional
    aten = torch.ops.aten

    BITS = {int(getattr(dist.ReduceOp.RedOpType, name)): name for name in ("BAND", "BOR", "BXOR")}
    NAMES = {
        int(getattr(dist.ReduceOp.RedOpType, name)): name.lower() for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
    }

    def _group(boxed: Any) -> dist.ProcessGroup:
        return dist.ProcessGroup.unbox(boxed)

    def _reduction(boxed: Any) -> str:
        name = NAMES.get(boxed.op())
        if name is None:
            raise Unsupported("a collective with an unusual reduction", why="the operator has no name for it")
        return name

    def _only(tensors: Sequence[Any]) -> Any:
        if len(tensors) != 1:
            raise Unsupported("a collective of several tensors of one process")
        return tensors[0]

    def _run(op: OpOverload, recorder: Recorder | None, tensor: Any, *args: object) -> Any:
        """Returns the result of a functional collective, which takes contiguous tensors."""
        if type(tensor) is not TraceTensor:
            raise Unsupported("a collective of something else than tensors of the program")
        val = tensor.storage_view.layout.val
        if not same_all(val.stride, contiguous_stride(val.shape)):
            tensor = propagate(aten.clone.default, (tensor,), {"memory_format": torch.contiguous_format}, recorder)
        begun = propagate(op, (tensor, *args), {}, recorder)
        return propagate(functional.wait_tensor.default, (begun,), {}, recorder)

    def _write(target: Any, value: Any, recorder: Recorder | None) -> None:
        if type(target) is not TraceTensor:
            raise Unsupported("a collective that writes to a tensor made outside of the function")
        propagate(aten.copy_.default, (target, value), {}, recorder)

    def _write_flat(target: Any, value: Any, recorder: Recorder | None) -> None:
        """Write the elements of `value` in order to a target of the same or another shape."""
        shape = list(target.storage_view.layout.val.shape)
        _write(target, propagate(aten.view.default, (value, shape), {}, recorder), recorder)

    Args = Sequence[Any]
    Kwargs = Mapping[str, Any]

    def _all_reduce(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        tensors, group, reduction, *rest = args
        if rest and rest[0] is not None:
            raise Unsupported("a reduction of sparse tensors")
        tensor = _only(tensors)
        if reduction.op() in BITS:
            _write(tensor, _called("all_reduce", tensor, [], group, 0, BITS[reduction.op()], recorder), recorder)
            return list(tensors), finished_work()
        name = _reduction(reduction)
        _write(tensor, _run(functional.all_reduce.default, recorder, tensor, name, _group(group).group_name), recorder)
        return list(tensors), finished_work()

    def _called(
        name: str, target: Any, read: Sequence[Any], group: Any, peer: int, op: str, recorder: Recorder | None
    ) -> Any:
        """Returns the new value of what a collective writes for which PyTorch has no functional operator."""
        if any(type(each) is not TraceTensor for each in (target, *read)):
            raise Unsupported("a collective of something else than tensors of the program")
        begun = propagate(CALL, (target, list(read), name, _group(group).group_name, peer, op), {}, recorder)
        return propagate(functional.wait_tensor.default, (begun,), {}, recorder)

    def _named(reduction: Any) -> str:
        return BITS.get(reduction.op()) or _reduction(reduction).upper()

    def _barrier(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        nothing = propagate(aten.zeros.default, ([0],), {}, recorder)
        _called("barrier", nothing, [], args[1], 0, "", recorder)
        return finished_work()

    def _reduce(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        tensors, group, reduction, peer, *_ = args
        tensor = _only(tensors)
        _write(tensor, _called("reduce", tensor, [], group, peer, _named(reduction), recorder), recorder)
        return finished_work()

    def _scatter(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        tensors, lists, group, peer, *_ = args
        tensor, given = _only(tensors), _only(lists) if lists else []
        _write(tensor, _called("scatter", tensor, given, group, peer, "", recorder), recorder)
        return list(tensors), finished_work()

    def _gather(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        lists, tensors, group, peer, *_ = args
        tensor, targets = _only(tensors), _only(lists) if lists else []
        rows = propagate(aten.stack.default, (list(targets) or [tensor],), {}, recorder)
        whole = _called("gather", rows, [tensor], group, peer, "", recorder)
        for number, target in enumerate(targets):
            _write(target, propagate(aten.select.int, (whole, 0, number), {}, recorder), recorder)
        return finished_work()

    def _reduce_scatter(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        tensors, lists, group, reduction, *_ = args
        tensor = _only(tensors)
        own = _called("reduce_scatter", tensor, _only(lists), group, 0, _named(reduction), recorder)
        _write(tensor, own, recorder)
        return list(tensors), finished_work()

    def _broadcast(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        tensors, group, rank, *_ = args
        tensor = _only(tensors)
        _write(tensor, _run(functional.broadcast.default, recorder, tensor, rank, _group(group).group_name), recorder)
        return list(tensors), finished_work()

    def _gathered(tensor: Any, group: dist.ProcessGroup, recorder: Recorder | None) -> Any:
        if not tensor.dim():
            tensor = propagate(aten.unsqueeze.default, (tensor, 0), {}, recorder)
        return _run(functional.all_gather_into_tensor.default, recorder, tensor, group.size(), group.group_name)

    def _all_gather(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        lists, tensors, boxed, *_ = args
        targets, tensor, group = _only(lists), _only(tensors), _group(boxed)
        gathered = _gathered(tensor, group, recorder)
        rows = gathered.storage_view.layout.val.shape[0] // group.size()
        chunks = propagate(aten.split.Tensor, (gathered, rows), {}, recorder)
        for target, chunk in zip(targets, chunks, strict=True):
            own = chunk if tensor.dim() else propagate(aten.squeeze.dim, (chunk, 0), {}, recorder)
            _write(target, own, recorder)
        return [list(targets)], finished_work()

    def _all_gather_base(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        target, tensor, group, *_ = args
        _write_flat(target, _gathered(tensor, _group(group), recorder), recorder)
        return target, finished_work()

    def _reduce_scatter_base(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        target, tensor, boxed, reduction, *_ = args
        group, val = _group(boxed), target.storage_view.layout.val
        if tensor.dim() and val.shape != (tensor.storage_view.layout.val.shape[0] // group.size(), *val.shape[1:]):
            raise Unsupported("a scattered reduction that does not cut rows")
        op = functional.reduce_scatter_tensor.default
        own = _run(op, recorder, tensor, _reduction(reduction), group.size(), group.group_name)
        _write_flat(target, own, recorder)
        return target, finished_work()

    def _all_to_all_base(func: OpOverload, args: Args, kwargs: Kwargs, recorder: Recorder | None) -> Any:
        target, tensor, boxed, received, sent, *_ = args
        group = _group(boxed)
        size = group.size()
        received = list(received) or [target.storage_view.layout.val.shape[0] // size] * size
        sent = list(sent) or [tensor.storage_view.layout.val.shape[0] // size] * size
        own = _run(functional.all_to_all_single.default, recorder, tensor, received, sent, group.group_name)
        _write_flat(target, own, recorder)
        return finished_work()

    SPECIAL |= {
        c10d.allreduce_.default: _all_reduce,
        c10d.broadcast_.default: _broadcast,
        c10d.barrier.default: _barrier,
        c10d.reduce_.default: _reduce,
        c10d.scatter_.default: _scatter,
        c10d.gather_.default: _gather,
        c10d.reduce_scatter_.default: _reduce_scatter,
        c10d.allgather_.default: _all_gather,
        c10d._allgather_base_.default: _all_gather_base,
        c10d._reduce_scatter_base_.default: _reduce_scatter_base,
        c10d.alltoall_base_.default: _all_to_all_base,
    }
