"""Collectives that write to their arguments, captured as functional operators and copies, which graphs support."""

from __future__ import annotations

from typing import Any

import torch

from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.graph.trace.trace import TraceTensor

if torch.distributed.is_available():
    import torch.distributed as dist
    import torch.distributed._functional_collectives  # registers the operators' shapes

    c10d = torch.ops._c10d_functional

    REDUCTIONS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max"}

    def _group(tensors: list[object], group: dist.ProcessGroup | None, async_op: bool) -> dist.ProcessGroup:
        """The process group of a collective that can be captured.

        Raises:
            Break: the collective is asynchronous, or an argument is not a plain tensor.
        """
        if async_op:
            raise Break("an asynchronous collective", "a graph has no handle to wait for", "async_op=False")
        if not all(type(tensor) is TraceTensor for tensor in tensors) or not dist.is_initialized():
            raise Break("a collective of something else than tensors", "a graph cannot hold it")
        found = dist.group.WORLD if group is None else group
        assert found is not None
        return found

    def _run(vm: Interpreter, op: object, tensor: object, *args: object) -> Any:
        """Run the functional collective on a detached tensor: unlike the collective that writes, it
        has a derivative.
        """
        return vm.tensors.run(c10d.wait_tensor.default, (vm.tensors.run(op, (_as_tensor(vm, tensor), *args), {}),), {})

    def _as_tensor(vm: Interpreter, tensor: object) -> object:
        return vm.tensors.run(torch.Tensor.detach, (tensor,), {}, method="detach")

    def _write(vm: Interpreter, target: object, value: object) -> None:
        """Write like the collectives: autograd sees the write neither in the history nor in the version of saved
        tensors.
        """
        vm.tensors.run(torch.Tensor.copy_, (vm.load_attr(target, "data"), value), {}, method="copy_")

    def _write_flat(vm: Interpreter, target: TraceTensor, value: object) -> None:
        """Write the elements of `value` in order to a target of the same or another shape."""
        _write(vm, target, vm.tensors.run(torch.reshape, (value, tuple(target.shape)), {}))

    def _dense(vm: Interpreter, tensor: object) -> object:
        return vm.tensors.run(torch.Tensor.contiguous, (tensor,), {}, method="contiguous")

    def _reduction(op: object) -> str:
        name = next((each for each in REDUCTIONS if op == getattr(dist.ReduceOp, each)), None)
        if name is None:
            raise Break("a collective with an unusual reduction", "the operator has no name for it")
        return REDUCTIONS[name]

    @special(dist.all_gather)
    def all_gather(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        """Captured form of `all_gather(tensors, tensor)`."""
        gather_into(vm, *args, **kwargs)

    def gather_into(
        vm: Interpreter,
        tensor_list: list[object],
        tensor: TraceTensor,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> None:
        targets = list(vm.effects.plain(tensor_list))
        group = _group([*targets, tensor], group, async_op)
        own = tensor if tensor.dim() else vm.tensors.run(torch.unsqueeze, (tensor, 0), {})
        whole = _run(vm, c10d.all_gather_into_tensor.default, _dense(vm, own), group.size(), group.group_name)
        chunks = vm.tensors.run(torch.chunk, (whole, group.size()), {})
        for target, chunk in zip(targets, chunks, strict=True):
            _write(vm, target, chunk if tensor.dim() else vm.tensors.run(torch.squeeze, (chunk, 0), {}))

    @special(dist.broadcast)
    def broadcast(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        """Captured form of `broadcast(tensor, src)`."""
        broadcast_into(vm, *args, **kwargs)

    def broadcast_into(
        vm: Interpreter,
        tensor: TraceTensor,
        src: int | None = None,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> None:
        group = _group([tensor], group, async_op)
        rank = group_src if src is None else dist.get_group_rank(group, src)
        _write(vm, tensor, _run(vm, c10d.broadcast.default, tensor, rank, group.group_name))

    @special(dist.all_reduce)
    def all_reduce(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        """Captured form of `all_reduce(tensor, op)`."""
        reduce_into(vm, *args, **kwargs)

    def reduce_into(
        vm: Interpreter,
        tensor: TraceTensor,
        op: object = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> None:
        group = _group([tensor], group, async_op)
        _write(vm, tensor, _run(vm, c10d.all_reduce.default, tensor, _reduction(op), group.group_name))

    def _refuse_recorded(*tensors: TraceTensor) -> None:
        """Refuse tensors that require gradients: some backends (gloo) use operators that autograd records, or raise an
        error.
        """
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise Break("a collective of tensors that require gradients", "what autograd records is the backend's")

    def all_gather_into_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        """Captured form of `all_gather_into_tensor(output, tensor)`."""
        gather_into_one(vm, *args, **kwargs)

    def gather_into_one(
        vm: Interpreter,
        output_tensor: TraceTensor,
        input_tensor: TraceTensor,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> None:
        group = _group([output_tensor, input_tensor], group, async_op)
        _refuse_recorded(output_tensor, input_tensor)
        own = input_tensor if input_tensor.dim() else vm.tensors.run(torch.unsqueeze, (input_tensor, 0), {})
        whole = _run(vm, c10d.all_gather_into_tensor.default, _dense(vm, own), group.size(), group.group_name)
        _write_flat(vm, output_tensor, whole)

    def reduce_scatter_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        """Captured form of `reduce_scatter_tensor(output, input, op)`."""
        scatter_into_one(vm, *args, **kwargs)

    def scatter_into_one(
        vm: Interpreter,
        output: TraceTensor,
        input: TraceTensor,
        op: object = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> None:
        group = _group([output, input], group, async_op)
        _refuse_recorded(output, input)
        if not input.dim() or tuple(input.shape) != (output.shape[0] * group.size(), *output.shape[1:]):
            raise Break("a scattered reduction of something else than rows", "the operator cuts rows")
        name, size = _reduction(op), group.size()
        own = _run(vm, c10d.reduce_scatter_tensor.default, _dense(vm, input), name, size, group.group_name)
        _write_flat(vm, output, own)

    def all_to_all_single(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        """Captured form of `all_to_all_single(output, input)`."""
        exchange(vm, *args, **kwargs)

    def exchange(
        vm: Interpreter,
        output: TraceTensor,
        input: TraceTensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> None:
        group = _group([output, input], group, async_op)
        if output_split_sizes or input_split_sizes or not input.dim() or input.shape[0] % group.size():
            raise Break("an exchange of unequal splits", "a graph holds equal ones")
        rows = [input.shape[0] // group.size()] * group.size()
        own = _run(vm, c10d.all_to_all_single.default, _dense(vm, input), rows, rows, group.group_name)
        _write_flat(vm, output, own)

    MEANINGS = {
        "all_gather_into_tensor": all_gather_into_tensor,
        "all_gather_single": all_gather_into_tensor,
        "reduce_scatter_tensor": reduce_scatter_tensor,
        "reduce_scatter_single": reduce_scatter_tensor,
        "all_to_all_single": all_to_all_single,
    }
    for each, meaning in MEANINGS.items():
        if hasattr(dist, each):  # some names are newer names of others
            special(getattr(dist, each))(meaning)
