"""Every primitive: the meta rule agrees with the eager reference on example arguments."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims import ops
from smelt.prims.rules.kernels import arguments
from smelt.prims.table import PRIMS, Kind, Prim
from tests.prims.kernel_calls import kernel_calls
from tests.prims.prim_check import agree, to_meta

CPU = torch.device("cpu")


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values inside (0.1, 0.9), where every unary function is defined (acosh apart)."""
    return torch.rand(shape).mul(0.8).add(0.1).to(dtype)


def i(*shape: int, high: int = 3) -> torch.Tensor:
    return torch.randint(0, high, shape)


def b(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.5


INTEGER_ONLY = {"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"}


def attention_case() -> list[Any]:
    q, k, v = f(2, 3, 4, 8), f(2, 3, 5, 8), f(2, 3, 5, 8)
    out, sums = ops.attention_cpu(q, k, v, 0.0, False, None, None)
    return [f(2, 3, 4, 8), q, k, v, out, sums, 0.0, False, None, None]


POOL = ((2, 2), (2, 2), (0, 1), (1, 1))
CONV = ((1, 2), (1, 0), (1, 1), False, (0, 0), 1)


def fused_attention_cases() -> dict[str, list[list[Any]]]:
    q, k, v, bias = f(2, 3, 4, 8), f(2, 3, 6, 8), f(2, 3, 6, 8), f(2, 3, 4, 6)
    found: dict[str, list[list[Any]]] = {
        "attention_flash": [[q, k, v, False, None]],
        "attention_efficient": [[q, k, v, bias, True, False, 0.5], [q, k, v, None, False, True, None]],
        "attention_cudnn": [[q, k, v, bias, True, False, None], [q, k, v, None, False, False, None]],
    }
    drawn = False, None, 0.5, 3, "tf32"
    found["attention_tiled"] = [
        [q, k, v, bias, torch.tensor(7), True, *drawn],
        [q, k, v, None, None, False, True, 0.5, 0.0, 0, "ieee"],
    ]
    results = {name: getattr(ops, name)(*calls[0]) for name, calls in found.items()}
    flash, efficient, cudnn, tiled = results.values()
    wanted = (True, True, True, True)
    return found | {
        "attention_flash_backward": [[q, q, k, v, *flash, False, None]],
        "attention_efficient_backward": [[q, q, k, v, bias, *efficient, wanted, False, 0.5]],
        "attention_cudnn_backward": [[q, q, k, v, *cudnn, bias, False, None]],
        "attention_tiled_backward": [[q, q, k, v, bias, *tiled, torch.tensor(7), wanted, *drawn]],
    }


def cases() -> dict[str, list[list[Any]]]:
    """Example arguments of each prim."""
    table: dict[str, list[list[Any]]] = {}
    for name, prim in PRIMS.items():
        value = (lambda *s: i(*s, high=5)) if name in INTEGER_ONLY else f
        if prim.parameters == ("x",):
            table[name] = [[value(3, 4)], [value()]]
        elif prim.parameters == ("x", "y"):
            number = 2 if name in INTEGER_ONLY else 0.5
            table[name] = [[value(3, 4), value(3, 4)], [value(3, 4), number], [number, value(3, 4)]]
        elif prim.parameters == ("x", "dims"):
            make = b if name in ("any", "all") else f
            table[name] = [[make(3, 4, 5), (0, 2)], [make(3, 4), ()], [make(3), (0,)]]
    for name, calls in kernel_calls().items():
        table[name] = [list(arguments(PRIMS[name], *each)) for each in calls]
    images = f(2, 3, 6, 8)
    _, places = ops.max_pool2d(images, *POOL, False)
    pooled = (2, 3, 3, 5)
    return table | {
        "tril_indices": [[3, 4, -1, torch.int64, torch.strided, CPU]],
        "triu_indices": [[4, 3, 1, torch.int32, torch.strided, CPU]],
        "view_as_real": [[torch.complex(f(3), f(3))]],
        "view_as_complex": [[f(3, 2)]],
        "where": [[b(3, 4), f(3, 4), f(3, 4)], [b(3), 1.0, f(3)], [b(3), f(3), 0.0]],
        "fma": [[f(3, 4), f(3, 4), f(3, 4)], [f(3), 0.5, f(3)], [0.25, 0.5, f(3)]],
        "refuse": [[f(3, 4), torch.zeros(3, 4, dtype=torch.bool), 4], [i(3), torch.zeros(3, dtype=torch.bool), 8]],
        "convert": [[f(3), torch.bfloat16], [f(3), torch.int64], [i(3), torch.bool], [b(3), torch.float32]],
        "argmax": [[f(3, 4), 1]],
        "argmin": [[f(3, 4), 0]],
        "reshape": [[f(3, 4), (2, 6)], [f(4, 3).t(), (12,)], [f(1, 1), ()], [f(0, 3), (3, 0)]],
        "permute": [[f(2, 3, 4), (2, 0, 1)]],
        "broadcast_in_dim": [[f(3), (2, 3, 4), (1,)], [f(1, 3), (5, 3), (0, 1)], [f(), (2, 2), ()]],
        "slice": [[f(5, 6), (1, 0), (4, 6), (2, 3)], [f(5), (2,), (2,), (1,)]],
        "flip": [[f(3, 4), (0, 1)]],
        "pad": [[f(3, 4), (1, 0), (0, 2), 7.0]],
        "cat": [[(f(2, 3), f(4, 3)), 0]],
        "gather": [[f(3, 4), 1, i(3, 2)]],
        "index_select": [[f(3, 4), 0, i(5)]],
        "index": [[f(3, 4, 5), (i(2, 2), None, i(2, 2))], [f(3, 4, 5), (None, i(2), i(2))], [f(3), (i(),)]],
        "scatter": [[f(3, 4), 0, torch.tensor([[0, 1, 2, 0]]), f(1, 4)]],
        "scatter_add": [[f(3, 4), 1, i(3, 2), f(3, 2)]],
        "index_put": [
            [f(3, 4), (i(6), None), f(6, 4), True],
            [f(3, 4), (None, torch.tensor([2, 0])), f(3, 2), False],
            [f(3, 4, 5), (i(2), None, i(2)), f(2, 4), True],
        ],
        "slice_scatter": [[f(5, 6), f(2, 2), (1, 0), (4, 6), (2, 3)]],
        "full": [[(2, 3), 1.5, torch.float32, CPU], [(), True, torch.bool, CPU]],
        "iota": [[5, 2, 3, torch.int64, CPU], [4, 0.5, 0.25, torch.float32, CPU]],
        "random": [[torch.tensor(3), 1, (4, 5)]],
        "cumsum": [[f(3, 4), 1]],
        "cumprod": [[f(3, 4), 0]],
        "sort": [[f(3, 4), 1, True, True]],
        "topk": [[f(3, 4), 2, 1, True, True]],
        "mm": [[f(2, 3), f(3, 4)]],
        "bmm": [[f(5, 2, 3), f(5, 3, 4)]],
        "addmm": [[f(2, 3), f(3, 4), f(4), 1, 1], [f(2, 3), f(3, 4), f(2, 1), 0.5, 2]],
        "baddbmm": [[f(5, 2, 3), f(5, 3, 4), f(2, 4), 1, 1], [f(5, 2, 3), f(5, 3, 4), f(), 0, 2]],
        "convolution": [
            [f(2, 3, 6, 7), f(4, 3, 3, 3), f(4), *CONV],
            [f(2, 4, 6), f(4, 3, 3), None, (2,), (1,), (1,), True, (1,), 1],
        ],
        "convolution_backward": [
            [f(2, 4, 6, 3), f(2, 3, 6, 7), f(4, 3, 3, 3), (4,), *CONV, (True, True, True)],
            [f(2, 4, 6, 3), f(2, 3, 6, 7), f(4, 3, 3, 3), None, *CONV, (False, True, False)],
        ],
        "attention_cpu": [[f(2, 3, 4, 8), f(2, 3, 4, 8), f(2, 3, 4, 8), 0.0, True, None, None]],
        "attention_cpu_backward": [attention_case()],
        **fused_attention_cases(),
        "max_pool2d": [[images, *POOL, False], [images, *POOL, True]],
        "max_pool2d_backward": [[f(*places.shape), places, (2, 3, 6, 8), *POOL]],
        "avg_pool2d": [[images, *POOL[:3], False, True, None], [images, *POOL[:3], True, False, 3]],
        "avg_pool2d_backward": [[f(*pooled), (2, 3, 6, 8), *POOL[:3], False, True, None]],
    }


CASES = cases()


def test_every_prim_has_a_case():
    assert set(CASES) == set(PRIMS)


@pytest.mark.parametrize("name", list(PRIMS))
def test_meta_agrees_with_reference(name: str):
    prim = PRIMS[name]
    for args in CASES[name]:
        value = prim(*args)
        agree(value, prim.meta(*map(to_meta, args)))


def test_a_prim_is_one_global_object():
    assert isinstance(ops.add, Prim) and ops.add.kind is Kind.POINTWISE
    assert copy.deepcopy(ops.add) is ops.add
    assert pickle.loads(pickle.dumps(ops.add)) is ops.add
    assert ops.slice.schema() == "slice(x: Tensor, starts: Shape, stops: Shape, steps: Shape)"


def test_bind_completes_and_refuses():
    assert ops.sum.bind((1,), {"dims": (0,)}) == (1, (0,))
    with pytest.raises(CompileError, match="prim sum"):
        ops.sum.bind((1,), {"axis": 0})


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("add", [f(2), f(3)]),
        ("add", [f(2), i(2)]),
        ("where", [f(2), f(2), f(2)]),
        ("sum", [f(2), (1,)]),
        ("reshape", [f(2, 3), (5,)]),
        ("broadcast_in_dim", [f(2), (3,), (0,)]),
        ("slice", [f(2), (0,), (3,), (1,)]),
        ("pad", [f(2), (-1,), (0,), 0.0]),
        ("cat", [(f(2, 3), f(2, 4)), 0]),
        ("gather", [f(2), 0, f(2)]),
        ("mm", [f(2, 3), f(2, 3)]),
        ("index", [f(2, 3), (i(2),)]),
    ],
)
def test_meta_rules_refuse_wrong_operands(name: str, args: list[Any]):
    with pytest.raises(CompileError, match=f"prim {name}"):
        PRIMS[name].meta(*map(to_meta, args))


def test_pointwise_results_follow_the_first_dense_operand():
    x, y = f(4, 3).t(), f(3, 4)
    assert PRIMS["add"].meta(meta_of(x), meta_of(y)).stride == (1, 3)
    spread = f(3, 1).expand(3, 4)
    assert PRIMS["add"].meta(meta_of(spread), meta_of(y)).stride == (4, 1)


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        (f(4, 6), (2, 2, 6)),
        (f(4, 6).t(), (3, 2, 4)),
        (f(4, 6).t(), (24,)),
        (f(2, 3, 4).permute(1, 0, 2), (3, 8)),
        (f(3, 1).expand(3, 4), (3, 2, 2)),
        (f(2, 1, 3), (2, 3, 1, 1)),
        (f(1), ()),
        (f(), (1, 1)),
    ],
)
def test_reshape_strides_are_those_of_a_view(tensor: torch.Tensor, shape: tuple[int, ...]):
    want = tensor.reshape(shape)
    meta = PRIMS["reshape"].meta(meta_of(tensor), shape)
    shown = [(n, s) for n, s in zip(meta.shape, meta.stride, strict=True) if n != 1]
    assert shown == [(n, s) for n, s in zip(want.shape, want.stride(), strict=True) if n != 1]
