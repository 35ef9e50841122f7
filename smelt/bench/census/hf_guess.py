"""Guesses inputs of a Hugging Face model from its configuration: token ids, images, audio, hidden states."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from smelt.bench.census.examine import SEED
from smelt.bench.census.shrink import VOCABULARY

BATCH, LENGTH = 2, 12
TOKENS = VOCABULARY - 32
"""Exclusive upper limit of token ids: no smaller id is a special token of a small model."""

Maker = Callable[[], Tensor]


class Guess:
    """Possible inputs of a model.

    Args:
        model: the model in eval mode.
        tokens: number of placeholder tokens of images (or audio) in the text of the whole batch.
    """

    def __init__(self, model: nn.Module, tokens: int = 0) -> None:
        self.model, self.tokens = model, tokens
        self.config = model.config
        self.configs = [self.config, *(v for v in vars(self.config).values() if hasattr(v, "to_diff_dict"))]
        self.generator = torch.Generator().manual_seed(SEED)

    def setting(self, *names: str, default: Any = None) -> Any:
        """Returns the first of the named settings that the configuration, or one nested in it, has; `default` if it has
        none.
        """
        for name in names:
            for config in self.configs:
                value = getattr(config, name, None)
                if value is not None and value is not False:
                    return value
        return default

    def integers(self, *shape: int, high: int = TOKENS, low: int = 3) -> Tensor:
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    # -- text ---------------------------------------------------------------------------------------------------------

    def ids(self) -> Tensor:
        """Make token ids, with placeholder tokens for images."""
        vocabulary = self.setting("vocab_size", default=VOCABULARY)
        vocabulary = vocabulary if isinstance(vocabulary, int) else VOCABULARY
        found = self.integers(BATCH, LENGTH, high=min(TOKENS, vocabulary))
        token = self.setting("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
        if not self.tokens or not isinstance(token, int):
            return found
        each = self.tokens // BATCH
        start = self.setting("vision_start_token_id", default=None)
        before = found[:, :2] if start is None else torch.full((BATCH, 1), start)
        return torch.cat([before, torch.full((BATCH, each), token), found[:, 2:]], dim=1)

    def texts(self) -> Iterator[Maker]:
        """Yields makers of token ids, with several codebooks if the model has them."""
        yield self.ids
        books = self.setting("num_codebooks", "num_channels", "num_quantizers")
        if isinstance(books, int):
            yield lambda: self.integers(BATCH * books, LENGTH)
            yield lambda: self.integers(BATCH, LENGTH, books)
            yield lambda: self.integers(BATCH, books, LENGTH)

    def length(self) -> int:
        return int(self.ids().shape[1])

    def boxes(self) -> Tensor:
        """Make the corners of boxes on a page of 100 x 100; the second corner is right of and below the first."""
        corner = self.integers(BATCH, self.length(), 2, high=20)
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
        """Make a mask of ones, one for each pixel or, if images come as patches of any arrangement, for each patch."""
        patches = "spatial_shapes" in inspect.signature(self.model.forward).parameters
        return torch.ones(BATCH, *((16,) if patches else self.edges())).long()

    def frames(self) -> int:
        found = self.setting("num_frames", "frames_per_clip", "num_audio_encoder_frames", default=2)
        return min(found, 16) if isinstance(found, int) else 2

    def patch(self) -> int:
        found = self.setting("patch_size", default=16)
        return int(found) if isinstance(found, int) else int(found[-1])

    def images(self) -> Iterator[Maker]:
        """Yields makers of images, videos and flattened patches in the layouts that models take."""
        height, width = self.edges()
        channels = self.channels()
        patch, time = self.patch(), self.setting("temporal_patch_size", default=1)
        flat = functools.partial(self.normal, BATCH * 16, channels * time * patch * patch)
        if "grid" in " ".join(inspect.signature(self.model.forward).parameters):
            yield flat
            yield lambda: self.normal(BATCH * 16, channels * 2 * patch * patch)
            yield lambda: self.normal(BATCH * 16, channels, patch, patch)
        yield lambda: self.normal(BATCH, channels, height, width)
        yield lambda: self.normal(BATCH, 1, channels, height, width)
        yield lambda: self.normal(BATCH, self.frames(), channels, height, width)
        yield lambda: self.normal(BATCH, channels, self.frames(), height, width)
        yield flat
        yield lambda: self.normal(BATCH, 16, channels * patch * patch)
        yield lambda: self.normal(BATCH, 1, self.setting("max_num_tiles", default=4), channels, height, width)
        for edge in (64, 128, 224, 256):
            if edge not in (height, width):
                yield functools.partial(self.normal, BATCH, channels, edge, edge)

    def sounds(self) -> Iterator[Maker]:
        """Yields makers of spectrograms and of audio samples in the layouts that models take."""
        bands = self.setting(
            "feature_projection_input_dim",
            "num_mel_bins",
            "n_mels",
            "input_feat_per_channel",
            "feature_size",
            "input_dim",
            default=80,
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
        """Yields makers of masks of ones, one for every frame of each of the spectrograms above."""
        positions = self.setting("max_source_positions", "max_length", default=1024)
        lengths = (2 * min(positions, 1500), 64, positions) if isinstance(positions, int) else (64, 1024)
        for length in dict.fromkeys((64, *lengths)):
            yield functools.partial(torch.ones, BATCH, length, dtype=torch.bool)
        yield functools.partial(torch.ones, BATCH, 64, dtype=torch.long)

    def samples(self) -> Iterator[Maker]:
        yield lambda: self.normal(BATCH, 3840)  # a multiple of the segment lengths into which models split audio
        yield lambda: self.normal(BATCH, 1, 3840)
        yield lambda: self.normal(BATCH, 16000)

    def hidden(self) -> Iterator[Maker]:
        """Yields makers of hidden states of the model's own width and of feature maps."""
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
