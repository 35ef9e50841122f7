"""`smelt verify`: checks the requirements of compiling, compiles one function on each target, says what to install.

A check never raises an error; it returns its findings. The result `fail` means that the CPU path does not work, `warn`
that something works with a disadvantage, `absent` that an optional component is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from smelt.base.errors import SmeltError, SmeltWarning
from smelt.base.options import environment
from smelt.base.private_folder import make_folder
from smelt.bench.contenders import load_compiler
from smelt.runtime.build import find_compiler
from smelt.runtime.openmp import loaded_runtimes

PYTHON = ((3, 11), (3, 13))
TORCH = ((2, 11), (2, 15))
EXTENSIONS = ("smelt.base._native", "smelt.autograd._native", "smelt.capture._native", "smelt.runtime._native")
"""The C extensions that installation builds."""

STYLES = {"ok": "green", "warn": "yellow", "fail": "red", "absent": "dim"}


@dataclass(frozen=True)
class Check:
    """One line of the table: the subject; `ok`, `warn`, `fail` or `absent`; the finding; what to do."""

    name: str
    status: str
    found: str
    hint: str = ""


def run_checks() -> list[Check]:
    """Run every check in order. The compile checks come last, since they need what the others check."""
    return [check() for check in CHECKS]


def show_checks(checks: list[Check], console: Console) -> None:
    """Print the table, what to do about each line that is not `ok`, and the conclusion."""
    table = Table("part", "", "found", box=box.SIMPLE_HEAD)
    for check in checks:
        table.add_row(check.name, f"[{STYLES[check.status]}]{check.status}[/]", check.found)
    console.print(table)
    for check in checks:
        if check.hint:
            console.print(f"[bold]{check.name}[/]: {check.hint}", highlight=False)
    failed = [check.name for check in checks if check.status == "fail"]
    console.print(
        f"[red]smelt cannot compile for the CPU here: {', '.join(failed)}[/]" if failed else "[green]smelt is ready[/]"
    )


def check_python() -> Check:
    """Check the interpreter: CPython in the supported range of versions."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    right = platform.python_implementation() == "CPython" and PYTHON[0] <= sys.version_info[:2] <= PYTHON[1]
    return Check("Python", "ok" if right else "fail", found, "" if right else f"use CPython {_range(PYTHON)}")


def check_torch() -> Check:
    """Check the version of torch. An unsupported version may work, so it gives a warning."""
    version = torch.__version__
    right = TORCH[0] <= _release(version) <= TORCH[1]
    return Check("torch", "ok" if right else "warn", version, "" if right else f"tested with torch {_range(TORCH)}")


def check_compiler() -> Check:
    """Check the C++ compiler that builds the kernels."""
    try:
        compiler = find_compiler()
    except SmeltError as error:
        return Check("C++ compiler", "fail", error.what, error.hint or "")
    return Check("C++ compiler", "ok", compiler.version)


def check_extensions() -> Check:
    """Check that the C extensions are built and can be imported by this Python."""
    broken = []
    for name in EXTENSIONS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            broken.append(f"{name}: {error}")
    if broken:
        return Check("C extensions", "fail", "; ".join(broken), "build them: pip install --no-build-isolation -e .")
    return Check("C extensions", "ok", f"{len(EXTENSIONS)} loaded")


def check_cache() -> Check:
    """Check that the cache folder can be written, and that no other user can read or write it."""
    folder = environment().cache_dir
    shown = str(folder).replace(str(Path.home()), "~", 1)
    try:
        make_folder(folder)
        with tempfile.NamedTemporaryFile(dir=folder):
            mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        reason = error.strerror or str(error)
        return Check("cache folder", "warn", f"{shown}: {reason}", "set SMELT_CACHE_DIR to a folder you can write")
    if mode & 0o077:
        return Check("cache folder", "warn", f"{shown} has mode {mode:04o}", f"close it to others: chmod 700 {shown}")
    return Check("cache folder", "ok", f"{shown}, mode {mode:04o}")


def check_cpu() -> Check:
    """Compile one function for the CPU, and compare forward and backward with eager."""
    return _compile_check("CPU path", "cpu")


def check_gpu() -> Check:
    """Compile the function of `check_cpu` for the GPU and compare it with eager: `warn` if that fails, `absent` without
    a GPU.
    """
    if not torch.cuda.is_available():
        return Check("GPU path", "absent", "no CUDA device")
    check = _compile_check("GPU path", "cuda")
    return Check(check.name, "warn", check.found, check.hint) if check.status == "fail" else check


def check_openmp() -> Check:
    """Check the OpenMP runtimes in this process after a kernel ran: more than one would compete for the cores."""
    runtimes = loaded_runtimes()
    names = ", ".join(path.name for path in runtimes)
    if not runtimes:
        return Check("OpenMP", "warn", "no runtime is loaded", "kernels run on one thread with this build of torch")
    if len(runtimes) > 1:
        return Check("OpenMP", "warn", f"{len(runtimes)} runtimes: {names}", "import torch before other packages")
    return Check("OpenMP", "ok", f"{names}, {torch.get_num_threads()} threads")


def check_cuda() -> Check:
    """Check the GPU; `absent` without one."""
    if not torch.cuda.is_available():
        return Check("CUDA", "absent", "no CUDA device in reach of torch")
    return Check("CUDA", "ok", f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")


def check_triton() -> Check:
    """Check Triton, the language of the GPU kernels."""
    if importlib.util.find_spec("triton") is None:
        needed = torch.cuda.is_available()
        hint = "pip install triton" if needed else ""
        return Check("Triton", "warn" if needed else "absent", "not installed", hint)
    return Check("Triton", "ok", importlib.import_module("triton").__version__)


CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_torch,
    check_compiler,
    check_extensions,
    check_cache,
    check_cpu,
    check_openmp,
    check_cuda,
    check_triton,
    check_gpu,
)


def softmax_block(x: Tensor, weight: Tensor) -> Tensor:
    """A product, a reduction and pointwise work: what a small block of a model is made of."""
    return torch.softmax(torch.relu(x @ weight) * 0.5, dim=-1)


def _compile_check(name: str, device: str) -> Check:
    hint = "run again with SMELT_TRACE=1 and look into the folder smelt_trace"
    try:
        with fresh_cache(), warnings.catch_warnings():
            warnings.simplefilter("error", SmeltWarning)
            difference = compile_and_compare(device)
    except Exception as error:
        return Check(name, "fail", f"{type(error).__name__}: {str(error)[:300]}", hint)
    if not difference < 1e-5:
        return Check(name, "fail", f"a result differs from eager by {difference:.1e}", hint)
    return Check(name, "ok", f"compiled forward and backward, within {difference:.0e} of eager")


def compile_and_compare(device: str) -> float:
    """The largest difference between eager and compiled `softmax_block`, over its result and both gradients.

    Raises:
        SmeltError: the function ran in eager.
    """
    smelt = load_compiler()
    before = smelt.stats()
    compiled = smelt.compile(softmax_block, fullgraph=True)
    results = []
    for call in (softmax_block, compiled):
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(16, 16, generator=generator).to(device).requires_grad_() for _ in range(2))
        out = call(x, weight)
        out.pow(2).sum().backward()
        results.append((out.detach(), x.grad, weight.grad))
    after = smelt.stats()
    if after["graphs"] <= before["graphs"] or after["fallbacks"] > before["fallbacks"]:
        raise SmeltError("the function ran in eager: no graph was compiled")
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))


@contextmanager
def fresh_cache() -> Iterator[None]:
    """Context with an empty cache folder, so that a check tests the compiler and not the results of an earlier run."""
    before = os.environ.get("SMELT_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="smelt-verify-") as folder:
        os.environ["SMELT_CACHE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["SMELT_CACHE_DIR"]
            else:
                os.environ["SMELT_CACHE_DIR"] = before


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _range(bounds: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return " to ".join(f"{major}.{minor}" for major, minor in bounds)
