"""Traces of graphs on "cuda": what PyTorch dispatches to there, in its dtypes, with its derivatives."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from smelt.abi import kernels
from smelt.autograd.call.calling_convention import wrap
from smelt.autograd.trace.joint import Joint, trace_joint
from smelt.autograd.trace.rng import beginning, from_beginning, generator_devices
from smelt.base.options import Options
from smelt.graph.verify import verify
from smelt.loops.lower import lower
from smelt.prims.decompose import decompose, fallbacks
from smelt.prims.ops import PRIMS
from smelt.prims.table import Prim
from smelt.schedule.realize import realize
from tests.autograd.joint_examples import graph_of_call

aten = torch.ops.aten


def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda", requires_grad=grad)


def joint_of(fn: Callable[..., Any], *inputs: torch.Tensor, options: Options | None = None) -> Joint:
    joint = trace_joint(graph_of_call(fn, len(inputs)), inputs, options or Options())
    verify(joint.module, stage="joint")
    return joint


def targets(joint: Joint) -> list[object]:
    return [n.target for n in joint.module.graph.nodes if n.op == "call_function"]


def dtypes(joint: Joint, target: object) -> list[torch.dtype]:
    return [n.meta["val"].dtype for n in joint.module.graph.nodes if n.target is target]


def test_autocast_casts_both_kinds_of_devices():
    def fn(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ w, y @ y)

    with torch.autocast("cuda", torch.float16), torch.autocast("cpu", torch.bfloat16):
        joint = joint_of(fn, tensor(4, 8), tensor(8, 2), torch.zeros(3, 3, requires_grad=True))
        assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") is torch.float16
    assert joint.autocast == ("cpu", "cuda")
    found = dtypes(joint, aten.mm.default)
    assert found[:2] == [torch.float16, torch.bfloat16]
    assert not torch.is_autocast_enabled("cuda")


def test_the_derivative_is_not_cast():
    """What a backward formula computes in float32 stays so, as when it is called outside of the region."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            assert not torch.is_autocast_enabled("cuda")
            (x,) = ctx.saved_tensors
            return x @ g

    with torch.autocast("cuda"):
        joint = joint_of(lambda x: (Doubled.apply(x),), tensor(4, 4))
        assert torch.is_autocast_enabled("cuda")
    assert dtypes(joint, aten.mm.default) == [torch.float32]


def test_a_linear_layer_under_autocast():
    with torch.autocast("cuda", torch.bfloat16):
        joint = joint_of(lambda x, w, b: (F.gelu(F.linear(x, w, b)),), tensor(4, 8), tensor(16, 8), tensor(16))
    assert joint.output_metas[0].dtype is torch.bfloat16
    assert joint.output_metas[0].device == torch.device("cuda:0")


def test_derivatives_are_traced_in_the_thread_of_the_trace():
    """The engine has a thread for each device, which would know nothing of this thread's Python state."""
    threads = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            threads.append(threading.current_thread())
            return g * 2

    joint_of(lambda x: (Noted.apply(x),), tensor(4))
    assert threads == [threading.current_thread()]


def test_cpu_random_numbers_in_a_cuda_graph_use_the_cpu_generator():
    """`torch.randn(3).cuda()` and dropout in one graph."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        noise = torch.rand(4, device="cuda") + torch.randn(4).cuda()
        return (F.dropout(x + noise),)

    joint = joint_of(fn, tensor(4))
    cuda, cpu = torch.device("cuda:0"), torch.device("cpu")
    assert joint.seeds == (cuda,) and generator_devices(joint) == (cpu,)
    inputs = [n for n in joint.module.graph.nodes if n.op == "placeholder"]
    assert [(n.name, n.meta["val"].device) for n in inputs] == [
        ("primals_0", cuda),
        ("seed", cuda),
        ("tangents_0", cuda),
    ]
    prims = decompose(joint.module, Options())
    drawn = [n for n in prims.graph.nodes if n.target is PRIMS["random"]]
    assert [n.args[0].name for n in drawn] == ["seed", "seed"]
    assert all(n.meta["val"].device == n.args[0].meta["val"].device for n in drawn)


def test_a_seed_is_on_its_device_and_follows_its_generator():
    joint = joint_of(F.dropout, tensor(4, grad=False))
    seen = []
    call = wrap(joint, lambda inputs: [seen.append(inputs[1]) or inputs[0]], None)  # type: ignore[func-returns-value]
    call(tensor(4, grad=False))
    assert seen[0].device == torch.device("cuda:0") and seen[0].dtype is torch.int64 and not seen[0].ndim
    before = torch.cuda.get_rng_state()
    call(tensor(4, grad=False))
    assert not torch.equal(torch.cuda.get_rng_state(), before)  # drawn from there


@pytest.mark.parametrize("eager_rng", [False, True])
def test_second_derivatives_begin_from_the_states_of_both_generators(eager_rng: bool):
    joint = joint_of(lambda x: (F.dropout(x) * torch.rand(4).cuda(),), tensor(4), options=Options(eager_rng=eager_rng))
    begin = beginning(joint, generator_devices(joint))
    assert sorted(map(str, begin.states)) == (["cpu", "cuda:0"] if eager_rng else ["cpu"])
    assert list(map(str, begin.seeds)) == ([] if eager_rng else ["cuda:0"])
    torch.rand(3)
    torch.rand(3, device="cuda")
    after = torch.get_rng_state(), torch.cuda.get_rng_state()
    with from_beginning(begin):
        again = beginning(joint, generator_devices(joint))
    assert all(torch.equal(begin.states[d], again.states[d]) for d in begin.states)
    assert all(begin.seeds[d] is again.seeds[d] for d in begin.seeds)
    assert torch.equal(torch.get_rng_state(), after[0]) and torch.equal(torch.cuda.get_rng_state(), after[1])


def left(joint: Joint) -> set[str]:
    """Operators of the prim graph that are ATen's."""
    nodes = decompose(joint.module, Options()).graph.nodes
    return {str(n.target) for n in nodes if isinstance(n.target, torch._ops.OpOverload)}


def prims_of(joint: Joint) -> set[str]:
    nodes = decompose(joint.module, Options()).graph.nodes
    return {n.target.name for n in nodes if isinstance(n.target, Prim)}


@pytest.mark.parametrize(("kind", "dtype"), [("cudnn", torch.bfloat16), ("flash", torch.bfloat16), ("efficient", None)])
@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention(kind: str, dtype: torch.dtype | None, causal: bool):
    backend = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}[kind]
    x = [tensor(2, 4, 128, 64, dtype=dtype or torch.float32) for _ in range(3)]
    with sdpa_kernel(getattr(SDPBackend, backend)):
        joint = joint_of(lambda q, k, v: (F.scaled_dot_product_attention(q, k, v, is_causal=causal),), *x)
    assert not joint.seeds
    assert {f"attention_{kind}", f"attention_{kind}_backward"} <= prims_of(joint) and not left(joint)
    assert joint.output_metas[0].shape == (2, 4, 128, 64)


@pytest.mark.parametrize(("kind", "dtype"), [("cudnn", torch.bfloat16), ("efficient", torch.float32)])
def test_a_mask_that_heads_share_is_not_repeated_for_the_kernels_of_libraries(kind: str, dtype: torch.dtype):
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m.exp()[:, None, None].expand(2, 4, 128, 128))

    x = [tensor(2, 4, 128, 64, dtype=dtype) for _ in range(3)]
    with sdpa_kernel({"cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}[kind]):
        joint = joint_of(fn, *x, tensor(2, 128, dtype=dtype, grad=False))
    found = attention(joint)
    assert set(found) == {f"attention_{kind}", f"attention_{kind}_backward"}
    for node in found.values():
        shapes = [tuple(n.meta["val"].shape) for n in node.all_input_nodes]
        assert (2, 1, 1, 128) in shapes and (2, 4, 128, 128) not in shapes


def test_dropout_inside_of_attention_draws_from_the_generator():
    x = [tensor(2, 4, 128, 64, dtype=torch.bfloat16) for _ in range(3)]
    joint = joint_of(lambda q, k, v: (F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),), *x)
    graph = decompose(joint.module, Options())
    assert left(joint) and not fallbacks(graph)


@pytest.fixture
def tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def attention(joint: Joint) -> dict[str, fx.Node]:
    """The nodes of attention in the prim graph."""
    nodes = decompose(joint.module, Options()).graph.nodes
    return {n.target.name: n for n in nodes if isinstance(n.target, Prim) and n.target.name.startswith("attention")}


def attend(bias: bool = False, dropout: float = 0.0, dtype: torch.dtype = torch.float32, **given: Any) -> Joint:
    x = [tensor(2, 4, 128, 64, dtype=dtype) for _ in range(3)] + [tensor(1, 4, 128, 128, dtype=dtype)] * bias
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return joint_of(lambda *x: (F.scaled_dot_product_attention(*x, dropout_p=dropout),), *x, **given)


def test_attention_rounded_to_tf32_is_our_own(tf32: None):
    joint = attend()
    assert attention(joint).keys() == {"attention_tiled", "attention_tiled_backward"} and not joint.seeds
    assert attention(joint)["attention_tiled"].args[-1] == "tf32"


def test_attention_in_full_precision_is_the_librarys():
    assert attention(attend()).keys() == {"attention_efficient", "attention_efficient_backward"}
    joint = attend(dropout=0.1)
    assert not attention(joint) and {"aten._scaled_dot_product_efficient_attention.default"} < left(joint)


@pytest.mark.parametrize("shape", [(2, 1, 128, 128), (1, 1, 1, 128), (128, 128)])
def test_a_mask_of_all_heads_is_not_repeated(shape: tuple[int, ...]):
    x = [tensor(2, 4, 128, 64) for _ in range(3)]
    mask = torch.empty(shape, dtype=torch.bool, device="cuda")
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        joint = joint_of(lambda *x: (F.scaled_dot_product_attention(*x),), *x, mask)
    found = attention(joint)
    for node in (found["attention_efficient"], found["attention_efficient_backward"]):
        bias = dict(zip(node.target.parameters, node.args, strict=True))["bias"]
        assert bias.meta["val"].shape == (1,) * (4 - len(shape)) + shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_drops_weights_is_our_own(dtype: torch.dtype, tf32: None):
    found = attention(attend(True, 0.1, dtype))
    forward, backward = found["attention_tiled"], found["attention_tiled_backward"]
    drawn = [dict(zip(n.target.parameters, n.args, strict=True)) for n in (forward, backward)]
    assert drawn[0]["seed"] is drawn[1]["seed"] and drawn[0]["seed"].op == "placeholder"
    assert drawn[0]["stream"] == drawn[1]["stream"] and drawn[0]["dropout"] == drawn[1]["dropout"] == 0.1
    assert drawn[1]["mask"] == (True,) * 4
    joint = attend(True, 0.1, dtype, options=Options(eager_rng=True))
    assert not attention(joint) and len(left(joint)) == 2  # the library's draws what eager does


def test_layers_drop_other_weights(tf32: None):
    x = [tensor(2, 4, 128, 64) for _ in range(3)]

    def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor]:
        once = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        return (F.scaled_dot_product_attention(once, k, v, dropout_p=0.1),)

    nodes = decompose(joint_of(twice, *x).module, Options()).graph.nodes
    streams = {
        kind: [n.args[-2] for n in nodes if n.target is PRIMS[kind]]
        for kind in ("attention_tiled", "attention_tiled_backward")
    }
    first, second = streams["attention_tiled"]
    assert first != second and streams["attention_tiled_backward"] == [second, first]


@pytest.mark.parametrize("recording", [False, True])
def test_numbers_of_a_dropout_are_on_the_device(recording: bool, monkeypatch: pytest.MonkeyPatch):
    """The library has them on the CPU, and its backward reads them there, unless it is being recorded."""
    on, seen = torch.device("cuda" if recording else "cpu"), []

    def forward(q: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
        number = torch.empty((), dtype=torch.int64, device=on)
        return q, q, number, number

    def backward(*args: Any) -> None:
        seen.extend(number.device.type for number in args[7:9])

    name = "_scaled_dot_product_efficient_attention"
    fake = {name: forward, f"{name}_backward": backward}
    monkeypatch.setattr(kernels, "aten", SimpleNamespace(**{n: SimpleNamespace(default=f) for n, f in fake.items()}))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    q = tensor(1, 1, 16, 8, grad=False)
    out, sums, *numbers = kernels.KERNELS[getattr(aten, name).default](q, q, q, None, True, 0.1)
    assert all(number.is_cuda for number in numbers)
    mask = [True, True, True, False]
    kernels.KERNELS[getattr(aten, f"{name}_backward").default](q, q, q, q, None, out, sums, *numbers, 0.1, mask)
    assert seen == [on.type] * 2


def test_batch_norm_of_the_library():
    """In float32 eager asks cuDNN: running statistics are written, which its schema does not say."""
    state = [tensor(8), tensor(8), tensor(8, grad=False), tensor(8, grad=False)]

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> tuple:
        return (F.batch_norm(x, mean, var, w, b, training=True),)

    joint = joint_of(fn, tensor(2, 8, 16, 16), *state)
    assert [m.input for m in joint.mutations] == [3, 4]
    assert aten.native_batch_norm_backward.default in targets(joint) and not left(joint)


def test_statistics_of_low_precision_norms_are_wide():
    half = torch.bfloat16
    joint = joint_of(lambda x, w: (F.layer_norm(x, (16,), w),), tensor(4, 16, dtype=half), tensor(16, dtype=half))
    (norm,) = (n for n in joint.module.graph.nodes if n.target is aten.native_layer_norm.default)
    assert [m.dtype for m in norm.meta["val"]] == [half, torch.float32, torch.float32]
    state = [tensor(8, dtype=half), tensor(8, dtype=half)]
    joint = joint_of(lambda x, w, b: (F.batch_norm(x, None, None, w, b, True),), tensor(2, 8, 4, dtype=half), *state)
    (norm,) = (n for n in joint.module.graph.nodes if n.target is aten._native_batch_norm_legit.no_stats)
    assert [m.dtype for m in norm.meta["val"]] == [half, torch.float32, torch.float32]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_cells(kind: str):
    gates = 4 if kind == "lstm" else 3
    cell = getattr(torch, f"{kind}_cell")
    state = [tensor(2, 16), tensor(2, 16)] if kind == "lstm" else [tensor(2, 16)]

    def fn(x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states = rest[: len(state)]
        out = cell(x, states if kind == "lstm" else states[0], *rest[len(state) :])
        return out if isinstance(out, tuple) else (out,)

    weights = [tensor(gates * 16, 8), tensor(gates * 16, 16), tensor(gates * 16), tensor(gates * 16)]
    assert not left(joint_of(fn, tensor(2, 8), *state, *weights))


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recurrent_layers_of_the_library(kind: str, dropout: float):
    """Two layers, in one call where no dropout stands between them."""
    gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[kind]
    first = [tensor(gates * 16, 8), tensor(gates * 16, 16), tensor(gates * 16), tensor(gates * 16)]
    second = [tensor(gates * 16, 16), tensor(gates * 16, 16), tensor(gates * 16), tensor(gates * 16)]
    state = [tensor(2, 2, 16), tensor(2, 2, 16)] if kind == "lstm" else [tensor(2, 2, 16)]

    inputs = [tensor(4, 2, 8), *state, *first, *second]
    graph = fx.Graph()
    x, *rest = (graph.placeholder(f"x{i}") for i in range(len(inputs)))
    hidden = rest[: len(state)] if kind == "lstm" else rest[0]
    options = (rest[len(state) :], True, 2, dropout, True, False, False)
    call = graph.call_function(getattr(torch, kind), (x, hidden, *options))
    graph.output(tuple(graph.call_function(operator.getitem, (call, i)) for i in range(1 + len(state))))
    joint = trace_joint(fx.GraphModule(torch.nn.Module(), graph), inputs, Options())
    assert targets(joint).count(aten._cudnn_rnn.default) == (2 if dropout else 1)
    assert bool(joint.seeds) == bool(dropout)
    assert [m.shape for m in joint.output_metas[: joint.num_outputs]] == [(4, 2, 16)] + [(2, 2, 16)] * len(state)
    assert not fallbacks(decompose(joint.module, Options()))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_mask_of_nothing_is_left_out_of_attention(dropout: float):
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        places = torch.arange(64, device="cuda")
        mask = (places[:, None] >= 0) & (places >= 0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(2, 1, 64, 64), dropout_p=dropout)

    prims = decompose(joint_of(fn, *(tensor(2, 4, 64, 32) for _ in range(3))).module, Options())
    calls = [n for n in prims.graph.nodes if "attention" in str(n.target)]
    assert len(calls) == 2
    for call in calls:
        biases = [a for a in call.args if isinstance(a, fx.Node) and tuple(a.meta["val"].shape)[-2:] == (64, 64)]
        assert not biases and None in call.args


def test_a_mask_that_heads_share_is_a_view_for_pytorchs_own_attention():
    """As in eager: it would be written out for each head."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        mask = torch.where(m[:, None, None, :] > 0, 0.0, -1e9)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(2, 1, 64, 64), dropout_p=0.1)

    joint = joint_of(fn, *(tensor(2, 4, 64, 32) for _ in range(3)), tensor(2, 64, grad=False))
    real = realize(lower(decompose(joint.module, Options())))
    assert {(64, 0, 0, 1)} == {view.stride for view in real.views.values() if view.shape == (2, 4, 64, 64)}


def test_gradients_of_dropout_are_in_the_format_of_their_gradient() -> None:
    def fn(g: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.native_dropout_backward(g, mask, 2.0)

    def strides(g: torch.Tensor) -> tuple[int, ...]:
        joint = joint_of(fn, g, torch.empty(g.shape, dtype=torch.bool, device="cuda"))
        (node,) = (n for n in joint.module.graph.nodes if n.target is aten.native_dropout_backward.default)
        return tuple(node.meta["val"].stride)

    given = tensor(2, 3, 4, 5, grad=False)
    assert strides(given.transpose(2, 3)) == (60, 20, 4, 1)
    assert strides(given.to(memory_format=torch.channels_last)) == (60, 1, 15, 3)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_losses_of_operands_that_repeat_are_laid_out_as_on_a_cpu() -> None:
    """PyTorch's meta kernels say otherwise for fp16."""

    def strides(name: str, dtype: torch.dtype) -> tuple[int, ...]:
        def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return getattr(F, name)(y, x.t(), reduction="none")

        joint = joint_of(fn, tensor(7, 7, dtype=dtype, grad=False), tensor(7, dtype=dtype, grad=False))
        (node,) = (n for n in joint.module.graph.nodes if n.target is getattr(aten, name).default)
        return tuple(node.meta["val"].stride)

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert strides("mse_loss", dtype) == strides("smooth_l1_loss", dtype) == (1, 7)
