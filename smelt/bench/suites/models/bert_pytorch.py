"""The trunk of BERT (Devlin, Chang, Lee, Toutanova: "BERT: Pre-training of Deep Bidirectional Transformers", 2019).

It has no heads: it computes hidden states of token ids and segment labels. As in the implementation of the public
benchmark, layers normalise first and divide by the standard deviation with Bessel's correction, so that `nn.LayerNorm`
kernels cannot be used; masked scores become -1e9; attention is called through a TorchScript interface and reads its
mask from an attribute that the block sets in every forward (a side effect that a compiler has to repeat).
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

CPU = {"vocabulary": 1000, "hidden": 64, "layers": 2, "heads": 4, "longest": 64}
FULL = {"vocabulary": 20005, "hidden": 768, "layers": 12, "heads": 12, "longest": 512}

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is deprecated, but models still use it

    @torch.jit.interface
    class Sublayer(nn.Module):
        """The interface of a layer in a residual connection: maps (batch, length, hidden) to the same shape."""

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[empty-body]
            pass


class UnbiasedNorm(nn.Module):
    """Computes gain * (x - mean) / (std + epsilon) + bias over the last dimension; std divides by n - 1."""

    def __init__(self, size: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gain * (x - mean) / (std + self.epsilon) + self.bias


def sinusoids(length: int, size: int) -> Tensor:
    """Returns sines and cosines of positions, of shape (1, length, size) (Vaswani et al. 2017, section 3.5)."""
    angles = torch.arange(length).unsqueeze(1) * torch.exp(torch.arange(0, size, 2) * (-math.log(10000.0) / size))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).reshape(1, length, size)


class Embedding(nn.Module):
    """Computes the sum of token, position and segment vectors for ids and segment labels (batch, length)."""

    positions: Tensor

    def __init__(self, vocabulary: int, hidden: int, longest: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, hidden, padding_idx=0)
        self.segment = nn.Embedding(3, hidden, padding_idx=0)
        self.register_buffer("positions", sinusoids(longest, hidden))
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        return self.dropout(self.token(ids) + self.positions[:, : ids.size(1)] + self.segment(segments))


class Attention(nn.Module):
    """Multi-head self-attention; scores become -1e9 if the mask (batch, 1, length, length) is 0."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        query, key, value = (
            project(x).view(batch, length, self.heads, hidden // self.heads).transpose(1, 2) for project in self.inputs
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        weights = self.dropout(functional.softmax(scores.masked_fill(mask == 0, -1e9), dim=-1))
        mixed = torch.matmul(weights, value)
        return self.output(mixed.transpose(1, 2).contiguous().view(batch, length, hidden))


class MaskedAttention(Sublayer):
    """Attention as a function of one tensor: the mask is an attribute that is set before the call."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        assert self.mask is not None
        return self.attention(x, self.mask)


class FeedForward(Sublayer):
    """Two linear layers with a GELU between them."""

    def __init__(self, hidden: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(hidden, inner)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.narrow = nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.dropout(self.activation(self.widen(x))))


class Residual(nn.Module):
    """Computes x + dropout(sublayer(norm(x)))."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm = UnbiasedNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


class Block(nn.Module):
    """One layer of the encoder: attention, then the feed-forward network."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MaskedAttention(Attention(hidden, heads, dropout))
        self.feed_forward = FeedForward(hidden, 4 * hidden, dropout)
        self.around_attention = Residual(hidden, dropout)
        self.around_feed_forward = Residual(hidden, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        self.attention.mask = mask
        x = self.around_attention(x, self.attention)
        return self.dropout(self.around_feed_forward(x, self.feed_forward))


class Bert(nn.Module):
    """Computes hidden states (batch, length, hidden) of token ids and segment labels (batch, length); id 0 is
    padding.
    """

    def __init__(self, vocabulary: int, hidden: int, layers: int, heads: int, longest: int, dropout: float) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, hidden, longest, dropout)
        self.blocks = nn.ModuleList(Block(hidden, heads, dropout) for _ in range(layers))

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        mask = (ids > 0).unsqueeze(1).repeat(1, ids.size(1), 1).unsqueeze(1)
        x = self.embedding(ids, segments)
        for block in self.blocks:
            x = block(x, mask)
        return x


def build(vocabulary: int, hidden: int, layers: int, heads: int, longest: int, dropout: float = 0.1) -> nn.Module:
    """Build a BERT of the given vocabulary and widths, with random weights."""
    return Bert(vocabulary, hidden, layers, heads, longest, dropout)
