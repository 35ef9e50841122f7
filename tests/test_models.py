"""The four models of the README, from their libraries and unmodified: one graph each, and as right as eager.

Small sizes of the same code; `smelt bench bert resnet50 gpt2 vit --train` judges the full ones in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import smelt
from smelt.bench.accuracy import judge_mode
from smelt.bench.builders import timm_model, transformers_model
from smelt.bench.contenders import smelt_compile
from smelt.bench.losses import classification_loss, own_loss
from smelt.bench.workload import Batch, Settings, Workload
from smelt.bench.workloads import image_batch, token_batch

BERT = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100)
GPT2 = dict(n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=64)
RESNET50 = dict(layers=(2, 2, 1, 1), num_classes=10)
VIT = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=10)

MODELS = {
    "bert": Workload(
        "bert",
        "test",
        transformers_model("BertForSequenceClassification", "BertConfig", **BERT),
        token_batch(2, 16, 100, classes=2),
        own_loss,
    ),
    "gpt2": Workload(
        "gpt2", "test", transformers_model("GPT2LMHeadModel", "GPT2Config", **GPT2), token_batch(2, 16, 100), own_loss
    ),
    "resnet50": Workload(
        "resnet50", "test", timm_model("resnet50", **RESNET50), image_batch(4, 64, 10), classification_loss
    ),
    "vit": Workload(
        "vit", "test", timm_model("vit_base_patch16_224", **VIT), image_batch(2, 32, 10), classification_loss
    ),
}


def fresh(model: nn.Module, settings: Settings) -> Callable[..., object]:
    """The statistics count the last judgement only: where rounding moved a ReLU there are further ones (`SEEDS`)."""
    smelt.reset()
    return smelt_compile(model, settings)


each_model = pytest.mark.parametrize("name", list(MODELS))


@each_model
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_one_graph_as_right_as_eager(name: str, mode: str, precision: str) -> None:
    verdict = judge_mode(MODELS[name], Settings(precision=precision), fresh, mode == "train")
    assert verdict.ok, verdict.failures
    stats = smelt.stats()
    assert (stats["graphs"], stats["breaks"], stats["fallbacks"], stats["recompiles"]) == (1, 0, 0, 0)


@each_model
def test_inference_is_one_graph(name: str) -> None:
    verdict = judge_mode(MODELS[name], Settings(train=False), fresh, False)
    assert verdict.ok, verdict.failures
    assert smelt.stats()["graphs"] == 1


def _loss_and_gradients(call: Callable[..., object], model: nn.Module, batch: Batch) -> list[torch.Tensor]:
    model.zero_grad()
    output = call(**batch.kwargs)
    output.loss.backward()  # type: ignore[attr-defined]
    return [output.loss.detach(), *(p.grad.clone() for p in model.parameters())]  # type: ignore[attr-defined, union-attr]


def test_dropout_is_seeded_and_reproducible() -> None:
    workload = MODELS["bert"]
    model = workload.build().train()
    batch = workload.batch()
    compiled = smelt.compile(model)
    torch.manual_seed(5)
    first = _loss_and_gradients(compiled, model, batch)
    other = _loss_and_gradients(compiled, model, batch)
    torch.manual_seed(5)
    again = _loss_and_gradients(compiled, model, batch)
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    assert not torch.equal(first[0], other[0])


def test_backward_uses_the_mask_of_forward() -> None:
    dropout = smelt.compile(lambda x: torch.nn.functional.dropout(x, 0.3) * 2)
    x = torch.randn(64, 64, requires_grad=True)
    y = dropout(x)
    y.sum().backward()
    kept = y.detach() != 0
    assert 0.6 < kept.float().mean() < 0.8
    torch.testing.assert_close(x.grad, kept.float() * 2 / 0.7)


def test_eager_rng_gives_the_same_bits_as_eager() -> None:
    workload = MODELS["gpt2"]
    model = workload.build().train()
    batch = workload.batch()
    compiled = smelt.compile(copy.deepcopy(model), options={"eager_rng": True})
    torch.manual_seed(3)
    expected = model(**batch.kwargs).loss
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(**batch.kwargs).loss, expected, rtol=1e-5, atol=1e-5)


def test_batch_norm_statistics_update() -> None:
    model = MODELS["resnet50"].build().train()
    reference = copy.deepcopy(model)
    compiled = smelt.compile(model)
    for _ in range(3):
        x = torch.randn(4, 3, 64, 64)
        compiled(x)
        reference(x)
    for name, expected in reference.named_buffers():
        actual = model.get_buffer(name)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
        if name.endswith("num_batches_tracked"):
            assert int(actual) == 3


def test_a_training_run_follows_eager() -> None:
    workload = MODELS["vit"]
    losses = []
    for prepare in (smelt_compile, lambda model, settings: model):
        torch.manual_seed(1)
        model = workload.build().train()
        batch = workload.batch()
        call = prepare(model, Settings())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        run = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = workload.loss(call(*batch.args), batch)
            loss.backward()
            optimizer.step()
            run.append(loss.detach())
        losses.append(torch.stack(run))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-4)
    assert losses[0][-1] < losses[0][0]
