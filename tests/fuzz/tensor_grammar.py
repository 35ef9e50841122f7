"""Random programs of tensors: arithmetic, views, reductions, indices, products, writes, of any dtype and layout.

A statement is proposed, run in eager on a CPU, and kept when it runs. A program is deterministic to the bit as long as
its values are exact: sources of bits, comparisons and indices are taken from exact values only, as another rounding of
a sine would change them without being wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.layouts import lay_out

FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
INTEGERS = {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8}
DTYPES = FLOATS | INTEGERS | {"BOOL": torch.bool, "I16": torch.int16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LAYOUTS = ("own", "own", "gaps", "steps", "transposed", "offset", "expanded", "overlapping")
LARGEST = 1e4


@dataclass(frozen=True)
class Input:
    """An argument: dtype by name, shape in letters or numbers, layout, whether it is a leaf, where its values are from.

    Attributes:
        special: whether NaN, infinities and zeros with a sign are among the values.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    layout: str = "own"
    leaf: bool = False
    special: bool = False

    def make(self, sizes: dict[str, int], seed: int, device: str = "cpu") -> torch.Tensor:
        """A tensor with values that follow from the seed and the name."""
        shape = [sizes[s] if isinstance(s, str) else s for s in self.shape]
        made = self._values(shape, seed).to(device)
        if self.layout == "expanded" and shape:
            made = made[..., :1].clone().expand(shape) if shape[-1] else made
        elif self.layout == "overlapping" and len(shape) == 2 and made.numel():
            flat = self._values([shape[0] + shape[1]], seed).to(device)
            made = flat.as_strided(shape, (1, 1))
        elif self.layout in ("gaps", "steps", "transposed", "offset"):
            made = lay_out(made, self.layout)
        return made.detach().requires_grad_(self.leaf)

    def _values(self, shape: list[int], seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((seed, *map(ord, self.name))) % (1 << 40))
        dtype = DTYPES[self.dtype]
        if not dtype.is_floating_point:
            low, high = (0, 2) if dtype is torch.bool else (0, 9) if dtype is torch.uint8 else (-5, 9)
            return torch.randint(low, high, shape, generator=generator).to(dtype)
        made = torch.randn(shape, generator=generator)
        if self.special and made.numel():
            places = torch.randint(0, made.numel(), (3,), generator=generator)
            made.view(-1)[places] = torch.tensor([float("nan"), float("inf"), -0.0])
        return _with_one_nan(made.to(dtype))


def _with_one_nan(x: torch.Tensor) -> torch.Tensor:
    """Only the NaN that a GPU's arithmetic makes: the sign and the payload of others do not survive it."""
    whole = torch.int32 if x.itemsize == 4 else torch.int16
    x.view(whole)[x.isnan()] = torch.iinfo(whole).max
    return x


@dataclass(frozen=True)
class Program:
    """Statements over inputs.

    Attributes:
        lines: each with what it reads for the float64 reference, in which all floating dtypes are float64.
        exact: names whose values must be eager's to the bit.
        others: sizes of a later call.
    """

    inputs: tuple[Input, ...]
    sizes: dict[str, int]
    lines: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    exact: frozenset[str]
    dynamic: bool = False
    others: dict[str, int] = field(default_factory=dict)

    def source(self, reference: bool = False) -> str:
        """The program as a function."""
        body = [line[reference] for line in self.lines] + [f"return {', '.join(self.results)},"]
        return f"def program({', '.join(i.name for i in self.inputs)}):\n" + "".join(f"    {line}\n" for line in body)

    def __str__(self) -> str:
        told = [f"# {i.name}: {i.dtype} {list(i.shape)} {i.layout}{' leaf' * i.leaf}" for i in self.inputs]
        more = f"# sizes {self.sizes}{', dynamic' * self.dynamic}{f', then {self.others}' if self.others else ''}"
        return "\n".join([*told, more, self.source()])


def names(reference: bool = False) -> dict[str, Any]:
    """What programs may name."""
    dtypes = {n: torch.float64 if reference and d.is_floating_point else d for n, d in DTYPES.items()}
    real = {f"AS_{n}": d for n, d in DTYPES.items()}  # of the bits that the reference takes
    return {"torch": torch, "F": F, **dtypes, **real}


UNARY = (
    "x.sin()|x.cos()|(-x.abs()).exp()|x.tanh()|x.sigmoid()|(x.abs() + 0.25).sqrt()|x.abs().log1p()|F.gelu(x)|F.silu(x)"
    "|F.softplus(x)|x.erf()|(x.abs() + 0.5).reciprocal()|x.square()|x * 0.37|x + 1.7|2.5 - x|x / 3|x.abs().pow(1.5)"
    "|torch.rsqrt(x.abs() + 1)|F.leaky_relu(x)|F.elu(x)|x.expm1().clamp(max=3)|torch.addcmul(x, x, x, value=0.3)"
    "|F.hardtanh(x) * x|torch.atan2(x, x.abs() + 1)|x.clamp(-0.7, 0.9)|F.logsigmoid(x)|torch.lerp(x, x + 1, 0.3)"
).split("|")
REDUCTIONS = (
    "x.sum(d)|x.mean(d)|x.sum()|x.amax(d)|x.amin(d, keepdim=True)|x.mean(d, keepdim=True)|torch.logsumexp(x, d)"
    "|x.softmax(d)|x.log_softmax(d)|x.cumsum(d)|x.sum(d, keepdim=True)|torch.var(x, d, correction=0)"
    "|F.layer_norm(x, x.shape[-1:])|F.rms_norm(x, x.shape[-1:], eps=1e-5)|torch.linalg.vector_norm(x, dim=d)"
    "|x.var_mean(d, correction=0)[1]|torch.std(x, d, correction=0) + 1|x.double().sum(d).to(x.dtype)"
    "|x.amin(d)|F.normalize(x, dim=d)"
).split("|")
MOVES = (
    "x.t()|x.transpose(0, -1)|x.reshape(-1)|x.flatten()|x.unsqueeze(d)|x.squeeze()|x[1:]|x[..., ::2]|x[..., 1:]|x[0]"
    "|x[:, None]|x.flip(d)|x.roll(1, d)|x.chunk(2, d)[1]|x.chunk(2, d)[0]|x.diagonal()|x.unfold(d, 2, 1)|x.clone()"
    "|x.contiguous()|x.expand(2, *x.shape)|x.movedim(0, -1)|x.tril()|x.triu(1)|x.repeat(2, *[1] * (x.dim() - 1))"
    "|F.pad(x, (1, 2))|F.pad(x, (-1, 1), value=2)|x.repeat_interleave(2, d)|x.narrow(d, 1, x.shape[d] - 1)|x.mT"
    "|x.split([1, x.shape[d] - 1], d)[1]|x.view(-1)|x.permute(*range(x.dim() - 1, -1, -1))|x.select(d, -1)|x * 1"
    "|x.clone(memory_format=torch.contiguous_format)|torch.stack([x, x], d)|torch.cat([x, x], d)|x.detach().clone()"
    "|x.view_as(x)|x.as_strided((2,), (1,), x.storage_offset())|x.swapaxes(0, d)|x.ravel()|x.unflatten(d, (-1, 1))"
    "|torch.empty_like(x).copy_(x)|x.to(x.dtype, copy=True)|x.unbind(d)[-1]|x.tile(2)|x.T.reshape(-1)|x.rot90()"
).split("|")
SIGNS = "-x|x.abs()|F.relu(x)|torch.maximum(x, y)|torch.minimum(x, y)|x.clamp(-1, 1)|torch.where(m, x, y)".split("|")
EXACT = (
    "x > 0|x == y|x < y|x.round()|x.floor()|x.sign()|x.argmax(d)|x.argmin()|x.sort(d)[0]|x.sort(d, stable=True)[1]"
    "|x.isnan()|x.topk(1, d)[0]|x.cummax(d)[0]|(x * 3).to(I64)|x.to(I32)|x.any(d)|x.all()|x.ne(0).sum(d)"
    "|x.nan_to_num().signbit()|torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device))"
    "|x.max(d)[1]|x.nonzero()|x[x > 0]|x.ge(y)"
    "|x.trunc().to(I16)|x.count_nonzero(d)|x.max(d)[0]|x.min(d).values"
    "|torch.zeros_like(x).scatter(d, x.argsort(d, stable=True), x)"  # each place once: a GPU's order is any
).split("|")
BINARY = (
    "x + y|x - y|x * y|x / (y.abs() + 0.5)|torch.addcdiv(x, y, y.abs() + 1)|torch.lerp(x, y, 0.25)|torch.hypot(x, y)"
    "|x + y.sum()|x * y.mean(-1, keepdim=True)|torch.add(x, y, alpha=0.5)|F.mse_loss(x, y, reduction='none')"
).split("|")
PRODUCTS = (
    "x @ y|x @ y.t()|x.t() @ y|F.linear(x, y)|torch.einsum('ij,ij->i', x, y)|torch.outer(x.flatten(), y.flatten())"
    "|torch.addmm(x, y, y.t() @ x)|(x[None] @ y.t()[None])[0]|x.flatten() @ y.flatten()|torch.bmm(x[None], y.mT[None])"
).split("|")
WHOLE = (
    "x + y|x - y|x * y|x * 3|x + 1|x & y|x | y|x ^ y|x // 3|x % 4|x.sum(d)|x.cumsum(d)|x.amax(d)|-x|x.abs()|x.prod()"
    "|x << 1|x >> 1|x.bitwise_not()|x.to(F32)|x.to(I64)|x.to(I32)|x.to(U8)|x.to(BF16)|x.to(BOOL)|torch.where(m, x, y)"
    "|x.float().mean()|x.clamp(0, 3)|x.argmax(d)|x.sort(d)[0]|torch.floor_divide(x, 2)|x.eq(y)|x.remainder(-3)"
).split("|")
FLAGS = (
    "m.logical_not()|m & (x > 0)|m | m.flip(0)|m.sum(d)|m.any(d)|m.all()|m.to(F32)|m.cumsum(d)|m.to(U8)|~m|m.float()"
    "|m.view(U8)|m.to(I64) * 3"
).split("|")
INDICES = (
    "x.index_select(d, i.flatten() % x.shape[d])|x[i % x.shape[0]]|x.gather(d, (i % x.shape[d])[tuple(slice(0, n) for n"
    " in x.shape)])|x.take(i % x.numel())|x.masked_fill(m, 0.5)|torch.zeros_like(x).scatter(d, (i % x.shape[d])"
    ".expand(x.shape), 0.75)|torch.zeros_like(x).scatter_add(d, (i % x.shape[d]).expand(x.shape), x)"
    "|x.index_add(d, i.flatten()[: x.shape[d]] % x.shape[d], x)|x.index_put((i.flatten()[:2] % x.shape[0],), x[:1])"
    "|x.index_put((i.flatten() % x.shape[0],), x[:1], accumulate=True)|F.embedding(i % x.shape[0], x)"
    "|x[..., i.flatten() % x.shape[-1]]|torch.take_along_dim(x, (i % x.shape[d]).expand(x.shape), d)|x[m]"
    "|x.index_fill(d, i.flatten() % x.shape[d], 1.5)|torch.where(m, x, 0)|x.scatter_reduce(d, (i % x.shape[d])"
    ".expand(x.shape), x, 'amax')|x.masked_fill(x > 0, 0)|F.one_hot(i % 5, 5).to(x.dtype)"
).split("|")
WRITES = (
    "x.mul_(0.5)|x.add_(y)|x.copy_(y)|x.fill_(0.25)|x[1:] = y[:-1]|x[..., ::2] = 0.5|x[m] = 0.25|x[0] = y[-1]"
    "|x.clamp_(-0.5, 0.5)|x.neg_()|x.zero_()|x[i.flatten() % x.shape[0]] = 1.5|x.masked_fill_(m, 0.75)|x += 1"
    "|x.index_add_(0, i.flatten()[: y.shape[0]] % x.shape[0], y)|x.t().mul_(2)|x.select(d, 0).add_(1)"
    "|x.transpose(0, -1)[1:] = 2|x.diagonal().fill_(3)|x.view(-1)[1:].mul_(2)|x[..., -1] = x[..., 0]"
    "|x.scatter_(0, (i % x.shape[0]), 0.5)|x.relu_()"
).split("|")
BITS = (
    ("F32", "I32"),
    ("BF16", "I16"),
    ("F16", "I16"),
    ("I32", "F32"),
    ("I64", "I32"),
    ("BOOL", "U8"),
    ("I16", "BF16"),
)
CASTS = tuple(f"x.to({name})" for name in ("F32", "BF16", "F16", "F32", "BF16"))
EXACT_IN, ROUNDS = "exact in", "rounds"
KINDS: tuple[tuple[tuple[str, ...] | list[str], str, str, int], ...] = (
    (UNARY, "float", ROUNDS, 14),
    (REDUCTIONS, "float", ROUNDS, 14),
    (MOVES, "any", "", 22),
    (SIGNS, "float", "", 5),
    (EXACT, "float", EXACT_IN, 6),
    (BINARY, "float", ROUNDS, 12),
    (PRODUCTS, "float", ROUNDS, 4),
    (WHOLE, "whole", "", 8),
    (FLAGS, "flag", "", 4),
    (INDICES, "float", ROUNDS, 9),
    (INDICES, "whole", "", 2),
    (WRITES, "float", ROUNDS, 9),
    (WRITES, "whole", "", 2),
    (CASTS, "float", "", 4),
)
"""Templates, the kind of their `x`, what they do to exactness, and how often they come."""
