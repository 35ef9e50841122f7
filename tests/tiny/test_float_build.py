"""The float build, with which instruction counts are compared, trains as PyTorch does."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from smelt.tiny.host import build
from smelt.tiny.models import load, with_head
from smelt.tiny.rendering import identifier
from tests.tiny import figures, float_build, pytorch_step
from tests.tiny import model_files as files
from tests.tiny.emulated import board_or_skip


def test_a_float_step_is_that_of_pytorch(tmp_path: Path) -> None:
    graph = with_head(load(files.write(tmp_path)), 4, seed=1)
    library = ctypes.CDLL(str(build(float_build.render(graph), tmp_path)))
    library.train_step.restype = ctypes.c_float
    library.train_step.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_float)
    net = float_build.FloatNet(graph)
    first = {name: value.detach().clone().ravel() for name, value in net.held.items()}
    sgd = torch.optim.SGD(net.parameters(), 0.05)
    random = np.random.default_rng(0)
    for label in (1, 3):
        image = random.uniform(-1, 1, graph.tensors[graph.input].shape).astype(np.float32)
        loss = functional.cross_entropy(net(torch.from_numpy(image).permute(2, 0, 1)[None]), torch.tensor([label]))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        assert abs(library.train_step(image.ctypes.data, label, 0.05) - loss.item()) < 1e-4
    for one in graph.parameters():
        held = (ctypes.c_float * one.data.size).in_dll(library, identifier(one.name))
        before = first[identifier(one.name)]
        change = net.held[identifier(one.name)].detach().ravel() - before
        assert (torch.tensor(list(held)) - before - change).norm() < 1e-2 * change.norm() + 1e-6, one.name


def test_a_step_in_pytorch_takes_more_than_its_parameters(tmp_path: Path) -> None:
    graph = with_head(load(files.write(tmp_path)), 4)
    assert pytorch_step.tensors_peak(graph) * 2**20 > 8 * sum(one.data.size for one in graph.parameters())


def test_the_float_build_runs_on_a_board(tmp_path: Path) -> None:
    board = board_or_skip("mps2-an500")
    graph = with_head(load(files.write(tmp_path, size=16)), 4)
    assert 0 < figures.float_instructions(graph, board) < 50
