"""smelt/bench/workloads.py"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smelt.base.errors import OptionError
from smelt.bench import workloads
from smelt.bench.preparation import stabilize_statistics, wake_parameters, without_dropout
from smelt.bench.workload import Batch, MissingPackages, Settings, Workload
from smelt.bench.workloads import WORKLOADS, find_workload


@pytest.mark.parametrize("name", ["tiny-mlp", "tiny-conv", "tiny-bert"])
def test_a_workload_builds_runs_and_has_a_loss(name: str) -> None:
    workload = find_workload(name)
    batch = workload.batch()
    loss = workload.loss(workload.build()(*batch.args, **batch.kwargs), batch)
    assert loss.shape == ()
    loss.backward()


def test_settled_statistics_keep_deep_models_in_range() -> None:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(12)]
    model = nn.Sequential(*layers).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)
    x = torch.randn(32, 64)
    before = float(model(x).detach().std())
    momentum = layers[0][1].momentum
    assert stabilize_statistics(model, lambda each: each(x)) == 12
    assert not any(module.training for module in model.modules()) and layers[0][1].momentum == momentum
    assert before > 1e6 > 100 > float(model(x).detach().std())


def test_same_seed_same_workload() -> None:
    def make() -> tuple[list[torch.Tensor], Batch]:
        torch.manual_seed(5)
        return list(WORKLOADS["tiny-mlp"].build().parameters()), WORKLOADS["tiny-mlp"].batch()

    (first, batch), (second, again) = make(), make()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(batch.args[0], again.args[0])


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'bert'"):
        find_workload("brt")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needy = Workload("needy", "tiny", nn.Identity, Batch, lambda output, batch: output, needs=("no_such_package",))
    monkeypatch.setitem(workloads.WORKLOADS, "needy", needy)
    with pytest.raises(MissingPackages, match="pip install no_such_package"):
        find_workload("needy")


def test_batch_to_dtype_leaves_integers() -> None:
    batch = Batch(args=(torch.ones(2), torch.ones(2, dtype=torch.int64)), target=torch.zeros(2, dtype=torch.int64))
    wide = batch.to(torch.float64)
    assert wide.args[0].dtype == torch.float64
    assert wide.args[1].dtype == torch.int64
    assert wide.target is not None and wide.target.dtype == torch.int64


def test_without_dropout_silences_modules_and_attributes() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_dropout = 0.1
            self.dropout = nn.Dropout(0.2)

    model = nn.Sequential(Attention(), nn.Dropout2d(0.3))
    assert without_dropout(model)
    assert model[0].attention_dropout == 0.0
    assert model[0].dropout.p == 0.0
    assert model[1].p == 0.0
    assert not without_dropout(model)


def test_without_dropout_makes_a_library_model_deterministic() -> None:
    torch.manual_seed(0)
    model = find_workload("tiny-bert").build().train()
    batch = find_workload("tiny-bert").batch()
    assert without_dropout(model)
    assert torch.equal(model(**batch.kwargs).loss, model(**batch.kwargs).loss)


def test_settings_refuse_an_unknown_precision() -> None:
    with pytest.raises(OptionError, match="amp"):
        Settings(precision="apm")


def test_zero_parameters_are_woken() -> None:
    model = nn.BatchNorm1d(8)
    nn.init.zeros_(model.weight)
    nn.init.ones_(model.bias)
    assert wake_parameters(model) == 1
    assert 0 < float(model.weight.detach().abs().max()) < 1
    assert torch.equal(model.bias, torch.ones(8))
    assert wake_parameters(model) == 0
