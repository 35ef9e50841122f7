"""Mask R-CNN (He, Gkioxari, Dollar, Girshick: Mask R-CNN, 2017) of torchvision, ResNet-50 with a feature pyramid.

This is the most dynamic entry of the suite: it takes lists of images and of dicts, and returns a dict of losses
(training) or a list of dicts (evaluation); sizes depend on a random number and on the number of found boxes, and Python
loops run over data. If torchvision's compiled operators cannot be loaded, overlapping boxes are suppressed in Python,
one step per kept box, and regions are pooled by the operator's eager form.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from smelt.bench.torchvision_schemas import define_torchvision_schemas

CPU = {
    "mode": "train",
    "min_size": 96,
    "max_size": 96,
    "proposals_before_suppression": 50,
    "proposals": 8,
    "box_samples": 8,
    "proposal_samples": 32,
}
FULL = {"mode": "eval", "detections": 4}


def suppress_overlaps(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Returns indices (kept,) of the boxes (n, 4) that overlap no better box by more than `iou_threshold`, best first.

    Greedy non-maximum suppression with the signature and order of `torchvision.ops.nms`.
    """
    boxes = boxes.detach()
    width, height = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).unbind(1)
    area = width * height
    order = scores.detach().argsort(descending=True)
    kept = order[:0]
    while order.numel() > 0:
        best, order = order[0], order[1:]
        kept = torch.cat([kept, best[None]])
        left_top = torch.maximum(boxes[best, :2], boxes[order, :2])
        right_bottom = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        width, height = (right_bottom - left_top).clamp(min=0).unbind(1)
        common = width * height
        order = order[common / (area[best] + area[order] - common) <= iou_threshold]
    return kept


def use_python_operators() -> None:
    """Let torchvision work without its compiled operators (changes torchvision for the whole process)."""
    import torchvision

    if torchvision.extension._has_ops():
        return
    torchvision.ops.boxes.nms = suppress_overlaps
    # The package's attribute of this name is the function, whose eager form is inside of a torch.compile wrapper.
    roi_align = sys.modules["torchvision.ops.roi_align"]
    roi_align._roi_align = getattr(roi_align._roi_align, "__wrapped__", roi_align._roi_align)  # type: ignore[attr-defined]


def build(
    mode: str,
    min_size: int = 800,
    max_size: int = 1333,
    proposals_before_suppression: int = 2000,
    proposals: int = 2000,
    box_samples: int = 512,
    proposal_samples: int = 256,
    detections: int = 100,
) -> nn.Module:
    """Build a detector in `mode` "train" (which takes images and targets) or "eval" (which takes images).

    Images are a list of (3, h, w); targets a list of dicts of boxes (n, 4), labels (n,) and masks (n, h, w).
    """
    define_torchvision_schemas()
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    use_python_operators()
    model = maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        min_size=min_size,
        max_size=max_size,
        rpn_pre_nms_top_n_train=proposals_before_suppression,
        rpn_pre_nms_top_n_test=min(proposals_before_suppression, 1000),
        rpn_post_nms_top_n_train=proposals,
        rpn_post_nms_top_n_test=min(proposals, 1000),
        box_batch_size_per_image=box_samples,
        rpn_batch_size_per_image=proposal_samples,
        box_detections_per_img=detections,
    )
    return model.train(mode == "train")
