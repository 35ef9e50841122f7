"""Models of transformers and timm, unmodified: one graph, no break, the results of eager."""

from __future__ import annotations

import contextlib

import pytest
import torch

import smelt
from smelt.capture.explain import describe
from tests.capture.harness import compiled, same

transformers = pytest.importorskip("transformers")
timm = pytest.importorskip("timm")


def test_lists_of_modules_that_eager_makes():
    """The frame runs in eager, since it fails while capturing; constructors that it calls are captured alone."""

    def fn(x):
        if torch.compiler.is_compiling():
            raise ValueError("not for compilers")
        layers = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])
        return layers[1](x) * len(layers)

    x = torch.randn(3)
    run = compiled(fn)
    for _ in range(3):
        assert same(run(x), fn(x))


class Hidden(torch.nn.Module):
    """The result of its norm is not used, its statistics are."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        self.norm(x)
        return x * 2


def test_statistics_of_an_unused_norm_are_kept():
    model, expected = Hidden(), Hidden()
    x = torch.randn(3, 4)
    assert same(compiled(model)(x), expected(x))
    assert same(dict(model.named_buffers()), dict(expected.named_buffers()))
    assert not torch.equal(model.norm.running_mean, torch.zeros(4))


def bert():
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    ids = torch.randint(0, 100, (2, 8))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1])}
    return transformers.BertForSequenceClassification(config), given


def gpt2():
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=100, n_positions=32, bos_token_id=1, eos_token_id=2
    )
    ids = torch.randint(0, 100, (2, 8))
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=100, max_position_embeddings=32,
    )  # fmt: skip
    ids = torch.randint(0, 100, (2, 8))
    return transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def t5():
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, decoder_start_token_id=0
    )
    ids = torch.randint(0, 100, (2, 8))
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}


def hf_vit():
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def resnet():
    return timm.create_model("resnet50", num_classes=10), {"x": torch.randn(2, 3, 32, 32)}


def vit():
    model = timm.create_model(
        "vit_base_patch16_224", img_size=32, embed_dim=32, depth=2, num_heads=2, num_classes=10, drop_path_rate=0.1
    )
    return model, {"x": torch.randn(2, 3, 32, 32)}


def other(name):
    def make():
        return timm.create_model(name, num_classes=10), {"x": torch.randn(2, 3, 64, 64)}

    make.__name__ = name
    return make


MODELS = [bert, gpt2, resnet, vit]
MORE = [llama, t5, hf_vit, *map(other, ("mobilenetv3_small_050", "efficientnet_b0", "convnext_atto", "mixer_s32_224"))]
MODES = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def snapshot(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def restore(model, held):
    for name, buffer in model.named_buffers():
        buffer.copy_(held[name])


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_one_graph_like_eager(make, mode, train):
    model, given = make()
    model.train(train)
    run = compiled(model, fullgraph=True)
    held = snapshot(model)
    with MODES[mode]():
        torch.manual_seed(1)
        want = model(**given)
        after = snapshot(model)
        restore(model, held)
        torch.manual_seed(1)
        got = run(**given)
    assert same(want, got) and same(after, snapshot(model))
    found = describe(run._smelt_session)
    assert found.graph_count == 1 and found.graph_break_count == 0


@pytest.mark.parametrize("make", MORE, ids=lambda make: make.__name__)
def test_more_models(make):
    model, given = make()
    model.eval()
    if "x" in given and model.default_cfg.get("fixed_input_size"):
        given = {"x": torch.randn(2, 3, 224, 224)}
    run = compiled(model, fullgraph=True)
    with torch.no_grad():
        assert same(model(**given), run(**given))
    assert describe(run._smelt_session).graph_count == 1


def test_training_steps_like_eager():
    model, given = bert()
    model.train()
    run = compiled(model, fullgraph=True)
    grads = []
    for call in (model, run):
        torch.manual_seed(1)
        model.zero_grad()
        call(**given).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert same(*grads)


def test_transformers_asks_whether_no_tensor_is_traced():
    """Then it need not build a mask: no values are read."""
    from transformers.utils.import_utils import is_tracing

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
        return x + 1, [is_tracing(None), is_tracing(x), is_tracing()]

    answers = smelt.compile(fn, fullgraph=True, backend="eager")(torch.ones(2))[1]
    assert answers == [False, True, True]
