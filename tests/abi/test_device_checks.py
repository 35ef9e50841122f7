"""What kernels on a GPU tell before they trap: of which program and line, to whom, and once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import fx

from smelt.abi import device_checks
from smelt.abi.device_checks import DeviceChecks, context_is_lost, failure
from smelt.abi.faults import CHECK_BYTES, NOT_IN_UNIT, OUT_OF_RANGE, Check
from smelt.capture.residual.error_locations import expect_failure, explain_error

GATHER = Check(OUT_OF_RANGE, "gather", operator="embedding", line="model.py:12")
PUT = Check(OUT_OF_RANGE, "index_put", wraps=True)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceChecks]:
    made = DeviceChecks(lambda words: torch.zeros(words, dtype=torch.int64))
    monkeypatch.setattr(device_checks, "_made", [made])
    yield made


def fail(checks: DeviceChecks, address: int, *told: int) -> None:
    """As a kernel does."""
    for words, _ in checks.pages:
        at = (address - words.data_ptr()) // 8
        if 0 <= at < len(words):
            words[at : at + len(told)] = torch.tensor(told)


def test_a_failure_names_its_launch(checks: DeviceChecks) -> None:
    first = checks.reserve([("one", (PUT,)), ("two", (PUT, GATHER))])
    second = checks.reserve([("three", (GATHER,))])
    assert second == first + 2 * CHECK_BYTES and checks.message() is None
    fail(checks, first + CHECK_BYTES, 2, 7, 4)
    message = checks.message()
    assert message is not None and message.startswith(
        "model.py:12: index 7 is out of range for a dimension of size 4 (embedding, in kernel 'two'); the CUDA context"
    )


@pytest.mark.parametrize(
    ("check", "told", "text"),
    [
        (GATHER, (1, -1, 4), "index -1 is out of range for a dimension of size 4"),
        (PUT, (1, -1, 4), "index -5 is out of range for a dimension of size 4"),
        (PUT, (1, 2**40, 4), f"index {2**40} is out of range for a dimension of size 4"),
        (Check(OUT_OF_RANGE, "any", reports_index=False), (1, 0, 0), "an index is out of range"),
        (Check(NOT_IN_UNIT, "refuse"), (1, 0, 0), "all elements of input should be between 0 and 1"),
        (GATHER, (5, 0, 0), "a check of kernel 'k' failed"),
    ],
)
def test_messages(checks: DeviceChecks, check: Check, told: tuple[int, ...], text: str) -> None:
    fail(checks, checks.reserve([("k", (check,))]), *told)
    assert text in str(checks.message())


def test_more_launches_than_a_page_holds(checks: DeviceChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_checks, "PAGE", 4)
    places = [checks.reserve([(f"{n}", (GATHER,)) for n in range(count)]) for count in (3, 2, 9, 1)]
    assert len(checks.pages) == 4 and len(set(places)) == 4
    fail(checks, places[2] + 8 * CHECK_BYTES, 1, 7, 4)
    assert "kernel '8'" in str(checks.message())


def test_errors_of_a_lost_context_repeat_the_reported_check(checks: DeviceChecks) -> None:
    place = checks.reserve([("k", (GATHER,))])
    error = RuntimeError("CUDA error: unspecified launch failure")
    assert context_is_lost(error) and str(error) == "CUDA error: unspecified launch failure" and failure() is None
    fail(checks, place, 1, 7, 4)
    assert not context_is_lost(RuntimeError("shapes differ")) and not context_is_lost(IndexError("CUDA error"))
    assert not checks.reported and context_is_lost(error)
    assert str(error).startswith("CUDA error: device-side assert triggered: model.py:12: index 7 is out of range")
    told = str(error)
    assert context_is_lost(error) and str(error) == told


def test_nothing_runs_again_in_a_lost_context(checks: DeviceChecks) -> None:
    """Not even what explains errors elsewhere, by running the graph in eager."""
    fail(checks, checks.reserve([("k", (GATHER,))]), 1, 7, 4)

    def run(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it ran")

    gm = fx.GraphModule({}, fx.Graph())
    gm.forward = run  # type: ignore[method-assign]
    error = RuntimeError("CUDA error: unspecified launch failure")
    with pytest.raises(RuntimeError, match=r"device-side assert.*model.py:12: index 7"):
        explain_error(gm, error, [torch.ones(1)])
    assert checks.reported
    expect_failure(gm, error, [torch.ones(1)])  # the frame runs in eager, where its first CUDA call fails
    assert not checks.reported


def test_unreported_failures_are_printed_once(checks: DeviceChecks, capsys: pytest.CaptureFixture[str]) -> None:
    place = checks.reserve([("k", (GATHER,))])
    checks.print_once()
    assert not capsys.readouterr().err
    fail(checks, place, 1, 7, 4)
    checks.print_once()
    assert capsys.readouterr().err.startswith("smelt: model.py:12: index 7 is out of range")
    checks.print_once()
    assert not capsys.readouterr().err


PROGRAM = """
import torch
from smelt.abi import device_checks
from smelt.abi.faults import Check
plain = torch.zeros
torch.zeros = lambda n, pin_memory, **more: plain(n, **more)
made = device_checks.device_checks()
made.reserve([("k", (Check(1, "gather", line="model.py:12"),))])
made.pages[0][0][:3] = torch.tensor([1, 7, 4])
"""


@pytest.mark.parametrize("end", ["raise RuntimeError('of PyTorch')", "", "device_checks.failure()"])
def test_a_process_reports_at_its_end(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM + end], capture_output=True, text=True, timeout=120)
    count = done.stderr.count("smelt: model.py:12: index 7 is out of range for a dimension of size 4")
    assert count == (0 if "failure" in end else 1), done.stderr
    assert ("of PyTorch" in done.stderr) == ("raise" in end)


def test_a_thread_reports_beside_its_error() -> None:
    """At once: the process may go on for long."""
    thread = """
import sys, threading
def run():
    raise RuntimeError('of PyTorch')
one = threading.Thread(target=run)
one.start()
one.join()
print('later', file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", PROGRAM + thread], capture_output=True, text=True, timeout=120)
    told = [done.stderr.index(text) for text in ("smelt: model.py:12: index 7", "of PyTorch", "later")]
    assert told == sorted(told) and done.stderr.count("smelt:") == 1, done.stderr
