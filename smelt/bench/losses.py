"""The losses of the workloads: functions of the model's output and its batch that return a scalar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from smelt.bench.workload import Batch


def own_loss(output: Any, batch: Batch) -> Tensor:
    """Returns the loss that a model computes itself: a Hugging Face model that gets labels, or a dictionary with a
    loss.

    The public benchmark gives some models no labels (TorchBench's `hf_*`) and takes the mean of their scores.

    Raises:
        KeyError: the output is a dictionary with neither a loss nor scores.
    """
    if not isinstance(output, dict):
        return output.loss
    scores = [value for name, value in output.items() if name.endswith("logits")]
    return mean_loss(scores, batch) if "loss" not in output and scores else output["loss"]


def classification_loss(output: Any, batch: Batch) -> Tensor:
    """Returns the cross entropy of class scores against the batch's target."""
    assert batch.target is not None
    return F.cross_entropy(output, batch.target)


def mean_loss(output: Any, batch: Batch) -> Tensor:
    """Returns the sum of the outputs' means: of a tensor, of each item of a sequence or dictionary, of a distribution's
    mean.

    The mean of an empty tensor (no boxes were found) is zero.
    """
    if isinstance(output, Tensor):
        numbers = output if output.is_floating_point() else output.float()
        return numbers.mean() if output.numel() else numbers.sum()
    if isinstance(output, Distribution):
        return output.mean.mean()
    items = output.values() if isinstance(output, dict) else output
    means = [mean_loss(item, batch) for item in items if item is not None]
    return sum(means[1:], means[0])


def sum_of_losses(output: Any, batch: Batch) -> Tensor:
    """Returns the sum of a dictionary of losses, as torchvision's detectors return it; for other outputs
    `mean_loss`.
    """
    return sum(output.values()) if isinstance(output, dict) else mean_loss(output, batch)  # type: ignore[return-value]


def mse_loss(output: Any, batch: Batch) -> Tensor:
    """Returns the mean squared error against the batch's target."""
    assert batch.target is not None
    return F.mse_loss(output, batch.target)


def pair_loss(output: Any, batch: Batch) -> Tensor:
    """Returns the cross entropy of a model that returns (scores, classes)."""
    return F.cross_entropy(output[0], output[1])


def padded_loss(output: Any, batch: Batch) -> Tensor:
    """Returns the cross entropy of (scores of shape (batch, length, classes), classes of shape (batch, length)); -1 is
    padding.
    """
    scores, classes = output[0], output[1]
    return F.cross_entropy(scores.flatten(0, 1), classes.flatten(), ignore_index=-1)


LOSSES: dict[str, Callable[[Any, Batch], Tensor]] = {
    "own": own_loss,
    "cross_entropy": classification_loss,
    "mean": mean_loss,
    "sum_of_losses": sum_of_losses,
    "mse": mse_loss,
    "cross_entropy_of_pair": pair_loss,
    "padded_cross_entropy": padded_loss,
}
"""Loss function by the name that entries use."""
