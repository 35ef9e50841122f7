"""Random prim graphs: a walk that keeps a pool of values and applies a random prim to some of them."""

from __future__ import annotations

import math
import random

import torch
from torch import fx

from smelt.shapes.size import IntLike, Size, content, hint, is_symbolic
from tests.loops.graphs import GraphBuilder, layer_norm, repeated, shape_of, softmax
from tests.loops.symbolic import SymbolicBuilder

SHAPES = [(4, 6, 8), (24, 8), (3, 5), (192,), (2, 3, 16), (4, 48), (1, 7), (5, 1, 4), (40, 33), ()]
BIG_SHAPES = [(64, 512), (8, 64, 96), (2, 16, 40, 40), (300, 130), (40000,), (3, 20000), (788, 48), (512, 4, 24)]
"""Large enough that reductions are split, loops are parallel, chunked and tiled."""

UNARY = "neg abs exp tanh sigmoid sin erf sqrt relu round floor".split()
BINARY = "add sub mul maximum minimum atan2".split()


class RandomGraph:
    """Builds one graph from a seed. Values stay near 1, so that rounding differences stay small."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32, big: bool = False) -> None:
        self.rng = random.Random(seed)
        self.g = self.builder(big)
        self.dtype = dtype
        self.pool: list[fx.Node] = []
        self.seed_input = self.g.input(dtype=torch.int64)
        shape = self.rng.choice(self.shapes(big))
        self.limit = 200_000 if big else 60_000
        for _ in range(self.rng.randint(1, 3)):
            stride = None
            if len(shape) > 1 and self.rng.random() < 0.3:
                order = list(range(len(shape)))
                self.rng.shuffle(order)
                stride = [0] * len(shape)
                step = 1
                for d in order:
                    stride[d] = step
                    step *= shape[d]
            self.pool.append(self.g.input(*shape, dtype=dtype, stride=stride))

    def builder(self, big: bool) -> GraphBuilder:
        return GraphBuilder()

    def shapes(self, big: bool) -> list[tuple[IntLike, ...]]:
        return list(BIG_SHAPES if big else SHAPES[:9])

    def mean(self, total: fx.Node, count: IntLike) -> fx.Node:
        return self.g.div(total, count) if isinstance(count, Size) else self.g.mul(total, 1 / count)

    def pick(self) -> fx.Node:
        return self.rng.choice(self.pool[-8:])

    def build(self, steps: int = 12) -> fx.GraphModule:
        for _ in range(steps):
            new = self.step()
            if hint(math.prod(shape_of(new))) <= self.limit:
                self.pool.append(new)
        outputs = {n: None for n in self.rng.sample(self.pool, min(len(self.pool), self.rng.randint(1, 5)))}
        outputs[self.pool[-1]] = None
        return self.g.build(*outputs)

    def below(self, size: IntLike) -> int:
        """Indices that a dimension of this size has whatever its symbols are."""
        return 1 if isinstance(size, Size) else min(4, size)

    def regrouped(self, shape: tuple[IntLike, ...]) -> tuple[IntLike, ...]:
        """Another shape of as many elements: neighbours joined, or a dimension split."""
        d = self.rng.randrange(len(shape))
        if self.rng.random() < 0.5 and len(shape) > 1:
            d = max(d, 1)
            return (*shape[: d - 1], shape[d - 1] * shape[d], *shape[d + 1 :])
        inner = self.rng.choice([n for n in range(1, content(shape[d]) + 1) if content(shape[d]) % n == 0])
        pair = (shape[d] // inner, inner)
        return (*shape[:d], *(pair if self.rng.random() < 0.5 else pair[::-1]), *shape[d + 1 :])

    def like(self, shape: tuple[int, ...]) -> fx.Node:
        """A value of the shape: from the pool, or broadcast from something smaller, or new."""
        same = [v for v in self.pool if str(shape_of(v)) == str(shape)]
        if same and self.rng.random() < 0.8:
            return self.rng.choice(same)
        if shape and self.rng.random() < 0.7:
            keep = sorted(self.rng.sample(range(len(shape)), self.rng.randint(0, len(shape))))
            small = self.g.input(*(shape[d] for d in keep), dtype=self.dtype)
            return self.g.broadcast_in_dim(small, shape, tuple(keep))
        return self.g.full(shape, self.rng.choice([0.5, -1.25, 2.0]), self.dtype, torch.device("cpu"))

    def step(self) -> fx.Node:
        g, rng = self.g, self.rng
        x = self.pick()
        shape = shape_of(x)
        rank = len(shape)
        match rng.choice(
            ["unary"] * 3 + ["binary"] * 4 + ["number", "where", "reduce", "reduce", "keep", "keep", "reshape",
             "permute", "slice", "flip", "pad", "cat", "softmax", "norm", "dropout", "gather", "broadcast", "convert",
             "amax", "scatter", "select"]
        ):  # fmt: skip
            case "unary":
                op = rng.choice(UNARY)
                if op == "relu":
                    return g.where(g.gt(x, 0.0), x, 0.0)
                if op in ("exp", "sqrt"):
                    return getattr(g, op)(g.abs(g.tanh(x)))
                return getattr(g, op)(x)
            case "binary":
                op = rng.choice(BINARY)
                other = self.like(shape)
                return getattr(g, op)(*((x, other) if rng.random() < 0.5 else (other, x)))
            case "number":
                return getattr(g, rng.choice(["add", "mul", "sub"]))(x, rng.choice([0.5, -0.75, 3]))
            case "where":
                return g.where(g.lt(x, self.like(shape)), x, self.like(shape))
            case "reduce" if rank:
                dims = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank))))
                return self.mean(g.sum(x, dims), math.prod(shape[d] for d in dims))
            case "amax" if rank and hint(math.prod(shape)):
                dims = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank))))
                return getattr(g, rng.choice(["amax", "amin"]))(x, dims)
            case "keep" if rank:
                dims = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank))))
                mean = self.mean(g.sum(x, dims), math.prod(shape[d] for d in dims))
                return g.sub(x, repeated(g, mean, shape, dims))
            case "reshape" if is_symbolic(shape):
                return g.reshape(x, self.regrouped(shape))
            case "reshape" if rank:
                total = math.prod(shape)
                first = rng.choice([d for d in range(1, total + 1) if total % d == 0])
                rest = total // first
                second = rng.choice([d for d in range(1, rest + 1) if rest % d == 0])
                return g.reshape(x, rng.choice([(first, rest), (first, second, rest // second), (total,)]))
            case "permute" if rank > 1:
                return g.permute(x, tuple(rng.sample(range(rank), rank)))
            case "slice" if rank:
                starts = tuple(rng.randint(0, 1 if isinstance(n, Size) else n // 2) for n in shape)
                stops = tuple(
                    n if isinstance(n, Size) else rng.randint(a + 1, n) for a, n in zip(starts, shape, strict=True)
                )
                return g.slice(x, starts, stops, tuple(rng.choice([1, 1, 2]) for _ in shape))
            case "flip" if rank:
                return g.flip(x, (rng.randrange(rank),))
            case "pad" if rank:
                low, high = tuple(rng.randint(0, 2) for _ in shape), tuple(rng.randint(0, 2) for _ in shape)
                return g.pad(x, low, high, 0.5)
            case "cat" if rank:
                return g.cat((x, self.like(shape), x)[: rng.randint(2, 3)], rng.randrange(rank))
            case "softmax" if rank:
                return softmax(g, x, rng.randrange(rank))
            case "norm" if rank and hint(shape[-1]) > 1:
                w, b = g.input(shape[-1], dtype=self.dtype), g.input(shape[-1], dtype=self.dtype)
                return layer_norm(g, g.add(x, self.like(shape)), w, b)[rng.choice([0, 0, 0, 1])]
            case "dropout":
                keep = g.ge(g.random(self.seed_input, rng.randint(0, 9), shape), 0.5)
                return g.where(keep, g.mul(x, 2.0), 0.0)
            case "gather" if rank:
                dim = rng.randrange(rank)
                index = g.input(*shape, dtype=torch.int64)
                return g.gather(x, dim, g.remainder(index, self.below(shape[dim])))
            case "select" if rank:
                dim = rng.randrange(rank)
                index = g.input(5, dtype=torch.int64)
                return g.index_select(x, dim, g.remainder(index, self.below(shape[dim])))
            case "scatter" if rank:
                dim = rng.randrange(rank)
                index = g.remainder(g.input(*shape, dtype=torch.int64), self.below(shape[dim]))
                return g.scatter_add(self.like(shape), dim, index, x)
            case "broadcast" if rank < 3:
                return g.broadcast_in_dim(x, (3, *shape), tuple(range(1, rank + 1)))
            case "convert":
                return g.convert(g.convert(x, torch.bfloat16), self.dtype)
        return g.add(x, 1.0)


class SymbolicRandomGraph(RandomGraph):
    """The same over two symbolic sizes. `g.known` holds what building it assumed."""

    def builder(self, big: bool) -> SymbolicBuilder:
        return SymbolicBuilder(*((12, 70) if big else (3, 5)))

    def shapes(self, big: bool) -> list[tuple[IntLike, ...]]:
        b, t = self.g.symbols
        return [
            (b, t, 8),
            (b * t, 24),
            (b, 3, t),
            (t, b),
            (b * t * 6,),
            (b, t),
            (t, 40),
            (t,),
            (b, 4, t, t),
            (b, 16, 9, t),
        ]
