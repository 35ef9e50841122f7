"""EfficientDet (Tan, Pang, Le: Scalable and Efficient Object Detection, 2019) of the package effdet, in training.

Forward labels the anchors and returns a dict of losses: boxes are matched to anchors by indices that depend on the
data, and the feature pyramid learns the weights of its sums. The backbone drops whole residual branches at random.
Train and eval mode both return the losses; effdet's search for the best boxes in evaluation is left out. effdet accepts
only float32 boxes and computes its loss in float32 for each precision of the model, so that a float64 run is not more
accurate than a float32 run.

`effdet` needs `omegaconf` (with `antlr4-python3-runtime` 4.9 and `PyYAML`) and imports `pycocotools`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import nn

from smelt.bench.torchvision_schemas import define_torchvision_schemas

CPU = {"name": "tf_efficientdet_d0", "size": 128}
FULL = {"name": "tf_efficientdet_d1", "size": 640}


class Training(nn.Module):
    """effdet's network, anchor labels and loss, with boxes in float32 for each dtype of the parameters.

    The inputs are images (batch, 3, size, size) and a dict of `bbox` (batch, n, 4), as y0, x0, y1, x1 in pixels, and
    `cls` (batch, n), counted from 1. The output is a dict of `loss`, `class_loss` and `box_loss`.
    """

    def __init__(self, network: nn.Module, anchors: nn.Module, labeler: Any, loss: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.anchors = anchors
        self.labeler = labeler  # not a module; it reads the anchors
        self.loss = loss

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        boxes = self.anchors.get_buffer("boxes")
        super()._apply(fn, recurse)
        self.anchors.register_buffer("boxes", boxes.to(self.anchors.get_buffer("boxes").device))
        return self

    def forward(self, image: torch.Tensor, target: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        classes, boxes = self.network(image)
        labels = self.labeler.batch_label_anchors(target["bbox"].float(), target["cls"].float())
        loss, class_loss, box_loss = self.loss(classes, boxes, *labels)
        return {"loss": loss, "class_loss": class_loss, "box_loss": box_loss}


def build(name: str, size: int) -> nn.Module:
    define_torchvision_schemas()
    from effdet import create_model

    bench = create_model(
        name,
        bench_task="train",
        pretrained=False,
        pretrained_backbone=False,
        image_size=(size, size),
        bench_labeler=True,
    )
    return Training(bench.model, bench.anchors, bench.anchor_labeler, bench.loss_fn)
