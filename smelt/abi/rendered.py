"""A program as text: what `codegen` writes, and what is built and executed from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from smelt.abi.faults import Checks
from smelt.abi.kernel_source import KernelSource
from smelt.abi.steps import Steps


@dataclass
class Rendered:
    """A program as text.

    Attributes:
        cpp_sources: translation units.
        exports: for each source, the functions it exports.
        host_source: Python text that defines `call`.
        constants: tensors that the text calls `constants[i]`.
        parts: programs that the text calls `parts[i]`; the sources are then theirs.
        operators: functions that it calls `operators[i]`.
        empty: makes the program for calls in which some of the inputs at `counts` (from the end) are 0, given their
            positions: these kernels are made for tensors with elements. None where it cannot.
        by_operators: makes the program that runs the graph itself, for such calls without a program of their own.
        kernels: Triton kernels, in the order of their numbers in the text.
        device: where the tensors are, of a program for a GPU.
        seconds: for each Triton kernel what computes the same otherwise (see codegen/triton/second_way.py).
        steps: what the text launches and calls, for people; text_of: the kernels of each unit.
        libraries: of the sources, where they are built already: the texts themselves are not needed then.
        host_code: code objects of the host text as bytes (`runtime/host_code.py`), if they were kept.
        code: the code objects themselves, if they are made already.
        checks: of each launch on a GPU that checks values, in the order of their words behind the fault slot.
    """

    cpp_sources: list[str]
    exports: list[list[str]]
    host_source: str
    constants: list[torch.Tensor] = field(default_factory=list)
    parts: list[Rendered] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    empty: Callable[[tuple[int, ...]], Any] | None = None
    by_operators: Callable[[], Any] | None = None
    counts: tuple[int, ...] = ()
    kernels: list[KernelSource] = field(default_factory=list)
    device: torch.device | None = None
    seconds: list[Any] = field(default_factory=list)
    checks: list[Checks] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps)
    text_of: Callable[[int], tuple[str, str]] = lambda number: ("", "")
    libraries: list[Any] | None = None
    host_code: bytes | None = None
    code: list[CodeType] | None = None
