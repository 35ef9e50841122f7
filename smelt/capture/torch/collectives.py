"""Collectives that write to their arguments, captured as functional operators and copies, which graphs support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from smelt.capture.core import sources
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.torch.collective_handles import EndedCollective
from smelt.graph.ir.collective_calls import CALL
from smelt.graph.trace.trace import TraceTensor

F = TypeVar("F", bound=Callable[..., object])

if torch.distributed.is_available():
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional  # registers the operators' shapes

    c10d = torch.ops._c10d_functional

    REDUCTIONS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max"}
    NAMES = (*REDUCTIONS, "BAND", "BOR", "BXOR")

    def _group(vm: Interpreter, tensors: list[object], group: dist.ProcessGroup | None) -> dist.ProcessGroup:
        """The process group of a collective that can be captured.

        Raises:
            Break: an argument is not a plain tensor, or this process is not in the group, of which eager warns.
        """
        if not all(type(tensor) is TraceTensor for tensor in tensors) or not dist.is_initialized():
            raise Break("a collective of something else than tensors", "a graph cannot hold it")
        if group is None:
            vm.guards.flag(_world_name, (), _world_name())
            group = dist.group.WORLD
        if not isinstance(group, dist.ProcessGroup):
            raise Break("a collective of a group without this process", "eager warns and does nothing")
        return group

    def _world_name() -> str | None:
        """The name of the default group: one that is made anew gets another."""
        group = dist.group.WORLD if dist.is_initialized() else None
        return None if group is None else group.group_name

    def _handle(asynchronous: bool, *tensors: object) -> EndedCollective | None:
        """What a collective returns that has written these tensors."""
        return EndedCollective([*tensors]) if asynchronous else None

    def _call(
        vm: Interpreter,
        name: str,
        target: object,
        read: list[object],
        group: dist.ProcessGroup,
        peer: int | None = 0,
        op: object = None,
    ) -> object:
        """Run a collective for which PyTorch has no functional operator; returns the new value of `target`."""
        what = "" if op is None else _name_of(op)
        operands = [_as_tensor(vm, each) for each in read]
        begun = vm.tensors.run(CALL, (_as_tensor(vm, target), operands, name, group.group_name, peer, what), {})
        return vm.tensors.run(c10d.wait_tensor.default, (begun,), {})

    def _rank(group: dist.ProcessGroup, rank: int | None, in_group: int | None, default: int | None = None) -> int:
        """The rank in the group of a process that is given by its global rank or by that in the group."""
        if in_group is not None:
            return in_group
        rank = default if rank is None else rank
        if rank is None or not 0 <= rank < dist.get_world_size() or rank not in dist.get_process_group_ranks(group):
            raise Break("a collective with a rank that the group lacks", "eager raises an error")
        return dist.get_group_rank(group, rank)

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

    def _name_of(op: object) -> str:
        name = next((each for each in NAMES if op == getattr(dist.ReduceOp, each)), None)
        if name is None:
            raise Break("a collective with an unusual reduction", "the operator has no name for it")
        return name

    def _reduction(op: object) -> str:
        name = _name_of(op)
        if name not in REDUCTIONS:
            raise Break("a collective with an unusual reduction", "the operator has no name for it")
        return REDUCTIONS[name]

    def _captures(*names: str) -> Callable[[F], F]:
        """Decorator: the function captures calls of the functions of torch.distributed with these names, of which some
        versions have not all. It gets the interpreter before the program's arguments.
        """

        def register(capture: F) -> F:
            for function in (getattr(dist, name) for name in names if hasattr(dist, name)):
                special(function)(lambda vm, args, kwargs: capture(vm, *args, **kwargs))
            return capture

        return register

    @_captures("all_gather")
    def all_gather(
        vm: Interpreter,
        tensor_list: list[object],
        tensor: TraceTensor,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> EndedCollective | None:
        """Captured form of `all_gather(tensors, tensor)`."""
        targets = list(vm.effects.plain(tensor_list))
        group = _group(vm, [*targets, tensor], group)
        own = tensor if tensor.dim() else vm.tensors.run(torch.unsqueeze, (tensor, 0), {})
        whole = _run(vm, c10d.all_gather_into_tensor.default, _dense(vm, own), group.size(), group.group_name)
        chunks = vm.tensors.run(torch.chunk, (whole, group.size()), {})
        for target, chunk in zip(targets, chunks, strict=True):
            _write(vm, target, chunk if tensor.dim() else vm.tensors.run(torch.squeeze, (chunk, 0), {}))
        return _handle(async_op, *targets)

    @_captures("broadcast")
    def broadcast(
        vm: Interpreter,
        tensor: TraceTensor,
        src: int | None = None,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> EndedCollective | None:
        """Captured form of `broadcast(tensor, src)`."""
        group = _group(vm, [tensor], group)
        rank = _rank(group, src, group_src)
        _write(vm, tensor, _run(vm, c10d.broadcast.default, _dense(vm, tensor), rank, group.group_name))
        return _handle(async_op, tensor)

    @_captures("all_reduce")
    def all_reduce(
        vm: Interpreter,
        tensor: TraceTensor,
        op: object = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> EndedCollective | None:
        """Captured form of `all_reduce(tensor, op)`."""
        group = _group(vm, [tensor], group)
        if _name_of(op) in REDUCTIONS:
            _write(vm, tensor, _run(vm, c10d.all_reduce.default, _dense(vm, tensor), _reduction(op), group.group_name))
        else:
            _write(vm, tensor, _call(vm, "all_reduce", tensor, [], group, op=op))
        return _handle(async_op, tensor)

    def _refuse_recorded(*tensors: TraceTensor) -> None:
        """Refuse tensors that require gradients: some backends (gloo) use operators that autograd records, or raise an
        error.
        """
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise Break("a collective of tensors that require gradients", "what autograd records is the backend's")

    @_captures("all_gather_into_tensor", "all_gather_single")
    def all_gather_into_tensor(
        vm: Interpreter,
        output_tensor: TraceTensor,
        input_tensor: TraceTensor,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> EndedCollective | None:
        """Captured form of `all_gather_into_tensor(output, tensor)`."""
        group = _group(vm, [output_tensor, input_tensor], group)
        _refuse_recorded(output_tensor, input_tensor)
        rows = input_tensor.shape[0] if input_tensor.dim() else 1
        if tuple(output_tensor.shape) != (rows * group.size(), *input_tensor.shape[1:]):
            raise Break("a gather into another shape than the rows of all", "some backends raise an error")
        own = input_tensor if input_tensor.dim() else vm.tensors.run(torch.unsqueeze, (input_tensor, 0), {})
        whole = _run(vm, c10d.all_gather_into_tensor.default, _dense(vm, own), group.size(), group.group_name)
        _write_flat(vm, output_tensor, whole)
        return _handle(async_op, output_tensor)

    @_captures("reduce_scatter_tensor", "reduce_scatter_single")
    def reduce_scatter_tensor(
        vm: Interpreter,
        output: TraceTensor,
        input: TraceTensor,
        op: object = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> EndedCollective | None:
        """Captured form of `reduce_scatter_tensor(output, input, op)`."""
        group = _group(vm, [output, input], group)
        _refuse_recorded(output, input)
        if not input.dim() or tuple(input.shape) != (output.shape[0] * group.size(), *output.shape[1:]):
            raise Break("a scattered reduction of something else than rows", "the operator cuts rows")
        name, size = _reduction(op), group.size()
        own = _run(vm, c10d.reduce_scatter_tensor.default, _dense(vm, input), name, size, group.group_name)
        _write_flat(vm, output, own)
        return _handle(async_op, output)

    @_captures("all_to_all_single")
    def all_to_all_single(
        vm: Interpreter,
        output: TraceTensor,
        input: TraceTensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> EndedCollective | None:
        """Captured form of `all_to_all_single(output, input)`."""
        group = _group(vm, [output, input], group)
        size = group.size()
        if not input.dim() or not output.dim():
            raise Break("an exchange of numbers", "eager raises an error")
        received, sent = (
            _rows(vm, splits, tensor, size)
            for splits, tensor in ((output_split_sizes, output), (input_split_sizes, input))
        )
        own = _run(vm, c10d.all_to_all_single.default, _dense(vm, input), received, sent, group.group_name)
        _write_flat(vm, output, own)
        return _handle(async_op, output)

    def _rows(vm: Interpreter, splits: object, tensor: TraceTensor, size: int) -> list[int]:
        """How many rows of the tensor each process gets or gives."""
        found = list(vm.effects.plain(splits)) if splits else []
        if not all(type(each) is int for each in (*found, *tensor.shape)):
            raise Break("an exchange of splits that change", "a graph holds known ones")
        if not found and tensor.shape[0] % size == 0:
            return [tensor.shape[0] // size] * size
        if len(found) != size or sum(found) != tensor.shape[0]:
            raise Break("an exchange of splits that do not fit", "eager raises an error")
        return found

    @_captures("all_to_all")
    def all_to_all(
        vm: Interpreter,
        output_tensor_list: list[object],
        input_tensor_list: list[object],
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> EndedCollective | None:
        """Captured form of `all_to_all(outputs, inputs)`: one exchange of their stack."""
        targets, given = (list(vm.effects.plain(each)) for each in (output_tensor_list, input_tensor_list))
        group = _group(vm, [*targets, *given], group)
        _refuse_recorded(*targets, *given)
        equal = len({(each.shape, each.dtype) for each in (*targets, *given)}) == 1
        if not equal or not len(targets) == len(given) == group.size():
            raise Break("an exchange of lists of different sizes", "some backends raise an error")
        ones = [1] * group.size()
        stacked = vm.tensors.run(torch.stack, (given,), {})
        whole = _run(vm, c10d.all_to_all_single.default, stacked, ones, ones, group.group_name)
        for number, target in enumerate(targets):
            _write(vm, target, vm.tensors.run(torch.select, (whole, 0, number), {}))
        return _handle(async_op, *targets)

    @_captures("reduce")
    def reduce(
        vm: Interpreter,
        tensor: TraceTensor,
        dst: int | None = None,
        op: object = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> EndedCollective | None:
        """Captured form of `reduce(tensor, dst)`."""
        group = _group(vm, [tensor], group)
        _write(vm, tensor, _call(vm, "reduce", tensor, [], group, _rank(group, dst, group_dst), op))
        return _handle(async_op, tensor)

    @_captures("scatter")
    def scatter(
        vm: Interpreter,
        tensor: TraceTensor,
        scatter_list: list[object] | None = None,
        src: int | None = None,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> EndedCollective | None:
        """Captured form of `scatter(tensor, tensors, src)`."""
        given = list(vm.effects.plain(scatter_list)) if scatter_list else []
        group = _group(vm, [tensor, *given], group)
        peer = _rank(group, src, group_src, 0)
        if bool(given) != (group.rank() == peer):
            raise Break("a scatter with tensors where none belong", "eager raises an error")
        _write(vm, tensor, _call(vm, "scatter", tensor, given, group, peer))
        return _handle(async_op, tensor)

    @_captures("gather")
    def gather(
        vm: Interpreter,
        tensor: TraceTensor,
        gather_list: list[object] | None = None,
        dst: int | None = None,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> EndedCollective | None:
        """Captured form of `gather(tensor, tensors, dst)`."""
        targets = list(vm.effects.plain(gather_list)) if gather_list else []
        group = _group(vm, [tensor, *targets], group)
        peer = _rank(group, dst, group_dst, 0)
        if len(targets) != (group.size() if group.rank() == peer else 0):
            raise Break("a gather with tensors where none belong", "eager raises an error")
        if any((each.shape, each.dtype) != (tensor.shape, tensor.dtype) for each in targets):
            raise Break("a gather into tensors of other sizes", "eager raises an error")
        whole = _call(vm, "gather", vm.tensors.run(torch.stack, (targets or [tensor],), {}), [tensor], group, peer)
        for number, target in enumerate(targets):
            _write(vm, target, vm.tensors.run(torch.select, (whole, 0, number), {}))
        return _handle(async_op, *targets)

    @_captures("reduce_scatter")
    def reduce_scatter(
        vm: Interpreter,
        output: TraceTensor,
        input_list: list[object],
        op: object = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> EndedCollective | None:
        """Captured form of `reduce_scatter(output, inputs)`."""
        given = list(vm.effects.plain(input_list))
        group = _group(vm, [output, *given], group)
        _refuse_recorded(output, *given)
        _write(vm, output, _call(vm, "reduce_scatter", output, given, group, op=op))
        return _handle(async_op, output)

    @_captures("barrier")
    def barrier(
        vm: Interpreter,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
        device_ids: object = None,
        timeout: object = None,
    ) -> EndedCollective | None:
        """Captured form of `barrier()`: what Python did before has to be done when the others go on."""
        group = _group(vm, [], group)
        if device_ids is not None or timeout is not None or dist.get_backend(group) != "gloo":
            raise Break("a barrier of devices", "a graph holds those of processes", "barrier() of a gloo group")
        if vm.effects.pending() or vm.effects.deferred:
            raise Break("a barrier after what others may see", "a graph runs before it", "put the barrier first")
        _call(vm, "barrier", vm.tensors.run(torch.empty, (0,), {}), [], group)
        return _handle(async_op)

    def _native(method: Callable[..., object]) -> None:
        special(method)(lambda vm, args, kwargs: method(*args, **kwargs))

    for each in ("wait", "is_completed", "is_success", "exception", "synchronize", "result"):
        _native(getattr(EndedCollective, each))

    @special(EndedCollective.get_future)
    def future(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        """The future of a handle runs callbacks, which Python has to call."""
        raise Break("the future of a collective", "its callbacks run in Python", "work.wait()")

    # Functions of `_functional_collectives` are captured like the program's, but for these.

    def _resolved(vm: Interpreter, group: object, tag: str = "") -> str:
        """The name of a group that is given as itself, by its name, as a mesh, or as (mesh, dimension)."""
        group = vm.effects.plain(group)
        if group is dist.group.WORLD:
            vm.guards.flag(_world_name, (), _world_name())
        if not dist.is_initialized() or isinstance(group, list) or tag:
            raise Break("a functional collective of ranks that name no group", "a graph holds the name of a group")
        found = resolve(group)
        return found if isinstance(found, str) else found.group_name

    resolve: Callable[[object], Any]
    for each in ("_resolve_group_name", "_resolve_group"):  # torch 2.11 has only the first
        if hasattr(functional, each):
            resolve = getattr(functional, each)
            special(resolve)(lambda vm, args, kwargs: _resolved(vm, *args, **kwargs))

    @special(functional._maybe_wrap_tensor)
    def maybe_wrap_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
        """The result of a functional collective in a graph: a plain tensor, which is there."""
        return vm.tensors.run(c10d.wait_tensor.default, tuple(args), {})

    @special(functional._are_we_tracing)
    def are_we_tracing(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
        """Whether results of functional collectives are plain tensors."""
        return True

    def functional_broadcast(vm: Interpreter, self: TraceTensor, src: int, group: object, tag: str = "") -> object:
        """Captured form of a functional broadcast. Eager's operator is a recorded copy and a write that is not."""
        out = vm.tensors.run(torch.clone, (_dense(vm, self),), {})
        _write(vm, out, _run(vm, c10d.broadcast.default, _dense(vm, self), src, _resolved(vm, group, tag)))
        return out

    special(functional.broadcast)(lambda vm, args, kwargs: functional_broadcast(vm, *args, **kwargs))

    special(dist.distributed_c10d._get_group_size_by_name)(
        lambda vm, args, kwargs: dist.distributed_c10d._get_group_size_by_name(*args, **kwargs)
    )

    def world(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
        """Captured form of `torch.distributed.group.WORLD`."""
        vm.guards.flag(_world_name, (), _world_name())
        source = sources.attr(sources.const(dist.group, "group"), "WORLD")
        return vm.external(dist.group.WORLD, source)

    special(vars(type(dist.group))["WORLD"].fget)(world)
