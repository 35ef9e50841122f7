"""Inference: the generated C, built by this machine's compiler, gives the bits of the simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from smelt.base.errors import SmeltError
from smelt.tiny import render_c, rendering, running, simulate
from smelt.tiny.graph import Add, AveragePool, Clamp, Conv, Flatten, Int8Graph, Linear, Parameter, Tensor
from smelt.tiny.host import HostModel
from smelt.tiny.infer import infer_program
from smelt.tiny.models import load, with_head
from smelt.tiny.plan import lay_out
from smelt.tiny.simulate_forward import to_int8
from tests.tiny import model_files as files

DUAL_MAC = "-DTINY_DUAL_MAC=1"


def images(graph: Int8Graph, count: int, seed: int = 0) -> np.ndarray:
    """Noise, and images that vary slowly."""
    random = np.random.default_rng(seed)
    noise = random.integers(-128, 128, (count, *graph.tensors[graph.input].shape))
    noise[::2] = np.cumsum(noise[::2] // 16, 1) // 3
    return np.clip(noise, -128, 127).astype(np.int8)


def check(graph: Int8Graph, *flags: str, count: int = 4) -> np.ndarray:
    """The logits, which C and simulation agree about."""
    program = infer_program(graph)
    given = images(graph, count)
    expected = simulate.infer(program, given).numpy()
    model = HostModel(render_c.render(program), program, flags)
    assert np.array_equal(np.stack([model.infer(image) for image in given]), expected)
    return expected


@pytest.mark.parametrize("flags", [(), (DUAL_MAC,)])
@pytest.mark.parametrize("size", [9, 16])
def test_c_has_the_bits_of_the_simulation(tmp_path: Path, flags: tuple[str, ...], size: int) -> None:
    graph = load(files.write(tmp_path), size=size)
    assert len(np.unique(check(graph, *flags))) > 5  # logits are not all at a bound
    check(with_head(graph, 3), *flags)


@pytest.mark.parametrize("name", files.NAMES)
def test_pretrained_networks_have_the_bits_of_the_simulation(name: str) -> None:
    graph = load(files.pretrained(name))
    assert len(np.unique(check(graph, DUAL_MAC, count=2))) > 20


def odd_graph(channels: int, kernel: int, stride: int, padding: int) -> Int8Graph:
    """Operators that the pretrained networks lack: windows, bounds, a linear layer in the middle, odd extents."""
    random = np.random.default_rng(channels)

    def parameters(name: str, *shape: int, outputs: int) -> tuple[Parameter, Parameter]:
        scales = random.uniform(0.001, 0.004, outputs).astype(np.float32)
        weight = Parameter(f"{name}.w", random.integers(-127, 128, shape).astype(np.int8), scales)
        return weight, Parameter(f"{name}.b", random.integers(-999, 999, outputs).astype(np.int32))

    size = (11 + 2 * padding - kernel) // stride + 1
    wide, flat = (size, (7 + 2 * padding - kernel) // stride + 1, channels), (size // 2) * channels
    shapes = {"x": (11, 7, 3), "a": wide, "b": wide, "c": wide, "d": wide, "e": (size // 2, 1, channels), "f": (flat,)}
    tensors = {n: Tensor(n, s, "int8", 0.05, -3 if n in "cd" else 7) for n, s in shapes.items()}
    tensors |= {"g": Tensor("g", (5,), "int8", 0.1, -128), "h": Tensor("h", (3,), "int8", 0.2, 1)}
    operators = (
        Conv(
            "conv",
            "x",
            "a",
            *parameters("conv", channels, kernel, kernel, 3, outputs=channels),
            (kernel, kernel),
            stride,
            (padding, padding),
        ),
        Conv("own", "a", "b", *parameters("own", 3, 3, channels, outputs=channels), (3, 3), 1, (1, 1), True, -100, 90),
        Add("sum", "a", "b", "c"),
        Clamp("relu", "c", "d", -3, 60),
        AveragePool("pool", "d", "e", (2, wide[1]), (2, 1)),
        Flatten("flat", "e", "f"),
        Linear("hidden", "f", "g", *parameters("hidden", 5, flat, outputs=5)),
        Linear("last", "g", "h", *parameters("last", 3, 5, outputs=3)),
    )
    graph = Int8Graph("odd", tensors, operators, "x", "h")
    graph.verify()
    return graph


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding"), [(5, 3, 1, 1), (4, 2, 1, 0), (7, 5, 2, 2), (1, 3, 2, 0)]
)
def test_other_operators_and_extents(channels: int, kernel: int, stride: int, padding: int) -> None:
    check(odd_graph(channels, kernel, stride, padding), DUAL_MAC)


def test_rescaled_halves_go_to_the_even_neighbour_and_masks_hold_the_bounds() -> None:
    halves = torch.tensor([-3.5, -2.5, -0.5, 0.5, 1.5, 2.5, 1e30, -1e30])
    y = Tensor("y", (8,), scale=1.0, zero=2)
    assert to_int8(halves, y, -128, 4).tolist() == [-2, 0, 2, 2, 4, 4, 4, -128]


@pytest.mark.parametrize("name", files.NAMES)
def test_arenas_are_as_small_as_lifetimes_allow(name: str) -> None:
    layout = lay_out(infer_program(load(files.pretrained(name))))
    assert layout.size <= 1.05 * layout.least
    assert layout.size <= 65_536  # 49,152 are the image


def test_values_that_live_at_once_do_not_share_memory(tmp_path: Path) -> None:
    for graph in (load(files.write(tmp_path)), odd_graph(5, 3, 1, 1)):
        program = infer_program(graph)
        layout = lay_out(program)
        sizes = {name: value.bytes for name, value in program.values.items()}
        sizes |= {f"{i}.scratch": call.scratch for i, call in enumerate(program.calls)}
        assert layout.offsets[graph.input] == 0
        names = list(layout.offsets)
        for i, a in enumerate(names):
            for b in names[:i]:
                (first, last), (begun, done) = layout.lives[a], layout.lives[b]
                over = layout.in_place.get(a) == b or layout.in_place.get(b) == a
                apart = (
                    layout.offsets[a] + sizes[a] <= layout.offsets[b]
                    or layout.offsets[b] + sizes[b] <= layout.offsets[a]
                )
                assert last < begun or done < first or apart or over, (a, b)


def test_images_of_another_shape_or_type_are_refused(tmp_path: Path) -> None:
    graph = load(files.write(tmp_path))
    for wrong in (np.zeros((1, 8, 9, 3), np.int8), np.zeros((1, 9, 9, 3), np.float32)):
        with pytest.raises(SmeltError, match="takes int8 images of shape"):
            simulate.infer(graph, wrong)


def test_kernels_have_a_meaning_and_a_call() -> None:
    assert running.RULES.keys() == rendering.RULES.keys()
