"""ResNet-18 with group norm (He et al.: Deep Residual Learning, 2015; Wu, He: Group Normalization, 2018).

This is the model of functorch's example of differentially private training. Batch norm mixes the samples of a batch, so
that there is no gradient per sample; group norm replaces it. At 32 x 32 pixels the last stage normalizes single pixels,
so its groups are small.
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
