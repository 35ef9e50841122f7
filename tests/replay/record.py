"""`python -m tests.replay.record OUT NAME...`: runs programs with the smelt of one source tree; leaves what it wrote.

Each program runs in a process of its own, forked from one that has imported the libraries, under SMELT_TRACE; each
graph that goes to C++ is rendered as Triton text as well, which needs no GPU. `replay.py` starts this file in both
trees, so that it may take for granted only what both commits have.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import smelt
from smelt.bench.torchvision_schemas import define_torchvision_schemas
from smelt.bench.workload import MissingPackages

from .programs import programs

STATS = ("graphs", "breaks", "ops", "recompiles", "fallbacks", "break_reasons", "recompile_reasons", "extern_ops")
"""The counters that say what capture did."""

SECONDS = 180
"""A program that takes longer hangs."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.replay.record", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--first", help="a module that is imported first: what tests change in the compiler")
    given = parser.parse_args()
    render_for_both_targets()
    if given.first:
        importlib.import_module(given.first)
    if any(not name.startswith("functions/") for name in given.names):
        import_libraries()
    gc.collect()
    gc.freeze()
    for name in given.names:
        record(name, given.out / name)


def import_libraries() -> None:
    """Import once what the models need."""
    define_torchvision_schemas()
    for library in ("transformers", "timm"):
        try:
            importlib.import_module(library)
        except ImportError:
            pass


def record(name: str, folder: Path) -> None:
    """Run one program in a process of its own. How it failed is in `failed.txt`."""
    folder.mkdir(parents=True)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            (folder / "failed.txt").write_text(f"ended with status {os.waitstatus_to_exitcode(status)}\n")
        return
    signal.alarm(SECONDS)
    status = 1
    try:
        os.environ["SMELT_TRACE_DIR"] = str(folder)
        run(name, folder)
        status = 0
    finally:
        sys.stdout.flush()
        os._exit(status)


def run(name: str, folder: Path) -> None:
    """The program with fixed seeds, and what capture counted."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    try:
        programs()[name]()
    except MissingPackages as error:
        (folder / "left_out.txt").write_text(f"{error}\n")
    except Exception as error:
        (folder / "failed.txt").write_text("".join(traceback.format_exception_only(error)))
    stats = smelt.stats()
    lines = [f"{key}: {value}" for key in STATS for value in _lines(stats.get(key))]
    (folder / "stats.txt").write_text("\n".join(lines) + "\n")


def _lines(value: Any) -> Sequence[Any]:
    return [f"{count} {what}" for what, count in sorted(value.items())] if isinstance(value, dict) else [value]


def render_for_both_targets() -> None:
    """What becomes C++ is rendered as Triton text, too, `forward` as `forward_triton` and as `forward_autotuned`."""
    driver = _driver()
    render: Callable[..., Any] = driver.render_part

    def both(part: Any, options: Any, report: Any, name: str, *rest: Any) -> Any:
        rendered = render(part, options, report, name, *rest)
        if rendered.cpp_sources:
            for suffix, tuned in (("triton", False), ("autotuned", True)):
                changed = {"target": "triton", "gemm": "auto", "max_autotune": tuned}
                triton(part, replace(options, **changed), report, f"{name}_{suffix}", *rest)
        return rendered

    def triton(part: Any, options: Any, report: Any, name: str, *rest: Any) -> None:
        try:
            render(part, options, report, name, *rest)
        except smelt.SmeltError as error:  # it says what Triton has not
            text = f"{type(error).__name__}: {error}\n"
            report.add(f"6_{name}_kernels.py", lambda: text)

    driver.render_part = both


def _driver() -> Any:
    """The module that renders parts: before there was a driver beside it, the pipeline did."""
    try:
        return importlib.import_module("smelt.driver")
    except ImportError:
        return importlib.import_module("smelt.pipeline")


if __name__ == "__main__":
    main()
