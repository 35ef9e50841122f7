"""The losses of the workloads: (what the model returned, its batch) -> a scalar."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from smelt.bench.workload import Batch


def own_loss(output: Any, batch: Batch) -> Tensor:
    """The loss that a Hugging Face model computes itself when it gets labels."""
    return output.loss


def classification_loss(output: Any, batch: Batch) -> Tensor:
    """Cross entropy of class scores against the batch's target."""
    assert batch.target is not None
    return F.cross_entropy(output, batch.target)
