"""A program as text: written by `codegen`, built and executed by `runtime`."""

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
        host_source: text of the host program, in Python; defines `call`.
        constants: tensors that the text names `constants[i]`.
        parts: programs that the text names `parts[i]`; this program then has no other kernel sources.
        operators: functions that the text names `operators[i]`.
        empty: function that makes the program for calls in which some of the inputs at `counts` (from the end) are 0,
            given their positions, because the kernels assume that tensors have elements. It returns None if it cannot.
        by_operators: function that makes the program that runs the graph operator by operator, for such calls if
            `empty` returns None.
        kernels: Triton kernels, in the order of their numbers in the text.
        device: device of the tensors, if the program is for a GPU.
        fallbacks: for each Triton kernel its fallback, which computes the same values (see
            codegen/triton/kernel_fallback.py).
        steps: launches and calls of the text, for profilers; text_of: the kernels of each unit.
        libraries: libraries of the sources, if they are already built; the texts are then not needed.
        host_code: code objects of the host text as bytes (`runtime/host_code.py`), if they were kept.
        code: the code objects of the host text, if they already exist.
        checks: the checks of each launch on a GPU that checks values, in the order of their words after the fault slot.
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
    fallbacks: list[Any] = field(default_factory=list)
    checks: list[Checks] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps)
    text_of: Callable[[int], tuple[str, str]] = lambda number: ("", "")
    libraries: list[Any] | None = None
    host_code: bytes | None = None
    code: list[CodeType] | None = None
