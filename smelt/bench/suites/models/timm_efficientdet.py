"""EfficientDet (Tan, Pang, Le: Scalable and Efficient Object Detection, 2019) of the package effdet, in training.

Forward labels the anchors itself and returns a dict of losses: boxes are matched to anchors with indices that
depend on the data, and the feature pyramid learns the weights of its sums. The backbone drops whole residual
branches at random. effdet computes its loss in float32 whatever the model's precision, and accepts boxes in
float32 only.

`effdet` needs `omegaconf` (with `antlr4-python3-runtime` 4.9 and `PyYAML`) and imports `pycocotools`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import nn

from smelt.bench.torchvision_schemas import define_torchvision_schemas

CPU = {"name": "tf_efficientdet_d0", "size": 128, "labeler": True}
FULL = {"name": "tf_efficientdet_d1", "size": 640, "labeler": True}


class Training(nn.Module):
    """effdet's model with its loss, with boxes in float32 also where the parameters are not.

    In: images (batch, 3, size, size) and a dict of `bbox` (batch, n, 4), y0, x0, y1, x1 in pixels, and `cls`
    (batch, n), from 1. Out: a dict of `loss`, `class_loss` and `box_loss`.
    """

    def __init__(self, model: nn.Module, anchors: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.anchors = anchors

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        boxes = self.anchors.get_buffer("boxes")
        super()._apply(fn, recurse)
        self.anchors.register_buffer("boxes", boxes.to(self.anchors.get_buffer("boxes").device))
        return self

    def forward(self, image: torch.Tensor, target: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.model(image, {name: value.float() for name, value in target.items()})


def build(name: str, size: int, labeler: bool) -> nn.Module:
    define_torchvision_schemas()
    from effdet import create_model  # type: ignore[import-untyped]

    model = create_model(
        name,
        bench_task="train",
        pretrained=False,
        pretrained_backbone=False,
        image_size=(size, size),
        bench_labeler=labeler,
    )
    return Training(model, model.anchors)
