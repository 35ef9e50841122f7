"""Training steps of the contenders."""

import copy
from collections.abc import Iterator

import pytest
import torch

from smelt.bench.contenders import find_contender
from smelt.bench.steps import Stepper, build_batch, build_model, use_tf32
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_whole_step_gives_eagers_losses(optimizer: str) -> None:
    settings = Settings(optimizer=optimizer, learning_rate=0.05, eager_rng=True)
    workload = find_workload("tiny-mlp")
    model, batch = build_model(workload, settings), build_batch(workload, settings)
    losses = []
    for name in ("eager", "smelt:step"):
        step = Stepper(workload, copy.deepcopy(model), batch, settings).compile(find_contender(name))
        torch.manual_seed(0)
        losses.append([step() for _ in range(4)])
    assert losses[0][0] != losses[0][-1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert set(step.eager_operators()) <= {"bernoulli", "bernoulli_"}  # eager's own random numbers were asked for


@pytest.mark.parametrize("name", ["eager", "smelt", "smelt:step"])
def test_forward_and_backward_alone_change_no_parameter(name: str) -> None:
    settings = Settings(optimizer="none", eager_rng=True)
    workload = find_workload("tiny-mlp")
    model = build_model(workload, settings)
    before = [parameter.clone() for parameter in model.parameters()]
    step = Stepper(workload, model, build_batch(workload, settings), settings).compile(find_contender(name))
    step()
    assert step.launch().shape == ()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.fixture
def products() -> Iterator[None]:
    """Puts back what `use_tf32` changes; torch's own test helpers, once imported, let nobody change it."""
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with torch.backends.__allow_nonbracketed_mutation():
        yield
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp"])
def test_products_and_convolutions_have_the_same_precision(precision: str, products: None) -> None:
    use_tf32(Settings(precision=precision))
    allowed = precision != "fp32"
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == allowed
