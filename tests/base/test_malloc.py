"""Memory that the compiler has freed goes back to the system."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import fx

import smelt
from smelt import driver, pipeline
from smelt.base import malloc
from smelt.base.malloc import resident
from smelt.schedule.plan import Schedule

pytestmark = pytest.mark.skipif(malloc.freed() == 0, reason="the C library does not tell what its heap has free")


def leave_holes() -> list[bytes]:
    """Some 80 MiB in pieces are freed, below pieces that are not, by which the process has grown.

    The holes that other tests have left in the heap have no pages then, and a piece has whole pages for itself.
    """
    malloc.give_back()
    malloc.release_freed()  # the process was as small as this
    pieces = [bytes(32768) for _ in range(2_500)]
    kept = pieces[::25]
    del pieces
    return kept


def test_freed_memory_is_returned_to_the_operating_system():
    kept = leave_holes()
    assert malloc.freed() > 2 * malloc.MIN_TRIMMED_BYTES
    before = resident()
    malloc.release_freed()
    assert resident() < before - 2 * malloc.MIN_TRIMMED_BYTES and len(kept) == 100


def test_after_a_compilation():
    smelt.reset()
    kept = leave_holes()
    before = resident()
    assert torch.equal(smelt.compile(lambda x: x + 1)(torch.ones(3)), torch.full((3,), 2.0))
    assert resident() < before - malloc.MIN_TRIMMED_BYTES and len(kept) == 100


def test_not_again_before_the_process_has_grown(monkeypatch):
    trims = []
    monkeypatch.setattr(malloc, "_trim", trims.append)
    counts = []
    monkeypatch.setattr(malloc, "freed", lambda: counts.append(1) or malloc.MIN_TRIMMED_BYTES)
    sizes = iter([100, 90, 92, 99, 99, 99])  # asked before, and after a release
    monkeypatch.setattr(malloc, "resident", lambda: next(sizes) << 20)
    release = malloc._Releasing()
    release()
    release()  # 92: it has not grown by as much as is worth it, nor as is worth a count, which takes milliseconds
    assert len(trims) == len(counts) == 1
    release()  # 99: it has
    assert len(trims) == 2


def test_intermediate_graphs_are_freed():
    """Of a compiled function stay what was captured, the joint graph and the backward; not the plans of kernels."""
    smelt.reset()
    gc.collect()
    before = [x for x in gc.get_objects() if type(x) is Schedule]
    compiled = smelt.compile(lambda x: (x.sin() * x).sum())
    x = torch.randn(4, 3, requires_grad=True)
    compiled(x).backward()
    gc.collect()
    assert [x for x in gc.get_objects() if type(x) is Schedule] == before and x.grad is not None


def test_after_the_first_call_of_a_program_and_no_later_one(monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr("smelt.program.release_freed", lambda: calls.append(1))
    compiled = smelt.compile(lambda x, w: ((x @ w).sin() @ w).sum(), dynamic=False)
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, w), ((x @ w).sin() @ w).sum())
        assert calls == [1]


def test_graphs_end_with_the_stages_that_need_them(monkeypatch):
    """The whole graph is gone when kernels are made of its halves, loops and schedules when programs are loaded."""
    smelt.reset()
    wholes: list[weakref.ref[fx.GraphModule]] = []
    seen: list[tuple[str, int]] = []
    gc.collect()
    before = len([x for x in gc.get_objects() if type(x) is Schedule])

    def partition(module, joint, options, original=pipeline.partition):
        wholes.append(weakref.ref(module))
        return original(module, joint, options)

    def render_and_build(*args, original=driver.render_and_build):
        graphs = [whole.graph for whole in map(lambda each: each(), wholes) if whole is not None]
        alive = gc.get_objects()
        seen.append(("nodes", sum(type(x) is fx.Node and x.op != "root" and x.graph in graphs for x in alive)))
        return original(*args)

    def load(*args, original=driver.load):
        seen.append(("schedules", len([x for x in gc.get_objects() if type(x) is Schedule]) - before))
        return original(*args)

    monkeypatch.setattr(pipeline, "partition", partition)
    for replaced in (render_and_build, load):
        monkeypatch.setattr(driver, replaced.__name__, replaced)
    x = torch.randn(4, 3, requires_grad=True)
    smelt.compile(lambda x: (x.sin() * x).sum())(x).backward()
    assert seen == [("nodes", 0), ("schedules", 0), ("schedules", 0)] and len(wholes) == 1


def test_the_report_of_a_late_failure_still_has_the_primitives(monkeypatch, tmp_path):
    def render_and_build(parts, options, report, updates=None):
        report.save(tmp_path)
        return original(parts, options, report, updates)

    original = driver.render_and_build
    monkeypatch.setattr(driver, "render_and_build", render_and_build)
    smelt.reset()
    x = torch.randn(4, 3, requires_grad=True)
    smelt.compile(lambda x: x.sin().sum())(x).backward()
    text = (tmp_path / "3_prims.py").read_text()
    assert "sin" in text and "cos" in text  # of both halves
