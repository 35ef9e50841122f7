"""The Transformer (Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin:
"Attention Is All You Need", 2017) for translation.

As in the implementation of the public benchmark, the normalisation follows the residual sum, which is added in place to
the output of a dropout; projections have no biases; source, target and output have separate tables; and logits are
flattened to (batch * length, vocabulary). Forward makes masks from the ids and fills masked scores with -1e9, so that a
row whose keys are all padding becomes uniform instead of NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

CPU = {"vocabulary": 1000, "width": 64, "inner": 128, "layers": 2, "heads": 4}
FULL = {"vocabulary": 9521, "width": 512, "inner": 2048, "layers": 6, "heads": 8}

PADDING = 1


def sinusoids(length: int, width: int) -> Tensor:
    """Returns sines and cosines of positions, of shape (1, length, width) (section 3.5)."""
    angles = torch.arange(length).unsqueeze(1) * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).reshape(1, length, width)


def padding_mask(ids: Tensor) -> Tensor:
    """Returns a mask (batch, 1, length) for ids (batch, length), which is true for keys other than padding."""
    return (ids != PADDING).unsqueeze(-2)


def causal_mask(ids: Tensor) -> Tensor:
    """Returns a mask (1, length, length), which is true if the key is not later than the query."""
    length = ids.size(1)
    return (1 - torch.triu(torch.ones((1, length, length), device=ids.device), diagonal=1)).bool()


class Attention(nn.Module):
    """Multi-head attention with a residual sum and normalisation; the mask is (batch, 1 or queries, keys)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.weight_dropout = nn.Dropout(dropout)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def split(self, x: Tensor) -> Tensor:
        """Reshape (batch, length, width) to (batch, heads, length, width / heads)."""
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.split(self.query(queries)), self.split(self.key(keys)), self.split(self.value(keys))
        scores = torch.matmul(query / query.size(-1) ** 0.5, key.transpose(2, 3))
        scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        mixed = torch.matmul(self.weight_dropout(functional.softmax(scores, dim=-1)), value)
        x = self.dropout(self.output(mixed.transpose(1, 2).contiguous().view(*queries.shape)))
        x += queries
        return self.norm(x)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, followed by a residual sum and normalisation."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(width, inner)
        self.narrow = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.dropout(self.narrow(functional.relu(self.widen(x))))
        x += residual
        return self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.feed_forward = FeedForward(width, inner, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.feed_forward(self.attention(x, x, mask))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder's states, then the feed-forward network."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.cross_attention = Attention(width, heads, dropout)
        self.feed_forward = FeedForward(width, inner, dropout)

    def forward(self, x: Tensor, states: Tensor, mask: Tensor, states_mask: Tensor) -> Tensor:
        x = self.cross_attention(self.attention(x, x, mask), states, states_mask)
        return self.feed_forward(x)


class Embedding(nn.Module):
    """Embeds ids (batch, length) as normalised vectors that include their positions."""

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, longest: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.register_buffer("positions", sinusoids(longest, width))
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.dropout(self.token(ids) + self.positions[:, : ids.size(1)].clone().detach()))


class Transformer(nn.Module):
    """Computes logits (batch * target length, vocabulary) of source and target ids, both (batch, length)."""

    def __init__(
        self, vocabulary: int, width: int, inner: int, layers: int, heads: int, longest: int, dropout: float
    ) -> None:
        super().__init__()
        self.source = Embedding(vocabulary, width, longest, dropout)
        self.target = Embedding(vocabulary, width, longest, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(width, inner, heads, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(width, inner, heads, dropout) for _ in range(layers))
        self.output = nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source_mask = padding_mask(source)
        target_mask = padding_mask(target) & causal_mask(target)
        states = self.source(source)
        for layer in self.encoder:
            states = layer(states, source_mask)
        x = self.target(target)
        for layer in self.decoder:
            x = layer(x, states, target_mask, source_mask)
        logits = self.output(x)
        return logits.view(-1, logits.size(2))


def build(
    vocabulary: int, width: int, inner: int, layers: int, heads: int, longest: int = 200, dropout: float = 0.1
) -> nn.Module:
    """Build a Transformer of the given vocabulary and widths, with random weights."""
    return Transformer(vocabulary, width, inner, layers, heads, longest, dropout)
