"""Example calls of the kernels that prims of kind `kernel` name: `prim -> [(args, kwargs)]`, as ATen takes them."""

from __future__ import annotations

import torch

from smelt.prims.kernels import special
from tests.prims.rules.cases import Table, call, f, i, u

aten = torch.ops.aten


def named(names: str, *calls: object) -> Table:
    return {name: list(calls) for name in names.split()}  # type: ignore[arg-type]


def functions() -> Table:
    table = named(" ".join(special.UNARY), call(u(3, 4)), call(u(4, 3).t()))
    table |= named(" ".join(special.BINARY), call(u(3, 4) + 1, u(3, 4) + 1))
    table |= named(" ".join(special.POLYNOMIALS), call(u(3, 4), i(3, 4, high=5).float()))
    table |= named("polygamma", call(1, u(3, 4)), call(3, u(2))) | named("frexp", call(f(3, 4)))
    return table | named("gcd", call(i(3, 4, high=20) + 1, i(3, 4, high=20) + 1))


def order() -> Table:
    x = f(3, 5)
    table = named("cummax cummin logcumsumexp", call(x, 1), call(x, -2))
    table |= named("kthvalue", call(x, 2, 1, False), call(x, 3, 0, True), call(x, 1))
    table |= named("mode median_dim nanmedian_dim", call(x.round(), 1), call(x.round(), 0, True))
    table |= named("median nanmedian", call(x))
    rows = torch.arange(6.0).reshape(2, 3)
    table |= named("searchsorted", call(rows[0], u(4) * 3), call(rows, u(2, 4) * 6, out_int32=True, right=True))
    table |= named("searchsorted_number", call(rows[0], 1.5, side="right"))
    table |= named("bucketize", call(u(3, 4) * 3, rows[0]), call(u(3) * 3, rows[0], out_int32=True, right=True))
    table |= named("histc", call(x, 4, -1, 1), call(x, 3)) | named("nonzero_static", call(x, size=20))
    table |= named("isin", call(i(3, 4), i(2)), call(i(3, 4), i(2), invert=True))
    table |= named("hash_tensor", call(x), call(x, [1], keepdim=True), call(x[0, 0], [0]))
    return table | named("tril_indices triu_indices", call(3, 4, -1), call(4, 3, 1, dtype=torch.int32), call(0, 2))


def scattering() -> Table:
    x, places = f(3, 4), i(2, 4)
    calls = [call(x, 0, places, f(2, 4), r, include_self=s) for r in ("prod", "mean", "amax") for s in (True, False)]
    table = named("scatter_reduce", *calls, call(x, 0, places, f(2, 4), "sum", include_self=False))
    rows = [call(x, 0, i(5), f(5, 4), r, include_self=s) for r in ("prod", "mean", "amin") for s in (True, False)]
    return table | named("index_reduce", *rows)


def pooling() -> Table:
    image, volume = f(2, 3, 6, 7), f(2, 3, 4, 6, 5)
    table: Table = {}
    for rank, x, size in ((2, image, [4, 3]), (3, volume, [2, 2, 2])):
        pooled, places = getattr(aten, f"adaptive_max_pool{rank}d")(x, size)
        table |= named(f"adaptive_avg_pool{rank}d adaptive_max_pool{rank}d", call(x, size), call(x[0], size))
        table |= named(f"adaptive_avg_pool{rank}d_backward", call(pooled, x))
        table |= named(f"adaptive_max_pool{rank}d_backward", call(pooled, x, places))
        window, samples = [2] * rank, u(2, 3, rank)
        pooled, places = getattr(aten, f"fractional_max_pool{rank}d")(x, window, size, samples)
        table |= named(f"fractional_max_pool{rank}d", call(x, window, size, samples))
        table |= named(f"fractional_max_pool{rank}d_backward", call(pooled, x, window, size, places))
    windows = ([2, 2, 3], [2, 1, 2], [0, 1, 1])
    mean = aten.avg_pool3d(volume, *windows, True, True, None)
    table |= named("avg_pool3d", call(volume, *windows, True), call(volume[0], [2]))
    table |= named("avg_pool3d_backward", call(mean, volume, *windows, True, True, None))
    best, places = aten.max_pool3d_with_indices(volume, *windows, 1, True)
    table |= named("max_pool3d", call(volume, *windows, [1], True), call(volume[0], [2]))
    table |= named("max_pool3d_backward", call(best, volume, *windows, [1, 1, 1], True, places))
    best, places = aten.max_pool2d_with_indices(image, [2, 2])
    table |= named("max_unpool2d", call(best, places, [6, 7]))
    best, places = aten.max_pool3d_with_indices(volume, [2, 2, 2])
    return table | named("max_unpool3d", call(best, places, [4, 6, 5], [2, 2, 2], [0, 0, 0]))


def windows() -> Table:
    table: Table = {}
    for rank, x in ((2, f(2, 3, 5, 6)), (3, f(2, 3, 4, 5, 6))):
        grid = u(2, *range(3, 3 + rank), rank)
        out = f(2, 3, *range(3, 3 + rank))
        table |= named(f"grid_sampler_{rank}d", call(x, grid, 0, 1, False), call(x, grid, 1, 0, True))
        masks = [[True, True], [False, True]]
        table |= named(f"grid_sampler_{rank}d_backward", *(call(out, x, grid, 0, 0, False, mask) for mask in masks))
    x, names = f(2, 3, 5, 6), ("upsample_bicubic2d", "upsample_bilinear2d_aa", "upsample_bicubic2d_aa")
    for name in names:
        table |= named(name, call(x, [7, 4], False), call(x, [10, 12], True))
        table |= named(f"{name}_backward", call(f(2, 3, 7, 4), [7, 4], [2, 3, 5, 6], False))
    patches = ([2, 3], [1, 1], [0, 1], [2, 1])
    columns = aten.im2col(x, *patches)
    return table | named("im2col", call(x, *patches), call(x[0], *patches)) | named(
        "col2im", call(columns, [5, 6], *patches)
    )  # fmt: skip


def segments() -> Table:
    data, lengths = f(6, 3), torch.tensor([2, 0, 4])
    out = aten.segment_reduce(data, "sum", lengths=lengths)
    table = named("segment_reduce", call(data, "sum", lengths=lengths), call(data, "max", lengths=lengths, initial=0.0))
    table["segment_reduce"].append(call(data, "mean", offsets=torch.tensor([0, 2, 6])))
    table |= named("segment_reduce_backward", call(out, out, data, "sum", lengths=lengths))
    x, y = f(2, 3, 5), f(1, 4, 5)
    table |= named("cdist", call(x, y, 2.0, None), call(x[0], y[0], 1.0, None))
    table |= named("cdist_backward", call(f(2, 3, 4), x, y, 1.0, aten._cdist_forward(x, y, 1.0, None)))
    return table | named("pdist", call(x[0], 2.0)) | named(
        "pdist_backward", call(f(3), x[0], 2.0, aten._pdist_forward(x[0], 2.0))
    )  # fmt: skip


def losses() -> Table:
    x, classes = f(4, 5), i(4, high=5)
    table = named("multi_margin_loss", call(x, classes), call(x, classes, 2, 0.5, u(5), 0), call(x[0], classes[0]))
    table |= named("multi_margin_loss_backward", call(f(), x, classes, 1, 1.0), call(f(4), x, classes, 2, 0.5, u(5), 0))
    labels = torch.tensor([[1, 3, -1, 0, 0]]).expand(4, 5).contiguous()
    hits = aten.multilabel_margin_loss_forward(x, labels, 0)[1]
    table |= named("multilabel_margin_loss", call(x, labels, 0), call(x, labels, 1), call(x[0], labels[0], 2))
    table |= named("multilabel_margin_loss_backward", call(f(4), x, labels, 0, hits))
    scores, targets = f(6, 2, 4).log_softmax(-1), i(2, 3, high=3) + 1
    lengths = ([6, 6], [3, 3])
    nll, prefixes = aten._ctc_loss(scores, targets, *lengths)
    table |= named("ctc_loss", call(scores, targets, *lengths))
    return table | named("ctc_loss_backward", call(f(2), scores, targets, *lengths, nll, prefixes, 0, False))


def linalg() -> Table:
    a, tall = f(2, 4, 4) + 4 * torch.eye(4), f(2, 5, 3)
    spd, b = a @ a.mT, f(2, 4, 3)
    lower = torch.linalg.cholesky(spd)
    table = named("svd", call(tall), call(tall, True), call(tall, False, False)) | named("eig eigvals", call(a))
    table |= named("eigh", call(spd), call(spd, "U", False)) | named("pinv", call(tall), call(spd, hermitian=True))
    table |= named("solve_triangular", call(lower, b, upper=False), call(lower.mT, b.mT, upper=True, left=False))
    table |= named("triangular_solve", call(b, lower, False))
    lu, pivots, _ = torch.linalg.lu_factor_ex(a)
    table |= named("lu_factor lu", call(a), call(tall)) | named(
        "lu_unpack", call(lu, pivots), call(lu, pivots, True, False)
    )
    table |= named("lu_solve", call(lu, pivots, b), call(lu, pivots, b, adjoint=True))
    table |= named("solve", call(a, b), call(a, b[..., 0])) | named("det slogdet inverse", call(a))
    table |= named("cholesky_ex ldl_factor", call(spd)) | named("cholesky_inverse", call(lower))
    if hasattr(aten, "cholesky"):  # until torch 2.14
        table |= named("cholesky", call(spd))
    table |= named("cholesky_solve", call(b, lower))
    ld, places, _ = torch.linalg.ldl_factor_ex(spd)
    table |= named("ldl_solve", call(ld, places, b))
    table |= named("qr", call(tall), call(tall, "complete"), call(tall, "r")) | named("geqrf", call(tall))
    reflections, tau = torch.geqrf(tall)
    table |= named("householder_product", call(reflections, tau)) | named("ormqr", call(reflections, tau, f(2, 5, 2)))
    return table | named("matrix_exp", call(a))


def fourier() -> Table:
    x = f(3, 8)
    z = torch.fft.fft(x)
    table = named("fft_r2c", call(x, [1], 0, True), call(x, [0, 1], 1, True), call(x, [1], 0, False))
    table |= named("fft_c2c", call(z, [1], 0, True), call(z, [0, 1], 2, False))
    return table | named("fft_c2r", call(z[:, :5], [1], 2, 8), call(z[:, :5], [0, 1], 2, 9))


def devices() -> Table:
    return named("to_device", call(f(3, 4), device=torch.device("cpu")))


FAMILIES = (devices, functions, order, scattering, pooling, windows, segments, losses, linalg, fourier)


def kernel_calls() -> Table:
    """Every kernel's calls."""
    torch.manual_seed(0)
    table: Table = {}
    for family in FAMILIES:
        table |= family()
    return table
