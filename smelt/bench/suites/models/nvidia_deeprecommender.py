"""Deep autoencoder for ratings (Kuchaiev, Ginsburg: Training Deep AutoEncoders for Collaborative Filtering, 2017).

The weights are not in modules but plain parameters in four lists, over which forward iterates in pairs; a dropout of
0.8 is in the middle. In full size, almost all parameters are in two matrices of 197951 x 512 (the items of the data
set).
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
    """Reconstructs the ratings of users, (batch, items) -> (batch, items).

    The layers of the encoder have the given sizes, those of the decoder the same in reverse; each layer, including the
    last, ends with a SELU.
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
    """Make Xavier-uniform weights (after, before) and zero biases for each pair of neighbouring sizes."""
    pairs = list(itertools.pairwise(sizes))
    weights = nn.ParameterList(nn.init.xavier_uniform_(torch.empty(after, before)) for before, after in pairs)
    return weights, nn.ParameterList(torch.zeros(after) for _, after in pairs)


def build(sizes: Sequence[int], dropout: float) -> nn.Module:
    return RatingAutoencoder(sizes, dropout)
