"""smelt/bench/census/shrink.py and hf_inputs.py: small configurations, and inputs that their models take."""

from __future__ import annotations

import pytest

from smelt.bench.census.hf_models import transformers_names, transformers_subject
from smelt.bench.census.shrink import VOCABULARY, Sizes, small_settings
from smelt.bench.torchvision_schemas import define_torchvision_schemas

define_torchvision_schemas()
transformers = pytest.importorskip("transformers")


def test_widths_layers_and_tokens_shrink() -> None:
    config = transformers.LlamaConfig(pad_token_id=31999)
    small = transformers.LlamaConfig(**small_settings(config, Sizes()))
    assert (small.hidden_size, small.intermediate_size, small.num_hidden_layers) == (32, 64, 2)
    assert small.num_attention_heads % small.num_key_value_heads == 0
    assert small.vocab_size == VOCABULARY > small.pad_token_id


def test_every_kind_of_layer_is_kept() -> None:
    config = transformers.Gemma3TextConfig()
    small = transformers.Gemma3TextConfig(**small_settings(config, Sizes()))
    assert set(small.layer_types) == set(config.layer_types) == {"sliding_attention", "full_attention"}
    assert small.num_hidden_layers == len(small.layer_types) < config.num_hidden_layers


def test_parts_shrink_and_name_the_same_tokens() -> None:
    config = transformers.LlavaConfig()
    small = transformers.LlavaConfig(**small_settings(config, Sizes()))
    assert small.vision_config.hidden_size == small.text_config.hidden_size == 32
    assert small.image_token_index < small.text_config.vocab_size


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("bert", "input_ids 2x12, attention_mask 2x12, token_type_ids 2x12"),
        ("t5", "input_ids 2x12, attention_mask 2x12, decoder_input_ids 2x12"),
        ("vit", "pixel_values 2x3x32x32"),
        ("wav2vec2", "input_values 2x3840"),
        ("llava", "input_ids 2x16, pixel_values 2x3x32x32, attention_mask 2x16"),
    ],
)
def test_inputs_are_found(name: str, shape: str) -> None:
    assert name in transformers_names()
    subject = transformers_subject(name)
    assert subject.shape == shape
    assert sum(p.numel() for p in subject.model.parameters()) < 5_000_000


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("gemma4_text", "input_ids"),  # a layer with a head width of its own
        ("depth_anything", "pixel_values"),  # four outputs of a backbone
        ("glm4v", "image_grid_thw"),  # sections of a head's usual width
        ("lxmert", "visual_feats"),
        ("musicgen_decoder", "input_ids 8x12"),
        ("autoformer", "past_time_features"),
        ("blip_text_model", "input_ids"),  # beside its configuration in a file of its own
    ],
)
def test_odd_models_are_built_and_run(name: str, what: str) -> None:
    subject = transformers_subject(name)
    assert what in subject.shape
    assert sum(p.numel() for p in subject.model.parameters()) < 20_000_000
