"""The text of smelt's attention kernels: softmax(q k^T * scale + bias) v and its gradients, block by block.

The forward keeps a running maximum and sum of each row (Milakov and Gimelshein 2018; Dao et al. 2022), so that the
matrix of weights is never in memory. The backward recomputes the weights from the logsumexp of each row: one kernel
walks the columns for the gradients of q and the bias, another walks the rows for the gradients of k and v; neither uses
atomics. Scores are in units of log 2. A row whose scores are all -inf gives 0 and an infinite logsumexp.

Dropout depends on seed, stream and the weight's index only (`prims/random_bits.py`), and so is equal in all kernels.
"""

from __future__ import annotations

from smelt.abi.random_source import RANDOM_FUNCTIONS
from smelt.base.text import with_needs

HEAD = """\
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
SCALE = tl.constexpr({scale!r})
KEEP = tl.constexpr({keep!r})

"""

SHARED = '''\
@triton.jit
def tile(start, row, column, rows, columns, stride, step: tl.constexpr, whole_rows: tl.constexpr,
         whole_columns: tl.constexpr):
    """Elements (row, column) of a matrix, 0 outside of it."""
    at = start + row[:, None] * stride + column[None, :] * step
    if whole_rows and whole_columns:
        return tl.load(at)
    if whole_rows:
        return tl.load(at, column[None, :] < columns, 0.0)
    if whole_columns:
        return tl.load(at, row[:, None] < rows, 0.0)
    return tl.load(at, (row[:, None] < rows) & (column[None, :] < columns), 0.0)


@triton.jit
def put(start, value, row, column, rows, columns, stride, step: tl.constexpr):
    at = start + row[:, None] * stride + column[None, :] * step
    tl.store(at, value.to(start.dtype.element_ty), (row[:, None] < rows) & (column[None, :] < columns))


@triton.jit
def biased(score, bias, i, j, rows, columns, stride, STEP_J: tl.constexpr, BIAS: tl.constexpr):
    """Scores at places i and j, of which one is a column vector; a bias of one row is read once for all."""
    if BIAS == 1:
        score += tl.load(bias + j * STEP_J, j < columns, 0.0).to(tl.float32) * LOG2E
    if BIAS == 2:
        inside = (i < rows) & (j < columns)
        score += tl.load(bias + i * stride + j * STEP_J, inside, 0.0).to(tl.float32) * LOG2E
    return score


@triton.jit
def visible(score, i, j, columns, CAUSAL: tl.constexpr, WHOLE_N: tl.constexpr):
    """-inf where row i must not see column j."""
    if CAUSAL:
        score = tl.where(i >= j, score, float("-inf"))
    if not WHOLE_N:
        score = tl.where(j < columns, score, float("-inf"))
    return score


@triton.jit
def kept(key, pair, i, j, rows, columns, WIDE: tl.constexpr):
    """Which weights at places i and j are not dropped."""
    if WIDE:
        place = (pair.to(tl.int64) * rows + i) * columns + j
        place = place + (place >> 32) * 0x9E3779B1
    else:
        place = (pair.to(tl.uint32) * rows.to(tl.uint32) + i.to(tl.uint32)) * columns.to(tl.uint32) + j.to(tl.uint32)
    return random_uniform(key, place) < KEEP
'''

FORWARD = """\
@triton.jit
def kernel(q, k, v, bias, seed, out, sums, heads, rows, columns, padded, step,
           qb, qh, qm, kb, kh, kn, vb, vh, vn, ob, oh, om, bb, bh, bm,
           D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
           QD: tl.constexpr, KD: tl.constexpr, VD: tl.constexpr, OD: tl.constexpr, BN: tl.constexpr,
           CAUSAL: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr, WIDE: tl.constexpr, SUMS: tl.constexpr,
           WHOLE_M: tl.constexpr, WHOLE_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    blocks = tl.cdiv(rows, BLOCK_M)
    block = tl.program_id(0) % blocks
    pair = tl.program_id(0) // blocks
    if CAUSAL:
        block = blocks - 1 - block  # those with most to do begin first
    b = (pair // heads).to(tl.int64)
    h = (pair % heads).to(tl.int64)
    q += b * qb + h * qh
    k += b * kb + h * kh
    v += b * vb + h * vh
    out += b * ob + h * oh
    bias += b * bb + h * bh
    key = tl.full([], 0, tl.uint64)
    if DROP:
        key = random_key(tl.load(seed), step)
    i = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_V)
    queries = tile(q, i, d, rows, D, qm, QD, WHOLE_M, D == BLOCK_D)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    end = columns
    if CAUSAL:
        end = tl.minimum(columns, (block + 1) * BLOCK_M)
    for start in tl.range(0, end, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = tile(k, j, d, columns, D, kn, KD, WHOLE_N, D == BLOCK_D)
        score = tl.dot(queries, tl.trans(keys), input_precision="{precision}") * (SCALE * LOG2E)
        score = biased(score, bias, i[:, None], j[None, :], rows, columns, bm, BN, BIAS)
        score = visible(score, i[:, None], j[None, :], columns, CAUSAL, WHOLE_N)
        top = tl.maximum(highest, tl.max(score, 1))
        base = tl.where(top == float("-inf"), 0.0, top)
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weight, 1)
        if DROP:
            weight = tl.where(kept(key, pair, i[:, None], j[None, :], rows, columns, WIDE), weight, 0.0)
        values = tile(v, j, e, columns, DV, vn, VD, WHOLE_N, DV == BLOCK_V)
        result = tl.dot(weight.to(values.dtype), values, result * shrink[:, None], input_precision="{precision}")
        highest = top
    empty = total == 0
    factor = tl.where(empty, 0.0, 1.0 / tl.where(empty, 1.0, total))
    if DROP:
        factor = factor * (1.0 / KEEP)
    put(out, tl.where(empty[:, None], 0.0, result * factor[:, None]), i, e, rows, DV, om, OD)
    if SUMS:
        found = tl.where(empty | (i >= rows), float("inf"), (highest + tl.log2(total)) * LN2)
        tl.store(sums + pair.to(tl.int64) * padded + i, found, i < padded)
"""

BY_ROWS = """\
@triton.jit
def kernel(grad, q, k, v, bias, seed, out, sums, deltas, dq, dbias, heads, rows, columns, padded, step,
           gb, gh, gm, qb, qh, qm, kb, kh, kn, vb, vh, vn, ob, oh, om, bb, bh, bm, rb, rh, rm,
           D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
           GD: tl.constexpr, QD: tl.constexpr, KD: tl.constexpr, VD: tl.constexpr, OD: tl.constexpr, BN: tl.constexpr,
           RD: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr, WIDE: tl.constexpr,
           SCORES: tl.constexpr,
           WHOLE_M: tl.constexpr, WHOLE_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    blocks = tl.cdiv(rows, BLOCK_M)
    block = tl.program_id(0) % blocks
    pair = tl.program_id(0) // blocks
    if CAUSAL:
        block = blocks - 1 - block
    b = (pair // heads).to(tl.int64)
    h = (pair % heads).to(tl.int64)
    grad += b * gb + h * gh
    q += b * qb + h * qh
    k += b * kb + h * kh
    v += b * vb + h * vh
    out += b * ob + h * oh
    dq += b * rb + h * rh
    bias += b * bb + h * bh
    dbias += pair.to(tl.int64) * rows * columns
    key = tl.full([], 0, tl.uint64)
    if DROP:
        key = random_key(tl.load(seed), step)
    i = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_V)
    gradients = tile(grad, i, e, rows, DV, gm, GD, WHOLE_M, DV == BLOCK_V)
    results = tile(out, i, e, rows, DV, om, OD, WHOLE_M, DV == BLOCK_V)
    delta = tl.sum(gradients.to(tl.float32) * results.to(tl.float32), 1)
    tl.store(deltas + pair.to(tl.int64) * rows + i, delta, i < rows)
    queries = tile(q, i, d, rows, D, qm, QD, WHOLE_M, D == BLOCK_D)
    base = tl.load(sums + pair.to(tl.int64) * padded + i, i < rows, float("inf")) * LOG2E
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = columns
    if CAUSAL and not SCORES:
        end = tl.minimum(columns, (block + 1) * BLOCK_M)
    for start in tl.range(0, end, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = tile(k, j, d, columns, D, kn, KD, WHOLE_N, D == BLOCK_D)
        values = tile(v, j, e, columns, DV, vn, VD, WHOLE_N, DV == BLOCK_V)
        score = tl.dot(queries, tl.trans(keys), input_precision="{precision}") * (SCALE * LOG2E)
        score = biased(score, bias, i[:, None], j[None, :], rows, columns, bm, BN, BIAS)
        score = visible(score, i[:, None], j[None, :], columns, CAUSAL, WHOLE_N)
        weight = tl.exp2(score - base[:, None])
        change = tl.dot(gradients, tl.trans(values), input_precision="{precision}")
        if DROP:
            stays = kept(key, pair, i[:, None], j[None, :], rows, columns, WIDE)
            change = tl.where(stays, change * (1.0 / KEEP), 0.0)
        change = weight * (change - delta[:, None])
        if SCORES:
            put(dbias, change, i, j, rows, columns, columns.to(tl.int64), 1)
        result = tl.dot(change.to(keys.dtype), keys, result, input_precision="{precision}")
    put(dq, result * SCALE, i, d, rows, D, rm, RD)
"""

BY_COLUMNS = """\
@triton.jit
def kernel(grad, q, k, v, bias, seed, sums, deltas, dk, dv, heads, rows, columns, padded, step,
           gb, gh, gm, qb, qh, qm, kb, kh, kn, vb, vh, vn, bb, bh, bm, rb, rh, rn, sb, sh, sn,
           D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
           GD: tl.constexpr, QD: tl.constexpr, KD: tl.constexpr, VD: tl.constexpr, BN: tl.constexpr,
           RD: tl.constexpr, SD: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
           WIDE: tl.constexpr,
           WHOLE_M: tl.constexpr, WHOLE_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    blocks = tl.cdiv(columns, BLOCK_N)
    block = tl.program_id(0) % blocks
    pair = tl.program_id(0) // blocks
    b = (pair // heads).to(tl.int64)
    h = (pair % heads).to(tl.int64)
    grad += b * gb + h * gh
    q += b * qb + h * qh
    k += b * kb + h * kh
    v += b * vb + h * vh
    dk += b * rb + h * rh
    dv += b * sb + h * sh
    bias += b * bb + h * bh
    sums += pair.to(tl.int64) * padded
    deltas += pair.to(tl.int64) * rows
    key = tl.full([], 0, tl.uint64)
    if DROP:
        key = random_key(tl.load(seed), step)
    j = block * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_V)
    keys = tile(k, j, d, columns, D, kn, KD, WHOLE_N, D == BLOCK_D)
    values = tile(v, j, e, columns, DV, vn, VD, WHOLE_N, DV == BLOCK_V)
    by_key = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    by_value = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
    first = 0
    if CAUSAL:
        first = (block * BLOCK_N) // BLOCK_M * BLOCK_M
    for start in tl.range(first, rows, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        queries = tile(q, i, d, rows, D, qm, QD, WHOLE_M, D == BLOCK_D)
        gradients = tile(grad, i, e, rows, DV, gm, GD, WHOLE_M, DV == BLOCK_V)
        base = tl.load(sums + i, i < rows, float("inf")) * LOG2E
        delta = tl.load(deltas + i, i < rows, 0.0)
        score = tl.dot(keys, tl.trans(queries), input_precision="{precision}") * (SCALE * LOG2E)
        score = biased(score, bias, i[None, :], j[:, None], rows, columns, bm, BN, BIAS)
        score = visible(score, i[None, :], j[:, None], columns, CAUSAL, WHOLE_N)
        weight = tl.exp2(score - base[None, :])
        change = tl.dot(values, tl.trans(gradients), input_precision="{precision}")
        used = weight
        if DROP:
            stays = kept(key, pair, i[None, :], j[:, None], rows, columns, WIDE)
            used = tl.where(stays, weight, 0.0)
            change = tl.where(stays, change * (1.0 / KEEP), 0.0)
        by_value = tl.dot(used.to(gradients.dtype), gradients, by_value, input_precision="{precision}")
        change = weight * (change - delta[None, :])
        by_key = tl.dot(change.to(queries.dtype), queries, by_key, input_precision="{precision}")
    put(dk, by_key * SCALE, j, d, columns, D, rn, RD)
    if DROP:
        by_value = by_value * (1.0 / KEEP)
    put(dv, by_value, j, e, columns, DV, sn, SD)
"""

KERNELS = {"forward": FORWARD, "by_rows": BY_ROWS, "by_columns": BY_COLUMNS}


def attention_source(name: str, scale: float, keep: float, precision: str) -> str:
    """Returns the text of the module of one kernel.

    Args:
        scale: factor of the scores.
        keep: probability that a weight is not dropped.
        precision: precision of float32 products: "tf32", "tf32x3" or "ieee".
    """
    functions = [f"@triton.jit\n{text}\n" for text in with_needs(["random_key", "random_uniform"], RANDOM_FUNCTIONS)]
    head = HEAD.format(scale=scale, keep=keep)
    return "\n\n".join([head, *functions, SHARED, KERNELS[name].replace("{precision}", precision)])
