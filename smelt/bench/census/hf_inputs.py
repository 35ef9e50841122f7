"""Inputs for any Hugging Face model: guessed by the names of forward's parameters, corrected by what the model says."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from smelt.bench.census.examine import SEED
from smelt.bench.census.shrink import VOCABULARY

BATCH, LENGTH = 2, 12
TOKENS = VOCABULARY - 32
"""Ids below this one are never special tokens of a small model."""

Maker = Callable[[], Tensor]


class Guess:
    """What may go into a model.

    Args:
        model: built, in eval mode.
        tokens: how many placeholder tokens of images (or sounds) the text of the whole batch has.
    """

    def __init__(self, model: nn.Module, tokens: int = 0) -> None:
        self.model, self.tokens = model, tokens
        self.config = model.config
        self.parts = [self.config, *(v for v in vars(self.config).values() if hasattr(v, "to_diff_dict"))]
        self.generator = torch.Generator().manual_seed(SEED)

    def setting(self, *names: str, default: Any = None) -> Any:
        """The first of these settings that the configuration, or a part of it, has."""
        for name in names:
            for part in self.parts:
                value = getattr(part, name, None)
                if value is not None and value is not False:
                    return value
        return default

    def whole(self, *shape: int, high: int = TOKENS, low: int = 3) -> Tensor:
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    # -- text ---------------------------------------------------------------------------------------------------------

    def ids(self) -> Tensor:
        """Token ids; with placeholders where an image belongs."""
        vocabulary = self.setting("vocab_size", default=VOCABULARY)
        vocabulary = vocabulary if isinstance(vocabulary, int) else VOCABULARY
        found = self.whole(BATCH, LENGTH, high=min(TOKENS, vocabulary))
        token = self.setting("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
        if not self.tokens or not isinstance(token, int):
            return found
        each = self.tokens // BATCH
        start = self.setting("vision_start_token_id", default=None)
        before = found[:, :2] if start is None else torch.full((BATCH, 1), start)
        return torch.cat([before, torch.full((BATCH, each), token), found[:, 2:]], dim=1)

    def length(self) -> int:
        return int(self.ids().shape[1])

    def boxes(self) -> Tensor:
        """Corners of boxes on a page of 100 x 100, the second right of and below the first."""
        corner = self.whole(BATCH, self.length(), 2, high=20)
        return torch.cat([corner, corner + 10], dim=-1)

    # -- images and sound -----------------------------------------------------------------------------------------

    def edges(self) -> tuple[int, int]:
        found = self.setting("image_size", "img_size", "input_size", "crop_size", default=64)
        if isinstance(found, dict):
            found = [v for v in found.values() if isinstance(v, int)]
        if isinstance(found, (list, tuple)):
            return (int(found[-2]), int(found[-1])) if len(found) > 1 else (int(found[0]),) * 2
        return int(found), int(found)

    def channels(self) -> int:
        found = self.setting("num_channels", "in_channels", "in_chans", "image_channels", default=3)
        return found if isinstance(found, int) else 3

    def pixel_mask(self) -> Tensor:
        """Ones, one for each pixel or (where images come as patches of any arrangement) for each patch."""
        patches = "spatial_shapes" in inspect.signature(self.model.forward).parameters
        return torch.ones(BATCH, *((16,) if patches else self.edges())).long()

    def frames(self) -> int:
        found = self.setting("num_frames", "frames_per_clip", "num_audio_encoder_frames", default=2)
        return min(found, 16) if isinstance(found, int) else 2

    def patch(self) -> int:
        found = self.setting("patch_size", default=16)
        return int(found) if isinstance(found, int) else int(found[-1])

    def images(self) -> Iterator[Maker]:
        """Images, clips and flattened patches in the layouts that models take."""
        height, width = self.edges()
        channels = self.channels()
        patch, time = self.patch(), self.setting("temporal_patch_size", default=1)
        flat = functools.partial(self.normal, BATCH * 16, channels * time * patch * patch)
        if "grid" in " ".join(inspect.signature(self.model.forward).parameters):
            yield flat
        yield lambda: self.normal(BATCH, channels, height, width)
        yield lambda: self.normal(BATCH, 1, channels, height, width)
        yield lambda: self.normal(BATCH, self.frames(), channels, height, width)
        yield lambda: self.normal(BATCH, channels, self.frames(), height, width)
        yield flat
        yield lambda: self.normal(BATCH, 16, channels * patch * patch)
        for edge in (64, 128, 224, 256):
            if edge not in (height, width):
                yield functools.partial(self.normal, BATCH, channels, edge, edge)

    def sounds(self) -> Iterator[Maker]:
        """Spectrograms in the layouts that models take, and samples."""
        bands = self.setting(
            "num_mel_bins", "n_mels", "input_feat_per_channel", "feature_size", "input_dim", default=80
        )
        bands = bands if isinstance(bands, int) else 80
        positions = self.setting("max_source_positions", "max_length", default=None)
        if isinstance(positions, int):
            yield lambda: self.normal(BATCH, bands, 2 * min(positions, 1500))
        yield lambda: self.normal(BATCH, bands, 64)
        yield lambda: self.normal(BATCH, 64, bands)
        frames = positions if isinstance(positions, int) else 1024
        yield lambda: self.normal(BATCH, frames, bands)
        yield lambda: self.normal(BATCH, 1, 64, bands)
        yield lambda: self.normal(BATCH, 1, frames, bands)
        width = self.setting("hidden_size", default=32)
        yield lambda: self.normal(BATCH, 64, width if isinstance(width, int) else 32)
        yield from self.samples()

    def sound_masks(self) -> Iterator[Maker]:
        """Ones for every frame of each of the spectrograms above."""
        positions = self.setting("max_source_positions", "max_length", default=1024)
        lengths = (2 * min(positions, 1500), 64, positions) if isinstance(positions, int) else (64, 1024)
        for length in dict.fromkeys((64, *lengths)):
            yield functools.partial(torch.ones, BATCH, length, dtype=torch.bool)
        yield functools.partial(torch.ones, BATCH, 64, dtype=torch.long)

    def samples(self) -> Iterator[Maker]:
        yield lambda: self.normal(BATCH, 3840)  # a multiple of what models cut sound into
        yield lambda: self.normal(BATCH, 1, 3840)
        yield lambda: self.normal(BATCH, 16000)

    def hidden(self) -> Iterator[Maker]:
        """Hidden states of the model's own width, and maps of features."""
        wide = self.setting("hidden_size", "d_model", "hidden_dim", "decoder_hidden_size", default=32)
        wide = wide if isinstance(wide, int) else 32
        if "grid_thw" in inspect.signature(self.model.forward).parameters:
            yield next(self.images())
        yield lambda: self.normal(BATCH, LENGTH, wide)
        yield lambda: self.normal(BATCH, wide, LENGTH)
        yield lambda: self.normal(BATCH, wide, 8, 8)
        yield lambda: self.normal(BATCH * LENGTH, wide)
        yield lambda: self.normal(BATCH, 16, 16, wide)

    def grid(self) -> Iterator[Maker]:
        grids = [[1, 4, 4]] * BATCH, [[4, 4]] * BATCH
        flat = "spatial_shapes" in inspect.signature(self.model.forward).parameters
        for grid in reversed(grids) if flat else grids:
            yield functools.partial(torch.tensor, grid)

    # -- by name ------------------------------------------------------------------------------------------------------

    def makers(self, name: str) -> list[Maker]:
        """Candidates for the parameter of that name, likeliest first; none: it is left out."""
        for pattern, make in NAMES:
            if re.fullmatch(pattern, name):
                found = make(self)
                return [found] if callable(found) else list(found)
        return []


NAMES: tuple[tuple[str, Callable[[Guess], Maker | Iterator[Maker]]], ...] = (
    (r"input_ids|decoder_input_ids|text_input_ids|tgt_ids|input_tokens|question_ids", lambda g: g.ids),
    (
        r"attention_mask|text_attention_mask|qformer_attention_mask",
        lambda g: lambda: torch.ones(BATCH, g.length()).long(),
    ),
    (r"token_type_ids|mm_token_type_ids", lambda g: lambda: _types(g)),
    (r"bbox|boxes", lambda g: g.boxes),
    (r"qformer_input_ids", lambda g: lambda: g.whole(BATCH, 6)),
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
    (r"audio_codes|codes|labels_codes|input_codes|codebook_indices", lambda g: lambda: g.whole(BATCH, 4, LENGTH)),
    (r"input_points|point_coords", lambda g: lambda: g.normal(BATCH, 1, 2, 2)),
    (r"past_values|past_observed_mask|past_time_features|inputs|state_features", lambda g: _series(g)),
    (
        r"hidden_states?|inputs_embeds|encoder_hidden_states|embeddings?|query_embeds|x|image_embeds?|features?_map|"
        r"query_states|sequence_output|image_features|latents?",
        lambda g: g.hidden(),
    ),
    (r"decoder_input_values", lambda g: iter([lambda: g.normal(BATCH, LENGTH, g.setting("num_mel_bins", default=80))])),
)
"""Maker by parameter name; the first pattern that fits whole decides."""

OPTIONAL = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "bbox", "decoder_input_ids", "pixel_values", "input_features"}
    | {"input_values", "image_grid_thw", "past_values", "mm_token_type_ids"}
)
"""Parameters with a default that are given all the same, where a model takes them."""


MASKS = frozenset({"input_features_mask", "features_mask", "pixel_attention_mask", "pixel_mask"})
"""Parameters with a default that some models cannot do without."""

STATES = frozenset({"encoder_hidden_states", "input_ids", "hidden_states", "query_embeds"}) | MASKS
"""The same, of models that are parts of others."""


def _types(guess: Guess) -> Tensor:
    token = guess.setting("image_token_id", "image_token_index", default=-1)
    return (guess.ids() == token).long()


def _series(guess: Guess) -> Iterator[Maker]:
    length = guess.setting("context_length", "prediction_length", default=32)
    lags = guess.setting("lags_sequence", default=[0])
    whole = length + (max(lags) if isinstance(lags, (list, tuple)) and lags else 0)
    channels = guess.setting("num_input_channels", "input_size", default=1)
    yield lambda: guess.normal(BATCH, whole, channels)
    yield lambda: guess.normal(BATCH, whole)


def choices(model: nn.Module) -> Iterator[tuple[list[str], list[str]]]:
    """Sets of parameters to try, richest first: (names, those that must be there)."""
    parameters = inspect.signature(model.forward).parameters
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and not _may_be_none(parameter)
    ]
    main = getattr(model, "main_input_name", "input_ids")
    optional = [name for name in parameters if name in OPTIONAL and name not in needed]
    sets = [
        [*needed, *optional],
        [*needed, *(name for name in optional if name not in ("past_values", "decoder_input_ids"))],
        [*needed, *(name for name in optional if name in ("input_ids", "attention_mask", "decoder_input_ids"))],
        [*needed, *(name for name in (main, "decoder_input_ids") if name in parameters and name not in needed)],
        [*needed, *(name for name in (main,) if name in parameters and name not in needed)],
        needed,
        [*needed, *(name for name in parameters if name in MASKS | OPTIONAL and name not in needed)],
        [*needed, *(name for name in parameters if name in STATES and name not in needed)],
    ]
    seen: list[list[str]] = []
    for names in sets:
        if names and names not in seen:
            seen.append(names)
            yield names, needed


def _may_be_none(parameter: inspect.Parameter) -> bool:
    return "None" in str(parameter.annotation) and "torch" not in str(parameter.annotation)


COUNT = re.compile(r"features?:? (\d+)|(\d+) (?:image|audio|video) features|n_features=(\d+)")


def find_inputs(model: nn.Module, tries: int = 100) -> dict[str, Any]:
    """Keyword arguments that the model's forward accepts.

    Raises:
        Exception: none were found; the first error that the model raised.
    """
    first: Exception | None = None
    used = 0
    for names, needed in choices(model):
        makers = {name: Guess(model).makers(name) for name in names}
        unknown = [name for name in needed if not makers[name]]
        if unknown:
            first = first or TypeError(f"no inputs are known for {', '.join(unknown)}")
            continue
        known = [name for name in names if makers[name]]
        if "input_ids" not in known:  # a mask is one of tokens
            known = [name for name in known if name != "attention_mask" or name in needed]
        for picks in itertools.islice(itertools.product(*(range(len(makers[name])) for name in known)), 24):
            used += 1
            if used > tries:
                break
            try:
                return _attempt(model, known, picks)
            except Exception as error:
                first = first or error
    raise first or TypeError("its forward takes nothing by name")


def _attempt(model: nn.Module, names: list[str], picks: tuple[int, ...], tokens: int = 0) -> dict[str, Any]:
    guess = Guess(model, tokens)
    given = {name: guess.makers(name)[pick]() for name, pick in zip(names, picks, strict=True)}
    try:
        with torch.no_grad():
            model(**{name: value.clone() for name, value in given.items()})
    except Exception as error:
        # A model that counts more features of images than placeholders in the text says how many it has.
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
