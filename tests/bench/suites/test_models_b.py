"""Own models of the suite that see: classifiers, generators, detectors, contrast. Each keeps what it is there for."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from smelt.bench.preparation import wake_parameters
from smelt.bench.suites.entries import entry_workload, read_entries
from smelt.bench.suites.models.vision_maskrcnn import suppress_overlaps
from smelt.bench.workload import Batch, Workload

FULL_PARAMETERS = {
    "dcgan": 2_765_568,
    "functorch_dp_cifar10": 11_689_512,
    "maml_omniglot": 75_205,
    "lennard_jones": 865,
    "nvidia_deeprecommender": 204_475_711,
    "vision_maskrcnn": 44_454_513,
    "timm_efficientdet": 6_625_898,
    "Background_Matting": 17_908_420,
    "LearningToPaint": 11_209_857,
    "Super_SloMo": 47_245_737,
    "pytorch_CycleGAN_and_pix2pix": 11_378_179,
    "pytorch_stargan": 8_430_528,
    "pytorch_unet": 17_267_458,
    "yolov3": 62_998_749,
}

WITHOUT_GRADIENT = {"Background_Matting": 12}
"""How many parameters that ask for a gradient get none, where there are any."""


@dataclass
class Run:
    """A model after forward, loss and backward, what it returned, and the buffers that forward changed."""

    model: nn.Module
    batch: Batch
    output: Any
    loss: Tensor
    changed: set[str]


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """The sizes are too small for more, and threads that wait for each other on a busy machine cost minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def workload_of(name: str) -> Workload:
    entry = entry_workload(read_entries()[name])
    for package in entry.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    return entry


def run(workload: Workload, model: nn.Module, batch: Batch) -> Run:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(2)
    output = model(*batch.clone().args)
    loss = workload.loss(output, batch)
    loss.backward()
    changed = {name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])}
    return Run(model, batch, output, loss, changed)


@torch.no_grad()
def precise_loss(workload: Workload, model: nn.Module, batch: Batch) -> Tensor:
    torch.manual_seed(2)
    batch = batch.to(torch.float64)
    return workload.loss(model.double()(*batch.args), batch).double()


def check_in_place(done: Run) -> None:
    activations = [module for module in done.model.modules() if isinstance(module, nn.LeakyReLU)]
    assert len(activations) == 4 and all(module.inplace for module in activations)


def check_group_norm(done: Run) -> None:
    assert sum(isinstance(module, nn.GroupNorm) for module in done.model.modules()) == 20
    assert not list(done.model.buffers())


def check_last_batch_statistics(done: Run) -> None:
    convolution, norm = done.model.stages[0][:2]
    mean = convolution(done.batch.args[0]).mean(dim=(0, 2, 3))
    torch.testing.assert_close(norm.running_mean, mean)


def check_many_small_rows(done: Run) -> None:
    assert done.output.shape == (1000, 1) and len(list(done.model.parameters())) == 10


def check_parameter_lists_and_dropout(done: Run) -> None:
    assert sum(isinstance(module, nn.ParameterList) for module in done.model.modules()) == 4
    assert not torch.equal(done.model(*done.batch.args), done.output)


def check_losses_by_name(done: Run) -> None:
    assert set(done.output) == {
        "loss_classifier",
        "loss_box_reg",
        "loss_mask",
        "loss_objectness",
        "loss_rpn_box_reg",
    }


def check_exact_anchors(done: Run) -> None:
    assert set(done.output) == {"loss", "class_loss", "box_loss"}
    boxes = done.model.anchors.boxes.clone()
    assert torch.equal(copy.deepcopy(done.model).bfloat16().anchors.boxes, boxes)


def check_dead_encoder(done: Run) -> None:
    unused = {name for name, parameter in done.model.named_parameters() if parameter.grad is None}
    assert unused == {name for name, _ in done.model.named_parameters() if name.startswith("encode_motion.")}
    assert any(name.startswith("encode_motion.") for name in done.changed)


def check_between_zero_and_one(done: Run) -> None:
    assert done.output.shape == (2, 65) and 0 < done.output.min() and done.output.max() < 1
    assert sum(name.endswith("running_var") for name in done.changed) == 21


def check_plain_grid(done: Run) -> None:
    assert not list(done.model.buffers())
    grid = done.model.warp.rows
    assert isinstance(grid, Tensor) and not grid.is_floating_point()
    assert copy.deepcopy(done.model.warp).to("meta").rows.is_meta
    assert all(parameter.grad is None for parameter in done.model.perception.parameters())
    frames, *images = done.batch.args
    assert not torch.equal(done.model((frames + 1) % 7, *images)[0], done.output[0])


def check_moving_queue(done: Run) -> None:
    inner = done.model.module
    batch = len(done.batch.args[0])
    assert inner.queue_position.item() == batch and {"module.queue", "module.queue_position"} < done.changed
    torch.testing.assert_close(inner.queue[:, :batch].norm(dim=0), torch.ones(batch))
    assert all(parameter.grad is None for parameter in inner.encode_key.parameters())
    torch.testing.assert_close(done.output[1], torch.zeros(batch, dtype=torch.long))
    data = inner.encode_key.conv1.weight.data_ptr()
    torch.manual_seed(2)
    assert not torch.equal(done.model(*done.batch.args)[0], done.output[0])
    assert inner.encode_key.conv1.weight.data_ptr() != data
    assert inner.queue_position.item() == 2 * batch


def check_biases_without_effect(done: Run) -> None:
    assert not list(done.model.buffers())
    assert done.model.model[1].bias.grad.abs().max() < 1e-5 * done.model.model[1].weight.grad.abs().max()


def check_instance_statistics(done: Run) -> None:
    assert len(done.changed) == 18
    assert not torch.allclose(done.model.eval()(*done.batch.args), done.output)


def check_odd_width(done: Run) -> None:
    assert done.output.shape == (1, 2, 48, 63)


def check_three_maps(done: Run) -> None:
    assert isinstance(done.output, list) and len(done.model.layers) == 114
    assert [tuple(found.shape) for found in done.output] == [(2, 3, side, side, 85) for side in (2, 4, 8)]


CHECKS: dict[str, Callable[[Run], None]] = {
    "dcgan": check_in_place,
    "functorch_dp_cifar10": check_group_norm,
    "maml_omniglot": check_last_batch_statistics,
    "lennard_jones": check_many_small_rows,
    "nvidia_deeprecommender": check_parameter_lists_and_dropout,
    "vision_maskrcnn": check_losses_by_name,
    "timm_efficientdet": check_exact_anchors,
    "Background_Matting": check_dead_encoder,
    "LearningToPaint": check_between_zero_and_one,
    "Super_SloMo": check_plain_grid,
    "moco": check_moving_queue,
    "pytorch_CycleGAN_and_pix2pix": check_biases_without_effect,
    "pytorch_stargan": check_instance_statistics,
    "pytorch_unet": check_odd_width,
    "yolov3": check_three_maps,
}


@pytest.mark.parametrize("name", CHECKS)
def test_model(name: str) -> None:
    workload = workload_of(name)
    torch.manual_seed(0)
    model = workload.build()
    if workload.wake:
        wake_parameters(model)
    batch = workload.batch()
    precise = precise_loss(workload, copy.deepcopy(model), batch)
    done = run(workload, model, batch)
    torch.testing.assert_close(done.loss.double(), precise, rtol=1e-4, atol=1e-6)
    missing = sum(parameter.grad is None for parameter in model.parameters() if parameter.requires_grad)
    assert missing == WITHOUT_GRADIENT.get(name, 0)
    CHECKS[name](done)


@pytest.mark.parametrize("name", FULL_PARAMETERS)
def test_full_size(name: str) -> None:
    workload_of(name)
    module = importlib.import_module(f"smelt.bench.suites.models.{name.lower()}")
    with torch.device("meta"):
        model = module.build(**module.FULL)
    assert sum(parameter.numel() for parameter in model.parameters()) == FULL_PARAMETERS[name]


def test_overlapping_boxes_are_suppressed_best_first() -> None:
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0], [1.0, 1.0, 10.0, 10.0]])
    scores = torch.tensor([0.5, 0.7, 0.9])
    assert suppress_overlaps(boxes, scores, 0.5).tolist() == [2, 1]
    assert suppress_overlaps(boxes, scores, 0.9).tolist() == [2, 1, 0]
    assert suppress_overlaps(boxes[:0], scores[:0], 0.5).tolist() == []
