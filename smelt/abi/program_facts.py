"""A report on one program: its kernels and library calls in order, their sources, and memory over time."""

from __future__ import annotations

from dataclasses import dataclass, field

from smelt.abi.steps import Step, Timing


@dataclass(frozen=True)
class Unit:
    """One kernel, or one call of a library.

    Attributes:
        kind: "kernel", "library call", or "product" (a matrix product that runs as either).
        name: the kernel's function in the source, or the operation.
        source: key in `ProgramFacts.sources`; "" if there is no source.
        shape: shape of the loop nest.
        makes, reads: names of the values that the unit makes and reads.
        bytes_read, bytes_written: number of bytes of the buffers, each counted once. With symbolic sizes they are for
            the sizes of the first call.
        flops: number of floating-point operations; 0 if not known.
        dtype: dtype of the operands of a product, such as "float32"; "" for other units.
    """

    kind: str
    name: str
    step: Step
    source: str
    shape: str
    makes: tuple[str, ...]
    reads: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    flops: int
    dtype: str = ""


@dataclass
class ProgramFacts:
    """A report on the forward or backward of one graph.

    Attributes:
        target: "C++" or "Triton".
        device: name of the device on which it runs, such as "cpu" or "cuda:0".
        units: the units in execution order.
        types: types of the values that units read or make, by name.
        sources: texts of kernels by name.
        memory: number of bytes of intermediates and results after each unit.
        arena: number of bytes of the block that intermediates share.
        timing: time of whole calls, which are made in turn with calls whose steps are timed alone; None: not measured.
    """

    name: str
    target: str
    units: list[Unit] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    arena: int = 0
    symbolic: bool = False
    timing: Timing | None = None
    device: str = "cpu"
