"""ResNet-18 with group norm (He et al.: Deep Residual Learning, 2015; Wu, He: Group Normalization, 2018).

The model of functorch's example of differentially private training: batch norm mixes the samples of a batch,
so that it has no gradient per sample, and group norm takes its place. At 32 x 32 pixels the last stage
normalizes single pixels, which makes its groups small.
"""

from __future__ import annotations

import functools

from torch import nn

from smelt.bench.torchvision_schemas import define_torchvision_schemas

CPU = {"groups": 32}
FULL = {"groups": 32}


def build(groups: int) -> nn.Module:
    """Build the network for images (batch, 3, 32, 32), with logits (batch, 1000)."""
    define_torchvision_schemas()
    from torchvision.models import resnet18

    return resnet18(weights=None, norm_layer=functools.partial(nn.GroupNorm, groups))
