"""The programs of the replay: each compiles and runs something, and what the compiler wrote on the way is compared.

They are to reach every stage and every form of a kernel rather than to be useful. All run on the CPU with fixed seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.bench.builders import timm_model, transformers_model
from smelt.bench.steps import Stepper, build_batch, build_model
from smelt.bench.workload import Settings, Workload
from smelt.bench.workloads import classification_loss, find_workload, image_batch, own_loss, token_batch

Program = Callable[[], None]

OPTIONS = {"gemm": "aten"}
"""Of every program: nothing is chosen by time."""

SMOKE = (
    "huggingface/GoogleFnet", "huggingface/DebertaForMaskedLM", "huggingface/AllenaiLongformerBase", "timm/levit_128",
    "timm/convmixer_768_32", "torchbench/hf_BigBird", "torchbench/dlrm", "torchbench/drq",
    "torchbench/speech_transformer", "torchbench/maml_omniglot", "torchbench/tts_angular", "torchbench/demucs",
)  # fmt: skip
"""The slice of the suites that tests/bench/suites/test_smoke.py measures."""

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
MODELS = {
    workload.name: workload
    for workload in (
        Workload(
            "bert",
            "replay",
            transformers_model("BertForSequenceClassification", "BertConfig", vocab_size=500, **SMALL),
            token_batch(2, 16, 500, classes=2),
            own_loss,
            ("transformers",),
        ),
        Workload(
            "gpt2",
            "replay",
            transformers_model("GPT2LMHeadModel", "GPT2Config", vocab_size=500, n_layer=2, n_embd=64, n_head=2),
            token_batch(2, 16, 500),
            own_loss,
            ("transformers",),
        ),
        Workload(
            "resnet50", "replay", timm_model("resnet50"), image_batch(2, 64, 1000), classification_loss, ("timm",)
        ),
        Workload(
            "vit",
            "replay",
            timm_model("vit_tiny_patch16_224", img_size=64, depth=2),
            image_batch(2, 64, 1000),
            classification_loss,
            ("timm",),
        ),
    )
}
"""Four models at small sizes, with the layers of the large ones."""

FUNCTIONS: dict[str, Program] = {}


def program(run: Program) -> Program:
    """Enters a function among the programs."""
    FUNCTIONS[run.__name__] = run
    return run


def compiled(fn: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """`smelt.compile` with the options of all programs."""
    return smelt.compile(fn, options=OPTIONS, **more)


def train(workload: Workload) -> None:
    """Two steps of training: the second one runs what the first one compiled."""
    settings = Settings(optimizer="none")
    stepper = Stepper(workload, build_model(workload, settings), build_batch(workload, settings), settings)
    stepper.compile(lambda model, _: compiled(model))
    stepper()
    stepper()


def programs() -> dict[str, Program]:
    """Every program by name: functions, models, the slice of the suites."""
    found = {f"functions/{name}": run for name, run in FUNCTIONS.items()}
    found |= {f"models/{name}": lambda w=w: train(w) for name, w in MODELS.items()}  # type: ignore[misc]
    return found | {f"smoke/{name.rpartition('/')[2]}": lambda n=name: train(find_workload(n)) for name in SMOKE}


def leaf(*shape: int) -> Tensor:
    """A tensor that gets a gradient."""
    return torch.randn(shape, requires_grad=True)


@program
def softmax() -> None:
    def block(x: Tensor, bias: Tensor, scale: float) -> Tensor:
        return torch.softmax(x * scale + bias, dim=-1)

    compiled(block)(leaf(64, 32), leaf(32), 0.5).square().sum().backward()


@program
def products() -> None:
    def block(x: Tensor, w: Tensor, b: Tensor, q: Tensor) -> Tensor:
        y = F.gelu(x @ w + b)
        scores = torch.bmm(q, q.transpose(1, 2)) / 8
        return y.sum() + F.scaled_dot_product_attention(q, q, q).sum() + scores.amax()

    compiled(block)(leaf(24, 16), leaf(16, 48), leaf(48), leaf(2, 9, 8)).backward()


@program
def reductions() -> None:
    def block(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        y = F.layer_norm(x, (x.shape[-1],)) + x.var(0, keepdim=True)
        return y.cumsum(1), y.logsumexp(0), y.argmax(1), n.sum(), (n > 3).any(0), y.sort(1).values, x.prod(1)

    out = compiled(block)(leaf(33, 40), torch.arange(24).reshape(4, 6))
    (out[0].sum() + out[1].sum() + out[5].square().sum() + out[6].sum()).backward()


@program
def indices() -> None:
    def block(table: Tensor, at: Tensor, x: Tensor) -> Tensor:
        rows = F.embedding(at, table)
        spread = torch.zeros(9, table.shape[1]).index_add(0, at.flatten() % 9, rows.flatten(0, 1))
        picked = x.gather(1, at[:, :2]) + x[at[:, 0] % x.shape[0], 1:3]
        return spread.square().sum() + picked.sum() + x.masked_fill(x > 0, 0.0).roll(1, 0).flip(1).triu().sum()

    compiled(block)(leaf(20, 6), torch.arange(12).reshape(3, 4) % 3, leaf(3, 5)).backward()


@program
def images() -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2)
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear") + F.pad(x[:, :1], (0, 0, 1, -1), mode="constant")
        return F.adaptive_avg_pool2d(y, 3).square().mean()

    compiled(block)(leaf(2, 3, 12, 12), leaf(4, 3, 3, 3)).backward()


@program
def dtypes() -> None:
    def block(h: Tensor, b: Tensor, i: Tensor, d: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        mixed = (h.float() * b + i).to(torch.float16)
        bits = (i << 2) ^ (i // 3) % 5 & ~i
        return mixed, bits, d.sin() / d.exp(), torch.where(i > 2, d, -d).to(torch.uint8), (c * c.conj()).real + c.abs()

    half, brain = torch.randn(12, 7).half(), torch.randn(12, 7).bfloat16()
    compiled(block)(half, brain, torch.arange(7), torch.randn(7).double(), torch.randn(5, dtype=torch.complex64))


@program
def mutation() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("total", torch.zeros(4))
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor, out: dict[str, Tensor]) -> Tensor:
            self.calls += 1
            self.total += x.detach().sum(0)
            view = x.mul(2)
            view[1:].add_(self.total)
            view.t()[0].clamp_(min=0)
            out["view"] = view
            self.seen.append(view)
            return view.exp_()

    model, out = Counter(), dict[str, Tensor]()
    step = compiled(model)
    for _ in range(3):
        step(leaf(3, 4), out).sum().backward()


@program
def graph_breaks() -> None:
    log: list[str] = []

    def told(x: Tensor) -> None:
        log.append(str(x.tolist()))

    def block(x: Tensor, names: list[str]) -> Tensor:
        y = x.sin()
        told(y)
        for name in names:
            y = y * len(name)
            log.append(f"{name}: {y.sum().item():.3f}")
        try:
            return y.cos() / int(x.numel() > 3)
        except ZeroDivisionError:
            return y

    fn = compiled(block)
    fn(leaf(4), ["a", "bc"]).sum().backward()
    fn(leaf(3), ["a", "bc"]).sum().backward()


@program
def values() -> None:
    def block(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2
        else:
            x = x - 1
        kept = x[x > 0.5]
        at = torch.nonzero(x.abs() > 0.1)
        return kept.sum() + at.shape[0] + x[: int(x.argmax()) + 1].sum()

    fn = compiled(block)
    fn(torch.linspace(-1, 2, 9).requires_grad_()).backward()
    fn(torch.linspace(-2, 1, 9).requires_grad_()).backward()


@program
def dynamic_shapes() -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        y = F.pad(x, (0, 1)).reshape(x.shape[0], -1)
        y = torch.cat([y, y[:, ::2]], 1) @ w.expand(x.shape[1] + 1 + (x.shape[1] + 2) // 2, -1)
        return F.softmax(y, 0).view(-1, x.shape[0]).sum(1) if x.shape[0] > 2 else y

    for dynamic in (None, True):
        fn = compiled(block, dynamic=dynamic)
        for rows, columns in ((5, 8), (7, 8), (7, 11), (2, 3)):
            fn(leaf(rows, columns), leaf(1, 4)).square().sum().backward()


@program
def custom_functions() -> None:
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
            ctx.save_for_backward(x)
            ctx.bound = bound
            return x.clamp(-bound, bound)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            return g * (x.abs() <= ctx.bound), None

    compiled(lambda x: Clipped.apply(x * 3, 1.0).square())(leaf(6, 5)).sum().backward()


@program
def random_numbers() -> None:
    def block(x: Tensor) -> Tensor:
        y = F.dropout(x, 0.3) + torch.randn_like(x) * torch.rand(x.shape[1])
        return y + torch.randint(0, 5, x.shape) * torch.bernoulli(torch.full_like(x, 0.5))

    compiled(block)(leaf(8, 16)).sum().backward()
    smelt.compile(block, options=OPTIONS | {"eager_rng": True})(leaf(8, 16)).sum().backward()


@program
def second_derivatives() -> None:
    x = leaf(5)
    (first,) = torch.autograd.grad(compiled(lambda x: (x.tanh() * x.exp()).sum())(x), x, create_graph=True)
    first.square().sum().backward()


@program
def unused_results() -> None:
    fn = compiled(lambda x, y: (x.sin() * y, x.exp().cumsum(0), y.log_softmax(0)))
    for used in range(3):
        fn(leaf(7), leaf(7))[used].sum().backward()


@program
def whole_step() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    fn = compiled(step)
    for _ in range(2):
        fn(torch.randn(10, 8), torch.arange(10) % 2)


@program
def recurrence() -> None:
    model = nn.LSTM(6, 5, num_layers=2, batch_first=True)
    compiled(model)(torch.randn(2, 4, 6))[0].sum().backward()


@program
def transforms() -> None:
    def energy(w: Tensor, x: Tensor) -> Tensor:
        return (x @ w).tanh().sum()

    compiled(torch.func.vmap(torch.func.grad(energy), (None, 0)))(torch.randn(3), torch.randn(4, 2, 3))


@program
def containers() -> None:
    scale, table = 3, {"a": 1.5, "b": [2, 3]}

    class Pair:
        def __init__(self, x: Tensor, names: tuple[str, ...]) -> None:
            self.x, self.names = x, names

    def block(pair: Pair, *rest: Tensor, **named: Any) -> tuple[Any, dict[str, Any]]:
        total = sum((r * i for i, r in enumerate(rest)), pair.x * scale * table["a"])
        kept = {name: total + len(name) for name in sorted(pair.names) if name in named}
        return [*kept.values(), table["b"]], kept | {"flag": isinstance(named.get("b"), str)}

    fn = compiled(block)
    fn(Pair(torch.ones(3), ("b", "a")), torch.ones(3), torch.ones(1), a=1, b="x")
    fn(Pair(torch.ones(3), ("b", "c")), torch.ones(3), a=None, b=2)
