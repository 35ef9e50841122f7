"""The corpus of programs that were once captured wrongly, and a short run of the fuzzer."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.execute import difference
from tests.fuzz.grammar import make_program
from tests.fuzz.worker import FAILED, backend_of, compare, forget, shrunk

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.py"))
SEED = f"test{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """What one program left in cycles does not end, and print, while the next one runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    source = path.read_text()
    detail, _ = difference(source, "aot_eager" if source.startswith("# backend: aot_eager") else "eager")
    assert detail is None, detail


@pytest.mark.parametrize("batch", range(8))
def test_random_programs(batch: int) -> None:
    """Programs that change with the version of the fuzzer only; `python -m tests.fuzz` runs any number of others."""
    graphs = 0
    for number in range(25 * batch, 25 * (batch + 1)):
        source = make_program(f"{SEED}:{number}")
        found = compare(source, backend_of(number))
        assert found["status"] not in FAILED, f"{found['detail']}\n{source}"
        graphs += found.get("graphs", 0)
    forget()
    assert graphs >= 10


def test_a_wrong_result_is_found_and_shrunk() -> None:
    """A program that looks at whether it is compiled differs, and shrinks to that."""
    source = """
import torch, smelt
LOG = []
def entry(x, n):
    for i in range(n):
        LOG.append(i)
    if smelt.is_compiling():
        x = x + 1
    return x * 2, LOG
def calls():
    yield torch.ones(2), 3
    yield torch.ones(2), 4
"""
    found = compare(source, "eager")
    assert found["status"] == "different" and "call 0, result" in found["detail"]
    small = shrunk(source, "eager", found, seconds=5)
    assert "is_compiling" in small and "LOG" not in small and len(small.splitlines()) < 10


def test_a_program_that_does_not_repeat_itself_in_eager_is_no_difference() -> None:
    source = """
import random, torch
def entry(x):
    random.seed(None)
    return x + 1
def calls():
    yield (torch.ones(2),)
"""
    found = compare(source, "eager")
    assert found["status"] == "invalid" and "does not repeat" in found["detail"]
