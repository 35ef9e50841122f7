"""Models of the smoke suite as Triton kernels: a training step in the interpreter, and each kernel built for sm_90.

Those that the interpreter runs within seconds. On a GPU all of them run (`smelt bench --suite all --device cuda`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt
from smelt import pipeline
from smelt.abi.kernel_source import KernelSource
from smelt.bench.steps import Stepper, build_batch, build_model
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload
from smelt.runtime.triton.build import build
from smelt.schedule.machine import H100

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton interprets or compiles, by process")

MODELS = {"torchbench/tts_angular": 4, "torchbench/dlrm": 12}
"""How many kernels a step has at least."""


def gradients(name: str, options: dict[str, Any] | None) -> dict[str, torch.Tensor]:
    """The loss and what backward leaves in the parameters."""
    torch.manual_seed(0)
    settings = Settings()
    workload = find_workload(name)
    stepper = Stepper(workload, build_model(workload, settings), build_batch(workload, settings), settings)
    stepper.compile(lambda model, _: model if options is None else smelt.compile(model, options=options))
    torch.manual_seed(1)
    loss = stepper.forward()
    loss.backward()
    found = {name: p.grad.to_dense() for name, p in stepper.model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("name", list(MODELS))
def test_a_step_in_the_interpreter_and_its_kernels_on_sm_90(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: dict[tuple[Any, ...], KernelSource] = {}
    render = pipeline.render_triton

    def rendered(*args: Any) -> Any:
        result = render(*args)
        sources.update({(s.source, s.signature, s.divisible): s for s in result.kernels})
        return result

    monkeypatch.setattr(pipeline, "render_triton", rendered)
    want = gradients(name, None)
    got = gradients(name, {"target": "triton", "eager_rng": True})
    assert want.keys() == got.keys()
    for key, value in want.items():
        scale = float(value.abs().max()) if value.numel() else 0.0
        torch.testing.assert_close(
            got[key], value, rtol=2e-3, atol=2e-3 * scale + 1e-7, msg=lambda m, k=key: f"{k}: {m}"
        )
    assert len(sources) >= MODELS[name]
    builds = [build(source, source.configs[0], 90) for source in sources.values()]
    for built in builds:
        assert built.result().shared <= H100.shared_bytes
