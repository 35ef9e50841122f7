"""What people are told of one program: its kernels and library calls in order, their sources, and memory over time."""

from __future__ import annotations

from dataclasses import dataclass, field

from smelt.abi.steps import Step


@dataclass(frozen=True)
class Unit:
    """One kernel, or one call of a library.

    Attributes:
        kind: "kernel", "library call", or "product", which may be either.
        name: of the function in the source, or of the operation.
        source: name of the text in `ProgramFacts.sources`; "" where there is none.
        shape: what its loops go over.
        makes, reads: values, with their types.
        bytes_read, bytes_written: of buffers, each once. With symbolic sizes, for the sizes of the first call.
        flops: 0 where it is not known.
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


@dataclass
class ProgramFacts:
    """Forward or backward of one graph.

    Attributes:
        units: in the order in which they run.
        types: of values that are read or made.
        sources: texts of kernels by name.
        memory: bytes of intermediates and results after each unit.
        arena: bytes of the block that intermediates share.
    """

    name: str
    target: str
    units: list[Unit] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    arena: int = 0
    symbolic: bool = False
