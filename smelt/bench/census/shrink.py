"""Makes a Hugging Face configuration small by the names of its fields: few layers, small widths, a small vocabulary.

All widths become the same number, so that widths that must agree still agree.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

VOCABULARY = 128
"""Number of token ids of a small model; the last ids are its special tokens."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a small model: width of hidden states, attention heads, and whether widths, heads and images shrink at
    all.

    Args:
        image: edge length of images; 0: as in the configuration.
        head: whether the width of a head shrinks, if the configuration has a field for it.
        fill: replace None by the usual value in settings that a model requires.
        layers: number of layers; some kinds of layer occur only once per several layers.
    """

    width: int = 32
    heads: int = 4
    narrow: bool = True
    image: int = 32
    head: bool = True
    fill: bool = False
    layers: int = 2


TRIED = (
    Sizes(),
    Sizes(64, 2, head=False),
    Sizes(128, 2, image=64),
    Sizes(256, 2),
    Sizes(fill=True),
    Sizes(layers=6),
    Sizes(256, 2, image=64, fill=True, layers=4),
    Sizes(narrow=False, image=64),
    Sizes(narrow=False, image=0, fill=True),
)
"""Sizes that are tried in this order until the model runs: some models have further conditions."""

Rule = Callable[[int, Sizes], int]


def at_most(limit: int) -> Rule:
    return lambda value, sizes: min(value, limit)


def width(factor: float = 1.0) -> Rule:
    return lambda value, sizes: int(sizes.width * factor) if sizes.narrow and value > sizes.width * factor else value


def heads(value: int, sizes: Sizes) -> int:
    return sizes.heads if sizes.narrow and value > sizes.heads else value


def head_width(value: int, sizes: Sizes) -> int:
    return sizes.width // sizes.heads if sizes.narrow and sizes.head else value


def few_heads(value: int, sizes: Sizes) -> int:
    return min(value, sizes.heads // 2) if sizes.narrow else value


LAYERS = re.compile(
    r"(^|_)(layers|layer|depth|num_layers|n_layers?|num_blocks|n_blocks)$|^num_hidden_layers|_num_layers|num_hidden_layers"
)

RULES: tuple[tuple[str, Rule], ...] = (
    (r"vocab_size|vocabulary_size|codebook_size|num_embeddings$|^n_e$|num_codes", at_most(VOCABULARY)),
    (r"max_(position|source|target|sequence|seq|text)\w*|^n_positions$|^n_ctx$|max_len\w*|^seq_length$", at_most(512)),
    (r"sliding_window|^window_size$|attention_window|local_attention|attention_chunk_size", at_most(16)),
    (r"num_key_value_heads|num_kv_heads|n_kv_heads|multi_query_group_num|num_key_value_groups", few_heads),
    (r"(^|_)(n_heads?|num_heads|attention_heads|num_attention_heads|n_head|nheads|num_query_heads)$|_heads$", heads),
    (r"head_dim$|head_size$|^d_kv$|^kv_channels$|^attention_key_size$|^rotary_dim$", head_width),
    (r"kv_lora_rank|q_lora_rank|lora_rank|^o_lora_rank$", width(0.5)),
    (r"intermediate\w*size|ffn\w*dim|ffn_hidden_size|^d_ff$|mlp_dim|^n_inner$|^d_inner", width(2)),
    (r"hidden_size|^d_model$|^n_embd$|^(\w+_)?embed_dim$|^dim$|^width$|^embedding_size$|^hidden_dim$", width()),
    (r"projection_dim|^(encoder|decoder|text|vision|audio|qformer)_(hidden_)?(dim|size|width)$", width()),
    (r"^(cross|output|proj|input|feature|shared)_(hidden_)?(dim|size|width)$", width()),
    (r"^(adapter|downsample|vision_output|conv)_(in|out|input|output|hidden)?_?(dim|size)$", width()),
    (r"embedding_(size|dim)$|embed_proj_dim|^emb_dim$|^d_embed$|feat_\w*dim$|^attention_hidden_size$", width()),
    (r"num_(local_|routed_)?experts$|^n_routed_experts$|^moe_num_experts$|^num_experts\w*$|^n_experts$", at_most(4)),
    (r"num_experts_per_tok\w*|moe_topk|^top_k_experts$|^moe_k$|experts_per_token", at_most(2)),
    (r"^n_group$|^topk_group$|^num_expert_group\w*", at_most(1)),
    (r"num_queries|num_query_tokens|num_latents|query_num|num_object_queries", at_most(12)),
)
"""Rule by regular expression of the name of an integer field; the first pattern that is found applies."""

USUAL: dict[str, Callable[[Sizes], Any]] = {
    "rope_parameters": lambda sizes: {"rope_type": "default", "rope_theta": 10_000.0},
    "head_dim": lambda sizes: sizes.width // sizes.heads,
    "num_key_value_heads": lambda sizes: sizes.heads,
    "vocab_size": lambda sizes: VOCABULARY,
    "pad_token_id": lambda sizes: 0,
    "image_token_index": lambda sizes: VOCABULARY - 1,
    "attn_layer_indices": lambda sizes: [1],
    "prediction_length": lambda sizes: 4,
    "num_experts_per_tok": lambda sizes: 2,
    "n_routed_experts": lambda sizes: 4,
    "num_experts": lambda sizes: 4,
    "num_local_experts": lambda sizes: 4,
    "n_group": lambda sizes: 1,
    "topk_group": lambda sizes: 1,
    "hidden_size_per_layer_input": lambda sizes: 0,
    "mlp_layer_types": lambda sizes: ["dense", *["sparse"] * (sizes.layers - 1)],
}
"""Usual value by the name of a setting that is None."""

_COMPILED = tuple((re.compile(pattern), rule) for pattern, rule in RULES)
_TOKEN = re.compile(r"(token_id|token_index|_token|_idx|index|_id|token_ids)$")
_IMAGE = re.compile(r"^image_size$|^img_size$|^input_size$|^crop_size$|^image_resolution$")
_DEPTHS = re.compile(r"depths?$|layers$|layer_repeats|num_blocks$|layers_per_block")


_SAME: Any = object()
"""Marks a setting that does not change."""


def small_settings(config: Any, sizes: Sizes) -> dict[str, Any]:
    """Returns the changed settings that make a configuration small, nested configurations included.

    Args:
        config: the configuration with its defaults.
    """
    found: dict[str, Any] = {}
    free_tokens = itertools.count(VOCABULARY - 1, -1)
    for name, value in _settings_of(config):
        small = _smaller(config, name, value, sizes, free_tokens)
        if small is not _SAME:
            found[name] = small
    vocabulary = getattr(config, "vocab_size", None)
    if isinstance(vocabulary, int) and vocabulary < VOCABULARY:
        found.pop("vocab_size", None)
    _fit_layer_lists(config, found, sizes)
    return found


def _settings_of(config: Any) -> Iterator[tuple[str, Any]]:
    """Yields names and values of a configuration's settings, except those that it has only for single layers."""
    names = [field.name for field in dataclasses.fields(config)] if dataclasses.is_dataclass(config) else vars(config)
    for name in names:
        try:
            value = getattr(config, name, None)
        except Exception:  # the configuration has a value of this setting for each layer
            continue
        yield name, value


def _smaller(config: Any, name: str, value: Any, sizes: Sizes, free_tokens: Iterator[int]) -> Any:
    """Returns the small value of one setting, or `_SAME`; `free_tokens` yields ids for special tokens, largest
    first.
    """
    if value is None:
        return USUAL[name](sizes) if sizes.fill and name in USUAL else _SAME
    if isinstance(value, int) and name == "num_key_value_heads" and value == _attention_heads(config):
        return heads(value, sizes)
    if hasattr(value, "to_diff_dict"):
        return _nested_settings(value, sizes)
    if isinstance(value, dict):
        return _small_rotary_sections(value, sizes)
    if isinstance(value, bool) or name.startswith("_"):
        return _SAME
    if isinstance(value, int):
        return _smaller_number(name, value, sizes, free_tokens)
    short = _short_list(name, value, sizes) if isinstance(value, (list, tuple)) else None
    return _SAME if short is None else type(value)(short)


def _attention_heads(config: Any) -> Any:
    return getattr(config, "num_attention_heads", None)


def _nested_settings(config: Any, sizes: Sizes) -> dict[str, Any]:
    """Returns all settings of a nested configuration, made small."""
    smaller = small_settings(config, sizes)
    settings = config.to_diff_dict() | smaller | fit_stages(config, smaller)
    settings.pop("transformers_version", None)
    return {"model_type": config.model_type, **settings} if config.model_type else settings


def _small_rotary_sections(value: dict[str, Any], sizes: Sizes) -> Any:
    """Returns rotary settings whose three sections add up to half the width of a small head, or `_SAME`."""
    if "mrope_section" not in value or not (sizes.narrow and sizes.head):
        return _SAME
    third = sizes.width // sizes.heads // 6
    return value | {"mrope_section": [sizes.width // sizes.heads // 2 - 2 * third, third, third]}


def _smaller_number(name: str, value: int, sizes: Sizes, free_tokens: Iterator[int]) -> Any:
    if _TOKEN.search(name) and value >= VOCABULARY - 24:
        return _special_token(name, next(free_tokens))
    small = small_number(name, value, sizes)
    return small if small != value else _SAME


def fit_stages(config: Any, small: dict[str, Any]) -> dict[str, Any]:
    """Returns settings by which a backbone with fewer layers has as many outputs as before, taken from its last
    layers.
    """
    indices = getattr(config, "out_indices", None)
    layers = small.get("num_hidden_layers")
    if not indices or layers is None or layers + 1 < len(indices):
        return {}
    kept = [layers - index for index in reversed(range(len(indices)))]
    return {"out_indices": kept, "out_features": None}


def small_number(name: str, value: int, sizes: Sizes) -> int:
    """Returns a smaller integer for the field of that name, or the same value."""
    if _IMAGE.search(name):
        return sizes.image if sizes.image and value > sizes.image else value
    if LAYERS.search(name):
        return min(value, sizes.layers)
    for pattern, rule in _COMPILED:
        if pattern.search(name):
            return rule(value, sizes)
    return value


def _special_token(name: str, otherwise: int) -> int:
    """Returns the small id of a special token; a configuration and those nested in it get the same one."""
    key = re.sub(r"_(index|id|idx)$", "", name)
    order = ("image_token", "video_token", "audio_token", "bos_token", "eos_token", "pad_token", "vision_start_token")
    return VOCABULARY - 1 - order.index(key) if key in order else otherwise - len(order)


def _short_list(name: str, value: Any, sizes: Sizes) -> list[Any] | None:
    if not all(type(v) is int for v in value):
        return None
    if _IMAGE.search(name) and sizes.image:
        return [min(v, sizes.image) for v in value]
    if _DEPTHS.search(name) and len(value) < 6:
        return [min(v, 1) for v in value]
    if _TOKEN.search(name) and value and max(value) >= VOCABULARY:
        return [VOCABULARY - 20 - index for index in range(len(value))]
    return None


def _fit_layer_lists(config: Any, found: dict[str, Any], sizes: Sizes) -> None:
    """Shorten lists with one entry per layer to one entry of each kind, and set the number of layers accordingly."""
    layers = getattr(config, "num_hidden_layers", None)
    if not isinstance(layers, int) or layers <= sizes.layers:
        return
    odd_layers = config.to_diff_dict().get("per_layer_config")
    lists = _lists_of_layers(config, layers)
    kept = _kept_layers(lists, sizes)
    if not kept:
        return
    fields = {field.name for field in dataclasses.fields(config)}
    for name, value in lists.items():
        if name in fields:
            found[name] = [value[index] for index in kept]
    found["num_hidden_layers"] = len(kept)
    if isinstance(odd_layers, dict):
        found["per_layer_config"] = {
            kept.index(int(index)): _small_overrides(changed, sizes)
            for index, changed in odd_layers.items()
            if int(index) in kept
        }


def _lists_of_layers(config: Any, layers: int) -> dict[str, Any]:
    """Returns the settings that have one entry per layer."""
    return {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, (list, tuple)) and len(value) == layers and not name.startswith("_")
    }


def _kept_layers(lists: dict[str, Any], sizes: Sizes) -> list[int]:
    """Returns the indices of the first layer of each kind, at most six, or of the first `sizes.layers` layers if there
    are fewer kinds; empty if the entries of layers cannot be compared.
    """
    kinds = list(zip(*lists.values(), strict=True))
    if any(isinstance(item, (dict, list)) for kind in kinds for item in kind):
        return []
    kept = sorted({kinds.index(kind) for kind in kinds})[:6]
    return kept if not lists or len(kept) >= sizes.layers else list(range(sizes.layers))


def _small_overrides(changed: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Returns the settings that a configuration overrides for a single layer, shrunk like the others."""
    found = {key: small_number(key, each, sizes) if type(each) is int else each for key, each in changed.items()}
    if changed.get("num_key_value_heads") == changed.get("num_attention_heads") is not None:
        found["num_key_value_heads"] = found["num_attention_heads"]
    return found
