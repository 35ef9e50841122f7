"""Deep autoencoder for ratings (Kuchaiev, Ginsburg: Training Deep AutoEncoders for Collaborative Filtering, 2017).

The weights are plain parameters in four lists that forward walks in pairs, not modules; dropout of 0.8 sits
in the middle. In full size almost everything is two matrices of 197951 x 512 (the items of the data set).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

CPU = {"sizes": [1000, 32, 32, 64], "dropout": 0.8}
FULL = {"sizes": [197951, 512, 512, 1024], "dropout": 0.8}


class RatingAutoencoder(nn.Module):
    """Reconstructs a user's ratings, (batch, items) -> (batch, items).

    The encoder goes through the given sizes, the decoder back; every layer, the last included, is a SELU.
    """

    def __init__(self, sizes: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.encoder_weights, self.encoder_biases = dense_parameters(sizes)
        self.decoder_weights, self.decoder_biases = dense_parameters(sizes[::-1])
        self.dropout = nn.Dropout(dropout)

    def forward(self, ratings: torch.Tensor) -> torch.Tensor:
        hidden = ratings
        for weight, bias in zip(self.encoder_weights, self.encoder_biases, strict=True):
            hidden = F.selu(F.linear(hidden, weight, bias))
        hidden = self.dropout(hidden)
        for weight, bias in zip(self.decoder_weights, self.decoder_biases, strict=True):
            hidden = F.selu(F.linear(hidden, weight, bias))
        return hidden


def dense_parameters(sizes: Sequence[int]) -> tuple[nn.ParameterList, nn.ParameterList]:
    """Weights (after, before), Xavier-uniform, and zero biases for each pair of neighbouring sizes."""
    pairs = list(itertools.pairwise(sizes))
    weights = nn.ParameterList(nn.init.xavier_uniform_(torch.empty(after, before)) for before, after in pairs)
    return weights, nn.ParameterList(torch.zeros(after) for _, after in pairs)


def build(sizes: Sequence[int], dropout: float) -> nn.Module:
    return RatingAutoencoder(sizes, dropout)
