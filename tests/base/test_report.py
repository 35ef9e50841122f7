"""smelt/base/report.py and log.py"""

from __future__ import annotations

import logging
import resource
import weakref
from pathlib import Path

import pytest
import torch

import smelt
from smelt.base.report import Report


def test_an_artefact_that_does_not_print_costs_only_itself(tmp_path: Path) -> None:
    report = Report("f")
    report.add("1_torch.py", lambda: "good")
    report.add("2_joint.py", lambda: str(1 // 0))
    assert report.save(tmp_path / "f") == tmp_path / "f"
    assert (tmp_path / "f" / "1_torch.py").read_text() == "good"
    assert "ZeroDivisionError" in (tmp_path / "f" / "2_joint.py").read_text()


def test_a_report_that_cannot_be_saved_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert Report("f").save(tmp_path / "file" / "f") is None


def _files(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in folder.iterdir()} if folder.exists() else {}


def test_a_report_replaces_that_of_another_failure_in_a_function_of_the_same_name(tmp_path: Path) -> None:
    first, second = Report("f"), Report("f")
    first.add("1_torch.py", lambda: "first")
    first.add("repro.py", lambda: "first")
    second.add("1_torch.py", lambda: "second")
    first.save(tmp_path / "f")
    (tmp_path / "f" / "notes.txt").write_text("the user's")
    (tmp_path / "f" / "minified.py").write_text("smaller")
    second.save(tmp_path / "f", ValueError("why"))
    found = _files(tmp_path / "f")
    assert "ValueError: why" in found.pop("traceback.txt")
    assert found == {"1_torch.py": "second", "notes.txt": "the user's", "minified.py": "smaller"}


@pytest.mark.parametrize("before", [False, True])
def test_a_full_disk_leaves_no_part_of_a_report(tmp_path: Path, before: bool) -> None:
    former, report = Report("f"), Report("f")
    former.add("1_torch.py", lambda: "former")
    report.add("1_torch.py", lambda: "new")
    report.add("2_joint.py", lambda: "x" * 100_000)
    if before:
        former.save(tmp_path / "f")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        assert report.save(tmp_path / "f") is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert _files(tmp_path / "f") == ({"1_torch.py": "former"} if before else {})
    assert (tmp_path / "f").exists() is before


def test_log_names_the_guard_that_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SMELT_LOG", "recompiles,graphs")
    f = smelt.compile(lambda x, flag: x + 1 if flag else x - 1)
    f(torch.ones(3), True)
    f(torch.ones(3), False)
    f(torch.ones(4), False)
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("smelt graphs:") for line in lines) >= 3
    first, second = (line for line in lines if line.startswith("smelt recompiles:"))
    assert "flag was True, is False" in first and "test_report.py:" in first
    assert "x.shape[0] was 3, is 4" in second


def test_forgotten_report_releases_its_graph():
    report, graph = Report("f"), {"a graph"}
    alive = weakref.ref(graph)
    report.add("1_torch.py", lambda graph=graph: str(graph))
    del graph
    assert alive() is not None
    report.forget()
    assert alive() is None


def test_some_are_forgotten_and_some_printed_from_something_else(tmp_path: Path) -> None:
    report, graph = Report("f", tmp_path), {"a graph"}
    alive = weakref.ref(graph)
    report.add("3_prims.py", lambda graph=graph: str(graph))
    report.instead("3_prims.py", lambda: "its halves")
    del graph
    assert alive() is None
    assert (tmp_path / "3_prims.py").read_text() == "{'a graph'}" and report.artefacts["3_prims.py"]() == "its halves"
    for name in ("1_torch.py", "4_forward_loops.txt", "6_forward_kernels.cpp"):
        report.add(name, lambda: "")
    report.forget(("3_", "4_"))
    assert [*report.artefacts] == ["1_torch.py", "6_forward_kernels.cpp"]


def test_logs_reach_the_programs_own_loggers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SMELT_LOG", "graphs")
    with caplog.at_level(logging.DEBUG, "smelt.graphs"):
        smelt.compile(lambda x: x + 1)(torch.ones(3))
    (record,) = caplog.records
    assert record.name == "smelt.graphs" and "1 operations" in record.getMessage()
    assert not capsys.readouterr().err  # not twice
    smelt.compile(lambda x: x + 2)(torch.ones(3))
    assert len(caplog.records) == 1 and "smelt graphs:" in capsys.readouterr().err


def test_logs_that_no_handler_takes_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program's own handlers may want no more than warnings."""
    monkeypatch.setenv("SMELT_LOG", "graphs")
    logger, handler = logging.getLogger("smelt.graphs"), logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    for name, value in (("level", logging.DEBUG), ("handlers", [handler]), ("propagate", False)):
        monkeypatch.setattr(logger, name, value)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    try:
        smelt.compile(lambda x: x + 1)(torch.ones(3))
        assert "smelt graphs:" in capsys.readouterr().err
    finally:
        monkeypatch.undo()
        logger.manager._clear_cache()  # type: ignore[attr-defined]


def test_topics_that_there_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOG", "graphs, brakes")
    with pytest.raises(smelt.OptionError, match="unknown topic of SMELT_LOG 'brakes'") as told:
        smelt.compile(lambda x: x + 1)
    assert "did you mean 'breaks'" in str(told.value) and "'sizes'" in str(told.value)
