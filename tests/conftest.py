"""Every test runs strict, with its own cache folder, fixed seeds and a compiler without memory of other tests."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

# Before anything imports smelt: the environment of the whole session, also of subprocesses.
os.environ["SMELT_STRICT"] = "1"
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share them: what one has built is there for the others
    os.environ["SMELT_CACHE_DIR"] = tempfile.mkdtemp(prefix="smelt-test-cache-")
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # each of hundreds of processes would compile its imports
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = os.environ["SMELT_CACHE_DIR"] + "-bytecode"
        sys.dont_write_bytecode = False
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: Ctrl-C would reach no child
    signal.signal(signal.SIGINT, signal.default_int_handler)
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    # Threads that wait for each other spin: more of them than cores would make `pytest -n` slower than one process.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton; processes that compile drop it
    # Each `torch.manual_seed` would keep the text of its stack, for errors of devices that are not there.
    torch.cuda.traceback = torch.xpu.traceback = types.SimpleNamespace(format_stack=list)

try:
    import hypothesis
except ImportError:  # where nothing can be installed the tests of a GPU run without
    pass
else:  # how long a machine takes, which may be busy, is no property
    too_slow = hypothesis.HealthCheck.too_slow
    hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[too_slow])
    hypothesis.settings.load_profile("busy")

from smelt.bench.torchvision_schemas import define_torchvision_schemas

define_torchvision_schemas()


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """The same random numbers for every test, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Forget compiled code and counts after each test that used the compiler; keep apart what it has imported."""
    yield
    smelt = sys.modules.get("smelt")
    reset = getattr(smelt, "reset", None)
    if reset is not None:
        reset()
    if "torch._dynamo" in sys.modules:  # its first use turns this off
        torch.distributions.Distribution.set_default_validate_args(True)
    keep_imported()


FIRST = {"tiny", "suites", "distributed"}
"""Folders of tests that take tens of seconds: if one began last, the run would wait for a single process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none, and where Triton kernels run on the CPU."""
    items.sort(key=lambda item: FIRST.isdisjoint(item.path.parts))
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if torch.cuda.is_available() and not interpreted:
        return
    reason = "Triton's interpreter is on: `make test-gpu` runs it" if torch.cuda.is_available() else "no CUDA device"
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Looks for garbage among what is imported would take a fifth of the time of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


_imported = 0
"""Modules whose objects no look for garbage goes through any more."""


def keep_imported() -> None:
    """A million objects that were imported live as long as the tests: no look for garbage goes through them again."""
    global _imported
    if len(sys.modules) >= _imported + 100:
        gc.collect()
        gc.freeze()
        _imported = len(sys.modules)


def pytest_collection_finish() -> None:
    """The tests begin."""
    keep_imported()


def pytest_sessionfinish() -> None:
    """Remove the session's folders."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for more in ("", "-bytecode"):
            shutil.rmtree(os.environ["SMELT_CACHE_DIR"] + more, ignore_errors=True)


@pytest.fixture
def branches_end_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches on tensors' values are graph breaks, also those that a graph could take: for tests of breaks."""
    from smelt.capture.control_flow import conditionals
    from smelt.capture.python import containers

    def refuse(*_: object) -> None:
        raise containers.tensor_value("a branch on a tensor's value")

    monkeypatch.setattr(conditionals, "capture_arms", refuse)


@pytest.fixture(params=["cpp", "triton"])
def compiled(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`smelt.compile` for each target; without a GPU kernels of Triton's run in its interpreter."""
    import smelt

    if request.param == "cpp":
        return smelt.compile
    pytest.importorskip("triton")
    return lambda f, **more: smelt.compile(f, options={"target": "triton"}, **more)
