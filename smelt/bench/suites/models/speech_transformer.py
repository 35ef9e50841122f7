"""Speech-Transformer (Dong, Xu, Xu: "Speech-Transformer: A No-Recurrence Sequence-to-Sequence Model for Speech
Recognition", 2018), without its convolutional front end: acoustic frames in, logits of characters out.

As in the implementation of the public benchmark, which makes this model hard to compile, targets of different lengths
are selected by boolean indexing row by row, so that shapes depend on values; Python loops over the batch assign slices
whose bounds are tensors (`mask[i, lengths[i]:] = 0`); masks are multiplied in place; and the output is the pair
(logits, gold). The decoder's input table and its output projection are one parameter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

CPU = {"features": 32, "vocabulary": 100, "width": 64, "inner": 128, "layers": 2, "heads": 4}
FULL = {"features": 320, "vocabulary": 4232, "width": 512, "inner": 2048, "layers": 6, "heads": 8}

IGNORED = -1  # pads the targets that are passed in and the targets that are returned


def sinusoids(length: int, width: int) -> Tensor:
    """Returns sines and cosines of positions, of shape (1, length, width) (Vaswani et al. 2017, section 3.5)."""
    angles = torch.arange(length).unsqueeze(1) * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).reshape(1, length, width)


def frame_mask(x: Tensor, lengths: Tensor) -> Tensor:
    """Returns a mask (batch, time, 1) for x (batch, time, any): ones up to each row's length, then zeros; lengths is
    (batch,).
    """
    mask = x.new_ones(x.shape[:-1])
    for i in range(x.size(0)):
        mask[i, lengths[i] :] = 0
    return mask.unsqueeze(-1)


def hidden_frames(x: Tensor, lengths: Tensor, queries: int) -> Tensor:
    """Returns a mask (batch, queries, time) that is true for frames of padding, whose position is at least the row's
    length.
    """
    return frame_mask(x, lengths).squeeze(-1).lt(1).unsqueeze(1).expand(-1, queries, -1)


def hidden_tokens(ids: Tensor, padding: int) -> Tensor:
    """Returns a mask (batch, length, length) that is true if the key is padding or later than the query."""
    length = ids.size(1)
    later = torch.triu(torch.ones((length, length), device=ids.device, dtype=torch.uint8), diagonal=1)
    return ids.eq(padding).unsqueeze(1).expand(-1, length, -1) | later.unsqueeze(0).expand(ids.size(0), -1, -1).gt(0)


def pad(rows: list[Tensor], value: int) -> Tensor:
    """Returns rows of different lengths as one tensor (rows, longest row), padded with `value`."""
    padded = rows[0].new_full((len(rows), max(row.size(0) for row in rows)), value)
    for i, row in enumerate(rows):
        padded[i, : row.size(0)] = row
    return padded


class Attention(nn.Module):
    """Multi-head attention over (batch * heads) with a residual sum and normalisation; `hidden` is true for masked
    keys.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.softmax = nn.Softmax(dim=2)
        self.weight_dropout = nn.Dropout(dropout)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)
        for layer in (self.query, self.key, self.value, self.output):
            nn.init.xavier_normal_(layer.weight)

    def split(self, x: Tensor) -> Tensor:
        """Reshape (batch, length, width) to (heads * batch, length, width / heads)."""
        batch, length, width = x.shape
        x = x.view(batch, length, self.heads, width // self.heads).permute(2, 0, 1, 3)
        return x.contiguous().view(-1, length, width // self.heads)

    def forward(self, queries: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        batch, length, width = queries.shape
        query, key, value = self.split(self.query(queries)), self.split(self.key(keys)), self.split(self.value(keys))
        scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(query.size(-1))
        scores = scores.masked_fill(hidden.repeat(self.heads, 1, 1), -math.inf)
        mixed = torch.bmm(self.weight_dropout(self.softmax(scores)), value)
        mixed = mixed.view(self.heads, batch, length, -1).permute(1, 2, 0, 3).contiguous().view(batch, length, width)
        return self.norm(self.dropout(self.output(mixed)) + queries)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, followed by a residual sum and normalisation."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(width, inner)
        self.narrow = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.dropout(self.narrow(functional.relu(self.widen(x)))) + x)


class EncoderLayer(nn.Module):
    """Self-attention and the feed-forward network; frames of padding are set to zero after each."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.feed_forward = FeedForward(width, inner, dropout)

    def forward(self, x: Tensor, keep: Tensor, hidden: Tensor) -> Tensor:
        x = self.attention(x, x, hidden)
        x *= keep
        x = self.feed_forward(x)
        x *= keep
        return x


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder's states, the feed-forward network; padding is set to zero after
    each.
    """

    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.cross_attention = Attention(width, heads, dropout)
        self.feed_forward = FeedForward(width, inner, dropout)

    def forward(self, x: Tensor, states: Tensor, keep: Tensor, hidden: Tensor, states_hidden: Tensor) -> Tensor:
        x = self.attention(x, x, hidden)
        x *= keep
        x = self.cross_attention(x, states, states_hidden)
        x *= keep
        x = self.feed_forward(x)
        x *= keep
        return x


class Encoder(nn.Module):
    """Maps frames (batch, time, features) and their lengths (batch,) to states (batch, time, width)."""

    positions: Tensor

    def __init__(
        self, features: int, width: int, inner: int, layers: int, heads: int, longest: int, dropout: float
    ) -> None:
        super().__init__()
        self.input = nn.Linear(features, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("positions", sinusoids(longest, width))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(width, inner, heads, dropout) for _ in range(layers))

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        keep = frame_mask(frames, lengths)
        hidden = hidden_frames(frames, lengths, frames.size(1))
        x = self.dropout(self.norm(self.input(frames)) + self.positions[:, : frames.size(1)])
        for layer in self.layers:
            x = layer(x, keep, hidden)
        return x


class Decoder(nn.Module):
    """Maps padded targets (batch, length) and the encoder's states to logits (batch, longest + 1, vocabulary)
    and gold.
    """

    positions: Tensor

    def __init__(
        self, vocabulary: int, width: int, inner: int, layers: int, heads: int, longest: int, dropout: float
    ) -> None:
        super().__init__()
        self.start, self.end = vocabulary - 2, vocabulary - 1
        self.scale = math.sqrt(width)
        self.token = nn.Embedding(vocabulary, width)
        self.register_buffer("positions", sinusoids(longest, width))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(DecoderLayer(width, inner, heads, dropout) for _ in range(layers))
        self.output = nn.Linear(width, vocabulary, bias=False)
        nn.init.xavier_normal_(self.output.weight)
        self.token.weight = self.output.weight

    def shift(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (start + targets, padded with end), the decoder's input, and (targets + end, padded with IGNORED),
        the gold.
        """
        rows = [row[row != IGNORED] for row in targets]
        start, end = targets.new_tensor([self.start]), targets.new_tensor([self.end])
        inputs = pad([torch.cat([start, row]) for row in rows], self.end)
        gold = pad([torch.cat([row, end]) for row in rows], IGNORED)
        assert inputs.size() == gold.size()
        return inputs, gold

    def forward(self, targets: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        ids, gold = self.shift(targets)
        keep = ids.ne(self.end).to(states.dtype).unsqueeze(-1)
        hidden = hidden_tokens(ids, self.end)
        states_hidden = hidden_frames(states, lengths, ids.size(1))
        x = self.dropout(self.token(ids) * self.scale + self.positions[:, : ids.size(1)])
        for layer in self.layers:
            x = layer(x, states, keep, hidden, states_hidden)
        return self.output(x), gold


class SpeechTransformer(nn.Module):
    """Maps frames (batch, time, features), lengths (batch,) and targets (batch, length), padded with -1, to (logits,
    gold).
    """

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, frames: Tensor, lengths: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.decoder(targets, self.encoder(frames, lengths), lengths)


def build(
    features: int,
    vocabulary: int,
    width: int,
    inner: int,
    layers: int,
    heads: int,
    longest: int = 5000,
    dropout: float = 0.1,
) -> nn.Module:
    """Build a Speech-Transformer with random weights; the last two ids are the start and the end of a sentence."""
    encoder = Encoder(features, width, inner, layers, heads, longest, dropout)
    return SpeechTransformer(encoder, Decoder(vocabulary, width, inner, layers, heads, longest, dropout))
