"""Pretrained networks as graphs, and files that hold none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smelt.tiny.graph import MAX_BIAS, Add, Head
from smelt.tiny.models import ModelFileError, load, with_head
from tests.tiny import model_files as files


@pytest.mark.parametrize(
    ("name", "layers", "weights", "macs"),
    [
        ("mcunet-5fps", 42, 463_216, 22_613_504),
        ("proxyless-w0.3", 60, 320_816, 18_715_904),
        ("mbv2-w0.35", 51, 238_688, 16_758_912),
    ],
)
def test_pretrained_networks_load(name: str, layers: int, weights: int, macs: int) -> None:
    graph = load(files.pretrained(name))
    assert len(graph.layers) == layers and graph.macs() == macs
    assert sum(layer.weight.data.size for layer in graph.layers) == weights
    assert graph.tensors[graph.input].shape == (128, 128, 3) and graph.classes == 1000


def test_a_small_network_loads_at_any_size(tmp_path: Path) -> None:
    path = files.write(tmp_path)
    assert load(path).tensors["blocks.1.sum.y"].shape == (5, 5, 6)
    graph = load(path, size=16)
    assert graph.tensors["blocks.1.sum.y"].shape == (8, 8, 6) and graph.classes == 5
    assert sum(isinstance(op, Add) for op in graph.operators) == 1


def test_dead_channels_keep_their_values_with_a_smaller_bias(tmp_path: Path) -> None:
    for layer in load(files.write(tmp_path, dead=True)).layers:
        scale = np.float64(layer.weight.scales[0]) * layer.bias.data[0]
        assert abs(layer.bias.data[0]) <= MAX_BIAS / 4
        assert scale == pytest.approx(4e-9 * -(2.0**31), rel=1e-6)


def test_a_head_for_other_classes(tmp_path: Path) -> None:
    graph = with_head(load(files.write(tmp_path)), 7, seed=3)
    head = graph.operators[-1]
    assert isinstance(head, Head) and graph.classes == 7 and head.weight.data.shape == (7, 6)
    assert np.array_equal(head.weight.data, with_head(graph, 7, seed=3).operators[-1].weight.data)  # type: ignore[union-attr]
    with pytest.raises(ModelFileError, match="0 classes"):
        with_head(graph, 0)


def test_files_that_hold_no_network(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no"):
        load(tmp_path / "none.json")
    path = files.write(tmp_path)
    whole = path.read_text()
    for broken in (whole[:40], whole.replace("first_conv.w", "no such array"), whole.replace('"stride"', '"strode"')):
        path.write_text(broken)
        with pytest.raises(ModelFileError, match="not a model as expected"):
            load(path)
    path.write_text(whole)
    path.with_suffix(".npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(ModelFileError, match="not a model as expected"):
        load(path)


def test_squeeze_and_excitation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="squeeze and excitation"):
        load(
            files.write(
                tmp_path,
                blocks=[{"se": {}, "pointwise1": None, "depthwise": None, "pointwise2": None, "residual": None}],
            )
        )
