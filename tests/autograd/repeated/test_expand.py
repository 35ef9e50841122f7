"""Real models of twelve blocks, and a training step of such a model: as in eager, also after one block has changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt import pipeline
from smelt.bench.regional.models import Decoder
from tests.autograd.repeated.oracle import Net, copied_blocks


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_graphs_of_models(name: str, half: bool) -> None:
    model = MODELS[name]()
    model = model.to(torch.bfloat16) if half else model
    assert copied_blocks(model, torch.randint(0, 50, (2, 6))) == [True]


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    return BertModel(
        BertConfig(num_hidden_layers=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
    )


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 50, "n_positions": 8, "n_embd": 16, "n_layer": 12, "n_head": 2}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes, **dropout))


def _llama() -> nn.Module:
    return Decoder(12, 16, 2, 1, 32, 50).build(use_cache=False)


MODELS = {"bert": _bert, "gpt2": _gpt2, "llama": _llama}


def step(net: nn.Module, call: nn.Module, x: Tensor) -> list[Tensor | None]:
    net.zero_grad()
    out = call(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad for p in net.parameters())]


def test_a_training_step_is_that_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[bool] = []
    expand = pipeline.expand

    def watched(*args: object) -> object:
        whole = expand(*args)  # type: ignore[arg-type]
        copied.append(whole is not None)
        return whole

    monkeypatch.setattr(watched, "__name__", "expand")
    monkeypatch.setattr(pipeline, "expand", watched)
    net, x = Net(9), torch.randn(5, 4)
    compiled = smelt.compile(net)
    torch.testing.assert_close(step(net, compiled, x), step(net, net, x))
    net.layers[7].scale = 0.5
    torch.testing.assert_close(step(net, compiled, x), step(net, net, x))
    net.layers[7].scale = 1.0
    net.layers[2].up.weight.requires_grad_(False)  # type: ignore[union-attr]
    torch.testing.assert_close(step(net, compiled, x), step(net, net, x))
    assert copied == [True]  # the second graph has seven equal blocks at most


def second_derivatives(net: Net, call: nn.Module, x: Tensor) -> list[Tensor]:
    result = call(x * 2).square().sum()  # the input of the call is freed: the second derivatives need its values
    (first,) = torch.autograd.grad(result, x, create_graph=True)
    return [first.detach(), *torch.autograd.grad(first.square().sum(), [*net.layers.parameters()])]


def test_second_derivatives_are_those_of_eager() -> None:
    """The first linear layer gets no gradient: no first derivative needs the input's value."""
    net, x = Net(9), torch.randn(5, 4, requires_grad=True)
    net.first.requires_grad_(False)
    got, expected = (second_derivatives(net, call, x) for call in (smelt.compile(net), net))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
