"""Joint graphs of real models, for tests of this and later stages.

`python -m tests.autograd.joint_examples bert` prints the graph; `--full` takes the full-size model, `--bf16` autocast,
`--eval` evaluation mode.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch.func import functional_call

from smelt.autograd.trace.joint import Joint, trace_joint
from smelt.base.options import Options


def lifted(model: nn.Module, inputs: dict[str, torch.Tensor] | tuple[torch.Tensor, ...]) -> tuple[fx.GraphModule, list]:
    """A graph of one call, with parameters, buffers and `inputs` as placeholders, and its example inputs.

    Outputs: the loss alone when the model returns one, else the logits or the tensor it returns.
    """
    state = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    names = list(state)
    keys = list(inputs) if isinstance(inputs, dict) else None
    values = list(inputs.values()) if isinstance(inputs, dict) else list(inputs)

    def call(*flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = dict(zip(names, flat[: len(names)], strict=True))
        rest = flat[len(names) :]
        positional = () if keys is not None else tuple(rest)
        keyword = {} if keys is None else dict(zip(keys, rest, strict=True))
        with mock.patch("torch.compiler.is_compiling", lambda: True):  # transformers then asks no tensor for values
            return _outputs(functional_call(model, tensors, positional, keyword, tie_weights=False))

    return graph_of_call(call, len(names) + len(values)), [*state.values(), *values]


def graph_of_call(call: Callable[..., Any], count: int) -> fx.GraphModule:
    """A graph module whose single node calls a Python function."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(count)]
    graph.output(graph.call_function(call, tuple(inputs)))
    return fx.GraphModule(nn.Module(), graph)


def _outputs(out: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(out, torch.Tensor):
        return (out,)
    if isinstance(out, (tuple, list)):
        return tuple(out)
    return (out.loss, out.logits) if getattr(out, "loss", None) is not None else (out[0],)


def joint_of(model: nn.Module, inputs: Any, options: Options | None = None) -> Joint:
    """The joint graph of one call of `model`, in the ambient grad and autocast state."""
    gm, examples = lifted(model, inputs)
    return trace_joint(gm, examples, options or Options())


class WithLoss(nn.Module):
    """A classifier and its cross entropy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(x)
        return nn.functional.cross_entropy(logits, labels), logits


def bert(full: bool = False) -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    small = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100)
    config = BertConfig(**({} if full else small))
    size = (4, 64) if full else (2, 16)
    ids = torch.randint(0, config.vocab_size, size)
    mask = torch.ones(size, dtype=torch.int64)
    mask[1, size[1] // 2 :] = 0
    inputs = dict(input_ids=ids, attention_mask=mask, labels=torch.randint(0, 2, size[:1]))
    return BertForSequenceClassification(config), inputs


def gpt2(full: bool = False) -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = dict(n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=64)
    config = GPT2Config(**({} if full else small), use_cache=False)
    ids = torch.randint(0, config.vocab_size, (2, 64) if full else (2, 16))
    return GPT2LMHeadModel(config), dict(input_ids=ids, labels=ids.clone())


def resnet(full: bool = False) -> tuple[nn.Module, Any]:
    import timm

    model = timm.create_model("resnet50" if full else "resnet10t", num_classes=1000 if full else 10)
    size = 128 if full else 64
    return WithLoss(model), (torch.randn(2, 3, size, size), torch.randint(0, 10, (2,)))


def vit(full: bool = False) -> tuple[nn.Module, Any]:
    import timm

    if full:
        model = timm.create_model("vit_base_patch16_224")
    else:
        model = timm.models.vision_transformer.VisionTransformer(
            img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=10
        )
    size = 224 if full else 32
    return WithLoss(model), (torch.randn(2, 3, size, size), torch.randint(0, 10, (2,)))


MODELS = dict(bert=bert, gpt2=gpt2, resnet=resnet, vit=vit)


def example(
    name: str, *, full: bool = False, train: bool = True, bf16: bool = False, grad: bool = True
) -> tuple[fx.GraphModule, list[torch.Tensor], Callable[[], Any]]:
    """(graph, example inputs, a function that makes the autocast region) of a named model, seeded."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](full)
    model.train(train)
    if not grad:
        model.requires_grad_(False)
    gm, examples = lifted(model, inputs)
    return gm, examples, (lambda: torch.autocast("cpu", torch.bfloat16)) if bf16 else contextlib.nullcontext


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=list(MODELS))
    for flag in ("full", "eval", "bf16", "nograd", "quiet"):
        parser.add_argument(f"--{flag}", action="store_true")
    args = parser.parse_args()
    from smelt.bench.torchvision_schemas import define_torchvision_schemas

    define_torchvision_schemas()
    gm, examples, region = example(
        args.model, full=args.full, train=not args.eval, bf16=args.bf16, grad=not args.nograd
    )
    for _ in range(2):
        start = time.perf_counter()
        with region():
            joint = trace_joint(gm, examples, Options())
        seconds = time.perf_counter() - start
    if not args.quiet:
        print(joint.module.graph)
    print(f"{len(joint.module.graph.nodes)} nodes, {seconds:.3f} s (second trace)")


if __name__ == "__main__":
    main()
