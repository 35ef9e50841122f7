"""smelt/codegen/triton/blocks.py: blocks of products fit their sizes and the card, and the best ranked is the first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from smelt.abi.kernel_source import Config
from smelt.codegen.triton.blocks import fitted, pipelined, product_configs, shared_bytes
from smelt.schedule.machine import GPU, H100, ProductBlocks, gpu
from tests.loops.symbolic import SymbolicBuilder

SMALL = gpu(replace(H100, multiprocessors=4))


def configs(
    rows: Any, columns: Any, depth: Any, dtype: torch.dtype = torch.bfloat16, batch: Any = 1, **how: Any
) -> tuple[Config, ...]:
    machine = how.pop("machine", GPU)
    return product_configs(
        rows, columns, depth, batch, dtype, how.pop("rounded", True), how.pop("autotune", True), machine
    )


def sides(config: Config) -> tuple[int, int, int]:
    constants = dict(config.constants)
    return constants["YBLOCK"], constants["XBLOCK"], constants["KBLOCK"]


def test_blocks_are_no_larger_than_the_next_power_of_two() -> None:
    assert fitted((128, 256, 64, 8, 3), (1000, 1000, 1000), 16) == (128, 256, 64, 8, 3)
    assert fitted((128, 256, 64, 8, 3), (33, 100, 20), 16) == (64, 128, 32, 8, 3)
    assert fitted((128, 256, 64, 8, 3), (1, 0, 17), 16) == (16, 16, 32, 4, 3), "few elements need few warps"
    assert fitted((64, 64, 32, 8, 2), (64, 64, 32), 16)[3] == 8 and fitted((64, 32, 32, 8, 2), (64, 32, 32), 16)[3] == 4
    assert fitted((64, 64, 32, 2, 2), (16, 16, 16), 16)[3] == 2


def test_pipelined_steps_fit_into_shared_memory() -> None:
    blocks = (128, 128, 64, 8, 4)
    step = (128 + 128) * 64 * 2
    assert shared_bytes(blocks, torch.bfloat16) == 4 * step == shared_bytes(blocks, torch.float32) // 2
    for room, stages in ((4 * step, 4), (4 * step - 1, 3), (step, 1), (step - 1, 1), (99 * step, 4)):
        assert pipelined(blocks, torch.bfloat16, room) == (*blocks[:4], stages)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("rounded", [True, False])
def test_each_kind_of_factors_has_a_table_of_its_own(dtype: torch.dtype, rounded: bool) -> None:
    tables = ProductBlocks(half=((32, 32, 32, 4, 2),), rounded=((64, 64, 32, 4, 2),), exact=((16, 16, 16, 1, 1),))
    (found,) = configs(512, 512, 512, dtype, rounded=rounded, machine=replace(GPU, blocks=tables))
    want = (32, 32, 32) if dtype is torch.float16 else (64, 64, 32) if rounded else (16, 16, 16)
    assert sides(found) == want and dict(found.constants)["GROUP"] == tables.group_rows


def test_more_are_tried_where_that_is_asked_for_and_none_twice() -> None:
    one, many = configs(512, 768, 256, autotune=False), configs(512, 768, 256)
    assert one == many[:1] and 1 < len(many) <= GPU.blocks.max_timed and len(set(many)) == len(many)
    assert len(configs(16, 16, 16)) == len({(sides(c), c.num_warps, c.num_stages) for c in configs(16, 16, 16)})


def test_block_configuration_over_shared_memory_is_left_out() -> None:
    tables = ProductBlocks(half=((256, 256, 128, 8, 1), (32, 32, 32, 4, 2)))
    room = shared_bytes((256, 256, 128, 8, 1), torch.float16)
    for bytes_, count in ((room, 2), (room - 1, 1)):
        machine = replace(gpu(replace(H100, shared_bytes=bytes_)), blocks=tables)
        assert len(configs(4096, 4096, 4096, torch.float16, machine=machine)) == count


def test_multiprocessors_are_used_and_factors_read_seldom() -> None:
    """Small results have small blocks, so that every multiprocessor has one; large ones have the largest; of a batch
    all elements count."""
    tables = ProductBlocks(half=((128, 128, 32, 4, 2), (32, 32, 32, 4, 2)))
    machine, few = replace(GPU, blocks=tables), replace(SMALL, blocks=tables)
    assert sides(configs(8192, 8192, 64, machine=machine)[0]) == (128, 128, 32)
    assert sides(configs(128, 128, 64, machine=machine)[0]) == (32, 32, 32)
    assert sides(configs(256, 256, 64, machine=few)[0]) == (128, 128, 32)
    assert sides(configs(128, 128, 64, batch=1320, machine=machine)[0]) == (128, 128, 32)


def test_symbolic_sizes_are_those_of_the_example() -> None:
    g = SymbolicBuilder(512)
    (n,) = g.symbols
    assert configs(n, 768, n * 2) == configs(512, 768, 1024) and not g.known.assumed
