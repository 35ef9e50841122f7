"""Checks results of libraries' operators against the recorded metadata, in graphs that run operator by operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from smelt.abi.fake_kernels import check_results, in_same_order, is_of_torch
from smelt.autograd.call.sized import meta_in_numbers
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import TensorMeta
from smelt.shapes.size import Symbol, as_symbol


def checked(node: fx.Node) -> Any:
    """Returns the target of `node`; an operator of a user's library is wrapped to raise WrongFake if a result differs
    from the node's metadata.
    """
    op = node.target
    if not isinstance(op, OpOverload) or is_of_torch(str(op)) or not _tensor_metas(node.meta.get("val")):
        return op
    return _Checked(op, node)


def _tensor_metas(val: Any) -> list[TensorMeta]:
    return [each for each in pytree.tree_leaves(val) if isinstance(each, TensorMeta)]


class _Checked:
    """An operator that checks its results, as the target of a graph's node."""

    def __init__(self, op: OpOverload, node: fx.Node) -> None:
        self.op, self.name = op, str(op)
        self.__name__ = self.__qualname__ = f"checked_{op.__name__.replace('.', '_')}"
        self.__module__ = __name__
        operands = [each.meta.get("val") for each in pytree.tree_leaves((node.args, node.kwargs)) if _is_tensor(each)]
        self._operands: list[TensorMeta] = operands
        self._results = _tensor_metas(node.meta["val"])
        self._devices = [meta.device.type for meta in self._results]
        self._sizes: dict[Symbol, tuple[int, int]] = {}
        for at, meta in enumerate(operands):
            for dim, size in enumerate(meta.shape):
                if (symbol := as_symbol(size)) is not None:
                    self._sizes.setdefault(symbol, (at, dim))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if len(tensors) != len(self._operands):
            return self.op(*args, **kwargs)
        numbers = {symbol: tensors[at].shape[dim] for symbol, (at, dim) in self._sizes.items()}
        try:
            expected, operands = (
                [meta_in_numbers(m, numbers) for m in metas] for metas in (self._results, self._operands)
            )
        except (KeyError, AssertionError):  # a symbolic size is not the size of an argument
            return self.op(*args, **kwargs)
        in_order = all(map(in_same_order, tensors, operands))
        result = self.op(*args, **kwargs)
        check_results(self.name, result, expected, self._devices, in_order)
        return result


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), TensorMeta)
