"""The data of reports on captured frames: text and numbers, without references to the program's objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from smelt.abi.ceilings import Ceilings
from smelt.abi.program_facts import ProgramFacts


@dataclass(frozen=True)
class Location:
    """A line of a file; line 0 means that the location is not known."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Noted:
    """A text with the location to which it refers."""

    text: str
    location: Location | None = None


@dataclass(frozen=True)
class BreakFacts:
    """The reason why a graph ended, or why an operation runs in eager."""

    title: str
    why: str
    hint: str
    location: Location | None


@dataclass
class GraphFacts:
    """One compiled version of a frame.

    Attributes:
        operations: the operations of the captured graph, each as a line of Python.
        lines: the user's lines of the operations, and of the calls that lead to them.
        stop: the reason why the graph ends before the function.
        programs: facts about the programs of the graph and of its pieces; empty unless they were requested when it was
            compiled.
        seconds: compile time in seconds, by stage.
    """

    guards: list[Noted]
    residual: str
    operations: list[Noted]
    stop: BreakFacts | None
    programs: list[ProgramFacts] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: frozenset[Location] = frozenset()
    has_graph: bool = True


@dataclass(frozen=True)
class FunctionSource:
    """The source lines of a function; empty if the source is not available."""

    name: str
    file: str
    first: int
    lines: tuple[str, ...]
    of_torch: bool = False


@dataclass
class FrameFacts:
    """A function, or the rest of it after a break.

    Attributes:
        functions: the frame's own function, then functions that it calls inside of its graphs.
        breaks: graph breaks at lines of these functions.
        recompiles: the failed guards that caused recompilations.
    """

    name: str
    location: Location
    functions: list[FunctionSource]
    versions: list[GraphFacts]
    breaks: list[BreakFacts] = field(default_factory=list)
    recompiles: list[Noted] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    given_up: bool = False


@dataclass
class MemorySample:
    """Number of bytes that the process uses (and torch on a GPU), with the time in seconds since the start."""

    seconds: float
    resident: int
    device: int = 0


@dataclass
class RunFacts:
    """The data of the whole page.

    Attributes:
        counts: numbers of graphs, breaks, recompilations and fallbacks.
        seconds: compile time of the whole process in seconds, by stage.
        notes: other messages, such as that the script failed.
        ceilings: what each device can do at most, by its name; without it times are not compared.
    """

    title: str
    frames: list[FrameFacts]
    breaks: list[BreakFacts]
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    memory: list[MemorySample] = field(default_factory=list)
    eager_operators: dict[str, int] = field(default_factory=dict)
    versions: str = ""
    notes: list[str] = field(default_factory=list)
    ceilings: dict[str, Ceilings] = field(default_factory=dict)

    def programs(self) -> list[ProgramFacts]:
        """The programs of all frames, in order."""
        return [program for frame in self.frames for version in frame.versions for program in version.programs]
