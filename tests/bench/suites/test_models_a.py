"""smelt/bench/suites/models: language, speech, recommendation, separation of music, actors."""

from __future__ import annotations

import copy
import importlib
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from smelt.bench.suites.entries import entry_workload, read_entries
from smelt.bench.workload import Batch

SIZES = {  # parameters, their elements, elements of the full size
    "BERT_pytorch": (34, 164_160, 100_420_608),
    "attention_is_all_you_need_pytorch": (67, 358_144, 58_727_936),
    "speech_transformer": (89, 176_064, 46_470_656),
    "pytorch_struct": (26, 22_176, 2_882_816),
    "tts_angular": (15, 83_456, 9_381_888),
    "demucs": (42, 162_648, 265_679_496),
    "dlrm": (20, 141_361, 514_499_137),
    "soft_actor_critic": (6, 4_546, 1_055_746),
    "drq": (18, 2_003_256, 3_099_576),
}


def made(name: str) -> tuple[nn.Module, Batch]:
    """The model in its small size, in train mode, and a batch."""
    workload = entry_workload(read_entries()[name])
    torch.manual_seed(0)
    return workload.build().train(), workload.batch()


def source(name: str) -> ModuleType:
    return importlib.import_module(f"smelt.bench.suites.models.{name.lower()}")


def run(name: str, model: nn.Module, batch: Batch) -> Tensor:
    """The loss of one forward from a fixed seed, after its backward."""
    torch.manual_seed(1)
    loss = entry_workload(read_entries()[name]).loss(model(*batch.args, **batch.kwargs), batch)
    loss.backward()
    return loss.detach()


def doubled(value: Any) -> Any:
    """Floating tensors as float64."""
    if isinstance(value, (list, tuple)):
        return type(value)(doubled(item) for item in value)
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize("name", SIZES)
def test_trains_in_both_precisions_alike(name: str) -> None:
    model, batch = made(name)
    exact = copy.deepcopy(model).double()
    loss = run(name, model, batch)
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()
    assert torch.equal(loss, run(name, model, batch))
    exact_loss = run(name, exact, Batch(doubled(batch.args), batch.kwargs, batch.target))
    assert exact_loss.dtype == torch.float64
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SIZES)
def test_has_the_parameters_of_the_original(name: str) -> None:
    model, _ = made(name)
    with torch.device("meta"):
        full = source(name).build(**source(name).FULL)
    counts = [sum(p.numel() for p in each.parameters()) for each in (model, full)]
    assert (len(list(model.parameters())), *counts) == SIZES[name]


def test_bert_normalises_without_bias_and_keeps_the_mask_on_its_modules() -> None:
    model, batch = made("BERT_pytorch")
    x = torch.randn(3, 8)
    expected = (x - x.mean(-1, keepdim=True)) / (x.std(-1, correction=1, keepdim=True) + 1e-6)
    torch.testing.assert_close(source("BERT_pytorch").UnbiasedNorm(8)(x), expected)
    assert model.blocks[0].attention.mask is None
    batch.args[0][:, -4:] = 0
    assert model(*batch.args).shape == (2, 32, 64)
    mask = model.blocks[0].attention.mask
    assert mask.shape == (2, 1, 32, 32) and not mask[..., -4:].any()


def test_bert_does_not_read_padding() -> None:
    model, batch = made("BERT_pytorch")
    ids, segments = batch.args
    model.eval()
    ids[:, -4:] = 0
    before = model(ids, segments)
    segments[:, -4:] = 2 - segments[:, -4:]
    torch.testing.assert_close(model(ids, segments)[:, :-4], before[:, :-4])


def test_the_transformer_flattens_logits_and_does_not_look_ahead() -> None:
    model, batch = made("attention_is_all_you_need_pytorch")
    ids, target = batch.args
    target[:] = target.clamp(min=2)
    model.eval()
    before = model(ids, target)
    assert before.shape == (48, 1000)
    target[:, -1] = 7
    torch.testing.assert_close(model(ids, target).view(2, 24, -1)[:, :-1], before.view(2, 24, -1)[:, :-1])


def test_speech_transformer_cuts_targets_by_value() -> None:
    model, batch = made("speech_transformer")
    frames, lengths, targets = batch.args
    logits, gold = model(frames, lengths, targets)
    assert logits.shape == (2, 9, 100)
    assert gold[1].tolist() == [*targets[1, :7].tolist(), 99, -1]
    shorter, _ = model(frames, lengths, torch.where(torch.arange(8) < 3, targets, -1))
    assert shorter.shape == (2, 4, 100), "the output is as long as the longest target"
    assert model.decoder.token.weight is model.decoder.output.weight


def test_speech_transformer_does_not_read_frames_past_the_length() -> None:
    model, batch = made("speech_transformer")
    frames, lengths, targets = batch.args
    model.eval()
    before, _ = model(frames, lengths, targets)
    frames[1, 17:] += 1.0
    torch.testing.assert_close(model(frames, lengths, targets)[0], before)


def test_the_neural_grammar_returns_three_tables_of_probabilities() -> None:
    model, batch = made("pytorch_struct")
    terms, rules, roots = model(*batch.args)
    assert (terms.shape, rules.shape, roots.shape) == ((2, 12, 6), (2, 6, 12, 12), (2, 6))
    torch.testing.assert_close(rules.exp().sum((2, 3)), torch.ones(2, 6))
    torch.testing.assert_close(roots.exp().sum(1), torch.ones(2))
    every = model(torch.arange(200).unsqueeze(0))[0]
    torch.testing.assert_close(every.exp().sum(1), torch.ones(1, 6))
    assert rules.stride(0) == 0, "expanded over the batch, not copied"


def test_the_speaker_encoder_flattens_its_lstms_and_returns_unit_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = made("tts_angular")
    calls: list[nn.LSTM] = []
    monkeypatch.setattr(nn.LSTM, "flatten_parameters", lambda lstm: calls.append(lstm))
    torch.testing.assert_close(model(*batch.args).norm(dim=1), torch.ones(2))
    assert len(calls) == 3


def test_demucs_augments_at_random_and_only_in_training() -> None:
    model, batch = made("demucs")
    torch.manual_seed(2)
    first, estimates = model(*batch.args)
    again, _ = model(*batch.args)
    assert first.shape == (2, 4, 2, 5460) and estimates.shape[:3] == (2, 4, 2)
    assert not torch.equal(first, again)
    sources, _ = model.eval()(*batch.args)
    assert torch.equal(sources, batch.args[0][:, 1:, :, :5460])
    with pytest.raises(ValueError, match="groups of 2"):
        model.train()(torch.rand(3, 5, 2, 5960))


def test_demucs_keeps_whole_sources() -> None:
    """Each augmented source is one of the batch's: shifted, perhaps negated, its channels perhaps swapped."""
    model, batch = made("demucs")
    augmented = model.augment(batch.args[0][:, 1:])
    for source_index in range(4):
        for song in augmented[:, source_index].abs():
            windows = batch.args[0][:, 1 + source_index].unfold(-1, 5460, 1)
            pairs = [windows, windows.flip(1)]
            assert any((each[..., :3] == song[None, :, None, :3]).all(-1).all(1).any() for each in pairs)


def test_dlrm_has_sparse_gradients_and_takes_lists() -> None:
    model, batch = made("dlrm")
    assert isinstance(batch.args[2], list)
    run("dlrm", model, batch)
    sparse = [n for n, p in model.named_parameters() if p.grad is not None and p.grad.is_sparse]
    assert sparse == [f"tables.{k}.weight" for k in range(8)]
    rows = model.tables[3].weight.grad.coalesce().indices().flatten()
    assert torch.equal(rows, batch.args[2][3].unique())


@pytest.mark.parametrize("name", ["soft_actor_critic", "drq"])
def test_an_actor_returns_a_distribution(name: str) -> None:
    model, batch = made(name)
    actions = model(*batch.args)
    assert isinstance(actions, Distribution) and type(actions).__name__ == "SquashedNormal"
    assert actions.mean.shape == (len(batch.args[0]), 1)
    sample = actions.rsample()
    assert sample.abs().max() <= 1 and sample.requires_grad
    assert actions.log_prob(sample).isfinite().all()
    with pytest.raises(ValueError, match="invalid values"):
        model(torch.full_like(batch.args[0], torch.nan))  # the check reads values


def test_drq_keeps_tensors_of_the_last_forward_on_its_modules() -> None:
    model, batch = made("drq")
    assert model.outputs == {} and model.encoder.outputs == {}
    actions = model(*batch.args)
    assert model.outputs["loc"] is actions.loc
    assert list(model.encoder.outputs) == ["frames", *(f"convolution{i}" for i in range(4)), "features"]
    assert model.encoder.outputs["features"].requires_grad
