"""What has turned out of symbols is put into metas and arguments, at any depth; all else stays as it is."""

from __future__ import annotations

import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.known_sizes import with_known_sizes
from smelt.shapes.assumptions import Assumptions

CPU = torch.device("cpu")


def test_a_symbol_that_is_known() -> None:
    env = Assumptions()
    a, b = env.symbol(4), env.symbol(6)
    assert with_known_sizes(a) is not None and with_known_sizes(a) == a and not isinstance(with_known_sizes(a), int)
    assert int(a) == 4  # pins it
    assert with_known_sizes(a) == 4 and type(with_known_sizes(a)) is int
    assert type(with_known_sizes(a + 1)) is int and with_known_sizes(a + 1) == 5
    assert type(with_known_sizes(b)) is type(b)
    assert str(with_known_sizes(a * b)) == str(4 * b) != str(a * b)


def test_inside_of_arguments() -> None:
    env = Assumptions()
    a = env.symbol(4)
    graph = fx.Graph()
    size, tensor = graph.placeholder("size"), graph.placeholder("tensor")
    size.meta["val"] = a
    tensor.meta["val"] = TensorMeta((a, 3), torch.float32, (3, 1), CPU)
    int(a)
    got = with_known_sizes(([a, "name"], {"k": (a, None)}, slice(a, None, a + 1), size, tensor, 2.5))
    assert got == ([4, "name"], {"k": (4, None)}, slice(4, None, 5), 4, tensor, 2.5)
    flat = [got[0][0], got[1]["k"][0], got[2].start, got[2].step, got[3]]
    assert {type(n) for n in flat} == {int}
    assert got[4] is tensor


def test_metas() -> None:
    env = Assumptions()
    a, b = env.symbol(4), env.symbol(6)
    meta = TensorMeta((b, a), torch.float16, (a, 1), CPU, True)
    plain = TensorMeta((2, 3), torch.float16, (3, 1), CPU)
    int(a)
    got = with_known_sizes(meta)
    assert got == TensorMeta((b, 4), torch.float16, (4, 1), CPU, True)
    assert type(got.shape[1]) is type(got.stride[0]) is int and type(got.shape[0]) is type(b)
    assert with_known_sizes(plain) is plain
