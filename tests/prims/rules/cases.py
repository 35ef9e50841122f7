"""Example calls of every ATen operator that has a decomposition, by family: `name.overload -> [(args, kwargs)]`."""

from __future__ import annotations

import math
from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]
Table = dict[str, list[Call]]
aten = torch.ops.aten


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def u(*shape: int) -> torch.Tensor:
    """Inside (0.1, 0.9)."""
    return torch.rand(shape) * 0.8 + 0.1


def i(*shape: int, high: int = 3) -> torch.Tensor:
    return torch.randint(0, high, shape)


def b(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.5


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def same(names: str, *calls: Call) -> Table:
    """The same calls for several operators."""
    return {name if "." in name else f"{name}.default": list(calls) for name in names.split()}


SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.5, 0.5, 1.5])


def elementwise() -> Table:
    unit = "asin acos atan atanh erfinv log log1p log2 log10 sqrt rsqrt lgamma digamma"
    wide = "exp expm1 exp2 reciprocal sin cos tan sinh cosh tanh asinh erf erfc sigmoid"
    table = same(unit, call(u(3, 4)), call(i(3) + 1)) | same("acosh", call(u(3, 4) + 1))
    table["erfinv.default"] = table["atanh.default"] = [call(u(3, 4))]
    table |= same(wide, call(f(3, 4)), call(f(4, 3).t()), call(SPECIAL), call(i(4)), call(b(3)))
    table |= same("abs neg sign sgn square", call(f(3, 4)), call(SPECIAL), call(i(3)))
    table |= same("floor ceil round trunc", call(f(3, 4) * 3), call(SPECIAL), call(i(3)))
    table |= same("isnan isinf isfinite signbit isposinf isneginf", call(SPECIAL), call(i(3)), call(b(3)))
    pair = (call(f(3, 4), f(3, 4)), call(f(3, 1), f(4)), call(i(3, 4), f(4)), call(f(3), torch.tensor(2.0)))
    ints = (call(i(3, 4) - 1, i(3, 4) + 1), call(i(3) - 2, torch.tensor(2)))
    table |= same("mul.Tensor add.Tensor sub.Tensor rsub.Tensor", *pair, *ints)
    table["mul.Tensor"].append(call(b(4), b(4)))
    table["add.Tensor"] += [call(b(4), b(4)), call(f(3), f(3), alpha=2.5), call(i(3), i(3), alpha=2)]
    table |= same("mul.Scalar add.Scalar sub.Scalar rsub.Scalar", call(f(3, 4), 2.5), call(i(3), 2), call(i(3), 0.5))
    table |= same("div.Tensor true_divide.Tensor", *pair, *ints) | same("div.Scalar", call(f(3), 3.0), call(i(3), 2))
    modes = [call(f(3, 4) * 5, u(4), rounding_mode=m) for m in ("floor", "trunc", None)]
    modes += [call(i(6, high=9) - 4, torch.tensor(3), rounding_mode=m) for m in ("floor", "trunc")]
    table["div.Tensor_mode"] = modes
    table["div.Scalar_mode"] = [call(f(5) * 5, 0.7, rounding_mode="floor"), call(i(5) - 2, 2, rounding_mode="trunc")]
    table |= same("remainder.Tensor fmod.Tensor", call(f(9) * 5, u(9)), call(i(9) - 4, i(9) + 1))
    table |= same("remainder.Scalar fmod.Scalar", call(f(9) * 5, 0.7), call(i(9) - 4, -2))
    table |= same("remainder.Scalar_Tensor", call(5.0, u(9)), call(7, i(4) + 1))
    table |= same("floor_divide", call(f(9) * 5, u(9)), call(i(9) - 4, i(9) + 1))
    table |= same("floor_divide.Scalar", call(f(9) * 5, 0.7), call(i(9) - 4, 2))
    bits = "bitwise_and bitwise_or bitwise_xor"
    table |= same(" ".join(f"{n}.Tensor" for n in bits.split()), call(i(9, high=9), i(9)), call(b(5), b(5)))
    table |= same(" ".join(f"{n}.Scalar" for n in bits.split()), call(i(9, high=9), 5))
    table |= same(" ".join(f"{n}.Scalar_Tensor" for n in bits.split()), call(5, i(9, high=9)))
    table |= same("__and__.Tensor __or__.Tensor __xor__.Tensor", call(b(5), b(5)))
    table |= same("__and__.Scalar __or__.Scalar __xor__.Scalar", call(i(5), 3))
    table |= same("__lshift__.Tensor __rshift__.Tensor", call(i(5, high=99), torch.tensor([0, 3, 63, 64, -1])))
    table |= same("__lshift__.Scalar __rshift__.Scalar", call(i(5, high=99), 2), call(-i(5), 64))
    table |= same("bitwise_left_shift.Tensor bitwise_right_shift.Tensor", call(i(5, high=99), i(5)))
    table |= same("bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar", call(i(5, high=99), 2))
    table |= same("bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor", call(77, i(5)))
    compare = "eq ne lt le gt ge"
    tests = (call(f(3, 4), f(4)), call(i(5), i(5)), call(SPECIAL, SPECIAL.flip(0)), call(i(5), f(5)), call(b(5), b(5)))
    table |= same(" ".join(f"{n}.Tensor" for n in compare.split()), *tests)
    table |= same(" ".join(f"{n}.Scalar" for n in compare.split()), call(i(5), 1), call(i(5), 0.5), call(f(5), 0))
    table |= same("maximum minimum fmax fmin", call(f(3, 4), f(4)), call(SPECIAL, SPECIAL.flip(0)), call(i(5), i(5)))
    table |= same("hypot nextafter atan2 copysign.Tensor", call(f(3, 4), f(4)))
    table |= same("copysign.Scalar", call(f(3), -1.0)) | same("atan2", call(f(3, 4), f(4)), call(i(3), i(3) + 1))
    table |= same("pow.Tensor_Tensor", call(u(5), f(5)), call(i(5), i(5))) | same("pow.Scalar", call(2.0, f(5)))
    powers = (2, 3, 0.5, -1, -0.5, 0, 1, 2.5)
    table["pow.Tensor_Scalar"] = [call(u(5), e) for e in powers] + [call(i(5), 3)]
    logic = (call(f(3, 4).round(), i(4)), call(b(3), b(3)))
    table |= same("logical_and logical_or logical_xor", *logic) | same("logical_not", call(i(5)), call(b(5)))
    table |= same("bitwise_not", call(i(5)), call(b(5)))
    table |= same(
        "where.self", call(b(3, 1), f(4), f(3, 4)), call(b(3), i(3), f(3)), call(b(3), torch.tensor(1.0), f(3))
    )
    table |= same("where.ScalarOther", call(b(3), f(3), 2.0)) | same("where.ScalarSelf", call(b(3), 2.0, f(3)))
    table |= same("where.Scalar", call(b(3), 2.0, 3.0))
    table |= same("masked_fill.Scalar", call(f(3, 4), b(4), -math.inf), call(i(3), b(3), 2))
    table |= same("masked_fill.Tensor", call(f(3, 4), b(4), torch.tensor(2.0)))
    table |= same("clamp", call(f(5), -0.5, 0.5), call(f(5), None, 0.5), call(i(5), 1, None), call(SPECIAL, 0.0, 1.0))
    table |= same("clamp.Tensor", call(f(5), f(5), f(5) + 2), call(f(3, 4), None, f(4)))
    table |= same("clamp_min clamp_max", call(f(5), 0.5), call(i(5), 1))
    table |= same("clamp_min.Tensor clamp_max.Tensor", call(f(3, 4), f(4)))
    table |= same("nan_to_num", call(SPECIAL), call(SPECIAL, 1.0, 2.0, -2.0), call(i(3)))
    table |= same("frac deg2rad rad2deg", call(f(5) * 3))
    table |= same("sinc", call(f(5)), call(torch.zeros(2))) | same("logit", call(u(5)), call(u(5), 0.3))
    table |= same("addcmul addcdiv", call(f(3, 4), f(4), u(3, 4)), call(f(5), f(5), u(5), value=0.5))
    table |= same("lerp.Scalar", call(f(5), f(5), 0.3), call(f(5), f(5), 0.7))
    table |= same("lerp.Tensor", call(f(3, 4), f(4), f(3, 4)))
    table |= same("xlogy.Tensor", call(torch.tensor([0.0, 0.0, 1.0, 2.0]), torch.tensor([0.0, math.nan, 2.0, 0.5])))
    table |= same("xlogy.Scalar_Self", call(2.0, u(5))) | same("xlogy.Scalar_Other", call(f(5), 2.0))
    table |= same("round.decimals", call(f(5) * 9, decimals=1), call(f(5) * 99, decimals=-1))
    table |= same("special_xlog1py", call(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([-1.0, math.nan, 2.0])))
    table |= same("special_xlog1py.self_scalar", call(2.0, u(5)))
    table |= same("special_xlog1py.other_scalar", call(f(5), 2.0)) | same("special_entr", call(SPECIAL), call(u(5)))
    table |= same("logaddexp", call(f(5), f(5)), call(SPECIAL, SPECIAL)) | same("heaviside", call(f(5).round(), f(5)))
    table |= same("isclose", call(SPECIAL, SPECIAL + 1e-7), call(SPECIAL, SPECIAL, 1e-5, 1e-8, True))
    return table


def activations() -> Table:
    x, g = f(3, 40) * 3, f(3, 40)
    simple = "relu gelu silu mish hardsigmoid hardswish hardshrink softshrink softplus elu hardtanh leaky_relu glu"
    table = same(simple, call(x)) | same("log_sigmoid_forward", call(x))
    table["relu.default"] += [call(SPECIAL), call(i(3) - 1)]
    table["gelu.default"].append(call(x, approximate="tanh"))
    table["elu.default"].append(call(x, 1.5, 0.7, 0.9))
    table["softplus.default"].append(call(x, 2.0, 3.0))
    table["leaky_relu.default"].append(call(x, -0.2))
    table |= same("threshold", call(x, 0.5, 2.0)) | same("threshold_backward", call(g, x, 0.0))
    table |= same("leaky_relu_backward", call(g, x, 0.1, False))
    table |= same("_prelu_kernel", call(x, f(1, 40))) | same("_prelu_kernel_backward", call(g, x, f(1, 40)))
    table |= same(
        "elu_backward", call(g, 1.5, 0.7, 0.9, False, x), call(g, 1.5, 0.7, 0.9, True, aten.elu(x, 1.5, 0.7, 0.9))
    )
    table |= same("gelu_backward", call(g, x), call(g, x, approximate="tanh"))
    table |= same("silu_backward mish_backward hardsigmoid_backward hardswish_backward", call(g, x))
    table |= same("hardshrink_backward softshrink_backward", call(g, x, 0.5))
    table |= same("sigmoid_backward", call(g, x.sigmoid())) | same("tanh_backward", call(g, x.tanh()))
    table |= same("logit_backward", call(f(9), u(9)), call(f(9), u(9), 0.3))
    table |= same("log_sigmoid_backward", call(g, x, torch.exp(-x.abs())))
    table |= same("softplus_backward", call(g, x, 2.0, 3.0)) | same("hardtanh_backward", call(g, x, -1.0, 1.0))
    table |= same("glu_jvp", call(x[:, :20], x, g, -1), call(x[:1], x[:2], g[:2], 0))
    table |= same("glu_backward", call(f(3, 20), x, -1), call(f(2, 5), f(4, 5), 0))
    return table


def reductions() -> Table:
    x = f(3, 4, 5)
    table = same("sum mean", call(x), call(f(6))) | same("prod", call(u(3, 4)), call(i(4)))
    table["sum.default"] += [call(i(3, 4)), call(b(9))]
    dims = (call(x, [1]), call(x, [0, -1], True), call(x, None), call(f(4, 3).t(), [0]))
    table |= same("sum.dim_IntList mean.dim", *dims)
    table["sum.dim_IntList"] += [call(x, [0], dtype=torch.float64), call(b(3, 4), [1])]
    table |= same("prod.dim_int", call(u(3, 4), 1), call(u(3, 4), 0, True))
    table |= same(
        "amax amin", call(x), call(x, [1]), call(x, [0, 2], True), call(SPECIAL), call(i(3, 4), [1]), call(b(5))
    )
    table |= same("max min", call(x), call(SPECIAL), call(i(5))) | same(
        "aminmax", call(x), call(x, dim=1, keepdim=True)
    )
    ties = torch.tensor([[1.0, 3.0, 3.0], [2.0, math.nan, math.nan]])
    table |= same("argmax argmin", call(x), call(x, 1), call(x, -1, True), call(ties, 1), call(i(3, 9), 1))
    table |= same("max.dim min.dim", call(x, 1), call(ties, 1, True))
    table |= same("any all", call(b(3, 4)), call(i(5)), call(SPECIAL), call(torch.tensor([1, 2], dtype=torch.uint8)))
    table |= same("any.dim all.dim", call(b(3, 4), 1), call(f(3, 4), 0, True))
    table |= same("any.dims all.dims", call(b(3, 4), [0, 1]), call(b(3, 4), [1], True), call(b(3), []))
    table |= same("count_nonzero", call(i(3, 4))) | same("count_nonzero.dim_IntList", call(i(3, 4), [1]))
    moments = (call(x, [1], correction=0), call(x, None), call(x, [0, 2], correction=1, keepdim=True))
    table |= same("var.correction std.correction var_mean.correction std_mean.correction", *moments)
    table |= same("var std", call(x), call(x, False)) | same("var.dim std.dim", call(x, [1]), call(x, [0], False, True))
    table |= same("logsumexp", call(x, [1]), call(SPECIAL[1:], [0]), call(x, [0, 1], True))
    orders = (2, 1, 0, math.inf, -math.inf, 3)
    table["linalg_vector_norm.default"] = [call(x, o, [1], True) for o in orders] + [call(x)]
    table |= same("norm.Scalar", call(x, 2)) | same("norm.ScalarOpt_dim", call(x, 2, [1], True))
    table |= same("norm.ScalarOpt_dtype", call(x, 2, dtype=torch.float32))
    table |= same("norm.ScalarOpt_dim_dtype", call(x, 2, [1], True, dtype=torch.float32))
    table |= same("cumsum", call(x, 1), call(i(5), 0), call(b(5), 0)) | same("cumprod", call(u(3, 4), -1))
    table |= same("nansum", call(SPECIAL), call(SPECIAL[None], [1], True)) | same("trace", call(f(3, 4)), call(i(4, 2)))
    table |= same("sort", call(f(3, 9), 1), call(f(9), 0, True)) | same("sort.stable", call(i(9), stable=True))
    table |= same("topk", call(f(3, 9), 2), call(f(9, 3), 2, 0, False))
    return table


def normalization() -> Table:
    x, w, c = f(2, 3, 8), f(8), f(8)
    out, mean, rstd = aten.native_layer_norm(x, [8], w, c, 1e-5)
    g = f(2, 3, 8)
    every = [True, True, True]
    table = same("native_layer_norm", call(x, [8], w, c, 1e-5), call(x, [3, 8], None, None, 1e-5))
    table |= same(
        "native_layer_norm_backward",
        call(g, x, [8], mean, rstd, w, c, every),
        call(g, x, [8], mean, rstd, None, None, [True, False, False]),
        call(g, x, [8], mean, rstd, w, c, [False, True, False]),
    )
    rms = aten._fused_rms_norm(x, [8], w, 1e-6)[1]
    table |= same("_fused_rms_norm", call(x, [8], w, 1e-6), call(x, [3, 8], None, None))
    table |= same(
        "_fused_rms_norm_backward", call(g, x, [8], rms, w, [True, True]), call(g, x, [8], rms, None, [True, False])
    )
    groups = f(2, 6, 4)
    _, gmean, grstd = aten.native_group_norm(groups, f(6), f(6), 2, 6, 4, 3, 1e-5)
    table |= same(
        "native_group_norm", call(groups, f(6), f(6), 2, 6, 4, 3, 1e-5), call(groups, None, None, 2, 6, 4, 2, 1e-5)
    )
    table |= same("native_group_norm_backward", call(f(2, 6, 4), groups, gmean, grstd, f(6), 2, 6, 4, 3, every))
    images, running = f(4, 3, 5, 6), (f(3), u(3))
    affine = (f(3), f(3))
    table |= same(
        "native_batch_norm",
        call(images, *affine, None, None, True, 0.1, 1e-5),
        call(images, *affine, *running, False, 0.1, 1e-5),
    )
    functional = [call(images, *a, *running, t, 0.1, 1e-5) for a in (affine, (None, None)) for t in (True, False)]
    table["_native_batch_norm_legit_functional.default"] = functional
    table |= same("_native_batch_norm_legit", call(images, *affine, *running, False, 0.1, 1e-5))
    table |= same("_native_batch_norm_legit.no_stats", call(images, *affine, True, 0.1, 1e-5))
    table |= same("_native_batch_norm_legit_no_training", call(images, *affine, *running, 0.1, 1e-5))
    _, bmean, brstd = aten.native_batch_norm(images, *affine, None, None, True, 0.1, 1e-5)
    gi = f(4, 3, 5, 6)
    table |= same(
        "native_batch_norm_backward",
        call(gi, images, affine[0], None, None, bmean, brstd, True, 1e-5, every),
        call(gi, images, affine[0], *running, bmean, brstd, True, 1e-5, [False, True, True]),
        call(gi, images, affine[0], *running, torch.empty(0), torch.empty(0), False, 1e-5, every),
        call(gi, images, None, *running, bmean, brstd, True, 1e-5, [True, False, False]),
    )
    logits = f(3, 4, 5) * 5
    table |= same("_softmax _log_softmax", call(logits, -1, False), call(logits, 1, False), call(f(), 0, False))
    hidden = logits.clone()
    hidden[0, 0] = -math.inf
    table |= same("_safe_softmax", call(hidden, -1), call(logits, 1))
    y = logits.softmax(-1)
    table |= same("_softmax_backward_data", call(f(3, 4, 5), y, -1, torch.float32))
    table |= same("_log_softmax_backward_data", call(f(3, 4, 5), y.log(), 2, torch.float32))
    return table


def loss() -> Table:
    logp, target, weight = f(6, 5).log_softmax(-1), i(6, high=5), u(5)
    target[2] = -100
    one = (f(5).log_softmax(-1), torch.tensor(3))
    forward = [call(logp, target, w, r, -100) for w in (None, weight) for r in (0, 1, 2)]
    forward += [call(logp, i(6, high=5), None, 1, 2), call(*one, None, 1, -100)]
    table = {"nll_loss_forward.default": forward}
    total = torch.tensor(5.0)
    back = [call(f(6) if r == 0 else f(), logp, target, w, r, -100, total) for w in (None, weight) for r in (0, 1, 2)]
    back += [call(f(), logp, i(6, high=5), None, 1, 2, total), call(f(), *one, None, 1, -100, torch.tensor(1.0))]
    table["nll_loss_backward.default"] = back
    images, places = f(2, 5, 3, 4).log_softmax(1), i(2, 3, 4, high=5)
    places[0, 0, 0] = 1
    table |= same("nll_loss2d_forward", *(call(images, places, w, r, 1) for w in (None, weight) for r in (0, 1, 2)))
    table |= same(
        "nll_loss2d_backward",
        call(f(), images, places, weight, 1, 1, total),
        call(f(2, 3, 4), images, places, None, 0, 1, total),
    )
    x, y = f(4, 5), f(4, 5)
    table |= same("mse_loss smooth_l1_loss huber_loss soft_margin_loss", *(call(x, y, r) for r in (0, 1, 2)))
    table["smooth_l1_loss.default"].append(call(x, y, 1, 0.0))

    def grad(r: int) -> torch.Tensor:
        return f(4, 5) if r == 0 else f()

    table |= same("mse_loss_backward soft_margin_loss_backward", *(call(grad(r), x, y, r) for r in (0, 1, 2)))
    table |= same("smooth_l1_loss_backward huber_loss_backward", *(call(grad(r), x, y, r, 0.7) for r in (0, 1, 2)))
    p, t, w = u(4, 5), u(4, 5), u(5)
    table |= same("binary_cross_entropy", *(call(p, t, v, r) for r in (0, 1, 2) for v in (None, w)))
    table |= same("binary_cross_entropy_backward", *(call(grad(r), p, t, w, r) for r in (0, 1, 2)))
    logits = (call(x, t), call(x, t, w, u(5), 2), call(x, t, None, u(5), 0))
    return table | same("binary_cross_entropy_with_logits", *logits)


def views() -> Table:
    x = f(2, 3, 4)
    table = same("view reshape view_copy _unsafe_view", call(x, [6, 4]), call(x, [2, -1]), call(x, [24]))
    table |= same("_reshape_alias", call(x, [6, 4], [4, 1])) | same("_reshape_copy", call(x, [6, 4]))
    ones = f(2, 1, 4, 1)
    table |= same("squeeze squeeze_copy", call(ones)) | same(
        "squeeze.dim squeeze_copy.dim", call(ones, 1), call(ones, 0)
    )
    table |= same("squeeze.dims squeeze_copy.dims", call(ones, [1, 3]))
    table |= same("unsqueeze unsqueeze_copy", call(x, 1), call(x, -1))
    table |= same("flatten.using_ints", call(x, 1)) | same("unflatten.int", call(x, 2, [2, 2]))
    table |= same("expand expand_copy", call(f(3, 1), [2, 3, 4]), call(f(3, 1), [-1, 4]))
    table |= same("permute permute_copy", call(x, [2, 0, -2])) | same("t t_copy", call(f(3, 4)), call(f(3)))
    table |= same("transpose.int transpose_copy.int", call(x, 0, -1))
    cuts = (call(x, 1, 1, 3), call(x, 2, -3, 9999, 2), call(x, 0, 5, 9), call(x, 1), call(x, 2, None, -1))
    table |= same("slice.Tensor slice_copy.Tensor", *cuts) | same("narrow narrow_copy", call(x, 1, 1, 2))
    table |= same("select.int select_copy.int", call(x, 1, -1), call(x, 0, 1)) | same(
        "unbind.int unbind_copy.int", call(x, 1)
    )
    table |= same("split.Tensor split_copy.Tensor unsafe_split.Tensor", call(f(7, 2), 3), call(x, 2, -1))
    sized = "split_with_sizes split_with_sizes_copy unsafe_split_with_sizes"
    table |= same(sized, call(f(7, 2), [3, 4]), call(x, [1, 0, 3], 2)) | same("chunk unsafe_chunk", call(f(7, 2), 3))
    diagonals = (call(f(3, 5)), call(f(3, 5), 2), call(f(2, 5, 3), -1, 1, 2), call(f(3, 2), 5))
    table |= same("diagonal diagonal_copy", *diagonals)
    table |= same("cat", call([f(2, 3), f(1, 3)]), call([f(2, 3), i(2, 1)], -1), call([f(0), f(2, 3)]))
    table |= same("stack", call([f(3), f(3)], -1), call([f(3), i(3)]))
    table |= same("repeat", call(f(2, 3), [2, 1, 3]), call(f(2), [0])) | same("flip", call(x, [0, -1]))
    table |= same("roll", call(x, [1, -2], [0, 2]), call(x, [5]))
    table |= same(
        "constant_pad_nd", call(x, [1, 2, 0, 1], 3.0), call(x, [-1, 2]), call(x, [-2, -2]), call(i(3), [1, 1])
    )
    table |= same("slice_backward", call(f(2, 2, 4), [2, 3, 4], 1, 1, 3, 1), call(f(2, 3, 2), [2, 3, 4], 2, 0, 4, 2))
    table |= same("select_backward", call(f(2, 4), [2, 3, 4], 1, -1))
    table |= same("diagonal_backward", call(f(3), [3, 5], 1, 0, 1), call(f(2, 2), [2, 3, 3], -1, 1, 2))
    table |= same("diagonal_scatter", call(f(3, 5), f(3), 2), call(f(2, 3, 3), f(2, 2), -1, 1, 2))
    table |= same("slice_scatter", call(x, f(2, 2, 4), 1, 1, 3), call(x, f(2, 3, 2), 2, 0, 4, 2), call(x, f(2, 3, 4)))
    table |= same("select_scatter", call(x, f(2, 4), 1, -1))
    table |= same("rot90", *(call(x, k, [0, 2]) for k in range(-1, 4)))
    return table | same("unfold", call(f(7, 2), 0, 3, 2), call(x, 2, 2, 1))


def indexing() -> Table:
    x = f(3, 4, 5)
    table = same(
        "index.Tensor _unsafe_index.Tensor",
        call(x, [i(6)]),
        call(x, [None, i(2, 3), -1 - i(3)]),
        call(x, [i(2), None, i(2)]),
        call(x, [i(2, 1), i(3)]),
        call(x, [i(), None]),
    )
    table |= same(
        "index_put",
        call(x, [torch.tensor([2, 0])], f(2, 4, 5)),
        call(x, [i(6)], f(4, 5), True),
        call(x, [i(2), None, i(2)], f(2, 4), True),
        call(x, [None, torch.tensor([1, -1])], f(1)),
        call(x, [b(3, 4)], torch.tensor(2.0)),
        call(i(5), [i(3)], torch.tensor(1), True),
    )
    table |= same("_unsafe_index_put", call(x, [i(6)], f(6, 4, 5), True))
    table |= same("gather", call(x, 1, i(3, 2, 5)), call(f(), 0, torch.tensor(0)), call(x, -1, i(2, 2, 2)))
    table |= same("index_select", call(x, 1, i(7)), call(x, -1, i(2).int()), call(f(), 0, torch.tensor([0])))
    table |= same("take", call(x, i(2, 3, high=60)))
    order = torch.stack([torch.randperm(4) for _ in range(3)])
    table |= same("scatter.src", call(f(3, 4), 1, order, f(3, 4)), call(f(3, 4), 1, order[:2, :3], f(3, 4)))
    table |= same("scatter.value", call(f(3, 4), 1, order[:, :2], 2.0))
    table |= same("scatter_add", call(f(3, 4), 0, i(5, 4), f(5, 4)), call(f(), 0, torch.tensor([0]), f(1)))
    table |= same("index_add", call(f(3, 4), 0, i(6), f(6, 4)), call(f(3, 4), -1, i(2), f(3, 2), alpha=0.5))
    table |= same("index_copy", call(f(3, 4), 0, torch.tensor([2, 0]), f(2, 4)))
    table |= same("index_fill.int_Scalar", call(f(3, 4), 1, i(2), 2.0))
    table |= same("index_fill.int_Tensor", call(f(3, 4), 1, i(2), torch.tensor(2.0)))
    table |= same("put", call(f(3, 4), torch.tensor([5, 1]), f(2)), call(f(3, 4), i(5), f(5), True))
    mask = b(3, 4)
    return table | same("masked_scatter", call(f(3, 4), mask, f(12)), call(f(3, 4), b(4), f(3, 4)))


def embedding() -> Table:
    table = same("embedding", call(f(7, 4), i(2, 3, high=7)), call(f(7, 4), torch.tensor(2)))
    g, places = f(2, 3, 4), i(2, 3, high=7)
    calls = (call(g, places, 7, -1, False), call(g, places, 7, int(places[0, 0]), False), call(g, places, 7, -1, True))
    return table | same("embedding_dense_backward", *calls)


def creation() -> Table:
    x = f(2, 3)
    table = same("zeros ones empty.memory_format rand randn", call([2, 3]), call([2], dtype=torch.float64))
    table |= same("zeros_like ones_like empty_like rand_like randn_like", call(x), call(x, dtype=torch.float64))
    table |= same("new_zeros new_ones new_empty", call(x, [4])) | same("empty_strided", call([2, 3], [1, 2]))
    table |= same("new_empty_strided", call(x, [2, 3], [1, 2])) | same("empty_permuted", call([2, 3], [1, 0]))
    table |= same("_efficientzerotensor", call([2, 3])) | same("full", call([2], 1.5), call([2], True))
    table |= same("full_like", call(x, 2)) | same("new_full", call(x, [4], 2.5))
    table |= same("fill.Scalar", call(x, 2)) | same("fill.Tensor", call(x, torch.tensor(2)))
    table |= same("arange", call(5), call(2.5)) | same("arange.start", call(2, 9), call(0.5, 3.0))
    table |= same("arange.start_step", call(2, 9, 2), call(9, 1, -3), call(0, 1, 0.1))
    table |= same("linspace logspace", call(0.5, 2.0, 7), call(2.0, -1.0, 4), call(1.0, 2.0, 1))
    table |= same("eye", call(3)) | same("eye.m", call(3, 4))
    table |= same("triu tril", call(f(3, 4)), call(f(2, 4, 3), 1), call(i(3, 3), -1), call(b(3, 3)))
    return table | same("diag_embed", call(f(2, 3)), call(f(3), 1), call(f(2, 3), -2, 0, 2))


def randoms() -> Table:
    x = f(20, 30)
    table = same("native_dropout", call(x, 0.3, True), call(x, 0.3, False), call(x, 1.0, True), call(x, 0.0, True))
    table |= same("native_dropout_backward", call(x, b(20, 30), 1.25))
    table |= same("bernoulli.p", call(x, 0.3)) | same("bernoulli", call(u(20, 30)))
    table |= same("uniform normal_functional exponential", call(x))
    table |= same("randint", call(9, [20])) | same("randint_like", call(x, 9))
    return table | same("randint.low", call(3, 9, [20])) | same("randint_like.low_dtype", call(x, 3, 9))


def products() -> Table:
    table = same("mm", call(f(3, 4), f(4, 5)), call(f(4, 3).t(), f(5, 4).t()), call(i(2, 3), i(3, 2)))
    table |= same("bmm", call(f(2, 3, 4), f(2, 4, 5))) | same("dot vdot", call(f(5), f(5)))
    table |= same("addmm", call(f(5), f(3, 4), f(4, 5)), call(f(3, 5), f(3, 4), f(4, 5), beta=0.5, alpha=2.0))
    table["addmm.default"].append(call(torch.full((3, 5), math.nan), f(3, 4), f(4, 5), beta=0))
    table |= same("baddbmm", call(f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)), call(f(1), f(2, 3, 4), f(2, 4, 5), alpha=0.3))
    table |= same("addbmm", call(f(3, 5), f(2, 3, 4), f(2, 4, 5), beta=0.5))
    table |= same("mv", call(f(3, 4), f(4))) | same("addmv", call(f(3), f(3, 4), f(4), beta=0.5))
    table |= same("addr", call(f(3, 4), f(3), f(4), alpha=0.5)) | same("linear", call(f(2, 3, 4), f(5, 4), f(5)))
    one, two = ([1], [1], [1], False, [0], 1), ([2, 1], [1], [1, 2], False, [0, 0], 2)
    table |= same(
        "convolution",
        call(f(2, 3, 9), f(4, 3, 3), f(4), *one),
        call(f(2, 4, 8, 9), f(6, 2, 3, 3), None, *two),
        call(f(2, 4, 5, 5), f(4, 3, 2, 2), f(3), [2, 2], [0, 0], [1, 1], True, [1, 1], 1),
        call(f(1, 2, 4, 5, 6), f(3, 2, 2, 2, 2), f(3), [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1),
    )
    out = aten.convolution(f(2, 4, 8, 9), f(6, 2, 3, 3), None, *two)
    x, w = f(2, 4, 8, 9), f(6, 2, 3, 3)
    masks = ([True, True, True], [False, True, True], [True, False, False], [False, False, True])
    table["convolution_backward.default"] = [call(torch.randn_like(out), x, w, [6], *two, mask) for mask in masks]
    q, k, v = f(2, 3, 6, 8), f(2, 3, 7, 8), f(2, 3, 7, 8)
    op = aten._scaled_dot_product_flash_attention_for_cpu
    bias = f(6, 7)
    out, sums = op(q, k, v, 0.0, False, attn_mask=bias, scale=0.3)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    table |= same(name, call(q, k, v), call(q, k, v, 0.0, True), call(q, k, v, attn_mask=bias, scale=0.3))
    back = call(f(2, 3, 6, 8), q, k, v, out, sums, 0.0, False, attn_mask=bias, scale=0.3)
    return table | same(f"{name}_backward", back)


def pooling() -> Table:
    x = f(2, 3, 8, 9)
    windows = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    out, places = aten.max_pool2d_with_indices(x, *windows)
    table = same("max_pool2d_with_indices", call(x, *windows), call(x, [2]), call(f(3, 7, 7), 3, 2, 1, 2, True))
    table |= same("max_pool2d_with_indices_backward", call(torch.randn_like(out), x, *windows, places))
    averages = (call(x, [2, 3]), call(x, [3, 3], [2, 2], [1, 1], True, False), call(x, 3, 2, 1, False, True, 5))
    table |= same("avg_pool2d", *averages)
    table |= same(
        "avg_pool2d_backward",
        call(f(2, 3, 4, 3), x, [2, 3], [], [0], False, True, None),
        call(f(2, 3, 4, 5), x, [3, 3], [2, 2], [1, 1], False, False, None),
    )
    table |= same("_adaptive_avg_pool2d", call(x, [4, 3]), call(x, [1, 1]))
    table |= same("_adaptive_avg_pool2d_backward", call(f(2, 3, 4, 3), x))
    table |= same("pixel_shuffle", call(f(2, 8, 3, 4), 2)) | same("pixel_unshuffle", call(f(2, 2, 6, 4), 2))
    return table | same("channel_shuffle", call(f(2, 6, 3, 4), 3))


def resampling() -> Table:
    table: Table = {}
    for rank, linear in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
        sizes = (4, 3, 2)[:rank]
        y = f(2, 3, *sizes)
        for out in ([8, 6, 4][:rank], [3, 7, 1][:rank]):
            g, shape = f(2, 3, *out), [2, 3, *sizes]
            table.setdefault(f"upsample_nearest{rank}d.default", []).append(call(y, out))
            table.setdefault(f"upsample_nearest{rank}d_backward.default", []).append(call(g, out, shape))
            for align in (True, False):
                table.setdefault(f"upsample_{linear}.default", []).append(call(y, out, align))
                table.setdefault(f"upsample_{linear}_backward.default", []).append(call(g, out, shape, align))
        table[f"upsample_{linear}.default"].append(call(y, [n * 2 for n in sizes], False, *[2.0] * rank))
        for kind, amounts in (("replication", [1, 2, 0, 3, 1, 1]), ("reflection", [1, 1, 2, 0, 1, 0])):
            pads = amounts[: 2 * rank] if rank > 1 or kind == "replication" else [1, 3]
            out = [n + pads[2 * (rank - 1 - d)] + pads[2 * (rank - 1 - d) + 1] for d, n in enumerate(sizes)]
            table |= same(f"{kind}_pad{rank}d", call(y, pads))
            table |= same(f"{kind}_pad{rank}d_backward", call(f(2, 3, *out), y, pads))
    return table


def lists() -> Table:
    """The operators on lists of tensors."""
    xs, ys, one = [f(3), f(2, 2)], [u(3), u(2, 2)], torch.tensor(2.0)
    inside = "acos asin atan lgamma log log10 log1p log2 reciprocal rsqrt sqrt"
    wide = "abs ceil cos cosh erf erfc exp expm1 floor frac neg round sigmoid sign sin sinh tan tanh trunc zero"
    table = same(" ".join(f"_foreach_{n}" for n in inside.split()), call(ys))
    table |= same(" ".join(f"_foreach_{n}" for n in wide.split()), call(xs))
    for name in "add sub mul div clamp_max clamp_min maximum minimum".split():
        table |= same(f"_foreach_{name}.List", call(xs, ys)) | same(f"_foreach_{name}.Scalar", call(xs, 0.5))
        table |= same(f"_foreach_{name}.ScalarList", call(xs, [0.5, 2.0]))
    table["_foreach_add.List"].append(call(xs, ys, alpha=0.5))
    table["_foreach_sub.List"].append(call(xs, ys, alpha=0.5))
    table |= same("_foreach_add.Tensor", call(xs, one), call(xs, one, alpha=0.5))
    table |= same("_foreach_mul.Tensor _foreach_div.Tensor", call(xs, one))
    table |= same("_foreach_pow.List", call(ys, xs)) | same("_foreach_pow.Scalar", call(ys, 2.5))
    table |= same("_foreach_pow.ScalarList", call(ys, [2.0, 0.5])) | same("_foreach_pow.ScalarAndTensor", call(0.9, ys))
    table |= same("_foreach_addcmul.Scalar _foreach_addcdiv.Scalar", call(xs, ys, ys, 0.5))
    table |= same("_foreach_addcmul.ScalarList _foreach_addcdiv.ScalarList", call(xs, ys, ys, [0.5, 2.0]))
    table |= same("_foreach_lerp.Scalar", call(xs, ys, 0.3)) | same("_foreach_lerp.List", call(xs, ys, ys))
    table["_amp_update_scale.default"] = [
        call(torch.tensor(scale), torch.tensor(row, dtype=torch.int32), torch.tensor(found), 2.0, 0.5, 3)
        for scale in (8.0, 3e38)
        for row in (1, 2, 3)
        for found in (0.0, 1.0)
    ]
    return table | same("_foreach_copy", call(xs, ys)) | same("_foreach_norm.Scalar", call(xs), call(xs, 1))


def casts() -> Table:
    x = f(3, 4)
    dtypes = (torch.bfloat16, torch.float64, torch.int32, torch.bool)
    table = {"_to_copy.default": [call(x, dtype=d) for d in dtypes] + [call(i(3), dtype=torch.float32), call(x)]}
    table |= same("clone alias detach lift_fresh lift_fresh_copy contiguous positive lift", call(x), call(x.t()))
    table |= same("conj resolve_conj resolve_neg", call(x)) | same("copy", call(x, f(4)), call(x, i(3, 4)))
    table |= same("_autocast_to_reduced_precision", call(x, False, True, torch.float16, torch.bfloat16))
    table |= same("_autocast_to_full_precision", call(x.bfloat16(), False, True))
    return table | same("scalar_tensor", call(2.5), call(2, dtype=torch.int64))


def special() -> Table:
    """The forms of special functions with a number for a tensor, and what is made of them."""
    polynomials = [
        f"special_{name}"
        for name in "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
        "hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
        "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
        "shifted_chebyshev_polynomial_w".split()
    ]
    degrees = i(3, 4, high=5).float()
    table = same(" ".join(f"{name}.x_scalar" for name in polynomials), call(0.3, degrees))
    table |= same(" ".join(f"{name}.n_scalar" for name in polynomials), call(u(3, 4), 3), call(u(2), 1.0))
    table |= same("special_zeta.self_scalar", call(2.5, u(3))) | same("special_zeta.other_scalar", call(u(3) + 1, 2.5))
    table |= same("lcm", call(i(3, 4, high=9), i(4, high=9) + 1)) | same(
        "special_polygamma", call(0, u(3)), call(2, u(3))
    )
    return table | same("mvlgamma", call(u(3, 4) + 3, 1), call(u(3, 4) + 3, 4), call(i(3) + 4, 2))


def vectors() -> Table:
    """Cross products, distances, ranges, joins, windows, masks."""
    x, y, end = f(3, 4), f(3, 4), torch.tensor(2.5)
    table = same("angle", call(x), call(SPECIAL), call(i(3) - 1)) | same(
        "_conj_physical conj_physical alias_copy", call(x)
    )
    table |= same("celu", call(x), call(x, 0.5)) | same("logaddexp2", call(x, y), call(SPECIAL, SPECIAL))
    table |= same("ldexp.Tensor", call(x, i(4)), call(i(3), i(3))) | same(
        "linalg_cross", call(x, y, dim=0), call(f(2, 3), f(1, 3))
    )
    table |= same("dist", call(x, y), call(x, f(4), 1), call(x, y, math.inf), call(x, y, 0))
    table |= same("renorm", call(x, 2, 0, 1.0), call(x, 1, 1, 0.5))
    table |= same("_trilinear", call(f(2, 3), f(4, 3, 5), f(2, 5), [1, 3], [0], [1, 2], [2, 3]))
    for name in ("linspace", "logspace"):
        table |= {f"{name}.Tensor_Tensor": [call(torch.tensor(0.5), end, n) for n in (0, 1, 2, 7)]}
        table |= {f"{name}.Tensor_Scalar": [call(end, -1, 4)], f"{name}.Scalar_Tensor": [call(1, end, 5)]}
    table |= same("block_diag", call([x, f(2), f()]), call([i(2, 2), x]))
    table |= same("_chunk_cat", call([f(5, 2), f(4, 3)], 0, 2), call([f(2, 3), f(2, 5, 2)], 1, 4))
    table |= same(
        "unfold unfold_copy", call(f(3, 24), 1, 3, 2), call(f(3, 40), 1, 18, 4), call(f(), 0, 1, 1), call(x, 0, 3, 1)
    )
    table |= same(
        "unfold_backward",
        call(f(3, 4, 3), [3, 9], 1, 3, 2),
        call(f(2, 4, 18), [19, 4], 0, 18, 1),
        call(f(1), [], 0, 1, 1),
    )
    table["unfold.default"] = table["unfold_copy.default"][:2]
    mask, places = b(2, 4), i(2, 4) * 5 - 4
    table |= same("_unsafe_masked_index", call(x, places.abs() < 3, [places, i(4, high=4)], 7.0))
    table |= same(
        "_unsafe_masked_index_put_accumulate", call(x, (places >= 0) & (places < 3), [places, i(4, high=4)], f(2, 4))
    )
    table |= same("masked_scatter_backward", call(f(2, 4), mask, [8]), call(f(2, 4), mask, [3, 2]))
    return table


def distributions() -> Table:
    table = same("cauchy log_normal", call(f(3, 4)), call(f(3), 1.0, 0.5)) | same(
        "geometric", call(f(3), 0.3), call(i(3), 0.9)
    )
    table |= {"normal.Tensor_Tensor": [call(f(3), u(3))], "normal.Tensor_float": [call(f(3, 4), 2.0)]}
    table |= {"normal.float_Tensor": [call(1.0, u(3))], "normal.float_float": [call(1.0, 2.0, [3, 4])]}
    return table | same("multinomial", call(u(5), 1), call(u(2, 5), 3), call(u(2, 5), 8, True))


def exact() -> Table:
    """Nearest neighbours of the middles."""
    table: Table = {}
    for rank, space, out in ((1, (5,), [8]), (2, (5, 4), [3, 8]), (3, (5, 4, 3), [3, 8, 6])):
        name = f"_upsample_nearest_exact{rank}d"
        table |= same(name, call(f(2, 3, *space), out), call(f(2, 3, *space), out, *([1.6] * rank)))
        table |= same(f"{name}_backward", call(f(2, 3, *out), out, [2, 3, *space]))
    return table


def signals() -> Table:
    """Windows and frequencies."""
    table: Table = {}
    for name in ("hann", "hamming", "blackman", "bartlett"):
        table |= same(f"{name}_window", call(9), call(1), call(0), call(8, dtype=torch.float64))
        table |= same(f"{name}_window.periodic", call(9, False), call(8, True), call(1, True), call(2, False))
    table |= same("hamming_window.periodic_alpha", call(9, False, 0.6))
    table |= same("hamming_window.periodic_alpha_beta", call(9, True, 0.6, 0.3))
    table |= same("range", call(1, 4)) | same("range.step", call(0, 2, 0.3), call(3.0, -1.0, -0.5))
    return table | same("fft_fftfreq fft_rfftfreq", call(9, 0.5), call(8), call(1), call(6, 2.0, dtype=torch.float64))


def quantization() -> Table:
    table = same(
        "fake_quantize_per_tensor_affine_cachemask", call(f(4, 5) * 9, 0.1, 3, -12, 20), call(f(3), 0.3, 0, 0, 255)
    )
    scale, zero = u(5), i(5).int()
    table |= same("fake_quantize_per_channel_affine_cachemask", call(f(4, 5) * 9, scale, zero, 1, -12, 20))
    table |= same("fake_quantize_per_channel_affine_cachemask", call(f(4, 5, 2) * 9, scale, zero, 1, -12, 20))
    for on in (0, 1):
        case = call(f(4, 5) * 9, u(1), i(1).int(), torch.tensor([on]), -12, 20)
        table.setdefault("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default", []).append(case)
    return table


def weights() -> Table:
    calls = [(f(4, 3, 2), f(4, 1, 1), 0), (f(4, 3, 2), f(1, 1, 2), 2), (f(4, 3), f(4, 1), 0)]
    table = same("_weight_norm_interface", *(call(*c) for c in calls))
    lengths = [v.norm(dim=[d for d in range(v.dim()) if d != dim], keepdim=True) for v, _, dim in calls]
    backward = [call(f(*v.shape), v, g, n, dim) for (v, g, dim), n in zip(calls, lengths, strict=True)]
    return table | same("_weight_norm_interface_backward", *backward)


def other_names() -> Table:
    table = same("_aminmax zero", call(f(4, 5)))
    table |= same("_aminmax.dim", call(f(4, 5), 1), call(f(4, 5), 0, True))
    table |= same("_stack", call([f(3, 4), f(3, 4)], 1))
    table |= same("_logcumsumexp", call(f(4, 5), 1))
    table |= same("_is_all_true _is_any_true", call(b(4)), call(torch.ones(3, dtype=torch.bool)))
    table |= same("_add_relu.Tensor", call(f(4, 5), f(5)), call(f(4, 5), f(4, 5), alpha=2))
    table |= same("isin.Tensor_Scalar", call(i(4, 5), 1), call(f(4), 0.5, invert=True))
    table |= same("isin.Scalar_Tensor", call(1, i(4, 5)), call(7, i(4), invert=True))
    table |= same("rrelu_with_noise_functional", call(f(4, 5), u(4, 5), 0.1, 0.3, False))
    table |= same("_add_relu.Scalar", call(f(4, 5), 0.5), call(f(4, 5), 0.5, 2))
    x, w, bias, mean, var = f(4, 3, 5), f(3), f(3), f(3), u(3)
    table |= same("_batch_norm_with_update_functional", call(x, w, bias, mean, var, 0.1, 1e-5))
    table |= same("_batch_norm_no_update", call(x, w, bias, mean, var, 0.1, 1e-5))
    every = [True, True, True]
    table |= same(
        "batch_norm_backward",
        call(f(4, 3, 5), x, w, mean, var, f(3), u(3), True, 1e-5, every, torch.empty(0, dtype=torch.uint8)),
        call(f(4, 3, 5), x, w, mean, var, None, None, False, 1e-5, every, torch.empty(0, dtype=torch.uint8)),
    )
    table |= same(
        "rrelu_with_noise_backward",
        call(f(4, 5), f(4, 5), u(4, 5), 0.1, 0.3, True, False),
        call(f(4, 5), f(4, 5), u(4, 5), 0.1, 0.3, False, False),
    )
    grid = [call(f(2, 2, 3), [2, 1, 4, 5], align) for align in (True, False)]
    grid += [call(f(2, 3, 4), [2, 1, 4, 5, 1], align) for align in (True, False)]
    table |= same("affine_grid_generator", *grid)
    xs, ys, zs = ([f(3), f(2, 2)] for _ in range(3))
    table |= same("_foreach_max", call(xs))
    if hasattr(torch.ops.aten, "_foreach_clone"):  # not in PyTorch 2.11
        table |= same("_foreach_clone", call(xs))
    table |= same("_foreach_lerp.ScalarList", call(xs, ys, [0.2, 0.7]))
    pos = [u(3), u(2, 2)]
    return table | same("_foreach_addcmul.Tensor _foreach_addcdiv.Tensor", call(xs, ys, pos, torch.tensor([0.5, 2.0])))


FAMILIES = (
    elementwise,
    special,
    vectors,
    distributions,
    exact,
    activations,
    reductions,
    normalization,
    loss,
    views,
    indexing,
    embedding,
    creation,
    randoms,
    products,
    pooling,
    resampling,
    lists,
    casts,
    signals,
    quantization,
    weights,
    other_names,
)


def all_cases() -> dict[str, list[Call]]:
    """Every operator's calls."""
    torch.manual_seed(0)
    table: Table = {}
    for family in FAMILIES:
        table |= family()
    return table
