"""Models compiled once for every size, trained by generated kernels: as right as eager, one graph, one build."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import smelt
from smelt.bench.builders import timm_model, transformers_model
from tests.autograd.sized import MATMUL_PINS

BERT = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
GPT2 = dict(
    n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=64, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
    bos_token_id=1, eos_token_id=1,
)  # fmt: skip
VIT = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=10)


def tokens(batch, length):
    ids = torch.randint(1, 99, (batch, length))
    mask = torch.ones_like(ids)
    mask[0, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def images(batch, height, width):
    return {"x": torch.randn(batch, 3, height, width)}


def text_loss(model, given):
    return model(**given).loss


def image_loss(model, given):
    return model(given["x"]).square().mean()


MODELS = {
    "bert": (
        transformers_model("BertForMaskedLM", "BertConfig", **BERT), text_loss, tokens,
        [(2, 16), (3, 7), (8, 33), (5, 5)],
    ),
    "gpt2": (
        transformers_model("GPT2LMHeadModel", "GPT2Config", **GPT2), text_loss, tokens,
        [(2, 16), (3, 7), (8, 33), (5, 5)],
    ),
    "resnet": (
        timm_model("resnet18", num_classes=10), image_loss, images,
        [(4, 64, 64), (3, 96, 64), (2, 64, 128), (5, 70, 81)],
    ),
    "vit": (
        timm_model("vit_tiny_patch16_224", **VIT), image_loss, images,
        [(4, 32, 32), (3, 32, 32), (9, 32, 32)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_for_every_size(name):
    if name == "gpt2" and MATMUL_PINS:
        pytest.skip("matmul of this torch reads plain sizes")
    build, loss, batch, sizes = MODELS[name]
    torch.manual_seed(0)
    model = build()
    reference = copy.deepcopy(model).double()
    smelt.reset()
    run = smelt.compile(model, dynamic=True, fullgraph=True)
    for size in sizes:
        given = batch(*size)
        found = train(run, loss, given)
        expected = train(reference, loss, {k: v.double() if v.is_floating_point() else v for k, v in given.items()})
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.double(), theirs.double(), rtol=2e-3, atol=2e-5)
    assert smelt.stats()["graphs"] == 1 and smelt.stats()["recompiles"] == 0


def train(model: nn.Module, loss, given):
    model.zero_grad()
    value = loss(model, given)
    value.backward()
    return [value.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def test_the_second_size_makes_it_dynamic():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    smelt.reset()
    run = smelt.compile(model)
    for rows in (4, 6, 3, 17, 64, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(run(x), model(x))
    assert smelt.stats()["graphs"] == 2


def test_learning_rates_do_not_recompile():
    smelt.reset()

    @smelt.compile(fullgraph=True)
    def step(weight, grad, lr):
        return weight - lr * grad / (1 + lr**2)

    weight, grad = torch.randn(50), torch.randn(50)
    for lr in (0.1, 0.2, 0.05, 0.01, 0.003):
        torch.testing.assert_close(step(weight, grad, lr), weight - lr * grad / (1 + lr**2))
    assert smelt.stats()["graphs"] == 2
