"""Finds inputs for a Hugging Face model: guesses them by parameter names, and corrects them by error messages."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from smelt.bench.census.hf_guess import BATCH, LENGTH, Guess, Maker

NAMES: tuple[tuple[str, Callable[[Guess], Maker | Iterator[Maker]]], ...] = (
    (r"input_ids|decoder_input_ids|text_input_ids|tgt_ids|input_tokens|question_ids", lambda g: g.texts()),
    (
        r"attention_mask|text_attention_mask|qformer_attention_mask",
        lambda g: lambda: torch.ones(BATCH, g.length()).long(),
    ),
    (r"token_type_ids|mm_token_type_ids", lambda g: lambda: _types(g)),
    (r"bbox|boxes", lambda g: g.boxes),
    (r"qformer_input_ids", lambda g: lambda: g.integers(BATCH, 6)),
    (r"pixel_values|flattened_patches|pixel_values_images|image|images|image_pixel_values", lambda g: g.images()),
    (r"pixel_values_videos|video_values|codebook_pixel_values", lambda g: g.images()),
    (r"image_grid_thw|grid_thw|image_grid_hws|spatial_shapes|image_sizes|grid_hw|target_sizes", lambda g: g.grid()),
    (r"pixel_attention_mask|pixel_mask", lambda g: g.pixel_mask),
    (r"(input_)?features_mask|input_features_mask|audio_mel_mask", lambda g: g.sound_masks()),
    (r"pixel_position_ids|image_position_ids", lambda g: lambda: torch.zeros(BATCH, 16, 2).long()),
    (
        r"input_features|features|spectrogram|audio_features|input_audio_features|mel_spec|audio_mel",
        lambda g: g.sounds(),
    ),
    (
        r"input_values|raw_waveform|audio_values|waveform|audio|hidden_audio",
        lambda g: itertools.chain(g.samples(), g.sounds()),
    ),
    (r"audio_codes|codes|labels_codes|input_codes|codebook_indices", lambda g: lambda: g.integers(BATCH, 4, LENGTH)),
    (r"input_points|point_coords", lambda g: lambda: g.normal(BATCH, 1, 2, 2)),
    (r"past_time_features|future_time_features", lambda g: _times(g)),
    (r"past_values|past_observed_mask|inputs|state_features", lambda g: _series(g)),
    (r"states|actions|rewards|returns_to_go", lambda g: _trajectory(g)),
    (r"timesteps", lambda g: lambda: torch.arange(LENGTH).repeat(BATCH, 1)),
    (r"visual_feats", lambda g: lambda: g.normal(BATCH, 8, g.setting("visual_feat_dim", default=32))),
    (r"visual_pos", lambda g: lambda: g.normal(BATCH, 8, 4)),
    (r"aspect_ratio_ids", lambda g: lambda: torch.ones(BATCH, 1).long()),
    (r"aspect_ratio_mask", lambda g: lambda: torch.ones(BATCH, 1, g.setting("max_num_tiles", default=4)).long()),
    (
        r"hidden_states?|inputs_embeds|encoder_hidden_states|embeddings?|query_embeds|x|image_embeds?|features?_map|"
        r"query_states|sequence_output|image_features|latents?",
        lambda g: g.hidden(),
    ),
    (r"decoder_input_values", lambda g: iter([lambda: g.normal(BATCH, LENGTH, g.setting("num_mel_bins", default=80))])),
)
"""Maker of candidates by regular expression of the parameter's name; the first pattern that matches the whole name
applies.
"""

OPTIONAL = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "bbox", "decoder_input_ids", "pixel_values", "input_features"}
    | {"input_values", "image_grid_thw", "past_values", "mm_token_type_ids"}
)
"""Parameters that have a default and still get values, if a model takes them."""


def makers_of(guess: Guess, name: str) -> list[Maker]:
    """Returns candidates for the parameter of that name, likeliest first; with an empty list the parameter is
    left out.
    """
    for pattern, make in NAMES:
        if re.fullmatch(pattern, name):
            found = make(guess)
            return [found] if callable(found) else list(found)
    return []


MASKS = frozenset({"input_features_mask", "features_mask", "pixel_attention_mask", "pixel_mask"})
"""Names of masks that have a default, but without which some models fail."""

STATES = (
    frozenset({"encoder_hidden_states", "input_ids", "hidden_states", "query_embeds", "visual_feats", "visual_pos"})
    | {"states", "actions", "rewards", "returns_to_go", "timesteps", "future_time_features"}
    | MASKS
)
"""Parameters that have a default, but without which some models fail that are components of other models."""


def _types(guess: Guess) -> Tensor:
    token = guess.setting("image_token_id", "image_token_index", default=-1)
    return (guess.ids() == token).long()


def _series(guess: Guess) -> Iterator[Maker]:
    length = guess.setting("context_length", "prediction_length", default=32)
    lags = guess.setting("lags_sequence", default=[0])
    length_with_lags = length + (max(lags) if isinstance(lags, (list, tuple)) and lags else 0)
    channels = guess.setting("num_input_channels", "input_size", default=1)
    yield lambda: guess.normal(BATCH, length_with_lags, channels)
    yield lambda: guess.normal(BATCH, length_with_lags)


def _times(guess: Guess) -> Iterator[Maker]:
    """Yields makers of the features of each time step of a series: for the past, then for the future."""
    features = guess.setting("num_time_features", default=1)
    past = next(_series(guess))().shape[1]
    yield lambda: guess.normal(BATCH, past, features)
    yield lambda: guess.normal(BATCH, guess.setting("prediction_length", default=4), features)


def _trajectory(guess: Guess) -> Iterator[Maker]:
    """Yields makers of the states, actions and rewards of an agent."""
    for width in (guess.setting("state_dim", default=17), guess.setting("act_dim", default=4), 1):
        yield functools.partial(guess.normal, BATCH, LENGTH, width)


def choices(model: nn.Module) -> Iterator[tuple[list[str], list[str]]]:
    """Yields sets of parameters to try, richest first, as (names, those of them that are required)."""
    parameters = inspect.signature(model.forward).parameters
    needed = [name for name, parameter in parameters.items() if _is_needed(parameter)]
    main = getattr(model, "main_input_name", "input_ids")

    def needed_and(those: Container[str], of: Iterable[str] = parameters) -> list[str]:
        return [*needed, *(name for name in of if name in those and name not in needed)]

    sets = [
        needed_and(OPTIONAL),
        needed_and(OPTIONAL - {"past_values", "decoder_input_ids"}),
        needed_and(OPTIONAL & {"input_ids", "attention_mask", "decoder_input_ids"}),
        needed_and(parameters, of=(main, "decoder_input_ids")),
        needed_and(parameters, of=(main,)),
        needed,
        needed_and(MASKS | OPTIONAL),
        needed_and(STATES),
    ]
    seen: list[list[str]] = []
    for names in sets:
        if names and names not in seen:
            seen.append(names)
            yield names, needed


def _is_needed(parameter: inspect.Parameter) -> bool:
    """Whether a call must give this parameter a value."""
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return False
    return parameter.default is parameter.empty and not _may_be_none(parameter)


def _may_be_none(parameter: inspect.Parameter) -> bool:
    return "None" in str(parameter.annotation) and "torch" not in str(parameter.annotation)


COUNT = re.compile(r"features?:? (\d+)|(\d+) (?:image|audio|video) features|n_features=(\d+)")


MAX_PICKS = 24
"""Maximum number of combinations of candidates that are tried for one set of parameters."""


def find_inputs(model: nn.Module, tries: int = 100) -> dict[str, Any]:
    """Returns keyword arguments that the model's forward accepts.

    Raises:
        Exception: no arguments were found; this is the first error that the model raised.
    """
    first: Exception | None = None
    used = 0
    for names, needed in choices(model):
        makers = {name: makers_of(Guess(model), name) for name in names}
        unknown = [name for name in needed if not makers[name]]
        if unknown:
            first = first or TypeError(f"no inputs are known for {', '.join(unknown)}")
            continue
        known = _given_names(names, needed, makers)
        picks_of_all = itertools.product(*(range(len(makers[name])) for name in known))
        for picks in itertools.islice(picks_of_all, MAX_PICKS):
            used += 1
            if used > tries:
                break
            try:
                return _attempt(model, known, picks)
            except Exception as error:
                first = first or error
    raise first or TypeError("its forward takes nothing by name")


def _given_names(names: list[str], needed: list[str], makers: dict[str, list[Maker]]) -> list[str]:
    """Returns the parameters for which there are candidates; an optional attention mask is given only together with
    token ids.
    """
    known = [name for name in names if makers[name]]
    if "input_ids" in known:
        return known
    return [name for name in known if name != "attention_mask" or name in needed]


def _attempt(model: nn.Module, names: list[str], picks: tuple[int, ...], tokens: int = 0) -> dict[str, Any]:
    guess = Guess(model, tokens)
    given = {name: makers_of(guess, name)[pick]() for name, pick in zip(names, picks, strict=True)}
    try:
        with torch.no_grad():
            model(**{name: value.clone() for name, value in given.items()})
    except Exception as error:
        # A model with more image features than placeholders in the text names their number in its error.
        found = COUNT.search(str(error))
        wanted = int(next(filter(None, found.groups()))) if found else 0
        if not tokens and wanted and "input_ids" in names:
            for count in dict.fromkeys((wanted, wanted * BATCH, wanted // 32)):
                try:
                    return _attempt(model, names, picks, max(count, BATCH))
                except Exception:
                    continue
        raise
    return given
